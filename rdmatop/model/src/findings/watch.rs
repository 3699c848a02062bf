//! Hysteresis: symptoms of single snapshots become findings that are raised and cleared.
//!
//! A symptom is raised when, within a window of two and a half raise times of its kind, it was there for the
//! raise time, at once or in several parts: 40 % of the window. A job that exchanges data half of the time,
//! in bursts, must be found, and 40 % leaves room for samples across the ends of bursts. A symptom with a
//! smaller share never becomes a finding. A finding is cleared when its symptom stayed away for the clear
//! time, which is at least one and a half raise times, so that what is left in the window cannot raise it.
//! The next time the symptom begins anew, so a finding is raised at most once per window.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};
use std::{cmp::Reverse, sync::Arc};

use rdmatop_base::order::{Gather as _, Ordered as _};
use rdmatop_base::turns::in_turn;

use super::rules::{self, RuleContext, RuleHistory};
use super::{About, Finding, FindingId, Limits, S, Severity, words};
use crate::cause::{Cause, CauseId, Concerns, Obstacle};
use crate::facts::{Facts, ProcessRow};
use crate::{input::EbpfState, judgement::Judgement};

/// Largest number of findings: the worst are kept, and how many are left out is said.
pub(super) const MAX: usize = 128;
/// Largest number of symptoms that are raised, and of those that are followed and not raised yet.
const FOLLOWED: usize = 4 * MAX;
/// Largest number of either that are about one process: one that makes trouble in hundreds of ways must not
/// hide what others suffer from.
pub(super) const OF_ONE: usize = 16;

/// A finding that begins later than this after the one before is no result of that, ns: QPs give up within
/// minutes after their port or their peer.
const EPISODE_NS: u64 = 300 * S;

/// What begins in the first looks was there before, ns: rules need some of them.
const FIRST_LOOKS_NS: u64 = 10 * S;
/// A finding that may stand for days counts as one that stands once it is so old, ns.
const STANDS_NS: u64 = 3600 * S;

/// Counts what the watch has no place for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Findings beyond the most that are shown.
    pub findings: usize,
    /// Findings of the last snapshot for which there is no place among those that are followed, or raised.
    pub symptoms: usize,
}

impl LeftOut {
    /// A note that says it; `None` where nothing is left out.
    pub fn note(self) -> Option<Cause> {
        let all = [(self.findings, "finding"), (self.symptoms, "symptom")];
        let all = all.into_iter().filter(|(number, _)| *number > 0);
        let all: Vec<String> = all
            .map(|(number, one)| words::count(number as u64, one))
            .collect();
        let why = format!("at most {MAX} findings and {OF_ONE} of one process are kept; users take turns");
        let why = Obstacle::new(CauseId::FindingsLeftOut, why, "");
        (!all.is_empty()).then(|| why.takes(all.join(" and ") + " left out", Concerns::Host))
    }
}

/// A finding was raised or cleared.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The finding holds from now on.
    Raised(Finding),
    /// The finding no longer holds, or has made way for a worse one where there are too many.
    Cleared(Finding),
}

/// A symptom over time.
#[derive(Clone, Debug)]
struct FindingState {
    /// Times within the window in which the symptom was there (from, to), oldest first, ns.
    spans: Vec<(u64, u64)>,
    /// Time of the last snapshot that showed the symptom, ns.
    seen_ns: u64,
    raised: bool,
    finding: Finding,
    holder: Holder,
}

/// Who takes a place with what is found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    /// A port, a device or a kernel module, of which there are few: each finding of one is its own.
    Machine(FindingId, About),
    /// The processes of a user; `None`: nobody knows whose they are.
    User(Option<Arc<str>>),
}

impl Holder {
    /// `row`: of the process, where the symptom is about one that is known.
    fn of(symptom: &Finding, row: Option<&ProcessRow>) -> Self {
        if symptom.about.process.is_some() && row.is_none_or(|row| !row.kernel) {
            return Self::User(row.and_then(|row| row.user.clone()));
        }
        Self::Machine(symptom.id, symptom.about.clone())
    }
}

/// Follows symptoms from snapshot to snapshot.
#[derive(Clone, Debug, Default)]
pub struct FindingTracker {
    limits: Limits,
    states: FindingStates,
    history: RuleHistory,
    /// Times of the first and of the last snapshot, ns.
    began_ns: Option<u64>,
    last_ns: Option<u64>,
    /// Time of the first snapshot for which it was settled whether programs run, ns.
    first_ns: Option<u64>,
    changes: Vec<Change>,
    left_out: LeftOut,
}

