//! The way of a QP: from a hint in a slot, over functions that are found and may be probed, to a QP that is
//! probed. Only this file makes the last, so no step can be left out.

use super::{
    arrays::SlotQp,
    attacher::{Attacher, MOST_FUNCTIONS, NotAttached},
    failures::{Failures, ONE},
    monotonic,
    owners::Owners,
    probed::{Full, Party},
    questions::{HELD_NS, Questions},
    silent::rest_ns,
    target::{ProbePoint, Target, Unfit},
    turns::ROUND_NS,
};
use rdmatop_base::order::Ordered as _;
use rdmatop_model::cause::{CauseId, Concerns, Obstacle};

/// How often to try a QP that cannot be probed yet, one look after another, before it is tried at a lower
/// rate.
const TRIES: u32 = 10;
/// What is done about a program that could not be read.
const AGAIN: &str = "it is asked again, after a longer time each time";

/// Says how far a QP has come on the way to its probes.
pub(super) enum Stage {
    /// Its functions are looked for from this time on, ns, after so many tries for which it was too early.
    Waits {
        tries: u32,
        until_ns: u64,
    },
    Attached(Attached),
    /// It cannot be probed, or has been destroyed.
    Over,
}

impl Default for Stage {
    fn default() -> Self {
        Self::Waits {
            tries: 0,
            until_ns: 0,
        }
    }
}

impl Stage {
    /// Ends the way of a QP that is destroyed, or begins it anew.
    pub(super) fn leave(&mut self, next: Self, attacher: &mut Attacher, now_ns: u64) {
        if let Self::Attached(of) = std::mem::replace(self, next) {
            attacher.probed.release(&of.points, of.party, now_ns);
        }
    }

    /// Whether a QP's functions are still looked for.
    pub(super) const fn is_undecided(&self) -> bool {
        matches!(self, Self::Waits { .. })
    }

    fn until(until_ns: u64) -> Self {
        Self::Waits { tries: 0, until_ns }
    }
}

/// Holds what a QP needs to come from one stage to the next.
pub(super) struct Means {
    pub(super) questions: Questions,
    pub(super) attacher: Attacher,
    pub(super) failures: Failures,
}

impl Means {
    /// `passes`: a later try may succeed.
    fn fails(&mut self, hint: &Hint, why: String, remedy: &'static str, passes: bool) {
        self.refuse(hint, Obstacle::new(CauseId::NotProbed, why, remedy), passes);
    }

    fn refuse(&mut self, hint: &Hint, obstacle: Obstacle, passes: bool) {
        let pid = hint.qp.owner.pid;
        // All QPs of a process fail for the same reason, so one line reports them.
        let what = format!("Not counted: work requests of process {pid}");
        let cause = obstacle.takes(what, Concerns::Host);
        if self.failures.add(pid, hint.party.user, cause.clone(), passes) {
            log::warn!(what = cause.what.as_str(), qp = hint.qp.number, why = cause.why.as_str(); "refused");
        }
    }
}

/// A QP whose functions are to be found.
pub(super) struct Hint {
    pub(super) qp: SlotQp,
    pub(super) handle: u64,
    pub(super) party: Party,
    pub(super) tries: u32,
}

/// A QP whose functions are probed.
pub(super) struct Attached {
    points: Vec<ProbePoint>,
    party: Party,
    /// When the last of them was probed, ns.
    pub(super) since_ns: u64,
    pub(super) sends_are_seen: bool,
}

impl Hint {
    /// Leads a QP as far as it comes. `replace` removes probes for single processes at a place, before it is
    /// probed for all.
    pub(super) fn advance(
        &self,
        means: &mut Means,
        owners: &mut Owners,
        replace: impl FnMut(&mut Attacher, &ProbePoint),
    ) -> Result<Attached, Stage> {
        let mut target = self.judge(means)?;
        self.admit(&mut target, means, owners)?;
        self.attach(target, means, replace)
    }

