//! Rules about one port: state, errors, congestion, MTU, commands.

use super::*;
use crate::ib::Gid;
use crate::input::PortGid;
use crate::value::RateIs;

#[test]
fn a_port_that_is_down_matters_where_it_is_used() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    s.ports[3].state = Some(PortState(1));
    let found = after(3, &s);
    assert_eq!(ids(&found), ["port-down"]);
    assert_eq!(found[0].severity, Severity::Critical);
    assert_eq!(
        (found[0].device.as_deref(), found[0].pid),
        (Some("mlx5_3"), Some(4711))
    );
    // The kernel does not list QPs that UCX makes by DEVX. A process with it that has the device open loses a
    // port that was ACTIVE; a spare port was not.
    let mut devx = s.clone();
    devx.processes[0].qps = 0;
    devx.processes[0].devices.clear();
    devx.processes[0].unlisted = Some(crate::snapshot::Unlisted::Library);
    devx.devices[3].contexts = Some(vec![4711].into());
    assert_eq!(ids(&after(3, &devx)), [""; 0]);
    let mut watch = FindingTracker::default();
    let found: Vec<_> = (0..6_u64)
        .map(|second| {
            let mut now = devx.clone();
            now.mono_ns += second * S;
            now.ports[3].state = Some(PortState(if second < 2 { 4 } else { 1 }));
            ids(&watch.look_at(&now.judged(None)))
        })
        .collect();
    assert_eq!(found[5], ["port-down"], "{found:?}");
    devx.processes[0].libraries = Some(vec!["libnccl.so.2".to_owned()].into());
    assert_eq!(ids(&after(3, &devx)), [""; 0], "NCCL opens every device");
    // A spare port that no process uses may be down.
    s.processes[0].devices.remove(3);
    assert_eq!(ids(&after(3, &s)), [""; 0]);
    // The driver reports link errors that may be short as ACTIVE_DEFER.
    s.processes[0].devices = s.devices.iter().map(|row| row.name.clone()).collect();
    s.ports[3].state = Some(PortState(5));
    assert_eq!(ids(&after(3, &s)), [""; 0]);
}

#[test]
fn a_port_that_is_down_says_why_where_that_is_known() {
    use crate::{ib::PhysState, input::NetdevDown};
    let said = |edit: fn(&mut PortRow)| {
        let mut s = rails([4e9; 8], [4e9; 8]);
        s.ports[3].state = Some(PortState(1));
        s.ports[3].phys_state = Some(PhysState::DISABLED);
        s.ports[3].netdev = Some("eth3".into());
        s.ports[3].link_layer = Some("Ethernet".into());
        edit(&mut s.ports[3]);
        let found = after(3, &s).remove(0);
        let why = found.verdict.split(':').next().unwrap().to_owned();
        (why, found.steps().next().unwrap().into_owned())
    };
    let is = |why: &str, next: &str| (why.to_owned(), next.to_owned());
    assert_eq!(
        said(|_| {}),
        is("mlx5_3/1 is DOWN", "ip link show dev eth3"),
        "RoCE ports are DISABLED whatever the reason is"
    );
    assert_eq!(
        said(|port| port.netdev_down = Some(NetdevDown::Off)),
        is(
            "mlx5_3/1 is DOWN (eth3 is switched off)",
            "sudo ip link set dev eth3 up"
        )
    );
    assert_eq!(
        said(|port| port.netdev_down = Some(NetdevDown::NoCarrier)),
        is("mlx5_3/1 is DOWN (eth3 has no signal)", "sudo ethtool eth3")
    );
    let mut s = rails([4e9; 8], [4e9; 8]);
    s.devices[3].driver = Some("rdma_rxe".into());
    let port = &mut s.ports[3];
    (port.state, port.netdev) = (Some(PortState(1)), Some("veth3".into()));
    (port.link_layer, port.netdev_down) = (Some("Ethernet".into()), Some(NetdevDown::NoCarrier));
    let next = &after(3, &s)[0].next;
    assert!(
        next.starts_with("ip link show dev veth3 "),
        "no cable: {}",
        &**next
    );
    let infiniband = |port: &mut PortRow| {
        (port.netdev, port.link_layer) = (None, Some("InfiniBand".into()));
    };
    for (state, phys, why) in [
        (1, PhysState::POLLING, "DOWN (no signal)"),
        (1, PhysState::DISABLED, "DOWN (it is disabled)"),
        (1, PhysState(6), "DOWN"),
        (2, PhysState::LINK_UP, "INIT (no subnet manager yet)"),
    ] {
        let mut s = rails([4e9; 8], [4e9; 8]);
        infiniband(&mut s.ports[3]);
        (s.ports[3].state, s.ports[3].phys_state) = (Some(PortState(state)), Some(phys));
        let found = after(3, &s).remove(0);
        assert!(
            found.verdict.starts_with(&format!("mlx5_3/1 is {why}: ")),
            "{}",
            found.verdict
        );
    }
}

