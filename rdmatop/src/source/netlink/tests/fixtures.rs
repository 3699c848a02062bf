//! What four kernels said. How the files were made: tests/fixtures/netlink/record.sh.
use super::super::client::Nldev;
use super::super::enums::{CmState, NodeType, PhysState, PortSpace, PortState, QpState, QpType};
use super::super::error::NetlinkError;
use super::super::record::{CmAddr, Owner};
use super::super::recording::{Recording, Replay};
use super::super::sample::{DeviceSample, Dump, NetlinkSample, Reading};
use super::super::sampler::{Sampler, Want};

/// Kernel and what was recorded on it.
pub(super) const FIXTURES: [(&str, &[u8]); 4] = [
    (
        "5.10",
        include_bytes!("../../../../tests/fixtures/netlink/5.10.rdmanl"),
    ),
    (
        "6.1",
        include_bytes!("../../../../tests/fixtures/netlink/6.1.rdmanl"),
    ),
    (
        "6.12",
        include_bytes!("../../../../tests/fixtures/netlink/6.12.rdmanl"),
    ),
    (
        "7.2",
        include_bytes!("../../../../tests/fixtures/netlink/7.2.rdmanl"),
    ),
];

fn samples(bytes: &[u8]) -> (NetlinkSample, NetlinkSample, Nldev<Replay>) {
    let mut sampler = Sampler::new(Nldev::new(Replay::new(Recording::decode(bytes).unwrap())));
    let first = sampler.sample(Want::EVERYTHING);
    let second = sampler.sample(Want::EVERYTHING);
    (first, second, sampler.into_nldev())
}

fn devices(bytes: &[u8]) -> [DeviceSample; 2] {
    samples(bytes).0.devices.unwrap().try_into().unwrap()
}

#[expect(clippy::ref_option, reason = "readings are fields of a sample")]
fn got<T: std::fmt::Debug>(reading: &Reading<T>) -> &T {
    reading.as_ref().expect("asked for").as_ref().expect("answered")
}

#[expect(clippy::ref_option, reason = "readings are fields of a sample")]
fn items<T: std::fmt::Debug>(reading: &Reading<Dump<T>>) -> &[T] {
    &got(reading).items
}

#[test]
fn devices_and_ports_are_read_as_rdma_link_shows_them() {
    for (kernel, bytes) in FIXTURES {
        for (number, sample) in devices(bytes).iter().enumerate() {
            let device = &sample.device;
            assert_eq!(device.name, *format!("rxe{number}"), "{kernel}");
            assert_eq!(device.node_type, Some(NodeType::Ca), "{kernel}");
            assert_eq!(device.protocol.as_deref(), Some("roce"), "{kernel}");
            // rxe makes its GUID from the MAC: ff:fe in the middle.
            let guid = device.node_guid.unwrap().to_string();
            assert_eq!((&guid[7..9], &guid[10..12]), ("ff", "fe"), "{kernel} {guid}");
            let port = got(&sample.ports[0].info);
            assert_eq!(
                (port.state, port.phys_state),
                (Some(PortState::Active), Some(PhysState::LinkUp)),
                "{kernel}"
            );
            assert_eq!(
                port.netdev.as_ref().unwrap().name.as_ref().unwrap(),
                &*format!("dummy{number}")
            );
            assert_eq!(
                (port.lid, port.lmc),
                (None, None),
                "{kernel}: a RoCE port has no LID, not LID 0"
            );
        }
    }
}

#[test]
fn hardware_counters_pass_by_any_name_and_count_up_under_traffic() {
    for (kernel, bytes) in FIXTURES {
        let (first, second, _) = samples(bytes);
        let sent = |sample: &NetlinkSample| {
            let counters = got(&sample.devices.as_ref().unwrap()[0].ports[0].counters).clone();
            assert!(counters.len() >= 15, "{kernel} {counters:?}");
            counters
                .iter()
                .find(|counter| &*counter.name == "sent_pkts")
                .unwrap()
                .value
        };
        assert!(0 < sent(&first) && sent(&first) < sent(&second), "{kernel}");
    }
}

