//! Each reader of foreign bytes over its kept corpus, and then for some seconds over what a mutator makes of
//! it.
//!
//! `RDMATOP_FUZZ_SECONDS` is how long for each target [10], `RDMATOP_FUZZ_SEED` the seed of the mutator. What
//! fails is kept below target/tmp/; once mended it goes into the corpus. Hours of it, led by coverage:
//! docs/fuzzing.md.
mod mutate;

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rdmatop::fuzz::{TARGETS, Target};
use rdmatop_sources::fake::recording::Recording;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use mutate::Mutator;

/// Makes a failure repeatable; changed when the mutator is, so that CI does not look at the same inputs for
/// ever.
const SEED: u64 = 20_261_121;
/// CPU time that one input may take, without optimization.
const SLOWEST: Duration = Duration::from_secs(2);
/// Time after which an input is taken for one without end: other work may share the machine.
const ENDLESS: Duration = Duration::from_mins(1);
/// Address space of the whole test: a declared length must not become an allocation.
const MEMORY: u64 = 2 << 30;
/// Largest input.
const LARGEST: usize = 8 << 10;

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(name);
    let mut files: Vec<PathBuf> = fs::read_dir(&dir)
        .unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    let mut inputs: Vec<_> = files.iter().map(|file| fs::read(file).expect("a file")).collect();
    if name == "netlink" {
        inputs.extend(recorded());
    }
    inputs
}

/// What four kernels answered, see tests/fixtures/netlink/record.sh.
fn recorded() -> impl Iterator<Item = Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/netlink");
    ["5.10", "6.1", "6.12", "7.2"]
        .into_iter()
        .flat_map(move |kernel| {
            let bytes = fs::read(dir.join(format!("{kernel}.rdmanl"))).expect("a recording");
            let exchanges = Recording::decode(&bytes).expect("a recording").exchanges;
            exchanges.into_iter().flat_map(|exchange| exchange.datagrams)
        })
}

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Runs one input; the words of what failed.
fn one(target: Target, input: &[u8]) -> Result<(), String> {
    let begin = cpu_time();
    panic::catch_unwind(AssertUnwindSafe(|| target(input))).map_err(|_| "see the panic above".to_owned())?;
    let took = cpu_time().saturating_sub(begin);
    if took > SLOWEST {
        return Err(format!("took {took:?} of CPU time"));
    }
    Ok(())
}

/// Where an input that fails is kept.
fn kept(name: &str, input: &[u8]) -> PathBuf {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}"));
    let _ = fs::write(&file, input);
    file
}

/// What is being run, and since when.
type Current = Arc<Mutex<Option<(Instant, Vec<u8>)>>>;

/// Ends the test when an input has no end: nothing else can.
#[expect(clippy::print_stderr, reason = "the last words of a test that is ended")]
fn watch(name: &str, current: &Current) {
    let (name, current) = (name.to_owned(), Arc::downgrade(current));
    thread::spawn(move || {
        while let Some(current) = current.upgrade() {
            if let Some((begin, input)) = &*current.lock().unwrap_or_else(PoisonError::into_inner)
                && begin.elapsed() > ENDLESS
            {
                let file = kept(&name, input);
                eprintln!("{name}: {} runs for over a minute", file.display());
                std::process::abort();
            }
            drop(current);
            thread::sleep(Duration::from_millis(300));
        }
    });
}

fn set(current: &Current, input: Option<&[u8]>) {
    let now = input.map(|input| (Instant::now(), input.to_vec()));
    *current.lock().unwrap_or_else(PoisonError::into_inner) = now;
}

#[expect(clippy::print_stdout, reason = "what a test did, for who asks for its output")]
fn fuzz(name: &str) {
    static LIMIT: Once = Once::new();
    LIMIT.call_once(|| {
        let maximum = getrlimit(Resource::As).maximum;
        let current = Some(maximum.map_or(MEMORY, |maximum| maximum.min(MEMORY)));
        setrlimit(Resource::As, Rlimit { current, maximum }).expect("a lower limit");
    });
    let target = TARGETS
        .iter()
        .find(|(known, _)| *known == name)
        .expect("a target")
        .1;
    let corpus = corpus(name);
    assert!(!corpus.is_empty(), "no corpus");
    let current = Current::default();
    watch(name, &current);
    for (number, input) in corpus.iter().enumerate() {
        set(&current, Some(input));
        if let Err(why) = one(target, input) {
            panic!("{name}: input {number} of the corpus: {why}");
        }
    }
    let seed = variable("RDMATOP_FUZZ_SEED", SEED);
    let limit = Duration::from_secs(variable("RDMATOP_FUZZ_SECONDS", 10));
    let mut mutator = Mutator::new(seed, &corpus, LARGEST);
    let (begin, mut number) = (Instant::now(), 0_u64);
    while begin.elapsed() < limit {
        let input = mutator.next();
        set(&current, Some(&input));
        if let Err(why) = one(target, &input) {
            let file = kept(name, &input);
            let file = file.display();
            panic!("{name}: seed {seed}, input {number}, kept in {file}: {why}");
        }
        number += 1;
    }
    println!(
        "{name}: {} of the corpus, {number} made of them with seed {seed}",
        corpus.len()
    );
}

macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            fuzz(stringify!($name));
        })*

        #[test]
        fn every_target_has_its_test() {
            let names: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

targets!(
    btf,
    cgroup,
    counters,
    dcb,
    doctor,
    environ,
    ethtool,
    event,
    filter,
    hw_counters,
    kernel_log,
    lab_state,
    maps,
    nccl_log,
    netlink,
    proc,
    sanitize,
    settings,
    sock_diag
);
