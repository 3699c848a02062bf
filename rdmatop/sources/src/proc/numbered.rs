//! Processes by the numbers that they have in their own PID namespaces.
use std::{collections::BTreeSet, ops::ControlFlow};

use super::basic::{ProcKey, dir, read_stat};
use super::{stat::Stat, status::Status};
use crate::{execs, root::Root};

/// A process with a number that was searched for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbered {
    /// Which process.
    pub key: ProcKey,
    /// Name.
    pub comm: String,
    /// Its number in its innermost namespace, which getpid(2) gives it.
    pub own: u32,
    /// That namespace is not the one of this /proc.
    pub nested: bool,
}

/// The processes that have one of these numbers in their own namespace, without zombies. Before Linux 4.1
/// processes in nested namespaces are not found.
pub fn numbered(root: &Root, wanted: &BTreeSet<u32>) -> Vec<Numbered> {
    let (wanted, mut out) = (wanted.clone(), Vec::new());
    let one = move |root: &Root, pid| {
        let dir = dir(root, pid);
        matching(
            pid,
            &wanted,
            || Status::read(root, &dir),
            || read_stat(root, &dir),
        )
    };
    execs::each(root, root.pids(), one, |_, one| {
        out.extend(one.flatten());
        ControlFlow::Continue(())
    });
    out
}

/// The process `pid` if it has one of the numbers, by readers of its two files.
fn matching(
    pid: u32,
    wanted: &BTreeSet<u32>,
    mut status: impl FnMut() -> Option<Status>,
    stat: impl FnOnce() -> Option<Stat>,
) -> Option<Numbered> {
    let ns_pids = status()?.ns_pids;
    let own = ns_pids.last().copied().unwrap_or(pid);
    if !wanted.contains(&own) {
        return None;
    }
    let stat = stat()?;
    // The process may have ended in between and a new one have its number outside: then the numbers before
    // and after `stat` are those of two processes. Where they are equal, they are those of the one in `stat`.
    let after = status()?;
    if stat.ended || matches!(after.state, Some(b'Z' | b'X')) || after.ns_pids != ns_pids {
        return None;
    }
    Some(Numbered {
        key: stat.key(),
        comm: stat.comm,
        own,
        nested: ns_pids.len() > 1,
    })
}

#[cfg(test)]
mod tests {
    use super::super::stat::line;
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn a_process_is_found_by_the_number_of_its_own_namespace() {
        let fake = Fake::new();
        let add = |pid: u32, status: &str| {
            fake.proc(format!("{pid}/stat"), line(pid, b"python3", 100 + u64::from(pid)));
            fake.proc(format!("{pid}/status"), status);
        };
        add(50, "State:\tS (sleeping)\nNSpid:\t50\n");
        add(60, "State:\tR (running)\nNSpid:\t60\t50\n");
        add(70, "State:\tZ (zombie)\nNSpid:\t70\t50\n");
        add(80, "State:\tS (sleeping)\nNSpid:\t80\t9\n");
        // Before Linux 4.1.
        add(90, "State:\tS (sleeping)\n");
        fake.proc("meminfo", "MemTotal: 1 kB\n");
        let found = |wanted: &[u32]| -> Vec<(u32, u32, bool)> {
            let wanted = wanted.iter().copied().collect();
            let all = numbered(&fake.root(), &wanted);
            all.iter().map(|one| (one.key.pid, one.own, one.nested)).collect()
        };
        assert_eq!(found(&[50]), [(50, 50, false), (60, 50, true)]);
        assert_eq!(found(&[9, 90]), [(80, 9, true), (90, 90, false)]);
        assert_eq!(found(&[60, 70, 80]), [], "these are numbers of our own namespace");
    }

    #[test]
    fn a_number_that_another_process_got_meanwhile_finds_neither() {
        let found = |before: &str, after: &str| {
            let mut answers = [after, before]
                .map(|text| Status::parse(text.as_bytes()))
                .to_vec();
            let stat = || Stat::parse(&line(60, b"python3", 100));
            matching(60, &BTreeSet::from([50]), || answers.pop(), stat).is_some()
        };
        let there = "State:\tR\nNSpid:\t60\t50\n";
        assert!(found(there, there));
        assert!(!found(there, "State:\tR\nNSpid:\t60\t51\n"));
        assert!(!found(there, "State:\tR\nNSpid:\t60\n"), "of another namespace");
        assert!(!found(there, "State:\tZ\nNSpid:\t60\t50\n"), "it has ended");
        assert!(!found("State:\tR\nNSpid:\t60\t51\n", there));
    }

    #[test]
    fn this_process_is_found_by_its_own_number() {
        let me = std::process::id();
        let found = numbered(&Root::default(), &BTreeSet::from([me]));
        assert!(found.iter().any(|one| one.own == me), "{found:?}");
    }
}