#[test]
fn every_listed_object_is_in_the_kernels_own_count() {
    for (kernel, bytes) in FIXTURES {
        for sample in devices(bytes) {
            let summary = got(&sample.summary);
            assert_eq!(
                summary.get("qp"),
                Some(items(&sample.qps).len() as u64),
                "{kernel}"
            );
            assert_eq!(
                summary.get("cq"),
                Some(items(&sample.cqs).len() as u64),
                "{kernel}"
            );
            assert_eq!(
                summary.get("mr"),
                Some(items(&sample.mrs).len() as u64),
                "{kernel}"
            );
            assert_eq!(
                summary.get("pd"),
                Some(items(&sample.pds).len() as u64),
                "{kernel}"
            );
            assert_eq!(
                summary.get("cm_id"),
                Some(items(&sample.cm_ids).len() as u64),
                "{kernel}"
            );
        }
    }
}

#[test]
fn queue_pairs_of_a_test_pair_point_at_each_other() {
    for (kernel, bytes) in FIXTURES {
        let [sample, _] = devices(bytes);
        let qps = items(&sample.qps);
        let rc: Vec<_> = qps.iter().filter(|qp| qp.qp_type == Some(QpType::Rc)).collect();
        assert_eq!(rc.len(), 8, "{kernel} {qps:?}");
        for qp in &rc {
            let peer = rc
                .iter()
                .find(|peer| Some(peer.lqpn) == qp.rqpn)
                .expect("the peer is on the same device");
            assert_eq!(peer.rqpn, Some(qp.lqpn), "{kernel}");
            // perftest takes the receiver of a one-way test no further than RTR.
            let mut states = [qp.state, peer.state];
            states.sort();
            assert_eq!(states, [Some(QpState::Rtr), Some(QpState::Rts)], "{kernel}");
            assert_ne!(peer.owner, qp.owner, "{kernel}");
            assert!(
                matches!(qp.owner, Some(Owner::Process(pid)) if pid > 1),
                "{kernel}"
            );
            assert!(
                items(&sample.pds)
                    .iter()
                    .any(|pd| pd.pdn == qp.pdn && pd.owner == qp.owner),
                "{kernel}"
            );
        }
        let gsi = qps.iter().find(|qp| qp.qp_type == Some(QpType::Gsi)).unwrap();
        assert_eq!(
            (gsi.lqpn, &gsi.owner),
            (1, &Some(Owner::Kernel("ib_core".into()))),
            "{kernel}"
        );
        assert_eq!(gsi.rqpn, None, "{kernel}: a datagram QP has no peer");
    }
}

#[test]
fn send_psns_of_busy_qps_move_between_two_refreshes() {
    for (kernel, bytes) in FIXTURES {
        let (first, second, _) = samples(bytes);
        let psns = |sample: &NetlinkSample| -> Vec<_> {
            let device = &sample.devices.as_ref().unwrap()[0];
            items(&device.qps).iter().map(|qp| (qp.lqpn, qp.sq_psn)).collect()
        };
        assert_ne!(psns(&first), psns(&second), "{kernel}");
    }
}

#[test]
fn memory_regions_have_their_bytes_and_owner() {
    for (kernel, bytes) in FIXTURES {
        for sample in devices(bytes) {
            let users: Vec<_> = items(&sample.mrs)
                .iter()
                .filter(|mr| mr.owner.as_ref().and_then(Owner::pid).is_some())
                .collect();
            assert!(!users.is_empty(), "{kernel}");
            assert!(
                users.iter().all(|mr| mr.bytes > Some(0) && mr.mrn.is_some()),
                "{kernel} {users:?}"
            );
        }
    }
}

