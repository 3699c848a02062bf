//! Port counters: `ports/N/counters` (IB performance management) and `ports/N/hw_counters` (the driver's own
//! names).
use std::ffi::{OsStr, OsString};
use std::{fs::File, os::unix::ffi::OsStrExt, os::unix::fs::FileExt, sync::Arc};

use super::device::device_path;
use crate::clock::timed;
use crate::root::{Root, meaningful, parse_u64};
use rdmatop_base::text;
use rdmatop_model::input::ReadAt;

/// Which counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterGroup {
    /// `counters/`: names fixed by the IB specification. rxe has no such directory; drivers without a PMA
    /// answer `N/A (no PMA)` or EINVAL.
    Port,
    /// `hw_counters/`: names of the driver. The same values come over RDMA netlink (`STAT_GET`) in one
    /// message.
    Hardware,
    /// `hw_counters/` of the device itself (`alloc_hw_device_stats`), which netlink does not have.
    Device,
}

/// The content of a counter's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileValue {
    /// Count since the device appeared, in the file's own unit: `port_xmit_data` and `port_rcv_data` of
    /// [`CounterGroup::Port`] count words of 32 bits.
    Value(u64),
    /// The device has no such counter.
    Absent,
    /// The device has the counter, and its value is not known.
    Failed,
}

/// The open counter files of one port: a round costs one `pread` for each counter instead of open, read and
/// close.
///
/// An open sysfs file does not hold the device: after removal every read fails. Files of a device that was
/// added again have to be opened again. Each counter takes one file descriptor.
#[derive(Debug)]
pub struct CounterFiles {
    group: CounterGroup,
    files: Vec<CounterFile>,
}

#[derive(Debug)]
struct CounterFile {
    name: Arc<str>,
    /// `None` when it could not be opened.
    file: Option<File>,
    /// It had a value once: the counter exists, whatever the file contains now.
    seen: bool,
    /// The device did not have the counter at the last reading.
    absent: bool,
    /// The driver or the firmware failed at the last reading.
    broke: bool,
}

impl CounterFiles {
    /// Opens the files that exist and whose names are `wanted`; a port without the directory has no counters.
    pub fn open(
        root: &Root,
        device: &OsStr,
        port: u32,
        group: CounterGroup,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Self {
        let dir = device_path(root, device).map(|dir| match group {
            CounterGroup::Device => dir.join("hw_counters"),
            CounterGroup::Hardware => dir.join(format!("ports/{port}/hw_counters")),
            CounterGroup::Port => dir.join(format!("ports/{port}/counters")),
        });
        let names = dir.as_ref().and_then(|dir| root.list(dir)).unwrap_or_default();
        let open = |name: OsString| CounterFile {
            name: text::sanitize(name.as_bytes()).into(),
            file: dir.as_ref().and_then(|dir| root.open(&dir.join(&name))),
            seen: false,
            absent: false,
            broke: false,
        };
        Self {
            group,
            files: names
                .into_iter()
                // `lifespan` is the age in ms at which the kernel reads the others again.
                .filter(|name| name != "lifespan" && wanted(name.as_bytes()))
                .map(open)
                .collect(),
        }
    }

    /// Takes over what is known from `before`, the files of the same port.
    pub fn follow(&mut self, before: &Self) {
        if before.group != self.group {
            return;
        }
        for file in &mut self.files {
            if let Some(known) = before.files.iter().find(|known| known.name == file.name) {
                (file.seen, file.absent) = (known.seen, known.absent);
            }
        }
    }

    /// Which counters these are.
    pub fn group(&self) -> CounterGroup {
        self.group
    }

    /// The names of the counters, but of those that the device lacked at the last reading.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        let there = self.files.iter().filter(|file| !file.absent);
        there.map(|file| &file.name)
    }

    /// Whether the driver or the firmware failed at one of them at the last reading.
    pub fn broke(&self) -> bool {
        self.files.iter().any(|file| file.broke)
    }

    /// Reads all counters now, and returns when each was read.
    pub fn read(&mut self) -> impl Iterator<Item = (&Arc<str>, FileValue, ReadAt)> {
        let group = self.group;
        self.files.iter_mut().map(move |file| {
            let (said, span) = timed(|| file.read(group));
            (&file.name, said, span)
        })
    }
}

