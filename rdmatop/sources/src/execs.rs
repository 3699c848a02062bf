//! Reads files in /proc that keep the reader waiting while their process is in execve(2).
//!
//! Until the new program is loaded the call holds `signal->exec_update_lock` (`begin_new_exec`, fs/exec.c),
//! and the process decides how long that takes: there it waits for what it has asked of a file system
//! (`exit_aio`), which may be its user's own. `environ` and `maps` take that lock on many kernels; `stat` and
//! the links to files and namespaces do on some, such as Linux 6.18.44, and not on 6.12 and 7.2. Only the end
//! of the reader's whole process ends the wait.
//!
//! So a thread reads these, and is left behind when it hangs. The process is asked again when that thread has
//! come back. What a process looks like decides only how long it is waited for, because that is its own
//! doing.

use std::{
    any::Any,
    collections::BTreeMap,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel},
    },
    thread::{self, Thread},
    time::{Duration, Instant},
};

use crate::{
    open_files::real_user,
    root::{self, Root},
};
use rdmatop_base::order::Gather as _;

/// How long a process may take to answer that looks as if it were in execve(2), and any other one, such as
/// one with very many files.
const PATIENCE: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(5);
/// A process that does not answer for longer is named.
const SLOW: Duration = if cfg!(test) { Duration::ZERO } else { PATIENCE };
/// So many threads may be left behind in processes of one user; then no more of his that look as if they were
/// in execve(2) are asked, and with twice as many none of his at all.
const OF_USER: usize = 8;
/// The largest number of threads that are left behind, all together. Then nobody is asked.
const MOST: usize = 64;
/// Answers that wait for the caller, who is woken when half as many do and at the end: to wake him for each
/// costs more than to read `stat`.
const AHEAD: usize = 64;
/// For how long he sleeps at most while none waits.
const NAP: Duration = Duration::from_millis(10);
/// The stack of a thread in address space.
const STACK: usize = 512 << 10;

static KNOWN: Mutex<Known> = Mutex::new(Known {
    runs: 0,
    late: BTreeMap::new(),
});

struct Known {
    /// Number of the last run of a thread.
    runs: u64,
    /// By directory in /proc: [`MOST`] and few more at most.
    late: BTreeMap<PathBuf, Late>,
}

/// A process that does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Late {
    pub(crate) pid: u32,
    pub(crate) user: u32,
    /// Safe to print.
    pub(crate) name: String,
    since: Instant,
    /// The run that was left behind in it.
    run: u64,
}

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Known {
    fn add(&mut self, root: &Root, pid: u32, run: u64) {
        let dir = dir(root, pid);
        self.late.entry(dir).or_insert_with(|| Late {
            pid,
            user: real_user(root, pid),
            name: root.comm(pid),
            since: Instant::now(),
            run,
        });
    }
}

fn dir(root: &Root, pid: u32) -> PathBuf {
    root.proc(pid.to_string())
}

/// Whether a process looks as if it were in execve(2) after it has given up its old program and before the
/// new one is loaded: then it has memory and no code in it. A program can be made that looks so while it
/// runs.
fn looks_in_exec(dir: &Path) -> bool {
    let statm = root::read(&dir.join("statm"), 256).unwrap_or_default();
    let statm = String::from_utf8_lossy(&statm);
    let mut pages = statm.split_whitespace();
    pages.next().is_some_and(|size| size != "0") && pages.nth(2) == Some("0")
}

/// Whether a process is not to be asked.
fn is_left_alone(root: &Root, pid: u32) -> bool {
    if known().late.is_empty() {
        return false;
    }
    let dir = dir(root, pid);
    // Nobody waits for one that has ended.
    if !dir.exists() {
        return false;
    }
    let all = {
        let known = known();
        if known.late.contains_key(&dir) {
            return true;
        }
        known.late.len()
    };
    // Whose it is can take long to say, and does not matter yet.
    if all < OF_USER {
        return false;
    }
    let user = real_user(root, pid);
    let of_user = known().late.values().filter(|late| late.user == user).count();
    all >= MOST || of_user >= 2 * OF_USER || of_user >= OF_USER && looks_in_exec(&dir)
}

