//! The functions that are probed, which QPs use them, and which probes to remove: those that no program can
//! hit any more and, where there is no room, those that no QP has used for the longest time. One process, and
//! one user, can have only a share of them probed, so that there is room for others.
//!
//! A library of the system stays probed after its last QP, so that the next process loses nothing. Pure.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use super::target::ProbePoint;

/// For how long probes that can be removed stay after their last QP, ns: the process may make another one.
const LINGER_NS: u64 = 2_000_000_000;

/// A probed function.
#[derive(Debug)]
struct Entry<T> {
    gone: Gone<T>,
    /// How many living QPs of each process post with it.
    users: BTreeMap<Party, usize>,
    /// When the last QP stopped using it, ns.
    used_ns: u64,
    /// In whose share it is: the first of those that use it now, while there is one.
    of: Party,
}

/// Probes that are no longer in the table. They are attached until this is dropped.
#[derive(Debug)]
pub(super) struct Gone<T> {
    pub(super) probes: T,
    /// Dropped last.
    attached: Arc<()>,
}

/// A process: its number, and its start, by which it differs from a later one with this number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// In ns after boot; 0 if it is not known.
    pub(super) start_ns: u64,
}

/// A process and its user. `None`: it has several, or that changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Party {
    pub(super) user: Option<u32>,
    pub(super) process: Process,
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
    /// Places whose probes are being removed.
    leaving: Vec<(ProbePoint, Weak<()>)>,
}

impl<T> Probed<T> {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            entries: BTreeMap::new(),
            leaving: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn has(&self, point: &ProbePoint) -> bool {
        self.entries.contains_key(point)
    }

    /// The numbers by which a file is known here, of which functions are probed: its own, or those of another
    /// name of it. `is_it` compares it with a file of which some are probed.
    pub(super) fn known_as(&self, file: (u64, u64), mut is_it: impl FnMut(&T) -> bool) -> Option<(u64, u64)> {
        let mut others = BTreeMap::new();
        for (point, entry) in &self.entries {
            others.entry(point.file).or_insert(&entry.gone.probes);
        }
        if others.contains_key(&file) {
            return Some(file);
        }
        others
            .into_iter()
            .find(|(_, probes)| is_it(probes))
            .map(|(known, _)| known)
    }

    /// Whether functions of this file are probed for all processes. Whatever name the file has for a process,
    /// these probes are hit by it.
    pub(super) fn has_for_all(&self, file: (u64, u64)) -> bool {
        self.entries
            .keys()
            .any(|point| point.file == file && point.process.is_none())
    }

    /// Whether the probes at this place are still being removed: a program that hits them and new ones would
    /// count twice. The file may have been known by another name, so all of them count that are at this place
    /// in whatever file.
    pub(super) fn is_leaving(&mut self, point: &ProbePoint) -> bool {
        self.leaving.retain(|(_, attached)| attached.strong_count() > 0);
        let meets = |gone: &ProbePoint| {
            ProbePoint {
                file: point.file,
                ..*gone
            }
            .meets(point)
        };
        self.leaving.iter().any(|(gone, _)| meets(gone))
    }

    /// Notes that a QP uses a function; `None` when it is not probed.
    pub(super) fn take(&mut self, point: &ProbePoint, by: Party) -> Option<&T> {
        let entry = self.entries.get_mut(point)?;
        if entry.users.is_empty() {
            entry.of = by;
        }
        *entry.users.entry(by).or_default() += 1;
        Some(&entry.gone.probes)
    }

    /// Adds a function that one QP uses.
    pub(super) fn add(&mut self, point: ProbePoint, probes: T, of: Party) {
        let attached = Arc::new(());
        let entry = Entry {
            gone: Gone { probes, attached },
            users: BTreeMap::from([(of, 1)]),
            used_ns: 0,
            of,
        };
        self.entries.insert(point, entry);
    }

