//! The machine: what it is, what rdmatop may do on it, and what is missing, why, and the remedy.
//!
//! [`Platform::read`] only reads; [`missing`] only judges. Nothing here fails: an unknown fact stays unknown
//! and is never a reason to complain.
mod host;
mod kallsyms;
mod modules;
mod namespaces;
mod remedy;
mod security;

pub use host::os_release;
pub use kallsyms::{find_parts, find_symbols};
pub use modules::{ModuleFacts, NICS};
pub use namespaces::is_initial_user;
pub(crate) use namespaces::namespace;
pub use remedy::missing;

use rustix::thread::CapabilitySet;

use super::netlink::{client::Nldev, record::NetnsMode};
use super::proc::Status;
use super::root::{Root, kernel_version};
use super::sysfs::{count_dangling, list_devices, verbs_files};

/// All facts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Platform {
    /// `/proc/sys/kernel/hostname`, safe to print.
    pub hostname: Option<String>,
    /// Kernel release, such as `6.12.107-amd64`, safe to print.
    pub kernel: Option<String>,
    /// Seconds since boot.
    pub uptime_s: Option<u64>,
    /// Memory available without swapping, bytes.
    pub memory_available: Option<u64>,
    /// Effective user of rdmatop.
    pub euid: Option<u32>,
    /// Effective capabilities of rdmatop.
    pub capabilities: Option<CapabilitySet>,
    /// `kernel.perf_event_paranoid`: above 2 (Debian, Ubuntu) tracing takes `CAP_SYS_ADMIN`.
    pub perf_event_paranoid: Option<i64>,
    /// Lockdown is `confidentiality` (kernel_lockdown(7)): eBPF may not read kernel memory, and every program
    /// that does so is refused. With `integrity` kprobes and fentry still load.
    pub confidential: Option<bool>,
    /// The kernel has kprobe events (`CONFIG_KPROBE_EVENTS`): its perf device is there.
    pub kprobes: Option<bool>,
    /// /proc is mounted with `hidepid`: processes of other users are not listed.
    pub hidepid: Option<bool>,
    /// rdmatop is in the PID namespace of the machine.
    pub initial_pid_namespace: Option<bool>,
    /// rdmatop is in the user namespace of the machine.
    pub initial_user_namespace: Option<bool>,
    /// The modules of the RDMA stack, and those of NICs ([`NICS`]).
    pub modules: Vec<ModuleFacts>,
    /// sysfs is not mounted: what it would show is unknown, and not absent.
    pub without_sys: bool,
    /// procfs is not mounted.
    pub without_proc: bool,
    /// RDMA devices; `None` when the kernel has no RDMA subsystem loaded.
    pub rdma_devices: Option<usize>,
    /// There is no device in this network namespace, and each device belongs to one namespace (`rdma system`:
    /// netns exclusive): there may be devices in others.
    pub exclusive: bool,
    /// It is so, and there are devices in other namespaces.
    pub elsewhere: bool,
    /// How many of `rdma_devices` are only a name: what /sys/class/infiniband points to is missing.
    pub dangling_devices: usize,
}

impl Platform {
    /// Reads everything, some hundred small files.
    pub fn read(root: &Root) -> Self {
        let status = Status::read(root, &root.proc("self")).unwrap_or_default();
        let devices = list_devices(root);
        let exclusive = root.is_live() && devices.as_ref().is_some_and(Vec::is_empty) && is_exclusive();
        Self {
            hostname: root.line(&root.proc("sys/kernel/hostname")),
            kernel: root.kernel_release(),
            uptime_s: host::uptime_s(root),
            memory_available: host::memory_available(root),
            euid: status.euid,
            capabilities: status.cap_eff.map(CapabilitySet::from_bits_retain),
            perf_event_paranoid: root.signed(&root.proc("sys/kernel/perf_event_paranoid")),
            confidential: security::confidential(root),
            kprobes: security::kprobes(root),
            hidepid: security::hidepid(root),
            initial_pid_namespace: namespaces::is_initial_pid(root),
            initial_user_namespace: is_initial_user(root),
            modules: modules::read(root),
            without_sys: !root.sys("kernel").is_dir(),
            without_proc: !root.proc("self").exists(),
            rdma_devices: devices.as_ref().map(Vec::len),
            exclusive,
            elsewhere: exclusive && verbs_files(root).is_ok_and(|files| !files.is_empty()),
            dangling_devices: devices.map_or(0, |devices| count_dangling(root, &devices)),
        }
    }

    /// Major and minor number of the kernel.
    pub fn kernel_version(&self) -> Option<(u32, u32)> {
        kernel_version(self.kernel.as_deref()?)
    }

    /// One of `modules`.
    pub fn module(&self, name: &str) -> Option<&ModuleFacts> {
        self.modules.iter().find(|module| module.name == name)
    }
}

fn is_exclusive() -> bool {
    Nldev::open().and_then(|mut nldev| nldev.netns_mode()) == Ok(Some(NetnsMode::Exclusive))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn an_empty_machine_is_unknown_and_not_an_error() {
        let got = Platform::read(&Fake::new().root());
        assert_eq!((got.euid, got.capabilities, got.rdma_devices), (None, None, None));
        assert_eq!((got.hostname, got.kernel, got.uptime_s), (None, None, None));
        assert!(
            got.modules
                .iter()
                .all(|module| !module.loaded && module.out_of_tree.is_none())
        );
    }

    #[test]
    fn a_machine_with_soft_roce_is_read_whole() {
        let fake = Fake::new();
        fake.proc("self/status", "Uid:\t1000\t0\t0\t0\nCapEff:\t000001ffffffffff\n");
        fake.proc(
            "modules",
            "rdma_rxe 200704 0 - Live 0x0000000000000000\nib_core 500000 5 rdma_rxe, Live 0x0 (OE)\n",
        );
        fake.sys("kernel/btf/rdma_rxe", "x")
            .sys("module/ib_core/taint", "OE\n");
        fake.sys("module/rdma_rxe/taint", "\n")
            .sys("class/infiniband/rxe0/node_guid", "0:0\n");
        let got = Platform::read(&fake.root());
        assert_eq!((got.euid, got.rdma_devices), (Some(0), Some(1)));
        assert!(
            got.capabilities
                .is_some_and(|caps| caps.contains(CapabilitySet::SYS_ADMIN))
        );
        let rxe = got.module("rdma_rxe").unwrap();
        assert_eq!((rxe.loaded, rxe.btf, rxe.out_of_tree), (true, true, Some(false)));
        let core = got.module("ib_core").unwrap();
        assert_eq!(
            (core.loaded, core.btf, core.out_of_tree),
            (true, false, Some(true))
        );
    }
}
