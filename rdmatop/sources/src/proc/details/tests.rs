//! Against readers that never answer, are slow, or answer much.

use std::sync::{
    Arc, Condvar, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use super::*;

/// A gate at which a reader waits for ever, or until the test opens it.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn wait(&self) {
        let (open, changed) = &*self.0;
        drop(changed.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
    }

    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(250);

fn key(pid: u32) -> ProcKey {
    ProcKey { pid, start: 1 }
}

/// The first digit is the user's.
fn ask(pid: u32) -> Ask {
    Ask {
        process: key(pid),
        user: Some(pid / 1000),
        name: format!("p{pid}"),
        parts: Part::SHOWN.to_vec(),
    }
}

fn answer(pid: u32) -> Reading {
    Reading {
        detail: ProcDetail {
            cmdline: Some(pid.to_string()),
            ..ProcDetail::default()
        },
        ..Reading::default()
    }
}

fn late() -> Reading {
    let miss = Miss {
        part: Part::Libraries,
        why: Why::Late,
    };
    Reading {
        miss: Some(miss),
        ..Reading::default()
    }
}

/// Reads processes by `read`.
fn through(read: impl Fn(u32) -> Reading + Clone + Send + Sync + 'static) -> Details {
    Details::through(move || {
        let read = read.clone();
        Box::new(move |process, _, _| read(process.pid))
    })
}

fn pids(found: &BTreeMap<ProcKey, ProcDetail>) -> Vec<u32> {
    found.keys().map(|key| key.pid).collect()
}

fn rows(details: &mut Details, pids: impl IntoIterator<Item = u32>) {
    pids.into_iter()
        .for_each(|pid| details.ask(Asker::Rows, ask(pid)));
}

#[test]
fn processes_that_never_answer_delay_nobody_else_and_are_named() {
    let (gate, begun) = (Gate::default(), Arc::new(AtomicUsize::new(0)));
    let (wait, count) = (gate.clone(), Arc::clone(&begun));
    let mut details = through(move |pid| {
        if pid < 2000 {
            count.fetch_add(1, Ordering::Relaxed);
            wait.wait();
        }
        answer(pid)
    });
    // Fifty of a hostile user come first.
    rows(&mut details, 1000..1050);
    details.settle(0, SHORT);
    rows(&mut details, 2000..2020);
    let since = now().mono_ns;
    rows(&mut details, 3000..3020);
    details.settle(since, SHORT);
    details.settle(0, SHORT);
    let found = details.take(Asker::Rows);
    assert_eq!(pids(&found), (2000..2020).chain(3000..3020).collect::<Vec<_>>());
    assert_eq!(begun.load(Ordering::Relaxed), OF_USER);
    assert!(details.readers.threads() <= MOST);
    std::thread::sleep(Duration::from_nanos(late::SLOW));
    let notes: Vec<String> = details.notes().iter().map(ToString::to_string).collect();
    assert!(
        notes[0].starts_with("Unknown of p1000 (1000):") && notes[2].contains("48 more"),
        "{notes:?}"
    );
    // Those that end are forgotten, whether they were read or not, and their threads serve others.
    details.keep(|key| key.pid >= 2000);
    assert_eq!(details.notes(), []);
    gate.open();
    rows(&mut details, [1777]);
    details.settle(now().mono_ns - late::SLOW, LONG);
    assert_eq!(pids(&details.take(Asker::Rows)), [1777]);
}

#[test]
fn users_whose_processes_were_late_come_after_the_others_and_rest() {
    let order = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&order);
    let mut details = through(move |pid| {
        seen.lock().unwrap().push(pid);
        if pid < 2000 { late() } else { answer(pid) }
    });
    rows(&mut details, [1000]);
    details.settle(0, LONG);
    assert_eq!(pids(&details.take(Asker::Rows)), [1000]);
    rows(&mut details, [1001, 1002]);
    rows(&mut details, 2000..2010);
    let begun = Instant::now();
    details.settle(0, LONG);
    assert!(begun.elapsed() < LONG / 2, "nothing waits for one that rests");
    let order = order.lock().unwrap().clone();
    assert_eq!(order[..1], [1000]);
    assert_eq!(order[1..11], (2000..2010).collect::<Vec<_>>(), "{order:?}");
    assert_eq!(order.len(), 13, "none is asked twice");
    // Asking again does not help it.
    rows(&mut details, [1000]);
    details.settle(0, SHORT);
    assert_eq!(details.notes().len(), 3);
    let task = &details.tasks[&(key(1000), Asker::Rows)];
    assert!(matches!(task.state, State::Waits(from) if from > now().mono_ns + REST / 2));
}

