//! The thread that finds out how the QPs in slots post, and has their functions probed.

use rdmatop_base::{order::Gather as _, text};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Mutex,
        mpsc::{self, RecvTimeoutError, SyncSender},
    },
    time::Duration,
};

use super::{
    LOOK, Ready, Shared, UserOptions,
    arrays::{Arrays, SlotQp},
    attacher::{Attacher, Programs},
    failures::Failures,
    guard::Guard,
    locked, monotonic, off,
    owners::Owners,
    price::Sample,
    questions::Questions,
    stages::{Attached, Hint, Means, Stage},
    turns::ROUND_NS,
};
use rdmatop_model::cause::{CauseId, Obstacle};
use rdmatop_sources::{limits::start_thread, privileges::Raised, uprobes::user};

/// Ends the thread when dropped, without waiting for it.
pub(super) struct Worker {
    _alive: SyncSender<()>,
}

impl Worker {
    /// Starts the thread. If that fails, nothing is probed, and the report says so.
    pub(super) fn start(
        options: UserOptions,
        programs: Programs,
        sample: Sample,
        arrays: Arrays,
        shared: Arc<Mutex<Shared>>,
    ) -> Self {
        let (alive, ended) = mpsc::sync_channel(0);
        let reports = Arc::clone(&shared);
        let mut work = Work {
            options,
            arrays,
            shared,
            known: HashMap::new(),
            guard: Guard::new(options.limit),
            rejected: (0, 0),
            owners: Owners::default(),
            means: Means {
                questions: Questions::new(options.ends),
                attacher: Attacher::new(programs, sample, options.pid),
                failures: Failures::default(),
            },
        };
        let run = move || {
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                if !work.round() {
                    break;
                }
            }
        };
        if let Err(obstacle) = start_thread("uprobes", run) {
            locked(&reports).report.off = Some(off(obstacle));
        }
        Self { _alive: alive }
    }
}

/// What the thread knows about a QP.
#[derive(Default)]
struct Known {
    stage: Stage,
    /// Some of its posts are in no count, because its probes were replaced.
    has_gap: bool,
    /// Sends and receives that the provider has rejected so far.
    rejected: (u64, u64),
    /// How often its calls have hit a probe so far.
    hits: u64,
}

struct Work {
    options: UserOptions,
    arrays: Arrays,
    shared: Arc<Mutex<Shared>>,
    /// What is known of each QP, by number and birth.
    known: HashMap<(u32, u64), Known>,
    guard: Guard,
    /// Rejected sends and receives of QPs that no longer have a slot.
    rejected: (u64, u64),
    /// Processes with living QPs, including those that are not to be probed.
    owners: Owners,
    means: Means,
}

fn add(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
    (a.0.saturating_add(b.0), a.1.saturating_add(b.1))
}

impl Work {
    /// Looks at all QPs once. Returns false when the thread has to end.
    fn round(&mut self) -> bool {
        let qps = self.arrays.qps_with_slots(self.options.pid, &mut self.owners);
        let now_ns = monotonic();
        self.forget(&qps, now_ns);
        let mut hints = Vec::new();
        for qp in qps {
            let counts = self.arrays.counts(&qp);
            let known = self.known.entry(qp.key()).or_default();
            known.rejected = (counts.tx_rejected, counts.rx_rejected);
            self.guard
                .called(qp.owner.pid, counts.hits.saturating_sub(known.hits));
            known.hits = counts.hits;
            // Skip a destroyed QP: the memory of its program no longer describes it.
            if let Stage::Waits { tries, until_ns } = known.stage
                && until_ns <= now_ns
                && qp.lives
            {
                hints.push(Hint {
                    qp,
                    handle: counts.handle,
                    party: self.owners.party(qp.owner.pid, user),
                    tries,
                });
            }
        }
        let turns = &mut self.means.questions.turns;
        turns.order(&mut hints, now_ns, |hint| hint.party);
        let begun_ns = monotonic();
        for hint in hints {
            let since_ns = monotonic();
            if since_ns.saturating_sub(begun_ns) > ROUND_NS {
                break;
            }
            let (qp, party) = (hint.qp, hint.party);
            if !self.means.questions.turns.may_ask(party.user, since_ns) {
                continue;
            }
            // Opening a file that another process has mapped requires CAP_SYS_ADMIN, as attaching does.
            let rights = Raised::for_attach();
            let attached = self.advance(&hint);
            drop(rights);
            let took_ns = monotonic().saturating_sub(since_ns);
            self.means.questions.spent(party, took_ns);
            let stage = match attached {
                Ok(attached) => self.attached(&qp, attached),
                Err(stage) => stage,
            };
            self.known.entry(qp.key()).or_default().stage = stage;
        }
        self.means.attacher.tidy(now_ns);
        self.account()
    }

