//! From probes to memory, and back: what the thread does about what `Calibrator` decides.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem::size_of,
    ptr::{read_volatile, write_volatile},
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
};

use rdmatop_common::counters::{USER_SAMPLES, UserQp, UserSample};

use super::{
    super::{
        calibrator::{Calibrator, Code, Counted, Handover, Reads, Samples},
        followed::Handed,
        hooks::Function,
        locked,
        reader::Place,
    },
    Mapped, Spot, Tenant, Verdict, Work, monotonic,
};
use crate::{
    model::cause::{Cause, CauseId, Concerns, Obstacle},
    source::uprobes::{Helper, Running},
};

/// What the thread knows of QPs that are read from memory, or may be.
pub(super) struct InMemory {
    calibrator: Calibrator,
    samples: Mapped<UserSample>,
    /// QPs that sweeps read, by number and birth.
    read: BTreeSet<(u32, u64)>,
    /// Counts of QPs that cannot be read any more, until probes count them again.
    carried: HashMap<(u32, u64), u64>,
    /// The function with which each QP posts sends; it outlives the probes.
    codes: HashMap<(u32, u64), Code>,
    /// Functions whose providers keep no count, with the cause that is reported.
    refused: BTreeMap<Code, Cause>,
    /// Processes that are not read any more.
    given_up: BTreeMap<u32, Cause>,
    /// Of processes that may be read soon.
    helpers: BTreeMap<u32, Arc<Helper>>,
}

impl InMemory {
    pub(super) fn new(samples: Mapped<UserSample>) -> Self {
        Self {
            calibrator: Calibrator::new(USER_SAMPLES),
            samples,
            read: BTreeSet::new(),
            carried: HashMap::new(),
            codes: HashMap::new(),
            refused: BTreeMap::new(),
            given_up: BTreeMap::new(),
            helpers: BTreeMap::new(),
        }
    }

    fn helper(&mut self, pid: u32) -> Option<Arc<Helper>> {
        if let Some(helper) = self.helpers.get(&pid) {
            return Some(Arc::clone(helper));
        }
        let helper = Arc::new(Helper::reading(pid)?);
        self.helpers.insert(pid, Arc::clone(&helper));
        Some(helper)
    }

    /// Leaves a process to its probes whose memory cannot be read.
    fn leave(&mut self, pid: u32) {
        self.helpers.remove(&pid);
        self.calibrator.give_up(pid);
        self.given_up.entry(pid).or_insert_with(|| {
            let what = format!("Not read from memory: posts of process {pid}");
            let why = "its memory cannot be read, or does not answer; probes stay";
            Obstacle::new(CauseId::NotInMemory, why, "").takes(what, Concerns::Host)
        });
    }

    /// QPs that are sampled.
    pub(super) fn searching(&self) -> u64 {
        self.calibrator.searching()
    }

    /// Why processes keep their probes.
    pub(super) fn causes(&self) -> impl Iterator<Item = &Cause> {
        self.refused.values().chain(self.given_up.values())
    }
}

/// The two maps through which the kernel side is asked.
struct Asks<'a> {
    samples: &'a Mapped<UserSample>,
    qps: &'a Mapped<UserQp>,
}

impl Samples for Asks<'_> {
    fn ask(&mut self, number: u32, place: u32) {
        let (sample, user) = (self.samples.at(place), self.qps.at(number));
        // SAFETY: inside the mappings; the kernel side writes to the sample only after it has found that it is asked.
        unsafe {
            write_volatile(&raw mut (*sample).done, 0);
            fence(Ordering::Release);
            write_volatile(&raw mut (*user).ask, u64::from(place) + 1);
        }
    }

    fn withdraw(&mut self, number: u32) {
        // SAFETY: inside the mapping; the word is written whole.
        unsafe { write_volatile(&raw mut (*self.qps.at(number)).ask, 0) };
    }

    fn take(&mut self, place: u32) -> Option<UserSample> {
        // SAFETY: inside the mapping; the kernel side writes the word whole, and last.
        if unsafe { read_volatile(&raw const (*self.samples.at(place)).done) } == 0 {
            return None;
        }
        fence(Ordering::Acquire);
        Some(self.samples.read(place))
    }
}

impl Work {
    /// Sends of a QP that the kernel side has counted.
    pub(super) fn posted(&self, number: u32) -> u64 {
        // SAFETY: inside the mapping; the kernel side writes the word whole.
        unsafe { read_volatile(&raw const (*self.slots.at(number)).tx_posted) }
    }

