//! Threads that read what may not answer, so that a driver that sleeps, or a process that cannot be read,
//! delays only what is read of itself.
//!
//! Usually there is one. Another is started, up to a bound, only while all threads wait, and ends when no
//! answer has been late for a while. A thread that hangs in the kernel cannot be stopped: it is left behind,
//! and ends when its read does.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// All threads but those that are kept end when no answer has been late for this long.
const IDLE: Duration = if cfg!(test) {
    Duration::from_millis(500)
} else {
    Duration::from_secs(30)
};
/// Stack of a thread in address space; the thread touches some 20 KiB of it.
const STACK: usize = 512 << 10;

/// The work of a thread.
pub type Work<J, A> = Box<dyn FnMut(J) -> A + Send>;
type MakeWork<J, A> = Arc<dyn Fn() -> Work<J, A> + Send + Sync>;

/// The threads and their jobs.
pub struct Readers<J, A> {
    queue: Arc<Queue<J, A>>,
    make_work: MakeWork<J, A>,
    /// The largest number of threads.
    most: usize,
    /// Runs jobs here when no thread can be started.
    own: Option<Work<J, A>>,
}

struct Queue<J, A> {
    state: Mutex<State<J, A>>,
    /// Wakes a thread when there is a job.
    work: Condvar,
    /// Wakes the caller when there are as many answers as it waits for.
    done: Condvar,
}

struct State<J, A> {
    jobs: VecDeque<J>,
    answers: VecDeque<A>,
    /// How many answers the caller waits for. Waking it for each would cost two context switches per device.
    wanted: usize,
    threads: usize,
    /// How many of them have a job.
    busy: usize,
    /// How many threads without a job stay although no answer is late.
    kept: usize,
    /// When an answer was late last, or a thread was started.
    late: Instant,
    /// The readers are shutting down.
    over: bool,
}

impl<J, A> Queue<J, A> {
    fn state(&self) -> MutexGuard<'_, State<J, A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next job; `None` when the thread is no longer needed, and then no longer counted.
    fn next(&self) -> Option<J> {
        let mut state = self.state();
        loop {
            // Every thread gets jobs even if one were enough, so its idle time does not show whether it is
            // needed.
            let needed = state.kept.max(usize::from(!state.jobs.is_empty()));
            let is_spare = state.threads - state.busy > needed;
            if state.over || (is_spare && state.late.elapsed() >= IDLE) {
                break;
            }
            if let Some(job) = state.jobs.pop_front() {
                state.busy += 1;
                return Some(job);
            }
            let waited = self.work.wait_timeout(state, IDLE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        // Counted under the lock, so that two threads do not both end as the one that is spare.
        state.threads -= 1;
        // The job that woke this one is for another.
        self.work.notify_one();
        None
    }

    /// A thread has done its job.
    fn answer(&self, answer: A) {
        let mut state = self.state();
        state.busy -= 1;
        state.answers.push_back(answer);
        if state.answers.len() >= state.wanted {
            self.done.notify_one();
        }
    }
}

impl<J: Send + 'static, A: Send + 'static> Readers<J, A> {
    /// Readers without a thread yet. There are never more than `most`; `kept` of them stay for good.
    /// `make_work` makes the work of each.
    pub fn new(most: usize, kept: usize, make_work: impl Fn() -> Work<J, A> + Send + Sync + 'static) -> Self {
        let state = State {
            jobs: VecDeque::new(),
            answers: VecDeque::new(),
            wanted: 1,
            threads: 0,
            busy: 0,
            kept,
            late: Instant::now(),
            over: false,
        };
        Self {
            queue: Arc::new(Queue {
                state: Mutex::new(state),
                work: Condvar::new(),
                done: Condvar::new(),
            }),
            make_work: Arc::new(make_work),
            most,
            own: None,
        }
    }

    /// Adds a job to the queue. The caller bounds the queue: a device has one job at most.
    pub fn push(&self, job: J) {
        self.queue.state().jobs.push_back(job);
        self.queue.work.notify_one();
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.queue.state().threads
    }

    /// How many threads have no job, or have not taken it yet.
    pub fn free(&self) -> usize {
        let state = self.queue.state();
        state.threads - state.busy
    }

    /// Starts another thread; false at the bound, or when the system refuses.
    pub fn grow(&self) -> bool {
        let mut state = self.queue.state();
        if state.threads >= self.most {
            return false;
        }
        let (queue, make_work) = (Arc::clone(&self.queue), Arc::clone(&self.make_work));
        let thread = thread::Builder::new()
            .name("reader".to_owned())
            .stack_size(STACK)
            .spawn(move || {
                let mut work = make_work();
                while let Some(job) = queue.next() {
                    let answer = work(job);
                    queue.answer(answer);
                }
            });
        state.threads += usize::from(thread.is_ok());
        log::debug!(threads = state.threads, started = thread.is_ok(); "all readers wait");
        // Otherwise the new thread would end at once.
        state.late = Instant::now();
        thread.is_ok()
    }

    /// Waits until there are `wanted` answers, but no longer than `wait`.
    pub fn wait_for(&self, wanted: usize, wait: Duration) {
        let mut state = self.queue.state();
        state.wanted = wanted;
        let waited = self
            .queue
            .done
            .wait_timeout_while(state, wait, |state| state.answers.len() < state.wanted);
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            state.late = Instant::now();
        }
    }

    /// The next answer, if there is one.
    pub fn answer(&self) -> Option<A> {
        self.queue.state().answers.pop_front()
    }

    /// Runs the next job on the caller's thread, when no other exists.
    pub fn work_here(&mut self) -> Option<A> {
        let job = self.queue.state().jobs.pop_front()?;
        Some(self.own.get_or_insert_with(|| (self.make_work)())(job))
    }
}

impl<J, A> Drop for Readers<J, A> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.over = true;
        state.jobs.clear();
        drop(state);
        self.queue.work.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const MOST: usize = 4;

