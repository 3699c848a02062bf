//! Each check by its facts: a change that affects one line changes no other.

use std::sync::LazyLock;

use super::super::pci;
use super::{collect, trees};
use rdmatop_base::exclude::Excluded;
use rdmatop_doctor::{
    Fact, Facts, Status, examine,
    facts::{Gid, IdleNic, Member, Port, Process, RdmaLimit, Service, Sharers, SoftRoce},
};
use rdmatop_model::cause::{Cause, CauseId, Concerns};

static HEALTHY: LazyLock<Facts> = LazyLock::new(|| collect(&trees::gpu_node().root(), None));

/// Lines that the healthy node's report does not have, without the pass lines that they replace: `FAIL
/// port.state text`.
fn changed(change: impl FnOnce(&mut Facts)) -> Vec<String> {
    let mut facts = HEALTHY.clone();
    let before = examine(&facts);
    change(&mut facts);
    let after = examine(&facts);
    let new: Vec<_> = after
        .lines
        .iter()
        .filter(|line| !before.lines.contains(line))
        .collect();
    // The removed lines belong to the same checks as the new ones.
    for gone in before.lines.iter().filter(|line| !after.lines.contains(line)) {
        assert!(
            new.iter().any(|line| line.id == gone.id),
            "{gone:?} went for {new:?}"
        );
    }
    new.iter()
        .map(|line| format!("{:?} {} {}", line.status, line.id, line.text))
        .collect()
}

fn port(facts: &mut Facts, number: usize) -> &mut Port {
    &mut devices(facts)[number].ports[0]
}

fn devices(facts: &mut Facts) -> &mut Vec<rdmatop_doctor::facts::Device> {
    match &mut facts.devices {
        Fact::Known(devices) => devices,
        other => panic!("{other:?}"),
    }
}

fn cause(id: CauseId) -> Cause {
    Cause {
        id,
        concerns: Concerns::Host,
        what: "what".into(),
        why: "why".into(),
        remedy: "remedy".into(),
    }
}

#[test]
fn devices_that_are_late_broken_leaving_or_closed_are_named() {
    let line = changed(|facts| devices(facts)[3].late = true);
    assert_eq!(line[0], "Fail device.present mlx5_3 does not answer");
    let line = changed(|facts| devices(facts)[3].dangling = true);
    assert_eq!(
        line[0],
        "Fail device.present mlx5_3 is listed, and its files in /sys are missing"
    );
    let line = changed(|facts| facts.leaving = Fact::Known(vec![("mlx5_9".into(), "held by 7 (x)".into())]));
    assert_eq!(
        line,
        ["Fail device.removal mlx5_9 is being removed, and the removal waits: held by 7 (x)"]
    );
    let mut facts = HEALTHY.clone();
    (facts.devices, facts.host.exclusive) = (Fact::Known(vec![]), true);
    let report = examine(&facts);
    assert!(
        report.verdict().contains("mode exclusive"),
        "{}",
        report.verdict()
    );
    assert!(!report.lines[0].remedy.contains("driver"), "no driver is missing");
    let line = changed(|facts| facts.leaving = Fact::Unreadable("it is so".into()));
    assert_eq!(line, ["Skip device.removal devices that are being removed"]);
    let line = changed(|facts| {
        facts.idle_nics = vec![IdleNic {
            address: "0000:f0:00.0".into(),
            what: "an EFA",
            module: "efa",
            driver: None,
        }];
    });
    assert_eq!(
        line,
        ["Warn device.driver an EFA at 0000:f0:00.0 has no RDMA device: it has no driver"]
    );
}

#[test]
fn a_device_that_is_left_alone_is_named_and_not_read() {
    let fake = trees::gpu_node();
    let root = fake.root().without(Excluded::new(&["mlx5_3".to_owned()]));
    let facts = collect(&root, None);
    assert_eq!(facts.excluded, ["mlx5_3"]);
    let Fact::Known(devices) = &facts.devices else {
        panic!("{:?}", facts.devices);
    };
    assert!(devices.iter().all(|device| device.name != "mlx5_3") && !devices.is_empty());
    let report = examine(&facts);
    let lines = report.lines.iter().filter(|line| line.id == "device.present");
    let all: Vec<_> = lines.map(|line| (line.status, &*line.text)).collect();
    assert_eq!(all[0], (Status::Skip, "mlx5_3"));
    assert_eq!((all[1].0, all.len()), (Status::Pass, 2));
}

