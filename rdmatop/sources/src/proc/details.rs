//! Reads details of processes in threads, so that a process that cannot be read delays no other.
//!
//! Each thread has a [`DetailReader`], which answers within bounded time. At most two read the processes of
//! one user, and repeated readings get a small share of the time. Users whose processes were late come last.
//! A process that did not answer is asked again later, and named until it answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::basic::ProcKey;
use super::detail::{Part, ProcDetail};
use super::detail_reader::{DetailReader, Miss, Reading, Why};
use super::late::{self, Late, Waits};
use crate::{
    clock::now,
    execs,
    readers::{Readers, Work},
    root::Root,
    uprobes::is_left_alone,
};
use rdmatop_base::order::{Gather as _, Ordered as _};
use rdmatop_model::cause::Cause;

const SECOND: u64 = 1_000_000_000;

/// The largest number of threads that read, all together and for one user.
const MOST: usize = 8;
const OF_USER: usize = 2;
/// After this time without an answer another thread is started for the other processes.
const BEHIND: Duration = Duration::from_millis(50);
/// A process that did not answer is asked again after `REST` ns, and then after twice as long each time, up
/// to `LONGEST_REST`.
const REST: u64 = 30 * SECOND;
const LONGEST_REST: u64 = 300 * SECOND;
/// For how long the processes of one user may be read repeatedly, ns. The credit grows by one part in `SHARE`
/// of the time that passes.
const CREDIT: i64 = SECOND.cast_signed();
const SHARE: u64 = 50;
/// How many late processes of searches are remembered.
const REMEMBERED: usize = 256;

/// Which kind of source asked for the details.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asker {
    /// The rows of processes, which want a late answer, too.
    Rows,
    /// A search, which goes on without a late answer.
    Search,
}

/// A question.
#[derive(Clone, Debug)]
pub struct Ask {
    /// About which process.
    pub process: ProcKey,
    /// The process's user.
    pub user: Option<u32>,
    /// The process's name, safe to print.
    pub name: String,
    /// What is wanted.
    pub parts: Vec<Part>,
}

/// A reading for a thread.
struct Job {
    key: (ProcKey, Asker),
    user: Option<u32>,
    parts: Vec<Part>,
}

struct Answer {
    job: Job,
    reading: Reading,
    took_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The process is not read before this time.
    Waits(u64),
    /// The process has been read since this time.
    Read(u64),
    Done,
}

#[derive(Debug)]
struct Task {
    ask: Ask,
    asked_ns: u64,
    state: State,
    /// Why it is not read although it could be.
    waits: Waits,
    /// The process was asked for before.
    repeats: bool,
    /// It was asked for again while it was read: that reading may be of the program before.
    is_stale: bool,
    miss: Option<Miss>,
    /// Readings in a row without an answer.
    tries: u32,
    answer: Option<ProcDetail>,
}

#[derive(Clone, Copy, Debug)]
struct User {
    credit_ns: i64,
    at_ns: u64,
    reading: usize,
}

impl User {
    fn new(at_ns: u64) -> Self {
        Self {
            credit_ns: CREDIT,
            at_ns,
            reading: 0,
        }
    }

    fn may_repeat(&mut self, now_ns: u64) -> bool {
        let more = now_ns.saturating_sub(self.at_ns) / SHARE;
        self.at_ns = now_ns;
        self.credit_ns = self.credit_ns.saturating_add_unsigned(more).min(CREDIT);
        self.credit_ns > 0
    }
}

/// The details of processes that are being read, and of those that were late.
pub struct Details {
    readers: Readers<Job, Answer>,
    tasks: BTreeMap<(ProcKey, Asker), Task>,
    users: BTreeMap<Option<u32>, User>,
    /// There is no thread, and none could be started.
    refused: bool,
    /// Nobody gets a command line or an environment.
    mask: bool,
}

impl Details {
    /// Reads under `root`.
    pub fn new(root: Root) -> Self {
        Self::through(move || {
            let mut reader = DetailReader::new(root.clone());
            Box::new(move |process, user, parts| reader.read(process, user, parts))
        })
    }

    /// As [`Self::new`], but command lines and environments are not read: nobody gets them.
    pub fn masked(root: Root) -> Self {
        Self {
            mask: true,
            ..Self::new(root)
        }
    }

