//! Recorded answers of four kernels. tests/fixtures/netlink/record.sh describes how the files were made.
use super::super::client::Nldev;
use super::super::error::NetlinkError;
use super::super::record::{Owned, Owner, Qp};
use super::super::sample::{DeviceSample, Dump, Reading};
use super::super::sampler::{self, Want};
use crate::fake::recording::{Recording, Replay};
use rdmatop_base::ib::{PhysState, PortState, QpState, QpType};

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

/// All that the recording has of a device.
struct Seen {
    sample: DeviceSample,
    /// Counters of its port.
    counters: Vec<(String, u64)>,
    qps: Vec<Qp>,
    cm_ids: Vec<Owned>,
    pds: Vec<Owned>,
    /// Linux 5.10 refuses to list them.
    ctxs: Result<Vec<Owned>, NetlinkError>,
}

fn seen(nldev: &mut Nldev<Replay>) -> [Seen; 2] {
    let devices = nldev.devices().unwrap().items.into_iter();
    let seen = devices.map(|device| {
        let index = device.index;
        let sample = sampler::sample(
            nldev,
            device,
            Want {
                ports: true,
                mrs: true,
            },
            None,
        );
        // Of kinds whose count is 0 nothing was recorded.
        let none = got(&sample.summary).get("cm_id") == Some(0);
        let mut counters = Vec::new();
        let mut add = |name: &[u8], value| counters.push((String::from_utf8_lossy(name).into_owned(), value));
        nldev.each_counter(index, 1, &mut add).unwrap();
        Seen {
            counters,
            qps: nldev.qps(index).unwrap().items,
            cm_ids: if none {
                Vec::new()
            } else {
                nldev.cm_ids(index).unwrap().items
            },
            pds: nldev.pds(index).unwrap().items,
            ctxs: nldev.ctxs(index).map(|dump| dump.items),
            sample,
        }
    });
    seen.collect::<Vec<_>>().try_into().ok().expect("two devices")
}

/// Both readings of each device, and the connection to send more requests.
fn twice(bytes: &[u8]) -> ([Seen; 2], [Seen; 2], Nldev<Replay>) {
    let mut nldev = Nldev::new(Replay::new(Recording::decode(bytes).unwrap()));
    (seen(&mut nldev), seen(&mut nldev), nldev)
}

fn devices(bytes: &[u8]) -> [Seen; 2] {
    twice(bytes).0
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
        for (number, Seen { sample, .. }) in devices(bytes).iter().enumerate() {
            let device = &sample.device;
            assert_eq!(device.name, *format!("rxe{number}"), "{kernel}");
            assert_eq!(device.protocol.as_deref(), Some("roce"), "{kernel}");
            // rxe makes its GUID from the MAC: ff:fe in the middle.
            let guid = device.node_guid.unwrap();
            assert_eq!(guid >> 24 & 0xffff, 0xfffe, "{kernel} {guid:x}");
            let port = got(&sample.ports[0].info);
            assert_eq!(
                (port.state, port.phys_state),
                (Some(PortState(4)), Some(PhysState(5))),
                "{kernel}"
            );
            assert_eq!(
                port.netdev.as_ref().unwrap().name.as_ref().unwrap(),
                &*format!("dummy{number}")
            );
        }
    }
}

#[test]
fn hardware_counters_pass_by_any_name_and_count_up_under_traffic() {
    for (kernel, bytes) in FIXTURES {
        let (first, second, _) = twice(bytes);
        let sent = |seen: &[Seen; 2]| {
            let counters = &seen[0].counters;
            assert!(counters.len() >= 15, "{kernel} {counters:?}");
            counters.iter().find(|(name, _)| name == "sent_pkts").unwrap().1
        };
        assert!(0 < sent(&first) && sent(&first) < sent(&second), "{kernel}");
    }
}

#[test]
fn every_listed_object_is_in_the_kernels_own_count() {
    for (kernel, bytes) in FIXTURES {
        for seen in devices(bytes) {
            let listed = [
                ("qp", seen.qps.len()),
                ("mr", items(&seen.sample.mrs).len()),
                ("pd", seen.pds.len()),
                ("cm_id", seen.cm_ids.len()),
            ];
            for (name, listed) in listed {
                let counted = got(&seen.sample.summary).get(name);
                assert_eq!(counted, Some(listed as u64), "{kernel} {name}");
            }
        }
    }
}

