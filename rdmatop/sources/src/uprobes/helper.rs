//! A process that reads the memory of others for rdmatop. It runs rdmatop's own program, and may be lost at
//! any time.
//!
//! A program decides what is mapped at its addresses. A page of a file system that does not answer keeps a
//! reader waiting as long as the program likes, and no signal ends that. If a thread of rdmatop waited like
//! this, rdmatop could not end, and what it has attached would stay. The helper has no descriptor of
//! rdmatop's but the socket on which it answers: every other one is closed when the program starts
//! (close-on-exec). If an answer is late, rdmatop kills the helper and goes on. One that cannot be killed is
//! left behind.

use std::{
    ffi::OsString,
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{net::UnixStream, process::CommandExt as _},
    },
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

#[cfg(feature = "testkit")]
use std::sync::OnceLock;
#[cfg(not(test))]
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Functions, Place, Process, functions};
use crate::{
    privileges::{self, Raised},
    proc::{Part, PartAnswer, read_part},
    root::Root,
};

/// The program's name in its list of arguments, by which it knows that it is the helper.
const NAME: &str = "rdmatop-reader";

/// How long to wait for an answer, and how long for the program's start.
const PATIENCE: Duration = Duration::from_secs(2);
const START: Duration = Duration::from_secs(20);
/// The largest number, for each purpose, of helpers that were killed and have not ended. So a program that
/// makes the search for its functions wait cannot keep command lines of others from being read.
const MOST_LEFT: usize = 16;
/// The same for helpers that read processes of one user: then no more of this user's processes are read.
const LEFT_OF_USER: usize = 4;
/// How often to look whether a helper that was killed has ended.
const LOOKS: usize = 20;
/// Size of a message, such as the environment of a process.
const LONGEST: usize = 1 << 20;

/// [`is_helper`] was called: a new process of this program knows whether it is the helper.
#[cfg(not(test))]
static KNOWS_HELPERS: AtomicBool = AtomicBool::new(false);

/// The test that acts as the helper where this program is the tests of another crate.
#[cfg(feature = "testkit")]
static TEST: OnceLock<&str> = OnceLock::new();

/// Makes the test with this path the helper: an ignored one that calls [`serve`].
#[cfg(feature = "testkit")]
pub fn helper_is(test: &'static str) {
    TEST.get_or_init(|| test);
}

/// A purpose for which a helper reads processes; each has helpers of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Details of processes.
    Details,
    /// What programs post with.
    Posts,
}

/// Helpers that were killed.
static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());

/// A helper that was killed, and which process it read last.
struct Left {
    purpose: Purpose,
    pid: u32,
    user: Option<u32>,
    child: Child,
}

#[derive(Serialize, Deserialize)]
enum Question {
    /// [`Posts`] of a QP: process, handle, number, and whether to look for where its completions come from.
    Posts(u32, u64, u32, bool),
    /// A part of the details of a process.
    Part(u32, Part),
    /// Answers when the lock of a process's address space is free: if somebody holds it, not in time.
    Lock(u32),
}

/// What a process says of the functions that one of its QPs posts with. None of it is an address to put a
/// probe on: it says where to look in a file, and the file has to confirm it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Posts {
    /// The functions as pointers.
    pub found: Functions,
    /// Places of `post_send` and `post_recv`.
    pub plain: [Option<Place>; 2],
    /// Place of `poll_cq`.
    pub poll: Option<Place>,
    /// Places of `start_poll`, `next_poll` and `end_poll` of both CQs.
    pub polls: [[Option<Place>; 3]; 2],
    /// Places of the `ibv_wr_*` calls.
    pub extended: [Option<Place>; 22],
    /// The files of these places, by mapping.
    files: Vec<((u64, u64), Mapped)>,
    /// The user of the process; `None` if that changes, or if it is more than one.
    pub user: Option<u32>,
}

/// A file that a process has mapped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapped {
    /// Device and inode: the same for all names of it.
    pub identity: (u64, u64),
    /// Its name in its own mount namespace. There may be another file of that name here.
    pub path: String,
}

impl Posts {
    /// The file of a place.
    pub fn file(&self, place: &Place) -> Option<&Mapped> {
        let of_it = |(range, _): &&((u64, u64), Mapped)| *range == place.range;
        self.files.iter().find(of_it).map(|(_, file)| file)
    }
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The process's memory keeps the helper waiting.
    Late,
    /// The helper has ended, or could not be started.
    Lost,
}

