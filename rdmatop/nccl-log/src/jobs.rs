//! The communicators of a log, and the jobs that they belong to.
//!
//! A rank's number means something only within its communicator: a job has a communicator of all ranks and
//! others of parts of them, and a log may hold several jobs. All ranks of a communicator print the same
//! `commId` (since 2.16); a part prints its parent's, and a color. Before that, communicators are told apart
//! only by their number of ranks. When one rank completes its communicator, all have: `ncclCommInitRank`
//! returns when the ring between them is closed.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{fact::Member, line::Writer, process::Process};
use rdmatop_base::order::{Gather as _, Ordered as _};

/// What tells one communicator from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CommunicatorKey {
    Id(u64),
    /// Communicator of which it is a part if that is known, number of parts made before, color, number of
    /// ranks.
    Part(Option<u64>, u64, i64, u32),
    /// Number of ranks; and the number of the host if one host has all of them.
    Unnamed(u32, Option<usize>),
}

/// Ranks that know each other: the largest of the communicators that share processes makes the job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Job {
    /// The number of ranks in the job.
    pub ranks: u32,
    /// Ranks that have joined: all of them or none.
    pub ranks_joined: u32,
    /// Whether the log has the beginning of a communicator.
    #[serde(skip)]
    pub started: bool,
    /// Number of ranks of which the log has lines.
    pub ranks_seen: usize,
    /// The ranks of which it has none; empty if they are more than a line can name.
    #[serde(skip)]
    pub missing: Vec<u32>,
    /// Hosts of which the log has lines.
    pub hosts: BTreeSet<String>,
    /// Number of hosts by NCCL's count; null if it does not say.
    pub nodes: Option<u32>,
    /// Communicators that began and are not complete, the largest first, of a job whose own one is.
    pub unfinished: Vec<Unfinished>,
    /// See [`Process::inputs`].
    #[serde(skip)]
    inputs: InputSpans,
}

type InputSpans = BTreeMap<u32, (u64, u64)>;

/// A communicator that began and is not complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unfinished {
    /// The number of its ranks.
    pub ranks: u32,
    /// The ranks of which the log has the beginning.
    pub began: BTreeSet<u32>,
}

impl Job {
    /// Whether all ranks are on one host; `None` if not known.
    pub fn is_local(&self) -> Option<bool> {
        match self.nodes {
            Some(nodes) => Some(nodes == 1 && self.hosts.len() == 1),
            None if self.ranks == 1 => Some(true),
            None if self.hosts.len() > 1 => Some(false),
            None => self.is_seen_on_one_host().then_some(true),
        }
    }

    /// Whether the log has lines of all ranks, and all are on one host.
    pub fn is_seen_on_one_host(&self) -> bool {
        let named = self.hosts.len() == 1 && self.hosts.first().is_some_and(|host| !host.is_empty());
        named && self.ranks_seen >= self.ranks as usize
    }

    /// Whether its communicator is complete.
    pub fn is_complete(&self) -> bool {
        self.ranks_joined > 0
    }

    /// Whether the other job is this one, started anew: of as many ranks on the same hosts, and in each log
    /// that has both, all of its lines come after all of this one's.
    fn is_followed_by(&self, other: &Self) -> bool {
        let mut both = self
            .inputs
            .iter()
            .filter_map(|(input, span)| Some((span.1, other.inputs.get(input)?.0)))
            .peekable();
        self.ranks == other.ranks
            && self.hosts.is_subset(&other.hosts)
            && both.peek().is_some()
            && both.all(|(last, first)| last < first)
    }
}

/// How many ranks that are missing are named.
const MAX_MISSING: u32 = 4;
/// How many communicators of one size are looked at for one without an id.
const MAX_CANDIDATES: usize = 16;

#[derive(Default)]
struct Communicator {
    complete: bool,
    ranks: u32,
    seen: BTreeSet<u32>,
    hosts: BTreeSet<String>,
    /// Ranks that began it.
    began: BTreeSet<u32>,
    nodes: Option<u32>,
    /// Of the processes of which it is the first.
    inputs: InputSpans,
    /// Index of another communicator of the same job. Those that share a process lead to the same root.
    root: usize,
}