    /// Notes that a QP of a process no longer uses these functions.
    pub(super) fn release(&mut self, points: &[ProbePoint], by: Party, now_ns: u64) {
        for point in points {
            let Some(entry) = self.entries.get_mut(point) else {
                continue;
            };
            entry.used_ns = now_ns;
            if let Some(qps) = entry.users.get_mut(&by) {
                *qps -= 1;
                if *qps == 0 {
                    entry.users.remove(&by);
                }
            }
            if !entry.users.contains_key(&entry.of)
                && let Some(next) = entry.users.keys().next()
            {
                entry.of = *next;
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
                Some(entry) => idle += usize::from(entry.users.is_empty()),
            }
        }
        self.room(of, new + idle)
    }

    /// Whether so many functions more can be in use by a process. Its user may have half of all that are in
    /// use, and the process a quarter.
    fn room(&self, of: Party, more: usize) -> Result<(), Full> {
        if more == 0 {
            return Ok(());
        }
        let used = self.entries.values().filter(|entry| !entry.users.is_empty());
        let in_use = used.clone().count();
        let used = used.filter(|entry| entry.of.user == of.user);
        let (mut of_user, mut of_process) = (0, 0);
        for entry in used {
            of_user += 1;
            of_process += usize::from(entry.of == of);
        }
        if of_process + more > self.most / 4 {
            return Err(Full::Process);
        }
        if of_user + more > self.most / 2 {
            return Err(Full::User);
        }
        if in_use + more > self.most {
            return Err(Full::All);
        }
        Ok(())
    }

    /// Removes and returns probes so that one more function can be probed for a process.
    pub(super) fn make_room(&mut self, of: Party) -> Result<Vec<Gone<T>>, Full> {
        self.room(of, 1)?;
        if self.entries.len() < self.most {
            return Ok(Vec::new());
        }
        let idle = self.entries.iter().filter(|(_, entry)| entry.users.is_empty());
        let (oldest, _) = idle.min_by_key(|(_, entry)| entry.used_ns).ok_or(Full::All)?;
        // Take all functions of the file, because its programs use them together.
        let file = oldest.file;
        Ok(self.remove(|point, entry| point.file == file && entry.users.is_empty()))
    }

    /// Removes and returns the probes without a QP whose file is deleted, or that are for one process only.
    pub(super) fn unreachable(&mut self, now_ns: u64, is_deleted: impl Fn(&T) -> bool) -> Vec<Gone<T>> {
        self.remove(|point, entry| {
            entry.users.is_empty()
                && now_ns.saturating_sub(entry.used_ns) > LINGER_NS
                && (point.process.is_some() || is_deleted(&entry.gone.probes))
        })
    }

    /// Removes and returns the probes that are at a place for single processes, which a probe for all
    /// processes replaces.
    pub(super) fn singles(&mut self, place: &ProbePoint) -> Vec<Gone<T>> {
        self.remove(|point, _| point.process.is_some() && point.meets(place))
    }

