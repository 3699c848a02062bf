//! The resources that rdmatop itself uses.
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use super::basic::read_stat;
use crate::root::{Root, parse_u64};

/// Own CPU time and memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SelfCost {
    /// User and system time of all threads since the start.
    pub cpu: Option<Duration>,
    /// Resident memory in bytes.
    pub rss: Option<u64>,
}

/// Reads them at little cost: a clock and a file that stays open.
#[derive(Debug)]
pub struct SelfMeter {
    root: Root,
    statm: Option<File>,
}

impl SelfMeter {
    /// Reads under `root`.
    pub fn new(root: Root) -> Self {
        let statm = root.open(&root.proc("self/statm"));
        Self { root, statm }
    }

    /// The present use.
    pub fn read(&self) -> SelfCost {
        SelfCost {
            cpu: if self.root.is_live() {
                cpu_clock()
            } else {
                cpu_ticks(&self.root)
            },
            rss: self.statm.as_ref().and_then(resident),
        }
    }
}

/// `CLOCK_PROCESS_CPUTIME_ID`: all threads, also those that have ended, to the nanosecond.
fn cpu_clock() -> Option<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Some(Duration::new(
        time.tv_sec.try_into().ok()?,
        time.tv_nsec.try_into().ok()?,
    ))
}

/// From `stat`, in steps of a clock tick (10 ms).
fn cpu_ticks(root: &Root) -> Option<Duration> {
    let ticks = read_stat(root, &root.proc("self"))?.cpu;
    ticks_to_duration(ticks, clock_ticks(root)?)
}

/// Second field of `statm` (proc_pid_statm(5)), in pages.
fn resident(file: &File) -> Option<u64> {
    let mut line = [0; 128];
    let got = file.read_at(&mut line, 0).ok()?;
    let pages = parse_u64(line.get(..got)?.split(u8::is_ascii_whitespace).nth(1)?)?;
    pages.checked_mul(rustix::param::page_size().try_into().ok()?)
}

/// Clock ticks per second, the unit of the times in [`super::Stat`]: `AT_CLKTCK` in the auxiliary vector
/// (getauxval(3)), which sysconf(3) answers from too.
pub fn clock_ticks(root: &Root) -> Option<u64> {
    const AT_CLKTCK: usize = 17;
    const WORD: usize = size_of::<usize>();
    let raw = root.bytes(&root.proc("self/auxv"), 4096)?;
    let (words, _) = raw.as_chunks::<WORD>();
    let (pairs, _) = words.as_chunks::<2>();
    let value = pairs
        .iter()
        .find_map(|[kind, value]| (usize::from_ne_bytes(*kind) == AT_CLKTCK).then_some(value))?;
    u64::try_from(usize::from_ne_bytes(*value))
        .ok()
        .filter(|ticks| *ticks > 0)
}

fn ticks_to_duration(ticks: u64, per_second: u64) -> Option<Duration> {
    let nanos = u128::from(ticks) * 1_000_000_000 / u128::from(per_second);
    Some(Duration::from_nanos(nanos.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::stat::line;
    use super::*;
    use crate::fake::Fake;
    use proptest::prelude::*;

    fn auxv(pairs: &[(usize, usize)]) -> Vec<u8> {
        pairs
            .iter()
            .flat_map(|(kind, value)| [kind.to_ne_bytes(), value.to_ne_bytes()].concat())
            .collect()
    }

    #[test]
    fn cpu_time_and_memory_are_read() {
        let fake = Fake::new();
        fake.proc("self/stat", line(5, b"rdmatop", 1))
            .proc("self/statm", "5000 512 100 1 0 200 0\n");
        fake.proc("self/auxv", auxv(&[(6, 4096), (17, 100), (0, 0)]));
        let want = SelfCost {
            cpu: Some(Duration::from_millis(420)),
            rss: Some(512 * rustix::param::page_size() as u64),
        };
        assert_eq!(SelfMeter::new(fake.root()).read(), want);
    }

    #[test]
    fn without_the_tick_length_the_time_is_unknown() {
        let fake = Fake::new();
        fake.proc("self/stat", line(5, b"rdmatop", 1))
            .proc("self/auxv", auxv(&[(6, 4096), (17, 0)]));
        assert_eq!(SelfMeter::new(fake.root()).read(), SelfCost::default());
    }

    #[test]
    fn the_running_test_knows_its_cost() {
        let meter = SelfMeter::new(Root::default());
        let first = meter.read();
        assert!(first.rss.is_some_and(|rss| rss > 100_000), "{first:?}");
        while meter.read().cpu == first.cpu {}
        assert!(meter.read().cpu > first.cpu);
    }

    proptest! {
        #[test]
        fn no_auxiliary_vector_panics(raw: Vec<u8>) {
            let fake = Fake::new();
            fake.proc("self/auxv", raw);
            let _ = clock_ticks(&fake.root());
        }
    }
}
