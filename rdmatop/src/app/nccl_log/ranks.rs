//! Which processes of this machine wrote a log.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt},
    path::PathBuf,
    time::{Duration, Instant, UNIX_EPOCH},
};

use rustix::time::ClockId;

use rdmatop_base::order::Gather as _;
use rdmatop_nccl_log::{
    identity::{Candidate, Identity, identify, is_here},
    now::IdentifiedProcess,
    report::Report,
};
use rdmatop_sources::{
    clock, execs, foreign,
    open_files::{self, Users},
    proc::{DetailReader, Numbered, Part, ProcKey, clock_ticks, ended, numbered},
    root::Root,
};

const SECOND_NS: u64 = 1_000_000_000;
/// How long processes may delay the search, all together. Each may for two seconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the search may take. A log can name any number of processes that are here.
const LONGEST: Duration = Duration::from_secs(20);

/// A log that was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Input {
    /// Where it is, as links in `/proc/PID/fd` name it; `None`: standard input.
    pub(super) path: Option<PathBuf>,
    /// When it was last written, ns since the epoch.
    pub(super) written_ns: Option<u64>,
    /// The number of the user whose file it is.
    pub(super) owner: Option<u32>,
}

impl Input {
    pub(super) fn of(file: &File) -> Self {
        let facts = file.metadata().ok().filter(std::fs::Metadata::is_file);
        let owner = facts.as_ref().map(MetadataExt::uid);
        let written = facts.and_then(|facts| facts.modified().ok());
        let since = written.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        Self {
            path: foreign::path_of(file),
            written_ns: since.and_then(|since| u64::try_from(since.as_nanos()).ok()),
            owner,
        }
    }
}

/// The name of this machine.
pub(super) fn hostname(root: &Root) -> String {
    root.line(&root.proc("sys/kernel/hostname")).unwrap_or_default()
}

/// The processes of a log that are, or were, on this machine, and who they are.
#[derive(Debug, Default)]
pub(super) struct Search {
    pub(super) found: Vec<IdentifiedProcess>,
    /// Keys tell later whether one has ended.
    pub(super) keys: BTreeMap<u32, ProcKey>,
    /// How many processes of the log there was no time to look for.
    pub(super) left: usize,
}

/// Looks for the processes of a log.
pub(super) fn find(report: &Report, inputs: &[Input], root: &Root) -> Search {
    find_within(report, inputs, root, LONGEST)
}

fn find_within(report: &Report, inputs: &[Input], root: &Root, longest: Duration) -> Search {
    let here = hostname(root);
    let of_processes = || {
        report
            .processes
            .iter()
            .filter(|(writer, _)| writer.pid > 0 && !writer.host.is_empty())
    };
    let wanted: BTreeSet<u32> = of_processes().map(|(writer, _)| writer.pid).gather();
    let mut out = Search::default();
    if here.is_empty() || wanted.is_empty() {
        return out;
    }
    let mut by_own: BTreeMap<u32, Vec<Numbered>> = BTreeMap::new();
    for one in numbered(root, &wanted) {
        by_own.entry(one.own).or_default().push(one);
    }
    let begun = Instant::now();
    let mut looks = Looks {
        root,
        inputs,
        clocks: Clocks::now(root),
        reader: DetailReader::new(root.clone()),
        until: begun + PATIENCE,
        users: Users::default(),
        known: BTreeMap::new(),
    };
    for (writer, process) in of_processes() {
        if begun.elapsed() >= longest {
            out.left += 1;
            continue;
        }
        let logs: Vec<usize> = process
            .inputs
            .keys()
            .filter_map(|at| usize::try_from(*at).ok().filter(|at| *at < inputs.len()))
            .collect();
        let local = is_here(&writer.host, &here);
        let candidates: Vec<Candidate> = by_own
            .get(&writer.pid)
            .into_iter()
            .flatten()
            // Where the log names another host, it can only mean a container on this machine.
            .filter(|one| local || one.nested)
            .filter_map(|one| looks.candidate(one, &logs, |one| one.belongs_to(&writer.host, &here)))
            .collect();
        // The last write to any of the logs; not known if one is a pipe, which has no time.
        let written: Option<Vec<u64>> = logs.iter().map(|log| inputs[*log].written_ns).collect();
        let identity = identify(candidates, written.and_then(|all| all.into_iter().max()));
        if let Identity::Process(process, _) = &identity {
            let known = by_own.get(&writer.pid).into_iter().flatten();
            let known = known.filter(|one| one.key.pid == process.pid);
            out.keys.extend(known.map(|one| (one.key.pid, one.key)));
        } else if !local {
            continue;
        }
        out.found.push(IdentifiedProcess {
            writer: writer.clone(),
            identity,
            ended: false,
        });
    }
    out
}