#[test]
fn a_machine_without_verbs_says_so() {
    let line = changed(|facts| {
        if let Fact::Known(verbs) = &mut facts.verbs {
            verbs.retain(|(_, device)| device != "mlx5_2");
        }
    });
    assert_eq!(
        line[0],
        "Warn device.verbs programs cannot open mlx5_2: it has no verbs device"
    );
    let mut facts = HEALTHY.clone();
    facts.verbs = Fact::Absent;
    let report = examine(&facts);
    assert!(
        report
            .lines
            .iter()
            .any(|line| line.id == "device.verbs" && line.remedy.starts_with("sudo modprobe ib_uverbs "))
    );
}

#[test]
fn firmware_that_differs_is_named_within_a_board_alone() {
    let line = changed(|facts| devices(facts)[3].firmware = Fact::Known("28.36.1010".into()));
    assert_eq!(
        line,
        [
            "Warn device.firmware different firmware on equal NICs: 28.36.1010 on mlx5_3; 28.39.1002 on mlx5_0, mlx5_1, mlx5_2, mlx5_4 and 3 more"
        ]
    );
    let line = changed(|facts| {
        devices(facts)[3].firmware = Fact::Known("16.1".into());
        devices(facts)[3].board = Fact::Known("other".into());
    });
    assert_eq!(line, [""; 0]);
}

#[test]
fn a_port_that_is_down_is_one_line_whatever_else_follows_from_it() {
    let line = changed(|facts| {
        port(facts, 3).state = Fact::Known(1);
        port(facts, 3).netdev.as_mut().unwrap().carrier = Some(false);
    });
    assert_eq!(
        line,
        ["Fail port.state mlx5_3 is down: its interface eth3 has no signal"]
    );
    let line = changed(|facts| {
        port(facts, 3).state = Fact::Known(1);
        port(facts, 3).netdev.as_mut().unwrap().up = Some(false);
    });
    assert_eq!(
        line,
        ["Warn port.state mlx5_3 is down: its interface eth3 is switched off"]
    );
    let line = changed(|facts| {
        port(facts, 3).state = Fact::Known(2);
        port(facts, 3).link_layer = Some("InfiniBand".into());
        port(facts, 3).roce = false;
        port(facts, 3).netdev = None;
    });
    assert_eq!(
        line[0],
        "Fail port.state mlx5_3 waits for the subnet manager (state INIT)"
    );
    let line = changed(|facts| port(facts, 3).state = Fact::Unreadable("reading fails: x".into()));
    assert_eq!(line[0], "Skip port.state state of mlx5_3");
    let mut facts = HEALTHY.clone();
    (0..8).for_each(|at| {
        port(&mut facts, at).state = Fact::Known(1);
        port(&mut facts, at).netdev.as_mut().unwrap().carrier = Some(false);
    });
    let report = examine(&facts);
    assert_eq!(
        lines(&report),
        ["mlx5_0 is down: its interface eth0 has no signal; the same for 7 others: mlx5_1 to mlx5_7"]
    );
    // A port without a link has no speed.
    assert!(report.lines.iter().all(|line| line.id != "port.rate"));
}

/// The texts of the lines that the check of port states makes.
fn lines(report: &rdmatop_doctor::Report) -> Vec<&str> {
    let of_ports = report.lines.iter().filter(|line| line.id == "port.state");
    of_ports.map(|line| line.text.as_str()).collect()
}