impl CounterFile {
    fn read(&mut self, group: CounterGroup) -> FileValue {
        let mut buf = [0; 64];
        // From offset zero the kernel shows the attribute afresh (seq_read_iter, kernfs_file_read_iter).
        let read = self.file.as_ref().map(|file| file.read_at(&mut buf, 0));
        self.broke = matches!(&read, Some(Err(error)) if is_failure(error.raw_os_error()));
        let said = match read {
            None => FileValue::Failed,
            Some(Ok(len)) => value(buf.get(..len).unwrap_or_default()),
            Some(Err(error)) => refusal(group, error.raw_os_error()),
        };
        self.seen |= matches!(said, FileValue::Value(_));
        self.absent = said == FileValue::Absent && !self.seen;
        if said == FileValue::Absent && self.seen {
            return FileValue::Failed;
        }
        said
    }
}

/// The value in a file. All ones is the firmware's way to say "not known".
pub fn value(raw: &[u8]) -> FileValue {
    if raw.trim_ascii().starts_with(b"N/A") {
        return FileValue::Absent;
    }
    meaningful(raw)
        .and_then(parse_u64)
        .filter(|value| *value != u64::MAX)
        .map_or(FileValue::Failed, FileValue::Value)
}

/// What a failed read means. A device without performance management lists the counters all the same and
/// refuses each (`get_perf_mad` returns EINVAL); a driver lists in `hw_counters` only counters that it has.
fn refusal(group: CounterGroup, errno: Option<i32>) -> FileValue {
    match errno {
        Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT)
            if group == CounterGroup::Port =>
        {
            FileValue::Absent
        }
        _ => FileValue::Failed,
    }
}