    fn remove(&mut self, goes: impl Fn(&ProbePoint, &Entry<T>) -> bool) -> Vec<Gone<T>> {
        let gone = self.entries.extract_if(.., |point, entry| goes(point, entry));
        let leaving = &mut self.leaving;
        gone.map(|(point, entry)| {
            leaving.push((point, Arc::downgrade(&entry.gone.attached)));
            entry.gone
        })
        .collect()
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
            process: None,
        }
    }

    const fn process(pid: u32) -> Process {
        Process { pid, start_ns: 7 }
    }

    /// A process of a user of its own.
    fn of(pid: u32) -> Party {
        Party {
            user: Some(1000 + pid),
            process: process(pid),
        }
    }

    fn probes<T>(gone: Vec<Gone<T>>) -> Vec<T> {
        gone.into_iter().map(|gone| gone.probes).collect()
    }

    #[test]
    fn what_was_used_longest_ago_makes_room_with_all_of_its_file() {
        let mut probed = Probed::new(5);
        for (pid, (inode, offset)) in (1..).zip([(1, 0), (1, 16), (2, 0), (3, 0)]) {
            assert_eq!(probed.make_room(of(9)).map(|gone| gone.len()), Ok(0));
            probed.add(point(inode, offset), (inode, offset), of(pid));
        }
        probed.add(point(3, 16), (3, 16), of(5));
        assert_eq!(probed.make_room(of(9)).unwrap_err(), Full::All, "all are in use");
        probed.release(&[point(2, 0)], of(3), 50);
        probed.release(&[point(1, 0)], of(1), 40);
        probed.release(&[point(1, 16)], of(2), 40);
        assert_eq!(probes(probed.make_room(of(9)).unwrap()), [(1, 0), (1, 16)]);
        assert_eq!(probed.len(), 3);
        // Another QP uses the function in file 2.
        assert_eq!(probed.take(&point(2, 0), of(3)), Some(&(2, 0)));
        assert!(probed.take(&point(1, 0), of(3)).is_none());
        probed.add(point(4, 0), (4, 0), of(6));
        probed.add(point(4, 16), (4, 16), of(7));
        assert_eq!(probed.make_room(of(9)).unwrap_err(), Full::All);
    }

    #[test]
    fn neither_a_process_nor_a_user_takes_the_room_of_others() {
        let mut probed = Probed::new(128);
        let hostile = |pid| Party {
            user: Some(1000),
            process: process(pid),
        };
        let mut refused = Vec::new();
        for turn in 0..200_u32 {
            let party = hostile(1 + turn / 50);
            match probed.make_room(party) {
                Ok(gone) => {
                    assert!(gone.is_empty());
                    let file = party.process.pid.into();
                    probed.add(point(file, turn.into()), (), party);
                }
                Err(full) => refused.push((party.process.pid, full)),
            }
        }
        assert_eq!(probed.len(), 64);
        assert!(refused.contains(&(1, Full::Process)) && refused.contains(&(2, Full::Process)));
        assert!(refused.contains(&(3, Full::User)) && refused.contains(&(4, Full::User)));
        assert!(probed.make_room(of(9)).unwrap().is_empty(), "another user");
        // What its QPs use no more counts for nobody.
        let used: Vec<_> = (0..32).map(|turn| point(1, turn)).collect();
        probed.release(&used, hostile(1), 5);
        assert!(probed.make_room(hostile(1)).unwrap().is_empty());
        // What it uses again counts as what it uses for the first time.
        assert_eq!(probed.has_room(hostile(3), used.iter()), Ok(()));
        assert_eq!(
            probed.has_room(hostile(3), used.iter().chain([&point(5, 0)])),
            Err(Full::Process)
        );
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
        probed.release(&[point(1, 3)], of(1), 5);
        assert_eq!(has_room(&probed, 1, 5), Ok(()));
        for turn in 0..97 {
            probed.add(point(2, turn), (), of(10 + u32::try_from(turn).unwrap()));
        }
        assert_eq!(has_room(&probed, 2, 4), Ok(()), "one that nobody uses makes room");
        probed.release(&[point(1, 29)], of(1), 5);
        assert_eq!(has_room(&probed, 2, 5), Err(Full::All), "that one is among them");
    }

    #[test]
    fn a_function_goes_when_its_file_is_deleted_and_its_last_qp_is_gone() {
        let mut probed = Probed::new(8);
        probed.add(point(1, 0), true, of(1));
        probed.add(point(2, 0), false, of(2));
        assert!(probed.take(&point(1, 0), of(2)).is_some());
        let second = 1_000_000_000;
        probed.release(&[point(1, 0), point(2, 0)], of(2), second);
        assert!(
            probed.unreachable(9 * second, |deleted| *deleted).is_empty(),
            "in use"
        );
        probed.release(&[point(1, 0)], of(1), 9 * second);
        assert!(probed.unreachable(10 * second, |deleted| *deleted).is_empty());
        assert_eq!(
            probes(probed.unreachable(12 * second, |deleted| *deleted)),
            [true]
        );
        assert_eq!(probed.len(), 1, "the other file may be mapped again");
    }

    #[test]
    fn the_probes_of_one_process_go_although_their_file_is_not_deleted() {
        let mut probed = Probed::new(8);
        for pid in [Some(7), Some(8), None] {
            probed.add(at(pid), pid, of(1));
        }
        assert!(probed.unreachable(1 << 40, |_| false).is_empty(), "in use");
        probed.release(&[at(Some(8)), at(None)], of(1), 5);
        assert_eq!(probes(probed.unreachable(1 << 40, |_| false)), [Some(8)]);
        assert_eq!(probed.len(), 2);
    }

    #[test]
    fn a_file_is_known_by_the_name_by_which_it_was_probed_first() {
        let mut probed = Probed::new(8);
        for (inode, offset) in [(1, 0), (1, 16), (2, 0)] {
            probed.add(point(inode, offset), inode, of(1));
        }
        let known = |probed: &Probed<u64>, inode, is| {
            let mut asked = Vec::new();
            let known = probed.known_as((8, inode), |other| {
                asked.push(*other);
                *other == is
            });
            (known, asked)
        };
        assert_eq!(known(&probed, 2, 1), (Some((8, 2)), vec![]), "by this name");
        assert_eq!(
            known(&probed, 3, 2),
            (Some((8, 2)), vec![1, 2]),
            "each file is asked once"
        );
        assert_eq!(known(&probed, 3, 0), (None, vec![1, 2]));
        // While its probes are being removed it is not known by another name.
        probed.release(&[point(1, 0), point(1, 16)], of(1), 0);
        let gone = probed.unreachable(1 << 40, |inode| *inode == 1);
        assert_eq!((gone.len(), known(&probed, 3, 1).0), (2, None));
        assert!(probed.is_leaving(&point(3, 16)) && !probed.is_leaving(&point(3, 32)));
        drop(gone);
        assert!(!probed.is_leaving(&point(3, 16)));
    }

    /// The function of [`point`] for one process, or for all.
    fn at(pid: Option<u32>) -> ProbePoint {
        ProbePoint {
            process: pid.map(process),
            ..point(1, 0)
        }
    }

    #[test]
    fn a_function_is_in_the_share_of_who_uses_it_now() {
        let mut probed = Probed::new(8);
        let shares = |probed: &Probed<()>, pid| {
            let party = of(pid);
            probed.entries.values().filter(|entry| entry.of == party).count()
        };
        let both = [point(1, 0), point(1, 16)];
        for function in both {
            probed.add(function, (), of(1));
        }
        assert!(probed.take(&both[0], of(2)).is_some(), "beside the first one");
        assert_eq!((shares(&probed, 1), shares(&probed, 2)), (2, 0));
        probed.release(&both, of(1), 5);
        assert_eq!(shares(&probed, 2), 1, "it is the only one that uses it");
        assert!(
            probed.take(&both[1], of(3)).is_some(),
            "nobody has used it for a while"
        );
        assert_eq!((shares(&probed, 1), shares(&probed, 3)), (0, 1));
        // A process has two of eight: the first one has room again, and the third none for two more.
        let more = [point(2, 0), point(2, 16)];
        assert_eq!(probed.has_room(of(1), more.iter()), Ok(()));
        assert_eq!(probed.has_room(of(3), more.iter()), Err(Full::Process));
    }

    #[test]
    fn a_later_process_of_a_number_does_not_get_the_probes_of_the_former() {
        let mut probed = Probed::new(8);
        probed.add(at(Some(7)), (), of(7));
        let later = ProbePoint {
            process: Some(Process { pid: 7, start_ns: 8 }),
            ..at(None)
        };
        assert!(!probed.has(&later) && probed.take(&later, of(7)).is_none());
    }

    #[test]
    fn a_place_is_probed_once_for_all_or_once_for_each_and_never_twice() {
        let mut probed = Probed::new(8);
        for pid in [7, 8] {
            probed.add(at(Some(pid)), pid, of(pid));
        }
        let other = ProbePoint {
            offset: 16,
            ..at(Some(7))
        };
        probed.add(other, 9, of(7));
        assert!(!probed.has_for_all((8, 1)));
        let gone = probed.singles(&at(None));
        assert_eq!(gone.iter().map(|gone| gone.probes).collect::<Vec<_>>(), [7, 8]);
        assert!(probed.is_leaving(&at(None)) && probed.is_leaving(&at(Some(7))));
        assert!(!probed.is_leaving(&at(Some(9))) && !probed.is_leaving(&other));
        drop(gone);
        assert!(!probed.is_leaving(&at(None)));
        probed.add(at(None), 1, of(1));
        assert!(probed.has_for_all((8, 1)) && !probed.has_for_all((8, 2)));
        assert!(probed.has(&other), "another function of the file");
    }
}
