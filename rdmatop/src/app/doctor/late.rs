//! Work that may hang in a driver: threads do it, and the caller leaves behind what is late.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::Instant,
};

/// The largest number of threads.
const MOST: usize = 16;

/// A piece of work.
pub(super) type Job<A> = Box<dyn FnOnce() -> A + Send>;

/// The jobs that are left, each with its place.
type Desk<A> = Mutex<VecDeque<(usize, Job<A>)>>;

/// Runs all jobs, and returns the answers that arrive in time, in the order of the jobs. A thread that hangs in the
/// kernel cannot be stopped; it ends when its read does.
pub(super) fn gather<A: Send + 'static>(jobs: Vec<Job<A>>, until: Instant) -> Vec<Option<A>> {
    let count = jobs.len();
    let mut answers: Vec<Option<A>> = (0..count).map(|_| None).collect();
    let desk: Arc<Desk<A>> = Arc::new(Mutex::new(jobs.into_iter().enumerate().collect()));
    let (to, from) = mpsc::channel();
    let mut hired = 0;
    for _ in 0..count.min(MOST) {
        let (desk, to) = (Arc::clone(&desk), to.clone());
        let work = move || {
            while let Some((at, job)) = next(&desk) {
                if to.send((at, job())).is_err() {
                    return;
                }
            }
        };
        hired += usize::from(
            thread::Builder::new()
                .name("doctor".to_owned())
                .spawn(work)
                .is_ok(),
        );
    }
    drop(to);
    if hired == 0 {
        // No thread can be started: run the jobs here, without the deadline.
        while let Some((at, job)) = next(&desk) {
            answers[at] = Some(job());
        }
    }
    while let Ok((at, answer)) = from.recv_timeout(until.saturating_duration_since(Instant::now())) {
        answers[at] = Some(answer);
    }
    // No thread begins another job.
    desk.lock().unwrap_or_else(PoisonError::into_inner).clear();
    answers
}

fn next<A>(desk: &Desk<A>) -> Option<(usize, Job<A>)> {
    desk.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn only_a_late_job_is_left_behind() {
        let (release, wait) = mpsc::channel::<()>();
        let mut jobs: Vec<Job<u32>> = vec![Box::new(move || {
            let _ = wait.recv();
            0
        })];
        jobs.extend((1..40_u32).map(|n| Box::new(move || n) as Job<u32>));
        let begin = Instant::now();
        let answers = gather(jobs, begin + Duration::from_millis(300));
        assert!(begin.elapsed() < Duration::from_secs(5));
        assert_eq!(answers[0], None);
        assert!((1..40_u32).all(|n| answers[n as usize] == Some(n)));
        drop(release);
    }

    #[test]
    fn when_all_jobs_answer_nothing_waits() {
        let begin = Instant::now();
        let answers = gather(vec![Box::new(|| 1) as Job<i32>], begin + Duration::from_mins(1));
        assert_eq!(answers, [Some(1)]);
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
}
