//! Every check. docs/doctor.md says when each warns or fails, and where that rule comes from.

use super::{
    checks::{
        acs, devices, distance, gids, gpu, irqs, jobs, limits, lossless, mtu, nodes, own, pcie, ports, tcp,
    },
    facts::Facts,
    line::{Group, Lines},
};

/// A check.
pub struct Check {
    /// The name that JSON and scripts know it by, which never changes.
    pub id: &'static str,
    /// What the check is about.
    pub group: Group,
    /// Adds a line of each thing that it examines.
    pub(super) run: fn(&Facts, &mut Lines),
}

/// A table of checks. Each has its id, its group and its function.
macro_rules! checks {
    ($($id:literal $group:ident $run:path;)+) => {
        &[$(Check {
            id: $id,
            group: Group::$group,
            run: $run,
        },)+]
    };
}

/// All checks in the order of the page.
pub static CHECKS: &[Check] = checks! {
    "device.present" Devices devices::present;
    "device.driver" Devices devices::driver;
    "device.search" Devices devices::search;
    "device.removal" Devices devices::removal;
    "device.verbs" Devices devices::verbs;
    "device.firmware" Devices devices::firmware;
    "device.softroce" Devices devices::softroce;
    "port.state" Ports ports::state;
    "port.rate" Ports ports::rate;
    "port.mtu" Ports mtu::mtu;
    "port.gid" Ports gids::gids;
    "pcie.link" Pcie pcie::link;
    "pcie.iommu" Pcie pcie::iommu;
    "pcie.acs" Pcie acs::acs;
    "pcie.irq" Pcie irqs::irqs;
    "gpu.direct" Gpu gpu::direct;
    "gpu.distance" Gpu distance::distance;
    "lossless.pfc" Lossless lossless::pfc;
    "lossless.ecn" Lossless lossless::ecn;
    "limit.devices" Limits nodes::nodes;
    "limit.memlock" Limits limits::memlock;
    "limit.default" Limits limits::default;
    "limit.cgroup" Limits limits::cgroup;
    "tcp.buffers" Tcp tcp::buffers;
    "tcp.backlog" Tcp tcp::backlog;
    "job.rdma" Jobs jobs::disabled;
    "job.devices" Jobs jobs::devices;
    "job.gid" Jobs jobs::gid;
    "job.interface" Jobs jobs::interface;
    "job.names" Jobs jobs::names;
    "job.sharers" Jobs jobs::sharers;
    "job.hidden" Jobs jobs::hidden;
    "rdmatop.ebpf" Rdmatop own::ebpf;
    "rdmatop.processes" Rdmatop own::processes;
};

#[cfg(test)]
mod tests {
    use super::super::words;
    use super::*;

    #[test]
    fn the_page_has_the_numbers_of_the_checks() {
        let page = include_str!("../../../docs/doctor.md");
        let says = |id: &str, numbers: &[String]| {
            let row = page.lines().find(|row| row.starts_with(&format!("| `{id}` ")));
            let row = row.unwrap_or_default();
            for number in numbers {
                assert!(row.contains(number), "{id} without {number}: {row}");
            }
        };
        let mtus = [mtu::FAST_MTU, mtu::LEAST].map(|mtu| format!("less than {mtu}"));
        says("port.mtu", &[&mtus[..], &[words::rate(mtu::FAST)]].concat());
        says("pcie.irq", &[format!(" {} or more", irqs::VECTORS)]);
        let locked = [limits::MEMLOCK_WARN, limits::MEMLOCK_FAIL].map(words::bytes);
        says("limit.memlock", &locked);
        says("limit.default", &locked[..1]);
        says("limit.cgroup", &[format!("{} %", limits::CGROUP_WARN)]);
        says("tcp.buffers", &[tcp::RMEM, tcp::WMEM].map(words::bytes));
        says("tcp.backlog", &[format!("below {}", tcp::BACKLOG)]);
    }
}
