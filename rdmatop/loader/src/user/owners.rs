//! The processes that have living QPs, and their users, of which each is read once. Pure but for the reader
//! that is given.

use std::collections::{BTreeMap, BTreeSet};

use super::probed::{Party, Process};
use rdmatop_base::order::Gather as _;

/// No more than there are QPs.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// Starts of processes by number.
    living: BTreeMap<u32, u64>,
    /// The user of each of them that had to be known.
    users: BTreeMap<Process, Option<u32>>,
}

impl Owners {
    /// Begins a look at all QPs.
    pub(super) fn look(&mut self) {
        self.living.clear();
    }

    /// A living QP has this owner. Of a number the newest process counts: a QP of an earlier one may still be
    /// there.
    pub(super) fn sees(&mut self, owner: Process) {
        let start_ns = self.living.entry(owner.pid).or_default();
        *start_ns = owner.start_ns.max(*start_ns);
    }

    /// Ends a look: forgets the users of processes that are no more.
    pub(super) fn seen(&mut self) {
        let living = &self.living;
        let lives = |process: &Process| living.get(&process.pid) == Some(&process.start_ns);
        self.users.retain(|process, _| lives(process));
    }

    pub(super) fn has(&self, pid: u32) -> bool {
        self.living.contains_key(&pid)
    }

    pub(super) fn lives(&self, process: &Process) -> bool {
        self.living.get(&process.pid) == Some(&process.start_ns)
    }

    /// The process with this number and its user, which `read` reads if it is not known.
    pub(super) fn party(&mut self, pid: u32, read: impl FnOnce(u32) -> Option<u32>) -> Party {
        let start_ns = self.living.get(&pid).copied().unwrap_or(0);
        let process = Process { pid, start_ns };
        let user = *self.users.entry(process).or_insert_with(|| read(pid));
        Party { user, process }
    }

    /// All of them.
    pub(super) fn parties(&mut self, read: impl Fn(u32) -> Option<u32>) -> Vec<Party> {
        let pids: Vec<u32> = self.living.keys().copied().collect();
        pids.into_iter().map(|pid| self.party(pid, &read)).collect()
    }

    /// Those whose user had to be known.
    pub(super) fn known(&self) -> BTreeSet<Party> {
        let party = |(process, user): (&Process, &Option<u32>)| Party {
            user: *user,
            process: *process,
        };
        self.users.iter().map(party).gather()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn the_user_of_a_process_is_read_once_and_that_of_a_later_one_anew() {
        let mut owners = Owners::default();
        let asked = RefCell::new(Vec::new());
        let read = |pid| {
            asked.borrow_mut().push(pid);
            Some(1000 + pid)
        };
        let mut look = |processes: &[(u32, u64)]| {
            owners.look();
            for (pid, start_ns) in processes {
                let (pid, start_ns) = (*pid, *start_ns);
                owners.sees(Process { pid, start_ns });
            }
            owners.seen();
            let parties = owners.parties(read);
            assert_eq!(owners.known(), parties.iter().copied().collect());
            let party = |party: Party| (party.process.pid, party.process.start_ns, party.user);
            let parties: Vec<_> = parties.into_iter().map(party).collect();
            (parties, std::mem::take(&mut *asked.borrow_mut()))
        };
        let both = vec![(7, 5, Some(1007)), (8, 6, Some(1008))];
        assert_eq!(look(&[(7, 5), (8, 6), (7, 5)]), (both.clone(), vec![7, 8]));
        assert_eq!(
            look(&[(7, 0), (7, 5), (8, 6)]),
            (both, vec![]),
            "an unknown start"
        );
        let later = (7, 9, Some(1007));
        assert_eq!(
            look(&[(7, 5), (7, 9)]),
            (vec![later], vec![7]),
            "a QP of the former"
        );
        assert_eq!(look(&[]), (vec![], vec![]));
        assert_eq!(
            look(&[(7, 9)]),
            (vec![later], vec![7]),
            "nothing is kept of what is gone"
        );
    }
}