/// The processes that have not answered for longer than a moment.
pub(crate) fn late() -> Vec<Late> {
    let known = known();
    let late = known.late.values().filter(|late| late.since.elapsed() >= SLOW);
    late.cloned().collect()
}

/// A thread that reads; at its end nothing of it is left behind.
struct Run {
    number: u64,
    /// Waits for what this thread reads.
    caller: Thread,
}

impl Drop for Run {
    fn drop(&mut self) {
        known().late.retain(|_, late| late.run != self.number);
        self.caller.unpark();
    }
}

/// Waits for the next answer of a thread that wakes this one seldom.
fn next<R>(answers: &Receiver<R>, longest: Duration) -> Result<R, RecvTimeoutError> {
    let begun = Instant::now();
    loop {
        match answers.try_recv() {
            Ok(answer) => return Ok(answer),
            Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
            Err(TryRecvError::Empty) if begun.elapsed() < longest => thread::park_timeout(NAP),
            Err(TryRecvError::Empty) => return Err(RecvTimeoutError::Timeout),
        }
    }
}

/// Waits for what a process answers, no longer than `longest`.
fn wait<R>(answers: &Receiver<R>, root: &Root, pid: u32, longest: Duration) -> Result<R, RecvTimeoutError> {
    let begun = Instant::now();
    loop {
        let got = next(answers, PATIENCE);
        let is_timeout = matches!(got, Err(RecvTimeoutError::Timeout));
        if !is_timeout || begun.elapsed() >= longest || looks_in_exec(&dir(root, pid)) {
            return got;
        }
    }
}

/// Does `work` for each of these processes in turn, and hands what it returns to `take`: `None` of a process
/// that does not answer. `Break` ends it.
pub(crate) fn each<R: Send + 'static>(
    root: &Root,
    pids: impl IntoIterator<Item = u32>,
    work: impl Fn(&Root, u32) -> R + Send + Sync + 'static,
    mut take: impl FnMut(u32, Option<R>) -> ControlFlow<()>,
) {
    let work = move |root: &Root, pid| -> Answer { Box::new(work(root, pid)) };
    let mut take = |pid, answer: Option<Answer>| {
        let answer = answer.and_then(|answer| answer.downcast().ok());
        take(pid, answer.map(|answer| *answer))
    };
    let work: Arc<Ask> = Arc::new(work);
    each_answer(root, pids.into_iter().gather(), &work, &mut take);
}

/// What `work` returned: of any type, so that threads and channels are compiled once.
type Answer = Box<dyn Any + Send>;
type Ask = dyn Fn(&Root, u32) -> Answer + Send + Sync;

/// Does what [`each`] does, for answers of any type.
fn each_answer(
    root: &Root,
    pids: Vec<u32>,
    work: &Arc<Ask>,
    take: &mut dyn FnMut(u32, Option<Answer>) -> ControlFlow<()>,
) {
    let pids = Arc::new(pids);
    let ask = |root: &Root, pid, work: &Ask| (!is_left_alone(root, pid)).then(|| work(root, pid));
    let mut done = 0;
    while done < pids.len() {
        let (sender, answers) = sync_channel(AHEAD);
        let stop = Arc::new(AtomicBool::new(false));
        let run = {
            let mut known = known();
            known.runs += 1;
            known.runs
        };
        let reader = {
            let (root, pids, work, stop) = (
                root.clone(),
                Arc::clone(&pids),
                Arc::clone(work),
                Arc::clone(&stop),
            );
            let own = Run {
                number: run,
                caller: thread::current(),
            };
            move || {
                // Dropped after the sender: whoever may still send can be noted as late.
                let (own, sender) = (own, sender);
                for (nth, pid) in pids.iter().skip(done).enumerate() {
                    if stop.load(Ordering::Relaxed) || sender.send(ask(&root, *pid, &*work)).is_err() {
                        return;
                    }
                    if nth % (AHEAD / 2) == AHEAD / 2 - 1 {
                        own.caller.unpark();
                    }
                }
            }
        };
        let thread = thread::Builder::new().name("reader".to_owned()).stack_size(STACK);
        let is_started = thread.spawn(reader).is_ok();
        let mut is_ended = false;
        for pid in pids.iter().skip(done) {
            done += 1;
            let got = if is_started {
                let longest = if is_ended { PATIENCE } else { LONGEST };
                wait(&answers, root, *pid, longest)
            } else {
                // Without a thread only who does not look as if he kept it waiting is asked.
                let waits = looks_in_exec(&dir(root, *pid));
                Ok((!waits).then(|| ask(root, *pid, &**work)).flatten())
            };
            let got = got.or_else(|_| {
                let mut known = known();
                answers.try_recv().inspect_err(|why| {
                    if *why == TryRecvError::Empty {
                        log::warn!(pid; "left behind, probably in execve(2)");
                        known.add(root, *pid, run);
                    }
                })
            });
            let is_late = got.is_err();
            // The thread may be ahead of what was taken, and be kept waiting there.
            is_ended = is_ended || take(*pid, got.unwrap_or(None)).is_break();
            stop.store(is_ended, Ordering::Relaxed);
            if is_late || is_ended && !is_started {
                break;
            }
        }
        if is_ended {
            return;
        }
    }
}

