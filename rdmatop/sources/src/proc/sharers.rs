//! Processes that have an open verbs file of another process, too: after fork(2), or because a descriptor was
//! passed (unix(7), `SCM_RIGHTS`).
//!
//! A QP belongs to the process that made it, and lasts until the last descriptor of its verbs file is closed.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind},
};

use crate::{
    execs,
    open_files::{self, OpenFile},
    root::Root,
};

/// The largest number of open files that one search reads of the processes of one user: no working machine
/// has so many, and the search must end. It then goes on with other users' processes.
const MOST_FILES: usize = 200_000;
/// The largest number of pairs of a verbs file of the process and one of another process with the same path:
/// any user can open a device a hundred thousand times. Beyond it that other process is not compared.
const MOST_PAIRS: usize = 1 << 14;
/// After so many pairs no other process of that user is compared: about a second of kcmp(2).
const MOST_PAIRS_OF_ALL: usize = 1_000_000;

/// The processes that share verbs files with a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sharers {
    /// Number and name of each, by number; names are safe to print.
    pub found: Vec<(u32, String)>,
    /// How many processes have open files that could not be read or compared.
    pub hidden: usize,
    /// The search stopped at its limit.
    pub cut: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct VerbsFile {
    /// A thread that has it, and its number there.
    at: (u32, u32),
    path: Vec<u8>,
}

/// Open verbs files of a process; `looked` counts the files that were read.
fn verbs_files(root: &Root, pid: u32, looked: &mut usize) -> io::Result<Vec<VerbsFile>> {
    let left = MOST_FILES.saturating_sub(*looked);
    let read = execs::one(root, pid, move |root, pid| {
        open_files::read(root, pid, left, |path| {
            path.starts_with(b"/dev/infiniband/uverbs")
        })
    });
    let read = read.unwrap_or_else(|| Err(ErrorKind::TimedOut.into()))?;
    *looked += read.looked + usize::from(read.cut);
    let of = |file: OpenFile| {
        let at = open_files::descriptor(&file.link)?;
        Some(VerbsFile {
            at,
            path: file.target,
        })
    };
    Ok(read.wanted.into_iter().filter_map(of).collect())
}

/// Whether two descriptors are of one open file: kcmp(2), `KCMP_FILE`.
fn is_same(one: (u32, u32), other: (u32, u32)) -> io::Result<bool> {
    const KCMP_FILE: libc::c_int = 0;
    // SAFETY: takes numbers alone.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one.0, other.0, KCMP_FILE, one.1, other.1) };
    if order < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(order == 0)
}

/// Which processes have a verbs file of `pid` open; `None` if it has none. Fails where its own files cannot
/// be read.
pub fn sharers(root: &Root, pid: u32) -> io::Result<Option<Sharers>> {
    search(root, pid, root.pids(), is_same)
}

