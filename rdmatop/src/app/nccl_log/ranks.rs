//! Which processes of this machine wrote a log.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant, UNIX_EPOCH},
};

use rustix::time::ClockId;

use rdmatop_nccl_log::{
    identity::{Candidate, Identity, identify, is_here},
    now::IdentifiedProcess,
    report::Report,
};
use rdmatop_sources::{
    clock,
    proc::{DetailReader, Numbered, Part, ProcDetail, ProcKey, clock_ticks, key, numbered},
    root::Root,
};

const SECOND_NS: u64 = 1_000_000_000;
/// How long processes may delay the search, all together. Each may for two seconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// A log that was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Input {
    /// Where it is, without links; `None`: standard input.
    pub(super) path: Option<PathBuf>,
    /// When it was last written, ns since the epoch.
    pub(super) written_ns: Option<u64>,
}

impl Input {
    /// A file that is open.
    pub(super) fn of(path: &Path, facts: Option<&std::fs::Metadata>) -> Self {
        let written = facts
            .filter(|facts| facts.is_file())
            .and_then(|facts| facts.modified().ok());
        let since = written.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        Self {
            path: std::fs::canonicalize(path).ok(),
            written_ns: since.and_then(|since| u64::try_from(since.as_nanos()).ok()),
        }
    }
}

/// The name of this machine.
pub(super) fn hostname(root: &Root) -> String {
    root.line(&root.proc("sys/kernel/hostname")).unwrap_or_default()
}

/// The processes of a log that are, or were, on this machine, and who they are. Keys tell later whether one
/// has ended.
pub(super) fn find(
    report: &Report,
    inputs: &[Input],
    root: &Root,
) -> (Vec<IdentifiedProcess>, BTreeMap<u32, ProcKey>) {
    let here = hostname(root);
    let of_processes = || {
        report
            .processes
            .iter()
            .filter(|(writer, _)| writer.pid > 0 && !writer.host.is_empty())
    };
    let wanted: BTreeSet<u32> = of_processes().map(|(writer, _)| writer.pid).collect();
    if here.is_empty() || wanted.is_empty() {
        return Default::default();
    }
    let mut by_own: BTreeMap<u32, Vec<Numbered>> = BTreeMap::new();
    for one in numbered(root, &wanted) {
        by_own.entry(one.own).or_default().push(one);
    }
    let clocks = Clocks::now(root);
    let (mut found, mut keys) = (Vec::new(), BTreeMap::new());
    let (mut reader, until) = (DetailReader::new(root.clone()), Instant::now() + PATIENCE);
    let mut details_of = |process| {
        let in_time = Instant::now() < until;
        let parts = [Part::Environment, Part::Libraries];
        reader.details(process, None, if in_time { &parts } else { &[] })
    };
    for (writer, process) in of_processes() {
        let logs: Vec<&Input> = process
            .inputs
            .keys()
            .filter_map(|at| inputs.get(usize::try_from(*at).ok()?))
            .collect();
        let local = is_here(&writer.host, &here);
        let candidates: Vec<Candidate> = by_own
            .get(&writer.pid)
            .into_iter()
            .flatten()
            // Where the log names another host, it can only mean a container on this machine.
            .filter(|one| local || one.nested)
            .filter_map(|one| Some(candidate(root, one, details_of(one.key)?, &logs, &clocks)))
            .filter(|one| one.belongs_to(&writer.host, &here))
            .collect();
        // The last write to any of the logs; not known if one is a pipe, which has no time.
        let written: Option<Vec<u64>> = logs.iter().map(|log| log.written_ns).collect();
        let identity = identify(candidates, written.and_then(|all| all.into_iter().max()));
        if let Identity::Process(process, _) = &identity {
            let known = by_own.get(&writer.pid).into_iter().flatten();
            keys.extend(
                known
                    .filter(|one| one.key.pid == process.pid)
                    .map(|one| (one.key.pid, one.key)),
            );
        } else if !local {
            continue;
        }
        found.push(IdentifiedProcess {
            writer: writer.clone(),
            identity,
            ended: false,
        });
    }
    (found, keys)
}

/// Marks the processes that have ended since.
pub(super) fn mark_ended(found: &mut [IdentifiedProcess], keys: &BTreeMap<u32, ProcKey>, root: &Root) {
    for one in found {
        if let Identity::Process(process, _) = &one.identity {
            one.ended = key(root, process.pid) != keys.get(&process.pid).copied();
        }
    }
}

/// What turns a start into a time of day.
struct Clocks {
    ticks: Option<u64>,
    /// When this machine booted, ns since the epoch.
    boot_ns: u64,
}

