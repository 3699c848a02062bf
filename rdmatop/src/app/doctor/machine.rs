//! The machine as a whole: facts that need no driver.

use std::path::Path;

use super::{process, read};
use rdmatop_base::locked;
use rdmatop_doctor::facts::{Device, GpuMemory, Host, Own, Reading, Service, SoftRoce, Tcp};
use rdmatop_loader::why_unarmed;
use rdmatop_model::cause::Concerns;
use rdmatop_sources::{
    platform::{Platform, missing},
    proc::{Stat, Status},
    root::Root,
};

/// Programs whose limits jobs inherit. The kubelet is none of them: the runtime starts a pod's containers.
#[rustfmt::skip] // names, as many as a line has room for
const SERVICES: [&str; 7] = [
    "containerd", "dockerd", "crio", "k3s-server", "k3s-agent", "slurmd", "pbs_mom",
];

pub(super) fn host(root: &Root, platform: &Platform) -> Host {
    const CPUINFO: usize = 16 << 10;
    let cpu = root.bytes(&root.proc("cpuinfo"), CPUINFO).unwrap_or_default();
    let cpu = String::from_utf8_lossy(&cpu);
    Host {
        name: platform.hostname.clone(),
        kernel: platform.kernel.clone(),
        version: platform.kernel_version(),
        root: platform.euid == Some(0),
        virtual_machine: match cpu.lines().find(|line| line.starts_with("flags")) {
            Some(flags) => flags.split_whitespace().any(|flag| flag == "hypervisor"),
            None => is_virtual_by_firmware(root),
        },
        container: platform.initial_pid_namespace == Some(false),
        without_sys: platform.without_sys,
        exclusive: platform.exclusive,
    }
}

/// Whether firmware names a maker of virtual machines: on arm64 the CPU does not say that it belongs to one.
/// Most names are those of systemd (`detect_vm_dmi_vendor`, src/basic/virt.c). Amazon's machines without a
/// hypervisor have its name too, and say `.metal` in their kind (`c7g.metal`, `m7g.metal-48xl`).
fn is_virtual_by_firmware(root: &Root) -> bool {
    #[rustfmt::skip] // names, as many as a line has room for
    const MAKERS: [&str; 12] = [
        "KVM", "OpenStack", "KubeVirt", "Amazon EC2", "QEMU", "VMware", "Xen", "Google Compute Engine",
        "Alibaba Cloud ECS", "Virtual Machine", "Apple Virtualization", "Parallels",
    ];
    let named = ["sys_vendor", "product_name"].map(|file| {
        root.line(&root.sys("class/dmi/id").join(file))
            .unwrap_or_default()
    });
    let is_maker = |name: &String| MAKERS.iter().any(|maker| name.starts_with(maker));
    named.iter().any(is_maker) && named.iter().all(|name| !name.contains(".metal"))
}

pub(super) fn own(root: &Root, platform: &Platform) -> Own {
    let kernel = root.sys("kernel");
    let mut all = missing(platform);
    all.extend(why_unarmed(root).map(|off| off.takes("No eBPF", Concerns::Host)));
    Own {
        missing: all,
        btf: kernel.is_dir().then(|| kernel.join("btf/vmlinux").exists()),
    }
}

pub(super) fn tcp(root: &Root) -> Tcp {
    let net = |file: &str| root.proc("sys/net").join(file);
    // "4096 131072 6291456", with tabs between them.
    let largest = |file: &str| {
        let raw = root.value(&net(file))?;
        std::str::from_utf8(&raw)
            .ok()?
            .split_whitespace()
            .nth(2)?
            .parse()
            .ok()
    };
    Tcp {
        rmem: largest("ipv4/tcp_rmem"),
        wmem: largest("ipv4/tcp_wmem"),
        backlog: root.number(&net("core/somaxconn")),
    }
}

/// Container runtimes and job managers that run, and the shell of a user who is not root.
pub(super) fn services(root: &Root, is_root: bool) -> Vec<Service> {
    let mut found: Vec<Service> = Vec::new();
    let mut add = |dir: &Path, comm: String, shell: bool| {
        if let Reading::Known(memlock) = process::memlock(dir) {
            let unit = process::cgroup(root, dir).and_then(|path| locked::unit(&path).map(str::to_owned));
            let service = Service {
                comm,
                unit,
                memlock,
                exempt: false,
                shell,
            };
            if !found.contains(&service) {
                found.push(service);
            }
        }
    };
    for name in root.list(&root.proc("")).unwrap_or_default() {
        if !name
            .to_str()
            .is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit()))
        {
            continue;
        }
        let dir = root.proc(&name);
        let comm = process::comm(&dir);
        if SERVICES.contains(&comm.as_str()) && is_of_the_machine(root, &dir) {
            add(&dir, comm, false);
        }
    }
    // What root may lock says nothing about other users.
    let stat = root
        .bytes(&root.proc("self/stat"), 4096)
        .and_then(|raw| Stat::parse(&raw));
    if let Some(stat) = stat.filter(|stat| !is_root && stat.ppid > 0) {
        let dir = root.proc(stat.ppid.to_string());
        add(&dir, process::comm(&dir), true);
    }
    found
}

/// Whether a process is root's, and of this PID namespace: any user can give a process any name, and a
/// service in a container is none that the machine's systemd starts.
fn is_of_the_machine(root: &Root, dir: &Path) -> bool {
    let is_roots = |status: &Status| (status.uid, status.euid) == (Some(0), Some(0));
    Status::read(root, dir).is_some_and(|status| is_roots(&status) && status.ns_pids.len() <= 1)
}

