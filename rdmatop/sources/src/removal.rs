//! Devices whose removal waits until no process holds them.
//!
//! `ib_unregister_device` first removes the device from netlink's list, then asks each client to let go, and
//! only then removes it from sysfs. The client of a driver that cannot disconnect its users
//! (`ib_uverbs_remove_one`) waits there until the last of them closes its file: traffic goes on, netlink does
//! not list the device, and its file in `/dev` is gone.
use std::ffi::{OsStr, OsString};
use std::{collections::BTreeMap, fmt, ops::ControlFlow, thread, time::Duration};

use super::{
    netlink::name::Name,
    open_files::{self, Ends, OpenFile, verbs_file},
    sysfs::{device_dir, list_devices, verbs_files},
};
use crate::root::Root;
use rdmatop_base::order::Ordered as _;

/// A process that holds a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// Process id.
    pub pid: u32,
    /// Its name, safe to print; empty when it ended meanwhile.
    pub comm: String,
}

/// The processes that hold devices that are being removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// The processes that were found, by number.
    pub found: Vec<Holder>,
    /// The open files of some processes were not readable.
    pub hidden: bool,
    /// The search stopped at its limit.
    pub cut: bool,
}

/// The number of holders that are named.
const NAMED: usize = 8;

impl Holders {
    /// The processes that were found, in words: `220 (ib_send_bw), 231 (python3) and 3 more`.
    pub fn named(&self) -> String {
        let named = self.found.iter().take(NAMED);
        let mut names: Vec<String> = named
            .map(|holder| format!("{} ({})", holder.pid, holder.comm))
            .collect();
        let more = self.found.len() - names.len();
        if more > 0 {
            names.push(format!("{more} more"));
        }
        if self.cut {
            names.push("maybe others of a user with too many open files to look at".to_owned());
        }
        if self.hidden {
            names.push("maybe processes of other users".to_owned());
        }
        let last = names.pop().unwrap_or_default();
        if names.is_empty() {
            return last;
        }
        format!("{} and {last}", names.join(", "))
    }
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.found.is_empty(), self.hidden, self.cut) {
            (true, false, false) => f.write_str("no process has it open"),
            (true, true, false) => f.write_str("no process that you may inspect has it open: run with sudo"),
            // Nobody was found is no proof: a user who wants to stay unseen can open as many files.
            (true, _, true) => write!(f, "who has it open is not known: {}", self.named()),
            (false, ..) => write!(f, "held by {}", self.named()),
        }
    }
}

/// Directories in `/sys/class/infiniband` of devices that are being removed (or, for some milliseconds,
/// created): netlink does not list them. `listed` returns whether it lists one.
///
/// `shared`: devices are visible in every network namespace (`rdma system`). Otherwise netlink also leaves
/// out devices of another namespace; these still have their verbs file, which a removal takes away first.
pub fn unlisted(
    root: &Root,
    dirs: &[OsString],
    listed: impl Fn(&OsStr) -> bool,
    shared: bool,
) -> Vec<OsString> {
    let mut left: Vec<OsString> = dirs.iter().filter(|dir| !listed(dir)).cloned().collect();
    if left.is_empty() {
        return left;
    }
    let files = verbs_dirs(root);
    if files.is_none() && !shared {
        return Vec::new();
    }
    let files = files.unwrap_or_default();
    left.retain(|dir| !files.values().any(|device| device == dir));
    left
}

/// As [`unlisted`], twice: a device that is being created looks for some milliseconds like one that is being
/// removed. `listed` asks netlink for the devices that it lists, all of them.
///
/// # Errors
///
/// Returns the error of `listed`.
pub fn waiting<E>(
    root: &Root,
    shared: bool,
    mut listed: impl FnMut() -> Result<Vec<Name>, E>,
) -> Result<Vec<OsString>, E> {
    let mut look = || {
        let listed = listed()?;
        let names: Vec<_> = listed
            .iter()
            .filter_map(|name| device_dir(name.as_bytes()))
            .collect();
        let has = |dir: &OsStr| names.iter().any(|name| name == dir);
        Ok(unlisted(
            root,
            &list_devices(root).unwrap_or_default(),
            has,
            shared,
        ))
    };
    let mut found = look()?;
    if !found.is_empty() {
        thread::sleep(Duration::from_millis(250));
        let still = look()?;
        found.retain(|dir| still.contains(dir));
    }
    Ok(found)
}