    /// Reads by what `make_work` makes for each thread.
    fn through(
        make_work: impl Fn() -> Box<dyn FnMut(ProcKey, Option<u32>, &[Part]) -> Reading + Send>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let make_work = move || -> Work<Job, Answer> {
            let mut read = make_work();
            Box::new(move |job| {
                let begun_ns = now().mono_ns;
                let mut reading = read(job.key.0, job.user, &job.parts);
                reading.detail.read_ns = begun_ns;
                Answer {
                    job,
                    reading,
                    took_ns: now().mono_ns.saturating_sub(begun_ns),
                }
            })
        };
        Self {
            readers: Readers::new(MOST, 0, make_work),
            tasks: BTreeMap::new(),
            users: BTreeMap::new(),
            refused: false,
            mask: false,
        }
    }

    /// Asks for details of a process. A row asks again after an exec: what is known or being read then is of
    /// the program before it.
    pub fn ask(&mut self, asker: Asker, mut ask: Ask) {
        if self.mask {
            // Neither command lines nor environments: these hold a user's words.
            ask.parts
                .retain(|part| matches!(part, Part::Libraries | Part::VerbsFiles));
        }
        let now_ns = now().mono_ns;
        let key = (ask.process, asker);
        let Some(task) = self.tasks.get_mut(&key) else {
            let task = Task {
                ask,
                asked_ns: now_ns,
                state: State::Waits(now_ns),
                waits: Waits::Turn,
                repeats: false,
                is_stale: false,
                miss: None,
                tries: 0,
                answer: None,
            };
            self.tasks.insert(key, task);
            return;
        };
        task.ask = ask;
        task.answer = None;
        match task.state {
            State::Done => {
                (task.state, task.repeats) = (State::Waits(now_ns), true);
                task.asked_ns = now_ns;
            }
            // It waits for its turn or rests: asking again does not bring it forward.
            State::Waits(_) => {}
            State::Read(_) => task.is_stale = asker == Asker::Rows,
        }
    }

    /// Waits, `patience` at most, for answers to what was asked since `since_ns`; not for processes that were
    /// late before, or wait for another reason than their turn.
    pub fn settle(&mut self, since_ns: u64, patience: Duration) {
        let end = Instant::now() + patience;
        loop {
            self.collect();
            self.push_due();
            let is_awaited = |task: &Task| match task.state {
                State::Done => false,
                State::Read(_) => task.asked_ns >= since_ns && task.tries == 0,
                State::Waits(_) => task.asked_ns >= since_ns && task.tries == 0 && task.waits == Waits::Turn,
            };
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.tasks.values().any(is_awaited) {
                break;
            }
            if self.refused {
                break;
            }
            self.readers.wait_for(1, left.min(BEHIND));
            if self.collect() == 0 {
                self.grow();
            }
        }
        self.users.retain(|_, user| {
            let _ = user.may_repeat(now().mono_ns);
            user.reading > 0 || user.credit_ns < CREDIT
        });
    }

    /// Asks for these details, and returns those that arrive within `patience`.
    pub fn search(&mut self, asks: Vec<Ask>, patience: Duration) -> BTreeMap<ProcKey, ProcDetail> {
        let since_ns = now().mono_ns;
        let wanted: BTreeSet<ProcKey> = asks.iter().map(|ask| ask.process).gather();
        for ask in asks {
            self.ask(Asker::Search, ask);
        }
        self.settle(since_ns, patience);
        let mut found = self.take(Asker::Search);
        found.retain(|process, _| wanted.contains(process));
        let mut late = 0;
        self.tasks.retain(|(_, asker), task| {
            let is_late = task.tries > 0 && late < REMEMBERED;
            late += usize::from(*asker == Asker::Search && is_late);
            *asker == Asker::Rows || is_late || matches!(task.state, State::Read(_))
        });
        found
    }

    /// The answers since the last call.
    pub fn take(&mut self, asker: Asker) -> BTreeMap<ProcKey, ProcDetail> {
        let tasks = self.tasks.iter_mut().filter(|((_, of), _)| *of == asker);
        tasks
            .filter_map(|((process, _), task)| Some((*process, task.answer.take()?)))
            .gather()
    }

    /// Forgets rows of processes that are gone.
    pub fn keep(&mut self, lives: impl Fn(ProcKey) -> bool) {
        self.tasks
            .retain(|(process, asker), _| *asker == Asker::Search || lives(*process));
    }