#[test]
fn a_port_is_expected_up_only_where_something_says_so() {
    // Four cards of two ports each, of which the second ones have no cable.
    let dual = |change: fn(&mut Facts)| {
        let mut facts = HEALTHY.clone();
        for (at, device) in devices(&mut facts).iter_mut().enumerate() {
            device.pci.as_mut().unwrap().address = format!("0000:{}0:00.{}", at / 2, at % 2);
            if at % 2 == 1 {
                let port = &mut device.ports[0];
                (port.state, port.netdev.as_mut().unwrap().carrier) = (Fact::Known(1), Some(false));
            }
        }
        change(&mut facts);
        let report = examine(&facts);
        let said = lines(&report).into_iter().map(str::to_owned).collect::<Vec<_>>();
        (report.code(), said)
    };
    let spare = "4 of 8 up: Ethernet; mlx5_1, mlx5_3, mlx5_5 and mlx5_7 are down and taken for spares: nothing uses them";
    assert_eq!(dual(|_| {}), (0, vec![spare.to_owned()]));
    let off = |facts: &mut Facts| port(facts, 1).netdev.as_mut().unwrap().up = Some(false);
    assert_eq!(dual(off), (0, vec![spare.to_owned()]));
    let evidence: [fn(&mut Facts); 4] = [
        |facts| port(facts, 1).in_use = true,
        |facts| port(facts, 1).was_used = true,
        |facts| port(facts, 1).netdev.as_mut().unwrap().had_carrier = true,
        |facts| {
            for at in (3..8).step_by(2) {
                port(facts, at).state = Fact::Known(4);
            }
        },
    ];
    for change in evidence {
        let (code, said) = dual(change);
        assert_eq!(
            (code, &*said[0]),
            (2, "mlx5_1 is down: its interface eth1 has no signal"),
            "{said:?}"
        );
    }
    // A signal says that somebody has plugged in a cable.
    let (code, said) = dual(|facts| port(facts, 1).netdev.as_mut().unwrap().carrier = Some(true));
    assert_eq!(
        (code, &*said[0]),
        (2, "mlx5_1 is down: its interface eth1 has a signal")
    );
    // A port of InfiniBand has no interface that says so.
    let (code, said) = dual(|facts| {
        for at in (1..8).step_by(2) {
            let port = port(facts, at);
            (port.netdev, port.physical, port.roce) = (None, Fact::Known(2), false);
        }
    });
    assert_eq!((code, said), (0, vec![spare.to_owned()]));
}

#[test]
fn what_is_said_of_many_is_one_line_with_their_number() {
    let mut facts = HEALTHY.clone();
    let first = devices(&mut facts)[0].clone();
    devices(&mut facts).extend((8..158).map(|at| rdmatop_doctor::facts::Device {
        name: format!("mlx5_{at}"),
        late: at % 2 == 0,
        dangling: at % 2 == 1,
        ..first.clone()
    }));
    facts.idle_nics = (0..150)
        .map(|at| IdleNic {
            address: format!("0000:{at:02x}:00.0"),
            what: "an EFA",
            module: "efa",
            driver: None,
        })
        .collect();
    let report = examine(&facts);
    let of = |id| {
        report
            .lines
            .iter()
            .filter(|line| line.id == id)
            .collect::<Vec<_>>()
    };
    let (devices, drivers) = (of("device.present"), of("device.driver"));
    assert_eq!(
        (devices.len(), drivers.len()),
        (2, 1),
        "{devices:#?} {drivers:#?}"
    );
    assert!(
        devices[1]
            .text
            .contains("; the same for 74 others: mlx5_10, mlx5_12, mlx5_14, mlx5_16 and 70 more")
    );
    assert!(devices[1].subject.ends_with(", mlx5_156"), "JSON has them all");
    assert!(
        drivers[0].text.contains("the same for 149 others"),
        "{drivers:#?}"
    );
    let page = rdmatop_doctor::page::text(&facts, &report, true, false);
    assert!(page.lines().count() < 100, "{page}");
}

#[test]
fn a_slow_port_is_named_and_one_of_another_board_is_not() {
    let line = changed(|facts| port(facts, 5).rate = Fact::Known(100_000_000_000));
    assert_eq!(
        line[0],
        "Warn port.rate mlx5_5 runs at 100 Gb/s, others of its kind at 400 Gb/s"
    );
    let line = changed(|facts| {
        port(facts, 5).rate = Fact::Known(100_000_000_000);
        devices(facts)[5].board = Fact::Known("storage".into());
    });
    assert!(line.iter().all(|line| line.starts_with("Pass")), "{line:?}");
}

#[test]
fn packets_that_are_too_small_are_named() {
    let mtu = |mtu| changed(move |facts| port(facts, 6).netdev.as_mut().unwrap().mtu = Some(mtu));
    assert_eq!(
        mtu(1500),
        ["Warn port.mtu packets of mlx5_6 carry 1024 bytes: eth6 has MTU 1500"]
    );
    assert_eq!(
        mtu(1000),
        ["Warn port.mtu packets of mlx5_6 carry 512 bytes: eth6 has MTU 1000"]
    );
    assert_eq!(
        mtu(4200),
        ["Pass port.mtu packets carry 4096 bytes (interface MTU 4200) and 4096 bytes (interface MTU 9000)"]
    );
}

