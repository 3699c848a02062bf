//! Reads files in /proc that keep the reader waiting while their process is in execve(2).
//!
//! Until the new program is loaded the call holds `signal->exec_update_lock` (`begin_new_exec`, fs/exec.c),
//! and the process decides how long that takes: there it waits for what it has asked of a file system
//! (`exit_aio`), which may be its user's own. `environ` and `maps` take that lock on many kernels; `stat` and
//! the links to files and namespaces do on some, such as Linux 6.18.44, and not on 6.12 and 7.2. Only the end
//! of the reader's whole process ends the wait.
//!
//! So a thread reads these, and is left behind when it hangs. The process is then asked again when that
//! thread has come back, and all that are in such a call are known by a file that takes no lock.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{RecvTimeoutError, TryRecvError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    open_files::real_user,
    root::{self, Root},
};
use rdmatop_base::{order::Gather as _, text};

/// How long a process may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// A process that does not answer for longer is named.
const SLOW: Duration = if cfg!(test) { Duration::ZERO } else { PATIENCE };
/// The largest number of threads that are left behind, all together and by processes of one user. Then
/// nobody, or no process of that user, is asked.
const MOST: usize = 64;
const OF_USER: usize = 8;
/// Answers that wait for the caller, and the stack of a thread in address space.
const AHEAD: usize = 16;
const STACK: usize = 512 << 10;

static KNOWN: Mutex<Known> = Mutex::new(Known {
    met: false,
    runs: 0,
    late: BTreeMap::new(),
});

struct Known {
    /// Some process did not answer, ever: from then on each is looked at before it is asked.
    met: bool,
    /// Number of the last run of a thread.
    runs: u64,
    /// By directory in /proc.
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
    run: Option<u64>,
}

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Known {
    fn add(&mut self, root: &Root, pid: u32, run: Option<u64>) {
        self.met = true;
        let dir = dir(root, pid);
        let comm = root.bytes(&dir.join("comm"), 64).unwrap_or_default();
        let late = self.late.entry(dir).or_insert_with(|| Late {
            pid,
            user: real_user(root, pid),
            name: text::sanitize(comm.trim_ascii_end()),
            since: Instant::now(),
            run,
        });
        late.run = late.run.or(run);
    }

    fn left_by(&self, user: Option<u32>) -> usize {
        let left = self.late.values().filter(|late| late.run.is_some());
        left.filter(|late| user.is_none_or(|user| late.user == user))
            .count()
    }
}

fn dir(root: &Root, pid: u32) -> PathBuf {
    root.proc(pid.to_string())
}

/// Whether a process is in execve(2) after it has given up its old program and before the new one is loaded:
/// then it has memory and no code in it. A process that runs has some, and cannot say otherwise
/// (`prctl_set_mm_map`, kernel/sys.c, wants the start of the code before its end).
fn is_in_exec(dir: &Path) -> bool {
    let statm = root::read(&dir.join("statm"), 256).unwrap_or_default();
    let statm = String::from_utf8_lossy(&statm);
    let mut pages = statm.split_whitespace();
    pages.next().is_some_and(|size| size != "0") && pages.nth(2) == Some("0")
}

/// Whether a process is not to be asked.
fn is_left_alone(root: &Root, pid: u32) -> bool {
    let (met, any) = {
        let known = known();
        (known.met, known.left_by(None) > 0)
    };
    if !met {
        return false;
    }
    let dir = dir(root, pid);
    let (waits, user) = (is_in_exec(&dir), any.then(|| real_user(root, pid)));
    let mut known = known();
    if known.late.get(&dir).is_some_and(|late| late.run.is_some()) {
        return true;
    }
    if waits {
        known.add(root, pid, None);
    } else {
        known.late.remove(&dir);
    }
    waits || known.left_by(None) >= MOST || user.is_some() && known.left_by(user) >= OF_USER
}

/// The processes that have not answered for longer than a moment.
pub(crate) fn late() -> Vec<Late> {
    let mut known = known();
    known
        .late
        .retain(|dir, late| late.run.is_some() || is_in_exec(dir));
    let late = known.late.values().filter(|late| late.since.elapsed() >= SLOW);
    late.cloned().collect()
}

/// A thread that reads; at its end nothing of it is left behind.
struct Run(u64);