#[test]
fn a_port_that_is_down_holds_up_the_other_ranks_of_its_job() {
    let still = || Traffic {
        tx_bytes: Some(Counter::whole(9, Some(0.0), Source::Netlink)),
        rx_bytes: Some(Counter::whole(9, Some(0.0), Source::Netlink)),
        ..Traffic::default()
    };
    let found = |edit: fn(&mut Snapshot)| {
        let mut s = ranks([4e9; 8], 1);
        for row in &mut s.processes {
            row.traffic = still();
        }
        s.ports[3].state = Some(PortState(1));
        edit(&mut s);
        after(3, &s).remove(0)
    };
    let all = found(|_| {});
    assert_eq!(
        all.verdict,
        "mlx5_3/1 is DOWN: rank (PID 7030, slurm 7341.0) is cut off; 7 more ranks of the job move nothing"
    );
    assert_eq!(all.victims, [130, 100, 110, 120, 140, 150, 160, 170]);
    assert_eq!((all.pid, all.device.as_deref()), (Some(7030), Some("mlx5_3")));
    let last = all.evidence.last().unwrap();
    assert_eq!(
        last,
        "ranks that move nothing: rank (PID 7000, slurm 7341.0) and 6 more"
    );
    // The row of each says for whom it waits, not that its own port is down.
    let mut s = ranks([4e9; 8], 1);
    s.mono_ns += 3 * S;
    s.findings = vec![all].into();
    let words =
        |at: usize| crate::fields::finding_of(&s.processes[at], &s).map(|mark| (mark.role, mark.words));
    let role = super::super::Role::Victim;
    assert_eq!(words(3), Some((role, "4s port DOWN".to_owned())));
    assert_eq!(words(4), Some((role, "4s waits for 7030".to_owned())));
    let victims = |edit: fn(&mut Snapshot)| found(edit).victims;
    assert_eq!(
        victims(|s| s.processes.iter_mut().for_each(|row| row.workload_claimed = true)),
        [130],
        "it is not known whose job it is"
    );
    assert_eq!(
        victims(|s| s.processes.iter_mut().for_each(|row| row.workload = None)),
        [130],
        "processes of one host are no job"
    );
    assert_eq!(
        victims(|s| s.processes.iter_mut().for_each(|row| row.libraries = None)),
        [130],
        "nothing says that they wait for one another"
    );
    assert_eq!(
        victims(|s| {
            s.processes[0].workload = Some("slurm 9.0".into());
            s.processes[1].comm = "storage".into();
            s.processes[2].qps = 0;
            s.processes[4].traffic.tx_bytes = rate(1e6);
        }),
        [130, 150, 160, 170],
        "another job, another program, no QP, data that still moves"
    );
    // What moves of a rank that shares its port is a bound, or not known at all.
    assert_eq!(
        victims(|s| {
            s.processes[0].traffic = Traffic::default();
            let shared = &mut s.processes[1].traffic.tx_bytes;
            let most = rate(1e9).map(|counter| Counter {
                rate_is: RateIs::AtMost,
                ..counter
            });
            *shared = most;
        }),
        [130, 120, 140, 150, 160, 170]
    );
    // Another program with a QP that leads to that rank, by its address; numbers alone are no proof.
    let connected = |by_address: bool| {
        let mut s = ranks([4e9; 8], 1);
        s.processes.iter_mut().for_each(|row| row.traffic = still());
        s.ports[3].state = Some(PortState(1));
        s.processes.truncate(5);
        s.processes[1].comm = "hub".into();
        let gid = Gid([7; 16]);
        if by_address {
            let index = 0;
            s.ports[3].gids = Some([PortGid { index, gid, v1: None }].into());
        }
        let device = s.ports[3].device_uid;
        for (uid, qpn, process) in [(91, 17, 130), (92, 18, 110)] {
            let mut qp = rows::qp(uid, "mlx5_3", qpn, 3, None, "x", Traffic::default());
            let row = Arc::make_mut(&mut qp);
            (row.device_uid, row.port) = (Some(device), Some(1));
            (row.process_uid, row.remote_qpn) = (Some(process), Some(35 - qpn));
            row.remote_gid = by_address.then_some(gid);
            s.qps.push(qp);
        }
        after(3, &s).remove(0).victims
    };
    assert_eq!(connected(true), [130, 100, 110, 120, 140]);
    assert_eq!(connected(false), [130, 100, 120, 140]);
}