impl FindingTracker {
    /// A watch with these limits.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Looks at the next facts and what they mean. Returns what is wrong, in the order of `put_in_order`.
    pub fn look(&mut self, facts: &Facts, judgement: &Judgement) -> Vec<Finding> {
        if !matches!(facts.health.ebpf, EbpfState::Starting) {
            self.first_ns.get_or_insert(facts.mono_ns);
        }
        self.history.look(facts, &self.limits);
        let ctx = RuleContext {
            facts,
            judgement,
            limits: &self.limits,
            history: &self.history,
        };
        let symptoms = rules::all(&ctx);
        self.follow(facts, judgement, symptoms)
    }

    /// Takes the symptoms that the rules name in the next snapshot.
    pub(super) fn follow(
        &mut self,
        facts: &Facts,
        judgement: &Judgement,
        symptoms: Vec<Finding>,
    ) -> Vec<Finding> {
        let now = facts.mono_ns;
        let ctx = RuleContext {
            facts,
            judgement,
            limits: &self.limits,
            history: &self.history,
        };
        let changes = &mut self.changes;
        let mut keys = BTreeSet::new();
        for symptom in symptoms {
            keys.insert((symptom.id, symptom.about.clone()));
            see(&mut self.states, self.last_ns, symptom, &ctx);
        }
        let surplus = without_place(&self.states, &|_, state| !state.raised);
        self.states.retain(|key, _| !surplus.contains(key));
        self.last_ns = Some(now);
        let began = *self.began_ns.get_or_insert(now);
        // `link-flaps` already reports the outages of a link that flaps.
        let flapping: BTreeSet<_> = flapping(&self.states, now);
        self.states.retain(|(id, about), state| {
            let kind = id.kind();
            if flapping.contains(&(about.device, about.port)) && is_outage(*id, about) {
                if state.raised {
                    changes.push(Change::Cleared(state.finding.clone()));
                }
                return false;
            }
            state.forget(now.saturating_sub(kind.window_ns()));
            if state.seen_ns == now {
                return true;
            }
            if !state.raised {
                return !state.spans.is_empty();
            }
            let keep = now.saturating_sub(state.seen_ns) < kind.clear_s * S;
            if !keep {
                changes.push(Change::Cleared(state.finding.clone()));
            }
            keep
        });
        let waits = raise(&mut self.states, now, changes);
        let not_followed = keys.iter().filter(|key| !self.states.contains_key(key)).count();
        // Nobody may take the changes for a long time; the newest ones say most.
        let surplus = self.changes.len().saturating_sub(4 * MAX);
        self.changes.drain(..surplus);
        let mut raised: Vec<&FindingState> = self.states.values().filter(|state| state.raised).collect();
        // The worst stay, and of these the ones of ports and devices, which are the cause of others.
        raised.order_by_key(|state| Reverse(rank_of(&state.finding)));
        let all = raised.len();
        let shown = in_turn(raised, MAX, |state| &state.holder);
        let shown = shown.iter().map(|state| Finding {
            seen_mono_ns: state.seen_ns,
            ..state.finding.clone()
        });
        let mut findings: Vec<Finding> = shown.collect();
        self.left_out = LeftOut {
            findings: all - findings.len(),
            symptoms: not_followed + waits,
        };
        let stands = |found: &Finding| stands(found, began, now);
        put_in_order(&mut findings, stands, |cause, found| {
            is_result(cause, found, &ctx)
        });
        findings
    }

    /// What there was no place for at the last look.
    pub const fn left_out(&self) -> LeftOut {
        self.left_out
    }

    /// For how long rules have looked, ns: since programs were attached, or it was clear that none will be.
    pub fn looked_ns(&self) -> u64 {
        let span = self.first_ns.zip(self.last_ns);
        span.map_or(0, |(first, last)| last.saturating_sub(first))
    }

    /// Findings whose rules have not looked for as long as they need, and for how many seconds they do: those
    /// of their window, and those with which they compare.
    pub fn still_looks(&self) -> Vec<(FindingId, u64)> {
        let limits = &self.limits;
        let needs = |id: FindingId| {
            let compares = match id {
                FindingId::QpLeak => limits.leak_window_s,
                FindingId::LatencyRises => rules::LATENCIES_S,
                FindingId::LinkFlaps => limits.flap_window_s,
                FindingId::MrGrowth => limits.mr_growth_window_s,
                _ => 0,
            };
            compares + id.kind().window_ns() / S
        };
        let all = FindingId::ALL.iter().map(|id| (*id, needs(*id)));
        all.filter(|(_, seconds)| self.looked_ns() / S < *seconds)
            .collect()
    }