#[test]
fn ports_without_a_usable_gid_are_named() {
    let gids = |gids: Vec<Gid>| changed(move |facts| port(facts, 1).gids = Fact::Known(gids));
    let link_local = |v2| {
        let mut bytes = [0; 16];
        (bytes[0], bytes[1]) = (0xfe, 0x80);
        Gid { index: 0, bytes, v2 }
    };
    let of = |line: Vec<String>| line.into_iter().find(|line| line.contains("port.gid")).unwrap();
    assert_eq!(of(gids(vec![])), "Fail port.gid mlx5_1 has no address (GID)");
    assert_eq!(
        of(gids(vec![link_local(false)])),
        "Fail port.gid mlx5_1 has addresses (GIDs) of RoCE v1 only"
    );
    assert_eq!(
        of(gids(vec![link_local(true)])),
        "Warn port.gid mlx5_1 has a link-local address (GID) only"
    );
}

#[test]
fn a_job_whose_gid_index_is_wrong_on_a_port_is_named_with_the_port() {
    let line = changed(|facts| port(facts, 1).gids = Fact::Known(vec![]));
    assert_eq!(
        line,
        [
            "Fail port.gid mlx5_1 has no address (GID)",
            "Fail job.gid PIDs 4711 and 4712: NCCL_IB_GID_INDEX=3 is no address (GID) of mlx5_1"
        ]
    );
    assert_eq!(
        with_settings(&["NCCL_IB_GID_INDEX=2"])[0],
        "Warn job.gid PID 4711 (python3): NCCL_IB_GID_INDEX=2 is an address (GID) of RoCE v1 of mlx5_0 to mlx5_7"
    );
}

#[test]
fn a_link_of_pcie_that_is_too_slow_is_named_and_one_that_is_enough_is_not() {
    let link = |mega_transfers, width| {
        let link = rdmatop_sources::sysfs::PcieLink {
            mega_transfers,
            width,
        };
        changed(move |facts| devices(facts)[2].pci.as_mut().unwrap().current = Fact::Known(pci::link(link)))
    };
    assert_eq!(
        link(32_000, 8),
        ["Warn pcie.link mlx5_2 is on PCIe Gen5 x8, could do Gen5 x16"]
    );
    assert_eq!(
        link(16_000, 16),
        ["Warn pcie.link mlx5_2 is on PCIe Gen4 x16, could do Gen5 x16"]
    );
    let remedy = |slot: Option<u32>| {
        let mut facts = HEALTHY.clone();
        let pci = devices(&mut facts)[2].pci.as_mut().unwrap();
        let link = |width| {
            let mega_transfers = 32_000;
            Fact::Known(pci::link(rdmatop_sources::sysfs::PcieLink {
                mega_transfers,
                width,
            }))
        };
        (pci.current, pci.slot) = (link(8), slot.map_or(Fact::Absent, link));
        let report = examine(&facts);
        let line = report.lines.iter().find(|line| line.id == "pcie.link").unwrap();
        line.remedy.to_string()
    };
    assert!(remedy(Some(16)).contains("reseat"), "both ends can do more");
    assert!(remedy(Some(8)).contains("the slot can do no more"));
    assert!(
        !remedy(None).contains("reseat"),
        "nobody knows what the slot can do"
    );
    // All in Gen4 slots, with ports of 100 Gb/s: the machine was bought so.
    let line = changed(|facts| {
        for device in devices(facts) {
            device.ports[0].rate = Fact::Known(100_000_000_000);
            device.pci.as_mut().unwrap().current = Fact::Known(pci::link(rdmatop_sources::sysfs::PcieLink {
                mega_transfers: 16_000,
                width: 16,
            }));
        }
    });
    assert!(line.iter().all(|line| line.starts_with("Pass")), "{line:?}");
}

