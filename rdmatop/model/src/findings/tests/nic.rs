//! Rules about a NIC's PCIe link, its driver's log, and the connecting of QPs.

use super::*;

#[test]
fn a_pcie_link_below_its_nic_matters_where_it_carries_less_than_the_ports() {
    use crate::input::PcieLink;
    let link = |mega_transfers: u32, width: u32| PcieLink {
        mega_transfers,
        width,
        bps: u64::from(mega_transfers) * u64::from(width) * 984_615,
    };
    let mut s = rails([4e9; 8], [4e9; 8]);
    for device in &mut s.devices {
        device.pcie = Some([link(32_000, 16), link(32_000, 16)]);
    }
    assert_eq!(ids(&after(8, &s)), [""; 0]);
    s.devices[2].pcie = Some([link(16_000, 8), link(32_000, 16)]);
    let found = after(8, &s);
    assert_eq!(ids(&found), ["pcie-slow"]);
    assert_eq!(
        found[0].verdict,
        "mlx5_2 hangs on PCIe Gen4 x8 and could do Gen5 x16: rank (PID 4711, slurm 7341.0) gets 126.0 Gb/s of 400.0 Gb/s"
    );
    // The slot suffices for what its port can do, nobody uses it, or a rate is unknown.
    s.ports[2].rate_bps = Some(100_000_000_000);
    let slow_port = after(8, &s);
    assert!(slow_port.iter().all(|f| f.id != FindingId::PcieSlow));
    s.ports[2].rate_bps = None;
    assert!(after(8, &s).iter().all(|f| f.id != FindingId::PcieSlow));
    s.ports[2].rate_bps = Some(400_000_000_000);
    s.processes[0].devices.remove(2);
    assert_eq!(ids(&after(8, &s)), [""; 0]);
}

#[test]
fn a_gid_of_roce_v1_is_wrong_where_there_is_one_of_v2() {
    use crate::ib::Gid;
    use crate::input::PortGid;
    let mut s = rails([4e9; 8], [4e9; 8]);
    let entry = |index: u16, v1: Option<bool>| PortGid {
        index,
        gid: Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]),
        v1,
    };
    let table = |v1: Option<bool>| Some(vec![entry(2, v1), entry(3, Some(false))].into());
    let mut qp = rows::qp(1, "mlx5_0", 9, 3, Some(4711), "rank", Traffic::default());
    let row = Arc::make_mut(&mut qp);
    (row.device_uid, row.port, row.process_uid, row.sgid_index) = (Some(1), Some(1), Some(5), Some(2));
    s.qps.push(qp);
    for (types, wanted) in [(Some(true), &["roce-v1"][..]), (Some(false), &[]), (None, &[])] {
        s.ports[0].gids = table(types);
        assert_eq!(ids(&after(6, &s)), wanted, "{types:?}");
    }
    s.ports[0].gids = table(Some(true));
    let found = after(6, &s);
    assert_eq!(
        found[0].verdict,
        "1 QP of rank (PID 4711, slurm 7341.0) on mlx5_0/1 use RoCE v1 (GID index 2) although index 3 is RoCE v2"
    );
    // The same word is used for GIDs of InfiniBand; and a table without v2 leaves no choice.
    s.ports[0].link_layer = Some("InfiniBand".into());
    assert_eq!(ids(&after(6, &s)), [""; 0]);
    s.ports[0].link_layer = Some("Ethernet".into());
    s.ports[0].gids = Some(vec![entry(2, Some(true))].into());
    assert_eq!(ids(&after(6, &s)), [""; 0]);
}

#[test]
fn a_slow_step_of_a_connection_is_named_and_a_programs_own_wait_is_not() {
    let slow = |took_ms: u64, ago: u64| {
        let mut s = pair();
        let mut verb = rows::verb(254, "ib_send_bw", "modify_qp", 1.0, &[], false);
        verb.process_uid = Some(1);
        if let Some(latency) = &mut verb.latency {
            latency.max_ns = Some(took_ms * 1_000_000);
        }
        s.verbs.push(verb);
        let begin = s.mono_ns - ago * S;
        // The program itself waits for two seconds between RTR and RTS.
        let steps = [
            (0, 0, None),
            (1, 10, Some(1)),
            (2, 20, Some(took_ms)),
            (3, 2_020, Some(1)),
        ];
        let steps = Arc::new(
            steps
                .into_iter()
                .map(|(state, ms, took): (u8, u64, Option<u64>)| Step {
                    mono_ns: begin + ms * 1_000_000,
                    state: QpState(state),
                    duration_ns: took.map(|ms| ms * 1_000_000),
                })
                .collect(),
        );
        // A third QP of the process, on another device, is not slow.
        let mut quick = s.qps[0].clone();
        Arc::make_mut(&mut quick).device = "aaa0".into();
        s.qps = [vec![quick], s.qps.to_vec()].concat().into();
        for (at, device) in [(1, "rxe0"), (2, "rxe1")] {
            let row = Arc::make_mut(&mut s.qps[at]);
            (row.process_uid, row.device, row.timeline) = (Some(1), device.into(), Arc::clone(&steps));
        }
        after(0, &s)
    };
    assert_eq!(ids(&slow(40, 20)), [""; 0]);
    assert_eq!(ids(&slow(900, 90)), [""; 0], "long ago");
    let found = slow(900, 20);
    assert_eq!(ids(&found), ["setup-slow"]);
    assert_eq!(
        found[0].verdict,
        "Connections of ib_send_bw (PID 254) on rxe0 and rxe1 come up slowly: the kernel takes 900 ms to bring a QP to RTR"
    );
    let evidence = &found[0].evidence[0];
    assert!(evidence.starts_with("to RTR: p99 900 ms of "), "{evidence}");
}

#[test]
fn an_error_that_the_driver_logged_lately_is_named_with_its_device() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    let now = s.mono_ns;
    for device in &mut s.devices {
        device.driver_errors = Some(0);
    }
    assert_eq!(ids(&after(0, &s)), [""; 0]);
    let device = &mut s.devices[2];
    (device.driver_errors, device.driver_error_ns) = (Some(3), Some(now));
    device.driver_error = Some("mlx5_core 0000:3b:00.0: cmd_work_handler: failed".into());
    let found = after(0, &s);
    assert_eq!(ids(&found), ["driver-errors"]);
    assert_eq!(
        found[0].verdict,
        "The driver of mlx5_2 logs an error: mlx5_core 0000:3b:00.0: cmd_work_handler: failed"
    );
    assert_eq!(
        found[0].evidence,
        ["3 errors in the kernel's log since rdmatop began"]
    );
    assert_eq!(ids(&after(59, &s)), ["driver-errors"]);
    assert_eq!(ids(&after(65, &s)), [""; 0], "it is old by now");
    s.devices[2].followed = true;
    assert_eq!(
        ids(&after(0, &s)),
        [""; 0],
        "SoftRoCE logs each call that it refuses"
    );
}
