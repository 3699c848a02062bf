//! The functions that are probed, how many QPs use them, and which probes to remove: those that no program
//! can hit any more and, where there is no room, those that no QP has used for the longest time.
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
    pub(super) fn add(&mut self, point: ProbePoint, probes: T) {
        let entry = Entry {
            probes,
            users: 1,
            used_ns: 0,
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

    /// Removes and returns probes so that one more function can be probed; `None` if all are in use.
    pub(super) fn make_room(&mut self) -> Option<Vec<T>> {
        if self.entries.len() < self.most {
            return Some(Vec::new());
        }
        let idle = self.entries.iter().filter(|(_, entry)| entry.users == 0);
        let (oldest, _) = idle.min_by_key(|(_, entry)| entry.used_ns)?;
        // Take all functions of the file, because its programs use them together.
        let file = oldest.file;
        Some(self.remove(|point, entry| point.file == file && entry.users == 0))
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

    #[test]
    fn what_was_used_longest_ago_makes_room_with_all_of_its_file() {
        let mut probed = Probed::new(5);
        for (inode, offset) in [(1, 0), (1, 16), (2, 0), (3, 0)] {
            assert_eq!(probed.make_room().map(|gone| gone.len()), Some(0));
            probed.add(point(inode, offset), (inode, offset));
        }
        probed.add(point(3, 16), (3, 16));
        assert!(probed.make_room().is_none(), "all are in use");
        probed.release(&[point(2, 0)], 50);
        probed.release(&[point(1, 0), point(1, 16)], 40);
        assert_eq!(probed.make_room(), Some(vec![(1, 0), (1, 16)]));
        assert_eq!(probed.len(), 3);
        // Another QP uses the function in file 2.
        assert_eq!(probed.take(&point(2, 0)), Some(&(2, 0)));
        assert!(probed.take(&point(1, 0)).is_none());
        probed.add(point(4, 0), (4, 0));
        probed.add(point(4, 16), (4, 16));
        assert!(probed.make_room().is_none());
    }

    #[test]
    fn a_function_goes_when_its_file_is_deleted_and_its_last_qp_is_gone() {
        let mut probed = Probed::new(8);
        probed.add(point(1, 0), true);
        probed.add(point(2, 0), false);
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
        let of = |pid| ProbePoint { pid, ..point(1, 0) };
        for pid in [Some(7), Some(8), None] {
            probed.add(of(pid), pid);
        }
        assert!(probed.unreachable(1 << 40, |_| false).is_empty(), "in use");
        probed.release(&[of(Some(8)), of(None)], 5);
        assert_eq!(probed.unreachable(1 << 40, |_| false), [Some(8)]);
        assert_eq!(probed.len(), 2);
    }
}
