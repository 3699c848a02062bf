//! Tells from small files, without a walk over all connections, whether our network namespace moves enough
//! bytes that a job on TCP could be among them.
//!
//! Bytes of network devices include those of all connections, so while devices move little, connections do
//! too. When devices move much, it may be by RDMA: then the bytes of IP packets are read, which the kernel
//! takes nine times as long to print.

use crate::root::Root;

/// Bytes per second below which no connection is worth a look.
const BUSY: f64 = 10e6;
/// Bytes of `/proc/net/netstat` and `/proc/net/snmp6` that are read at most.
const LIMIT: usize = 64 << 10;
/// Bytes of `/proc/net/dev` that are read at most, a line of some 120 for each device. A longer file costs
/// more than it saves.
const DEVICES_LIMIT: usize = 4096;

/// What a count of bytes says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// The kernel shows no count.
    Unknown,
    /// The first count, which has no rate.
    First,
    /// Less than any connection worth a look would move.
    Little,
    /// Enough.
    Much,
}

/// Follows bytes.
#[derive(Debug, Default)]
pub(super) struct Octets {
    /// Bytes that devices count.
    devices: Count,
    /// There are too many devices to read.
    many: bool,
    /// Bytes of IP packets.
    packets: Count,
}

/// A count of bytes and when it was read.
#[derive(Debug, Default)]
struct Count(Option<(u64, u64)>);

impl Count {
    /// What moved since the last call.
    fn flow(&mut self, now: Option<u64>, now_ns: u64) -> Flow {
        let Some(now) = now else {
            self.0 = None;
            return Flow::Unknown;
        };
        let Some((before, before_ns)) = self.0.replace((now, now_ns)) else {
            return Flow::First;
        };
        let seconds = now_ns.saturating_sub(before_ns) as f64 / 1e9;
        if now.wrapping_sub(before) as f64 >= BUSY * seconds {
            Flow::Much
        } else {
            Flow::Little
        }
    }
}

impl Octets {
    /// What moved since the last call.
    pub(super) fn flow(&mut self, root: &Root, now_ns: u64) -> Flow {
        let devices = match self.devices(root) {
            // Fewer bytes than before: a device has gone, or has reset its counters.
            Some(now) if self.devices.0.is_some_and(|(before, _)| now < before) => {
                self.devices.0 = Some((now, now_ns));
                Flow::Unknown
            }
            now => self.devices.flow(now, now_ns),
        };
        match devices {
            Flow::Unknown | Flow::Much => self.packets.flow(read(root), now_ns),
            Flow::First | Flow::Little => {
                // Starts anew: a rate needs two looks that follow each other.
                self.packets = Count::default();
                devices
            }
        }
    }

    /// Bytes of all network devices, both ways. `None` when not known, or when there are many devices.
    fn devices(&mut self, root: &Root) -> Option<u64> {
        if self.many {
            return None;
        }
        let text = root.bytes(&root.proc("net/dev"), DEVICES_LIMIT)?;
        self.many = text.len() == DEVICES_LIMIT;
        of_devices(&text).filter(|_| !self.many)
    }
}

/// `/proc/net/dev` has two lines of titles, and then for each device a name, eight values of what it
/// received, of which the first is bytes, and as many of what it sent.
fn of_devices(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.lines().skip(2).try_fold(0_u64, |sum, line| {
        let mut values = line.split_once(':')?.1.split_ascii_whitespace();
        let mut bytes = |at| values.nth(at)?.parse::<u64>().ok();
        Some(sum.wrapping_add(bytes(0)?).wrapping_add(bytes(7)?))
    })
}

/// Bytes of IPv4 and IPv6 packets, both ways, since boot.
fn read(root: &Root) -> Option<u64> {
    let v4 = root.bytes(&root.proc("net/netstat"), LIMIT)?;
    // Without IPv6 there is no such file.
    let v6 = root.bytes(&root.proc("net/snmp6"), LIMIT).unwrap_or_default();
    Some(of_netstat(&v4)?.wrapping_add(of_snmp6(&v6)))
}

/// `/proc/net/netstat` has pairs of lines: `IpExt: InOctets OutOctets`, `IpExt: 12 34`.
fn of_netstat(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("IpExt:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let value = |name: &str| -> Option<u64> {
        let at = names.split_ascii_whitespace().position(|one| one == name)?;
        values.split_ascii_whitespace().nth(at)?.parse().ok()
    };
    Some(value("InOctets")?.wrapping_add(value("OutOctets")?))
}

