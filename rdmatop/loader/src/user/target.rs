//! Finds and opens the functions that one QP's program posts with.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map},
    time::{Duration, Instant},
};

use super::{
    hooks::{Function, GIVE},
    probed::{Party, Process},
    stages::Hint,
};
use rdmatop_base::order::Gather as _;
use rdmatop_sources::uprobes::{
    BEGIN, Code, Functions, Helper, Libraries, Mapped, Opened, Place, Posts, Purpose, SET_INLINE_DATA,
    Unanswered, WR_START, after_landing_pad, file,
};

/// A function in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProbePoint {
    pub(super) function: Function,
    /// Device and inode.
    pub(super) file: (u64, u64),
    /// Offset of the probe in the file.
    pub(super) offset: u64,
    /// The only process for which this place is probed, `None` for all.
    pub(super) process: Option<Process>,
}

impl ProbePoint {
    /// Whether some program hits both probes by one call.
    pub(super) fn meets(&self, other: &Self) -> bool {
        let place = |point: &Self| (point.function, point.file, point.offset);
        let of_all = self.process.is_none() || other.process.is_none();
        place(self) == place(other) && (of_all || self.process == other.process)
    }
}

/// The functions to probe for a QP.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) points: Vec<(ProbePoint, Opened)>,
    /// Every send of the QP goes through one of these functions.
    pub(super) sends_are_seen: bool,
}

/// A file of which functions are probed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// Device and inode of the name by which it was probed first.
    pub(super) file: (u64, u64),
    /// They are probed for all processes.
    pub(super) for_all: bool,
}

/// Why a QP cannot be probed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// A later try may succeed.
    NotYet(String),
    /// No later try can succeed.
    Never(String),
    /// The memory of the process does not answer in time.
    Silent,
}

/// What answers questions about programs: a helper process, and the system's libraries.
#[derive(Debug, Default)]
pub(super) struct Finder {
    helper: Option<Helper>,
    libraries: Libraries,
    /// How long the last answer about a QP took, and what was asked of locks since, ns.
    pub(super) took_ns: u64,
}

/// A file that a process has mapped, opened.
#[derive(Debug)]
struct Library {
    file: Opened,
    reach: Reach,
    is_provider: bool,
}

/// How long to wait for all locks together, where each one becomes free before the helper gives up.
const LOCKS: Duration = Duration::from_millis(1500);
const LOST: &str = "the process that reads memory has ended";

impl Finder {
    /// Finds the functions that a QP's program posts with and, with `ends`, the one that returns its
    /// completions. `known`: by which numbers a file is known of which functions are probed.
    pub(super) fn of(
        &mut self,
        hint: &Hint,
        ends: bool,
        known: impl Fn(&Opened, &Place) -> Option<Known>,
    ) -> Result<Target, Unfit> {
        let posts = self.ask(hint, ends)?;
        let process = hint.party.process;
        let open = |mapped: &Mapped, place: &Place| self.open(process.pid, posts.user, mapped, place, &known);
        target(process, &posts, open)
    }

    /// Returns the first of these processes whose memory lock is held. `spent` gets how long each was waited
    /// for.
    pub(super) fn locked(
        &mut self,
        owners: impl IntoIterator<Item = Party>,
        mut spent: impl FnMut(Party, u64),
    ) -> Result<Option<u32>, String> {
        let mut all_ns = 0;
        let ask = |of: Party| Ok(self.helper()?.lock_is_free(of.process.pid, of.user));
        let held = first_held(owners, LOCKS, ask, |of, took_ns| {
            all_ns += took_ns;
            spent(of, took_ns);
        });
        self.took_ns += all_ns;
        held
    }

    fn helper(&mut self) -> Result<&mut Helper, String> {
        let failed = |error| format!("cannot read memory of processes: {error}");
        Helper::kept(&mut self.helper, Purpose::Posts).map_err(failed)
    }

    fn ask(&mut self, hint: &Hint, ends: bool) -> Result<Posts, Unfit> {
        let helper = self.helper().map_err(Unfit::NotYet)?;
        let asked = Instant::now();
        let Party { user, process } = hint.party;
        let answer = helper.posts((process.pid, user), hint.handle, hint.qp.qpn, ends);
        self.took_ns = nanos(asked);
        match answer {
            Ok(said) => said.map_err(Unfit::NotYet),
            Err(Unanswered::Late) => Err(Unfit::Silent),
            Err(Unanswered::Lost) => Err(Unfit::NotYet(LOST.into())),
        }
    }