/// A helper.
#[derive(Debug)]
pub struct Helper {
    /// `None` once it was killed.
    child: Option<Child>,
    stream: UnixStream,
    purpose: Purpose,
    /// Which process it read last, and whose that is.
    pid: u32,
    user: Option<u32>,
}

fn locked() -> MutexGuard<'static, Vec<Left>> {
    LEFT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the processes of a user are not to be read: too many helpers that read them were killed and have
/// not ended.
pub fn is_left_alone(user: Option<u32>) -> bool {
    left().iter().filter(|left| left.user == user).count() >= LEFT_OF_USER
}

/// Whether a helper that was killed still waits for the memory of this process: so another one would.
pub fn keeps_a_reader(pid: u32) -> bool {
    left().iter().any(|left| left.pid == pid)
}

/// The helpers that were killed and have not ended.
fn left() -> MutexGuard<'static, Vec<Left>> {
    let mut left = locked();
    left.retain_mut(|left| matches!(left.child.try_wait(), Ok(None)));
    left
}

#[cfg(not(test))]
fn program() -> io::Result<Command> {
    #[cfg(feature = "testkit")]
    if let Some(test) = TEST.get() {
        return Ok(of_tests(test));
    }
    // Otherwise the tests of another crate, started as the helper, would run and start themselves again.
    if !KNOWS_HELPERS.load(Ordering::Relaxed) {
        return Err(io::Error::other(
            "this program does not become the one that reads it",
        ));
    }
    let mut command = Command::new("/proc/self/exe");
    command.arg0(NAME);
    Ok(command)
}

/// The program of the tests as the helper.
#[cfg(test)]
#[expect(clippy::unnecessary_wraps, reason = "the other one may fail")]
fn program() -> io::Result<Command> {
    Ok(of_tests("uprobes::helper::tests::is_the_helper"))
}

/// The command that starts the program of tests as one of them.
#[cfg(any(test, feature = "testkit"))]
fn of_tests(test: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--ignored", "--exact", test]);
    command
}

impl Helper {
    /// The helper that is kept, or a new one, because one that did not answer was killed.
    pub fn kept(kept: &mut Option<Self>, purpose: Purpose) -> io::Result<&mut Self> {
        let helper = match kept.take().filter(|helper| helper.child.is_some()) {
            Some(helper) => helper,
            None => Self::start(purpose)?,
        };
        Ok(kept.insert(helper))
    }

    fn start(purpose: Purpose) -> io::Result<Self> {
        let command = program()?;
        // The rights of a thread pass to its children where they are ambient; those of root do so anyway.
        let _rights = Raised::for_helper();
        Self::of(command, purpose)
    }

    fn of(mut command: Command, purpose: Purpose) -> io::Result<Self> {
        if left().iter().filter(|left| left.purpose == purpose).count() >= MOST_LEFT {
            return Err(io::Error::other("too many processes keep their readers waiting"));
        }
        let (stream, theirs) = UnixStream::pair()?;
        let child = command
            .env_clear()
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // What the terminal sends to rdmatop's group is not for the helper.
            .process_group(0)
            .spawn()?;
        // This closes our copy of the helper's socket, which would hide that the helper has ended.
        drop(command);
        let mut helper = Self {
            child: Some(child),
            stream,
            purpose,
            pid: 0,
            user: None,
        };
        let hello: Result<(), _> = helper.answer(START);
        hello.map_err(|_| io::Error::other("the process that reads memory does not start"))?;
        Ok(helper)
    }

    /// What a process, whose user is this one, says of a QP's functions; the inner error says why nothing is
    /// known.
    pub fn posts(
        &mut self,
        (pid, user): (u32, Option<u32>),
        handle: u64,
        qpn: u32,
        ends: bool,
    ) -> Result<Result<Posts, String>, Unanswered> {
        if is_left_alone(user) {
            let why = "its user's processes keep too many that read them waiting";
            return Ok(Err(why.into()));
        }
        self.ask((pid, user), &Question::Posts(pid, handle, qpn, ends))
    }

    /// Whether the lock of the address space of a process, whose user is this one, is free, or the process is
    /// gone.
    pub fn lock_is_free(&mut self, pid: u32, user: Option<u32>) -> Result<(), Unanswered> {
        self.ask((pid, user), &Question::Lock(pid))
    }

    /// A part of the details of a process, whose user is this one.
    pub(crate) fn part(&mut self, pid: u32, user: Option<u32>, part: Part) -> Result<PartAnswer, Unanswered> {
        self.ask((pid, user), &Question::Part(pid, part))
    }