impl Drop for Run {
    fn drop(&mut self) {
        known().late.retain(|_, late| late.run != Some(self.0));
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
    let (pids, work) = (Arc::new(pids.into_iter().gather::<Vec<u32>>()), Arc::new(work));
    let ask = |root: &Root, pid, work: &dyn Fn(&Root, u32) -> R| {
        (!is_left_alone(root, pid)).then(|| work(root, pid))
    };
    let mut done = 0;
    while done < pids.len() {
        let (answer, answers) = sync_channel(AHEAD);
        let run = {
            let mut known = known();
            known.runs += 1;
            known.runs
        };
        let reader = {
            let (root, pids, work, run) = (root.clone(), Arc::clone(&pids), Arc::clone(&work), Run(run));
            move || {
                let _run = run;
                for pid in pids.iter().skip(done) {
                    if answer.send(ask(&root, *pid, &*work)).is_err() {
                        return;
                    }
                }
            }
        };
        let thread = thread::Builder::new().name("reader".to_owned()).stack_size(STACK);
        let is_started = thread.spawn(reader).is_ok();
        for pid in pids.iter().skip(done) {
            done += 1;
            let got = if is_started {
                answers.recv_timeout(PATIENCE)
            } else {
                Ok(ask(root, *pid, &*work))
            };
            let got = got.or_else(|why| {
                let mut known = known();
                // While it is not known as late, its thread cannot end.
                answers.try_recv().map_err(|empty| {
                    if (why, empty) == (RecvTimeoutError::Timeout, TryRecvError::Empty) {
                        log::warn!(pid; "left behind in execve(2)");
                        known.add(root, *pid, Some(run));
                    }
                })
            });
            let is_late = got.is_err();
            if take(*pid, got.unwrap_or(None)).is_break() {
                return;
            }
            if is_late {
                break;
            }
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
            .proc("8/status", "Uid:\t1000\t0\t0\t0\n");
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
        std::fs::write(&stat, "8 (x) gone\n").unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while !names(&fake).is_empty() && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(names(&fake), []);
        fake.remove("proc/8/stat");
        fake.proc("8/stat", format!("8 (x) {TAIL}\n"));
        assert_eq!(cache.refresh(&root, 8..=9), Refreshed::default());
        assert!(cache.get(8).is_some());
    }

    #[test]
    fn after_the_first_one_those_in_execve_are_not_asked_at_all() {
        let fake = machine();
        let root = fake.root();
        known().met = true;
        let reads = |statm: &str| {
            fake.proc("8/statm", statm);
            let read = one(&root, 8, |_, _| ()).is_some();
            assert_eq!(read, names(&fake).is_empty());
            read
        };
        assert!(!reads("1 1 0 0 0 1 0\n"));
        assert!(reads("5000 512 100 1 0 200 0\n"));
        assert!(reads("0 0 0 0 0 0 0\n"), "a thread of the kernel");
        assert!(!reads("34 1 0 0 0 33 0\n"));
        assert!(reads(""), "it has ended");
    }

    #[test]
    fn one_user_s_processes_leave_threads_for_those_of_others() {
        let fake = machine();
        let root = fake.root();
        let of = |pid: u32, user| {
            let status = format!("Uid:\t{user}\t0\t0\t0\n");
            fake.proc(format!("{pid}/status"), status);
        };
        // As many as there may be, and one more.
        let last = 20 + u32::try_from(OF_USER).unwrap();
        (20..=last).for_each(|pid| of(pid, 4711));
        of(9, 4712);
        let (go, stop) = (Arc::new(Mutex::new(())), Arc::new(Mutex::new(Vec::new())));
        let held = go.lock().unwrap();
        for pid in 20..last {
            let (go, stop) = (Arc::clone(&go), Arc::clone(&stop));
            let mut known = known();
            known.runs += 1;
            let run = known.runs;
            known.add(&root, pid, Some(run));
            drop(known);
            let thread = thread::spawn(move || {
                let _run = Run(run);
                drop(go.lock());
            });
            stop.lock().unwrap().push(thread);
        }
        assert_eq!(one(&root, last, |_, _| ()), None, "its user has no more");
        assert_eq!(one(&root, 9, |_, _| ()), Some(()));
        drop(held);
        for thread in stop.lock().unwrap().drain(..) {
            thread.join().unwrap();
        }
        assert_eq!(one(&root, last, |_, _| ()), Some(()));
    }
}
