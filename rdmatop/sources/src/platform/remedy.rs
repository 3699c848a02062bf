//! What is missing on this machine, why, and what to do: one cause each. Pure.
use rustix::thread::CapabilitySet;

use super::Platform;
use rdmatop_base::{
    step::{NextStep, step},
    text::count,
};
use rdmatop_model::cause::{Cause, CauseId, Concerns};

/// What to do where devices belong to one network namespace each.
const ELSEWHERE: &str = "run in the network namespace of the device (a container: --network=host; a pod: `sudo nsenter -t PID -n`)";

/// All that is known to be missing, the most basic first. An unknown fact makes no cause.
pub fn missing(platform: &Platform) -> Vec<Cause> {
    let mut out = Vec::new();
    rdma(platform, &mut out);
    ebpf_rights(platform, &mut out);
    ebpf_kernel(platform, &mut out);
    processes(platform, &mut out);
    out
}

fn push(out: &mut Vec<Cause>, id: CauseId, what: &str, why: impl Into<String>, remedy: impl Into<NextStep>) {
    out.push(Cause {
        id,
        concerns: Concerns::Host,
        what: what.into(),
        why: why.into(),
        remedy: remedy.into(),
    });
}

/// How to get what `caps` allow: root without them is in a container, where sudo does not help.
fn grant(p: &Platform, caps: &'static str) -> NextStep {
    if p.euid == Some(0) {
        step!("start the container with --cap-add={}, or run on the host", caps)
    } else {
        "run with sudo".into()
    }
}

fn rdma(p: &Platform, out: &mut Vec<Cause>) {
    const LAB: &str = "`sudo rdmatop doctor` names a NIC without it. To try rdmatop on a machine without a NIC: `sudo rdmatop lab up`";
    let loaded = || p.modules.iter().find(|module| module.is_loaded_for_hardware());
    let (id, what, why, remedy): (CauseId, &str, String, NextStep) = if p.without_sys {
        (
            CauseId::NoSysfs,
            "Link rates, GIDs and drivers are missing, and there is no eBPF",
            "/sys is not mounted here".to_owned(),
            "`sudo mount -t sysfs sysfs /sys` until the next boot, or give the container the host's /sys"
                .into(),
        )
    } else if p.rdma_devices.is_none() {
        (
            CauseId::NoRdmaSubsystem,
            "No RDMA",
            "the kernel has no RDMA subsystem loaded (ib_core, /sys/class/infiniband)".to_owned(),
            step!("load the driver of your NIC; {}", LAB),
        )
    } else if p.elsewhere {
        // They are looked for, and what is not found is named, where devices are read.
        return;
    } else if let Some(driver) = loaded().filter(|_| p.rdma_devices == Some(0)) {
        (
            CauseId::NoRdmaDevice,
            "No RDMA device",
            format!("{} is loaded, and no device of it is in this network namespace", driver.name),
            "run in the network namespace of the device (a container: --network=host), or see what dmesg says of the NIC"
                .into(),
        )
    } else if p.exclusive {
        (
            CauseId::NoRdmaDevice,
            "No RDMA device",
            "RDMA devices belong to one network namespace each (mode exclusive), and none to this one"
                .to_owned(),
            ELSEWHERE.into(),
        )
    } else if p.rdma_devices == Some(0) {
        (
            CauseId::NoRdmaDevice,
            "No RDMA device",
            "the RDMA subsystem is loaded and has no device in this network namespace".to_owned(),
            step!("load the driver of your NIC; {}", LAB),
        )
    } else if p.dangling_devices > 0 {
        (
            CauseId::DanglingSysfs,
            "Link rates, GIDs, drivers and the counters in /sys are missing",
            format!(
                "/sys/class/infiniband names {} whose files in /sys/devices are not here, as in a container that has only a part of /sys",
                count(p.dangling_devices, "device")
            ),
            "give the container the host's: -v /sys/devices:/sys/devices:ro".into(),
        )
    } else {
        return;
    };
    push(out, id, what, why, remedy);
}