#[test]
fn a_rank_waits_for_none_of_another_job_and_not_for_itself() {
    let mut s = ranks([4e9; 8], 1);
    s.ports[3].state = Some(PortState(1));
    let found = after(3, &s).remove(0);
    s.mono_ns += 3 * S;
    s.findings = vec![Finding {
        victims: s.processes.iter().map(|row| row.uid).collect(),
        ..found
    }]
    .into();
    s.processes[4].workload = Some("slurm 9.0".into());
    // A rank whose QPs on the port are gone while the finding is still shown.
    s.processes[3].devices.clear();
    let words = |at: usize| crate::fields::finding_of(&s.processes[at], &s).map(|mark| mark.words);
    assert_eq!(words(3).as_deref(), Some("4s port DOWN"));
    assert_eq!(words(4).as_deref(), Some("4s waits"));
    assert_eq!(words(5).as_deref(), Some("4s waits for 7030"));
}

#[test]
fn errors_of_the_link_have_limits() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    named(&mut s.ports[0], "symbol_error", 9.0);
    assert_eq!(ids(&after(1, &s)), [""; 0]);
    named(&mut s.ports[1], "symbol_error", 11.0);
    named(&mut s.ports[2], "link_downed", 1.0);
    assert_eq!(ids(&after(1, &s)), ["link-errors", "link-errors"]);
}

