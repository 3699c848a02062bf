use super::*;
use crate::{
    filter::Filter,
    ib::PortState,
    input::{GpuActivity, GpuReading, GpuSample},
    value::{Counter, Source},
};

#[test]
fn a_device_added_again_is_another_one_and_makes_no_spike() {
    let mut host = Host::new();
    host.devices(vec![counting(1, "rxe0", "rdma_rxe", &[("sent_pkts", 1_000_000)])]);
    let uid = host.tick().devices[0].uid;
    host.pass(SECOND).devices(vec![]);
    assert!(host.tick().devices.is_empty());
    host.pass(SECOND)
        .devices(vec![counting(2, "rxe0", "rdma_rxe", &[("sent_pkts", 5)])]);
    let snapshot = host.tick();
    assert_ne!(snapshot.devices[0].uid, uid);
    let packets = snapshot.ports[0].tx_packets.unwrap();
    assert_eq!((packets.total, packets.rate), (5, None));
    assert!(snapshot.ports[0].history.tx.is_empty());
}

#[test]
fn the_same_index_with_another_guid_is_another_device() {
    let mut host = Host::new();
    let uid = host.tick().devices[0].uid;
    let mut other = rxe(0, "rxe0");
    other.node_guid = Some(77);
    host.pass(SECOND).devices(vec![other]);
    assert_ne!(host.tick().devices[0].uid, uid);
}

#[test]
fn a_rename_keeps_device_qps_and_rates() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t + 1, 0xa0, 17));
    host.pass(SECOND)
        .devices(vec![counting(0, "rxe0", "rdma_rxe", &[("sent_pkts", 100)])]);
    let before = host.tick();
    host.pass(SECOND)
        .devices(vec![counting(0, "roce1", "rdma_rxe", &[("sent_pkts", 150)])]);
    let after = host.tick();
    assert_eq!(before.devices[0].uid, after.devices[0].uid);
    assert_eq!(
        (&*after.qps[0].device, after.qps[0].uid),
        ("roce1", before.qps[0].uid)
    );
    assert_eq!(after.ports[0].tx_packets.unwrap().rate, Some(50.0));
    assert_eq!(&*after.processes[0].devices[0], "roce1");
}

#[test]
fn qps_of_a_removed_device_end_with_it_and_keep_its_name() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t - 1, 0xa0, 17));
    host.pass(SECOND).devices(vec![]);
    let row = host.only_qp();
    assert_eq!((row.exited, &*row.device), (true, "rxe0"));
    // The destroy record was still on its way: no ghost of the device comes back.
    host.qp(destroy(t, 0xa0, 17));
    assert!(host.tick().devices.is_empty());
    host.only_qp();
}

#[test]
fn a_device_that_is_left_alone_is_told_from_one_that_does_not_answer() {
    let held = |index: u32, left_alone: bool| DeviceReading {
        index,
        name: format!("rxe{index}"),
        held: true,
        left_alone,
        ..DeviceReading::default()
    };
    let mut host = Host::new();
    host.pass(SECOND).devices(vec![held(0, true), held(1, false)]);
    let s = host.tick();
    let left: Vec<_> = s.devices.iter().map(|row| (&*row.name, row.left_alone)).collect();
    assert_eq!(left, [("rxe0", true), ("rxe1", false)]);
}

#[test]
fn devices_come_in_natural_order() {
    let mut host = Host::new();
    let names = ["mlx5_10", "mlx5_9", "mlx5_2"];
    let devices = names
        .iter()
        .zip(5..)
        .map(|(name, index)| rxe(index, name))
        .collect();
    host.pass(SECOND).devices(devices);
    let snapshot = host.tick();
    let names: Vec<_> = snapshot.ports.iter().map(|p| &*p.device).collect();
    assert_eq!(names, ["mlx5_2", "mlx5_9", "mlx5_10"]);
}

#[test]
fn an_mlx5_counter_of_32_bits_wraps_without_a_spike() {
    let mut host = Host::new();
    let near = u64::from(u32::MAX) - 4;
    host.devices(vec![counting(
        1,
        "mlx5_0",
        "mlx5_core",
        &[("out_of_buffer", near)],
    )]);
    host.pass(SECOND)
        .devices(vec![counting(1, "mlx5_0", "mlx5_core", &[("out_of_buffer", 5)])]);
    assert_eq!(host.tick().ports[0].drops.unwrap().rate, Some(10.0));
}

#[test]
fn an_rxe_port_has_the_payload_and_the_retransmissions_of_its_qps() {
    let mut host = Host::new();
    let t = host.now;
    assert_eq!(host.tick().ports[0].wr_tx_bytes, None);
    host.sweep(&[]);
    host.qp(create(t + 1, 0xa0, 17));
    let mut counted = slot(t + 1, 0xa0, 17, 10);
    counted.retransmits = 3;
    host.pass(SECOND).sweep(&[counted]);
    let port = host.tick().ports[0].clone();
    assert_eq!(
        port.wr_tx_bytes,
        Some(Counter::whole(1000, Some(1000.0), Source::Ebpf))
    );
    assert_eq!(port.retransmits, Some(Counter::whole(3, Some(3.0), Source::Ebpf)));
    assert_eq!(
        (port.tx_bytes, port.retries),
        (None, None),
        "no source counts those"
    );
    assert_eq!(port.history.unit, "bytes");
    // The bytes of a destroyed QP stay.
    host.qp(destroy(t + 2, 0xa0, 17));
    host.pass(SECOND).sweep(&[final_slot(slot(t + 1, 0xa0, 17, 10))]);
    host.pass(SECOND).sweep(&[]);
    assert_eq!(host.tick().ports[0].wr_tx_bytes.unwrap().total, 1000);
}