    /// What was raised and cleared since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }
}

impl FindingState {
    /// For how long the symptom was there within the window, ns.
    fn held_ns(&self) -> u64 {
        self.spans.iter().map(|(from, to)| to - from).sum()
    }

    /// Notes that the symptom was there. Spans that touch become one.
    fn hold(&mut self, from: u64, to: u64) {
        match self.spans.last_mut() {
            Some(last) if last.1 >= from => last.1 = to,
            _ => self.spans.push((from.min(to), to)),
        }
    }

    /// Drops what was before the window.
    fn forget(&mut self, begin: u64) {
        self.spans.retain(|(_, to)| *to > begin);
        if let Some(first) = self.spans.first_mut() {
            first.0 = first.0.max(begin);
        }
    }
}

type FindingStates = BTreeMap<(FindingId, About), FindingState>;

/// Devices and ports for which this snapshot shows `link-flaps`.
fn flapping(states: &FindingStates, now: u64) -> BTreeSet<(Option<u64>, Option<u32>)> {
    let all = states
        .iter()
        .filter(|((id, _), state)| *id == FindingId::LinkFlaps && state.seen_ns == now);
    all.map(|((_, about), _)| (about.device, about.port)).gather()
}

fn is_outage(id: FindingId, about: &About) -> bool {
    id == FindingId::LinkErrors && about.part.as_deref() == Some(rules::LINK_DOWNED)
}

/// How bad it is. One of a port or a device is the cause of others.
const fn rank_of(found: &Finding) -> (Severity, bool) {
    (found.severity, found.about.process.is_none())
}

/// Which of those that are `in_question` have no place. The worst have one before others, and of equally bad
/// ones those that are raised. Users take turns, so that the processes of one take no place that others need.
fn without_place(
    states: &FindingStates,
    in_question: &dyn Fn(FindingId, &FindingState) -> bool,
) -> BTreeSet<(FindingId, About)> {
    let all = states.iter().filter(|((id, _), state)| in_question(*id, state));
    let mut all: Vec<_> = all.collect();
    all.order_by_key(|(_, state)| {
        let found = &state.finding;
        (Reverse(rank_of(found)), !state.raised, found.since_mono_ns)
    });
    let mut of_process: BTreeMap<Option<u64>, usize> = BTreeMap::new();
    let may = all.iter().filter(|((_, about), _)| {
        let places = of_process.entry(about.process).or_default();
        *places += 1;
        about.process.is_none() || *places <= OF_ONE
    });
    let placed = in_turn(may, FOLLOWED, |(_, state)| &state.holder);
    let placed: BTreeSet<_> = placed.iter().map(|(key, _)| *key).gather();
    let others = all.iter().filter(|(key, _)| !placed.contains(key));
    others.map(|(key, _)| (*key).clone()).gather()
}

/// Raises the symptoms that this snapshot shows and that were there for long enough. What is raised makes way
/// for them alone, and never for what may never be. Returns the number of those for which there is no place.
fn raise(states: &mut FindingStates, now: u64, changes: &mut Vec<Change>) -> usize {
    let is_due = |id: FindingId, state: &FindingState| {
        !state.raised && state.seen_ns == now && state.held_ns() >= id.kind().raise_s * S
    };
    let surplus = without_place(states, &|id, state| state.raised || is_due(id, state));
    let mut waits = 0;
    states.retain(|key, state| {
        let has_place = !surplus.contains(key);
        if has_place && is_due(key.0, state) {
            state.raised = true;
            changes.push(Change::Raised(state.finding.clone()));
        } else if !has_place && state.raised {
            changes.push(Change::Cleared(state.finding.clone()));
            return false;
        }
        waits += usize::from(!has_place);
        true
    });
    waits
}

/// Whether a finding of a kind that stands for days does: it was there when rdmatop began to look, or for an
/// hour. A link that lost three quarters of its rate a minute ago is news.
pub(super) fn stands(found: &Finding, began: u64, now: u64) -> bool {
    let since = found.since_mono_ns;
    found.id.stands() && (since <= began + FIRST_LOOKS_NS || now.saturating_sub(since) >= STANDS_NS)
}