#[test]
fn a_dirty_fibre_is_named_by_the_counters_of_its_network_device() {
    let found = |counters: &[(&str, f64)]| {
        let mut s = rails([4e9; 8], [4e9; 8]);
        s.ports[2].link_layer = Some("Ethernet".into());
        s.ports[2].netdev = Some("eth2".into());
        // The counters of InfiniBand are there, too.
        for name in ["symbol_error", "link_downed"] {
            named(&mut s.ports[2], name, 0.0);
        }
        for (name, per_s) in counters {
            ethtool(&mut s.ports[2], name, *per_s);
        }
        after(1, &s)
    };
    // What FEC repairs, and a packet in a long time.
    let healthy = [
        ("rx_corrected_bits_phy", 2e6),
        ("rx_err_lane_0_phy", 1e6),
        ("rx_crc_errors_phy", 0.4),
        ("rx_pcs_symbol_err_phy", 0.0),
        ("link_down_events_phy", 0.0),
    ];
    assert_eq!(ids(&found(&healthy)), [""; 0]);
    let all = found(&[("rx_crc_errors_phy", 3.0), ("rx_pcs_symbol_err_phy", 900.0)]);
    assert_eq!(ids(&all), ["link-errors"], "one link, one finding");
    assert_eq!(
        all[0].verdict,
        "Packets arrive damaged on the link of mlx5_2/1 (rx_crc_errors_phy); used by rank (PID 4711, slurm 7341.0)"
    );
    assert_eq!(
        all[0].evidence,
        [
            "rx_crc_errors_phy 7 in all, 3.0/s when it last rose",
            "rx_pcs_symbol_err_phy 7 in all, 900/s when it last rose"
        ]
    );
    assert!(
        all[0].next.starts_with("sudo ethtool -m eth2 "),
        "{}",
        all[0].next
    );
    for name in [
        "rx_fcs_err_frames",
        "rx_crc_errors.nic",
        "mac_rx_fcs_err_pkt_num",
        "frames_rx_bad_fcs",
    ] {
        assert_eq!(ids(&found(&[(name, 2.0)])), ["link-errors"], "{name}");
    }
    // A link that comes up counts errors on its way.
    let all = found(&[("rx_pcs_symbol_err_phy", 900.0), ("link_down_events_phy", 0.2)]);
    let verdicts: Vec<_> = all.iter().map(|found| &*found.verdict).collect();
    assert_eq!(
        verdicts,
        ["The link of mlx5_2/1 went down and is up again; used by rank (PID 4711, slurm 7341.0)"]
    );
    // Each link of a bond is named.
    let all = found(&[("eth4:rx_symbol_err_phy", 5.0), ("eth5:rx_crc_errors_phy", 5.0)]);
    assert_eq!(ids(&all), ["link-errors", "link-errors"]);
    assert!(
        all[1]
            .verdict
            .contains("the link of eth5, of the bond of mlx5_2/1, (rx_crc"),
        "{}",
        all[1].verdict
    );
    assert!(
        all[1].next.starts_with("sudo ethtool -m eth5 "),
        "{}",
        all[1].next
    );
}

/// What is found in each second of half a minute in which mlx5_2 counts damaged packets from the sixth second
/// on; `edit` says what else happens in a second.
fn damage_of(edit: impl Fn(&mut Snapshot, u64)) -> Vec<bool> {
    let mut watch = FindingTracker::default();
    let mut s = rails([4e9; 8], [4e9; 8]);
    s.ports[2].link_layer = Some("Ethernet".into());
    s.ports[2].netdev = Some("eth2".into());
    let second = |second| {
        s.mono_ns += S;
        let mut now = s.clone();
        edit(&mut now, second);
        let all = watch.look_at(&now.judged(None));
        all.iter().any(|found| found.verdict.contains("arrive damaged"))
    };
    (0..30).map(second).collect()
}

#[test]
fn a_link_that_came_up_lately_is_not_called_damaged_by_a_later_reading() {
    let errors = |s: &mut Snapshot, name: &str, second: u64| {
        let rate = if second >= 12 { 900.0 } else { 0.0 };
        ethtool(&mut s.ports[2], name, rate);
    };
    let down = |s: &mut Snapshot, name: &str, second: u64| {
        // The reading that shows the rise is over when the one of the errors comes.
        ethtool(
            &mut s.ports[2],
            name,
            if (5..10).contains(&second) { 0.2 } else { 0.0 },
        );
        s.ports[2].counters.last_mut().unwrap().counter.total = if second >= 5 { 8 } else { 7 };
    };
    let until = |all: Vec<bool>| all.iter().position(|found| *found);
    // Without an outage the errors are those of the cable.
    assert_eq!(
        until(damage_of(|s, at| errors(s, "rx_pcs_symbol_err_phy", at))),
        Some(12)
    );
    // By the counter of the port, and by its state where the driver has none.
    let counted = damage_of(|s, at| {
        down(s, "link_down_events_phy", at);
        errors(s, "rx_pcs_symbol_err_phy", at);
    });
    assert_eq!(until(counted), Some(17), "12 s after the rise");
    let seen = |s: &mut Snapshot, at: u64| {
        if (5..11).contains(&at) {
            s.ports[2].state = Some(PortState(1));
        }
        errors(s, "rx_crc_errors.nic", at);
    };
    assert_eq!(until(damage_of(seen)), Some(23), "12 s after it was ACTIVE again");
    // A port that is down.
    let never = damage_of(|s, at| {
        s.ports[2].state = Some(PortState(1));
        errors(s, "rx_crc_errors.nic", at);
    });
    assert_eq!(until(never), None);
    // A link of a bond, and not its neighbour.
    let bond = |of_down: &'static str| {
        until(damage_of(move |s, at| {
            down(s, of_down, at);
            errors(s, "eth4:rx_symbol_err_phy", at);
        }))
    };
    assert_eq!(bond("eth4:link_down_events_phy"), Some(17));
    assert_eq!(bond("eth5:link_down_events_phy"), Some(12));
}

