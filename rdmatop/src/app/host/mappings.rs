//! How many mappings of memory processes have, and how many one may have.

use rdmatop_model::input::{Input, MappingCount, MappingsSample};
use rdmatop_sources::{proc::maps::limit, root::Root};

/// Remembers which limit was sent, so that only another one is sent again.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    counted: bool,
    limit: Option<u64>,
}

impl Mappings {
    /// Sends counts of this round, and the limit when an administrator has changed it.
    pub(super) fn send(&mut self, root: &Root, counts: Vec<MappingCount>, out: &mut dyn FnMut(Input)) {
        self.counted |= !counts.is_empty();
        if !self.counted {
            return;
        }
        let limit = limit(root);
        if std::mem::replace(&mut self.limit, limit) != limit || !counts.is_empty() {
            out(Input::Mappings(MappingsSample {
                limit,
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
        send(4, None);
        send(5, Some(950));
        fake.remove("proc/sys/vm/max_map_count");
        send(6, None);
        send(7, None);
        let want = [
            (2, Some(1000), 1),
            (4, Some(2000), 0),
            (5, Some(2000), 1),
            (6, None, 0),
        ];
        assert_eq!(sent, want);
    }
}
