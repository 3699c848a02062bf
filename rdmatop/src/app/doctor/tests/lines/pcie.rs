//! Links of PCIe, what stands between a GPU and a NIC, and interrupts.

use super::{HEALTHY, changed, devices};
use rdmatop_doctor::{Facts, Reading, examine, facts::Pci};
use rdmatop_sources::sysfs::pcie_link;

#[test]
fn a_link_of_pcie_that_is_too_slow_is_named_and_one_that_is_enough_is_not() {
    let link = |mega_transfers, width| {
        let link = pcie_link(mega_transfers, width);
        changed(move |facts| {
            devices(facts)[2].pci.as_mut().unwrap().current = Reading::Known(link);
        })
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
        let link = |width| Reading::Known(pcie_link(32_000, width));
        (pci.current, pci.slot) = (link(8), slot.map_or(Reading::Absent, link));
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
    // A card that has less PCIe than ports, as that of DGX Spark, and one whose two ports share a link.
    let line = changed(|facts| {
        let pci = devices(facts)[2].pci.as_mut().unwrap();
        let link = Reading::Known(pcie_link(32_000, 4));
        (pci.current, pci.max, pci.slot) = (link.clone(), link.clone(), link);
    });
    let said = "mlx5_2 has PCIe Gen5 x4, and can do no more: it carries 126 Gb/s, the ports 400 Gb/s";
    assert_eq!(
        line,
        [
            "Pass pcie.link each other NIC's PCIe link carries its ports: Gen5 x16".to_owned(),
            format!("Pass pcie.link {said}")
        ]
    );
    let line = changed(|facts| devices(facts)[1].pci.as_mut().unwrap().address = "0000:12:00.1".into());
    assert!(
        line.iter().any(|line| line.contains("mlx5_0 has PCIe Gen5 x16")
            && line.contains("the ports 800 Gb/s; the same for mlx5_1")),
        "{line:?}"
    );
    // A scalable function shares the port, too.
    let line = changed(|facts| {
        devices(facts)[1].pci.as_mut().unwrap().address = "0000:12:00.0".into();
    });
    assert_eq!(line, [""; 0]);
    // A card for storage, of another kind than the others, has all that its port needs.
    let storage = |board: &'static str| {
        changed(move |facts| {
            let device = &mut devices(facts)[2];
            device.board = Reading::Known(board.into());
            device.ports[0].rate = Reading::Known(200_000_000_000);
            device.pci.as_mut().unwrap().current = Reading::Known(pcie_link(32_000, 8));
        })
    };
    let same = HEALTHY.devices.known().unwrap()[0].board.known().unwrap().clone();
    let warns = |line: Vec<String>| line.iter().any(|line| line.starts_with("Warn pcie.link"));
    assert!(!warns(storage("MT_0000000765")));
    assert!(warns(storage(same.leak())));
    // All in Gen4 slots, with ports of 100 Gb/s: the machine was bought so.
    let line = changed(|facts| {
        for device in devices(facts) {
            device.ports[0].rate = Reading::Known(100_000_000_000);
            device.pci.as_mut().unwrap().current = Reading::Known(pcie_link(16_000, 16));
        }
    });
    assert!(line.iter().all(|line| line.starts_with("Pass")), "{line:?}");
}