impl Clocks {
    fn now(root: &Root) -> Self {
        Self {
            ticks: clock_ticks(root).filter(|ticks| *ticks > 0),
            boot_ns: clock::read(ClockId::Realtime).saturating_sub(clock::read(ClockId::Boottime)),
        }
    }

    fn start_ns(&self, start: u64) -> Option<u64> {
        let since_boot = u128::from(start) * u128::from(SECOND_NS) / u128::from(self.ticks?);
        self.boot_ns.checked_add(u64::try_from(since_boot).ok()?)
    }
}

fn candidate(root: &Root, one: &Numbered, detail: ProcDetail, logs: &[&Input], clocks: &Clocks) -> Candidate {
    let pid = one.key.pid;
    let namespace = |of: &str| root.link(&root.proc(format!("{of}/ns/net")));
    let networks = namespace(&pid.to_string()).zip(namespace("self"));
    Candidate {
        pid,
        comm: one.comm.clone(),
        nested: one.nested,
        hostname: detail.hostname.filter(|_| one.nested),
        start_ns: clocks.start_ns(one.key.start),
        libraries: detail.libraries,
        // The path of a file in a container is another, or is the same by chance.
        log_open: if one.nested {
            None
        } else {
            has_open(root, pid, logs)
        },
        other_network: networks.map(|(its, ours)| its != ours),
    }
}

/// Whether it has one of the logs open. The links are compared by name: asking for the file may wait for its
/// file system.
fn has_open(root: &Root, pid: u32, logs: &[&Input]) -> Option<bool> {
    let paths: Vec<&[u8]> = logs
        .iter()
        .filter_map(|log| Some(log.path.as_ref()?.as_os_str().as_bytes()))
        .collect();
    if paths.is_empty() {
        return None;
    }
    let dir = root.proc(format!("{pid}/fd"));
    let all = root.list(&dir)?;
    Some(all.iter().any(|name| {
        root.link(&dir.join(name))
            .is_some_and(|link| paths.contains(&link.as_slice()))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_nccl_log::identity::Proof;
    use rdmatop_sources::uprobes;

    fn log(pid: u32) -> Report {
        uprobes::helper_is("app::nccl_log::ranks::tests::is_the_helper");
        let mut report = Report::default();
        let host = hostname(&Root::default());
        report.line(format!("{host}:{pid}:{pid} [0] NCCL INFO Using network IB").as_bytes());
        report.end();
        report
    }

    #[test]
    #[ignore = "the helper of the other tests: it answers on its standard input"]
    fn is_the_helper() {
        uprobes::serve();
    }

    #[test]
    fn this_process_is_known_by_the_log_that_it_has_open_and_not_without() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("log");
        let file = std::fs::File::create(&path).unwrap();
        let input = Input::of(&path, file.metadata().ok().as_ref());
        assert!(input.written_ns.is_some());
        let me = std::process::id();
        let root = Root::default();
        let (found, keys) = find(&log(me), std::slice::from_ref(&input), &root);
        let [one] = found.as_slice() else {
            panic!("{found:?}")
        };
        assert!(
            matches!(&one.identity, Identity::Process(who, Proof::LogOpen) if who.pid == me),
            "{one:?}"
        );
        let mut again = found.clone();
        mark_ended(&mut again, &keys, &root);
        assert!(!again[0].ended);
        let other = BTreeMap::from([(me, ProcKey { pid: me, start: 1 })]);
        mark_ended(&mut again, &other, &root);
        assert!(again[0].ended, "the number is used again");
        drop(file);
        let (found, _) = find(&log(me), &[input], &root);
        assert!(matches!(&found[0].identity, Identity::Reused(..)), "{found:?}");
    }

    #[test]
    fn a_log_older_than_the_process_is_not_its_own() {
        let old = Input {
            path: None,
            written_ns: Some(1_000),
        };
        let (found, keys) = find(&log(std::process::id()), &[old], &Root::default());
        assert!(
            matches!(&found[0].identity, Identity::Reused(_, why) if why.contains("after the log's last line")),
            "{found:?}"
        );
        assert!(keys.is_empty());
    }

    #[test]
    fn a_log_of_another_host_has_nobody_here() {
        let mut report = Report::default();
        let me = std::process::id();
        report.line(format!("some-other-host-9:{me}:1 [0] NCCL INFO Using network IB").as_bytes());
        report.line(b":7:7 [0] NCCL INFO Using network IB");
        report.end();
        assert!(find(&report, &[Input::default()], &Root::default()).0.is_empty());
    }
}
