//! Processes that make more events than they may: their names, and how much was left out. share.rs of
//! rdmatop-ebpf says how much each may make.

use std::{
    collections::BTreeMap,
    mem::offset_of,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use aya::maps::Map;
use rdmatop_common::{
    counters::{CALLERS, Caller},
    names::map,
};

use crate::maps::mapped::{Mapped, MappedError};
use rdmatop_base::text;
use rdmatop_model::input::Flood;

/// For how long a process must have made no event before user space takes its place away, ns.
const QUIET_NS: u64 = 2_000_000_000;
/// After this time, ns, every program has ended that had found a place before its process lost it.
const SETTLED_NS: u64 = 100_000_000;
/// For how many processes to keep separate counts. The others share one.
const NAMED: usize = 256;

/// What was left out, by PID and name. PID 0 without a name stands for all processes without separate counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Floods(BTreeMap<(u32, String), [u64; 2]>);

impl Floods {
    fn add(&mut self, pid: u32, comm: String, [failures, records]: [u64; 2]) {
        if failures == 0 && records == 0 {
            return;
        }
        let key = (pid, comm);
        let key = if self.0.contains_key(&key) || self.0.len() < NAMED {
            key
        } else {
            (0, String::new())
        };
        let sums = self.0.entry(key).or_default();
        sums[0] = sums[0].saturating_add(failures);
        sums[1] = sums[1].saturating_add(records);
    }

    /// The floods as the engine gets them.
    pub(crate) fn rows(self) -> Vec<Flood> {
        let each = self
            .0
            .into_iter()
            .map(|((pid, comm), [failures, records])| Flood {
                pid: (pid != 0).then_some(pid),
                comm: (!comm.is_empty()).then_some(comm),
                failures,
                records,
            });
        each.collect()
    }
}

/// The array of callers of one session, as the kernel side fills it.
pub(crate) struct Callers {
    map: Mapped<Caller>,
    /// The counts of processes that lost their places, and those of earlier sessions.
    past: Floods,
    /// Places that processes have just lost: number, time of the loss, and the process.
    leaving: Vec<(u32, u64, (u32, String))>,
}

impl Callers {
    /// `past`: what earlier sessions counted.
    pub(crate) fn open(map: Option<Map>, past: Floods) -> Result<Self, MappedError> {
        let map = map.ok_or(MappedError::NoMap(map::CALLERS))?;
        Ok(Self {
            map: Mapped::open(map, map::CALLERS)?,
            past,
            leaving: Vec::new(),
        })
    }

    fn pid(&self, number: u32) -> &AtomicU32 {
        // SAFETY: an aligned word, which both sides access whole; the mapping lives as long as `self`.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.map.at(number)).pid) }
    }

    fn word(&self, number: u32, at: usize) -> &AtomicU64 {
        // SAFETY: as above; every word of an element begins at a multiple of 8.
        unsafe { AtomicU64::from_ptr(self.map.at(number).cast::<u8>().add(at).cast()) }
    }

    fn counts(&self, number: u32) -> [u64; 2] {
        [offset_of!(Caller, over_budget), offset_of!(Caller, refused)]
            .map(|at| self.word(number, at).load(Ordering::Relaxed))
    }

    /// What was left out until now. Takes their places from processes that are quiet at `now_ns`.
    pub(crate) fn read(&mut self, now_ns: u64) -> Floods {
        for (number, since_ns, whose) in std::mem::take(&mut self.leaving) {
            if now_ns < since_ns.saturating_add(SETTLED_NS) {
                self.leaving.push((number, since_ns, whose));
                continue;
            }
            let (pid, comm) = whose;
            self.past.add(pid, comm, self.counts(number));
            let mut at = offset_of!(Caller, pid);
            while at < size_of::<Caller>() {
                self.word(number, at).store(0, Ordering::Relaxed);
                at += 8;
            }
            self.word(number, offset_of!(Caller, claims))
                .fetch_sub(1, Ordering::Release);
        }
        let mut sums = self.past.clone();
        for (number, _, (pid, comm)) in &self.leaving {
            sums.add(*pid, comm.clone(), self.counts(*number));
        }
        for number in 0..self.map.count() {
            let pid = self.pid(number).load(Ordering::Acquire);
            // All processes without a place of their own share the last one.
            if pid == 0 && number != CALLERS {
                continue;
            }
            let caller = self.map.read(number);
            let name = caller.comm.split(|byte| *byte == 0).next();
            let comm = text::sanitize(name.unwrap_or_default());
            sums.add(pid, comm.clone(), self.counts(number));
            if pid != 0 && now_ns > caller.used_ns.saturating_add(QUIET_NS) {
                self.pid(number).store(0, Ordering::Release);
                self.leaving.push((number, now_ns, (pid, comm)));
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(floods: Floods) -> Vec<(Option<u32>, u64, u64)> {
        let rows = floods.rows();
        rows.into_iter()
            .map(|row| (row.pid, row.failures, row.records))
            .collect()
    }

    #[test]
    fn a_place_goes_to_another_process_and_its_counts_stay_with_the_first() {
        let map = Mapped::<Caller>::anonymous(CALLERS + 1);
        let set = |number: u32, pid, name: &[u8], used_ns, counts: [u64; 2]| {
            let mut comm = [0; 16];
            comm[..name.len()].copy_from_slice(name);
            // SAFETY: inside the mapping, and nobody else uses it.
            unsafe {
                let place = map.at(number);
                (*place).claims = 1;
                (*place).pid = pid;
                (*place).comm = comm;
                (*place).used_ns = used_ns;
                [(*place).over_budget, (*place).refused] = counts;
            }
        };
        set(3, 70, b"fuzz", 1, [149_937, 0]);
        set(4, 71, b"quiet", 1, [0, 0]);
        set(CALLERS, 0, b"", 1, [5, 6]);
        let mut callers = Callers {
            map,
            past: Floods::default(),
            leaving: Vec::new(),
        };
        let all = [(None, 5, 6), (Some(70), 149_937, 0)];
        assert_eq!(counts(callers.read(QUIET_NS)), all);
        assert_eq!(counts(callers.read(QUIET_NS + 2)), all, "they leave");
        assert_eq!(callers.pid(3).load(Ordering::Relaxed), 0);
        assert_eq!(
            counts(callers.read(QUIET_NS + 3)),
            all,
            "and have left no trace yet"
        );
        // A program that had found the place counts once more.
        callers
            .word(3, offset_of!(Caller, over_budget))
            .fetch_add(1, Ordering::Relaxed);
        let later = QUIET_NS + 2 + SETTLED_NS;
        assert_eq!(
            counts(callers.read(later)),
            [(None, 5, 6), (Some(70), 149_938, 0)]
        );
        let free = callers.map.read(3);
        assert_eq!((free.claims, free.over_budget, free.comm), (0, 0, [0; 16]));
        assert_eq!(callers.map.read(CALLERS).claims, 1, "that of all others stays");
        let next = counts(callers.read(later + QUIET_NS));
        assert_eq!(next, [(None, 5, 6), (Some(70), 149_938, 0)]);
    }

    #[test]
    fn processes_beyond_the_bound_are_counted_as_one() {
        let mut floods = Floods::default();
        for pid in 1..=1000 {
            floods.add(pid, "x".to_owned(), [2, 1]);
        }
        let rows = floods.rows();
        assert_eq!(rows.len(), NAMED + 1);
        let sums = rows
            .iter()
            .fold((0, 0), |sum, row| (sum.0 + row.failures, sum.1 + row.records));
        assert_eq!(sums, (2000, 1000));
        assert_eq!(rows[0].pid, None);
    }
}