#[test]
fn obstacles_between_gpu_and_nic_are_named() {
    let line =
        changed(|facts| devices(facts)[0].pci.as_mut().unwrap().iommu = Reading::Known("DMA-FQ".into()));
    assert_eq!(
        line,
        ["Warn pcie.iommu an IOMMU translates each transfer of mlx5_0"]
    );
    let line = changed(|facts| facts.gpus[0].pci.acs = Reading::Unreadable("only root may read it".into()));
    assert_eq!(
        line,
        ["Unknown pcie.acs whether PCIe bridges redirect traffic between GPU and NIC (ACS)"]
    );
    let line = changed(|facts| facts.gpu_memory.peermem = false);
    assert!(
        line[0].starts_with("Unknown gpu.direct"),
        "nothing says which module it is: {line:?}"
    );
    let line = changed(|facts| {
        facts.gpu_memory.peermem = false;
        facts.gpu_memory.open_module = Reading::Known(false);
    });
    assert_eq!(
        line,
        ["Warn gpu.direct NICs cannot reach GPU memory (no GPUDirect RDMA): nvidia_peermem is not loaded"]
    );
    let line = changed(|facts| {
        facts.gpu_memory.peermem = false;
        facts.gpu_memory.open_module = Reading::Known(true);
    });
    assert_eq!(
        line,
        ["Pass gpu.direct 8 GPUs: NICs of mlx5_core can reach their memory (DMA-BUF)"]
    );
    let line = changed(|facts| {
        facts.gpu_memory.peermem = false;
        facts.gpu_memory.open_module = Reading::Known(true);
        facts.host.version = Some((5, 10));
    });
    assert!(line[0].starts_with("Warn gpu.direct"), "{line:?}");
    let line = changed(|facts| {
        facts.gpus[0].pci.node = None;
        facts.gpus[0].pci.path.clear();
    });
    assert_eq!(
        line,
        [
            "Unknown gpu.distance how near a NIC is to 1 GPU: 0000:13:00.0",
            "Pass gpu.distance each of 7 GPUs has a NIC behind the same PCIe switch"
        ]
    );
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
fn the_tool_that_shows_distances_is_named_for_each_maker_of_gpus() {
    let mut facts = HEALTHY.clone();
    devices(&mut facts).truncate(4);
    let report = examine(&facts);
    let line = report
        .lines
        .iter()
        .find(|line| line.id == "gpu.distance")
        .unwrap();
    for tool in ["nvidia-smi topo", "rocm-smi "] {
        assert!(line.remedy.contains(tool), "{line:?}");
    }
}

/// The lines about GPU memory without a module for peer memory, of the open driver or the closed one.
fn memory(open: bool, change: impl FnOnce(&mut Facts)) -> Vec<String> {
    changed(|facts| {
        facts.gpu_memory.peermem = false;
        facts.gpu_memory.open_module = Reading::Known(open);
        change(facts);
    })
    .into_iter()
    .filter(|line| line.contains("gpu.direct"))
    .collect()
}

#[test]
fn gpu_memory_depends_on_the_driver_of_the_nics_and_on_the_gpu() {
    let with_driver = |driver: &'static str| {
        move |facts: &mut Facts| {
            for device in devices(facts) {
                device.driver = Some(driver.into());
            }
        }
    };
    assert!(memory(true, with_driver("efa"))[0].starts_with("Pass "));
    assert!(memory(true, with_driver("mlx5_core.sf"))[0].starts_with("Pass "));
    let older = memory(true, |facts| {
        with_driver("efa")(facts);
        facts.host.version = Some((5, 15));
    });
    assert!(older[0].starts_with("Unknown "), "{older:?}");
    let backported = memory(true, |facts| {
        facts.host.kernel = Some("4.18.0-553.el8_10.x86_64".into());
        facts.host.version = Some((4, 18));
    });
    assert!(backported[0].starts_with("Unknown "), "{backported:?}");
    assert_eq!(
        memory(true, with_driver("hns3")),
        ["Unknown gpu.direct whether NICs reach GPU memory (GPUDirect RDMA)"]
    );
    // GPUs of AMD beside NICs of Broadcom.
    let broadcom = |kernel| {
        memory(true, |facts| {
            with_driver("bnxt_en")(facts);
            facts.host.version = Some(kernel);
            facts.gpus.iter_mut().for_each(|gpu| gpu.nvidia = false);
        })
    };
    assert!(broadcom((6, 5))[0].starts_with("Unknown "));
    assert!(broadcom((6, 6))[0].starts_with("Pass "));
    let beside = memory(true, |facts| devices(facts)[0].driver = Some("hns3".into()));
    assert_eq!(
        beside,
        [
            "Pass gpu.direct 8 GPUs: NICs of mlx5_core can reach their memory (DMA-BUF)",
            "Unknown gpu.direct whether NICs reach GPU memory (GPUDirect RDMA)"
        ]
    );
    assert_eq!(
        memory(false, with_driver("efa")),
        [
            "Warn gpu.direct NICs cannot reach GPU memory (no GPUDirect RDMA): this driver efa has no way to it"
        ]
    );
    let old = memory(true, |facts| {
        with_driver("efa")(facts);
        (facts.host.version, facts.host.kernel) = (Some((5, 10)), None);
    });
    assert_eq!(
        old,
        ["Warn gpu.direct NICs cannot reach GPU memory (no GPUDirect RDMA): efa_nv_peermem is not loaded"],
        "which goes with the open module alone"
    );
    let p2p = memory(false, |facts| devices(facts)[0].p2p = true);
    assert_eq!(
        p2p,
        ["Pass gpu.direct 8 GPUs: NICs can reach their memory (by the driver of the NICs)"]
    );
    let mut spark = HEALTHY.clone();
    for gpu in &mut spark.gpus {
        gpu.pci.ids = "0x10de:0x2e12".into();
        gpu.pci.acs = Reading::Known(vec!["0000:10:01.0".into()]);
    }
    let report = examine(&spark);
    let said = report
        .lines
        .iter()
        .filter(|line| matches!(line.id, "gpu.direct" | "pcie.acs"));
    let said: Vec<&str> = said.map(|line| line.text.as_str()).collect();
    assert_eq!(said, ["whether NICs reach GPU memory (GPUDirect RDMA)"]);
}