/// Verbs files and the directories of their devices; `None` where ib_uverbs is not loaded.
fn verbs_dirs(root: &Root) -> Option<BTreeMap<OsString, OsString>> {
    let of = |(file, device): (OsString, Vec<u8>)| Some((file, device_dir(&device)?));
    Some(verbs_files(root).ok()?.into_iter().filter_map(of).collect())
}

/// Processes with an open verbs file that its device no longer has.
pub fn holders(root: &Root) -> Holders {
    // Behind the links of a tree that is not this machine's there are no devices.
    search(root, root.is_live())
}

/// Major numbers of verbs files, by which `ib_uverbs_init` (drivers/infiniband/core/uverbs_main.c) registered
/// them: the device of a file that has none any more is not in sysfs. `None`: the list is not readable.
fn majors(root: &Root) -> Option<Vec<u32>> {
    const LIMIT: usize = 64 << 10;
    let list = root.bytes(&root.proc("devices"), LIMIT)?;
    let major = |line: &str| line.trim().strip_suffix(" infiniband_verbs")?.parse().ok();
    Some(String::from_utf8_lossy(&list).lines().filter_map(major).collect())
}

/// As [`holders`]; `checked`: only files that are devices, because any user can give a file of his the name
/// of a verbs file.
fn search(root: &Root, checked: bool) -> Holders {
    let files = verbs_dirs(root).unwrap_or_default();
    let majors = majors(root);
    let is_device = |open: &OpenFile| {
        let is_ours = |major| majors.as_ref().is_none_or(|majors| majors.contains(&major));
        open.device.is_some_and(|(major, _)| is_ours(major))
    };
    let mut found = Vec::new();
    let walk = open_files::walk(
        root,
        open_files::MOST,
        |file| verbs_file(file).is_some(),
        |holder, open| {
            if !is_orphan(&open.target, &files) || checked && !is_device(open) {
                return ControlFlow::Continue(());
            }
            let (pid, comm) = (holder.pid, root.comm(holder.pid));
            found.push(Holder { pid, comm });
            ControlFlow::Break(Ends::Process)
        },
    );
    found.order_by(Ord::cmp);
    Holders {
        found,
        hidden: walk.hidden,
        cut: walk.cut,
    }
}