#[test]
fn queue_pairs_of_a_test_pair_point_at_each_other() {
    for (kernel, bytes) in FIXTURES {
        let [seen, _] = devices(bytes);
        let qps = &seen.qps;
        let rc: Vec<_> = qps.iter().filter(|qp| qp.qp_type == Some(QpType::RC)).collect();
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
            assert_eq!(states, [Some(QpState(2)), Some(QpState(3))], "{kernel}");
            assert_ne!(peer.owner, qp.owner, "{kernel}");
            assert!(
                matches!(qp.owner, Some(Owner::Process(pid)) if pid > 1),
                "{kernel}"
            );
            assert!(seen.pds.iter().any(|pd| pd.owner == qp.owner), "{kernel}");
        }
        let gsi = qps.iter().find(|qp| qp.qp_type == Some(QpType::GSI)).unwrap();
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
        let (first, second, _) = twice(bytes);
        let psns =
            |seen: &[Seen; 2]| -> Vec<_> { seen[0].qps.iter().map(|qp| (qp.lqpn, qp.sq_psn)).collect() };
        assert_ne!(psns(&first), psns(&second), "{kernel}");
    }
}

#[test]
fn memory_regions_have_their_bytes_and_owner() {
    for (kernel, bytes) in FIXTURES {
        for Seen { sample, .. } in devices(bytes) {
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
fn a_listener_and_both_ends_of_a_connection_have_their_owners() {
    for (kernel, bytes) in FIXTURES {
        let [none, seen] = devices(bytes);
        assert!(none.cm_ids.is_empty(), "{kernel}");
        // rping: the server's listener and its end of the connection, and the client's end.
        let mut owners: Vec<_> = seen.cm_ids.iter().map(|id| id.owner.clone()).collect();
        assert!(owners.iter().all(Option::is_some), "{kernel} {owners:?}");
        owners.sort_by_key(|owner| owner.as_ref().and_then(Owner::pid));
        owners.dedup();
        assert_eq!((seen.cm_ids.len(), owners.len()), (3, 2), "{kernel}");
    }
}

#[test]
fn contexts_are_listed_where_the_kernel_can_and_refused_on_5_10() {
    for (kernel, bytes) in FIXTURES {
        let (first, second, _) = twice(bytes);
        for seen in first.iter().chain(&second) {
            assert_eq!(seen.sample.errors().count(), 0, "{kernel}");
        }
        let [seen, _] = first;
        if kernel == "5.10" {
            let refused = NetlinkError::Kernel {
                errno: libc::EINVAL,
                message: None,
            };
            assert_eq!(seen.ctxs, Err(refused));
            continue;
        }
        let ctxs = seen.ctxs.unwrap();
        assert!(ctxs.iter().all(|ctx| ctx.owner.is_some()), "{kernel}");
        assert_eq!(ctxs.len(), 4, "{kernel}");
    }
}

#[test]
fn a_request_for_a_missing_device_is_an_error_alone_and_as_a_dump() {
    // The kernel ends the dump at once, with the error in its NLMSG_DONE: a reader that skips it sees an
    // empty list.
    for (kernel, bytes) in FIXTURES {
        let mut nldev = twice(bytes).2;
        let absent = 4_000_000;
        let refused = Err(NetlinkError::Kernel {
            errno: 22,
            message: None,
        });
        assert_eq!(nldev.qps(absent).map(|_| ()), refused, "{kernel}");
        assert_eq!(nldev.summary(absent).map(|_| ()), refused, "{kernel}");
        assert_eq!(nldev.each_counter(absent, 1, &mut |_, _| {}), refused, "{kernel}");
        assert_eq!(nldev.del_link(absent), refused, "{kernel}");
    }
}

#[test]
fn a_dump_of_ports_equals_single_requests() {
    for (kernel, bytes) in FIXTURES {
        let (first, _, mut nldev) = twice(bytes);
        for Seen { sample, .. } in first {
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