#[test]
fn obstacles_between_gpu_and_nic_are_named() {
    let line = changed(|facts| devices(facts)[0].pci.as_mut().unwrap().iommu = Fact::Known("DMA-FQ".into()));
    assert_eq!(
        line,
        ["Warn pcie.iommu an IOMMU translates each transfer of mlx5_0"]
    );
    let line = changed(|facts| {
        devices(facts)[0].pci.as_mut().unwrap().acs = Fact::Known(vec!["0000:10:01.0".into()]);
    });
    assert_eq!(
        line,
        ["Warn pcie.acs PCIe bridges redirect traffic between GPU and NIC (ACS): 0000:10:01.0"]
    );
    let line = changed(|facts| facts.gpus[0].pci.acs = Fact::Unreadable("only root may read it".into()));
    assert_eq!(
        line,
        ["Skip pcie.acs whether PCIe bridges redirect traffic between GPU and NIC (ACS)"]
    );
    let line = changed(|facts| facts.gpu_memory.peermem = false);
    assert!(
        line[0].starts_with("Skip gpu.direct"),
        "nothing says which module it is: {line:?}"
    );
    let line = changed(|facts| {
        facts.gpu_memory.peermem = false;
        facts.gpu_memory.open_module = Fact::Known(false);
    });
    assert_eq!(
        line,
        ["Warn gpu.direct NICs cannot reach GPU memory (no GPUDirect RDMA): nvidia_peermem is not loaded"]
    );
    let line = changed(|facts| {
        facts.gpu_memory.peermem = false;
        facts.gpu_memory.open_module = Fact::Known(true);
    });
    assert_eq!(
        line,
        ["Pass gpu.direct 8 GPUs: NICs can reach their memory (DMA-BUF, open NVIDIA module)"]
    );
    let line = changed(|facts| {
        facts.gpu_memory.peermem = false;
        facts.gpu_memory.open_module = Fact::Known(true);
        facts.host.version = Some((5, 10));
    });
    assert!(line[0].starts_with("Warn gpu.direct"), "{line:?}");
    let line = changed(|facts| {
        devices(facts).truncate(4);
    });
    assert!(
        line.contains(
            &"Warn gpu.distance no NIC on the NUMA node of 4 GPUs: 0000:53:00.0, 0000:63:00.0, 0000:73:00.0 and 0000:83:00.0"
                .to_owned()
        ),
        "{line:?}"
    );
}

#[test]
fn interrupts_in_one_place_are_named() {
    let line = changed(|facts| devices(facts)[1].irqs = vec![vec![5]; 8]);
    assert_eq!(line, ["Warn pcie.irq all interrupts of mlx5_1 go to one CPU"]);
    let line = changed(|facts| devices(facts)[1].irqs = (40..48).map(|cpu| vec![cpu]).collect());
    assert_eq!(
        line,
        ["Warn pcie.irq all interrupts of mlx5_1 go to CPUs of another NUMA node"]
    );
    let line = changed(|facts| devices(facts)[1].irqs = vec![vec![5]; 2]);
    assert_eq!(line, [""; 0], "two are one queue and its management");
}

#[test]
fn flow_control_that_differs_or_is_not_used_is_named() {
    let lossless = |change: fn(&mut rdmatop_doctor::facts::Lossless)| {
        changed(move |facts| {
            if let Fact::Known(lossless) = &mut port(facts, 2).netdev.as_mut().unwrap().lossless {
                change(lossless);
            }
        })
    };
    let line = lossless(|lossless| lossless.trust = Some("pcp".into()));
    assert_eq!(
        line[0],
        "Warn lossless.pfc mlx5_2 has flow control (PFC) and does not trust DSCP"
    );
    let line = lossless(|lossless| lossless.pfc = Some(vec![]));
    assert!(
        line[0].starts_with("Warn lossless.pfc ports differ in flow control: mlx5_0, "),
        "{line:?}"
    );
    let line = changed(|facts| {
        facts.host.exclusive = true;
        let netdev = port(facts, 2).netdev.as_mut().unwrap();
        netdev.lossless = Fact::Unreadable("dcb netlink: refused".into());
    });
    assert_eq!(line, ["Skip lossless.pfc flow control (PFC) of mlx5_2"]);
    // Of a bond each link has its own, which a line names.
    let line = changed(|facts| {
        let netdev = port(facts, 2).netdev.as_mut().unwrap();
        let lossless = std::mem::take(&mut netdev.lossless);
        netdev.members = ["eth4", "eth5"]
            .map(|name| Member {
                name: name.into(),
                lossless: lossless.clone(),
            })
            .into();
        if let Fact::Known(lossless) = &mut netdev.members[1].lossless {
            lossless.trust = Some("pcp".into());
        }
    });
    assert_eq!(
        line[0],
        "Warn lossless.pfc mlx5_2 (eth5) has flow control (PFC) and does not trust DSCP"
    );
    let line = lossless(|lossless| lossless.ecn_off = Some(vec![3, 4]));
    assert_eq!(
        line,
        ["Warn lossless.ecn mlx5_2 does not answer congestion marks (ECN) on priority 3"]
    );
}