/// The lines about ACS on a node where the ways of a GPU and of its NIC part at a switch, and these bridges
/// redirect.
fn acs(redirect: &[&str], change: impl FnOnce(&mut Facts)) -> Vec<String> {
    let place = |pci: &mut Pci, port: &str| {
        pci.path.insert(3, port.into());
        let is_above = |bridge: &&&str| pci.path.iter().any(|at| at == **bridge);
        pci.acs = Reading::Known(redirect.iter().filter(is_above).map(|at| (*at).into()).collect());
    };
    let lines = changed(|facts| {
        place(devices(facts)[0].pci.as_mut().unwrap(), "0000:11:08.0");
        place(&mut facts.gpus[0].pci, "0000:11:09.0");
        change(facts);
    });
    lines
        .into_iter()
        .filter(|line| line.contains("pcie.acs"))
        .collect()
}

#[test]
fn only_a_bridge_at_which_the_ways_of_gpu_and_nic_part_is_named() {
    let said = "Warn pcie.acs PCIe bridges redirect traffic between GPU and NIC (ACS): ";
    for port in ["0000:11:08.0", "0000:11:09.0"] {
        assert_eq!(acs(&[port], |_| {}), [format!("{said}{port}")]);
    }
    // The root port and the upper port of the switch, which both have above them.
    assert_eq!(acs(&["0000:10:01.0", "0000:11:00.0"], |_| {}), [""; 0]);
    let apart = |facts: &mut Facts| facts.gpus[0].pci.path[1] = "0000:10:02.0".into();
    assert_eq!(acs(&["0000:11:08.0", "0000:11:09.0"], apart), [""; 0]);
    let direct = acs(&["0000:11:08.0"], |facts| facts.data_direct = true);
    assert_eq!(
        direct,
        ["Skip pcie.acs whether PCIe bridges redirect traffic between GPU and NIC (ACS)"]
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
    let remedy = |driver: &str| {
        let mut facts = HEALTHY.clone();
        for device in devices(&mut facts) {
            device.driver = Some(driver.into());
            device.irqs = (40..48).map(|cpu| vec![cpu]).collect();
        }
        let report = examine(&facts);
        let line = report.lines.iter().find(|line| line.id == "pcie.irq").unwrap();
        line.remedy.to_string()
    };
    assert!(remedy("mlx5_core").contains("mlnx-tools"));
    let other = remedy("bnxt_en");
    assert!(other.contains("install irqbalance") && !other.contains("mlnx-tools"));
    assert_eq!(remedy("efa"), "", "a pass line");
}