#[test]
fn one_that_changes_all_the_time_is_read_for_a_small_part_of_it() {
    let mut user = User::new(0);
    let (mut read_ns, mut at) = (0, 0);
    let end = 1000 * SECOND;
    while at < end {
        if user.may_repeat(at) {
            read_ns += SECOND / 2;
            user.credit_ns -= CREDIT / 2;
        }
        at += SECOND / 10;
    }
    assert!(
        read_ns <= end / SHARE + 2 * SECOND && read_ns >= end / SHARE / 2,
        "{read_ns}"
    );

    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let mut details = through(move |pid| {
        std::thread::sleep(SHORT);
        counted.fetch_add(1, Ordering::Relaxed);
        answer(pid)
    });
    details
        .users
        .entry(Some(1))
        .or_insert_with(|| User::new(now().mono_ns))
        .credit_ns = -CREDIT;
    for round in 0..8 {
        rows(&mut details, [1000, 2000 + round]);
        details.settle(now().mono_ns - 1, SHORT / 2);
    }
    details.settle(0, LONG);
    assert_eq!(
        count.load(Ordering::Relaxed),
        1 + 8,
        "the first time, and never again"
    );
    let found = details.take(Asker::Rows);
    assert!(
        !found.contains_key(&key(1000)),
        "what was read is of an earlier program"
    );
}

#[test]
fn a_job_whose_ranks_were_slow_to_read_once_is_read_again_all_the_same() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let mut details = through(move |pid| {
        std::thread::sleep(SHORT);
        counted.fetch_add(1, Ordering::Relaxed);
        answer(pid)
    });
    // Together they take twice the credit.
    rows(&mut details, 1000..1008);
    details.settle(0, LONG);
    assert_eq!(details.take(Asker::Rows).len(), 8);
    rows(&mut details, [1003]);
    details.settle(0, LONG);
    assert_eq!(pids(&details.take(Asker::Rows)), [1003]);
    assert_eq!(count.load(Ordering::Relaxed), 9);
}

#[test]
fn an_answer_of_the_program_before_is_not_shown() {
    let gate = Gate::default();
    let (wait, reads) = (gate.clone(), Arc::new(AtomicUsize::new(0)));
    let mut details = through(move |_| {
        wait.wait();
        answer(u32::try_from(reads.fetch_add(1, Ordering::Relaxed)).unwrap())
    });
    rows(&mut details, [1000]);
    details.settle(0, SHORT);
    rows(&mut details, [1000]);
    gate.open();
    details.settle(0, LONG);
    let found = details.take(Asker::Rows);
    assert_eq!(found[&key(1000)].cmdline.as_deref(), Some("1"));
    assert!(details.take(Asker::Rows).is_empty(), "once");
}

#[test]
fn each_answer_counts_for_when_its_own_reading_began() {
    let tries = Arc::new(AtomicUsize::new(0));
    let mut details = through(move |pid| match tries.fetch_add(1, Ordering::Relaxed) {
        0 => late(),
        _ => answer(pid),
    });
    let read = |details: &mut Details| {
        let before_ns = now().mono_ns;
        details.settle(0, LONG);
        let detail = details.take(Asker::Rows).remove(&key(1000)).unwrap();
        assert!(
            (before_ns..=now().mono_ns).contains(&detail.read_ns),
            "{detail:?}"
        );
        detail.cmdline
    };
    rows(&mut details, [1000]);
    assert_eq!(read(&mut details), None);
    // It has rested, and nobody asks again.
    let task = details.tasks.get_mut(&(key(1000), Asker::Rows)).unwrap();
    (task.state, task.tries) = (State::Waits(0), 0);
    assert_eq!(read(&mut details).as_deref(), Some("1000"));
}

#[test]
fn a_search_goes_on_without_what_is_late_and_leaves_rows_alone() {
    let gate = Gate::default();
    let wait = gate.clone();
    let mut details = through(move |pid| {
        if pid == 1000 {
            wait.wait();
        }
        answer(pid)
    });
    rows(&mut details, [2000]);
    let found = details.search(vec![ask(1000), ask(1001)], SHORT);
    assert_eq!(pids(&found), [1001]);
    gate.open();
    details.settle(0, LONG);
    assert_eq!(pids(&details.take(Asker::Rows)), [2000]);
    let found = details.search(vec![ask(1002)], LONG);
    assert_eq!(pids(&found), [1002], "not that of the search before");
    assert_eq!(details.tasks.len(), 1, "{:?}", details.tasks);
}

#[test]
fn a_process_that_has_ended_is_forgotten() {
    let mut details = through(|_| Reading {
        ended: true,
        ..Reading::default()
    });
    rows(&mut details, [1000]);
    details.settle(0, LONG);
    assert!(details.take(Asker::Rows).is_empty() && details.tasks.is_empty());
}