    /// Gives what is due to threads; processes of users that had late ones come last.
    fn push_due(&mut self) {
        let now_ns = now().mono_ns;
        if self.tasks.values().all(|task| task.state == State::Done) {
            return;
        }
        if self.readers.threads() == 0 {
            self.grow();
        }
        let mut reading: usize = self.users.values().map(|user| user.reading).sum();
        let late: BTreeSet<Option<u32>> = self
            .tasks
            .values()
            .filter(|task| task.tries > 0)
            .map(|task| task.ask.user)
            .gather();
        let mut due: Vec<_> = self
            .tasks
            .iter_mut()
            .filter(|(_, task)| matches!(task.state, State::Waits(from) if from <= now_ns))
            .collect();
        due.order_by_key(|(_, task)| (late.contains(&task.ask.user), task.tries, task.asked_ns));
        for (key, task) in due {
            if reading >= self.readers.threads() {
                break;
            }
            let name = task.ask.user;
            let user = self.users.entry(name).or_insert_with(|| User::new(now_ns));
            task.waits = if task.repeats && !user.may_repeat(now_ns) {
                Waits::Repeats
            } else if late.contains(&name) && is_left_alone(name) {
                Waits::Hung
            } else {
                Waits::Turn
            };
            if task.waits != Waits::Turn || user.reading >= OF_USER {
                continue;
            }
            user.reading += 1;
            reading += 1;
            task.state = State::Read(now_ns);
            self.readers.push(Job {
                key: *key,
                user: name,
                parts: task.ask.parts.clone(),
            });
        }
    }

    /// Starts another thread if there is none, or if all are reading and a task waits.
    fn grow(&mut self) {
        let reading: usize = self.users.values().map(|user| user.reading).sum();
        let waits = |task: &Task| matches!(task.state, State::Waits(_));
        let threads = self.readers.threads();
        if threads == 0 || (reading >= threads && self.tasks.values().any(waits)) {
            self.refused = !self.readers.grow() && threads == 0;
        }
    }

    /// Takes the answers that have arrived; returns how many.
    fn collect(&mut self) -> usize {
        let mut count = 0;
        while let Some(answer) = self.readers.answer() {
            count += 1;
            self.answered(answer);
        }
        count
    }

    fn answered(&mut self, answer: Answer) {
        let now_ns = now().mono_ns;
        let (Job { key, user, .. }, reading, took_ns) = (answer.job, answer.reading, answer.took_ns);
        if let Some(user) = self.users.get_mut(&user) {
            user.reading = user.reading.saturating_sub(1);
        }
        let is_late = reading.miss.as_ref().is_some_and(|miss| miss.why != Why::TooLong);
        // The first readings of many new processes leave the credit for reading them again.
        let again = self.tasks.get(&key).is_some_and(|task| task.repeats);
        if let Some(user) = self.users.get_mut(&user).filter(|_| again && !is_late) {
            user.credit_ns = user.credit_ns.saturating_sub_unsigned(took_ns);
        }
        let Some(task) = self.tasks.get_mut(&key) else {
            return;
        };
        if reading.ended {
            self.tasks.remove(&key);
            return;
        }
        if let Some(miss) = &reading.miss {
            log::warn!(pid = key.0.pid, part:? = miss.part, why:? = miss.why, ms = took_ns / 1_000_000; "not read");
        }
        task.miss = reading.miss;
        task.state = if is_late {
            let rest = REST.saturating_mul(1 << task.tries.min(8)).min(LONGEST_REST);
            task.tries = task.tries.saturating_add(1);
            State::Waits(now_ns.saturating_add(rest))
        } else {
            task.tries = 0;
            State::Done
        };
        if std::mem::take(&mut task.is_stale) {
            task.repeats = true;
            if task.state == State::Done {
                task.state = State::Waits(now_ns);
            }
        } else {
            task.answer = Some(reading.detail);
        }
    }

    /// A line for each process that is late, or too long to be read.
    pub fn notes(&self) -> Vec<Cause> {
        let now_ns = now().mono_ns;
        let in_exec = execs::late();
        let mut seen: BTreeSet<u32> = in_exec.iter().map(|late| late.pid).gather();
        let in_exec = in_exec.iter().map(|late| Late {
            pid: late.pid,
            user: Some(late.user),
            name: &late.name,
            parts: &[],
            miss: None,
            waits: Waits::Exec,
        });
        let late = self.tasks.iter().filter_map(|((process, _), task)| {
            let waits_ns = match task.state {
                State::Read(since_ns) => Some(now_ns.saturating_sub(since_ns)),
                State::Waits(from_ns) if from_ns <= now_ns => Some(now_ns.saturating_sub(task.asked_ns)),
                State::Waits(_) | State::Done => None,
            };
            let is_slow = task.miss.is_some() || waits_ns.is_some_and(|ns| ns > late::SLOW);
            (is_slow && seen.insert(process.pid)).then(|| Late {
                pid: process.pid,
                user: task.ask.user,
                name: &task.ask.name,
                parts: &task.ask.parts,
                miss: task.miss.as_ref(),
                waits: if self.refused { Waits::Thread } else { task.waits },
            })
        });
        late::notes(in_exec.chain(late).collect())
    }
}

#[cfg(test)]
mod tests;