/// The jobs of all processes, the largest first.
pub(super) fn group(processes: &BTreeMap<Writer, Process>) -> Vec<Job> {
    let mut all = Communicators::default();
    let mut hosts: BTreeMap<&str, Vec<&Process>> = BTreeMap::new();
    for (writer, process) in processes {
        hosts.entry(&writer.host).or_default().push(process);
    }
    for (number, (host, processes)) in hosts.iter().enumerate() {
        // Two jobs of one host each may have the same ranks; without `commId` only the host differs.
        let mut unnamed: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for member in processes.iter().flat_map(|process| &process.members) {
            if member.id.is_none() && member.part_of.is_none() {
                unnamed.entry(member.ranks).or_default().insert(member.rank);
            }
        }
        unnamed.retain(|ranks, seen| seen.len() == *ranks as usize && !host.is_empty());
        for process in processes {
            let ids = process
                .members
                .iter()
                .filter_map(|member| Some((member.comm, member.id?)));
            let ids: BTreeMap<u64, u64> = ids.gather();
            let mut first = None;
            for (member, is_repeated) in process.members.iter().zip(repeated(&process.members)) {
                let alone = unnamed.contains_key(&member.ranks).then_some(number);
                let at = all.add(key(member, &ids, alone), member, is_repeated, host);
                if first.is_none() {
                    merge_inputs(&mut all.list[at].inputs, &process.inputs);
                }
                all.join(*first.get_or_insert(at), at);
            }
        }
    }
    all.jobs()
}

/// Whether the process began another communicator of as many ranks, as the same rank, after each of these: it
/// waits for this one no more, as after an abort.
fn repeated(members: &[Member]) -> Vec<bool> {
    let mut later = BTreeSet::new();
    let from_last = members.iter().rev().map(|member| {
        let place = (member.rank, member.ranks);
        let is_repeated = later.contains(&place);
        if member.started {
            later.insert(place);
        }
        is_repeated
    });
    let mut all: Vec<bool> = from_last.collect();
    all.reverse();
    all
}

/// Drops what a job that was started anew had not completed before.
fn without_earlier_attempts(jobs: Vec<Job>) -> Vec<Job> {
    let last = |job: &Job| job.inputs.values().map(|span| span.1).max();
    let mut newest: BTreeMap<(u32, &str), &Job> = BTreeMap::new();
    for job in &jobs {
        for host in &job.hosts {
            let newest = newest.entry((job.ranks, host)).or_insert(job);
            if last(newest) < last(job) {
                *newest = job;
            }
        }
    }
    let is_followed = |job: &Job| {
        let host = job.hosts.first();
        let newest = host.and_then(|host| newest.get(&(job.ranks, host.as_str())));
        newest.is_some_and(|newest| job.is_followed_by(newest))
    };
    let followed: Vec<bool> = jobs.iter().map(is_followed).collect();
    let mut followed = followed.into_iter();
    let mut left = jobs;
    left.retain_mut(|job| {
        let is_followed = followed.next() == Some(true);
        if is_followed {
            job.unfinished.clear();
        }
        !is_followed || job.is_complete()
    });
    left
}

fn merge_inputs(to: &mut InputSpans, by: &InputSpans) {
    for (input, (first, last)) in by {
        let span = to.entry(*input).or_insert((*first, *last));
        *span = (span.0.min(*first), span.1.max(*last));
    }
}

/// The ranks that were not seen, if they are few.
fn missing(ranks: u32, seen: &BTreeSet<u32>) -> Vec<u32> {
    let all = u32::try_from(seen.len()).map_or(0, |seen| ranks.saturating_sub(seen));
    if !(1..=MAX_MISSING).contains(&all) {
        return Vec::new();
    }
    (0..ranks).filter(|rank| !seen.contains(rank)).collect()
}

fn key(member: &Member, ids: &BTreeMap<u64, u64>, alone: Option<usize>) -> CommunicatorKey {
    match (member.id, member.part_of) {
        (Some(id), _) => CommunicatorKey::Id(id),
        (None, Some((parent, count, color))) => {
            CommunicatorKey::Part(ids.get(&parent).copied(), count, color, member.ranks)
        }
        (None, None) => CommunicatorKey::Unnamed(member.ranks, alone),
    }
}