#[test]
fn only_an_infiniband_port_is_congested_by_want_of_credits() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    // 400 Gb/s on four lanes: 50 GB/s, 12.5e9 symbols per lane.
    named(&mut s.ports[2], "port_xmit_wait", 0.5e9);
    s.ports[2].link_layer = Some("InfiniBand".into());
    assert_eq!(ids(&after(12, &s)), [""; 0], "4 % of the time");
    s.ports[2].counters.last_mut().unwrap().counter.rate = Some(1.5e9);
    assert_eq!(ids(&after(6, &s)), [""; 0], "it may pass");
    let found = after(9, &s);
    assert_eq!(ids(&found), ["ib-congestion"]);
    assert_eq!(
        found[0].verdict,
        "mlx5_2/1 has data and waits at least 12 % of the time to send it: the fabric or a receiver is congested; used by \
         rank (PID 4711, slurm 7341.0)"
    );
    // Without the lanes the value of a tick is unknown; a counter at its maximum has no rate.
    s.ports[2].lanes = None;
    assert_eq!(ids(&after(12, &s)), [""; 0]);
    s.ports[2].lanes = Some(4);
    s.ports[2].link_layer = Some("Ethernet".into());
    assert_eq!(ids(&after(12, &s)), [""; 0]);
}

#[test]
fn a_path_mtu_below_what_the_port_has_room_for_is_small() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    s.ports[1].netdev_mtu = Some(9000);
    let connect = |s: &mut Snapshot, uid: u64, mtu: u16| {
        let mut qp = rows::qp(uid, "mlx5_1", 9, 3, Some(4711), "rank", Traffic::default());
        let row = Arc::make_mut(&mut qp);
        (row.device_uid, row.port, row.process_uid) = (Some(2), Some(1), Some(5));
        (row.path_mtu, row.sgid_index) = (Some(mtu), Some(u8::try_from(uid).unwrap()));
        s.qps.push(qp);
    };
    connect(&mut s, 1, 4096);
    assert_eq!(ids(&after(6, &s)), [""; 0]);
    connect(&mut s, 2, 1024);
    connect(&mut s, 3, 2048);
    let found = after(6, &s);
    assert_eq!(ids(&found), ["small-mtu"]);
    assert_eq!(
        found[0].verdict,
        "2 QPs of rank (PID 4711, slurm 7341.0) on mlx5_1/1 have a path MTU of 1024, the port has room for 4096"
    );
    assert!(found[0].next.contains("UCX_IB_PATH_MTU"), "{}", found[0].next);
    let mut kernel = s.clone();
    (kernel.processes[0].kernel, kernel.processes[0].pid) = (true, None);
    let next = &after(6, &kernel)[0].next;
    assert!(
        next.ends_with("mount or connect it anew") && !next.contains("job"),
        "{next}"
    );
    // A port without room for more is named itself; one whose rate or MTU is unknown is not judged.
    s.ports[1].netdev_mtu = Some(1500);
    s.qps.truncate(2);
    let found = after(6, &s);
    assert_eq!(found.iter().map(|f| f.about.process).collect::<Vec<_>>(), [None]);
    s.ports[1].netdev_mtu = None;
    assert_eq!(ids(&after(6, &s)), [""; 0]);
    (s.ports[1].netdev_mtu, s.ports[1].rate_bps) = (Some(9000), None);
    assert_eq!(ids(&after(6, &s)), [""; 0], "SoftRoCE");
}