    /// Finds the functions that the QP's program posts with.
    fn judge(&self, means: &mut Means) -> Result<Target, Stage> {
        let (party, tries) = (self.party, self.tries);
        if let Some(until_ns) = means.questions.rests(party.process) {
            return Err(Stage::Waits { tries, until_ns });
        }
        let (found, is_late) = means.questions.functions(self, &means.attacher);
        if is_late && !matches!(found, Ok(_) | Err(Unfit::Silent)) {
            let why = "its memory takes more than a second to answer, so others come first";
            means.fails(self, why.into(), "", true);
        }
        match found {
            Ok(target) => Ok(target),
            Err(Unfit::NotYet(_)) if tries < TRIES => Err(Stage::Waits {
                tries: tries + 1,
                until_ns: 0,
            }),
            Err(Unfit::NotYet(why)) => {
                means.fails(self, why, AGAIN, true);
                Err(Stage::Waits {
                    tries: tries.saturating_add(1),
                    until_ns: monotonic() + rest_ns(tries - TRIES),
                })
            }
            Err(Unfit::Silent) => {
                let why = "its memory does not answer: a page or the lock of it keeps who reads it waiting";
                means.fails(self, why.into(), AGAIN, true);
                let until_ns = means.questions.was_late(party.process);
                Err(Stage::Waits { tries, until_ns })
            }
            Err(Unfit::Never(why)) => {
                means.fails(self, why, "", false);
                Err(Stage::Over)
            }
        }
    }

    /// Asks whether there is room for probes on the QP's functions, and whether nothing forbids to attach
    /// them now.
    fn admit(&self, target: &mut Target, means: &mut Means, owners: &mut Owners) -> Result<(), Stage> {
        let probed = &mut means.attacher.probed;
        let points = &mut target.points;
        // What is probed is taken first, so that it does not make room for the others.
        points.order_by_key(|(point, _)| !probed.has(point));
        if let Err(full) = probed.has_room(self.party, points.iter().map(|(point, _)| point)) {
            return Err(self.no_room(full, means));
        }
        let is_new = points.iter().any(|(point, _)| !probed.has(point));
        if is_new && means.questions.a_lock_is_held(owners) {
            return Err(Stage::until(monotonic() + HELD_NS));
        }
        if points.iter().any(|(point, _)| probed.is_leaving(point)) {
            return Err(Stage::until(monotonic() + ROUND_NS));
        }
        Ok(())
    }

    /// Probes the QP's functions.
    fn attach(
        &self,
        target: Target,
        means: &mut Means,
        mut replace: impl FnMut(&mut Attacher, &ProbePoint),
    ) -> Result<Attached, Stage> {
        let party = self.party;
        let mut attached = Attached {
            points: Vec::with_capacity(target.points.len()),
            party,
            since_ns: 0,
            sends_are_seen: target.sends_are_seen,
        };
        for (point, file) in target.points {
            let attacher = &mut means.attacher;
            let since = if let Some(since_ns) = attacher.share(&point, party) {
                Ok(since_ns)
            } else {
                if point.process.is_none() {
                    replace(attacher, &point);
                }
                attacher.probe(point, file, party)
            };
            match since {
                Ok(since_ns) => {
                    attached.since_ns = attached.since_ns.max(since_ns);
                    attached.points.push(point);
                }
                Err(why) => {
                    attacher.probed.release(&attached.points, party, monotonic());
                    return Err(match why {
                        NotAttached::Full(full) => self.no_room(full, means),
                        NotAttached::Refused(obstacle) => {
                            means.refuse(self, obstacle, false);
                            Stage::Over
                        }
                    });
                }
            }
        }
        if !attached.sends_are_seen {
            let why = "some of its ibv_wr_* calls share a function or are not in its library's file";
            means.fails(self, why.into(), "", false);
        }
        Ok(attached)
    }

    /// What fits may change with each QP that is destroyed.
    fn no_room(&self, full: Full, means: &mut Means) -> Stage {
        let (who, share) = match full {
            Full::Process => ("its", MOST_FUNCTIONS / 4),
            Full::User => ("its user's", MOST_FUNCTIONS / 2),
            Full::All => ("all", MOST_FUNCTIONS),
        };
        let why = format!("{who} queue pairs may use {share} functions, and those of one more do not fit");
        means.fails(self, why, ONE, true);
        Stage::until(monotonic() + HELD_NS)
    }
}

impl Attached {
    /// Whether one of its probes and one at this place would both count a call.
    pub(super) fn meets(&self, place: &ProbePoint) -> bool {
        self.points.iter().any(|point| point.meets(place))
    }
}