/// CPUs of each NUMA node.
pub(super) fn nodes(root: &Root) -> Vec<(u32, Vec<u32>)> {
    let dir = root.sys("devices/system/node");
    let node = |name: &std::ffi::OsString| {
        let number = name.to_str()?.strip_prefix("node")?.parse().ok()?;
        let cpus = read::cpus(&root.line(&dir.join(name).join("cpulist"))?)?;
        Some((number, cpus))
    };
    root.list(&dir)
        .unwrap_or_default()
        .iter()
        .filter_map(node)
        .collect()
}

/// How GPU memory reaches NICs.
pub(super) fn gpu_memory(root: &Root) -> GpuMemory {
    let loaded = |module: &str| root.sys("module").join(module).is_dir();
    let clients = root.list(&root.sys("kernel/mm/memory_peers")).unwrap_or_default();
    let open_module = if loaded("nvidia") {
        // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124 ..."
        match read::line(&root.proc("driver/nvidia/version")) {
            Reading::Absent => Reading::Unreadable("/proc/driver/nvidia/version is missing".to_owned()),
            line => line.parse(|line| Some(line.contains("Open Kernel Module"))),
        }
    } else {
        Reading::Absent
    };
    GpuMemory {
        peermem: ["nvidia_peermem", "nv_peer_mem", "efa_nv_peermem"]
            .into_iter()
            .any(loaded)
            || !clients.is_empty(),
        open_module,
    }
}

/// SoftRoCE, where no hardware is. `other`: there is a NIC that has no device here, or that is left alone.
pub(super) fn softroce(root: &Root, devices: &Reading<Vec<Device>>, other: bool) -> Option<SoftRoce> {
    let any = devices.known().is_some_and(|all| !all.is_empty());
    if any || other || matches!(devices, Reading::Unreadable(_)) {
        return None;
    }
    let found = root.is_live().then(rdmatop_lab::softroce).flatten();
    Some(match found {
        Some(Ok(())) => SoftRoce::Ready,
        Some(Err(advice)) => SoftRoce::Missing(advice),
        None => SoftRoce::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_sources::fake::Fake;

    #[test]
    fn a_virtual_machine_of_arm64_is_known_by_its_firmware() {
        const ARM: &str = "processor\t: 0\nFeatures\t: fp asimd\n";
        for (cpu, vendor, product, is_virtual) in [
            (ARM, "Amazon EC2", "hpc7g.16xlarge", true),
            (ARM, "Amazon EC2", "c7g.metal", false),
            (ARM, "Amazon EC2", "m7g.metal-48xl", false),
            (ARM, "Microsoft Corporation", "Virtual Machine", true),
            (ARM, "QEMU", "KVM Virtual Machine", true),
            (ARM, "NVIDIA", "NVIDIA_DGX_Spark", false),
            ("flags\t: fpu\n", "QEMU", "x", false),
            ("flags\t: fpu hypervisor\n", "Dell Inc.", "x", true),
        ] {
            let fake = Fake::new();
            fake.proc("cpuinfo", cpu)
                .sys("class/dmi/id/sys_vendor", format!("{vendor}\n"))
                .sys("class/dmi/id/product_name", format!("{product}\n"));
            let root = fake.root();
            let host = host(&root, &Platform::read(&root));
            assert_eq!(host.virtual_machine, is_virtual, "{vendor} {product}");
        }
    }

    #[test]
    fn a_container_has_the_limit_of_its_runtime_and_not_of_a_namesake() {
        let fake = Fake::new();
        let (k3s, root) = ("0::/system.slice/k3s-agent.service\n", "0 0 0 0");
        let other = "0::/system.slice/containerd.service\n";
        for (pid, comm, cgroup, uids, ns_pids) in [
            (7, "kubelet", k3s, root, "7"),
            (8, "containerd", k3s, root, "8"),
            (9, "bash", k3s, root, "9"),
            (10, "containerd", other, root, "10"),
            (11, "containerd", k3s, root, "11"),
            (12, "crio", "0::/\n", root, "12"),
            // A user's process, a setuid program of his, and root's in a container.
            (13, "slurmd", k3s, "1000 1000 1000 1000", "13"),
            (14, "slurmd", k3s, "1000 0 0 0", "14"),
            (15, "dockerd", k3s, root, "15 1"),
        ] {
            fake.proc(format!("{pid}/comm"), format!("{comm}\n"))
                .proc(format!("{pid}/cgroup"), cgroup)
                .proc(
                    format!("{pid}/status"),
                    format!("Uid: {uids}\nNSpid: {ns_pids}\n"),
                )
                .proc(
                    format!("{pid}/limits"),
                    "Max locked memory         8388608              8388608              bytes\n",
                );
        }
        let mut found = services(&fake.root(), true);
        found.sort_by(|a, b| (&a.comm, &a.unit).cmp(&(&b.comm, &b.unit)));
        let found: Vec<_> = found
            .iter()
            .map(|service| (&*service.comm, service.unit.as_deref()))
            .collect();
        let wanted = [
            ("containerd", Some("containerd.service")),
            ("containerd", Some("k3s-agent.service")),
            ("crio", None),
        ];
        assert_eq!(found, wanted);
    }
}
