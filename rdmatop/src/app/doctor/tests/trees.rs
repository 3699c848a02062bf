//! Machines as trees of files.

use std::fmt::Write as _;

use rdmatop_sources::fake::Fake;

const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units\n\
    Max locked memory         unlimited            unlimited            bytes\n";

/// A Linux machine without anything special, seen by root or by a user.
fn machine(name: &str, root: bool) -> Fake {
    let fake = Fake::new();
    let (uid, caps) = if root {
        (0, "000001ffffffffff")
    } else {
        (1000, "0000000000000000")
    };
    fake.proc("sys/kernel/osrelease", "6.8.0-45-generic\n")
        .proc("sys/kernel/hostname", name)
        .proc("sys/kernel/perf_event_paranoid", "2\n")
        .proc("cpuinfo", "processor: 0\nflags\t\t: fpu sse\n")
        .proc("modules", "")
        .proc("sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n")
        .proc("sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304\n")
        .proc("sys/net/core/somaxconn", "4096\n")
        .proc(
            "self/status",
            format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapEff:\t{caps}\n"),
        )
        .proc("self/comm", "rdmatop\n")
        .proc("self/environ", "")
        .proc("self/limits", LIMITS)
        .proc("self/cgroup", "0::/user.slice\n")
        .proc("self/net/dev", "h\nh\n    lo: 0\n  eth0: 0\n")
        .proc(
            "self/stat",
            "42 (rdmatop) R 41 42 42 0 -1 4194304 0 0 0 0 1 1 0 0 20 0 1 0 9 0 0\n",
        );
    fake.sys("kernel/btf/vmlinux", "x")
        .sys("bus/event_source/devices/kprobe/type", "8\n")
        .sys("devices/system/node/node0/cpulist", "0-31\n");
    fake
}

/// Name and place of one NIC of the node below.
struct Place {
    number: u32,
    dir: String,
}

impl Place {
    fn of(number: u32) -> Self {
        let bus = 0x10 + number * 0x10;
        let dir = format!(
            "devices/pci0000:{bus:02x}/0000:{bus:02x}:01.0/0000:{:02x}:00.0",
            bus + 1
        );
        Self { number, dir }
    }

    /// Path and address of a function behind the switch.
    fn function(&self, at: u32) -> (String, String) {
        let address = format!("0000:{:02x}:00.0", 0x10 + self.number * 0x10 + at);
        (format!("{}/{address}", self.dir), address)
    }
}

fn port(fake: &Fake, dir: &str, layer: &str, rate: &str) {
    let port = format!("{dir}/ports/1");
    fake.sys(format!("{port}/state"), "4: ACTIVE\n")
        .sys(format!("{port}/phys_state"), "5: LinkUp\n")
        .sys(format!("{port}/rate"), rate)
        .sys(format!("{port}/link_layer"), layer);
}

fn gids(fake: &Fake, dir: &str, netdev: &str, table: &[(&str, &str)]) {
    let port = format!("{dir}/ports/1");
    for at in 0..32 {
        let (gid, kind) = table
            .get(at)
            .copied()
            .unwrap_or(("0000:0000:0000:0000:0000:0000:0000:0000", ""));
        fake.sys(format!("{port}/gids/{at}"), gid)
            .sys(format!("{port}/gid_attrs/types/{at}"), kind);
        if !kind.is_empty() && !netdev.is_empty() {
            fake.sys(format!("{port}/gid_attrs/ndevs/{at}"), netdev);
        }
    }
}

fn verbs(fake: &Fake, number: u32, device: &str) {
    fake.sys(format!("class/infiniband_verbs/uverbs{number}/ibdev"), device)
        .proc(format!("self/root/dev/infiniband/uverbs{number}"), "")
        .proc("self/root/dev/infiniband/rdma_cm", "")
        .proc("self/root/sys/class/infiniband/keep", "");
    fake.remove("proc/self/root/sys/class/infiniband/keep");
}