    /// By how much the count that was read from memory is ahead of what probes have counted, for a QP that they count again.
    pub(super) fn carried(&mut self, qp: Tenant, posted: u64) -> Option<u64> {
        let count = self.memory.as_mut()?.carried.remove(&(qp.number, qp.born_ns))?;
        Some(count.saturating_sub(posted))
    }

    /// Lets probes count again what cannot be read any more.
    pub(super) fn take_back(&mut self) {
        let Some(memory) = &mut self.memory else { return };
        let given_up = std::mem::take(&mut locked(&self.shared).given_up);
        for qp in given_up {
            let key = (qp.number, qp.born_ns);
            memory.read.remove(&key);
            memory.calibrator.give_up(qp.pid);
            memory.carried.insert(key, qp.count);
            let what = format!("Not read from memory any more: posts of process {}", qp.pid);
            let cause = Obstacle::new(CauseId::NotInMemory, qp.why, "").takes(what, Concerns::Host);
            memory.given_up.entry(qp.pid).or_insert(cause);
            if let Some(judged) = self.judged.get_mut(&key) {
                judged.verdict = Verdict::Tried(0);
            }
        }
    }

    /// Looks for words that count, and hands over the processes that have them.
    pub(super) fn calibrate(&mut self, tenants: &[Tenant], now_ns: u64) {
        let Some(mut memory) = self.memory.take() else {
            return;
        };
        let there: BTreeSet<_> = tenants.iter().map(|qp| (qp.number, qp.born_ns)).collect();
        let pids: BTreeSet<u32> = tenants.iter().filter(|qp| qp.lives).map(|qp| qp.pid).collect();
        memory.read.retain(|key| there.contains(key));
        memory.carried.retain(|key, _| there.contains(key));
        memory.codes.retain(|key, _| there.contains(key));
        memory.given_up.retain(|pid, _| pids.contains(pid));
        memory.helpers.retain(|pid, _| pids.contains(pid));
        let living = tenants.iter().filter(|qp| qp.lives);
        let counted: Vec<Counted> = living.filter_map(|qp| self.counted(qp, &mut memory)).collect();
        let used: BTreeSet<Code> = memory.codes.values().copied().collect();
        memory.refused.retain(|code, _| used.contains(code));
        for qp in tenants.iter().filter(|qp| qp.lives) {
            self.stay_with_batches(qp, &mut memory);
        }
        let mut asks = Asks {
            samples: &memory.samples,
            qps: &self.qps,
        };
        let handovers = memory.calibrator.look(&counted, now_ns, &mut asks);
        for qp in &counted {
            if let Some(code) = qp.code.filter(|code| memory.calibrator.is_refused(code)) {
                memory.refused.entry(code).or_insert_with(|| {
                    let what = format!("Not read from memory: posts of process {}", qp.pid);
                    let why = "this provider keeps no running count in its QP struct; probes stay";
                    Obstacle::new(CauseId::NotInMemory, why, "").takes(what, Concerns::Host)
                });
            }
        }
        for handover in handovers {
            self.hand_over(&handover, &mut memory);
        }
        self.memory = Some(memory);
    }

    /// Leaves a process to its probes whose QPs have the `ibv_wr_*` calls. A provider may count while a batch is built (rxe, EFA, hns), and
    /// rxe does not take back what is aborted or refused. Without probes nobody would see that.
    fn stay_with_batches(&self, qp: &Tenant, memory: &mut InMemory) {
        let key = (qp.number, qp.born_ns);
        let uses = self.judged.get(&key).map(|judged| judged.uses.as_slice());
        let has_batches = |spot: &Spot| spot.function == Function::Complete;
        if !uses.unwrap_or_default().iter().any(has_batches) {
            return;
        }
        memory.calibrator.give_up(qp.pid);
        memory.given_up.entry(qp.pid).or_insert_with(|| {
            let what = format!("Not read from memory: posts of process {}", qp.pid);
            let why = "its QPs have the ibv_wr_* calls: a provider may count what such a call takes back; probes stay";
            Obstacle::new(CauseId::NotInMemory, why, "").takes(what, Concerns::Host)
        });
    }