fn ebpf_rights(p: &Platform, out: &mut Vec<Cause>) {
    const WHAT: &str = "No eBPF: no lifecycle events and no per-QP rates";
    if p.initial_user_namespace == Some(false) {
        let why = "root of the user namespace in which rdmatop runs has no right to load eBPF";
        let remedy = "run rdmatop on the host or in a container without user namespace";
        return push(out, CauseId::UserNamespace, WHAT, why, remedy);
    }
    let Some(caps) = p.capabilities else { return };
    let lacks = [
        (CapabilitySet::BPF, "CAP_BPF"),
        (CapabilitySet::PERFMON, "CAP_PERFMON"),
    ];
    let admin = caps.contains(CapabilitySet::SYS_ADMIN);
    // The older right includes both.
    let lacks = lacks.iter().filter(|(cap, _)| !admin && !caps.contains(*cap));
    let lacks: Vec<&str> = lacks.map(|(_, name)| *name).collect();
    let paranoid = p.perf_event_paranoid.filter(|level| !admin && *level > 2);
    if !lacks.is_empty() {
        let (why, remedy) = if p.euid == Some(0) {
            let why = format!("root without {} (a container drops them)", lacks.join(" and "));
            (why, grant(p, "BPF --cap-add=PERFMON --cap-add=SYS_ADMIN"))
        } else {
            let sysctl = if paranoid.is_some() {
                " with kernel.perf_event_paranoid at 2 or less"
            } else {
                ""
            };
            let why = format!("{} missing", lacks.join(" and "));
            (
                why,
                step!("run with sudo, or grant CAP_BPF and CAP_PERFMON{}", sysctl),
            )
        };
        return push(out, CauseId::NoCapability, WHAT, why, remedy);
    }
    if let Some(level) = paranoid {
        let why = format!(
            "kernel.perf_event_paranoid is {level}: above 2 Debian and Ubuntu kernels want CAP_SYS_ADMIN for kprobes"
        );
        let remedy = step!(
            "{}, or `sysctl -w kernel.perf_event_paranoid=2`, for all users until the next boot",
            grant(p, "SYS_ADMIN")
        );
        push(out, CauseId::PerfParanoid, WHAT, why, remedy);
    }
    if !admin && p.modules.iter().any(|module| module.loaded && module.btf) {
        let what = "No fentry: programs are attached by kprobes, which cost the calls that they trace more";
        let why = "descriptors of module BTF need CAP_SYS_ADMIN";
        push(out, CauseId::NoFentry, what, why, grant(p, "SYS_ADMIN"));
    }
    // Since 5.11 eBPF memory is charged to the cgroup and no longer to the limit.
    let charged = p.kernel_version().is_some_and(|version| version < (5, 11));
    if charged && !caps.contains(CapabilitySet::SYS_RESOURCE) {
        let why =
            "before Linux 5.11 eBPF maps count against the memlock limit, and CAP_SYS_RESOURCE is missing";
        let grant = grant(p, "SYS_RESOURCE");
        let remedy = step!("{}, or raise the limit with `ulimit -l unlimited`", grant);
        push(out, CauseId::Memlock, "eBPF maps may not fit", why, remedy);
    }
}

fn ebpf_kernel(p: &Platform, out: &mut Vec<Cause>) {
    if p.confidential == Some(true) {
        let why = "kernel lockdown is `confidentiality`, which forbids eBPF to read kernel memory";
        let remedy = "boot with lockdown=integrity; netlink and sysfs work meanwhile";
        push(out, CauseId::Lockdown, "No eBPF", why, remedy);
    }
    if p.kprobes == Some(false) {
        let why = "the kernel has no kprobe events (CONFIG_KPROBE_EVENTS)";
        let remedy = "use a kernel with kprobe events, as distributions build it";
        push(out, CauseId::NoKprobes, "No control-plane events", why, remedy);
    }
    if let Some(core) = p
        .module("ib_core")
        .filter(|core| core.out_of_tree == Some(true) && !core.btf)
    {
        let why = format!(
            "{} is out of tree (OFED) and has no BTF, and the kernel's BTF does not describe it",
            core.name
        );
        let remedy = "build the OFED modules with BTF (pahole and vmlinux at hand); else what netlink and /sys have is all that is shown";
        let what = "eBPF without QP numbers, states and bytes";
        push(out, CauseId::OfedWithoutBtf, what, why, remedy);
    }
}

