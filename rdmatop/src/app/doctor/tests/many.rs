//! Lists on large machines: no line of any check grows with the number of devices, processes or files.

use super::{collect, trees};
use rdmatop_base::ib::{Gid, PortState};
use rdmatop_doctor::{
    Facts, Reading, examine,
    facts::{Device, IdleNic, Lossless, Member, Process, RdmaLimit, Service, Sharers},
};
use rdmatop_model::input::{PcieLink, PortGid};

const DEVICES: u32 = 150;
const PROCESSES: u32 = 1000;
/// Characters of a line. The longest sentence of ours with two lists takes that much.
const MOST: usize = 500;

/// Names whose numbers have gaps, so that no range shortens the list.
fn list(n: u32, name: &str) -> Vec<String> {
    (0..n).map(|at| format!("{name}{}", at * 3)).collect()
}

/// Changes of a device, by its number. Each makes the devices differ where it can.
const OF_DEVICES: &[fn(&mut Device, u32)] = &[
    |_, _| {},
    |device, n| device.driver = Some(format!("driver{n}")),
    |device, n| device.firmware = Reading::Known(format!("{n}.1 b")),
    |device, n| {
        device.board = Reading::Known(format!("board {}", n / 2));
        device.firmware = Reading::Known(format!("28.{n}"));
    },
    |device, _| device.dangling = true,
    |device, _| device.late = true,
    |device, n| device.software = n % 2 == 0,
    |device, n| device.irqs = vec![vec![n]; 8],
    |device, n| device.ports[0].state = Reading::Known(PortState(1 + u8::try_from(n).unwrap() % 3)),
    |device, _| device.ports[0].state = Reading::Unreadable("why".to_owned()),
    |device, n| device.ports[0].rate = Reading::Known(u64::from(n + 1) * 1_000_000_000),
    |device, n| device.ports[0].link_layer = Some(format!("layer {n}")),
    |device, _| device.ports[0].gids = Reading::Known(Vec::new()),
    |device, _| device.ports[0].gids = Reading::Unknown("why".to_owned()),
    |device, n| {
        let bytes = [u8::try_from(n).unwrap(); 16];
        device.ports[0].gids = Reading::Known(vec![PortGid {
            index: n.try_into().unwrap(),
            gid: Gid(bytes),
            v1: Some(n % 2 != 0),
        }]);
    },
    |device, n| device.ports[0].netdev.as_mut().unwrap().mtu = Some(1500 + n),
    |device, n| {
        let netdev = device.ports[0].netdev.as_mut().unwrap();
        let lossless = &netdev.lossless;
        let member = |name| Member {
            name,
            up: Some(false),
            outside: true,
            lossless: lossless.clone(),
        };
        netdev.members = list(DEVICES, "eth").into_iter().map(member).collect();
        (netdev.up, netdev.carrier) = (Some(n % 2 == 0), Some(false));
        device.ports[0].state = Reading::Known(PortState(1));
    },
    |device, n| {
        device.ports[0].netdev.as_mut().unwrap().lossless = Reading::Known(Lossless {
            pfc: Some((0..8).filter(|bit| n >> bit & 1 == 1).collect()),
            trust: Some("dscp".to_owned()),
            ecn_off: Some(Vec::new()),
        });
    },
    |device, n| {
        device.ports[0].netdev.as_mut().unwrap().lossless = Reading::Known(Lossless {
            pfc: Some((0..8).collect()),
            trust: Some(format!("trust{n}")),
            ecn_off: Some((0..8).collect()),
        });
    },
    |device, _| {
        device.ports[0].netdev.as_mut().unwrap().lossless = Reading::Unreadable("why".to_owned());
    },
    |device, n| {
        let pci = device.pci.as_mut().unwrap();
        pci.node = Some(n);
        pci.iommu = Reading::Known("DMA".to_owned());
        pci.acs = Reading::Known(list(DEVICES, &format!("{n}:")));
        let link = |width| {
            Reading::Known(PcieLink {
                mega_transfers: 16_000 + n,
                width,
                bps: u64::from(width) * 1_000_000_000,
            })
        };
        (pci.current, pci.max, pci.slot) = (link(1), link(16), link(8));
    },
];

/// Changes of a process, by its number.
const OF_PROCESSES: &[fn(&mut Process, u32)] = &[
    |_, _| {},
    |process, n| process.memlock = Reading::Known(Some(u64::from(n) * 4096)),
    |process, n| {
        process.memlock = Reading::Known(Some(4096));
        process.cgroup = Some(format!("/system.slice/unit{n}.service"));
    },
    |process, _| process.memlock = Reading::Unknown("why".to_owned()),
    |process, _| process.environ = Reading::Unknown("why".to_owned()),
    |process, _| process.environ = Reading::Unreadable("why".to_owned()),
    |process, _| process.conf = Reading::Unknown("why".to_owned()),
    |process, n| {
        set(
            process,
            &["NCCL_IB_HCA", "NVSHMEM_HCA_LIST"],
            &list(DEVICES, if n % 2 == 0 { "mlx5_" } else { "mlx9_" }).join(","),
        );
    },
    |process, _| {
        set(
            process,
            &["UCX_NET_DEVICES", "UCX_TLS", "FI_PROVIDER"],
            &list(DEVICES, "tcp").join(","),
        );
    },
    |process, n| {
        process.interfaces = Reading::Known(list(DEVICES, "eth"));
        let some = list(DEVICES, if n % 2 == 0 { "eth" } else { "no" }).join(",");
        set(process, &["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"], &some);
    },
    |process, n| {
        set(
            process,
            &[
                "NCCL_IB_GID_INDEX",
                "NCCL_IB_DISABLE",
                "NCCL_RINGS",
                "NCCL_IB_HCAS",
            ],
            &n.to_string(),
        );
    },
];

