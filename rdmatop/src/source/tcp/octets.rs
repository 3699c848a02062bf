//! Whether our network namespace moves enough bytes at all that a job on TCP could be among them: two small files instead of
//! a walk over all connections.

use crate::source::root::Root;

/// Bytes of IP packets per second below which no connection is worth a look.
const BUSY: f64 = 10e6;
/// Bytes of `/proc/net/netstat` and `/proc/net/snmp6` that are read at most.
const LIMIT: usize = 64 << 10;

/// What the bytes of IP packets say.
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

/// Follows the bytes of IP packets.
#[derive(Debug, Default)]
pub(super) struct Octets {
    last: Option<(u64, u64)>,
}

impl Octets {
    /// What moved since the last call.
    pub(super) fn flow(&mut self, root: &Root, now_ns: u64) -> Flow {
        let Some(now) = read(root) else {
            self.last = None;
            return Flow::Unknown;
        };
        let Some((before, before_ns)) = self.last.replace((now, now_ns)) else {
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
    use crate::source::fake::Fake;

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

    #[test]
    fn this_kernel_counts_them() {
        if std::path::Path::new("/proc/net/netstat").exists() {
            assert!(read(&Root::default()).is_some());
        } else {
            println!("SKIPPED bytes of IP packets: no /proc/net/netstat here");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text: Vec<u8>, line in "IpExt:[ a-zA-Z0-9]*\nIpExt:[ 0-9]*\n") {
            let _ = (of_netstat(&text), of_snmp6(&text), of_netstat(line.as_bytes()));
        }
    }
}