fn processes(p: &Platform, out: &mut Vec<Cause>) {
    if p.without_proc {
        let what = "Names, users and cgroups of processes are missing";
        let remedy = "`sudo mount -t proc proc /proc`, until the next boot";
        push(out, CauseId::NoProcfs, what, "/proc is not mounted here", remedy);
    }
    if p.initial_pid_namespace == Some(false) {
        let what = "Processes outside of this PID namespace are missing or have only a number";
        let why = "inside a PID namespace the kernel hides the owners of RDMA resources outside of it";
        let remedy = "run on the host, or start the container with --pid=host";
        push(out, CauseId::PidNamespace, what, why, remedy);
    }
    let blind = p
        .capabilities
        .is_some_and(|caps| !caps.contains(CapabilitySet::SYS_PTRACE));
    if blind && p.hidepid == Some(true) {
        let what = "Names of other users' processes are missing";
        let why = "/proc is mounted with hidepid and CAP_SYS_PTRACE is missing";
        push(out, CauseId::Hidepid, what, why, grant(p, "SYS_PTRACE"));
    }
    if blind {
        let why = "CAP_SYS_PTRACE is missing";
        let what = "No libraries, environment and open files of other users' processes";
        push(out, CauseId::NoPtrace, what, why, grant(p, "SYS_PTRACE"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::ModuleFacts;
    use super::*;

    const ALL_CAPS: u64 = 0x1ff_ffff_ffff;
    const BPF_PERFMON_PTRACE: u64 = 1 << 39 | 1 << 38 | 1 << 19;

    /// A machine on which nothing is missing.
    fn good() -> Platform {
        Platform {
            kernel: Some("6.12.107-amd64".into()),
            euid: Some(0),
            capabilities: Some(CapabilitySet::from_bits_retain(ALL_CAPS)),
            perf_event_paranoid: Some(3),
            confidential: Some(false),
            kprobes: Some(true),
            hidepid: Some(false),
            initial_pid_namespace: Some(true),
            initial_user_namespace: Some(true),
            modules: vec![core(false, false), rxe()],
            rdma_devices: Some(1),
            dangling_devices: 0,
            without_sys: false,
            without_proc: false,
            exclusive: false,
            elsewhere: false,
            ..Platform::default()
        }
    }

    fn core(out_of_tree: bool, btf: bool) -> ModuleFacts {
        ModuleFacts {
            name: "ib_core".into(),
            loaded: true,
            out_of_tree: Some(out_of_tree),
            btf,
        }
    }

    fn rxe() -> ModuleFacts {
        ModuleFacts {
            name: "rdma_rxe".into(),
            btf: true,
            ..core(false, true)
        }
    }

    fn ids(change: impl FnOnce(&mut Platform)) -> Vec<CauseId> {
        let mut platform = good();
        change(&mut platform);
        missing(&platform).into_iter().map(|remedy| remedy.id).collect()
    }

    fn caps(bits: u64) -> impl FnOnce(&mut Platform) {
        move |p| {
            p.euid = Some(1000);
            p.capabilities = Some(CapabilitySet::from_bits_retain(bits));
        }
    }

    #[test]
    fn on_a_good_machine_nothing_is_missing() {
        assert_eq!(missing(&good()), []);
    }

    #[test]
    fn each_missing_thing_gives_exactly_its_line() {
        assert_eq!(ids(|p| p.rdma_devices = None), [CauseId::NoRdmaSubsystem]);
        assert_eq!(ids(|p| p.rdma_devices = Some(0)), [CauseId::NoRdmaDevice]);
        let why = |out_of_tree, exclusive| {
            let mut p = good();
            (p.rdma_devices, p.exclusive) = (Some(0), exclusive);
            p.modules.push(ModuleFacts {
                name: "mlx5_ib".into(),
                out_of_tree,
                ..core(false, true)
            });
            missing(&p).remove(0).why
        };
        assert!(why(Some(false), false).starts_with("mlx5_ib is loaded"));
        // One that is built in says nothing about the hardware.
        assert!(!why(None, false).contains("mlx5_ib"));
        assert!(why(None, true).contains("mode exclusive"));
        assert_eq!(
            ids(|p| (p.rdma_devices, p.exclusive, p.elsewhere) = (Some(0), true, true)),
            [],
            "a machine whose devices are in containers"
        );
        assert_eq!(ids(|p| p.dangling_devices = 1), [CauseId::DanglingSysfs]);
        let blind = |p: &mut Platform| {
            (p.without_sys, p.rdma_devices) = (true, None);
        };
        assert_eq!(
            ids(blind),
            [CauseId::NoSysfs],
            "what /sys would show is not known to be absent"
        );
        assert_eq!(ids(|p| p.without_proc = true), [CauseId::NoProcfs]);
        assert_eq!(ids(|p| p.confidential = Some(true)), [CauseId::Lockdown]);
        assert_eq!(ids(|p| p.kprobes = Some(false)), [CauseId::NoKprobes]);
        assert_eq!(
            ids(|p| p.modules = vec![core(true, false)]),
            [CauseId::OfedWithoutBtf]
        );
        assert_eq!(ids(|p| p.modules = vec![core(true, true)]), []);
        assert_eq!(
            ids(|p| p.initial_pid_namespace = Some(false)),
            [CauseId::PidNamespace]
        );
        assert_eq!(
            ids(|p| p.initial_user_namespace = Some(false)),
            [CauseId::UserNamespace]
        );
    }

    #[test]
    fn rights_are_judged_as_the_kernel_does() {
        assert_eq!(ids(caps(0)), [CauseId::NoCapability, CauseId::NoPtrace]);
        assert_eq!(
            ids(caps(BPF_PERFMON_PTRACE)),
            [CauseId::PerfParanoid, CauseId::NoFentry]
        );
        let relaxed = |p: &mut Platform| {
            caps(BPF_PERFMON_PTRACE)(p);
            p.perf_event_paranoid = Some(2);
        };
        assert_eq!(ids(relaxed), [CauseId::NoFentry]);
        let without_btf = |p: &mut Platform| {
            relaxed(p);
            p.modules = vec![core(false, false)];
        };
        assert_eq!(ids(without_btf), [], "there is nothing to enter by fentry");
        assert_eq!(
            ids(caps(1 << 21 | 1 << 19)),
            [],
            "CAP_SYS_ADMIN is enough at any level"
        );
        let old = |p: &mut Platform| {
            caps(1 << 21 | 1 << 19)(p);
            p.kernel = Some("5.10.0-32-amd64".into());
        };
        assert_eq!(ids(old), [CauseId::Memlock]);
        let hidden = |p: &mut Platform| {
            caps(1 << 21)(p);
            p.hidepid = Some(true);
        };
        assert_eq!(ids(hidden), [CauseId::Hidepid, CauseId::NoPtrace]);
    }

    /// Facts of a machine without SoftRoCE, all kinds of them.
    fn without_rxe() -> impl Iterator<Item = Platform> {
        let nic = || ModuleFacts {
            name: "mlx5_ib".into(),
            ..core(false, true)
        };
        let mut all = Vec::new();
        for euid in [0, 1000] {
            for caps in [0, BPF_PERFMON_PTRACE, 1 << 21 | 1 << 19, ALL_CAPS] {
                for devices in [Some(8), Some(0)] {
                    for confidential in [None, Some(true)] {
                        let mut p = good();
                        p.euid = Some(euid);
                        p.capabilities = Some(CapabilitySet::from_bits_retain(caps));
                        p.modules = vec![core(false, true), nic()];
                        p.rdma_devices = devices;
                        p.confidential = confidential;
                        all.push(p);
                    }
                }
            }
        }
        all.into_iter()
    }

    #[test]
    fn on_a_machine_with_a_nic_no_line_names_soft_roce() {
        for platform in without_rxe() {
            for remedy in missing(&platform) {
                let line = remedy.to_string().to_lowercase();
                assert!(!line.contains("softroce") && !line.contains("rxe"), "{line}");
            }
        }
    }

    #[test]
    fn root_without_a_right_is_never_advised_to_use_sudo() {
        for lacks in [
            0,
            1 << 19,
            1 << 21,
            1 << 24,
            1 << 38 | 1 << 21,
            1 << 39 | 1 << 21,
            ALL_CAPS,
        ] {
            let mut platform = good();
            platform.capabilities = Some(CapabilitySet::from_bits_retain(ALL_CAPS & !lacks));
            platform.kernel = Some("5.10.0-32-amd64".into());
            platform.hidepid = Some(true);
            let got = missing(&platform);
            assert_eq!(got.is_empty(), lacks == 0, "{got:?}");
            for remedy in got {
                assert!(!remedy.remedy.contains("sudo"), "{remedy}");
                assert!(remedy.remedy.contains("--cap-add"), "{remedy}");
            }
        }
    }

    #[test]
    fn the_remedy_for_root_in_a_container_is_not_sudo() {
        let mut platform = good();
        platform.capabilities = Some(CapabilitySet::from_bits_retain(1 << 19 | 1 << 39));
        let got = missing(&platform);
        assert_eq!(got[0].why, "root without CAP_PERFMON (a container drops them)");
        assert!(
            got[0].remedy.contains("--cap-add") && !got[0].remedy.contains("sudo"),
            "{}",
            got[0]
        );
    }

    #[test]
    fn unknown_facts_are_no_complaints() {
        let unknown = Platform {
            rdma_devices: Some(1),
            ..Platform::default()
        };
        assert_eq!(missing(&unknown), []);
    }

    #[test]
    fn every_line_is_one_line_and_complete() {
        let mut worst = good();
        caps(0)(&mut worst);
        worst.rdma_devices = None;
        worst.kprobes = Some(false);
        worst.hidepid = Some(true);
        worst.confidential = Some(true);
        worst.initial_pid_namespace = Some(false);
        worst.modules = vec![core(true, false)];
        let got = missing(&worst);
        assert_eq!(got.len(), 8);
        for remedy in got {
            let line = remedy.to_string();
            assert!(!line.contains('\n') && line.len() < 260, "{line}");
            assert!(!remedy.what.is_empty() && !remedy.why.is_empty() && !remedy.remedy.is_empty());
        }
    }
}