#[derive(Default)]
struct Communicators {
    known: BTreeMap<CommunicatorKey, usize>,
    list: Vec<Communicator>,
}

impl Communicators {
    fn add(&mut self, key: CommunicatorKey, member: &Member, is_repeated: bool, host: &str) -> usize {
        let next = self.list.len();
        let at = *self.known.entry(key).or_insert(next);
        if at == next {
            self.list.push(Communicator {
                ranks: member.ranks,
                root: next,
                ..Communicator::default()
            });
        }
        let one = &mut self.list[at];
        if member.started && !is_repeated {
            one.began.insert(member.rank);
        }
        one.complete |= member.complete;
        one.nodes = one.nodes.max(member.nodes);
        one.seen.insert(member.rank);
        if !one.hosts.contains(host) {
            one.hosts.insert(host.to_owned());
        }
        at
    }

    fn root(&mut self, mut at: usize) -> usize {
        while self.list[at].root != at {
            // Halves the way for the next search.
            let above = self.list[self.list[at].root].root;
            self.list[at].root = above;
            at = above;
        }
        at
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.list[a.max(b)].root = a.min(b);
    }

    /// If communicators have ids, one without an id belongs to a log that lost that line. It is taken for one
    /// with as many ranks, and on the same host if there are several.
    fn merge_unnamed(&mut self) {
        let mut named: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let mut unnamed = Vec::new();
        for (key, at) in &self.known {
            match key {
                CommunicatorKey::Id(_) => {
                    let of_size = named.entry(self.list[*at].ranks).or_default();
                    if of_size.len() < MAX_CANDIDATES {
                        of_size.push(*at);
                    }
                }
                CommunicatorKey::Unnamed(ranks, _) => unnamed.push((*ranks, *at)),
                CommunicatorKey::Part(..) => {}
            }
        }
        for (ranks, at) in unnamed {
            let Some(of_size) = named.get(&ranks) else {
                continue;
            };
            let shares = |to: &&usize| !self.list[**to].hosts.is_disjoint(&self.list[at].hosts);
            let to = *of_size.iter().find(shares).unwrap_or(&of_size[0]);
            let lost = &mut self.list[at];
            let (complete, nodes) = (lost.complete, lost.nodes);
            let (seen, began) = (std::mem::take(&mut lost.seen), std::mem::take(&mut lost.began));
            let one = &mut self.list[to];
            one.complete |= complete;
            one.seen.extend(seen);
            one.began.extend(began);
            one.nodes = one.nodes.max(nodes);
            self.join(to, at);
        }
    }

    fn jobs(mut self) -> Vec<Job> {
        self.merge_unnamed();
        let mut jobs: BTreeMap<usize, Job> = BTreeMap::new();
        for at in 0..self.list.len() {
            let root = self.root(at);
            let one = std::mem::take(&mut self.list[at]);
            // Others find their root through this place, so it keeps its root.
            self.list[at].root = one.root;
            let job = jobs.entry(root).or_default();
            job.nodes = job.nodes.max(one.nodes);
            let began = !one.began.is_empty();
            if (one.ranks, one.complete, began, one.seen.len())
                > (job.ranks, job.is_complete(), job.started, job.ranks_seen)
            {
                job.ranks = one.ranks;
                job.ranks_joined = if one.complete { one.ranks } else { 0 };
                job.started = began;
                job.ranks_seen = one.seen.len();
                job.missing = missing(one.ranks, &one.seen);
            }
            job.hosts.extend(one.hosts);
            merge_inputs(&mut job.inputs, &one.inputs);
            if !one.complete && !one.began.is_empty() {
                job.unfinished.push(Unfinished {
                    ranks: one.ranks,
                    began: one.began,
                });
            }
        }
        let mut jobs = without_earlier_attempts(jobs.into_values().collect());
        for job in &mut jobs {
            if !job.is_complete() {
                job.unfinished.clear();
            }
            job.unfinished.order_by_key(|one| std::cmp::Reverse(one.ranks));
        }
        jobs.order_by(|a, b| b.ranks.cmp(&a.ranks).then_with(|| a.hosts.cmp(&b.hosts)));
        jobs
    }
}