/// Whether an open file is a verbs file of a device that has none any more. In a container with its own
/// device node the file still exists, but no device has that number.
fn is_orphan(target: &[u8], files: &BTreeMap<OsString, OsString>) -> bool {
    verbs_file(target).is_some_and(|(name, deleted)| deleted || !files.contains_key(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    fn names(list: &[&str]) -> Vec<OsString> {
        list.iter().map(OsString::from).collect()
    }

    #[test]
    fn holders_are_named_and_the_rest_counted() {
        let said = |count: u32, hidden, cut| {
            let one = |pid| Holder {
                pid,
                comm: "x".to_owned(),
            };
            let holders = Holders {
                found: (1..=count).map(one).collect(),
                hidden,
                cut,
            };
            holders.to_string()
        };
        let words = |count, hidden| said(count, hidden, false);
        assert_eq!(words(1, false), "held by 1 (x)");
        assert_eq!(words(3, false), "held by 1 (x), 2 (x) and 3 (x)");
        assert_eq!(words(1, true), "held by 1 (x) and maybe processes of other users");
        assert!(words(10, false).ends_with("8 (x) and 2 more"));
        assert_eq!(words(0, false), "no process has it open");
        assert!(words(0, true).contains("sudo"));
        for (count, hidden) in [(0, false), (0, true), (1, false), (1, true), (10, false)] {
            let cut = said(count, hidden, true);
            assert!(
                cut.contains("too many open files") && !cut.contains("no process"),
                "{cut}"
            );
            assert_eq!(cut.contains("other users"), hidden, "{cut}");
        }
    }

    #[test]
    fn a_device_without_verbs_file_that_netlink_lacks_is_being_removed() {
        let fake = Fake::new();
        fake.sys("class/infiniband_verbs/abi_version", "6\n")
            .sys("class/infiniband_verbs/uverbs1/ibdev", "mlx5/1\n");
        let dirs = names(&["mlx5!1", "mlx5_0", "rxe0"]);
        let got = |shared| unlisted(&fake.root(), &dirs, |dir| dir == "mlx5_0", shared);
        // mlx5/1 has its file: another network namespace's.
        assert_eq!((got(true), got(false)), (names(&["rxe0"]), names(&["rxe0"])));
    }

    #[test]
    fn another_network_namespace_is_not_taken_for_a_removal() {
        let fake = Fake::new();
        let got = |shared| unlisted(&fake.root(), &names(&["mlx5_0"]), |_| false, shared);
        assert_eq!((got(true), got(false)), (names(&["mlx5_0"]), vec![]));
        assert_eq!(
            unlisted(&fake.root(), &names(&["mlx5_0"]), |_| true, true),
            names(&[])
        );
    }

    #[test]
    fn a_holder_has_a_verbs_file_without_a_device() {
        let fake = Fake::new();
        fake.sys("class/infiniband_verbs/uverbs1/ibdev", "mlx5_0\n");
        let process = |pid: u32, comm: &str, target: &str| {
            fake.proc(format!("{pid}/comm"), comm);
            fake.dir(format!("proc/{pid}/fd"))
                .link(format!("proc/{pid}/fd/3"), target);
        };
        process(231, "ib_send\x1b[2Jbw\n", "/dev/infiniband/uverbs0 (deleted)");
        process(9, "a\n", "/dev/infiniband/uverbs1");
        // The number was given to another device meanwhile.
        process(10, "b\n", "/dev/infiniband/uverbs1 (deleted)");
        // A container's own node.
        process(11, "c\n", "/uverbs7");
        process(12, "d\n", "/dev/infiniband/uverbsx (deleted)");
        process(13, "e\n", "/tmp/uverbs (deleted)");
        fake.proc("self/comm", "x\n");
        let got = holders(&fake.root());
        let found: Vec<(u32, &str)> = got.found.iter().map(|h| (h.pid, &*h.comm)).collect();
        assert_eq!(found, [(10, "b"), (11, "c"), (231, "ib_send\\x1b[2Jbw")]);
        assert!(!got.hidden && !got.cut);
    }

    #[test]
    fn a_file_that_is_only_called_like_a_verbs_file_holds_nothing() {
        let fake = Fake::new();
        // /dev/null plays the device, a terminal another one.
        for (pid, device) in [(7, Some("/dev/null")), (8, Some("/dev/tty")), (9, None)] {
            let name = format!("{pid}/uverbs0");
            let target = fake.path().join("etc").join(&name);
            match device {
                Some(device) => fake.link(&target, device),
                None => fake.etc(&name, "a regular file"),
            };
            fake.dir(format!("proc/{pid}/fd"))
                .link(format!("proc/{pid}/fd/3"), target);
        }
        let holders = |checked| -> Vec<u32> {
            let found = search(&fake.root(), checked).found;
            found.iter().map(|holder| holder.pid).collect()
        };
        assert_eq!(holders(false), [7, 8, 9]);
        assert_eq!(
            holders(true),
            [7, 8],
            "which majors are of verbs files is not known"
        );
        fake.proc(
            "devices",
            "Character devices:\n  1 infiniband_verbs\n  5 /dev/tty\n",
        );
        assert_eq!(holders(true), [7]);
        fake.proc("devices", "Character devices:\n  1 mem\n");
        assert_eq!(holders(true), [0; 0], "ib_uverbs is not loaded");
    }
}