    fn ask<T: DeserializeOwned>(
        &mut self,
        of: (u32, Option<u32>),
        question: &Question,
    ) -> Result<T, Unanswered> {
        (self.pid, self.user) = of;
        let asked = self.child.is_some() && send(&self.stream, question).is_ok();
        let answer = if asked {
            self.answer(PATIENCE)
        } else {
            Err(Unanswered::Lost)
        };
        if answer.is_err() {
            self.kill();
        }
        answer
    }

    fn answer<T: DeserializeOwned>(&mut self, patience: Duration) -> Result<T, Unanswered> {
        receive(&mut self.stream, Some(Instant::now() + patience)).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Unanswered::Late,
            _ => Unanswered::Lost,
        })
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            // Most helpers end at once. Others are not waited for any longer: one may never end.
            for _ in 0..LOOKS {
                if !matches!(child.try_wait(), Ok(None)) {
                    return;
                }
                thread::sleep(Duration::from_millis(2));
            }
            locked().push(Left {
                purpose: self.purpose,
                pid: self.pid,
                user: self.user,
                child,
            });
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A message is its length and a JSON value.
fn send(mut stream: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let message = serde_json::to_vec(message)?;
    let length = u32::try_from(message.len()).map_err(io::Error::other)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&[&length.to_le_bytes(), message.as_slice()].concat())
}

fn receive<T: DeserializeOwned>(stream: &mut UnixStream, until: Option<Instant>) -> io::Result<T> {
    let mut fill = |mut into: &mut [u8]| {
        while !into.is_empty() {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            stream.set_read_timeout(left)?;
            match stream.read(into) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => into = into.get_mut(read..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    };
    let mut length = [0; 4];
    fill(&mut length)?;
    let length = usize::try_from(u32::from_le_bytes(length)).map_err(io::Error::other)?;
    if length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; length];
    fill(&mut message)?;
    Ok(serde_json::from_slice(&message)?)
}

/// Whether the program was started as the helper. A program that never asks cannot start one.
pub fn is_helper(args: &[OsString]) -> bool {
    #[cfg(not(test))]
    KNOWS_HELPERS.store(true, Ordering::Relaxed);
    args == [NAME]
}

/// The whole helper: answers until the other end is closed.
pub fn serve() {
    privileges::keep_for_helper();
    if let Ok(stream) = io::stdin().as_fd().try_clone_to_owned() {
        let _ = answers(UnixStream::from(stream));
    }
}

fn answers(mut stream: UnixStream) -> io::Result<()> {
    send(&stream, &())?;
    // Nobody else is left to kill a helper that waits when rdmatop ends: the kernel does it then.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    loop {
        match receive(&mut stream, None)? {
            Question::Posts(pid, handle, qpn, ends) => send(&stream, &posts(pid, handle, qpn, ends))?,
            Question::Part(pid, part) => send(&stream, &read_part(&Root::default(), pid, part))?,
            Question::Lock(pid) => {
                let _ = Process::open(pid).map(|process| process.is_there());
                send(&stream, &())?;
            }
        }
    }
}