/// Does `work` for one process; `None` if that does not answer.
pub fn one<R: Send + 'static>(
    root: &Root,
    pid: u32,
    work: impl Fn(&Root, u32) -> R + Send + Sync + 'static,
) -> Option<R> {
    let mut out = None;
    each(root, [pid], work, |_, answer| {
        out = answer;
        ControlFlow::Continue(())
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fake::Fake,
        proc::{ProcCache, ProcKey, Refreshed, ended},
    };
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    const TAIL: &str = "S 1 7 7 0 -1 4194560 100 0 0 0 30 12 0 0 20 0 1 0 100 1000 200 1";

    /// Processes 7 to 9; whoever reads `stat` of 8 waits until somebody writes it.
    fn machine() -> Fake {
        let fake = Fake::new();
        for pid in [7, 9] {
            fake.proc(format!("{pid}/stat"), format!("{pid} (x) {TAIL}\n"));
        }
        fake.proc("8/comm", "one\x1b\n")
            .proc("8/status", "Uid:\t1000\t0\t0\t0\n")
            .proc("8/statm", "34 1 0 0 0 33 0\n");
        fake
    }

    fn hold(fake: &Fake) -> PathBuf {
        let stat = fake.root().proc("8/stat");
        let _ = std::fs::remove_file(&stat);
        mknodat(CWD, &stat, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        stat
    }

    fn names(fake: &Fake) -> Vec<(u32, u32, String)> {
        let here = fake.root().proc("8");
        let known = known();
        let late = known.late.iter().filter(|(dir, _)| **dir == here);
        late.map(|(_, late)| (late.pid, late.user, late.name.clone()))
            .collect()
    }

    #[test]
    fn a_process_that_does_not_answer_is_named_and_delays_no_other() {
        let (fake, key) = (machine(), |pid| ProcKey { pid, start: 100 });
        fake.proc("8/stat", format!("8 (x) {TAIL}\n"));
        let (root, mut cache) = (fake.root(), ProcCache::default());
        assert_eq!(cache.refresh(&root, 7..=9).new, [7, 8, 9].map(key));
        let stat = hold(&fake);
        let begun = Instant::now();
        fake.remove("proc/7");
        let got = cache.refresh(&root, 7..=9);
        assert_eq!(
            (got.gone, got.new),
            (vec![key(7)], vec![]),
            "8 is not known to have ended"
        );
        assert_eq!(names(&fake), [(8, 1000, "one\\x1b".to_owned())]);
        assert!(late().iter().any(|late| late.name == "one\\x1b"));
        // It is not asked again, and so costs nothing more.
        let waited = begun.elapsed();
        assert_eq!(cache.refresh(&root, 8..=9), Refreshed::default());
        assert_eq!(ended(&root, [key(8), key(9)]), []);
        assert_eq!(one(&root, 9, |_, pid| pid), Some(9));
        assert!(begun.elapsed() < waited + PATIENCE / 2);
        // The call ends.
        let_go(&fake, &stat);
        fake.remove("proc/8/stat");
        fake.proc("8/stat", format!("8 (x) {TAIL}\n"));
        assert_eq!(cache.refresh(&root, 8..=9), Refreshed::default());
        assert!(cache.get(8).is_some());
    }

    /// Lets the reader of process 8 go on, and waits for its end.
    fn let_go(fake: &Fake, stat: &Path) {
        std::fs::write(stat, "8 (x) gone\n").unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while !names(fake).is_empty() && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(names(fake), []);
    }

    /// How often this thread has waited.
    fn waits() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let count = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.unwrap().trim().parse().unwrap()
    }

    #[test]
    fn who_asks_many_processes_is_woken_for_many_at_a_time() {
        let (root, before, mut got) = (Fake::new().root(), waits(), Vec::new());
        // Each answer takes longer than to take it.
        let work = |_: &Root, pid| {
            let until = Instant::now() + Duration::from_micros(20);
            while Instant::now() < until {}
            pid
        };
        each(&root, 1..=3200, work, |pid, answer| {
            got.push((pid, answer));
            ControlFlow::Continue(())
        });
        assert!(
            got.iter()
                .eq(&(1..=3200).map(|pid| (pid, Some(pid))).collect::<Vec<_>>())
        );
        let waits = waits() - before;
        assert!(waits < 400, "{waits}");
    }

    #[test]
    fn one_that_is_slow_and_one_that_only_looks_so_are_read() {
        let fake = machine();
        let root = fake.root();
        // A program whose code is not where the kernel counts it.
        fake.proc("9/statm", "44 3 1 0 0 34 0\n");
        for _ in 0..3 {
            assert_eq!(one(&root, 9, |_, pid| pid), Some(9));
        }
        fake.proc("7/statm", "5000 512 100 1 0 200 0\n");
        let slow = one(&root, 7, |_, pid| {
            thread::sleep(PATIENCE * 3 / 2);
            pid
        });
        assert_eq!(slow, Some(7));
    }

    #[test]
    fn a_thread_that_is_ahead_of_the_end_of_a_walk_is_known() {
        let fake = machine();
        let root = fake.root();
        let stat = hold(&fake);
        let mut taken = Vec::new();
        let read = |root: &Root, pid: u32| root::read(&root.proc(format!("{pid}/stat")), 64).is_ok();
        each(&root, [7, 8, 9], read, |pid, _| {
            taken.push(pid);
            // Meanwhile the thread goes on.
            thread::sleep(PATIENCE / 4);
            ControlFlow::Break(())
        });
        assert_eq!((taken, names(&fake).len()), (vec![7], 1));
        let_go(&fake, &stat);
    }

    #[test]
    fn one_user_s_processes_leave_threads_for_those_of_others() {
        let fake = machine();
        let root = fake.root();
        let of = |pid: u32, user| {
            let status = format!("Uid:\t{user}\t0\t0\t0\n");
            fake.proc(format!("{pid}/status"), status);
        };
        let most = u32::try_from(OF_USER).unwrap();
        // The last two are not late.
        let (odd, other) = (20 + 2 * most, 21 + 2 * most);
        (20..=other).for_each(|pid| of(pid, 4711));
        fake.proc(format!("{odd}/statm"), "44 3 1 0 0 34 0\n");
        of(9, 4712);
        let go = Arc::new(Mutex::new(()));
        let held = go.lock().unwrap();
        let mut threads = Vec::new();
        let mut hang = |pid| {
            let mut known = known();
            known.runs += 1;
            let run = known.runs;
            known.add(&root, pid, run);
            drop(known);
            let caller = thread::current();
            let (go, own) = (Arc::clone(&go), Run { number: run, caller });
            threads.push(thread::spawn(move || {
                let _own = own;
                drop(go.lock());
            }));
        };
        let asked = |pid| one(&root, pid, |_, _| ()).is_some();
        (20..20 + most).for_each(&mut hang);
        assert!(!asked(20), "a thread waits there");
        assert!(!asked(odd), "its user has no more for such");
        assert!(asked(other) && asked(9));
        (20 + most..20 + 2 * most).for_each(&mut hang);
        assert!(!asked(other) && asked(9));
        fake.remove(format!("proc/{other}"));
        assert!(asked(other), "it has ended");
        drop(held);
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(asked(odd));
    }
}
