//! The resources that rdmatop itself uses.
use std::{fs::File, os::unix::fs::FileExt, time::Duration};

use rustix::time::ClockId;

use crate::{
    clock,
    root::{Root, parse_u64},
};

/// Reads own CPU time and memory at little cost: a clock and a file that stays open.
#[derive(Debug)]
pub struct SelfMeter {
    statm: Option<File>,
}

impl SelfMeter {
    /// Reads under `root`.
    pub fn new(root: &Root) -> Self {
        Self {
            statm: root.open(&root.proc("self/statm")),
        }
    }

    /// User and system time since the start, to the nanosecond, of all threads, also those that have ended;
    /// and resident memory in bytes.
    pub fn read(&self) -> (Duration, Option<u64>) {
        let cpu = Duration::from_nanos(clock::read(ClockId::ProcessCPUTime));
        (cpu, self.statm.as_ref().and_then(resident))
    }
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

#[cfg(test)]
mod tests {
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
    fn memory_and_the_tick_length_are_read() {
        let fake = Fake::new();
        fake.proc("self/statm", "5000 512 100 1 0 200 0\n");
        fake.proc("self/auxv", auxv(&[(6, 4096), (17, 100), (0, 0)]));
        let (_, rss) = SelfMeter::new(&fake.root()).read();
        assert_eq!(rss, Some(512 * rustix::param::page_size() as u64));
        assert_eq!(clock_ticks(&fake.root()), Some(100));
        fake.proc("self/auxv", auxv(&[(6, 4096), (17, 0)]));
        assert_eq!(clock_ticks(&fake.root()), None, "of no length");
    }

    #[test]
    fn the_running_test_knows_its_cost() {
        let meter = SelfMeter::new(&Root::default());
        let (first, rss) = meter.read();
        assert!(rss.is_some_and(|rss| rss > 100_000), "{rss:?}");
        while meter.read().0 == first {}
        assert!(meter.read().0 > first);
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
