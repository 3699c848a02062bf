//! What findings say of ports without a network device here: those of InfiniBand, and those of Ethernet whose
//! device is in another network namespace.

use super::*;
use crate::cause::{Cause, CauseId};

/// Words that mean nothing on InfiniBand.
const OF_ETHERNET: [&str; 11] = [
    "PFC",
    "ECN",
    "RoCE",
    "ARP",
    "arp_",
    "ip neigh",
    "ip link",
    "ethtool",
    "NETDEV",
    "INTERFACE",
    "GID index",
];
/// Commands that find nothing on Ethernet.
const OF_INFINIBAND: [&str; 5] = ["ibstat", "ibdiagnet", "sminfo", "opensm", "iblinkinfo"];

/// As what a trouble is found, whether it can be on InfiniBand and on Ethernet, and what makes it.
type Trouble = (FindingId, [bool; 2], fn(&mut Snapshot));

const TROUBLES: [Trouble; 14] = [
    (FindingId::PortDown, [true, true], |s| {
        s.ports[3].state = Some(PortState(1));
    }),
    (FindingId::PortDown, [true, true], |s| {
        s.ports[3].state = Some(PortState(2));
    }),
    (FindingId::PortSlow, [true, true], |s| {
        s.ports[5].rate_bps = Some(100_000_000_000);
    }),
    (FindingId::LinkErrors, [true, true], |s| {
        named(&mut s.ports[1], "symbol_error", 50.0);
    }),
    (FindingId::LinkErrors, [true, true], |s| {
        named(&mut s.ports[1], "link_downed", 1.0);
    }),
    (FindingId::LinkFlaps, [true, true], |s| {
        // It is down in two of three seconds.
        let down = !(s.mono_ns / S).is_multiple_of(3);
        s.ports[1].state = Some(PortState(if down { 1 } else { 4 }));
    }),
    (FindingId::Loss, [true, true], |s| {
        s.health.ebpf = crate::input::EbpfState::Disabled;
        s.ports[1].retransmits = rate(s.ports[1].tx_packets.unwrap().rate.unwrap() / 500.0);
    }),
    (FindingId::RxFunnel, [true, true], |s| {
        for (at, port) in s.ports.iter_mut().enumerate() {
            port.rx_bytes = rate(if at == 2 { 40e9 } else { 0.0 });
        }
    }),
    (FindingId::SetupSlow, [true, true], |s| {
        let late_ns = 900_000_000;
        let mut calls = rows::verb(4711, "rank", "modify_qp", 1.0, &[], false);
        calls.process_uid = Some(5);
        calls.latency.as_mut().unwrap().max_ns = Some(late_ns);
        s.verbs.push(calls);
        let mut qp = rows::qp(1, "mlx5_0", 9, 3, Some(4711), "rank", Traffic::default());
        let row = Arc::make_mut(&mut qp);
        row.process_uid = Some(5);
        row.timeline = Arc::new(vec![Step {
            mono_ns: s.mono_ns,
            state: QpState(2),
            duration_ns: Some(late_ns),
        }]);
        s.qps.push(qp);
    }),
    (FindingId::VerbFails, [true, true], |s| {
        let mut calls = rows::verb(4711, "rank", "modify_qp", 3.0, &[(110, 4)], false);
        (calls.process_uid, calls.errors) = (Some(5), rate(4.0));
        s.verbs.push(calls);
    }),
    (FindingId::RequestsFail, [true, true], |s| {
        named(&mut s.ports[1], "req_transport_retries_exceeded", 1.0);
    }),
    (FindingId::CompletionError, [true, true], |s| {
        s.processes[0].traffic.by_status = vec![StatusCount {
            status: WcStatus(12),
            cqes: rate(1.0).unwrap(),
        }];
    }),
    (FindingId::IbCongestion, [true, false], |s| {
        named(&mut s.ports[2], "port_xmit_wait", 1.5e9);
    }),
    (FindingId::Congestion, [false, true], |s| {
        named(&mut s.ports[0], "rp_cnp_ignored", 5.0);
    }),
];

/// What is found when a trouble has lasted for a while on eight ports of this link layer without network
/// devices.
fn on(link_layer: &str, trouble: fn(&mut Snapshot)) -> Vec<Finding> {
    found(link_layer, None, trouble)
}

/// As [`on`], of devices in the network namespace of this process.
fn found(link_layer: &str, netns_pid: Option<u32>, trouble: impl Fn(&mut Snapshot)) -> Vec<Finding> {
    let mut watch = FindingTracker::default();
    let mut found = Vec::new();
    for second in 0..20 {
        let mut s = rails([4e9; 8], [4e9; 8]);
        s.mono_ns += second * S;
        for port in &mut s.ports {
            (port.link_layer, port.netdev, port.netdev_mtu) = (Some(link_layer.into()), None, None);
        }
        for device in &mut s.devices {
            device.netns_pid = netns_pid;
        }
        trouble(&mut s);
        found = watch.look_at(&s.judged(None));
    }
    found
}