/// `/proc/net/snmp6` has a name and a value on each line.
fn of_snmp6(text: &[u8]) -> u64 {
    let text = std::str::from_utf8(text).unwrap_or_default();
    let value = |line: &str| -> Option<u64> {
        let (name, value) = line.split_once(char::is_whitespace)?;
        let wanted = matches!(name, "Ip6InOctets" | "Ip6OutOctets");
        wanted.then(|| value.trim().parse().ok()).flatten()
    };
    text.lines().filter_map(value).fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fake::Fake;

    const S: u64 = 1_000_000_000;

    fn set(fake: &Fake, bytes: u64) {
        fake.proc(
            "net/netstat",
            format!(
                "TcpExt: SyncookiesSent InOctets\nTcpExt: 1 2\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 9 {bytes} 1000\n"
            ),
        );
    }

    #[test]
    fn ten_megabytes_a_second_are_worth_a_look() {
        let fake = Fake::new();
        let mut octets = Octets::default();
        assert_eq!(octets.flow(&fake.root(), S), Flow::Unknown);
        set(&fake, 0);
        assert_eq!(octets.flow(&fake.root(), S), Flow::First);
        set(&fake, 10_000_000);
        assert_eq!(octets.flow(&fake.root(), 3 * S), Flow::Little);
        set(&fake, 30_000_000);
        assert_eq!(octets.flow(&fake.root(), 5 * S), Flow::Much);
        fake.proc(
            "net/snmp6",
            "Ip6InReceives  \t7\nIp6InOctets   \t15000000\nIp6OutOctets\t5000000\n",
        );
        assert_eq!(octets.flow(&fake.root(), 7 * S), Flow::Much, "IPv6 counts too");
        assert_eq!(octets.flow(&fake.root(), 9 * S), Flow::Little);
    }

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
    fn while_devices_move_little_packets_are_not_read() {
        let fake = Fake::new();
        let mut octets = Octets::default();
        let mut flow = |at_s: u64, bytes: u64| {
            fake.proc("net/dev", devices(bytes));
            let root = fake.root();
            let before = root.opens();
            let flow = octets.flow(&root, at_s * S);
            (flow, root.opens() - before)
        };
        set(&fake, 0);
        assert_eq!(flow(1, 0), (Flow::First, 1));
        assert_eq!(flow(2, 4_000_000), (Flow::Little, 1), "8 MB/s");
        set(&fake, 1 << 30);
        assert_eq!(
            flow(3, 9_000_000),
            (Flow::First, 3),
            "10 MB/s: the first look at packets"
        );
        set(&fake, 2 << 30);
        assert_eq!(flow(4, 20_000_000), (Flow::Much, 3));
        assert_eq!(
            flow(5, 90_000_000),
            (Flow::Little, 3),
            "devices move much, and no IP packets"
        );
        assert_eq!(flow(6, 90_000_000), (Flow::Little, 1));
        set(&fake, 3 << 30);
        assert_eq!(
            flow(7, 1000),
            (Flow::First, 3),
            "a device has gone: nothing is known of the others"
        );
        assert_eq!(flow(8, 2000), (Flow::Little, 1));
    }

    #[test]
    fn more_devices_than_a_page_holds_are_read_once() {
        let fake = Fake::new();
        let line = "veth00000000: 7 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n";
        fake.proc("net/dev", devices(0) + &line.repeat(100));
        set(&fake, 0);
        let root = fake.root();
        let mut octets = Octets::default();
        assert_eq!((octets.flow(&root, S), root.opens()), (Flow::First, 3));
        set(&fake, 30_000_000);
        assert_eq!((octets.flow(&root, 2 * S), root.opens()), (Flow::Much, 5));
    }

    #[test]
    fn this_kernel_counts_them() {
        if std::path::Path::new("/proc/net/netstat").exists() {
            let root = Root::default();
            assert!(read(&root).is_some());
            let devices = root.bytes(&root.proc("net/dev"), LIMIT);
            assert!(devices.is_some_and(|text| of_devices(&text).is_some()));
        } else {
            println!("SKIPPED bytes of IP packets: no /proc/net/netstat here");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text: Vec<u8>, line in "IpExt:[ a-zA-Z0-9]*\nIpExt:[ 0-9]*\n") {
            let _ = (of_netstat(&text), of_snmp6(&text), of_netstat(line.as_bytes()), of_devices(&text));
        }
    }
}
