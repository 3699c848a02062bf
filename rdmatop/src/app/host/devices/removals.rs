//! Devices that are being removed: netlink no longer lists them, sysfs still does.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::{counters::AskPort, entry::Entry, known::Listed};
use rdmatop_model::{
    cause::{Cause, CauseId, Concerns},
    input::{DeviceReading, UNLISTED},
};
use rdmatop_sources::{
    netlink::{
        error::NetlinkError,
        name::Name,
        record::Device,
        sample::{DeviceSample, PortSample},
    },
    removal::{self, Holders},
    root::Root,
    sysfs::{device_dir, list_devices, read_device},
};

/// The search for holders runs again after this time, ns: it reads the open files of every process.
const HOLDERS_EVERY: u64 = 5_000_000_000;

/// A device that is being removed: its directory, and what is known of it.
pub(super) struct Removal {
    pub(super) dir: OsString,
    pub(super) entry: Entry,
}

#[derive(Default)]
pub(super) struct Removals {
    all: Vec<Removal>,
    holders: Holders,
    holders_ns: Option<u64>,
    /// Number of made-up indices so far.
    made_up: u32,
}

impl Removals {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether the device of a directory was listed before; `gone` were until now.
    pub(super) fn knows(&self, dir: &OsString, gone: &[Entry]) -> bool {
        let mut gone = gone.iter().map(|gone| device_dir(gone.name.as_bytes()));
        self.all.iter().any(|going| going.dir == *dir) || gone.any(|name| name.as_ref() == Some(dir))
    }

    /// Records which directories netlink does not list now. Devices that were never listed get made-up
    /// indices, and numbers from `id`. Returns those whose directory has gone.
    pub(super) fn update(
        &mut self,
        root: &Root,
        found: &[OsString],
        gone: Vec<Entry>,
        now_ns: u64,
        mut id: impl FnMut() -> u64,
    ) -> Vec<Entry> {
        let over = self.all.extract_if(.., |going| !found.contains(&going.dir));
        let over = over.map(|going| going.entry).collect();
        for entry in gone {
            let dir = device_dir(entry.name.as_bytes()).filter(|dir| found.contains(dir));
            self.all.extend(dir.map(|dir| Removal { dir, entry }));
        }
        for dir in found {
            if self.knows(dir, &[]) {
                continue;
            }
            let name = Name::from(dir.as_bytes());
            let entry = Entry::new(id(), UNLISTED + self.made_up, &name, root);
            self.made_up = (self.made_up + 1) % UNLISTED;
            let dir = dir.clone();
            self.all.push(Removal { dir, entry });
        }
        let is_old = |at: u64| now_ns.saturating_sub(at) >= HOLDERS_EVERY;
        if self.all.is_empty() {
            self.holders_ns = None;
        } else if self.holders_ns.is_none_or(is_old) {
            self.holders = removal::holders(root);
            self.holders_ns = Some(now_ns);
        }
        over
    }

    /// Of the devices that were in other network namespaces, the directories of those that are being removed
    /// there.
    pub(super) fn unlisted_elsewhere(&self, gone: &[Entry]) -> Vec<OsString> {
        let there = gone.iter().chain(self.entries()).filter_map(|entry| {
            let (root, dir) = (entry.place.as_ref()?.root(), device_dir(entry.name.as_bytes())?);
            let dirs = list_devices(&root).unwrap_or_default();
            let dirs: Vec<_> = dirs.into_iter().filter(|there| *there == dir).collect();
            removal::unlisted(&root, &dirs, |_| false, false).pop()
        });
        there.collect()
    }

    /// All devices that are being removed.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.all.iter().map(|going| &going.entry)
    }

    /// All devices that are being removed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Removal> {
        self.all.iter_mut()
    }

    /// A note for each.
    pub(super) fn notes(&self) -> Vec<Cause> {
        // It is no longer known which of several devices a file belonged to.
        let only = self.all.len() == 1;
        let notes = self
            .entries()
            .map(|entry| note(&entry.shown, &self.holders, only));
        notes.collect()
    }
}

/// The facts that sysfs still has of a device.
pub(super) fn read(
    root: &Root,
    dir: &OsStr,
    device: Device,
    before: Option<Listed>,
    now_ns: u64,
) -> (Listed, DeviceReading) {
    let mut sample = DeviceSample::new(device);
    let facts = read_device(root, dir);
    let ports = facts.iter().flat_map(|facts| &facts.ports);
    let of = |port: u32| PortSample { port, info: None };
    sample.ports = ports.map(|port| of(port.port)).collect();
    // Netlink has no counters of it any more: they are read from their files.
    let none: &mut AskPort<'_> = &mut |_, _| Err(NetlinkError::EndedEarly);
    let (listed, mut reading) = Listed::list(root, sample, before, now_ns, Some(none));
    reading.removing = true;
    let guid = facts.as_ref().and_then(|facts| facts.node_guid);
    reading.node_guid = reading.node_guid.or(guid);
    (listed, reading)
}

/// The note about a device whose removal waits.
fn note(device: &str, holders: &Holders, only: bool) -> Cause {
    let it = if only {
        "it"
    } else {
        "it (or another device that is being removed)"
    };
    let (why, remedy) = match (holders.found.is_empty(), holders.hidden, holders.cut) {
        (false, ..) => (
            format!(
                "the kernel waits until these processes close {it}: {}",
                holders.named()
            ),
            "End these processes to let the removal finish; their traffic goes on until then",
        ),
        (true, _, true) => (
            format!("the kernel waits until no process has it open; {holders}"),
            "Look for its verbs file among that user's open files (sudo ls -l /proc/PID/fd); the traffic of who has it open goes \
             on until then",
        ),
        (true, true, false) => (
            "the kernel waits until no process has it open; a process of another user may, whose open files \
             you may not inspect"
                .to_owned(),
            "Run with sudo, to see which process has it open; its traffic goes on until then",
        ),
        (true, false, false) => (
            "the kernel waits for its last users, and no process has its verbs file open: a kernel consumer (NVMe, NFS, \
             SMB), or a process that is just ending"
                .to_owned(),
            "Disconnect or unmount what uses the device; dmesg may say more",
        ),
    };
    Cause {
        id: CauseId::RemovalWaits,
        concerns: Concerns::Device(device.to_owned()),
        what: format!("{device} is being removed"),
        why,
        remedy: remedy.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_sources::removal::Holder;

    fn holders(count: u32) -> Vec<Holder> {
        let one = |pid| Holder {
            pid,
            comm: "x".to_owned(),
        };
        (1..=count).map(one).collect()
    }

    #[test]
    fn hidden_processes_of_other_users_are_named_as_possible_holders() {
        let said = |found: u32, hidden, cut| {
            let holders = Holders {
                found: holders(found),
                hidden,
                cut,
            };
            note("rxe0", &holders, true).to_string()
        };
        let line_of = |found, hidden| said(found, hidden, false);
        let line = line_of(1, false);
        assert!(
            line.starts_with("rxe0 is being removed: ") && line.contains("1 (x)"),
            "{line}"
        );
        assert!(!line.contains("other users"), "{line}");
        assert!(line_of(1, true).contains("maybe processes of other users"));
        assert!(line_of(0, true).contains("sudo"));
        assert!(line_of(0, false).contains("kernel consumer"));
        let cut = said(0, false, true);
        assert!(
            cut.contains("too many open files") && !cut.contains("kernel consumer"),
            "{cut}"
        );
    }
}
