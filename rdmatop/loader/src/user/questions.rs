//! Asks what can keep the thread waiting: a program's memory for its functions, and every process for the
//! lock of its memory. Notes how long each took, and whom not to ask for a while.

use super::{
    attacher::Attacher,
    monotonic, off,
    owners::Owners,
    probed::{Party, Process},
    silent::Silent,
    stages::Hint,
    target::{Finder, Target, Unfit},
    turns::Turns,
};
use rdmatop_model::cause::{Cause, CauseId, Obstacle};
use rdmatop_sources::uprobes::{keeps_a_reader, user};

/// How long not to ask again whether a process's memory lock is free, ns: the question takes seconds.
pub(super) const HELD_NS: u64 = 10_000_000_000;

/// The lock of a process's memory is held, or it is not known whether.
struct Held {
    since_ns: u64,
    /// Whose lock, if that is known.
    pid: Option<u32>,
    cause: Cause,
}

#[derive(Default)]
pub(super) struct Questions {
    finder: Finder,
    /// Find the functions that return completions, too.
    ends: bool,
    /// Whose QPs are looked at next.
    pub(super) turns: Turns,
    /// Processes whose memory did not answer in time.
    silent: Silent,
    /// Why nothing can be probed at present, and when that was found, ns.
    held: Option<Held>,
}

impl Questions {
    pub(super) fn new(ends: bool) -> Self {
        Self {
            ends,
            ..Self::default()
        }
    }

    /// Until when a process is not asked, ns, because it did not answer: each question to it would take the
    /// whole time limit.
    pub(super) fn rests(&mut self, process: Process) -> Option<u64> {
        self.silent.rests(process, monotonic(), keeps_a_reader)
    }

    /// Finds the functions that a QP's program posts with, and says whether others were late because of that.
    pub(super) fn functions(&mut self, hint: &Hint, attacher: &Attacher) -> (Result<Target, Unfit>, bool) {
        let known = |file: &_, place: &_| attacher.known(file, place);
        let found = self.finder.of(hint, self.ends, known);
        let took_ns = self.finder.took_ns;
        let is_late = self.turns.took(hint.party, took_ns, monotonic());
        if !matches!(found, Err(Unfit::Silent)) {
            self.silent.answered(hint.party.process);
        }
        (found, is_late)
    }

    /// Notes that a process did not answer. Returns when to ask it again, ns.
    pub(super) fn was_late(&mut self, process: Process) -> u64 {
        self.silent.was_late(process, monotonic())
    }

    /// Whether no probe may be attached at present, because some call holds the memory lock of a process that
    /// may have mapped the same library. The kernel would wait for that lock without a way to interrupt it,
    /// and every fork(2) of the machine would wait too. A process that takes the lock after this question is
    /// not noticed.
    pub(super) fn a_lock_is_held(&mut self, owners: &mut Owners) -> bool {
        let now_ns = monotonic();
        let held = self.held.as_ref();
        if held.is_some_and(|held| now_ns.saturating_sub(held.since_ns) < HELD_NS) {
            return true;
        }
        let turns = &mut self.turns;
        let spent = |of, took_ns| turns.spent(of, took_ns);
        let (pid, why) = match self.finder.locked(owners.parties(user), spent) {
            Ok(None) => {
                self.held = None;
                return false;
            }
            Ok(Some(pid)) => {
                let why = format!("a call of process {pid} holds the lock of its memory");
                (Some(pid), why)
            }
            Err(why) => (None, why),
        };
        let remedy = "the locks are asked for again after ten seconds";
        self.held = Some(Held {
            since_ns: now_ns,
            pid,
            cause: off(Obstacle::new(CauseId::NotProbed, why, remedy)),
        });
        true
    }

    /// Charges a process with the time that one of its QPs took, without that of questions, which is charged
    /// already: that for a lock to whose lock it is.
    pub(super) fn spent(&mut self, party: Party, all_ns: u64) {
        let asked_ns = std::mem::take(&mut self.finder.took_ns);
        self.turns.spent(party, all_ns.saturating_sub(asked_ns));
    }

    /// Forgets what concerns processes that have ended, and the lock if no QP waits for it.
    pub(super) fn forget(&mut self, owners: &Owners, none_waits: bool, now_ns: u64) {
        self.silent.retain(|process| owners.lives(process));
        self.held.take_if(|held| {
            let is_gone = held.pid.is_some_and(|pid| !owners.has(pid));
            // No QP has asked again, so those that waited are gone.
            let is_old = now_ns.saturating_sub(held.since_ns) > 2 * HELD_NS;
            is_gone || is_old || none_waits
        });
        self.turns.retain(&owners.known(), now_ns);
    }

    /// Why nothing can be probed at present.
    pub(super) fn held(&self) -> Option<Cause> {
        self.held.as_ref().map(|held| held.cause.clone())
    }
}
