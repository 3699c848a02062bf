//! `/proc/PID/status` (proc_pid_status(5)).
use std::path::Path;

use crate::root::{Root, hex, parse_u64};

/// The lines that we use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Thread group: the process that a thread belongs to.
    pub tgid: Option<u32>,
    /// `R`, `S`, `Z` and so on.
    pub state: Option<u8>,
    /// Its numbers, from the PID namespace of this /proc to its own; empty before Linux 4.1.
    pub ns_pids: Vec<u32>,
    /// Real user.
    pub uid: Option<u32>,
    /// Effective user.
    pub euid: Option<u32>,
    /// All its users: real, effective, saved, and the one for file accesses.
    pub uids: Vec<u32>,
    /// Its group for file accesses, and its supplementary groups.
    pub groups: Vec<u32>,
    /// Effective capabilities, as bits of capabilities(7).
    pub cap_eff: Option<u64>,
    /// Signals that it ignores: bit 0 is SIGHUP.
    pub ignored: Option<u64>,
    /// Memory that drivers hold for it, bytes (`mm->pinned_vm`): what `ib_umem_get` compares with the limit
    /// of locked memory.
    pub pinned: Option<u64>,
}

impl Status {
    /// The file is read up to here, bytes. A process may have 65,536 groups (`NGROUPS_MAX`) of at most eleven
    /// bytes each, which its user chooses in a user namespace, and the kernel writes them before most lines.
    const LIMIT: usize = 1 << 20;

    /// Reads the file of a process or thread by its directory in /proc; `None` when it has ended, or the file
    /// is not readable.
    pub fn read(root: &Root, dir: &Path) -> Option<Self> {
        Some(Self::parse(&root.bytes(&dir.join("status"), Self::LIMIT)?))
    }

    /// The thread group and the real user alone: their lines come before the groups, which it would take
    /// longer to parse than the kernel needs to write them.
    pub(crate) fn whose(root: &Root, dir: &Path) -> Option<(Option<u32>, Option<u32>)> {
        const LINES: usize = 1024;
        let lines = Self::parse(&root.bytes(&dir.join("status"), LINES)?);
        Some((lines.tgid, lines.uid))
    }

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
                b"State" => out.state = words.next().and_then(|word| word.first().copied()),
                b"NSpid" => out.ns_pids = words.map_while(|word| small(Some(word))).collect(),
                b"Tgid" => out.tgid = small(words.next()),
                b"Uid" => {
                    out.uids = words.map_while(|word| small(Some(word))).collect();
                    (out.uid, out.euid) = (out.uids.first().copied(), out.uids.get(1).copied());
                }
                b"Gid" => out.groups.extend(small(words.nth(3))),
                b"Groups" => out.groups.extend(words.filter_map(|word| small(Some(word)))),
                b"SigIgn" => out.ignored = words.next().and_then(hex),
                b"CapEff" => out.cap_eff = words.next().and_then(hex),
                b"VmPin" => {
                    let kib = words.next().and_then(parse_u64);
                    out.pinned = kib.and_then(|kib| kib.checked_mul(1024));
                }
                _ => {}
            }
        }
        out
    }
}

fn small(word: Option<&[u8]>) -> Option<u32> {
    parse_u64(word?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use proptest::prelude::*;

    const SAMPLE: &[u8] = b"Name:\tib send\\nbw\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t231\nPid:\t233\nUid:\t1000\t0\t0\t7\nGid:\t1\t2\t3\t4\nGroups:\t10 20\n\
        NSpid:\t233\t12\nVmPin:\t      64 kB\nVmRSS:\t   12345 kB\nCapEff:\t000001ffffffffff\n";

    #[test]
    fn the_lines_we_use_are_read() {
        let s = Status::parse(SAMPLE);
        assert_eq!((s.tgid, s.uid, s.euid), (Some(231), Some(1000), Some(0)));
        assert_eq!((s.uids, s.groups), (vec![1000, 0, 0, 7], vec![4, 10, 20]));
        assert_eq!(s.cap_eff, Some(0x1ff_ffff_ffff));
        assert_eq!(s.pinned, Some(64 << 10));
        assert_eq!((s.state, s.ns_pids), (Some(b'S'), vec![233, 12]));
    }

    #[test]
    fn an_absent_or_odd_line_is_unknown() {
        let s = Status::parse(b"Name:\tkthreadd\nTgid:\t2x\nCapEff:\t\nVmPin: 99999999999999999999 kB\n");
        assert_eq!(s, Status::default());
    }

    #[test]
    fn the_lines_after_as_many_groups_as_a_process_may_have_are_read() {
        let fake = Fake::new();
        let groups = format!("{} ", u32::MAX).repeat(1 << 16);
        fake.proc(
            "7/status",
            format!("Tgid:\t7\nGroups:\t{groups}\nNSpid:\t7\t12\nCapEff:\t0000000000004000\n"),
        );
        let read = Status::read(&fake.root(), &fake.root().proc("7")).unwrap();
        assert_eq!((read.ns_pids, read.cap_eff), (vec![7, 12], Some(0x4000)));
        let whose = Status::whose(&fake.root(), &fake.root().proc("7"));
        assert_eq!(whose, Some((Some(7), None)));
        assert_eq!(Status::read(&fake.root(), &fake.root().proc("8")), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(raw: Vec<u8>, value in "\\PC{0,30}") {
            let _ = Status::parse(&raw);
            for key in ["Tgid", "Uid", "Gid", "Groups", "CapEff", "VmPin", "State", "NSpid"] {
                let _ = Status::parse(format!("{key}:\t{value}\n").as_bytes());
            }
        }
    }
}