/// Reads what a process says: only the helper does, because it may have to wait.
pub(super) fn posts(pid: u32, handle: u64, qpn: u32, ends: bool) -> Result<Posts, String> {
    let failed = |what: &'static str| move |error: io::Error| format!("cannot read {what}: {error}");
    // Read before and after the rest: in between the process may exec a program that runs for another user.
    let user = super::process::user(pid);
    let process = Process::open(pid).map_err(failed("its memory"))?;
    // Checked before the first page is read: a reader that waits for the lock cannot be killed.
    let gone = || Err("its memory is gone".to_owned());
    if !process.is_there() {
        return gone();
    }
    let found = functions(&process, handle, qpn).map_err(|miss| miss.to_string())?;
    if !process.is_there() {
        return gone();
    }
    let mut wanted = found;
    if !ends {
        (wanted.poll_cq, wanted.polls) = (0, [[0; 3]; 2]);
    }
    let plain = [wanted.post_send, wanted.post_recv, wanted.poll_cq];
    let addresses = [&plain, wanted.polls.as_flattened(), &wanted.extended].concat();
    // All at once: the list of a large process is long.
    let places = process.places(&addresses).map_err(failed("its mappings"))?;
    let mut places = places.into_iter();
    let mut next = || places.next().flatten();
    let mut posts = Posts {
        found,
        plain: [next(), next()],
        poll: next(),
        polls: [[(); 3]; 2].map(|calls| calls.map(|()| next())),
        extended: [(); 22].map(|()| next()),
        files: Vec::new(),
        user: None,
    };
    let places = posts.plain.iter().chain(&posts.extended).chain([&posts.poll]);
    let places = places.chain(posts.polls.iter().flatten()).flatten();
    let mut ranges: Vec<_> = places.map(|place| place.range).collect();
    ranges.sort_unstable();
    ranges.dedup();
    let file = |range| Some((range, process.mapped(range)?));
    posts.files = ranges.into_iter().filter_map(file).collect();
    posts.user = user.filter(|user| super::process::user(pid) == Some(*user));
    Ok(posts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Helper {
        Helper::start(Purpose::Posts).unwrap()
    }

    #[test]
    #[ignore = "the helper of the other tests: it answers on its standard input"]
    fn is_the_helper() {
        serve();
    }

    #[test]
    fn a_qp_that_is_none_is_answered_with_the_reason() {
        let mut helper = own();
        let none = helper.posts((std::process::id(), None), 8, 17, true).unwrap();
        assert!(none.unwrap_err().contains("libibverbs"));
        let gone = helper.posts((u32::MAX, None), 8, 17, true).unwrap();
        assert!(gone.unwrap_err().contains("its memory"));
    }

    #[test]
    fn a_reader_that_waits_for_a_lock_counts_for_the_user_of_that_process() {
        let mut helper = own();
        let (pid, user) = (std::process::id(), Some(u32::MAX - 3));
        assert_eq!(helper.lock_is_free(pid, user), Ok(()));
        assert_eq!((helper.pid, helper.user), (pid, user));
    }

    #[test]
    fn the_helper_has_no_descriptor_of_ours() {
        let _one = std::fs::File::open("/proc/self/maps").unwrap();
        let helper = own();
        let pid = helper.child.as_ref().unwrap().id();
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let open: Vec<_> = open
            .flatten()
            .filter_map(|file| std::fs::read_link(file.path()).ok())
            .map(|target| target.display().to_string())
            .collect();
        let ours = |target: &String| target.contains("/maps") || target.starts_with("anon_inode:");
        assert!(!open.iter().any(ours), "{open:?}");
    }

    #[test]
    fn a_helper_that_never_answers_is_killed_and_costs_its_question_alone() {
        let mut command = Command::new("sh");
        command.args(["-c", "printf '\\4\\0\\0\\0null' >&0; exec sleep 1000"]);
        let mut helper = Helper::of(command, Purpose::Posts).unwrap();
        let pid = helper.child.as_ref().unwrap().id();
        let begun = Instant::now();
        assert_eq!(
            helper.posts((1, None), 8, 17, true).unwrap_err(),
            Unanswered::Late
        );
        assert!(begun.elapsed() < PATIENCE * 2);
        let again = Instant::now();
        assert_eq!(
            helper.posts((1, None), 8, 17, true).unwrap_err(),
            Unanswered::Lost
        );
        assert!(again.elapsed() < PATIENCE / 2, "it is not asked again");
        // The start of a later helper reaps it.
        let remains = std::path::PathBuf::from(format!("/proc/{pid}"));
        let gone = (0..50).any(|_| {
            thread::sleep(Duration::from_millis(100));
            let _next = own();
            !remains.exists()
        });
        assert!(gone);
    }

    #[test]
    fn of_a_user_whose_processes_keep_readers_waiting_no_more_are_read() {
        // A user of whom no other test reads processes.
        let (pid, user) = (u32::MAX - 1, Some(u32::MAX - 1));
        for _ in 0..LEFT_OF_USER {
            assert!(!is_left_alone(user));
            let child = Command::new("sleep").arg("1000").spawn().unwrap();
            let purpose = Purpose::Posts;
            locked().push(Left {
                purpose,
                pid,
                user,
                child,
            });
            assert!(keeps_a_reader(pid) && !keeps_a_reader(pid - 1));
        }
        assert!(is_left_alone(user) && !is_left_alone(Some(u32::MAX - 2)));
        for left in locked().iter_mut().filter(|left| left.user == user) {
            left.child.kill().unwrap();
            left.child.wait().unwrap();
        }
        assert!(!is_left_alone(user), "none of them waits any more");
        assert!(!keeps_a_reader(pid));
    }

    #[test]
    fn a_helper_that_ends_or_babbles_is_no_answer() {
        for script in [
            "exit 0",
            "printf '\\377\\377\\377\\377' >&0",
            "printf '\\4\\0\\0\\0nul' >&0",
        ] {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            assert!(Helper::of(command, Purpose::Posts).is_err(), "{script}");
        }
    }
}