#[test]
fn connection_ids_show_the_listener_and_both_ends() {
    for (kernel, bytes) in FIXTURES {
        let [none, sample] = devices(bytes);
        assert!(items(&none.cm_ids).is_empty(), "{kernel}");
        let ids = items(&sample.cm_ids);
        let listener = ids
            .iter()
            .find(|id| id.state == Some(CmState::Listen))
            .expect("a listener");
        let Some(CmAddr::Ip(address)) = listener.src else {
            panic!("{kernel} {listener:?}")
        };
        assert_eq!(address.to_string(), "10.77.1.1:7174", "{kernel}");
        let ends: Vec<_> = ids
            .iter()
            .filter(|id| id.state == Some(CmState::Connect))
            .collect();
        assert_eq!(ends.len(), 2, "{kernel} {ids:?}");
        assert_eq!((ends[0].src, ends[0].dst), (ends[1].dst, ends[1].src), "{kernel}");
        for end in ends {
            assert_eq!(
                (end.port_space, end.qp_type),
                (Some(PortSpace::Tcp), Some(QpType::Rc)),
                "{kernel}"
            );
            assert!(
                items(&sample.qps).iter().any(|qp| Some(qp.lqpn) == end.lqpn),
                "{kernel}"
            );
        }
    }
}

#[test]
fn contexts_and_srqs_are_listed_where_the_kernel_can_and_refused_on_5_10() {
    for (kernel, bytes) in FIXTURES {
        let (first, second, _) = samples(bytes);
        let failed: Vec<_> = first.errors().map(|error| error.request.clone()).collect();
        if kernel == "5.10" {
            assert!(
                failed
                    .iter()
                    .all(|what| what.starts_with("user contexts") || what.starts_with("SRQs")),
                "{failed:?}"
            );
            assert_eq!(failed.len(), 4, "{failed:?}");
            continue;
        }
        assert!(
            failed.is_empty() && second.errors().count() == 0,
            "{kernel} {failed:?}"
        );
        let [sample, _] = devices(bytes);
        assert!(
            items(&sample.ctxs).iter().all(|ctx| ctx.owner.is_some()),
            "{kernel}"
        );
        assert_eq!(items(&sample.ctxs).len(), 4, "{kernel}");
        assert_eq!(
            got(&sample.summary).get("srq"),
            Some(items(&sample.srqs).len() as u64),
            "{kernel}"
        );
        let srq = &items(&sample.srqs)[0];
        assert!(srq.srqn.is_some() && srq.owner.is_some(), "{kernel} {srq:?}");
    }
}

#[test]
fn a_device_that_is_not_there_is_an_error_in_question_and_dump() {
    // The kernel ends the dump at once, with the error in its NLMSG_DONE: a reader that skips it sees an empty list.
    for (kernel, bytes) in FIXTURES {
        let mut nldev = samples(bytes).2;
        let absent = 4_000_000;
        let refused = Err(NetlinkError::Kernel {
            errno: 22,
            message: None,
        });
        assert_eq!(nldev.qps(absent).map(|_| ()), refused, "{kernel}");
        assert_eq!(nldev.summary(absent).map(|_| ()), refused, "{kernel}");
        assert_eq!(nldev.counters(absent, 1).map(|_| ()), refused, "{kernel}");
        assert_eq!(nldev.del_link(absent), refused, "{kernel}");
    }
}

#[test]
fn a_dump_of_ports_says_what_single_questions_say() {
    for (kernel, bytes) in FIXTURES {
        let (first, _, mut nldev) = samples(bytes);
        for sample in first.devices.unwrap() {
            let ports = nldev.ports(sample.device.index).unwrap();
            assert_eq!(&ports.items[0], got(&sample.ports[0].info), "{kernel}");
        }
    }
}

#[test]
fn a_recording_survives_its_file_format() {
    for (_, bytes) in FIXTURES {
        let recording = Recording::decode(bytes).unwrap();
        assert_eq!(recording.encode(), bytes);
        assert!(recording.comment.starts_with("Debian kernel "));
    }
}