    /// Opens the file of a mapping.
    fn open(
        &self,
        pid: u32,
        user: Option<u32>,
        mapped: &Mapped,
        place: &Place,
        known: impl Fn(&Opened, &Place) -> Option<Known>,
    ) -> Result<(Opened, Reach), Unfit> {
        let of_system = self.libraries.open(&mapped.path);
        if let Some(mut file) = of_system.filter(|file| file.identity == mapped.identity) {
            file.identity = known(&file, place).map_or(file.identity, |known| known.file);
            return Ok((file, Reach::System));
        }
        let failed = |error| Unfit::NotYet(format!("cannot read the file of its library: {error}"));
        // Opening the file, and attaching a probe to it, reads it.
        let Some(mut file) = file(pid, place).map_err(failed)? else {
            let why =
                "its library is not one of the system's, and on a file system that may keep rdmatop waiting";
            return Err(Unfit::Never(why.into()));
        };
        if file.identity != mapped.identity {
            return Err(Unfit::NotYet("the file of its library changes".into()));
        }
        let known = known(&file, place);
        file.identity = known.map_or(file.identity, |known| known.file);
        let reach = if known.is_some_and(|known| known.for_all) {
            // A library of the system by another name: it is open, so no other file can be this one.
            Reach::System
        } else if user == Some(file.owner) {
            Reach::OfItsUser
        } else {
            Reach::Process
        };
        Ok((file, reach))
    }
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Decides which of the functions that a process names are probed. `open` opens the file of a mapping: once
/// for each mapping.
fn target(
    process: Process,
    posts: &Posts,
    mut open: impl FnMut(&Mapped, &Place) -> Result<(Opened, Reach), Unfit>,
) -> Result<Target, Unfit> {
    let mut calls = Vec::with_capacity(32);
    for (function, place) in [Function::PostSend, Function::PostRecv]
        .into_iter()
        .zip(posts.plain)
    {
        let place = place.ok_or_else(|| Unfit::Never("its functions are not in a file".into()))?;
        calls.push((function, place));
    }
    calls.extend(posts.poll.map(|place| (Function::PollCq, place)));
    let of_cqs: BTreeSet<_> = posts.polls.into_iter().flat_map(polls).gather();
    let extended = extended(&posts.found, &posts.extended);
    let sends_are_seen = extended.is_some();
    calls.extend(extended.unwrap_or_default());
    let mut libraries = BTreeMap::new();
    let mut point = |function, place: &Place| {
        let library = match libraries.entry(place.range) {
            btree_map::Entry::Occupied(known) => known.into_mut(),
            btree_map::Entry::Vacant(free) => {
                let never = || Unfit::Never("its library has no file".into());
                let (file, reach) = open(posts.file(place).ok_or_else(never)?, place)?;
                let is_provider = Code::of(file.file()).is_some_and(|code| code.is_provider());
                free.insert(Library {
                    file,
                    reach,
                    is_provider,
                })
            }
        };
        library.point(process, function, place)
    };
    let mut points = Vec::with_capacity(calls.len());
    for (function, place) in &calls {
        points.push(point(*function, place)?);
    }
    let numbers = |place: &Place| posts.file(place).map(|file| file.identity);
    let provider = calls.first().and_then(|(_, place)| numbers(place));
    for (number, place) in &of_cqs {
        // A word that is no function pointer may still be the address of code.
        let of_provider = numbers(place) == provider;
        if of_provider && let Ok(found) = point(Function::PollEx(*number), place) {
            points.push(found);
        }
    }
    Ok(Target {
        points,
        sends_are_seen,
    })
}

impl Library {
    fn point(
        &self,
        process: Process,
        function: Function,
        place: &Place,
    ) -> Result<(ProbePoint, Opened), Unfit> {
        let never = |why: &str| Unfit::Never(why.into());
        let (file, reach) = (&self.file, self.reach);
        if reach != Reach::OfItsUser && !self.is_provider {
            return Err(never("the file that it posts from is no provider of verbs"));
        }
        let is_entry = || Code::of(file.file()).is_some_and(|code| code.is_entry(place.offset));
        if reach != Reach::OfItsUser && !is_entry() {
            return Err(never(
                "where it says that it posts from no function of its library begins",
            ));
        }
        let point = ProbePoint {
            function,
            file: file.identity,
            offset: place.offset + after_landing_pad(&file.code(place.offset)),
            process: (reach != Reach::System).then_some(process),
        };
        let failed = |error| Unfit::NotYet(format!("cannot keep the file of its library open: {error}"));
        Ok((point, file.again().map_err(failed)?))
    }
}

/// Returns the first of these processes whose lock is held, or why that is not known: their locks took longer
/// than `most` together. `spent` gets how long each lock was waited for.
fn first_held(
    owners: impl IntoIterator<Item = Party>,
    most: Duration,
    mut ask: impl FnMut(Party) -> Result<Result<(), Unanswered>, String>,
    mut spent: impl FnMut(Party, u64),
) -> Result<Option<u32>, String> {
    let begun = Instant::now();
    for of in owners {
        // None so far holds its lock any more, but to ask all that are left may take many times as long.
        if begun.elapsed() > most {
            return Err("the locks of processes' memory take too long to become free".into());
        }
        let asked = Instant::now();
        let answer = ask(of);
        spent(of, nanos(asked));
        match answer? {
            Ok(()) => {}
            Err(Unanswered::Late) => return Ok(Some(of.process.pid)),
            Err(Unanswered::Lost) => return Err(LOST.into()),
        }
    }
    Ok(None)
}

/// How far a file is trusted. The kernel keeps the probes of a process through exec, also for a program that
/// runs for another user, and then probes what that program maps of the same file. So the place of a probe
/// must be right for that program too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// A file of the system, owned by root: functions of a provider are probed for all processes.
    System,
    /// Any other file: functions of a provider are probed for one process.
    Process,
    /// A file of the user who runs the process, and who may do with both whatever he likes.
    OfItsUser,
}

