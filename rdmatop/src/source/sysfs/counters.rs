//! Port counters: `ports/N/counters` (the IB performance management ones) and `ports/N/hw_counters` (any name
//! the driver likes).
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};

use super::device::device_path;
use crate::source::root::{Root, meaningful, parse_u64};
use crate::text;

/// Which directory of counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CounterGroup {
    /// `counters/`: names fixed by the IB specification. rxe has no such directory; drivers without a PMA
    /// answer `N/A (no PMA)` or EINVAL.
    Port,
    /// `hw_counters/`: names of the driver. The same values come over RDMA netlink (`STAT_GET`) in one message.
    Hardware,
}

impl CounterGroup {
    fn dir(self) -> &'static str {
        match self {
            Self::Port => "counters",
            Self::Hardware => "hw_counters",
        }
    }
}

/// One counter since the device appeared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// The file's name, safe to print.
    pub name: String,
    /// The value; bytes where the file counts 32-bit words (`port_xmit_data`, `port_rcv_data`).
    pub value: u64,
}

/// The open counter files of one port: a tick is one `pread` per counter instead of open, read and close.
///
/// An open sysfs file does not hold the device: after removal every read fails and the values are `None`.
/// Open it anew for a device that came back. It costs one file descriptor per counter.
#[derive(Debug)]
pub struct CounterFiles {
    files: Vec<(String, u64, File)>,
}

impl CounterFiles {
    /// Opens what is there; a port without the directory has no counters.
    pub fn open(root: &Root, device: &OsStr, port: u32, group: CounterGroup) -> Self {
        let dir = device_path(root, device).map(|d| d.join("ports").join(port.to_string()).join(group.dir()));
        let names = dir.as_ref().and_then(|dir| root.list(dir)).unwrap_or_default();
        let open = |name: OsString| {
            let file = root.open(&dir.as_ref()?.join(&name))?;
            Some((
                text::sanitize(name.as_bytes()),
                unit(group, name.as_bytes()),
                file,
            ))
        };
        Self {
            files: names
                .into_iter()
                .filter(|name| !is_setting(name))
                .filter_map(open)
                .collect(),
        }
    }

    /// The counters' names in the order of [`Self::values`].
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|(name, ..)| name.as_str())
    }

    /// Reads all counters now. `None`: this one cannot be read at the moment.
    pub fn values(&self) -> impl Iterator<Item = Option<u64>> {
        self.files.iter().map(|(_, unit, file)| {
            let mut buf = [0; 64];
            // From offset zero the kernel shows the attribute afresh (seq_read_iter, kernfs_file_read_iter).
            let len = file.read_at(&mut buf, 0).ok()?;
            value(buf.get(..len)?, *unit)
        })
    }

    /// The counters that can be read now.
    pub fn read(&self) -> Vec<Counter> {
        let pairs = self.names().zip(self.values());
        pairs
            .filter_map(|(name, value)| {
                Some(Counter {
                    name: name.to_owned(),
                    value: value?,
                })
            })
            .collect()
    }
}

/// What a counter's file says, in the unit of its reader.
pub(crate) fn value(raw: &[u8], unit: u64) -> Option<u64> {
    parse_u64(meaningful(raw)?)?.checked_mul(unit)
}

/// `lifespan` sits among the hardware counters but is the age in ms at which the kernel reads them anew.
fn is_setting(name: &OsStr) -> bool {
    name == "lifespan"
}

/// The IB specification counts port data in 32-bit words, and RoCE drivers divide by four to comply.
fn unit(group: CounterGroup, name: &[u8]) -> u64 {
    match (group, name) {
        (CounterGroup::Port, b"port_xmit_data" | b"port_rcv_data") => 4,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::fake::Fake;

    const COUNTERS: &str = "class/infiniband/mlx5_0/ports/1/counters";

    fn read(fake: &Fake, group: CounterGroup) -> Vec<(String, u64)> {
        let files = CounterFiles::open(&fake.root(), OsStr::new("mlx5_0"), 1, group);
        files.read().into_iter().map(|c| (c.name, c.value)).collect()
    }

    #[test]
    fn port_data_is_words_and_becomes_bytes_while_hardware_counters_pass_as_they_are() {
        let fake = Fake::new();
        fake.sys(format!("{COUNTERS}/port_xmit_data"), "1000\n")
            .sys(format!("{COUNTERS}/port_xmit_packets"), "7\n");
        let hw = "class/infiniband/mlx5_0/ports/1/hw_counters";
        fake.sys(format!("{hw}/port_xmit_data"), "3")
            .sys(format!("{hw}/lifespan"), "10");
        fake.sys(format!("{hw}/any\x1bname"), "9\n");
        assert_eq!(
            read(&fake, CounterGroup::Port),
            [("port_xmit_data".into(), 4000), ("port_xmit_packets".into(), 7)]
        );
        assert_eq!(
            read(&fake, CounterGroup::Hardware),
            [("any\\x1bname".into(), 9), ("port_xmit_data".into(), 3)]
        );
    }

    #[test]
    fn a_counter_that_says_nothing_is_absent_and_never_zero() {
        let fake = Fake::new();
        for (name, content) in [
            ("link_downed", "N/A (no PMA)\n"),
            ("symbol_error", ""),
            ("port_rcv_data", "18446744073709551615"),
            ("too_big", "99999999999999999999"),
            ("port_rcv_errors", "0\n"),
        ] {
            fake.sys(format!("{COUNTERS}/{name}"), content);
        }
        fake.dir(format!("sys/{COUNTERS}/a_directory"));
        assert_eq!(read(&fake, CounterGroup::Port), [("port_rcv_errors".into(), 0)]);
    }

    #[test]
    fn a_tick_opens_nothing_and_sees_new_values() {
        let fake = Fake::new();
        fake.sys(format!("{COUNTERS}/link_downed"), "1\n");
        let root = fake.root();
        let files = CounterFiles::open(&root, OsStr::new("mlx5_0"), 1, CounterGroup::Port);
        let opened = root.opens();
        assert_eq!(files.values().collect::<Vec<_>>(), [Some(1)]);
        fake.sys(format!("{COUNTERS}/link_downed"), "2\n");
        assert_eq!(files.values().collect::<Vec<_>>(), [Some(2)]);
        assert_eq!(root.opens(), opened);
    }

    #[test]
    fn a_port_without_counters_has_none() {
        assert_eq!(read(&Fake::new(), CounterGroup::Port), []);
    }
}