#[test]
fn limits_are_judged_by_what_they_permit() {
    let memlock = |limit, may_lock| {
        changed(move |facts| {
            facts.processes[0].memlock = Fact::Known(limit);
            facts.processes[0].may_lock = may_lock;
        })
    };
    assert_eq!(
        memlock(Some(65_536), false),
        ["Fail limit.memlock PID 4711 (python3) may lock 64 KiB of memory"]
    );
    assert_eq!(
        memlock(Some(8 << 20), false),
        ["Warn limit.memlock PID 4711 (python3) may lock 8 MiB of memory"]
    );
    assert_eq!(memlock(Some(8 << 20), true), [""; 0]);
    assert_eq!(memlock(Some(1 << 30), false), [""; 0]);
    let line = changed(|facts| {
        facts.services.push(Service {
            comm: "dockerd".into(),
            memlock: Some(8 << 20),
            exempt: false,
            shell: false,
        });
    });
    assert_eq!(
        line,
        ["Warn limit.default dockerd hands on a limit of 8 MiB of locked memory"]
    );
    let cgroup = |current| {
        changed(move |facts| {
            facts.view.rdma_limits = Fact::Known(vec![RdmaLimit {
                cgroup: "/job".into(),
                device: "mlx5_0".into(),
                resource: "hca_object".into(),
                max: 10,
                current,
            }]);
        })
    };
    assert_eq!(
        cgroup(Some(10)),
        ["Fail limit.cgroup 10 of 10 RDMA objects of mlx5_0 are in use in cgroup /job"]
    );
    assert_eq!(
        cgroup(Some(9)),
        ["Warn limit.cgroup 9 of 10 RDMA objects of mlx5_0 are in use in cgroup /job"]
    );
    assert_eq!(
        cgroup(Some(8)),
        ["Pass limit.cgroup RDMA limits of the cgroup are not reached"]
    );
}

#[test]
fn device_files_are_missed_and_closed_ones_are_named() {
    let line = changed(|facts| facts.view.nodes = Fact::Absent);
    assert_eq!(line, ["Fail limit.devices this machine has no /dev/infiniband"]);
    let node = |change: fn(&mut Vec<(String, Option<bool>)>)| {
        changed(move |facts| {
            if let Fact::Known(nodes) = &mut facts.view.nodes {
                change(nodes);
            }
        })
    };
    assert_eq!(
        node(|nodes| nodes.retain(|(name, _)| name != "uverbs3")),
        ["Fail limit.devices this machine has no file in /dev/infiniband for mlx5_3 (uverbs3)"]
    );
    assert_eq!(
        node(|nodes| nodes
            .iter_mut()
            .filter(|(name, _)| name == "uverbs3")
            .for_each(|(_, open)| *open = Some(false))),
        ["Warn limit.devices this machine may not open the files of mlx5_3 (uverbs3)"]
    );
    assert_eq!(
        node(|nodes| nodes.retain(|(name, _)| name != "rdma_cm")),
        ["Warn limit.devices this machine has no /dev/infiniband/rdma_cm"]
    );
}

#[test]
fn settings_of_tcp_are_judged_by_the_kernels_defaults() {
    let line = changed(|facts| facts.tcp.wmem = Some(1 << 20));
    assert_eq!(
        line,
        ["Warn tcp.buffers TCP buffers grow to 6 MiB (receive) and 1 MiB (send) only"]
    );
    let line = changed(|facts| facts.tcp.backlog = Some(128));
    assert_eq!(
        line,
        ["Warn tcp.backlog only 128 ranks can wait to connect (net.core.somaxconn)"]
    );
}