/// Returns `start_poll` and `next_poll` of a CQ, if they and `end_poll` are three different functions, else
/// nothing. A CQ without such calls has zeros there, or words of the provider's own.
fn polls([start, next, end]: [Option<Place>; 3]) -> Vec<(usize, Place)> {
    let (Some(start), Some(next), Some(end)) = (start, next, end) else {
        return Vec::new();
    };
    let distinct = start != next && next != end && end != start;
    if distinct {
        vec![(0, start), (1, next)]
    } else {
        Vec::new()
    }
}

/// Returns the `ibv_wr_*` calls of a QP that are to be probed: an empty list if it has none, `None` if not
/// all of them can be probed.
fn extended<const N: usize>(
    found: &Functions,
    places: &[Option<Place>; N],
) -> Option<Vec<(Function, Place)>> {
    let [Some(_), Some(complete), Some(abort)] = places.get(WR_START..WR_START + 3)? else {
        // A QP with such calls has these three. For other QPs this memory may hold anything, but hardly ever
        // three addresses of code.
        return Some(Vec::new());
    };
    let begin = BEGIN.map(|(number, opcode)| (number, Function::Begin(opcode)));
    let given = (SET_INLINE_DATA..).zip(GIVE.map(Function::Data));
    let mut calls = Vec::with_capacity(N);
    for (number, function) in begin.into_iter().chain(given) {
        match (found.extended.get(number)?, places.get(number)?) {
            // The program did not ask for this call when it made the QP.
            (0, _) => {}
            (_, Some(place)) => calls.push((function, *place)),
            // An older library has other data after wr_abort.
            (_, None) if number > WR_START => {}
            (_, None) => return None,
        }
    }
    calls.extend([(Function::Abort, *abort), (Function::Complete, *complete)]);
    // If two pointers lead to one function, a probe there cannot distinguish the calls.
    let distinct: BTreeSet<_> = calls
        .iter()
        .map(|(_, place)| (place.range, place.offset))
        .gather();
    (distinct.len() == calls.len()).then_some(calls)
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, fs, os::unix::fs::MetadataExt as _, path::Path};

    use super::{super::hooks::Data, *};

    const N: usize = 22;

    /// A QP whose pointers with these numbers lead to code, each to another function.
    fn qp(pointers: &[usize]) -> (Functions, [Option<Place>; N]) {
        let mut extended = [0; N];
        let mut places = [None; N];
        for number in pointers {
            extended[*number] = 0x1000 + *number as u64;
            places[*number] = Some(Place {
                range: (0x1000, 0x2000),
                offset: *number as u64,
                device: (8, 1),
            });
        }
        let found = Functions {
            post_send: 1,
            post_recv: 2,
            poll_cq: 3,
            polls: [[0; 3]; 2],
            extended,
        };
        (found, places)
    }

    fn party(pid: u32) -> Party {
        let process = Process { pid, start_ns: 7 };
        Party { user: None, process }
    }

    fn names(calls: Option<Vec<(Function, Place)>>) -> Option<Vec<Function>> {
        calls.map(|calls| calls.into_iter().map(|(function, _)| function).collect())
    }

    /// What this process says if the functions of its QP were here.
    fn says(address: u64) -> Posts {
        let mut context = vec![0; 32];
        (context[26], context[27]) = (address, address);
        let mut qp = vec![0; 64];
        (qp[0], qp[6]) = (context.as_ptr() as u64, 17 << 32);
        rdmatop_sources::uprobes::posts(std::process::id(), qp.as_ptr() as u64, 17, true).unwrap()
    }

    /// Code of a file in the memory of this process, from which on a function begins.
    fn mapped(path: &Path) -> u64 {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let file = fs::File::open(path).unwrap();
        let code = Code::of(&file).unwrap();
        let first = (0x1000..0x100_000).find(|offset| code.is_entry(*offset)).unwrap();
        let rights = ProtFlags::READ | ProtFlags::EXEC;
        // SAFETY: the kernel chooses the place, and nobody writes to it or calls it.
        let at = unsafe { mmap(std::ptr::null_mut(), 1 << 20, rights, MapFlags::PRIVATE, &file, 0) };
        at.unwrap() as u64 + first
    }

    #[test]
    fn what_a_process_says_is_probed_where_its_file_confirms_it() {
        let finder = Finder::default();
        let pid = std::process::id();
        let own = Process { pid, start_ns: 7 };
        let (opens, for_all, known_as) = (Cell::new(0), Cell::new(None), Cell::new(None));
        let reach = |posts: &Posts| {
            opens.set(0);
            let open = |mapped: &Mapped, place: &Place| {
                opens.set(opens.get() + 1);
                let known = |file: &Opened, _: &Place| {
                    let known = for_all.get().filter(|(name, _)| *name == file.identity);
                    known.map(|(_, file)| Known { file, for_all: true })
                };
                finder.open(pid, posts.user, mapped, place, known)
            };
            let points = target(own, posts, open).map(|target| target.points);
            points.map(|points| {
                known_as.set(points.first().map(|(point, _)| point.file));
                points.iter().map(|(point, _)| point.process).collect::<Vec<_>>()
            })
        };
        let refused = |posts: &Posts, why: &str| match reach(posts) {
            Err(Unfit::Never(said)) => assert!(said.contains(why), "{said}"),
            other => panic!("{why}: {other:?}"),
        };
        let mut write = says(libc::write as *const () as u64);
        write.user = None;
        if write.file(&write.plain[0].unwrap()).is_none() {
            println!("skipped: /proc/self/map_files cannot be read: this takes CAP_SYS_ADMIN");
            return;
        }
        refused(&write, "no provider of verbs");
        refused(&says(8192), "not in a file");
        let provider = Path::new("/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so");
        if !provider.exists() {
            println!("skipped: no provider on this machine");
            return;
        }
        let at = mapped(provider);
        assert_eq!(reach(&says(at)), Ok(vec![None, None]), "one of the system's");
        assert_eq!(opens.get(), 1, "both functions are in one mapping");
        refused(&says(at + 1), "no function of its library begins");
        // The same library elsewhere: in a container, for one.
        let elsewhere = tempfile::tempdir().unwrap();
        let copy = elsewhere.path().join("libmlx5.so");
        fs::copy(provider, &copy).unwrap();
        let at = mapped(&copy);
        let (mut begins, mut inside) = (says(at), says(at + 1));
        assert_eq!(reach(&inside), Ok(vec![Some(own); 2]), "a file of its own user's");
        // One of the system's, by another name than the one by which it is probed for all.
        let file = fs::metadata(&copy).unwrap();
        for_all.set(Some(((file.dev(), file.ino()), (9, 9))));
        assert_eq!(reach(&begins), Ok(vec![None; 2]));
        assert_eq!(known_as.get(), Some((9, 9)), "one place has one name");
        refused(&inside, "no function of its library begins");
        for_all.set(None);
        (begins.user, inside.user) = (None, None);
        assert_eq!(reach(&begins), Ok(vec![Some(own); 2]));
        refused(&inside, "no function of its library begins");
    }

    #[test]
    fn only_who_does_not_answer_holds_its_lock_and_slow_ones_have_a_limit() {
        let of = |most, slow: bool, held| {
            let mut asked = 0;
            let ask = |of: Party| {
                asked += 1;
                if slow {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Ok(if of.process.pid == held {
                    Err(Unanswered::Late)
                } else {
                    Ok(())
                })
            };
            let found = first_held((1..100).map(party), most, ask, |_, _| ());
            (found, asked)
        };
        let long = Duration::from_secs(1000);
        assert_eq!(of(long, false, 0), (Ok(None), 99));
        assert_eq!(of(long, true, 7), (Ok(Some(7)), 7));
        let (found, asked) = of(Duration::from_millis(5), true, 0);
        assert!(
            (1..4).contains(&asked) && found.unwrap_err().contains("too long"),
            "{asked}"
        );
        let lost = first_held([party(1)], long, |_| Ok(Err(Unanswered::Lost)), |_, _| ());
        assert_eq!(lost, Err(LOST.to_owned()));
    }

    #[test]
    fn the_wait_for_a_lock_is_that_of_the_process_whose_lock_it_is() {
        const SLOW: Duration = Duration::from_millis(30);
        let mut waited = BTreeMap::new();
        let ask = |of: Party| {
            if of.process.pid == 2 {
                std::thread::sleep(SLOW);
            }
            Ok(Ok(()))
        };
        let spent = |of: Party, took_ns| {
            waited.insert(of.process.pid, Duration::from_nanos(took_ns) >= SLOW);
        };
        let long = Duration::from_secs(1000);
        assert_eq!(first_held((1..4).map(party), long, ask, spent), Ok(None));
        assert_eq!(waited, BTreeMap::from([(1, false), (2, true), (3, false)]));
    }

    #[test]
    fn the_calls_of_a_qp_are_those_that_it_has() {
        let (found, places) = qp(&[5, 7, 13, 14, 15, 16, 17, 18, 19]);
        let wanted = vec![
            Function::Begin(0),
            Function::Begin(2),
            Function::Data(Data::Inline),
            Function::Data(Data::InlineList),
            Function::Data(Data::Sge),
            Function::Data(Data::List),
            Function::Abort,
            Function::Complete,
        ];
        assert_eq!(names(extended(&found, &places)), Some(wanted));
    }

    #[test]
    fn a_qp_without_them_has_nothing_to_probe_whatever_lies_there() {
        let (mut found, places) = qp(&[17, 18]);
        found.extended[19] = 77;
        assert_eq!(names(extended(&found, &places)), Some(Vec::new()));
    }

    #[test]
    fn the_calls_of_an_extended_cq_are_three_functions() {
        let at = |offset| {
            Some(Place {
                range: (0x1000, 0x2000),
                offset,
                device: (8, 1),
            })
        };
        assert_eq!(polls([at(1), at(2), at(3)]).len(), 2);
        for none in [
            [None; 3],
            [at(1), at(2), None],
            [at(1), at(1), at(3)],
            [at(1), at(2), at(1)],
        ] {
            assert_eq!(polls(none), Vec::new());
        }
    }

    #[test]
    fn calls_that_cannot_be_probed_or_told_apart_leave_sends_unknown() {
        let (mut found, places) = qp(&[5, 15, 17, 18, 19]);
        found.extended[7] = 77;
        assert_eq!(names(extended(&found, &places)), None, "a pointer to no code");
        let (mut found, mut places) = qp(&[5, 15, 17, 18, 19]);
        (found.extended[7], places[7]) = (found.extended[5], places[5]);
        assert_eq!(names(extended(&found, &places)), None, "two of one function");
        let (mut found, places) = qp(&[5, 15, 17, 18, 19]);
        (found.extended[20], found.extended[21]) = (1, u64::MAX);
        assert_eq!(
            names(extended(&found, &places)).map(|calls| calls.len()),
            Some(4),
            "an older library"
        );
    }
}
