//! How many mappings of memory processes have, and how many one may have.

use rdmatop_model::input::{Input, MappingCount, MappingsSample};
use rdmatop_sources::{proc::maps::limit, root::Root};

/// How often the limit is read, ns: an administrator raises it by hand.
const EVERY: u64 = 60_000_000_000;

/// Remembers which limit was sent, so that only another one is sent again.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    /// When the limit was read last, and what it was; `None`: no process was counted yet.
    limit: Option<(u64, Option<u64>)>,
}

impl Mappings {
    /// Sends counts of this round, and the limit when it is another one than before.
    pub(super) fn send(
        &mut self,
        root: &Root,
        now_ns: u64,
        counts: Vec<MappingCount>,
        out: &mut dyn FnMut(Input),
    ) {
        let recent = self.limit.filter(|(at, _)| now_ns.saturating_sub(*at) < EVERY);
        if counts.is_empty() && (self.limit.is_none() || recent.is_some()) {
            return;
        }
        let before = self.limit.map(|(_, before)| before);
        let (at, known) = recent.unwrap_or_else(|| (now_ns, limit(root)));
        self.limit = Some((at, known));
        if !counts.is_empty() || before != Some(known) {
            out(Input::Mappings(MappingsSample {
                limit: known,
                processes: counts,
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_sources::fake::Fake;

    #[test]
    fn counts_are_sent_at_once_and_the_limit_again_when_it_was_changed() {
        let fake = Fake::new();
        let set = |limit: &str| {
            fake.proc("sys/vm/max_map_count", limit);
        };
        let (mut mappings, mut sent) = (Mappings::default(), Vec::new());
        let mut send = |second: u64, count: Option<u64>| {
            let counts = count.map(|count| MappingCount {
                pid: 7,
                start_ticks: 1,
                count: Some(count),
                read_ns: 0,
            });
            mappings.send(
                &fake.root(),
                second * 1_000_000_000,
                counts.into_iter().collect(),
                &mut |input| match input {
                    Input::Mappings(sample) => sent.push((second, sample.limit, sample.processes.len())),
                    other => panic!("{other:?}"),
                },
            );
        };
        set("1000\n");
        send(1, None);
        send(2, Some(900));
        send(3, None);
        set("2000\n");
        send(61, None);
        send(62, None);
        send(63, Some(950));
        fake.remove("proc/sys/vm/max_map_count");
        send(122, None);
        send(123, None);
        let want = [
            (2, Some(1000), 1),
            (62, Some(2000), 0),
            (63, Some(2000), 1),
            (122, None, 0),
        ];
        assert_eq!(sent, want);
    }
}