fn set(process: &mut Process, names: &[&str], value: &str) {
    let pairs = names.iter().map(|name| ((*name).to_owned(), value.to_owned()));
    process.environ = Reading::Known(pairs.collect());
}

/// Changes of the machine as a whole.
const OF_ALL: &[fn(&mut Facts)] = &[
    |_| {},
    |facts| {
        facts.devices = Reading::Known(Vec::new());
        facts.idle_nics = list(DEVICES, "0000:")
            .into_iter()
            .map(|address| IdleNic {
                driver: Some(address.clone()),
                address,
                what: "ConnectX",
                module: "mlx5_ib",
            })
            .collect();
    },
    |facts| {
        let gpu = facts.gpus[0].clone();
        facts.gpus = list(DEVICES, "0000:")
            .into_iter()
            .map(|address| {
                let mut gpu = gpu.clone();
                (gpu.pci.address, gpu.pci.node) = (address, Some(7777));
                gpu.pci.path.clear();
                gpu
            })
            .collect();
    },
    |facts| {
        facts.services = list(PROCESSES, "service")
            .into_iter()
            .zip(0..)
            .map(|(comm, n)| Service {
                comm,
                unit: None,
                memlock: Some(n),
                exempt: false,
                shell: false,
            })
            .collect();
    },
    |facts| {
        facts.services = list(PROCESSES, "service")
            .into_iter()
            .map(|comm| Service {
                comm,
                unit: None,
                memlock: None,
                exempt: true,
                shell: false,
            })
            .collect();
    },
    |facts| {
        facts.pid = Some(5000);
        facts.view.rdma_limits = Reading::Known(
            list(DEVICES, "mlx5_")
                .into_iter()
                .map(|device| RdmaLimit {
                    cgroup: "/job".to_owned(),
                    device,
                    resource: "hca_object".to_owned(),
                    max: 10,
                    current: Some(10),
                })
                .collect(),
        );
        let found = list(PROCESSES, "rank")
            .into_iter()
            .zip(1..)
            .map(|(comm, pid)| (pid, comm))
            .collect();
        facts.view.sharers = Reading::Known(Sharers { found, partial: true });
        facts.view.sees = Reading::Known(
            list(DEVICES, "mlx5_")
                .into_iter()
                .map(|name| (name, false))
                .collect(),
        );
    },
    |facts| {
        facts.verbs = Reading::Known(
            list(DEVICES, "uverbs")
                .into_iter()
                .zip(list(DEVICES, "mlx5_"))
                .collect(),
        );
        facts.view.nodes = Reading::Known(Vec::new());
    },
    |facts| {
        facts.verbs = Reading::Known(
            list(DEVICES, "uverbs")
                .into_iter()
                .zip(list(DEVICES, "mlx5_"))
                .collect(),
        );
        let files = list(DEVICES, "uverbs").into_iter().zip(0..);
        facts.view.nodes = Reading::Known(
            files
                .map(|(name, n)| (name, (n % 2 == 0).then_some(false)))
                .collect(),
        );
    },
];

#[test]
fn no_line_grows_with_devices_or_processes() {
    let small = collect(&trees::gpu_node().root(), None);
    let mut seen = std::collections::BTreeSet::new();
    let mut long = Vec::new();
    let mut look = |what: String,
                    of_device: fn(&mut Device, u32),
                    of_process: fn(&mut Process, u32),
                    of_all: fn(&mut Facts)| {
        let mut facts = small.clone();
        let (device, process) = (
            facts.devices.known().unwrap()[0].clone(),
            facts.processes.first().cloned(),
        );
        let devices = (0..DEVICES).map(|n| {
            let mut device = device.clone();
            device.name = format!("mlx5_{}", n * 3);
            of_device(&mut device, n);
            device
        });
        facts.devices = Reading::Known(devices.collect());
        let processes = (0..PROCESSES).map(|n| {
            let mut process = process.clone().unwrap_or_default();
            process.pid = 5000 + n * 3;
            of_process(&mut process, n);
            process
        });
        facts.processes = processes.collect();
        of_all(&mut facts);
        for line in examine(&facts).lines {
            seen.insert(line.id);
            for said in [&line.text, &line.why, &line.remedy.to_string()] {
                if said.len() > MOST {
                    long.push(format!(
                        "{what}: {}: {} characters: {said:.500}",
                        line.id,
                        said.len()
                    ));
                }
            }
        }
    };
    for (at, of_device) in OF_DEVICES.iter().enumerate() {
        look(format!("device {at}"), *of_device, OF_PROCESSES[0], OF_ALL[0]);
    }
    for (at, of_process) in OF_PROCESSES.iter().enumerate() {
        look(format!("process {at}"), OF_DEVICES[0], *of_process, OF_ALL[0]);
    }
    for (at, of_all) in OF_ALL.iter().enumerate() {
        look(format!("all {at}"), OF_DEVICES[0], OF_PROCESSES[0], *of_all);
    }
    long.dedup();
    assert!(long.is_empty(), "{}", long.join("\n"));
    let all = rdmatop_doctor::table::CHECKS.iter().map(|check| check.id);
    let unseen: Vec<_> = all.filter(|id| !seen.contains(id)).collect();
    let without_a_list = [
        "device.search",
        "device.removal",
        "device.softroce",
        "rdmatop.processes",
    ];
    assert_eq!(unseen, without_a_list, "all others are looked at");
}
