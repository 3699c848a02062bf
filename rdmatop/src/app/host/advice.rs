//! What is missing on this machine at present: devices, modules and switches change while a view runs.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use crate::cli::AttachMode;
use rdmatop_model::cause::{Cause, CauseId};
use rdmatop_sources::{
    netlink::{client::Nldev, transport::Transport},
    platform::{Platform, missing},
    root::Root,
    sysfs::list_devices,
};

/// Facts whose change nothing reports are read again after this time: some sixty small files.
const EVERY: Duration = Duration::from_secs(30);

/// The notes about a machine, kept up to date.
pub struct Advice {
    root: Root,
    /// How eBPF is wanted, if at all.
    attach: Option<AttachMode>,
    /// Facts as of the start; user and capabilities stay as they were then, because rdmatop has given up some
    /// since.
    start: Platform,
    notes: Vec<Cause>,
    dirs: Option<Vec<OsString>>,
    read: Instant,
}

impl Advice {
    /// Reads the machine. Call it before privileges are given up: what is missing is judged by the rights of
    /// the start.
    pub fn new(root: Root, attach: Option<AttachMode>) -> Self {
        let mut advice = Self {
            dirs: list_devices(&root),
            start: facts(&root),
            root,
            attach,
            notes: Vec::new(),
            read: Instant::now(),
        };
        advice.judge(&advice.start.clone());
        advice
    }

    /// Facts as of the start.
    pub fn platform(&self) -> &Platform {
        &self.start
    }

    /// The notes about it.
    pub fn notes(&self) -> &[Cause] {
        &self.notes
    }

    /// Examines the machine again when a device was added or removed, when `changed`, or when it is time.
    /// True when the notes changed.
    pub fn look(&mut self, changed: bool) -> bool {
        if !changed && self.read.elapsed() < EVERY && list_devices(&self.root) == self.dirs {
            return false;
        }
        self.dirs = list_devices(&self.root);
        self.read = Instant::now();
        let now = Platform {
            euid: self.start.euid,
            capabilities: self.start.capabilities,
            ..facts(&self.root)
        };
        self.judge(&now)
    }

    fn judge(&mut self, platform: &Platform) -> bool {
        // A user who gave --no-ebpf needs no note that eBPF is missing, and one who did not ask for fentry
        // does not miss it.
        let shown = missing(platform).into_iter().filter(|cause| {
            (self.attach.is_some() || !cause.id.is_of_ebpf_alone())
                && (self.attach == Some(AttachMode::Fentry) || cause.id != CauseId::NoFentry)
        });
        let notes: Vec<Cause> = shown.collect();
        let other = notes != self.notes;
        self.notes = notes;
        other
    }
}

fn facts(root: &Root) -> Platform {
    let mut platform = Platform::read(root);
    if root.is_live() && platform.rdma_devices.is_none_or(|count| count == 0) {
        // /sys may be masked, or belong to another network namespace: netlink decides.
        let listed = Nldev::open().ok().and_then(|mut nldev| listed(&mut nldev));
        platform.rdma_devices = listed.or(platform.rdma_devices);
    }
    platform
}

/// RDMA devices that netlink lists; `None` where it does not answer. They are listed by their resource
/// counts, for which the kernel asks no driver: one that waits for its firmware would delay the start.
fn listed<T: Transport>(nldev: &mut Nldev<T>) -> Option<usize> {
    Some(nldev.named_summaries().ok()?.items.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_sources::fake::Fake;

    fn shown(advice: &Advice) -> Vec<&str> {
        advice.notes().iter().map(|note| note.what.as_str()).collect()
    }

    #[test]
    fn a_note_disappears_and_returns_with_its_cause() {
        let fake = Fake::new();
        fake.dir("sys/kernel")
            .dir("sys/class/infiniband")
            .proc("self/status", "Uid:\t0\t0\t0\t0\n");
        let mut advice = Advice::new(fake.root(), None);
        assert_eq!(shown(&advice), ["No RDMA device"]);
        assert!(!advice.look(false));
        fake.sys("class/infiniband/rxe0/node_guid", "0:0\n");
        assert!(advice.look(false));
        assert_eq!(shown(&advice), [""; 0]);
        fake.remove("sys/class/infiniband/rxe0");
        assert!(advice.look(false));
        assert_eq!(shown(&advice), ["No RDMA device"]);
    }

    #[test]
    fn devices_are_counted_without_asking_a_driver() {
        use rdmatop_sources::netlink::{
            attr::{cmd, message_type},
            error::NetlinkError,
            transport::Sink,
            wire::Messages,
        };
        struct Noted(Vec<u16>);
        impl Transport for Noted {
            fn exchange(&mut self, request: &[u8], _: &mut Sink<'_>) -> Result<(), NetlinkError> {
                let request = Messages::new(request).next().unwrap().unwrap();
                self.0.push(request.kind - message_type(0));
                Err(NetlinkError::EndedEarly)
            }
        }
        let mut nldev = Nldev::new(Noted(Vec::new()));
        assert_eq!(listed(&mut nldev), None);
        // RDMA_NLDEV_CMD_GET asks for the version of the firmware.
        assert!(
            nldev
                .into_transport()
                .0
                .iter()
                .all(|asked| *asked == cmd::RES_GET)
        );
    }

    #[test]
    fn an_unchanged_machine_costs_one_directory_read() {
        let fake = Fake::new();
        fake.dir("sys/kernel")
            .sys("class/infiniband/rxe0/node_guid", "0:0\n");
        let mut advice = Advice::new(fake.root(), None);
        let before = fake.root().opens();
        assert!(!advice.look(false));
        assert_eq!(fake.root().opens() - before, 1);
    }

    #[test]
    fn rights_that_were_given_up_make_no_note() {
        let fake = Fake::new();
        fake.dir("sys/kernel")
            .sys("class/infiniband/rxe0/node_guid", "0:0\n");
        fake.proc("self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n");
        let mut advice = Advice::new(fake.root(), Some(AttachMode::Auto));
        fake.proc("self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t0000000000000000\n");
        assert!(!advice.look(true), "{:?}", shown(&advice));
        // A kernel switch that is turned makes a note.
        fake.sys("kernel/security/lockdown", "none integrity [confidentiality]\n");
        assert!(advice.look(true));
        assert_eq!(shown(&advice), ["No eBPF"]);
    }
}
