//! `/proc/PID/status` (proc_pid_status(5)).
use serde::{Deserialize, Serialize};

use crate::source::root::parse_u64;

/// Memory of a process, in bytes. Kernel threads and zombies have none of these.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Resident memory (`VmRSS`).
    pub rss: Option<u64>,
    /// Pinned memory (`VmPin`): what memory regions count against the memlock limit since Linux 5.3.
    pub pinned: Option<u64>,
    /// Locked memory (`VmLck`): mlock, not memory regions.
    pub locked: Option<u64>,
}

/// The lines that we use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Thread group: the process that a thread belongs to.
    pub tgid: Option<u32>,
    /// Real user.
    pub uid: Option<u32>,
    /// Effective user.
    pub euid: Option<u32>,
    /// Memory.
    pub memory: Memory,
    /// Effective capabilities, as bits of capabilities(7).
    pub cap_eff: Option<u64>,
    /// The process numbers from the outermost visible PID namespace to its own; more than one in a container.
    pub ns_pid: Vec<u32>,
}

impl Status {
    /// Parses the file; a line that is absent or odd leaves its value unknown. The kernel escapes the name in
    /// the first line (`proc_task_name`), so no process can forge a line.
    pub fn parse(raw: &[u8]) -> Self {
        let mut out = Self::default();
        for line in raw.split(|b| *b == b'\n') {
            let Some(colon) = line.iter().position(|b| *b == b':') else {
                continue;
            };
            let (key, value) = (&line[..colon], &line[colon + 1..]);
            let mut words = value
                .split(u8::is_ascii_whitespace)
                .filter(|word| !word.is_empty());
            match key {
                b"Tgid" => out.tgid = small(words.next()),
                b"Uid" => (out.uid, out.euid) = (small(words.next()), small(words.next())),
                b"VmRSS" => out.memory.rss = kilobytes(value),
                b"VmPin" => out.memory.pinned = kilobytes(value),
                b"VmLck" => out.memory.locked = kilobytes(value),
                b"CapEff" => out.cap_eff = words.next().and_then(hex),
                b"NSpid" => out.ns_pid = words.map_while(|word| small(Some(word))).collect(),
                _ => {}
            }
        }
        out
    }
}

fn small(word: Option<&[u8]>) -> Option<u32> {
    parse_u64(word?)?.try_into().ok()
}

fn hex(word: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()
}

/// "     1234 kB" in bytes.
fn kilobytes(value: &[u8]) -> Option<u64> {
    parse_u64(value.trim_ascii().strip_suffix(b"kB")?)?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SAMPLE: &[u8] = b"Name:\tib send\\nbw\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t231\nPid:\t233\nUid:\t1000\t0\t0\t0\n\
        VmPin:\t  65536 kB\nVmLck:\t       0 kB\nVmRSS:\t   12345 kB\nNSpid:\t231\t7\nCapEff:\t000001ffffffffff\n";

    #[test]
    fn the_lines_we_use_are_read() {
        let s = Status::parse(SAMPLE);
        assert_eq!((s.tgid, s.uid, s.euid), (Some(231), Some(1000), Some(0)));
        let memory = Memory {
            rss: Some(12345 * 1024),
            pinned: Some(64 << 20),
            locked: Some(0),
        };
        assert_eq!(s.memory, memory);
        assert_eq!((s.cap_eff, s.ns_pid), (Some(0x1ff_ffff_ffff), vec![231, 7]));
    }

    #[test]
    fn a_kernel_thread_has_no_memory_rather_than_none_used() {
        assert_eq!(
            Status::parse(b"Name:\tkthreadd\nTgid:\t2\n").memory,
            Memory::default()
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(raw: Vec<u8>, value in "\\PC{0,30}") {
            let _ = Status::parse(&raw);
            for key in ["Tgid", "Uid", "VmRSS", "CapEff", "NSpid"] {
                let _ = Status::parse(format!("{key}:\t{value}\n").as_bytes());
            }
        }

        #[test]
        fn the_pinned_size_reads_back(kb in 0u64..1 << 50) {
            let s = Status::parse(format!("VmPin:\t{kb:8} kB\n").as_bytes());
            prop_assert_eq!(s.memory.pinned, Some(kb * 1024));
        }
    }
}