/// A function of PCI with a driver and a link.
fn function(fake: &Fake, dir: &str, address: &str, driver: &str, ids: [&str; 3], node: u32) {
    fake.sys(format!("{dir}/vendor"), ids[0])
        .sys(format!("{dir}/device"), ids[1])
        .sys(format!("{dir}/class"), ids[2])
        .sys(format!("{dir}/numa_node"), format!("{node}\n"))
        .sys(format!("{dir}/current_link_speed"), "32.0 GT/s PCIe\n")
        .sys(format!("{dir}/current_link_width"), "16\n")
        .sys(format!("{dir}/max_link_speed"), "32.0 GT/s PCIe\n")
        .sys(format!("{dir}/max_link_width"), "16\n");
    fake.link(format!("sys/{dir}/driver"), format!("/bus/pci/drivers/{driver}"))
        .link(
            format!("sys/bus/pci/devices/{address}"),
            format!("../../../{dir}"),
        );
}

/// Eight RoCE NICs of 400 Gb/s, eight GPUs, two sockets, a job of two ranks.
pub(super) fn gpu_node() -> Fake {
    let fake = machine("gpu17\n", true);
    fake.sys("devices/system/node/node1/cpulist", "32-63\n");
    for number in 0..8 {
        let place = Place::of(number);
        let (dir, address) = place.function(2);
        function(
            &fake,
            &dir,
            &address,
            "mlx5_core",
            ["0x15b3", "0x1021", "0x020000"],
            number / 4,
        );
        let name = format!("mlx5_{number}");
        let device = format!("{dir}/infiniband/{name}");
        fake.sys(format!("{device}/node_type"), "1: CA\n")
            .sys(format!("{device}/fw_ver"), "28.39.1002\n")
            .sys(format!("{device}/board_id"), "MT_0000000838\n");
        fake.link(format!("sys/{device}/device"), "../..")
            .link(format!("sys/class/infiniband/{name}"), format!("../../{device}"));
        port(&fake, &device, "Ethernet\n", "400 Gb/sec (4X NDR)\n");
        let netdev = format!("eth{number}\n");
        gids(
            &fake,
            &device,
            &netdev,
            &[
                ("fe80:0000:0000:0000:0a00:00ff:fe00:0001\n", "IB/RoCE v1\n"),
                ("fe80:0000:0000:0000:0a00:00ff:fe00:0001\n", "RoCE v2\n"),
                ("0000:0000:0000:0000:0000:ffff:0a00:0001\n", "IB/RoCE v1\n"),
                ("0000:0000:0000:0000:0000:ffff:0a00:0001\n", "RoCE v2\n"),
            ],
        );
        let net = format!("class/net/eth{number}");
        fake.link(format!("sys/{net}/device"), format!("/{dir}"))
            .sys(format!("{net}/mtu"), "9000\n")
            .sys(format!("{net}/flags"), "0x1003\n")
            .sys(format!("{net}/carrier"), "1\n")
            .sys(format!("{net}/qos/trust"), "dscp\n")
            .sys(format!("{net}/qos/pfc"), "0 0 0 1 0 0 0 0\n")
            .sys(format!("{net}/ecn/roce_np/enable/3"), "1\n");
        for vector in 0..8 {
            let irq = 100 + number * 10 + vector;
            fake.sys(format!("{dir}/msi_irqs/{irq}"), "msix\n").proc(
                format!("irq/{irq}/effective_affinity_list"),
                format!("{}\n", number / 4 * 32 + vector),
            );
        }
        verbs(&fake, number, &name);
        let (dir, address) = place.function(3);
        function(
            &fake,
            &dir,
            &address,
            "nvidia",
            ["0x10de", "0x2330", "0x030200"],
            number / 4,
        );
        for bridge in [
            place.dir.clone(),
            place.dir.rsplit_once('/').expect("a root port").0.to_owned(),
        ] {
            fake.sys(format!("{bridge}/config"), vec![0; 4096]);
        }
    }
    fake.sys("module/nvidia/refcnt", "9\n")
        .sys("module/nvidia_peermem/refcnt", "0\n");
    fake.proc("900/comm", "containerd\n")
        .proc("900/status", "Uid:\t0\t0\t0\t0\n")
        .proc("900/limits", LIMITS);
    for pid in [4711, 4712] {
        job(
            &fake,
            pid,
            &[
                "NCCL_IB_HCA=mlx5",
                "NCCL_SOCKET_IFNAME=eth0",
                "NCCL_IB_GID_INDEX=3",
            ],
        );
    }
    fake
}