    /// Each job is the time to sleep, ms, and its own answer.
    fn sleepers() -> Readers<u64, u64> {
        Readers::new(MOST, 1, || {
            Box::new(|ms| {
                thread::sleep(Duration::from_millis(ms));
                ms
            })
        })
    }

    const LONG: Duration = Duration::from_secs(10);

    /// An answer that arrives in this time.
    fn within(readers: &Readers<u64, u64>, time: Duration) -> Option<u64> {
        readers.wait_for(1, time);
        readers.answer()
    }

    #[test]
    fn the_caller_wakes_when_it_has_what_it_waits_for_or_time_is_up() {
        let readers = sleepers();
        assert!(readers.grow());
        for ms in [0, 0, 300] {
            readers.push(ms);
        }
        let begun = Instant::now();
        readers.wait_for(2, LONG);
        assert!(begun.elapsed() < Duration::from_millis(200));
        assert_eq!([(); 3].map(|()| readers.answer()), [Some(0), Some(0), None]);
        readers.wait_for(2, Duration::from_millis(600));
        assert!(
            begun.elapsed() >= Duration::from_millis(600),
            "one answer is not two"
        );
        assert_eq!(readers.answer(), Some(300));
    }

    #[test]
    fn a_second_thread_passes_one_that_sleeps_and_ends_when_not_needed() {
        let readers = sleepers();
        assert!(readers.grow());
        // No answer had been late for a long time.
        thread::sleep(2 * IDLE);
        readers.push(300);
        readers.push(0);
        assert_eq!(within(&readers, Duration::from_millis(50)), None, "one thread");
        assert!(readers.grow());
        assert_eq!([0; 2].map(|_| within(&readers, LONG)), [Some(0), Some(300)]);
        for _ in 0..8 {
            assert_eq!(within(&readers, IDLE / 5), None, "late");
        }
        assert_eq!(readers.threads(), 2);
        let begun = Instant::now();
        while readers.threads() > 1 {
            assert!(begun.elapsed() < LONG);
            // Although both get jobs now and then.
            readers.push(0);
            assert_eq!(within(&readers, LONG), Some(0));
        }
        thread::sleep(2 * IDLE);
        assert_eq!(readers.threads(), 1, "the last stays");
        readers.push(1);
        assert_eq!(within(&readers, LONG), Some(1));
    }

    #[test]
    fn there_are_no_more_threads_than_the_bound() {
        let readers = sleepers();
        assert!((0..MOST).all(|_| readers.grow()));
        assert!(!readers.grow());
        assert_eq!(readers.threads(), MOST);
    }

    #[test]
    fn the_end_waits_for_no_answer_and_ends_the_threads() {
        let readers = sleepers();
        assert!(readers.grow() && readers.grow());
        readers.push(200);
        thread::sleep(Duration::from_millis(50));
        let (queue, begun) = (Arc::clone(&readers.queue), Instant::now());
        drop(readers);
        assert!(begun.elapsed() < Duration::from_millis(100));
        while queue.state().threads > 0 {
            assert!(begun.elapsed() < LONG);
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn where_no_thread_can_be_started_the_caller_works() {
        let mut readers = sleepers();
        readers.push(1);
        assert_eq!(readers.work_here(), Some(1));
        assert_eq!(readers.work_here(), None);
    }
}
