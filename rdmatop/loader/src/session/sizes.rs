//! How many QPs the maps of a session have room for.
use rdmatop_common::names::map;

use crate::plan::{options::Options, scope::Scope};
use rdmatop_sources::{netlink::client::Nldev, root::Root, sysfs::is_hardware};

/// How many QPs there are at the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Existing {
    pub(crate) all: u64,
    /// The QPs of software devices.
    pub(super) software: u64,
}

impl Existing {
    /// Counts the QPs that exist now.
    pub(crate) fn read(root: &Root) -> Self {
        let listed = Nldev::open().and_then(|mut nldev| nldev.named_summaries());
        let mut existing = Self::default();
        for (device, summary) in listed.into_iter().flat_map(|dump| dump.items) {
            let qps = summary.get("qp").unwrap_or(0);
            existing.all += qps;
            if !is_hardware(root, device.to_string().as_ref()) {
                existing.software += qps;
            }
        }
        existing
    }
}

/// How many QPs the maps have room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// QPs that can be known at one time, idle ones included.
    known: u32,
    /// QPs that can be counted at one time: see `counters::place`.
    pub(crate) slots: u32,
}

/// Bytes of the counters of a QP and of its data path, with its entries in QUEUE_SLOTS.
const SLOT: u64 = 3416;
/// Bytes of the entries of a QP in QP_INDEX and QPN_INDEX, if the kernel makes entries beforehand. Else a QP
/// takes two buckets.
const KNOWN: u64 = 320;
const KNOWN_ON_DEMAND: u64 = 32;

impl Sizes {
    /// The fewest QPs that the tables hold, on kernels that make entries on demand and on others. The QPs of
    /// one user must not easily take all the room, and all maps of a view must take less than 4 MiB. So there
    /// is more room where there are no slots, and most in a trace, whose ring buffer is larger than its
    /// tables.
    const LEAST_KNOWN: [u32; 2] = [16_384, 2048];
    const LEAST_WITHOUT_SLOTS: [u32; 2] = [32_768, 4096];
    const LEAST_OF_TRACE: [u32; 2] = [131_072, 16_384];
    /// The largest sizes that rdmatop chooses by itself.
    const MOST_KNOWN: u32 = 131_072;
    const LEAST_SLOTS: u32 = 256;
    const MOST_SLOTS: u32 = 16_384;

    /// `counted`: a provider is loaded whose work requests the kernel side counts.
    pub(crate) fn of(options: &Options, existing: Existing, counted: bool, on_demand: bool) -> Self {
        let twice = |existing: u64| u32::try_from(existing.saturating_mul(2)).unwrap_or(u32::MAX);
        let [tables, small] = match options.scope {
            Scope::Events(_) => Self::LEAST_OF_TRACE,
            Scope::All if counted => Self::LEAST_KNOWN,
            Scope::All => Self::LEAST_WITHOUT_SLOTS,
        };
        let least = if on_demand { tables } else { small };
        // A user who asks for room for few QPs wants to save memory. The slots take most of it, so only they
        // shrink; the tables keep their usual size.
        let known = twice(existing.all).clamp(least, Self::MOST_KNOWN);
        let slots = twice(existing.software).clamp(Self::LEAST_SLOTS, Self::MOST_SLOTS);
        Self {
            known: options
                .known_qps
                .unwrap_or(known.max(options.max_qps.unwrap_or(0))),
            slots: if counted {
                options.slots.or(options.max_qps).unwrap_or(slots)
            } else {
                1
            },
        }
    }

    /// About how many bytes the maps of these sizes take.
    pub(crate) fn bytes(self, on_demand: bool) -> u64 {
        let known = if on_demand { KNOWN_ON_DEMAND } else { KNOWN };
        u64::from(self.slots) * SLOT + u64::from(self.known) * known
    }

    /// Entries of the maps whose size is set at load.
    pub(crate) fn entries(self, options: &Options) -> Vec<(&'static str, u32)> {
        let work = options.work.map(|(_, bytes)| (map::WR_EVENTS, bytes));
        // Only QPs that are counted are found by their number. The kernel makes and clears all buckets of a
        // table at once: 2 MiB, and a hundredth of what the first event of a trace costs.
        let by_number = if options.scope.counters() { self.known } else { 1 };
        [
            (map::EVENTS, options.ring_bytes),
            (map::QP_INDEX, self.known),
            (map::QPN_INDEX, by_number),
            (map::QP_SLOTS, self.slots),
            (map::QP_PATHS, self.slots),
            (map::USED_SLOTS, self.slots),
            (map::QUEUE_SLOTS, self.slots.saturating_mul(2)),
        ]
        .into_iter()
        .chain(work)
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(options: &Options, all: u64, software: u64, counted: bool) -> (u32, u32) {
        let sizes = Sizes::of(options, Existing { all, software }, counted, true);
        (sizes.known, sizes.slots)
    }

    #[test]
    fn there_is_room_for_twice_the_qps_and_slots_where_they_are_counted() {
        let default = Options::default();
        assert_eq!(sizes(&default, 100, 100, true), (16_384, 256));
        assert_eq!(sizes(&default, 10_000, 1000, true), (20_000, 2000));
        assert_eq!(sizes(&default, 10_000, 0, true), (20_000, 256), "all of hardware");
        assert_eq!(sizes(&default, 20_000, 0, false), (40_000, 1));
        assert_eq!(sizes(&default, 100, 0, false), (32_768, 1));
        assert_eq!(sizes(&default, u64::MAX, u64::MAX, true), (131_072, 16_384));
        let old = Sizes::of(&default, Existing::default(), true, false);
        assert_eq!((old.known, old.slots), (2048, 256));
        let trace = Options {
            scope: Scope::Events(Vec::new()),
            ..Options::default()
        };
        assert_eq!(sizes(&trace, 100, 0, false), (131_072, 1));
        for (options, by_number) in [(&default, 16_384), (&trace, 1)] {
            let sizes = Sizes::of(options, Existing::default(), true, true);
            let entries = sizes.entries(options);
            let table = entries.iter().find(|(name, _)| *name == map::QPN_INDEX);
            assert_eq!(table, Some(&(map::QPN_INDEX, by_number)));
        }
    }

    #[test]
    fn what_is_asked_for_is_made_and_a_test_can_make_less() {
        let asked = Options {
            max_qps: Some(100_000),
            ..Options::default()
        };
        assert_eq!(sizes(&asked, 7, 7, true), (100_000, 100_000));
        assert_eq!(sizes(&asked, 7, 7, false), (100_000, 1));
        let few = Options {
            max_qps: Some(10),
            ..Options::default()
        };
        assert_eq!(sizes(&few, 7, 7, true), (16_384, 10), "the tables do not shrink");
        let tiny = Options {
            slots: Some(8),
            known_qps: Some(64),
            ..asked
        };
        assert_eq!(sizes(&tiny, 7, 7, true), (64, 8));
    }

    #[test]
    fn the_default_maps_are_small() {
        for on_demand in [false, true] {
            let sizes = Sizes::of(&Options::default(), Existing::default(), true, on_demand);
            assert!(sizes.bytes(on_demand) < 2 << 20, "{}", sizes.bytes(on_demand));
        }
    }
}