/// Whether a finding of a process may follow from one of a port or a device: that makes it suffer, or the
/// process uses the device.
fn is_result(cause: &Finding, found: &Finding, ctx: &RuleContext<'_>) -> bool {
    let Some(uid) = found.about.process.filter(|_| cause.about.process.is_none()) else {
        return false;
    };
    let uses = |name| ctx.process(uid).is_some_and(|row| row.devices.contains(name));
    cause.victims.contains(&uid) || cause.device.as_ref().is_some_and(uses)
}

/// Puts in front what a reader should see first: the worst; of equally bad ones what does not stand for days;
/// of these the newest episode; of one episode the cause, which is about a port or a device rather than about
/// a process, and began first. A cause counts as new as its newest result, so it is before that however old
/// it is. The order lasts until a finding begins, ends, becomes better or worse, concerns other processes, or
/// has stood for an hour.
fn put_in_order(
    findings: &mut Vec<Finding>,
    stands: impl Fn(&Finding) -> bool,
    is_result: impl Fn(&Finding, &Finding) -> bool,
) {
    let rank = |found: &Finding| (Reverse(found.severity), stands(found));
    let news = |cause: &Finding| {
        let all = findings.iter();
        let results = all.filter(|found| rank(found) == rank(cause) && is_result(cause, found));
        let newest = results.map(|found| found.since_mono_ns).max();
        newest.map_or(cause.since_mono_ns, |newest| newest.max(cause.since_mono_ns))
    };
    let keys: Vec<_> = findings.iter().map(|found| (rank(found), news(found))).collect();
    let mut all: Vec<_> = keys.into_iter().zip(findings.drain(..)).collect();
    all.order_by_key(|((rank, news), _)| (*rank, Reverse(*news)));
    for episode in
        all.chunk_by_mut(|((newer, at), _), ((older, before), _)| newer == older && at - before <= EPISODE_NS)
    {
        episode.order_by_key(|(_, found)| (found.about.process.is_some(), found.since_mono_ns));
    }
    findings.extend(all.into_iter().map(|(_, found)| found));
}

/// Notes that a snapshot shows a symptom.
fn see(states: &mut FindingStates, last_ns: Option<u64>, symptom: Finding, ctx: &RuleContext<'_>) {
    let now = ctx.facts.mono_ns;
    // The last snapshot did not show the symptom: a new span begins no earlier, whatever the symptom says.
    let begin = last_ns.map_or(symptom.since_mono_ns, |last| last.max(symptom.since_mono_ns));
    // One about a port names the first process that suffers from it.
    let process = symptom.about.process.or(symptom.victims.first().copied());
    let row = process.and_then(|uid| ctx.process(uid));
    let holder = Holder::of(&symptom, row);
    match states.entry((symptom.id, symptom.about.clone())) {
        Entry::Occupied(mut entry) => {
            let state = entry.get_mut();
            // Whose a process is may become known later.
            state.holder = holder;
            let worse = symptom.severity > state.finding.severity;
            // Two symptoms with one key in one snapshot: the worse one gives the words, both the victims.
            let again = state.seen_ns == now;
            if again && !worse {
                add(&mut state.finding.victims, symptom.victims);
                return;
            }
            if !again {
                let since_last = last_ns.filter(|last| *last == state.seen_ns);
                state.hold(since_last.unwrap_or(begin), now);
            }
            let before = again.then(|| std::mem::take(&mut state.finding.victims));
            // An unraised symptom began with its first span in the window, or earlier if it says so.
            let first = state.spans.first().map_or(now, |span| span.0);
            let since = if state.raised {
                state.finding.since_mono_ns
            } else {
                first
            }
            .min(symptom.since_mono_ns);
            state.finding = named(symptom, row, ctx);
            state.finding.since_mono_ns = since;
            add(&mut state.finding.victims, before.unwrap_or_default());
            state.seen_ns = now;
        }
        Entry::Vacant(entry) => {
            entry.insert(FindingState {
                spans: vec![(begin.min(now), now)],
                seen_ns: now,
                raised: false,
                finding: named(symptom, row, ctx),
                holder,
            });
        }
    }
}

fn add(victims: &mut Vec<u64>, more: Vec<u64>) {
    for uid in more {
        if !victims.contains(&uid) {
            victims.push(uid);
        }
    }
}

/// Names whom a symptom concerns.
fn named(symptom: Finding, process: Option<&ProcessRow>, ctx: &RuleContext<'_>) -> Finding {
    let device = symptom.about.device.and_then(|uid| ctx.device(uid));
    Finding {
        pid: process.and_then(|row| row.pid),
        comm: process.map(|row| row.comm.clone()),
        device: device.map(|row| row.name.clone()),
        ..symptom
    }
}
