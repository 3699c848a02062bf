//! Every check. docs/doctor.md says when each warns or fails, and where that rule comes from.

use super::{
    checks::{
        acs, devices, distance, gids, gpu, irqs, jobs, limits, lossless, mtu, nodes, own, pcie, ports, tcp,
    },
    facts::Facts,
    line::Lines,
};

/// A check.
pub struct Check {
    /// The name that JSON and scripts know it by, which never changes.
    pub id: &'static str,
    /// What the check is about, as the page says it.
    pub group: &'static str,
    /// Adds a line of each thing that it examines.
    pub(super) run: fn(&Facts, &mut Lines),
}

/// A table of checks. Each has its id, its group and its function.
macro_rules! checks {
    ($($id:literal $group:literal $run:path;)+) => {
        &[$(Check {
            id: $id,
            group: $group,
            run: $run,
        },)+]
    };
}

/// All checks in the order of the page.
pub static CHECKS: &[Check] = checks! {
    "device.present" "devices" devices::present;
    "device.driver" "devices" devices::driver;
    "device.search" "devices" devices::search;
    "device.removal" "devices" devices::removal;
    "device.verbs" "devices" devices::verbs;
    "device.firmware" "devices" devices::firmware;
    "device.softroce" "devices" devices::softroce;
    "port.state" "ports" ports::state;
    "port.rate" "ports" ports::rate;
    "port.mtu" "ports" mtu::mtu;
    "port.gid" "ports" gids::gids;
    "pcie.link" "pcie" pcie::link;
    "pcie.iommu" "pcie" pcie::iommu;
    "pcie.acs" "pcie" acs::acs;
    "pcie.irq" "pcie" irqs::irqs;
    "gpu.direct" "gpu" gpu::direct;
    "gpu.distance" "gpu" distance::distance;
    "lossless.pfc" "lossless" lossless::pfc;
    "lossless.ecn" "lossless" lossless::ecn;
    "limit.devices" "limits" nodes::nodes;
    "limit.memlock" "limits" limits::memlock;
    "limit.default" "limits" limits::default;
    "limit.cgroup" "limits" limits::cgroup;
    "tcp.buffers" "tcp" tcp::buffers;
    "tcp.backlog" "tcp" tcp::backlog;
    "job.rdma" "jobs" jobs::disabled;
    "job.devices" "jobs" jobs::devices;
    "job.gid" "jobs" jobs::gid;
    "job.interface" "jobs" jobs::interface;
    "job.names" "jobs" jobs::names;
    "job.sharers" "jobs" jobs::sharers;
    "job.hidden" "jobs" jobs::hidden;
    "rdmatop.ebpf" "rdmatop" own::ebpf;
    "rdmatop.processes" "rdmatop" own::processes;
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