#[test]
fn nothing_of_ethernet_is_said_on_infiniband_and_the_other_way_round() {
    for (layer, at, foreign) in [
        ("InfiniBand", 0, &OF_ETHERNET[..]),
        ("Ethernet", 1, &OF_INFINIBAND[..]),
    ] {
        for (id, can_be, trouble) in TROUBLES {
            let found = on(layer, trouble);
            let has = found.iter().any(|finding| finding.id == id);
            assert_eq!(has, can_be[at], "{layer}: {}: {:?}", id.name(), ids(&found));
            for finding in found {
                let said = [
                    &*finding.verdict,
                    &*finding.next,
                    &*finding.evidence.join(", "),
                    finding.id.kind().why,
                ]
                .join("\n");
                let strange: Vec<_> = foreign.iter().filter(|word| said.contains(**word)).collect();
                assert!(strange.is_empty(), "{layer}: {strange:?} in {said}");
                assert!(!finding.next.is_empty(), "{layer}: {said}");
                let shows_alone =
                    finding.next.starts_with("rdma link show") && !finding.next.contains("   # ");
                assert!(!shows_alone, "{layer}: {said}");
            }
        }
    }
}

/// What to do about port 3 in INIT, where this is so too.
fn next_but(edit: impl Fn(&mut Snapshot)) -> String {
    let found = found("InfiniBand", None, |s| {
        s.ports[3].state = Some(PortState(2));
        edit(s);
    });
    let about = found
        .iter()
        .find(|found| found.device.as_deref() == Some("mlx5_3"));
    about.unwrap().next.to_string()
}

#[test]
fn a_port_of_infiniband_is_brought_up_by_what_its_state_wants() {
    let next = |state: u8| {
        let trouble: [fn(&mut Snapshot); 2] = [TROUBLES[0].2, TROUBLES[1].2];
        on("InfiniBand", trouble[usize::from(state == 2)])[0]
            .next
            .to_string()
    };
    assert!(
        next(1).starts_with("ibstat mlx5_3 1   # Polling -> "),
        "{}",
        next(1)
    );
    assert!(
        next(2).starts_with(
            "sudo sminfo -C mlx5_0 -P 1   # asks by mlx5_0/1, which is ACTIVE   # no answer -> "
        ),
        "{}",
        next(2)
    );
    // The shell of root finds no device of a pod, and only InfiniBand has a subnet manager.
    let none: [fn(&mut Snapshot); 3] = [
        |s| {
            s.ports
                .iter_mut()
                .for_each(|port| port.state = Some(PortState(2)));
        },
        |s| {
            s.devices
                .iter_mut()
                .for_each(|device| device.netns = Some(4_026_532_201));
        },
        |s| {
            let others = s.ports.iter_mut().enumerate().filter(|(at, _)| *at != 3);
            others.for_each(|(_, port)| port.link_layer = Some("Ethernet".into()));
        },
    ];
    for edit in none {
        let next = next_but(edit);
        assert!(
            next.starts_with(
                "sudo sminfo -C DEVICE -P PORT   # of a port that is ACTIVE in this fabric, on any host: "
            ) && next.contains(" why mlx5_3/1 is not   # no answer, no ACTIVE port -> "),
            "{next}",
        );
    }
    let next = next_but(|s| s.devices[0].netns = Some(4_026_532_201));
    assert!(
        next.starts_with("sudo sminfo -C mlx5_1 -P 1   # asks by mlx5_1/1, "),
        "{next}"
    );
}

#[test]
fn what_asks_of_a_device_elsewhere_is_to_be_run_in_its_namespace() {
    let mut there = 0;
    let both = ["InfiniBand", "Ethernet"];
    for (layer, (_, _, trouble)) in both
        .into_iter()
        .flat_map(|layer| TROUBLES.map(|one| (layer, one)))
    {
        let here = found(layer, None, trouble);
        for (here, elsewhere) in here.iter().zip(found(layer, Some(77), trouble)) {
            let (before, note) = elsewhere.next.split_at(here.next.len());
            assert_eq!(before, &*here.next);
            let program = here.next.split_whitespace().next().unwrap();
            let asks = ["rdma", "ibstat", "iblinkinfo", "ethtool", "ip"].contains(&program);
            assert!(
                note.contains("sudo nsenter -t 77 -n") || !asks,
                "{}",
                elsewhere.next
            );
            there += usize::from(asks);
        }
    }
    assert!(there > 3, "{there}");
}

#[test]
fn an_interface_elsewhere_is_looked_for_where_the_process_is() {
    for trouble in [0, 2, 3, 4, 5].map(|at| TROUBLES[at].2) {
        let found = on("Ethernet", trouble);
        let next = &found[0].next;
        assert!(
            next.contains("INTERFACE") && next.contains("usually that of PID 4711: "),
            "{next}"
        );
    }
}

/// From inside a container's PID namespace no PID that is known leads to the interface.
#[test]
fn from_a_container_an_interface_elsewhere_is_looked_for_on_the_node() {
    let found = on("Ethernet", |s| {
        TROUBLES[0].2(s);
        let cause = Cause {
            id: CauseId::PidNamespace,
            ..testkit::full::snapshot().health.notes[0].clone()
        };
        s.health.notes.push(cause);
    });
    let next = &found[0].next;
    assert!(
        next.contains("look on the node") && !next.contains("nsenter"),
        "{next}"
    );
}