#[test]
fn a_port_of_iwarp_needs_no_mtu_of_roce() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    s.ports[2].netdev_mtu = Some(1500);
    assert_eq!(ids(&after(10, &s)), ["small-mtu"]);
    s.ports[2].iwarp = true;
    assert_eq!(ids(&after(10, &s)), [""; 0]);
}

/// Eight ports without processes; NVMe-oF has a QP on the third, and the core has its own on each.
fn of_the_kernel() -> Snapshot {
    let mut s = rails([4e9; 8], [4e9; 8]);
    s.processes = vec![
        rows::process(1, None, "[ib_core]", "mlx5_0", Traffic::default()),
        rows::process(2, None, "[nvme_rdma]", "mlx5_2", Traffic::default()),
    ];
    s.processes.iter_mut().for_each(|row| {
        (row.kernel, row.workload) = (true, None);
    });
    let qp = |uid: u64, n: usize, owner: usize, kind: u8| {
        let owner = &s.processes[owner];
        let name = &s.devices[n].name;
        let mut qp = rows::qp(uid, name, 7, 3, None, &owner.comm, Traffic::default());
        let row = Arc::make_mut(&mut qp);
        (row.device_uid, row.process_uid) = (Some(s.devices[n].uid), Some(owner.uid));
        row.qp_type = Some(crate::ib::QpType(kind));
        qp
    };
    let mut qps: Vec<_> = (0..8).map(|n| qp(n as u64, n, 0, 1)).collect();
    qps.push(qp(9, 2, 1, 2));
    s.qps = qps.into_iter().collect();
    s
}

#[test]
fn a_module_of_the_kernel_needs_its_port_as_a_process_does() {
    let one = |edit: fn(&mut Snapshot, usize), n: usize| {
        let mut s = of_the_kernel();
        edit(&mut s, n);
        after(10, &s).pop()
    };
    let down = |s: &mut Snapshot, n: usize| s.ports[n].state = Some(PortState(1));
    let small = |s: &mut Snapshot, n: usize| s.ports[n].netdev_mtu = Some(1500);
    let slow = |s: &mut Snapshot, n: usize| {
        let link = |width| crate::input::PcieLink {
            mega_transfers: 32_000,
            width,
            bps: u64::from(width) * 31_507_000_000,
        };
        s.devices[n].pcie = Some([link(4), link(16)]);
    };
    let dry = |s: &mut Snapshot, n: usize| s.ports[n].out_of_buffer = rate(50.0);
    for edit in [down, small, slow] {
        assert_eq!(one(edit, 3), None, "the core's QPs are on each port");
    }
    let ipoib = |s: &mut Snapshot, n: usize| {
        s.processes[1].comm = "[ib_ipoib]".into();
        Arc::make_mut(&mut s.qps[8]).comm = Some("[ib_ipoib]".into());
        s.ports[n].state = Some(PortState(1));
    };
    assert_eq!(one(ipoib, 2), None, "IPoIB in mode connected");
    let found = one(down, 2).unwrap();
    assert_eq!(found.verdict, "mlx5_2/1 is DOWN: [nvme_rdma] (kernel) is cut off");
    assert_eq!((found.severity, &*found.victims), (Severity::Critical, &[2][..]));
    let found = one(small, 2).unwrap();
    assert_eq!(
        (found.id, &*found.evidence[1]),
        (
            FindingId::SmallMtu,
            "the kernel has QPs there: [nvme_rdma] (kernel)"
        )
    );
    assert!(!found.next.contains("restart the job"), "{}", found.next);
    let found = one(slow, 2).unwrap();
    assert!(
        found.verdict.contains(": [nvme_rdma] (kernel) gets "),
        "{}",
        found.verdict
    );
    let found = one(dry, 2).unwrap();
    assert_eq!(
        found.verdict,
        "50 packets a second find no receive buffer on mlx5_2/1, and make their senders wait: [nvme_rdma] (kernel) posts receives too slowly"
    );
    assert!(found.next.starts_with("top "), "{}", found.next);
    let found = one(dry, 3).unwrap();
    assert!(
        found
            .verdict
            .ends_with(": it is not known who posts receives too slowly"),
        "{}",
        found.verdict
    );
    assert!(
        found.next.starts_with("rdma resource show qp link mlx5_3/1 "),
        "{}",
        found.next
    );
}