/// A process with an open device and these settings.
pub(super) fn job(fake: &Fake, pid: u32, settings: &[&str]) {
    let mut environ = String::new();
    for setting in settings {
        let _ = write!(environ, "{setting}\0");
    }
    fake.proc(format!("{pid}/comm"), "python3\n")
        .proc(format!("{pid}/environ"), environ)
        .proc(format!("{pid}/limits"), LIMITS)
        .proc(format!("{pid}/status"), "CapEff:\t0000000000000000\n")
        .proc(format!("{pid}/cgroup"), "0::/job\n")
        .proc(format!("{pid}/net/dev"), "h\nh\n    lo: 0\n  eth0: 0\n");
    fake.link(format!("proc/{pid}/fd/5"), "/dev/infiniband/uverbs0");
}

/// Four EFA devices of a virtual machine, and no GPU with a driver.
pub(super) fn efa_node() -> Fake {
    let fake = machine("ip-10-0-0-7\n", true);
    fake.proc("cpuinfo", "processor: 0\nflags\t\t: fpu hypervisor\n");
    for number in 0..4 {
        let (dir, address) = Place::of(number).function(2);
        function(&fake, &dir, &address, "efa", ["0x1d0f", "0xefa1", "0x020000"], 0);
        for file in ["current_link_speed", "max_link_speed"] {
            fake.sys(format!("{dir}/{file}"), "Unknown\n");
        }
        let name = format!("rdmap{}s27", 16 + number * 16);
        let device = format!("{dir}/infiniband/{name}");
        fake.sys(format!("{device}/node_type"), "7: unspecified\n")
            .sys(format!("{device}/fw_ver"), "0.0.0.0\n");
        fake.link(format!("sys/{device}/device"), "../..")
            .link(format!("sys/class/infiniband/{name}"), format!("../../{device}"));
        port(&fake, &device, "Unspecified\n", "100 Gb/sec (4X EDR)\n");
        gids(
            &fake,
            &device,
            "",
            &[("fe80:0000:0000:0000:0a00:00ff:fe00:0001\n", "")],
        );
        verbs(&fake, number, &name);
    }
    job(&fake, 4711, &["FI_PROVIDER=efa"]);
    fake
}

/// SoftRoCE on a dummy interface, seen by a user.
pub(super) fn softroce(root: bool) -> Fake {
    let fake = machine("lab\n", root);
    fake.sys("class/net/dummy0/mtu", "1500\n")
        .sys("class/net/dummy0/flags", "0x83\n")
        .sys("class/net/dummy0/carrier", "1\n");
    let device = "devices/virtual/infiniband/rxe0";
    fake.sys(format!("{device}/node_type"), "1: CA\n")
        .sys(format!("{device}/parent"), "dummy0\n");
    fake.link("sys/class/infiniband/rxe0", format!("../../{device}"));
    port(&fake, device, "Ethernet\n", "2.5 Gb/sec (1X SDR)\n");
    gids(
        &fake,
        device,
        "dummy0\n",
        &[
            ("fe80:0000:0000:0000:0a00:00ff:fe00:0001\n", "RoCE v2\n"),
            ("0000:0000:0000:0000:0000:ffff:0a4d:0001\n", "RoCE v2\n"),
        ],
    );
    verbs(&fake, 0, "rxe0");
    fake
}

/// A laptop: an NVIDIA GPU, Wi-Fi, no RDMA.
pub(super) fn laptop() -> Fake {
    let fake = machine("laptop\n", false);
    let (dir, address) = Place::of(0).function(3);
    function(
        &fake,
        &dir,
        &address,
        "nvidia",
        ["0x10de", "0x28e0", "0x030000"],
        0,
    );
    fake
}
