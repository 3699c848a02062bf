//! Which processes have devices open.

use std::collections::{BTreeMap, BTreeSet};

use super::processes::{Search, SharedDetails};
use rdmatop_base::order::Gather as _;
use rdmatop_base::{text, turns::in_turn};
use rdmatop_model::input::{Input, OpenersSample, ProcessFacts};
use rdmatop_sources::seam::{Polled, Wants};
use rdmatop_sources::{
    clock,
    open_files::Users,
    openers::openers,
    proc::{Part, ProcKey, key},
    root::Root,
};

/// Processes whose libraries are read, at most; the users take turns.
const DESCRIBED: usize = 64;

/// After a search there is no other for this many times as long as it took, and at most this long, ns.
const SHARE: u64 = 50;
const REST_NS: u64 = 60_000_000_000;

/// Looks at the open files of all processes where the engine asks for it: see [`Needs::openers`].
///
/// [`Needs::openers`]: rdmatop_model::engine::Needs::openers
pub struct OpenerSource {
    search: Search,
    /// There is no other search before this.
    next_ns: u64,
}

impl OpenerSource {
    /// Reads under `root`.
    pub fn new(root: Root, details: SharedDetails) -> Self {
        Self {
            search: Search::new(root, details),
            next_ns: 0,
        }
    }
}

impl Polled for OpenerSource {
    fn name(&self) -> &'static str {
        "open files"
    }

    fn poll(&mut self, wants: &Wants, out: &mut dyn FnMut(Input)) {
        let begin_ns = clock::monotonic();
        if !wants.openers || (begin_ns < self.next_ns && !wants.once) {
            return;
        }
        let mut sample = openers(&self.search.root);
        self.describe(&mut sample, wants.once);
        sample.mono_ns = clock::monotonic();
        out(Input::Openers(Box::new(sample)));
        let end_ns = clock::monotonic();
        self.next_ns = end_ns + (end_ns - begin_ns).saturating_mul(SHARE).min(REST_NS);
    }
}

impl OpenerSource {
    /// Adds what else is known of the processes.
    fn describe(&self, sample: &mut OpenersSample, once: bool) {
        let root = &self.search.root;
        let pids: BTreeSet<u32> = sample.found.iter().map(|one| one.pid).gather();
        let asked = Users::default();
        let users = pids.iter().map(|pid| (*pid, asked.of(root, *pid)));
        let users: BTreeMap<u32, u32> = users.gather();
        let described = in_turn(&pids, DESCRIBED, |pid| users[*pid]);
        let keys: Vec<ProcKey> = described.iter().filter_map(|pid| key(root, **pid)).collect();
        let known = self.search.facts(&keys, &[Part::Libraries], once).into_iter();
        let known: BTreeMap<u32, ProcessFacts> = known.map(|facts| (facts.pid, facts)).gather();
        let safe = |text: &String| text::sanitize(text.as_bytes());
        for opener in &mut sample.found {
            let facts = known.get(&opener.pid);
            opener.user = Some(users[&opener.pid]);
            opener.comm = facts.and_then(|facts| facts.comm.as_ref()).map(safe);
            opener.workload = facts.and_then(|facts| facts.workload.as_ref()).map(safe);
            opener.libraries = facts.and_then(|facts| facts.libraries.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use rdmatop_model::input::Opener;
    use rdmatop_sources::{fake::Fake, proc::Details};

    const TAIL: &str =
        "S 1 231 231 0 -1 4194560 100 0 0 0 30 12 0 0 20 -5 4 0 100 1000 200 18446744073709551615 1";

    #[test]
    fn one_user_with_many_processes_keeps_no_other_ones_from_being_described() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: the directories are those of this user, and not of the processes' users");
            return;
        }
        let fake = Fake::new();
        fake.sys("class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n");
        for pid in 100..=200 {
            let uid = if pid < 200 { 1000 } else { 2000 };
            fake.proc(format!("{pid}/stat"), format!("{pid} (x) {TAIL}\n"))
                .proc(format!("{pid}/status"), format!("Uid:\t{uid}\t0\t0\t0\n"))
                .link(format!("proc/{pid}/fd/3"), "/dev/infiniband/uverbs0");
        }
        let details = Details::new(fake.root());
        let source = OpenerSource::new(fake.root(), Arc::new(Mutex::new(details)));
        let mut sample = openers(&fake.root());
        source.describe(&mut sample, true);
        let described: Vec<u32> = sample
            .found
            .iter()
            .filter(|one| one.comm.is_some())
            .map(|one| one.pid)
            .collect();
        assert_eq!((described.len(), described.last()), (DESCRIBED, Some(&200)));
        assert_eq!(sample.found.last().map(|one| one.user), Some(Some(2000)));
    }

    #[test]
    fn after_a_long_search_there_is_none_for_a_while_but_once() {
        let fake = Fake::new();
        let details = Details::new(fake.root());
        let mut source = OpenerSource::new(fake.root(), Arc::new(Mutex::new(details)));
        let mut searches = |next_ns: u64, once: bool| {
            let wants = Wants {
                openers: true,
                once,
                ..Wants::default()
            };
            source.next_ns = next_ns;
            let mut sent = 0;
            source.poll(&wants, &mut |_| sent += 1);
            (sent, source.next_ns > clock::monotonic())
        };
        assert_eq!(searches(0, false), (1, true));
        assert_eq!(searches(u64::MAX, false).0, 0);
        assert_eq!(searches(u64::MAX, true).0, 1);
    }

    #[test]
    fn candidates_have_name_job_and_libraries_and_are_read_on_request() {
        let fake = Fake::new();
        fake.sys("class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n");
        fake.proc("231/stat", format!("231 (py\x1bthon3) {TAIL}\n"));
        fake.proc("231/status", "Tgid:\t231\nUid:\t0\t0\t0\t0\n");
        fake.proc(
            "231/cgroup",
            "0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0\n",
        );
        fake.proc("231/maps", "1-2 r-xp 0 08:01 3 /usr/lib/libnvshmem_host.so.3\n");
        fake.dir("proc/231/fd")
            .link("proc/231/fd/3", "/dev/infiniband/uverbs0");
        let details = Details::new(fake.root());
        let mut source = OpenerSource::new(fake.root(), Arc::new(Mutex::new(details)));
        let mut got = Vec::new();
        source.poll(&Wants::default(), &mut |input| got.push(input));
        assert!(got.is_empty());
        let wants = Wants {
            openers: true,
            ..Wants::default()
        };
        source.poll(&wants, &mut |input| got.push(input));
        let [Input::Openers(sample)] = &got[..] else {
            panic!("{got:?}");
        };
        assert_eq!(
            sample.found,
            [Opener {
                device: "mlx5_0".into(),
                pid: 231,
                user: Some(0),
                comm: Some("py\\x1bthon3".into()),
                workload: Some("slurm 12.0".into()),
                libraries: Some(vec!["libnvshmem_host.so.3".into()]),
            }]
        );
    }
}