/// Whether an errno means that a driver or its firmware failed, and not that it has no such counter. EFA's
/// driver returns ETIME where a command has no answer (`efa_com.c`).
pub fn is_failure(errno: Option<i32>) -> bool {
    matches!(
        errno,
        Some(libc::EIO | libc::ETIMEDOUT | libc::ETIME | libc::EREMOTEIO)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    const COUNTERS: &str = "class/infiniband/mlx5_0/ports/1/counters";

    #[test]
    fn a_driver_that_failed_is_told_from_a_counter_that_it_lacks() {
        for errno in [libc::EIO, libc::ETIMEDOUT, libc::ETIME, libc::EREMOTEIO] {
            assert!(is_failure(Some(errno)), "{errno}");
        }
        for errno in [libc::EINVAL, libc::EOPNOTSUPP, libc::ENOENT, libc::EACCES] {
            assert!(!is_failure(Some(errno)), "{errno}");
        }
        assert!(!is_failure(None));
    }

    fn open(fake: &Fake, group: CounterGroup) -> CounterFiles {
        CounterFiles::open(&fake.root(), OsStr::new("mlx5_0"), 1, group, |_| true)
    }

    fn said(files: &mut CounterFiles) -> Vec<(String, FileValue)> {
        let read = files.read();
        read.map(|(name, said, _)| (name.to_string(), said)).collect()
    }

    fn read(fake: &Fake, group: CounterGroup) -> Vec<(String, FileValue)> {
        said(&mut open(fake, group))
    }

    #[test]
    fn a_counter_says_what_its_file_says_words_where_it_counts_words() {
        let fake = Fake::new();
        fake.sys(format!("{COUNTERS}/port_xmit_data"), "1000\n")
            .sys(format!("{COUNTERS}/port_xmit_packets"), "7\n");
        let hw = "class/infiniband/mlx5_0/ports/1/hw_counters";
        fake.sys(format!("{hw}/port_xmit_data"), "3")
            .sys(format!("{hw}/lifespan"), "10");
        fake.sys(format!("{hw}/any\x1bname"), "9\n");
        assert_eq!(
            read(&fake, CounterGroup::Port),
            [
                ("port_xmit_data".into(), FileValue::Value(1000)),
                ("port_xmit_packets".into(), FileValue::Value(7))
            ]
        );
        assert_eq!(
            read(&fake, CounterGroup::Hardware),
            [
                ("any\\x1bname".into(), FileValue::Value(9)),
                ("port_xmit_data".into(), FileValue::Value(3))
            ]
        );
    }

    #[test]
    fn an_empty_counter_file_is_not_zero_and_affects_no_other() {
        use FileValue::{Absent, Failed, Value};
        let fake = Fake::new();
        for (name, content) in [
            ("a_no_pma", "N/A (no PMA)\n"),
            ("b_empty", ""),
            ("c_all_ones", "18446744073709551615"),
            ("d_too_big", "99999999999999999999"),
            ("e_words", "many\n"),
            ("f_good", "0\n"),
        ] {
            fake.sys(format!("{COUNTERS}/{name}"), content);
        }
        fake.dir(format!("sys/{COUNTERS}/g_directory"));
        let said: Vec<FileValue> = read(&fake, CounterGroup::Port)
            .into_iter()
            .map(|(_, said)| said)
            .collect();
        assert_eq!(said, [Absent, Failed, Failed, Failed, Failed, Value(0), Failed]);
    }

    #[test]
    fn a_counter_whose_read_fails_with_eio_is_there_and_not_known() {
        let fake = Fake::new();
        fake.sys(format!("{COUNTERS}/good"), "4\n");
        // Page 0 of any process is not mapped: reading it gives EIO, from a file of the real kernel.
        fake.link(format!("sys/{COUNTERS}/broken"), "/proc/self/mem");
        assert_eq!(
            read(&fake, CounterGroup::Port),
            [
                ("broken".into(), FileValue::Failed),
                ("good".into(), FileValue::Value(4))
            ]
        );
    }

    #[test]
    fn a_device_without_performance_management_has_no_such_counter() {
        for errno in [libc::EINVAL, libc::EOPNOTSUPP] {
            assert_eq!(refusal(CounterGroup::Port, Some(errno)), FileValue::Absent);
            assert_eq!(refusal(CounterGroup::Hardware, Some(errno)), FileValue::Failed);
        }
        for errno in [libc::EIO, libc::ETIMEDOUT, libc::EAGAIN, libc::ENODEV] {
            assert_eq!(refusal(CounterGroup::Port, Some(errno)), FileValue::Failed);
        }
        let fake = Fake::new();
        let path = format!("{COUNTERS}/link_downed");
        fake.sys(&path, "1\n");
        let mut files = open(&fake, CounterGroup::Port);
        assert_eq!(said(&mut files)[0].1, FileValue::Value(1));
        fake.sys(&path, "N/A (no PMA)\n");
        assert_eq!(said(&mut files)[0].1, FileValue::Failed, "it was there");
        let mut anew = open(&fake, CounterGroup::Port);
        anew.follow(&files);
        assert_eq!(said(&mut anew)[0].1, FileValue::Failed, "and is not forgotten");
        assert_eq!(said(&mut open(&fake, CounterGroup::Port))[0].1, FileValue::Absent);
    }

    #[test]
    fn each_counter_has_the_time_of_its_own_read() {
        const PAUSE: std::time::Duration = std::time::Duration::from_millis(20);
        let fake = Fake::new();
        for name in ["a", "b", "c"] {
            fake.sys(format!("{COUNTERS}/{name}"), "1\n");
        }
        let mut files = open(&fake, CounterGroup::Port);
        let mut last: Option<ReadAt> = None;
        for (_, _, at) in files.read() {
            assert!(at.within_ns > 0, "{at:?}");
            // The pause between two reads is in neither.
            if let Some(last) = last {
                let apart = at.mono_ns - at.within_ns - last.mono_ns - last.within_ns;
                assert!(u128::from(apart + 2) >= PAUSE.as_nanos());
            }
            last = Some(at);
            std::thread::sleep(PAUSE);
        }
    }

    #[test]
    fn a_tick_opens_nothing_and_sees_new_values() {
        let fake = Fake::new();
        fake.sys(format!("{COUNTERS}/link_downed"), "1\n");
        let root = fake.root();
        let mut files = CounterFiles::open(&root, OsStr::new("mlx5_0"), 1, CounterGroup::Port, |_| true);
        let opened = root.opens();
        assert_eq!(said(&mut files)[0].1, FileValue::Value(1));
        fake.sys(format!("{COUNTERS}/link_downed"), "2\n");
        assert_eq!(said(&mut files)[0].1, FileValue::Value(2));
        assert_eq!(root.opens(), opened);
    }

    #[test]
    fn of_a_device_the_wanted_counters_alone_are_opened() {
        let fake = Fake::new();
        for name in ["cmds_err", "lifespan", "of_the_chip"] {
            fake.sys(format!("class/infiniband/mlx5_0/hw_counters/{name}"), "1\n");
        }
        let names = |root: &Root| {
            let wanted = |name: &[u8]| name != b"of_the_chip";
            let files = CounterFiles::open(root, OsStr::new("mlx5_0"), 1, CounterGroup::Device, wanted);
            files.names().map(ToString::to_string).collect::<Vec<_>>()
        };
        let root = fake.root();
        let before = root.opens();
        assert_eq!(names(&root), ["cmds_err"]);
        assert_eq!(root.opens() - before, 2, "the directory and a file");
    }

    #[test]
    fn a_port_without_counters_has_none() {
        assert_eq!(read(&Fake::new(), CounterGroup::Port), []);
    }
}
