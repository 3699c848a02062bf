//! Ethernet flow control.

use super::*;

/// Eight ports, of which one carries 4 GB/s and has these counters and flow control on priority 3.
fn port_with(counters: &[(&str, f64)]) -> Snapshot {
    let mut s = rails([4e9; 8], [4e9; 8]);
    for (name, per_s) in counters {
        ethtool(&mut s.ports[2], name, *per_s);
    }
    s.ports[2].pfc = Some(0b1000);
    s.ports[2].netdev = Some("eth2".into());
    s
}

#[test]
fn pauses_are_a_storm_from_a_share_of_the_time_or_many_frames() {
    let quiet = [("rx_prio3_pause", 900.0), ("rx_prio3_pause_duration", 9_000.0)];
    assert_eq!(ids(&after(20, &port_with(&quiet))), [""; 0]);
    let share = [("rx_prio3_pause", 900.0), ("rx_prio3_pause_duration", 120_000.0)];
    assert_eq!(ids(&after(6, &port_with(&share))), [""; 0], "it may pass");
    let found = after(8, &port_with(&share));
    assert_eq!(ids(&found), ["pause-storm"]);
    assert_eq!(
        found[0].verdict,
        "mlx5_2/1 is told to pause: the network or a receiver behind it is congested; used by rank (PID 4711, slurm 7341.0)"
    );
    assert_eq!(
        found[0].evidence,
        ["paused 12 % of the time", "900/s pause frames on priority 3"]
    );
    assert_eq!(found[0].severity, Severity::Warning);
    // Drivers that count no time; frames of all priorities are added up.
    let frames = [
        ("rx_pfc_ena_frames_pri3", 600.0),
        ("rx_pfc_ena_frames_pri4", 500.0),
    ];
    let found = after(8, &port_with(&frames));
    assert_eq!(found[0].evidence, ["1100/s pause frames on priorities 3, 4"]);
}

#[test]
fn a_host_that_pauses_its_senders_is_named_as_the_slow_one() {
    let found = after(8, &port_with(&[("tx_global_pause_duration", 40_000.0)]));
    assert_eq!(ids(&found), ["pause-storm"]);
    assert!(
        found[0]
            .verdict
            .starts_with("mlx5_2/1 asks its senders to pause: this host takes packets slower"),
        "{}",
        found[0].verdict
    );
    assert!(
        found[0].next.starts_with("ethtool -S eth2 |"),
        "{}",
        found[0].next
    );
    let watchdog = after(8, &port_with(&[("tx_pause_storm_error_events", 0.2)]));
    assert_eq!(watchdog[0].severity, Severity::Critical);
}

#[test]
fn a_counter_of_the_rdma_device_with_such_a_name_is_none_of_flow_control() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    named(&mut s.ports[2], "rx_prio3_pause", 5000.0);
    assert_eq!(ids(&after(20, &s)), [""; 0]);
}

#[test]
fn traffic_outside_flow_control_is_named_and_its_loss_is_no_finding() {
    let mut s = port_with(&[("tx_prio0_bytes", 4.1e9), ("tx_prio3_bytes", 1e6)]);
    s.health.ebpf = crate::input::EbpfState::Disabled;
    let sent = s.ports[2].tx_packets.unwrap().rate.unwrap();
    s.ports[2].retransmits = rate(sent * 0.01);
    let found = after(12, &s);
    assert_eq!(ids(&found), ["traffic-class"]);
    assert_eq!(
        found[0].verdict,
        "RoCE traffic of mlx5_2/1 leaves on priority 0, flow control (PFC) is on priority 3; used by rank (PID 4711, slurm \
         7341.0)"
    );
    assert!(found[0].next.contains("NCCL_IB_TC=106 "), "{}", found[0].next);
    assert!(found[0].next.starts_with("sudo mlnx_qos "), "{}", found[0].next);
    let mut other = s.clone();
    other.devices[2].driver = Some("bnxt_en".into());
    let next = &after(12, &other)[0].next;
    assert!(next.starts_with("dcb app show dev eth2 "), "{next}");
    (other.processes[0].kernel, other.processes[0].pid) = (true, None);
    let mut qp = rows::qp(1, "mlx5_2", 9, 3, None, "[nvme_rdma]", Traffic::default());
    let row = Arc::make_mut(&mut qp);
    (row.device_uid, row.process_uid) = (Some(other.ports[2].device_uid), Some(5));
    other.qps.push(qp);
    let next = &after(12, &other)[0].next;
    assert!(
        next.starts_with("dcb app show dev eth2 ")
            && next.ends_with(
                "; echo 106 | sudo tee /sys/kernel/config/rdma_cm/mlx5_2/ports/1/default_roce_tos"
            ),
        "no process sets a variable: {next}"
    );
    s.processes[0].environ = Some(vec![("NCCL_IB_TC".to_owned(), "0".to_owned())].into());
    assert_eq!(
        after(12, &s)[0].evidence,
        [
            "32.0 Gb/s of RDMA, 8.0 Mb/s on priority 3",
            "rank (PID 4711, slurm 7341.0) has NCCL_IB_TC=0"
        ]
    );
    // Without flow control anywhere there is no class that the traffic should use, so it is loss.
    s.ports[2].pfc = Some(0);
    assert_eq!(ids(&after(12, &s)), ["loss"]);
}

#[test]
fn traffic_in_its_class_or_of_which_nothing_is_known_is_no_finding() {
    for counters in [
        // The sockets' traffic is counted beside it.
        &[("tx_prio3_bytes", 4.1e9), ("tx_prio0_bytes", 4.1e9)][..],
        // A driver that does not count the bytes of priorities, or not those of RDMA.
        &[],
        &[("tx_prio0_bytes", 1e6)],
        &[("rx_prio0_bytes", 4.1e9)],
    ] {
        assert_eq!(ids(&after(12, &port_with(counters))), [""; 0], "{counters:?}");
    }
    let mut slow = rails([4e7; 8], [4e7; 8]);
    ethtool(&mut slow.ports[2], "tx_prio0_bytes", 4e7);
    slow.ports[2].pfc = Some(8);
    assert_eq!(ids(&after(12, &slow)), [""; 0], "40 MB/s fill no buffer");
}
