//! The rule about NICs that are far from the GPU of the process that uses them.

use super::*;
use crate::input::GpuPlace;

/// Returns the PCI path of a device behind a root port of a host bridge, given as `17:2`.
fn path(place: &str) -> Vec<String> {
    let (bus, slot) = place.split_once(':').unwrap();
    vec![
        format!("pci0000:{bus}"),
        format!("0000:{bus}:0{slot}.0"),
        format!("0000:{bus}:1f.0"),
    ]
}

pub(super) fn gpu(place: &str, node: u32) -> Arc<GpuPlace> {
    Arc::new(GpuPlace {
        address: format!("0000:{}:1f.0", &place[..2]),
        path: path(place),
        node: Some(node),
    })
}

/// Eight NICs, each behind its own root port, four per NUMA node. One rank computes on a GPU behind the first
/// NIC's port and sends over NIC number `sends`.
fn node(sends: usize) -> Snapshot {
    let mut rates = [0.0; 8];
    rates[sends] = 4e9;
    let mut s = rails(rates, rates);
    for (n, device) in s.devices.iter_mut().enumerate() {
        device.pci_path = path(&format!("{}:{}", 10 + n / 2, n % 2)).into();
        device.numa_node = Some(i32::from(n >= 4));
    }
    let row = &mut s.facts.processes[0];
    row.devices = vec![s.facts.devices[sends].name.clone()];
    row.gpus = Some([gpu("10:0", 0)].into());
    s
}

fn far(s: &Snapshot) -> Vec<Finding> {
    let mut all = after(12, s);
    all.retain(|found| found.id == FindingId::FarNic);
    all
}

#[test]
fn a_nic_of_another_node_is_far_while_the_gpu_s_own_is_idle() {
    let found = far(&node(5));
    assert_eq!(
        found[0].verdict,
        "rank (PID 4711, slurm 7341.0) computes on GPU 0000:10:1f.0 and alone has QPs on mlx5_5/1, on another NUMA node, which is busy: \
         mlx5_0/1 behind the same PCIe switch is idle"
    );
    assert_eq!(
        found[0].evidence,
        ["mlx5_5/1 carries 32.0 Gb/s", "mlx5_0/1 carries 0 b/s"]
    );
    assert_eq!((found[0].severity, found.len()), (Severity::Warning, 1));
    // A NIC on the same host bridge, and one on the same node.
    assert!(
        far(&node(1))[0]
            .verdict
            .contains("on the same PCIe host bridge, which is busy: mlx5_0/1")
    );
    assert!(
        far(&node(2))[0]
            .verdict
            .contains("on another PCIe host bridge, which is busy: mlx5_0/1")
    );
}

#[test]
fn what_chose_the_nic_is_named() {
    let mut s = node(5);
    assert!(far(&s)[0].next.to_string().contains("/proc/4711/environ"));
    s.processes[0].environ = Some(vec![("NCCL_IB_HCA".into(), "mlx5_5".into())].into());
    let next = far(&s)[0].next.to_string();
    assert!(
        next.contains("mlx5_0 nearer to the GPU -> start it next without NCCL_IB_HCA"),
        "{next}"
    );
    s.processes[0].environ = None;
    s.processes[0].cmdline = Some("ib_write_bw -d mlx5_5 --use_cuda=0".into());
    assert!(far(&s)[0].next.to_string().contains("with -d of that NIC"));
}

#[test]
fn the_nearest_nic_and_a_nearer_one_that_is_busy_are_no_finding() {
    assert!(far(&node(0)).is_empty());
    // Another rank uses the near NIC.
    let mut s = node(5);
    s.ports[0] = node(0).ports.remove(0);
    let nearest_idle = far(&s);
    assert!(
        nearest_idle[0]
            .verdict
            .contains("mlx5_1/1 on the same PCIe host bridge"),
        "{nearest_idle:?}"
    );
    for n in 1..4 {
        s.ports[n] = node(n).ports.remove(n);
    }
    assert!(far(&s).is_empty());
    // The rank uses the near NIC too.
    let mut s = node(5);
    s.ports[0] = node(0).ports.remove(0);
    s.processes[0].devices.push("mlx5_0".into());
    assert!(far(&s).is_empty());
}

#[test]
fn what_is_not_known_makes_no_nic_far() {
    let changes: [fn(&mut Snapshot); 8] = [
        |s| s.processes[0].gpus = None,
        |s| s.processes[0].gpus = Some([].into()),
        // The NIC may send the data of either GPU.
        |s| s.processes[0].gpus = Some([gpu("10:0", 0), gpu("14:0", 1)].into()),
        |s| {
            let mut place = GpuPlace::clone(&gpu("10:0", 0));
            place.path.clear();
            s.processes[0].gpus = Some([Arc::new(place)].into());
        },
        |s| s.devices[3].pci_path = Arc::default(),
        |s| s.ports[3].tx_bytes = None,
        |s| s.ports[3].rx_bytes = None,
        // The traffic of the port may belong to another process.
        |s| {
            let mut other = s.processes[0].clone();
            (other.uid, other.pid, other.gpus) = (6, Some(4712), Some([].into()));
            s.processes.push(other);
        },
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let mut s = node(5);
        change(&mut s);
        assert!(far(&s).is_empty(), "{n}");
    }
    // Nor is one of another network.
    let changes: [fn(&mut PortRow); 2] = [
        |port| port.link_layer = Some("InfiniBand".into()),
        |port| port.rate_bps = Some(200_000_000_000),
    ];
    for change in changes {
        let mut s = node(5);
        s.ports[..4].iter_mut().for_each(change);
        assert!(far(&s).is_empty());
    }
    // A port that is down is no alternative.
    let mut s = node(5);
    for port in &mut s.ports[..4] {
        port.state = Some(PortState(1));
    }
    assert!(far(&s).is_empty());
}