#[test]
fn bytes_of_the_wire_and_of_work_requests_stand_side_by_side() {
    let mut host = Host::new();
    let t = host.now;
    host.pass(1).devices(vec![counting(
        0,
        "rxe0",
        "rdma_rxe",
        &[("sent_bytes", 4_320_000)],
    )]);
    host.sweep(&[slot(t, 0xa0, 17, 10)]);
    let port = host.tick().ports[0].clone();
    let seen = [port.tx_bytes, port.wr_tx_bytes].map(|counter| counter.map(|c| (c.total, c.source)));
    assert_eq!(
        seen,
        [Some((4_320_000, Source::Netlink)), Some((1000, Source::Ebpf))]
    );
}

#[test]
fn slots_of_kernel_qps_on_hardware_are_not_the_ports_bytes() {
    let mut host = Host::new();
    host.pass(1).devices(vec![counting(0, "irdma0", "irdma", &[])]);
    host.sweep(&[slot(host.now, 0xa0, 17, 10)]);
    let port = host.tick().ports[0].clone();
    assert_eq!(
        (port.tx_bytes, port.wr_tx_bytes, port.retransmits),
        (None, None, None)
    );
}

#[test]
fn a_record_behind_the_removal_of_its_device_makes_no_ghost() {
    let mut host = Host::new();
    let t = host.now;
    host.pass(SECOND).devices(vec![]);
    host.qp(create(t, 0xa0, 17));
    let snapshot = host.tick();
    assert!(snapshot.devices.is_empty());
    assert!(snapshot.qps[0].exited);
    assert_eq!(snapshot.processes[0].qps, 0);
}

#[test]
fn a_reading_older_than_an_event_cannot_say_that_its_device_is_gone() {
    let mut host = Host::new();
    let mut early = create(host.now + 10, 0xa0, 17);
    (early.prefix.device_index, early.prefix.device) = (3, bytes("rxe3"));
    host.qp(early);
    host.pass(5).devices(vec![]);
    assert_eq!(&*host.tick().devices[0].name, "rxe3");
    assert!(!host.only_qp().exited);
    host.pass(10).devices(vec![]);
    assert!(host.tick().devices.is_empty());
}

#[test]
fn a_renamed_rxe_device_without_a_driver_link_still_has_its_packets() {
    let mut host = Host::new();
    let mut device = counting(1, "foo/bar", "", &[("sent_pkts", 7), ("rcvd_pkts", 8)]);
    device.driver = None;
    host.pass(1).devices(vec![device]);
    let port = &host.tick().ports[0];
    assert_eq!(
        (port.tx_packets.unwrap().total, port.rx_packets.unwrap().total),
        (7, 8)
    );
}

#[test]
fn the_only_user_of_a_port_that_is_full_is_bound_by_communication() {
    let mut host = Host::new();
    let reading = |sent: u64| {
        let mut efa = counting(0, "efa0", "efa", &[("tx_bytes", sent), ("rx_bytes", sent / 2)]);
        efa.ports[0].state = Some(PortState(4));
        efa.ports[0].rate_bps = Some(800_000);
        efa
    };
    host.devices(vec![reading(0)]);
    let t = host.now;
    host.dump(t, vec![dumped(17, Some(231), 3)]);
    host.tick();
    for second in 1..=12 {
        host.pass(SECOND).devices(vec![reading(second * 90_000)]);
        host.tick();
    }
    let bound = host.process(231).bound.unwrap();
    assert!(
        bound.verdict.is_some() && bound.of_ports && !bound.partial,
        "{bound:?}"
    );
    assert!(
        (bound.share - 0.9).abs() < 1e-9 && bound.seconds >= 11.0,
        "{bound:?}"
    );
    // Its GPU computes meanwhile, or waits.
    for (sms, wanted) in [(0.9, None), (0.2, Some("communication"))] {
        for back in (0..11).rev() {
            let mono_ns = host.now - back * SECOND;
            let gpu = GpuReading {
                place: None,
                activity: Some(GpuActivity { sms, tensor: 0.2 }),
                processes: Some(vec![231]),
            };
            host.apply(Input::Gpus(Box::new(GpuSample {
                before_ns: mono_ns - SECOND,
                mono_ns,
                gpus: vec![gpu],
                takes_addresses: false,
            })));
        }
        let judged = host.process(231).bound.unwrap();
        assert_eq!(judged.verdict, wanted, "{judged:?}");
    }
    let bound = host.process(231).bound.unwrap();
    // A filter leaves out rows, and so what they show together.
    let filter = Filter {
        device: Some("efa1".into()),
        ..Filter::default()
    };
    assert!(filter.apply(&host.tick()).processes.is_empty());
    let filter = Filter {
        pid: Some(231),
        ..Filter::default()
    };
    assert_eq!(filter.apply(&host.tick()).processes[0].bound, Some(bound));
}