    /// A QP as the calibrator sees it; `None` for one that is read already, or never counted.
    fn counted(&self, qp: &Tenant, memory: &mut InMemory) -> Option<Counted> {
        let key = (qp.number, qp.born_ns);
        let judged = self.judged.get(&key)?;
        if memory.read.contains(&key) || matches!(judged.verdict, Verdict::Unfit) {
            return None;
        }
        let is_ready = matches!(judged.verdict, Verdict::Ready);
        let sends = judged
            .uses
            .iter()
            .find(|spot| spot.function == Function::PostSend);
        let seen = locked(&self.shared)
            .ready
            .get(&qp.number)
            .is_some_and(|ready| ready.sends_are_seen);
        let code = sends
            .filter(|_| is_ready && seen)
            .map(|spot| (spot.file, spot.offset));
        if let Some(code) = code {
            memory.codes.insert(key, code);
        }
        Some(Counted {
            number: qp.number,
            born_ns: qp.born_ns,
            pid: qp.pid,
            code,
            beside: self.qps.read(qp.number),
            posted: self.posted(qp.number),
        })
    }

    /// Reads a process from now on, if all of its QPs can be, and takes its probes away.
    fn hand_over(&mut self, handover: &Handover, memory: &mut InMemory) {
        let Some(process) = memory.helper(handover.pid) else {
            return memory.leave(handover.pid);
        };
        let mut handed = Vec::with_capacity(handover.qps.len());
        for reads in &handover.qps {
            let Some(qp) = self.first_reading(reads, &process, handover.pid) else {
                return;
            };
            handed.push(qp);
        }
        for (qp, reads) in handed.iter_mut().zip(&handover.qps) {
            let posted = self.posted(reads.number);
            let Some(word) = qp.place.read() else {
                return memory.leave(handover.pid);
            };
            qp.at_ns = monotonic();
            // The probes count a post after the provider has: what they have counted is in the word.
            if qp.running.read(word, qp.at_ns).is_none_or(|count| count < posted) {
                if let Some(code) = memory.codes.get(&(reads.number, reads.born_ns)) {
                    memory.calibrator.refuse(*code);
                }
                return;
            }
        }
        let mut asks = Asks {
            samples: &memory.samples,
            qps: &self.qps,
        };
        memory.helpers.remove(&handover.pid);
        for qp in &handed {
            memory.calibrator.is_read(qp.number, qp.born_ns, &mut asks);
            memory.read.insert((qp.number, qp.born_ns));
            // SAFETY: inside the mapping; the word is written whole. At the QP's destroy the kernel side reads what is there.
            unsafe { write_volatile(&raw mut (*self.qps.at(qp.number)).word_at, qp.place.address) };
        }
        fence(Ordering::Release);
        locked(&self.shared).handed.extend(handed);
        let now_ns = monotonic();
        for reads in &handover.qps {
            if let Some(judged) = self.judged.get_mut(&(reads.number, reads.born_ns)) {
                self.probed.release(&std::mem::take(&mut judged.uses), now_ns);
            }
        }
        let gone = self.probed.of_process(handover.pid);
        self.unprobe(gone);
    }

    /// Where a QP is read, and a count that belongs to a value of its word.
    fn first_reading(&self, reads: &Reads, process: &Arc<Helper>, pid: u32) -> Option<Handed<Helper>> {
        let user = self.qps.read(reads.number);
        let place = Place {
            process: Arc::clone(process),
            address: user.handle.checked_add((reads.word * size_of::<u32>()) as u64)?,
        };
        let running = match reads.running {
            Some(running) => running,
            None => self.while_nobody_posts(reads.number, &place)?,
        };
        Some(Handed {
            number: reads.number,
            born_ns: reads.born_ns,
            pid,
            place,
            running,
            at_ns: 0,
            resets: reads.resets,
        })
    }

    /// Count and word of a QP to which nothing is posted meanwhile; `None` where something is.
    fn while_nobody_posts(&self, number: u32, place: &Place<Helper>) -> Option<Running> {
        let user = self.qps.at(number);
        // SAFETY: inside the mapping; the kernel side writes each word whole. Never more calls have left than have entered, so if those
        // that had left before are as many as have entered now, nobody is inside now.
        let (left, entered) = unsafe {
            let left = read_volatile(&raw const (*user).left);
            fence(Ordering::Acquire);
            (left, read_volatile(&raw const (*user).entered))
        };
        fence(Ordering::Acquire);
        let posted = self.posted(number);
        let word = place.read()?;
        fence(Ordering::Acquire);
        // SAFETY: as above.
        let after = unsafe { read_volatile(&raw const (*user).entered) };
        (left == entered && entered == after).then(|| Running::new(posted, word))
    }
}
