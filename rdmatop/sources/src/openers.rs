//! Which processes have a device open: by their descriptors of `/dev/infiniband/uverbs*`.
//!
//! A process can use a device through queue pairs that the kernel does not list, but not without its verbs
//! file. It may use that without a descriptor: by a mapping. Then the device has more contexts than its file
//! has descriptors.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    ops::ControlFlow,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
};

use super::{
    open_files::{self, verbs_file},
    sysfs::verbs_files,
};
use crate::root::Root;
use rdmatop_base::order::{Gather as _, Ordered as _};
use rdmatop_base::text;
use rdmatop_model::input::{Opener, OpenersSample};

/// Looks at the open files of every process: pairs of device and process, each once, sorted by process. What
/// else is known of these, and the time, is for the caller to add.
pub fn openers(root: &Root) -> OpenersSample {
    // Behind the links of a tree that is not this machine's there are no devices.
    search(root, open_files::MOST, root.is_live())
}

/// As [`openers`], of `most` files of one user; `checked`: only files that are devices, by their numbers,
/// because any user can give a file of his the name of a verbs file.
fn search(root: &Root, most: usize, checked: bool) -> OpenersSample {
    let devices = devices(root);
    let mut found = Vec::new();
    let walk = open_files::walk(root, most, is_verbs_file, |holder, open| {
        let device = verbs_file(&open.target).and_then(|(file, _)| {
            if !checked {
                return devices.get(file.as_bytes());
            }
            let (major, minor) = open.device?;
            devices.get(format!("{major}:{minor}").as_bytes())
        });
        found.extend(device.map(|device| (device.clone(), holder.pid)));
        ControlFlow::Continue(())
    });
    let mut files = BTreeMap::new();
    for (device, _) in &found {
        *files.entry(device.clone()).or_default() += 1;
    }
    found.order_by(|a: &(String, u32), b| (a.1, &a.0).cmp(&(b.1, &b.0)));
    found.dedup();
    let opener = |(device, pid)| Opener {
        device,
        pid,
        ..Opener::default()
    };
    OpenersSample {
        mono_ns: 0,
        found: found.into_iter().map(opener).collect(),
        files,
        hidden: walk.hidden,
        cut: walk.cut,
    }
}

/// Devices by the names of their verbs files, and by the numbers of these, such as `231:192`.
fn devices(root: &Root) -> BTreeMap<Vec<u8>, String> {
    let class = root.sys("class/infiniband_verbs");
    let device = |(file, device): (OsString, Vec<u8>)| {
        let device = text::sanitize(&device);
        let keys = [root.value(&class.join(&file).join("dev")), Some(file.into_vec())];
        keys.into_iter().flatten().map(move |key| (key, device.clone()))
    };
    let files = verbs_files(root).unwrap_or_default().into_iter();
    files.flat_map(device).gather()
}

/// One that was deleted is left out: it belongs to a device that is being removed.
fn is_verbs_file(target: &[u8]) -> bool {
    verbs_file(target).is_some_and(|(_, is_deleted)| !is_deleted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    fn fd(fake: &Fake, pid: u32, fd: u32, target: &str) {
        fake.dir(format!("proc/{pid}/fd"));
        fake.link(format!("proc/{pid}/fd/{fd}"), target);
    }

    #[test]
    fn a_device_is_open_in_the_processes_with_a_descriptor_of_its_file() {
        let fake = Fake::new();
        fake.sys("class/infiniband_verbs/abi_version", "6\n")
            .sys("class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n")
            .sys("class/infiniband_verbs/uverbs1/ibdev", "mlx5/\x1b[2J\n");
        fd(&fake, 231, 3, "/dev/infiniband/uverbs0");
        // Two contexts of one device, and another device.
        fd(&fake, 231, 4, "/dev/infiniband/uverbs0");
        fd(&fake, 231, 5, "/dev/infiniband/uverbs1");
        // A container's own node.
        fd(&fake, 17, 3, "/uverbs0");
        for (fd_no, target) in [
            (3, "/dev/infiniband/uverbs0 (deleted)"),
            (4, "/dev/infiniband/uverbs7"),
            (5, "/dev/infiniband/uverbs"),
            (6, "/dev/infiniband/rdma_cm"),
            (7, "/home/uverbs0x"),
        ] {
            fd(&fake, 9, fd_no, target);
        }
        let got = openers(&fake.root());
        let found: Vec<(&str, u32)> = got.found.iter().map(|one| (&*one.device, one.pid)).collect();
        assert_eq!(found, [("mlx5_0", 17), ("mlx5/\\x1b[2J", 231), ("mlx5_0", 231)]);
        assert!(!got.hidden && !got.cut);
        assert_eq!(
            got.files,
            [("mlx5_0".into(), 3), ("mlx5/\\x1b[2J".into(), 1)].into()
        );
    }

    #[test]
    fn a_search_ends_at_its_limit_and_says_so() {
        let fake = Fake::new();
        fake.sys("class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n");
        for n in 0..5 {
            fd(&fake, 9, n, "/dev/infiniband/uverbs0");
        }
        assert!(search(&fake.root(), 4, false).cut);
        assert!(!search(&fake.root(), 5, false).cut);
    }

    #[test]
    fn a_file_that_is_only_called_like_a_verbs_file_is_none() {
        let fake = Fake::new();
        // /dev/null plays the device.
        fake.sys("class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n")
            .sys("class/infiniband_verbs/uverbs0/dev", "1:3\n");
        for (pid, device) in [(7, Some("/dev/null")), (8, Some("/dev/zero")), (9, None)] {
            let name = format!("{pid}/uverbs0");
            let target = fake.path().join("etc").join(&name);
            match device {
                Some(device) => fake.link(&target, device),
                None => fake.etc(&name, "a regular file"),
            };
            fake.dir(format!("proc/{pid}/fd"))
                .link(format!("proc/{pid}/fd/3"), target);
        }
        let found = search(&fake.root(), 99, true).found;
        let found: Vec<(&str, u32)> = found.iter().map(|one| (&*one.device, one.pid)).collect();
        assert_eq!(found, [("mlx5_0", 7)]);
        assert_eq!(search(&fake.root(), 99, false).found.len(), 3);
    }

    #[test]
    fn without_verbs_files_nothing_is_open() {
        let fake = Fake::new();
        fd(&fake, 9, 3, "/dev/infiniband/uverbs0");
        let got = openers(&fake.root());
        assert!(got.found.is_empty() && got.files.is_empty() && !got.hidden && !got.cut);
    }
}