    /// Forgets QPs without a slot, the probes of destroyed ones, what is said of processes that have ended,
    /// and of QPs that wait no more.
    fn forget(&mut self, qps: &[SlotQp], now_ns: u64) {
        let attacher = &mut self.means.attacher;
        let there: BTreeSet<(u32, u64)> = qps.iter().map(SlotQp::key).gather();
        self.known.retain(|key, qp| {
            let stays = there.contains(key);
            if !stays {
                self.rejected = add(self.rejected, qp.rejected);
                qp.stage.leave(Stage::Over, attacher, now_ns);
            }
            stays
        });
        for qp in qps.iter().filter(|qp| !qp.lives) {
            if let Some(known) = self.known.get_mut(&qp.key()) {
                known.stage.leave(Stage::Over, attacher, now_ns);
            }
        }
        locked(&self.shared)
            .ready
            .retain(|number, ready| there.contains(&(*number, ready.born_ns)));
        let living = || qps.iter().filter(|qp| qp.lives);
        let undecided = |qp: &&SlotQp| {
            let known = self.known.get(&qp.key());
            known.is_none_or(|known| known.stage.is_undecided())
        };
        let waits: BTreeSet<u32> = living().filter(undecided).map(|qp| qp.owner.pid).gather();
        let alive: BTreeSet<u32> = living().map(|qp| qp.owner.pid).gather();
        self.means
            .failures
            .retain(|pid, passes| if passes { &waits } else { &alive }.contains(&pid));
        self.means
            .questions
            .forget(&self.owners, waits.is_empty(), now_ns);
    }

    /// Leads a QP as far as it comes.
    fn advance(&mut self, hint: &Hint) -> Result<Attached, Stage> {
        let Self {
            means,
            owners,
            known,
            arrays,
            shared,
            ..
        } = self;
        // A program that hit a probe for its process and one for all would count twice, so this waits until
        // the former are removed. What their QPs post meanwhile is in no count, and they are looked at anew.
        hint.advance(means, owners, |attacher, place| {
            let gone = attacher.probed.singles(place);
            if gone.is_empty() {
                return;
            }
            let now_ns = monotonic();
            for (key, qp) in known.iter_mut() {
                if matches!(&qp.stage, Stage::Attached(attached) if attached.meets(place)) {
                    qp.stage.leave(Stage::default(), attacher, now_ns);
                    qp.has_gap = true;
                    locked(shared).ready.remove(&key.0);
                    arrays.publish(*key, now_ns);
                }
            }
            log::info!(point:? = place; "replaced");
            drop(gone);
        })
    }

    /// Lets the counts of a QP pass.
    fn attached(&self, qp: &SlotQp, attached: Attached) -> Stage {
        if attached.sends_are_seen {
            self.arrays.publish(qp.key(), attached.since_ns);
        }
        let ready = Ready {
            born_ns: qp.born_ns,
            since_ns: attached.since_ns,
            sends_are_seen: attached.sends_are_seen,
            has_gap: self.known.get(&qp.key()).is_some_and(|known| known.has_gap),
        };
        locked(&self.shared).ready.insert(qp.number, ready);
        Stage::Attached(attached)
    }

    /// Updates the report. Returns false if the probes cost too much and must be removed.
    fn account(&mut self) -> bool {
        let sum = self.arrays.hits();
        let attacher = &self.means.attacher;
        self.guard.hit_ns = attacher.hit_ns;
        let here = self.known.values().map(|qp| qp.rejected);
        let (sends, receives) = here.fold(self.rejected, add);
        let too_costly = self.guard.exceeds(sum.hits, Duration::from_nanos(monotonic()));
        let mut shared = locked(&self.shared);
        let ready = shared.ready.len() as u64;
        let report = &mut shared.report;
        report.functions = attacher.probed.len() as u64;
        report.qps = ready;
        report.hits = sum.hits;
        report.hits_per_s = self.guard.speed();
        report.hit_ns = self.guard.hit_ns;
        report.cores = self.guard.cores();
        report.unmatched = sum.unmatched;
        report.missed = sum.missed;
        report.rejected_sends = sends;
        report.rejected_receives = receives;
        report.failures = self.means.failures.causes();
        report.failures.extend(self.means.questions.held());
        if too_costly {
            let why = format!(
                "the probes took {:.0}% of a core from the programs, and may take {:.0}%{}",
                self.guard.cores().unwrap_or(0.0) * 100.0,
                self.options.limit * 100.0,
                self.guard.most().map_or_else(String::new, |(pid, share)| {
                    format!(
                        "; of the calls for known queue pairs {:.0}% were those of process {pid}",
                        share * 100.0
                    )
                })
            );
            let remedy = "`--uprobe-limit` takes a higher percentage, `--uprobes=PID` probes one process";
            report.off = Some(off(Obstacle::new(
                CauseId::TooCostly,
                text::sanitize(why.as_bytes()),
                remedy,
            )));
            report.functions = 0;
            report.qps = 0;
            report.hits_per_s = None;
            report.cores = None;
            shared.ready.clear();
        }
        !too_costly
    }
}