/// As [`sharers`], among `pids`, compared by `is_same`.
fn search(
    root: &Root,
    pid: u32,
    pids: impl IntoIterator<Item = u32>,
    is_same: impl Fn((u32, u32), (u32, u32)) -> io::Result<bool> + Clone + Send + Sync + 'static,
) -> io::Result<Option<Sharers>> {
    let mut out = Sharers::default();
    let mut looked = 0;
    let mut own: BTreeMap<_, Vec<(u32, u32)>> = BTreeMap::new();
    for file in verbs_files(root, pid, &mut looked)? {
        own.entry(file.path).or_default().push(file.at);
    }
    out.cut = looked > MOST_FILES;
    let Some(at) = own.values().flatten().next().copied() else {
        return Ok(None);
    };
    // kcmp(2) waits for a process that is in execve(2): first for the one that all others are compared with.
    let itself = is_same.clone();
    if execs::one(root, pid, move |_, _| itself(at, at)).is_none() {
        return Err(ErrorKind::TimedOut.into());
    }
    // Files that were read and pairs that were compared, by user.
    let mut spent: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
    let users = open_files::Users::default();
    for other in pids.into_iter().filter(|other| *other != pid) {
        let user = users.of(root, other);
        let (looked, compared) = spent.entry(user).or_default();
        if *looked > MOST_FILES || *compared > MOST_PAIRS_OF_ALL {
            out.cut = true;
            continue;
        }
        let theirs = match verbs_files(root, other, looked) {
            Ok(files) => files,
            Err(error) => {
                let is_hidden = [ErrorKind::PermissionDenied, ErrorKind::TimedOut].contains(&error.kind());
                out.hidden += usize::from(is_hidden);
                continue;
            }
        };
        out.cut |= *looked > MOST_FILES;
        // The path alone says nothing: each process that uses a device opens it.
        let of_path = |path| own.get(path).map_or(&[][..], Vec::as_slice);
        let number: usize = theirs.iter().map(|their| of_path(&their.path).len()).sum();
        if number > MOST_PAIRS {
            out.hidden += 1;
            continue;
        }
        let pairs = theirs
            .iter()
            .flat_map(|their| of_path(&their.path).iter().map(move |mine| (*mine, their.at)));
        let (pairs, is_same): (Vec<_>, _) = (pairs.collect(), is_same.clone());
        if pairs.is_empty() {
            continue;
        }
        *compared += pairs.len();
        let answer = execs::one(root, other, move |_, _| {
            let mut same = pairs.iter().map(|(mine, their)| is_same(*mine, *their));
            same.find(|same| !matches!(same, Ok(false)))
        });
        let Some(first) = answer else {
            out.hidden += 1;
            continue;
        };
        match first {
            Some(Ok(_)) => {
                out.found.push((other, root.comm(other)));
            }
            // One of them has closed the file, or has ended.
            Some(Err(error)) if matches!(error.raw_os_error(), Some(libc::EBADF | libc::ESRCH)) => {}
            Some(Err(_)) => out.hidden += 1,
            None => {}
        }
    }
    out.found.sort_unstable();
    Ok(Some(out))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::File,
        os::fd::AsRawFd,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use super::*;
    use crate::fake::Fake;

    fn fd(fake: &Fake, pid: u32, fd: u32, target: &str) {
        fake.link(format!("proc/{pid}/fd/{fd}"), target);
    }

    #[test]
    fn only_processes_with_the_same_open_file_are_found() {
        let fake = Fake::new();
        fd(&fake, 7, 3, "/dev/infiniband/uverbs0");
        fd(&fake, 7, 4, "/dev/null");
        // A child, a process that opened the device itself, one that has another device, and one that has
        // ended.
        fd(&fake, 8, 3, "/dev/infiniband/uverbs0");
        fake.proc("8/comm", "a\x1bchild\n");
        fd(&fake, 9, 5, "/dev/infiniband/uverbs0");
        fd(&fake, 10, 3, "/dev/infiniband/uverbs1");
        let names = || [7, 8, 9, 10, 11];
        let found = search(&fake.root(), 7, names(), |one, other| {
            assert_eq!(one, (7, 3));
            assert_ne!(other.0, 10, "of another device");
            Ok(other == (8, 3))
        });
        let expected = Sharers {
            found: vec![(8, "a\\x1bchild".to_owned())],
            ..Sharers::default()
        };
        assert_eq!(found.unwrap(), Some(expected));
        let forbidden = |_, _| Err(io::Error::from_raw_os_error(libc::EPERM));
        let hidden = search(&fake.root(), 7, names(), forbidden).unwrap().unwrap();
        assert_eq!((hidden.found.len(), hidden.hidden), (0, 2));
        let ended = |_, _| Err(io::Error::from_raw_os_error(libc::ESRCH));
        assert_eq!(
            search(&fake.root(), 7, names(), ended).unwrap(),
            Some(Sharers::default())
        );
        fd(&fake, 13, 0, "/dev/null");
        assert_eq!(search(&fake.root(), 13, names(), forbidden).unwrap(), None);
        assert!(
            search(&fake.root(), 12, names(), forbidden).is_err(),
            "its files are not known"
        );
    }

    #[test]
    fn a_process_with_too_many_verbs_files_is_not_compared_but_unknown() {
        let fake = Fake::new();
        let mut names = vec![7, 8, 9];
        for n in 0..129 {
            fd(&fake, 7, n, "/dev/infiniband/uverbs0");
            fd(&fake, 8, n, "/dev/infiniband/uverbs0");
        }
        fd(&fake, 9, 3, "/dev/infiniband/uverbs0");
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let different = move |_, _| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(false)
        };
        let calls = || calls.load(Ordering::Relaxed);
        let got = search(&fake.root(), 7, names.clone(), different.clone());
        let got = got.unwrap().unwrap();
        assert_eq!((got.hidden, got.cut, calls()), (1, false, 1 + 129));
        // Each of very many processes has few.
        fake.proc("9/status", "Uid:\t1000\t0\t0\t0\n");
        names = vec![9; 10_000];
        let got = search(&fake.root(), 7, names.clone(), different)
            .unwrap()
            .unwrap();
        assert_eq!((got.hidden, got.cut), (0, true));
        assert!(calls() <= 2 * 130 + MOST_PAIRS_OF_ALL);
        // Another user's process behind them is found.
        fd(&fake, 10, 3, "/dev/infiniband/uverbs0");
        names.push(10);
        let of_ten = |_, (pid, _)| Ok(pid == 10);
        let got = search(&fake.root(), 7, names.clone(), of_ten).unwrap().unwrap();
        assert_eq!((got.found, got.cut), (vec![(10, String::new())], true));
    }

    #[test]
    fn the_kernel_tells_one_open_file_from_two_of_one_path() {
        let own = std::process::id();
        let raw = |file: &File| (own, file.as_raw_fd().cast_unsigned());
        let [one, other] = [(); 2].map(|()| File::open("/dev/null").unwrap());
        let copy = one.try_clone().unwrap();
        match is_same(raw(&one), raw(&copy)) {
            Ok(same) => {
                assert!(same);
                assert!(!is_same(raw(&one), raw(&other)).unwrap());
                assert_eq!(
                    is_same(raw(&one), (own, 1 << 20)).unwrap_err().raw_os_error(),
                    Some(libc::EBADF)
                );
            }
            Err(error) => eprintln!("skipped: kcmp(2): {error}"),
        }
    }
}