#[test]
fn processes_that_share_verbs_files_with_the_given_one_are_named() {
    let line = |sharers: Fact<Sharers>| {
        changed(|facts| (facts.view.comm, facts.view.pid, facts.view.sharers) = ("rank".into(), 7, sharers))
    };
    let known = |found: &[(u32, &str)], partial| {
        let found = found.iter().map(|(pid, comm)| (*pid, (*comm).to_owned()));
        Fact::Known(Sharers {
            found: found.collect(),
            partial,
        })
    };
    assert_eq!(
        line(known(&[(8, "worker"), (9, "worker")], false)),
        [
            "Pass job.sharers PID 7 (rank) shares verbs files with PID 8 (worker) and PID 9 (worker): its queue pairs last until all have closed them"
        ]
    );
    assert_eq!(
        line(known(&[], false)),
        ["Pass job.sharers PID 7 (rank) shares no verbs file with another process"]
    );
    let partial = line(known(&[], true));
    assert_eq!(
        partial,
        ["Skip job.sharers whether further processes share its verbs files"]
    );
    assert_eq!(line(known(&[(8, "worker")], true)).len(), 2);
    assert_eq!(
        line(Fact::Unreadable("only root may read it".into())),
        ["Skip job.sharers which processes share its verbs files"]
    );
    // Without --pid.
    assert_eq!(line(Fact::Absent), [""; 0]);
}

/// Lines of jobs for a process with these settings.
fn with_settings(settings: &[&str]) -> Vec<String> {
    let pairs = settings.iter().map(|setting| {
        let (name, value) = setting.split_once('=').unwrap();
        (name.to_owned(), value.to_owned())
    });
    let mut facts = HEALTHY.clone();
    facts.processes = vec![Process {
        environ: Fact::Known(pairs.collect()),
        ..facts.processes[0].clone()
    }];
    let report = examine(&facts);
    report
        .lines
        .iter()
        .filter(|line| line.id.starts_with("job."))
        .map(|line| format!("{:?} {} {}", line.status, line.id, line.text))
        .collect()
}

#[test]
fn settings_of_jobs_are_held_to_the_machine() {
    const PID: &str = "PID 4711 (python3)";
    for (setting, said) in [
        (
            "NCCL_IB_DISABLE=1",
            format!("Fail job.rdma {PID}: NCCL_IB_DISABLE=1 turns RDMA off"),
        ),
        (
            "NCCL_NET=Socket",
            format!("Fail job.rdma {PID}: NCCL_NET=Socket turns RDMA off"),
        ),
        (
            "UCX_TLS=tcp,sm",
            format!("Fail job.rdma {PID}: UCX_TLS=tcp,sm turns RDMA off"),
        ),
        (
            "FI_PROVIDER=tcp",
            format!("Fail job.rdma {PID}: FI_PROVIDER=tcp turns RDMA off"),
        ),
        (
            "NVSHMEM_REMOTE_TRANSPORT=none",
            format!("Fail job.rdma {PID}: NVSHMEM_REMOTE_TRANSPORT=none turns RDMA off"),
        ),
        (
            "NCCL_IB_HCA=mlx5_9",
            format!("Fail job.devices {PID}: NCCL_IB_HCA=mlx5_9 takes no RDMA device of this machine"),
        ),
        (
            "NCCL_IB_HCA==mlx5_1,mlx5_9",
            format!("Warn job.devices {PID}: NCCL_IB_HCA names mlx5_9, which this machine does not have"),
        ),
        (
            "NCCL_IB_HCA=^mlx5_1",
            "Pass job.devices NCCL_IB_HCA=^mlx5_1 takes mlx5_0, mlx5_2, mlx5_3, mlx5_4 and 3 more".into(),
        ),
        (
            "UCX_NET_DEVICES=mlx5_0:1,eth0",
            "Pass job.devices UCX_NET_DEVICES=mlx5_0:1,eth0 takes mlx5_0".into(),
        ),
        (
            "UCX_NET_DEVICES=mlx5_9:1",
            format!("Fail job.devices {PID}: UCX_NET_DEVICES=mlx5_9:1 takes no RDMA device of this machine"),
        ),
        (
            "NVSHMEM_HCA_LIST=mlx5_0:1,mlx5_1:1",
            "Pass job.devices NVSHMEM_HCA_LIST=mlx5_0:1,mlx5_1:1 takes mlx5_0 and mlx5_1".into(),
        ),
        (
            "NCCL_SOCKET_IFNAME=bond",
            format!(
                "Fail job.interface {PID}: NCCL_SOCKET_IFNAME=bond names no network interface that it has"
            ),
        ),
        (
            "GLOO_SOCKET_IFNAME=eth",
            format!(
                "Fail job.interface {PID}: GLOO_SOCKET_IFNAME=eth names no network interface that it has"
            ),
        ),
        (
            "NCCL_SOCKET_IFNAME=^lo",
            "Pass job.interface NCCL_SOCKET_IFNAME=^lo names eth0".into(),
        ),
        (
            "NCCL_IB_GID_INDEX=9",
            format!("Fail job.gid {PID}: NCCL_IB_GID_INDEX=9 is no address (GID) of mlx5_0 to mlx5_7"),
        ),
        (
            "UCX_IB_GID_INDEX=1",
            format!(
                "Warn job.gid {PID}: UCX_IB_GID_INDEX=1 is a link-local address (GID) of mlx5_0 to mlx5_7"
            ),
        ),
        (
            "NCCL_IB_GDR_LEVEL=3",
            format!("Warn job.names {PID}: NCCL_IB_GDR_LEVEL is an old name that NCCL reads no more"),
        ),
        (
            "NCCL_IB_HCAS=mlx5_0",
            format!("Warn job.names {PID}: NCCL_IB_HCAS is not a variable of NCCL; NCCL_IB_HCA is"),
        ),
    ] {
        assert_eq!(with_settings(&[setting]), [said], "{setting}");
    }
    for harmless in [
        "NCCL_IB_DISABLE=0",
        "NCCL_DEBUG=INFO",
        "UCX_TLS=rc,sm",
        "FI_PROVIDER=efa",
        "UCX_NET_DEVICES=all",
        "NCCL_IB_GID_INDEX=-1",
        "NCCL_IB_HCA=",
    ] {
        assert_eq!(with_settings(&[harmless]), [""; 0], "{harmless}");
    }
    // The port number in the list takes part in finding the index.
    assert_eq!(
        with_settings(&["NCCL_IB_HCA=mlx5_1", "NCCL_IB_GID_INDEX=3"])[1],
        "Pass job.gid NCCL_IB_GID_INDEX=3 is a RoCE v2 address (GID) of mlx5_1"
    );
}