#[test]
fn a_port_stays_down_for_a_module_that_destroys_its_qps_then() {
    let ids_of = |last_qp: u64, down: u64| {
        let mut watch = FindingTracker::default();
        let mut found = Vec::new();
        for second in 0..=20 {
            let mut now = of_the_kernel();
            now.mono_ns += second * S;
            if second >= down {
                now.ports[2].state = Some(PortState(1));
            }
            if second > last_qp {
                now.qps.truncate(8);
            }
            found = watch.look_at(&now.judged(None));
        }
        found
    };
    let found = ids_of(6, 3);
    assert_eq!(ids(&found), ["port-down"]);
    assert_eq!(
        found[0].verdict,
        "mlx5_2/1 is DOWN: [nvme_rdma] (kernel) is cut off"
    );
    assert!(
        found[0]
            .evidence
            .iter()
            .any(|words| words.starts_with("its QPs there are destroyed: ")),
        "{:?}",
        found[0].evidence
    );
    assert_eq!(
        ids(&ids_of(3, 6)),
        [""; 0],
        "it had none any more when the port went down"
    );
}

#[test]
fn a_receiver_in_the_kernel_is_no_process() {
    let mut s = pair();
    edit(&mut s, 0, |t| t.rnr_waits = rate(12.3));
    (s.processes[1].pid, s.processes[1].kernel) = (None, true);
    s.processes[1].comm = "[nvmet_rdma]".into();
    let found = after(5, &s);
    assert_eq!(
        found[0].verdict,
        "[nvmet_rdma] (kernel) on rxe0 posts receives too slowly: ib_send_bw (PID 254) waits"
    );
    assert!(found[0].next.starts_with("top "), "{}", found[0].next);
    edit(&mut s, 0, |t| t.rnr_waits = rate(0.0));
    Arc::make_mut(&mut s.qps[1]).state = Some(QpState(6));
    let found = after(5, &s);
    assert_eq!(ids(&found), ["qp-error"]);
    assert!(found[0].next.starts_with("sudo dmesg "), "{}", found[0].next);
}

#[test]
fn ignored_congestion_a_small_mtu_and_refused_commands() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    named(&mut s.ports[0], "rp_cnp_ignored", 5.0);
    s.ports[1].counters.clear();
    named(&mut s.ports[1], "np_ecn_marked_roce_packets", 5.0);
    named(&mut s.ports[1], "np_cnp_sent", 0.0);
    s.ports[2].netdev_mtu = Some(1500);
    named(&mut s.ports[3], "cmds_err", 0.5);
    let mut found = ids(&after(10, &s));
    found.sort_unstable();
    assert_eq!(
        found,
        [
            "congestion-ignored",
            "congestion-ignored",
            "device-command-errors",
            "small-mtu"
        ]
    );
}

#[test]
fn a_device_that_does_not_answer_is_worse_than_one_that_refuses() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    // The driver refuses flags that libfabric tries at each start.
    named(&mut s.ports[3], "reg_mr_err", 0.5);
    assert_eq!(ids(&after(1, &s)), [""; 0]);
    for (counter, severity) in [
        ("cmds_err", Severity::Warning),
        ("no_completion_cmds", Severity::Critical),
    ] {
        named(&mut s.ports[3], counter, 0.5);
        let found = after(1, &s);
        assert_eq!(ids(&found), ["device-command-errors"]);
        assert_eq!(found[0].severity, severity, "{counter}");
        assert_eq!(
            found[0].next.contains("reset the NIC"),
            severity == Severity::Critical
        );
    }
}
