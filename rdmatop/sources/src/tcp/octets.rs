//! Tells from a small file, without a walk over all connections, whether our network namespace moves enough
//! bytes that a job on TCP could be among them.
//!
//! Bytes of network devices include those of all connections, so while devices move little, connections do
//! too. A quiet machine then never loads the module `tcp_diag`, which the first walk needs.

use super::{EVERY_NS, SOON_NS};
use crate::root::Root;

/// Bytes per second below which no connection is worth a look.
const BUSY: f64 = 10e6;
/// Bytes of `/proc/net/dev` that are read at most, a line of some 120 for each device.
const LIMIT: usize = 64 << 10;

/// Follows the bytes of network devices.
#[derive(Debug, Default)]
pub(super) struct Octets {
    /// The last count, and when it was read, ns.
    last: Option<(u64, u64)>,
}

impl Octets {
    /// For how long no connection is worth a look, ns: until there is a rate, or after a count that shows
    /// that little moves. `None`: enough moves, or that is not known.
    pub(super) fn rest(&mut self, root: &Root, now_ns: u64) -> Option<u64> {
        let text = root.bytes(&root.proc("net/dev"), LIMIT);
        let now = text
            .filter(|text| text.len() < LIMIT)
            .and_then(|text| of_devices(&text));
        let last = std::mem::replace(&mut self.last, now.map(|now| (now, now_ns)));
        let now = now?;
        let Some((before, before_ns)) = last else {
            return Some(SOON_NS);
        };
        // If there are less a device has gone, or has reset its counters: nothing is known of the others.
        let moved = now.checked_sub(before)?;
        let seconds = now_ns.saturating_sub(before_ns) as f64 / 1e9;
        ((moved as f64) < BUSY * seconds).then_some(EVERY_NS)
    }
}

/// Bytes of all network devices, both ways. `/proc/net/dev` has two lines of titles, and then for each device
/// a name, eight values of what it received, of which the first is bytes, and as many of what it sent.
fn of_devices(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.lines().skip(2).try_fold(0_u64, |sum, line| {
        let mut values = line.split_once(':')?.1.split_ascii_whitespace();
        let mut bytes = |at| values.nth(at)?.parse::<u64>().ok();
        Some(sum.wrapping_add(bytes(0)?).wrapping_add(bytes(7)?))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fake::Fake;

    const S: u64 = 1_000_000_000;

    /// `/proc/net/dev` of two devices, of which one received these bytes and sent as many.
    fn devices(bytes: u64) -> String {
        let (receive, transmit) = (
            "bytes packets errs drop fifo frame compressed multicast",
            "bytes packets",
        );
        format!(
            "Inter-|   Receive |  Transmit\n face |{receive}|{transmit}\n    lo: 7 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n\
             ens1f0: {bytes} 9 0 0 0 0 0 3 {bytes} 9 0 0 0 0 0 0\n"
        )
    }

    #[test]
    fn ten_megabytes_a_second_are_worth_a_look() {
        let fake = Fake::new();
        let mut octets = Octets::default();
        let mut rest = |at_s: u64, bytes: u64| {
            fake.proc("net/dev", devices(bytes));
            octets.rest(&fake.root(), at_s * S)
        };
        assert_eq!(rest(1, 0), Some(SOON_NS));
        assert_eq!(rest(2, 4_000_000), Some(EVERY_NS), "8 MB/s");
        assert_eq!(rest(3, 9_000_000), None, "10 MB/s");
        assert_eq!(rest(5, 18_000_000), Some(EVERY_NS), "9 MB/s");
        assert_eq!(rest(7, 1000), None, "a device has gone");
        assert_eq!(rest(8, 2000), Some(EVERY_NS));
    }

    #[test]
    fn more_devices_than_are_read_and_no_file_are_unknown() {
        let fake = Fake::new();
        let mut octets = Octets::default();
        assert_eq!(octets.rest(&fake.root(), S), None);
        let line = "veth00000000: 7 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n";
        for (lines, rest) in [(1000, Some(SOON_NS)), (1500, None), (1000, Some(SOON_NS))] {
            fake.proc("net/dev", devices(0) + &line.repeat(lines));
            assert_eq!(octets.rest(&fake.root(), 2 * S), rest, "{lines}");
        }
    }

    #[test]
    fn this_kernel_counts_them() {
        let root = Root::default();
        let devices = root.bytes(&root.proc("net/dev"), LIMIT);
        assert!(devices.is_some_and(|text| of_devices(&text).is_some()));
    }

    proptest! {
        #[test]
        fn no_text_panics(text: Vec<u8>) {
            let _ = of_devices(&text);
        }
    }
}