/// Marks the processes that have ended since.
pub(super) fn mark_ended(found: &mut [IdentifiedProcess], keys: &BTreeMap<u32, ProcKey>, root: &Root) {
    for one in found {
        if let Identity::Process(process, _) = &one.identity {
            one.ended = keys
                .get(&process.pid)
                .is_none_or(|key| ended(root, [*key]) == [*key]);
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

/// What was seen of processes. Each is read once, however many lines of the log name it.
struct Looks<'a> {
    root: &'a Root,
    inputs: &'a [Input],
    clocks: Clocks,
    reader: DetailReader,
    /// Nothing more is read after this.
    until: Instant,
    /// Bounds how long the search asks whose the processes are.
    users: Users,
    /// By PID; `None`: it has ended.
    known: BTreeMap<u32, Option<Seen>>,
}

/// A process, its user, and which of the logs it has open; `None`: that is not known.
type Seen = (Candidate, u32, Option<BTreeSet<usize>>);

impl Looks<'_> {
    /// A process, compared with some of the logs, if it is one that is wanted.
    fn candidate(
        &mut self,
        one: &Numbered,
        logs: &[usize],
        is_wanted: impl FnOnce(&Candidate) -> bool,
    ) -> Option<Candidate> {
        if !self.known.contains_key(&one.key.pid) {
            let seen = self.see(one);
            self.known.insert(one.key.pid, seen);
        }
        let (candidate, user, open) = self.known[&one.key.pid].as_ref()?;
        let has_path = logs.iter().any(|log| self.inputs[*log].path.is_some());
        let open = open.as_ref().filter(|_| has_path);
        // A user that was not asked for is another one: the number of such a process proves nothing.
        let of_another = |log: &usize| {
            let owner = self.inputs[*log].owner;
            owner.is_some_and(|owner| ![0, *user].contains(&owner))
        };
        is_wanted(candidate).then(|| Candidate {
            log_open: open.map(|open| logs.iter().any(|log| open.contains(log))),
            of_another: logs.iter().any(of_another),
            ..candidate.clone()
        })
    }

    fn see(&mut self, one: &Numbered) -> Option<Seen> {
        let pid = one.key.pid;
        let parts = [Part::Environment, Part::Libraries];
        let in_time = Instant::now() < self.until;
        let detail = self
            .reader
            .details(one.key, None, if in_time { &parts } else { &[] })?;
        let namespace = |root: &Root, of: u32| root.link(&root.proc(format!("{of}/ns/net")));
        let ours = self.root.link(&self.root.proc("self/ns/net"));
        let networks = execs::one(self.root, pid, namespace).flatten().zip(ours);
        let candidate = Candidate {
            pid,
            comm: one.comm.clone(),
            nested: one.nested,
            hostname: detail.hostname.filter(|_| one.nested),
            start_ns: self.clocks.start_ns(one.key.start),
            libraries: detail.libraries,
            log_open: None,
            of_another: false,
            other_network: networks.map(|(its, ours)| its != ours),
        };
        // The path of a file in a container is another, or is the same by chance.
        let open = if one.nested {
            None
        } else {
            self.open_logs(pid, open_files::MOST)
        };
        Some((candidate, self.users.of(self.root, pid), open))
    }

    /// Which of the logs it has open; `None` if that is not known. At most so many of its files are looked
    /// at. The links are compared by name: asking for the file may wait for its file system.
    fn open_logs(&self, pid: u32, most: usize) -> Option<BTreeSet<usize>> {
        let paths: BTreeMap<Vec<u8>, usize> = (0..)
            .zip(self.inputs)
            .filter_map(|(at, log)| Some((log.path.as_ref()?.as_os_str().as_bytes().to_vec(), at)))
            .gather();
        if paths.is_empty() || Instant::now() >= self.until {
            return None;
        }
        let until = self.until;
        execs::one(self.root, pid, move |root, pid| {
            let dir = root.proc(format!("{pid}/fd"));
            let all = root.list(&dir)?;
            let mut open = BTreeSet::new();
            for (looked, name) in all.iter().enumerate() {
                if looked == most || Instant::now() >= until {
                    // What was found is true. That it has no other is not known.
                    return (!open.is_empty()).then_some(open);
                }
                let link = root.link(&dir.join(name));
                open.extend(link.and_then(|link| paths.get(&link).copied()));
            }
            Some(open)
        })?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_nccl_log::identity::Proof;
    use rdmatop_sources::{fake::Fake, uprobes};

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
        let file = File::create(&path).unwrap();
        let input = Input::of(&file);
        assert!(input.written_ns.is_some());
        assert_eq!(input.path.as_ref(), path.canonicalize().ok().as_ref());
        let me = std::process::id();
        let root = Root::default();
        let Search { found, keys, .. } = find(&log(me), std::slice::from_ref(&input), &root);
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
        let found = find(&log(me), &[input], &root).found;
        assert!(matches!(&found[0].identity, Identity::Reused(..)), "{found:?}");
    }

    #[test]
    fn a_log_older_than_the_process_is_not_its_own() {
        let old = Input {
            written_ns: Some(1_000),
            ..Input::default()
        };
        let Search { found, keys, .. } = find(&log(std::process::id()), &[old], &Root::default());
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
        let found = find(&report, &[Input::default()], &Root::default()).found;
        assert!(found.is_empty());
    }

    /// A machine `n` with a process 7 that has five files open, the last of them a log, and a log in which
    /// `lines` hosts of that name have a process 7.
    fn many(lines: usize) -> (Fake, Report, Input) {
        const TAIL: &str = "S 1 7 7 0 -1 4194560 100 0 0 0 30 12 0 0 20 -5 4 0 100 1000 200 1 1";
        let fake = Fake::new();
        fake.proc("sys/kernel/hostname", "n\n")
            .proc("7/stat", format!("7 (x) {TAIL}\n"))
            .proc("7/status", "State:\tS\nUid:\t1000\t1000\t1000\t1000\nNSpid:\t7\n");
        for fd in 0..4 {
            fake.link(format!("proc/7/fd/{fd}"), "/dev/null");
        }
        fake.link("proc/7/fd/4", "/tmp/log");
        let mut report = Report::default();
        for at in 0..lines {
            report.line(format!("n.{at}:7:7 [0] NCCL INFO Using network IB").as_bytes());
        }
        report.end();
        let input = Input {
            path: Some("/tmp/log".into()),
            ..Input::default()
        };
        (fake, report, input)
    }

    #[test]
    fn in_a_log_of_another_user_a_number_is_no_proof() {
        let (fake, report, _) = many(1);
        fake.proc("7/maps", "1-2 r-xp 00000000 08:01 3 /usr/lib/libnccl.so.2\n");
        // The directories of the made-up /proc are those of whoever runs the test.
        let user = Users::default().of(&fake.root(), 7);
        for (owner, proof) in [
            (Some(user + 1), Proof::OtherUser),
            (Some(user), Proof::Library),
            (Some(0), Proof::Library),
            (None, Proof::Library),
        ] {
            let input = Input {
                owner,
                ..Input::default()
            };
            let found = find(&report, &[input], &fake.root()).found;
            assert!(
                matches!(&found[0].identity, Identity::Process(_, is) if *is == proof),
                "{owner:?} {found:?}"
            );
        }
    }

    #[test]
    fn a_process_whose_user_was_not_asked_for_may_be_another_user_s() {
        let fake = Fake::new();
        let root = fake.root();
        let process = Numbered {
            key: ProcKey { pid: 7, start: 1 },
            own: 7,
            comm: "python3".into(),
            nested: false,
        };
        let of_another = |owner, user| {
            let input = Input {
                owner,
                ..Input::default()
            };
            let mut looks = Looks {
                root: &root,
                inputs: &[input],
                clocks: Clocks::now(&root),
                reader: DetailReader::new(root.clone()),
                until: Instant::now() + PATIENCE,
                users: Users::default(),
                known: BTreeMap::from([(7, Some((Candidate::default(), user, None)))]),
            };
            looks.candidate(&process, &[0], |_| true).unwrap().of_another
        };
        assert!(of_another(Some(1000), u32::MAX) && of_another(Some(1000), 1001));
        assert!(
            !of_another(Some(1000), 1000) && !of_another(Some(0), u32::MAX) && !of_another(None, u32::MAX)
        );
    }

    #[test]
    fn a_process_is_read_once_however_many_lines_of_the_log_name_it() {
        let opens = |lines| {
            let (fake, report, input) = many(lines);
            let root = fake.root();
            let search = find(&report, &[input], &root);
            let is_it =
                |one: &IdentifiedProcess| matches!(one.identity, Identity::Process(_, Proof::LogOpen));
            assert!(search.found.iter().all(is_it), "{search:?}");
            assert_eq!((search.found.len(), search.left), (lines, 0));
            root.opens()
        };
        assert_eq!(opens(300), opens(1));
    }

    #[test]
    fn a_search_ends_in_time_and_says_what_it_did_not_look_for() {
        let (fake, report, input) = many(300);
        let search = find_within(
            &report,
            std::slice::from_ref(&input),
            &fake.root(),
            Duration::ZERO,
        );
        assert_eq!((search.found.len(), search.left), (0, 300));
        let root = fake.root();
        let looks = Looks {
            root: &root,
            inputs: std::slice::from_ref(&input),
            clocks: Clocks::now(&root),
            reader: DetailReader::new(root.clone()),
            until: Instant::now() + PATIENCE,
            users: Users::default(),
            known: BTreeMap::new(),
        };
        assert_eq!(looks.open_logs(7, 5), Some(BTreeSet::from([0])));
        assert_eq!(looks.open_logs(7, 4), None, "the log is behind the limit");
        let late = Looks {
            until: Instant::now(),
            ..looks
        };
        assert_eq!(late.open_logs(7, 5), None);
    }
}
