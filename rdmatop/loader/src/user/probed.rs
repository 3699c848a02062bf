//! The functions that are probed, how many QPs use them, and which probes to remove: those that no program
//! can hit any more and, where there is no room, those that no QP has used for the longest time. One process,
//! and one user, can have only a share of them probed, so that there is room for others.
//!
//! A library of the system stays probed after its last QP, so that the next process loses nothing. Pure.

use std::collections::BTreeMap;

use super::target::ProbePoint;

/// For how long probes that can be removed stay after their last QP, ns: the process may make another one.
const LINGER_NS: u64 = 2_000_000_000;

/// A probed function.
#[derive(Debug)]
struct Entry<T> {
    probes: T,
    /// Number of living QPs that post with it.
    users: usize,
    /// When the last QP stopped using it, ns.
    used_ns: u64,
    /// For whom it is probed: the first that used it.
    of: Party,
}

/// A process and its user. `None`: it has several, or that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Party {
    pub(super) user: Option<u32>,
    pub(super) pid: u32,
}

/// Who has as many functions probed as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    Process,
    User,
    All,
}

/// Probed functions; `T` keeps the probes of one attached.
#[derive(Debug)]
pub(super) struct Probed<T> {
    most: usize,
    entries: BTreeMap<ProbePoint, Entry<T>>,
}

