//! The host: its kernel, and how much memory is available.

use crate::root::{Root, parse_u64};
use rdmatop_base::text;

const SMALL: usize = 16 << 10;

/// Seconds since boot.
pub(super) fn uptime_s(root: &Root) -> Option<u64> {
    parse_uptime(&root.bytes(&root.proc("uptime"), SMALL)?)
}

/// Memory available without swapping, bytes.
pub(super) fn memory_available(root: &Root) -> Option<u64> {
    meminfo_bytes(&root.bytes(&root.proc("meminfo"), SMALL)?, b"MemAvailable:")
}

/// One variable of os-release(5), safe to print: shell assignments, quoted or not. The last assignment wins,
/// as in a shell.
pub fn os_release(raw: &[u8], key: &str) -> Option<String> {
    let lines = raw.split(|b| *b == b'\n').map(<[u8]>::trim_ascii);
    let value = lines
        .filter_map(|line| line.strip_prefix(key.as_bytes())?.strip_prefix(b"="))
        .next_back()?;
    let unquoted = match value {
        [b'"', inner @ .., b'"'] | [b'\'', inner @ .., b'\''] => inner,
        _ => value,
    };
    let mut plain = Vec::with_capacity(unquoted.len());
    let mut bytes = unquoted.iter();
    while let Some(byte) = bytes.next() {
        plain.extend(if *byte == b'\\' { bytes.next() } else { Some(byte) });
    }
    Some(text::sanitize_bounded(&plain, 256)).filter(|value| !value.is_empty())
}

fn parse_uptime(raw: &[u8]) -> Option<u64> {
    parse_u64(
        raw.split(|b| *b == b'.')
            .next()
            .filter(|whole| !whole.is_empty())?,
    )
}

fn meminfo_bytes(raw: &[u8], key: &[u8]) -> Option<u64> {
    let value = raw
        .split(|b| *b == b'\n')
        .find_map(|line| line.strip_prefix(key))?;
    parse_u64(value.trim_ascii().strip_suffix(b"kB")?)?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::super::Platform;
    use super::*;
    use crate::fake::Fake;
    use proptest::prelude::*;

    #[test]
    fn the_header_is_read() {
        let fake = Fake::new();
        fake.proc("sys/kernel/osrelease", "6.12.107+deb13-amd64\n")
            .proc("sys/kernel/hostname", "n\x1b1\n");
        fake.proc("uptime", "2018.03 3447.41\n");
        fake.proc(
            "meminfo",
            "MemTotal:       24684084 kB\nMemFree: 1 kB\nMemAvailable:   100 kB\n",
        );
        let read = Platform::read(&fake.root());
        assert_eq!(
            (read.hostname.as_deref(), read.uptime_s),
            (Some("n\\x1b1"), Some(2018))
        );
        assert_eq!(read.memory_available, Some(102_400));
        assert_eq!(read.kernel_version(), Some((6, 12)));
    }

    #[test]
    fn quotes_escapes_and_repeated_keys_are_those_of_a_shell() {
        let raw = b"ID='a b'\nVERSION_ID=1\nID=\"c\\\"d\"\nXID=no\nEMPTY=\n";
        assert_eq!(os_release(raw, "ID").as_deref(), Some("c\"d"));
        assert_eq!((os_release(raw, "EMPTY"), os_release(raw, "NAME")), (None, None));
    }

    #[test]
    fn odd_versions_and_times_are_unknown() {
        let version = |kernel: &str| {
            Platform {
                kernel: Some(kernel.into()),
                ..Platform::default()
            }
            .kernel_version()
        };
        assert_eq!(
            (version("7.2.13"), version("x"), version("6"), version("")),
            (Some((7, 2)), None, None, None)
        );
        assert_eq!(parse_uptime(b".5"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(raw: Vec<u8>, value: Vec<u8>) {
            let _ = os_release(&raw, "ID");
            let _ = os_release(&[b"ID=".as_slice(), &value].concat(), "ID");
            let _ = (parse_uptime(&raw), meminfo_bytes(&raw, b""));
        }
    }
}
