//! Work that may hang in a driver, or in a file system of a user: threads do it, and the caller leaves behind
//! what is late.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::Instant,
};

/// A piece of work.
pub(super) struct Job<A> {
    /// Whose files it reads; `None`: the machine's. The jobs of one user have threads of their own and delay
    /// no others.
    of: Option<u32>,
    work: Box<dyn FnOnce() -> A + Send>,
}

impl<A> Job<A> {
    pub(super) fn new(of: Option<u32>, work: impl FnOnce() -> A + Send + 'static) -> Self {
        let work = Box::new(work);
        Self { of, work }
    }
}

/// The jobs that are left, each with its place.
type Queue<A> = Mutex<VecDeque<(usize, Job<A>)>>;

/// Runs all jobs, those of one user by `most` threads at most, and returns the answers that arrive in time,
/// in the order of the jobs. A thread that hangs in the kernel cannot be stopped; it ends when its read does.
pub(super) fn gather<A: Send + 'static>(jobs: Vec<Job<A>>, most: usize, until: Instant) -> Vec<Option<A>> {
    let mut answers: Vec<Option<A>> = jobs.iter().map(|_| None).collect();
    let mut queues: BTreeMap<Option<u32>, VecDeque<(usize, Job<A>)>> = BTreeMap::new();
    for (at, job) in jobs.into_iter().enumerate() {
        queues.entry(job.of).or_default().push_back((at, job));
    }
    let (to, from) = mpsc::channel();
    let mut left = Vec::new();
    for (user, jobs) in queues {
        let count = jobs.len();
        let queue: Arc<Queue<A>> = Arc::new(Mutex::new(jobs));
        let mut started = 0;
        for _ in 0..count.min(most) {
            let (queue, to) = (Arc::clone(&queue), to.clone());
            let work = move || {
                while let Some((at, job)) = next(&queue) {
                    if to.send((at, (job.work)())).is_err() {
                        return;
                    }
                }
            };
            started += usize::from(
                thread::Builder::new()
                    .name("doctor".to_owned())
                    .spawn(work)
                    .is_ok(),
            );
        }
        left.push((queue, user.is_none() && started == 0));
    }
    drop(to);
    // Where no thread could be started, the machine's jobs run here, without the deadline. Jobs of users
    // count as late.
    for (queue, _) in left.iter().filter(|(_, here)| *here) {
        while let Some((at, job)) = next(queue) {
            answers[at] = Some((job.work)());
        }
    }
    while let Ok((at, answer)) = from.recv_timeout(until.saturating_duration_since(Instant::now())) {
        answers[at] = Some(answer);
    }
    // No thread begins another job.
    for (queue, _) in left {
        queue.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
    answers
}

fn next<A>(queue: &Queue<A>) -> Option<(usize, Job<A>)> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_a_late_job_is_left_behind() {
        let (release, wait) = mpsc::channel::<()>();
        let mut jobs: Vec<Job<u32>> = vec![Job::new(None, move || {
            let _ = wait.recv();
            0
        })];
        jobs.extend((1..40_u32).map(|n| Job::new(None, move || n)));
        let begin = Instant::now();
        let answers = gather(jobs, 16, begin + Duration::from_millis(300));
        assert!(begin.elapsed() < Duration::from_secs(5));
        assert_eq!(answers[0], None);
        assert!((1..40_u32).all(|n| answers[n as usize] == Some(n)));
        drop(release);
    }

    #[test]
    fn the_jobs_of_one_user_that_all_hang_delay_those_of_no_other() {
        let (release, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let hanging = |n: u32| {
            let wait = Arc::clone(&wait);
            Job::new(Some(1), move || {
                let _ = wait.lock().map(|wait| wait.recv());
                n
            })
        };
        let mut jobs: Vec<Job<u32>> = (0..64).map(hanging).collect();
        jobs.push(Job::new(Some(2), || 64));
        let answers = gather(jobs, 4, Instant::now() + Duration::from_millis(300));
        assert_eq!(answers[64], Some(64));
        assert!(answers[..64].iter().all(Option::is_none));
        drop(release);
    }

    #[test]
    fn when_all_jobs_answer_nothing_waits() {
        let begin = Instant::now();
        let answers = gather(vec![Job::new(None, || 1)], 1, begin + Duration::from_mins(1));
        assert_eq!(answers, [Some(1)]);
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
}