impl<T> Probed<T> {
    /// A table of at most `most` functions.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            entries: BTreeMap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn has(&self, point: &ProbePoint) -> bool {
        self.entries.contains_key(point)
    }

    /// Notes that a QP uses a function; `None` when it is not probed.
    pub(super) fn take(&mut self, point: &ProbePoint) -> Option<&T> {
        let entry = self.entries.get_mut(point)?;
        entry.users += 1;
        Some(&entry.probes)
    }

    /// Adds a function that one QP uses.
    pub(super) fn add(&mut self, point: ProbePoint, probes: T, of: Party) {
        let entry = Entry {
            probes,
            users: 1,
            used_ns: 0,
            of,
        };
        self.entries.insert(point, entry);
    }

    /// Notes that a QP no longer uses these functions.
    pub(super) fn release(&mut self, points: &[ProbePoint], now_ns: u64) {
        for point in points {
            if let Some(entry) = self.entries.get_mut(point) {
                entry.users = entry.users.saturating_sub(1);
                entry.used_ns = now_ns;
            }
        }
    }

    /// Whether all of these functions can be probed for a process: else none is, instead of some again and
    /// again.
    pub(super) fn has_room<'p>(
        &self,
        of: Party,
        points: impl Iterator<Item = &'p ProbePoint>,
    ) -> Result<(), Full> {
        let (mut new, mut idle) = (0, 0);
        for point in points {
            match self.entries.get(point) {
                None => new += 1,
                Some(entry) => idle += usize::from(entry.users == 0),
            }
        }
        self.room(of, new, idle)
    }

    /// Whether so many functions more, and so many that are probed but idle, can be in use by a process. Its
    /// user may have half of all that are in use, and the process a quarter.
    fn room(&self, of: Party, new: usize, idle: usize) -> Result<(), Full> {
        if new == 0 {
            return Ok(());
        }
        let used = self.entries.values().filter(|entry| entry.users > 0);
        let in_use = used.clone().count();
        let used = used.filter(|entry| entry.of.user == of.user);
        let (mut of_user, mut of_process) = (0, 0);
        for entry in used {
            of_user += 1;
            of_process += usize::from(entry.of == of);
        }
        if of_process + new > self.most / 4 {
            return Err(Full::Process);
        }
        if of_user + new > self.most / 2 {
            return Err(Full::User);
        }
        if in_use + new + idle > self.most {
            return Err(Full::All);
        }
        Ok(())
    }

    /// Removes and returns probes so that one more function can be probed for a process.
    pub(super) fn make_room(&mut self, of: Party) -> Result<Vec<T>, Full> {
        self.room(of, 1, 0)?;
        if self.entries.len() < self.most {
            return Ok(Vec::new());
        }
        let idle = self.entries.iter().filter(|(_, entry)| entry.users == 0);
        let (oldest, _) = idle.min_by_key(|(_, entry)| entry.used_ns).ok_or(Full::All)?;
        // Take all functions of the file, because its programs use them together.
        let file = oldest.file;
        Ok(self.remove(|point, entry| point.file == file && entry.users == 0))
    }

    /// Removes and returns the probes without a QP whose file is deleted, or that are for one process only.
    pub(super) fn unreachable(&mut self, now_ns: u64, is_deleted: impl Fn(&T) -> bool) -> Vec<T> {
        self.remove(|point, entry| {
            entry.users == 0
                && now_ns.saturating_sub(entry.used_ns) > LINGER_NS
                && (point.pid.is_some() || is_deleted(&entry.probes))
        })
    }

    fn remove(&mut self, goes: impl Fn(&ProbePoint, &Entry<T>) -> bool) -> Vec<T> {
        let gone: Vec<ProbePoint> = self
            .entries
            .iter()
            .filter(|(point, entry)| goes(point, entry))
            .map(|(point, _)| *point)
            .collect();
        let entries = gone.iter().filter_map(|point| self.entries.remove(point));
        entries.map(|entry| entry.probes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::hooks::Function;
    use super::*;

    fn point(inode: u64, offset: u64) -> ProbePoint {
        ProbePoint {
            function: Function::PostSend,
            file: (8, inode),
            offset,
            pid: None,
        }
    }

    /// A process of a user of its own.
    fn of(pid: u32) -> Party {
        Party {
            user: Some(1000 + pid),
            pid,
        }
    }

    #[test]
    fn what_was_used_longest_ago_makes_room_with_all_of_its_file() {
        let mut probed = Probed::new(5);
        for (pid, (inode, offset)) in (1..).zip([(1, 0), (1, 16), (2, 0), (3, 0)]) {
            assert_eq!(probed.make_room(of(9)).map(|gone| gone.len()), Ok(0));
            probed.add(point(inode, offset), (inode, offset), of(pid));
        }
        probed.add(point(3, 16), (3, 16), of(5));
        assert_eq!(probed.make_room(of(9)), Err(Full::All), "all are in use");
        probed.release(&[point(2, 0)], 50);
        probed.release(&[point(1, 0), point(1, 16)], 40);
        assert_eq!(probed.make_room(of(9)), Ok(vec![(1, 0), (1, 16)]));
        assert_eq!(probed.len(), 3);
        // Another QP uses the function in file 2.
        assert_eq!(probed.take(&point(2, 0)), Some(&(2, 0)));
        assert!(probed.take(&point(1, 0)).is_none());
        probed.add(point(4, 0), (4, 0), of(6));
        probed.add(point(4, 16), (4, 16), of(7));
        assert_eq!(probed.make_room(of(9)), Err(Full::All));
    }

    #[test]
    fn neither_a_process_nor_a_user_takes_the_room_of_others() {
        let mut probed = Probed::new(128);
        let hostile = |pid| Party {
            user: Some(1000),
            pid,
        };
        let mut refused = Vec::new();
        for turn in 0..200_u32 {
            let party = hostile(1 + turn / 50);
            match probed.make_room(party) {
                Ok(gone) => {
                    assert!(gone.is_empty());
                    probed.add(point(u64::from(party.pid), u64::from(turn)), (), party);
                }
                Err(full) => refused.push((party.pid, full)),
            }
        }
        assert_eq!(probed.len(), 64);
        assert!(refused.contains(&(1, Full::Process)) && refused.contains(&(2, Full::Process)));
        assert!(refused.contains(&(3, Full::User)) && refused.contains(&(4, Full::User)));
        assert_eq!(probed.make_room(of(9)), Ok(vec![]), "another user");
        // What its QPs use no more counts for nobody.
        probed.release(&(0..32).map(|turn| point(1, turn)).collect::<Vec<_>>(), 5);
        assert_eq!(probed.make_room(hostile(1)), Ok(vec![]));
    }

    #[test]
    fn all_functions_of_a_qp_have_room_or_none_and_there_is_room_again_later() {
        let mut probed = Probed::new(128);
        for turn in 0..30 {
            probed.add(point(1, turn), (), of(1));
        }
        let has_room = |probed: &Probed<()>, pid, count| {
            let points: Vec<_> = (0..count).map(|turn| point(1, 28 + turn)).collect();
            probed.has_room(of(pid), points.iter())
        };
        assert_eq!(has_room(&probed, 1, 2), Ok(()), "both are probed");
        assert_eq!(has_room(&probed, 1, 4), Ok(()));
        assert_eq!(has_room(&probed, 1, 5), Err(Full::Process));
        assert_eq!(has_room(&probed, 2, 5), Ok(()), "of another process");
        probed.release(&[point(1, 3)], 5);
        assert_eq!(has_room(&probed, 1, 5), Ok(()));
        for turn in 0..97 {
            probed.add(point(2, turn), (), of(10 + u32::try_from(turn).unwrap()));
        }
        assert_eq!(has_room(&probed, 2, 4), Ok(()), "one that nobody uses makes room");
        probed.release(&[point(1, 29)], 5);
        assert_eq!(has_room(&probed, 2, 5), Err(Full::All), "that one is among them");
    }

    #[test]
    fn a_function_goes_when_its_file_is_deleted_and_its_last_qp_is_gone() {
        let mut probed = Probed::new(8);
        probed.add(point(1, 0), true, of(1));
        probed.add(point(2, 0), false, of(2));
        assert!(probed.take(&point(1, 0)).is_some());
        let second = 1_000_000_000;
        probed.release(&[point(1, 0), point(2, 0)], second);
        assert!(
            probed.unreachable(9 * second, |deleted| *deleted).is_empty(),
            "in use"
        );
        probed.release(&[point(1, 0)], 9 * second);
        assert!(probed.unreachable(10 * second, |deleted| *deleted).is_empty());
        assert_eq!(probed.unreachable(12 * second, |deleted| *deleted), [true]);
        assert_eq!(probed.len(), 1, "the other file may be mapped again");
    }

    #[test]
    fn the_probes_of_one_process_go_although_their_file_is_not_deleted() {
        let mut probed = Probed::new(8);
        let at = |pid| ProbePoint { pid, ..point(1, 0) };
        for pid in [Some(7), Some(8), None] {
            probed.add(at(pid), pid, of(1));
        }
        assert!(probed.unreachable(1 << 40, |_| false).is_empty(), "in use");
        probed.release(&[at(Some(8)), at(None)], 5);
        assert_eq!(probed.unreachable(1 << 40, |_| false), [Some(8)]);
        assert_eq!(probed.len(), 2);
    }
}
