//! What rdmatop itself costs.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::basic::read_stat;
use super::status::Status;
use crate::source::root::Root;

/// Own CPU time and memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelfCost {
    /// User and system time of all threads since the start, in steps of a clock tick (10 ms).
    pub cpu: Option<Duration>,
    /// Resident memory in bytes.
    pub rss: Option<u64>,
}

/// Reads `/proc/self`.
pub fn self_cost(root: &Root) -> SelfCost {
    const STATUS_LIMIT: usize = 16 << 10;
    let dir = root.proc("self");
    let ticks = read_stat(root, &dir).map(|stat| stat.cpu());
    let status = root
        .bytes(&dir.join("status"), STATUS_LIMIT)
        .map(|raw| Status::parse(&raw));
    SelfCost {
        cpu: ticks
            .zip(clock_ticks(root))
            .and_then(|(ticks, per_second)| ticks_to_duration(ticks, per_second)),
        rss: status.and_then(|status| status.memory.rss),
    }
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
    use crate::source::fake::Fake;
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
            .proc("self/status", "VmRSS:\t 2048 kB\n");
        fake.proc("self/auxv", auxv(&[(6, 4096), (17, 100), (0, 0)]));
        let want = SelfCost {
            cpu: Some(Duration::from_millis(420)),
            rss: Some(2 << 20),
        };
        assert_eq!(self_cost(&fake.root()), want);
    }

    #[test]
    fn without_the_tick_length_the_time_is_unknown() {
        let fake = Fake::new();
        fake.proc("self/stat", line(5, b"rdmatop", 1))
            .proc("self/auxv", auxv(&[(6, 4096), (17, 0)]));
        assert_eq!(self_cost(&fake.root()), SelfCost::default());
    }

    #[test]
    fn the_running_test_knows_its_cost() {
        let cost = self_cost(&Root::default());
        assert!(cost.rss.is_some_and(|rss| rss > 100_000), "{cost:?}");
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