#[test]
fn what_rdmatop_needs_is_reported_to_root_and_skipped_for_others() {
    let line = changed(|facts| facts.own.missing.push(cause(CauseId::Lockdown)));
    assert_eq!(line, ["Warn rdmatop.ebpf rdmatop's eBPF programs: why"]);
    let line = changed(|facts| facts.own.btf = Some(false));
    assert!(line[0].starts_with("Warn rdmatop.ebpf"), "{line:?}");
    let line = changed(|facts| facts.own.missing.push(cause(CauseId::PidNamespace)));
    assert_eq!(line, ["Warn rdmatop.processes what"]);
    let line = changed(|facts| {
        facts.host.root = false;
        facts.own.missing = vec![cause(CauseId::NoCapability), cause(CauseId::NoPtrace)];
    });
    assert_eq!(line, ["Skip rdmatop.ebpf rdmatop's eBPF programs"]);
    let with_capabilities = changed(|facts| facts.host.root = false);
    assert!(
        with_capabilities.iter().all(|line| !line.contains("eBPF")),
        "as for root: {with_capabilities:?}"
    );
    let line = changed(|facts| facts.unfinished = vec![("GPUs and NICs on PCI", "late")]);
    assert_eq!(line, ["Unknown device.search GPUs and NICs on PCI"]);
    let line = changed(|facts| facts.hidden_processes = 3);
    assert_eq!(line, ["Skip job.hidden settings and limits of 3 processes"]);
}

#[test]
fn softroce_is_offered_only_where_no_device_is() {
    let without = |softroce| {
        let mut facts = Facts {
            softroce,
            ..Facts::default()
        };
        facts.host.root = true;
        examine(&facts).lines
    };
    let line = &without(Some(SoftRoce::Missing("apt install x".into())))[1];
    assert_eq!(
        (line.id, line.status, &*line.remedy),
        ("device.softroce", Status::Warn, "apt install x")
    );
    assert_eq!(without(Some(SoftRoce::Ready))[1].status, Status::Pass);
    assert!(without(None).iter().all(|line| line.id != "device.softroce"));
}

#[test]
fn the_exit_code_is_that_of_the_worst_line() {
    let code = |change: fn(&mut Facts)| {
        let mut facts = HEALTHY.clone();
        change(&mut facts);
        examine(&facts).code()
    };
    assert_eq!(code(|_| {}), 0);
    assert_eq!(
        code(|facts| facts.hidden_processes = 3),
        0,
        "what only root may know is no warning"
    );
    assert_eq!(code(|facts| facts.tcp.backlog = Some(1)), 1);
    assert_eq!(code(|facts| facts.view.nodes = Fact::Absent), 2);
}
