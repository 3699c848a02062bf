//! Whom queue pairs send to that were connected before rdmatop came.

use super::*;
use crate::{
    ib::Gid,
    input::{PathReading, PortGid},
    value::Source,
};

const PEER: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 9]);

fn mlx5(index: u32) -> DeviceReading {
    DeviceReading {
        driver: Some("mlx5_core".into()),
        ..rxe(index, &format!("mlx5_{index}"))
    }
}

/// A host with one device of mlx5.
fn host() -> Host {
    let mut host = Host::new();
    host.devices(vec![mlx5(0)]);
    host
}

/// A queue pair of this process, connected to number + 100.
fn connected(qpn: u32, pid: u32) -> QpReading {
    QpReading {
        remote_qpn: Some(qpn + 100),
        ..dumped(qpn, Some(pid), 3)
    }
}

/// What is asked for after a second.
fn asked(host: &mut Host) -> Vec<u32> {
    host.pass(SECOND).tick();
    host.engine.needs().paths.values().flatten().copied().collect()
}

fn answer(host: &mut Host, qpn: u32, path: Option<(u32, Gid, u8)>) {
    let reading = PathReading {
        device_index: 0,
        qpn,
        path,
        at_ns: host.now,
    };
    host.apply(Input::Paths(vec![reading]));
}

fn known(host: &mut Host) -> (Option<Gid>, Option<Source>, Option<u8>) {
    let row = host.only_qp();
    (row.remote_gid, row.remote_gid_source, row.sgid_index)
}

#[test]
fn what_the_firmware_says_is_the_peer_s_until_another_connection() {
    let mut host = host();
    host.dump(host.now, vec![connected(17, 231)]);
    assert_eq!(asked(&mut host), [17]);
    answer(&mut host, 17, Some((117, PEER, 3)));
    assert_eq!(host.engine.needs().paths.len(), 0, "it is answered");
    assert_eq!(known(&mut host), (Some(PEER), Some(Source::Netlink), Some(3)));
    let snapshot = host.tick();
    assert_eq!(snapshot.peer(&snapshot.qps[0]).unwrap().name(), "10.0.0.9");
    assert_eq!(asked(&mut host), [] as [u32; 0]);
    // It left its connection, and has another one with the same number.
    host.dump(host.now, vec![dumped(17, Some(231), 1)]);
    assert_eq!(known(&mut host), (None, None, None));
    assert_eq!(asked(&mut host), [] as [u32; 0]);
    host.dump(host.now, vec![connected(17, 231)]);
    assert_eq!(asked(&mut host), [17]);
    answer(&mut host, 17, Some((117, PEER, 3)));
    let another = QpReading {
        remote_qpn: Some(118),
        ..connected(17, 231)
    };
    host.pass(SECOND);
    host.dump(host.now, vec![another]);
    assert_eq!(known(&mut host), (None, None, None));
    assert_eq!(asked(&mut host), [17]);
}

#[test]
fn an_answer_for_another_connection_or_before_a_modify_says_nothing() {
    let mut host = host();
    host.dump(host.now, vec![connected(17, 231)]);
    assert_eq!(asked(&mut host), [17]);
    answer(&mut host, 17, Some((118, PEER, 3)));
    assert_eq!(known(&mut host).0, None, "the dump has another peer");
    assert_eq!(asked(&mut host), [] as [u32; 0]);
    let mut host = self::host();
    host.dump(host.now, vec![connected(17, 231)]);
    assert_eq!(asked(&mut host), [17]);
    let before_ns = host.now;
    host.pass(SECOND);
    let mut record = modify(host.now, 0xa0, 17, 2);
    record.prefix.device = bytes("mlx5_0");
    (record.dest_qpn, record.dest_gid) = (117, [7; 16]);
    host.qp(record);
    let late = PathReading {
        device_index: 0,
        qpn: 17,
        path: Some((117, PEER, 3)),
        at_ns: before_ns,
    };
    host.apply(Input::Paths(vec![late]));
    assert_eq!(known(&mut host).0, Some(Gid([7; 16])));
    assert_eq!(known(&mut host).1, Some(Source::Ebpf));
    assert_eq!(asked(&mut host), [] as [u32; 0]);
}

#[test]
fn a_queue_pair_is_asked_for_once_and_none_without_need() {
    let mut host = host();
    let others = [
        dumped(20, Some(231), 1),
        QpReading {
            qp_type: Some(QpType(4)),
            ..connected(21, 231)
        },
        QpReading {
            remote_qpn: None,
            ..connected(22, 231)
        },
    ];
    let all = std::iter::once(connected(17, 231)).chain(others);
    host.dump(host.now, all.collect());
    assert_eq!(asked(&mut host), [17]);
    assert_eq!(asked(&mut host), [17], "there was no answer");
    answer(&mut host, 17, None);
    for _ in 0..3 {
        assert_eq!(asked(&mut host), [] as [u32; 0], "the answer was of no use");
    }
    let mut other = Host::new();
    other.dump(other.now, vec![connected(17, 231)]);
    assert_eq!(asked(&mut other), [] as [u32; 0], "not mlx5's");
}

#[test]
fn ten_queue_pairs_are_asked_for_in_a_second_and_processes_take_turns() {
    let mut host = host();
    let many = (100..200).map(|qpn| connected(qpn, 231));
    let all = many.chain([connected(900, 500), connected(901, 501), connected(902, 500)]);
    host.dump(host.now, all.collect());
    let mut first = asked(&mut host);
    first.sort_unstable();
    assert_eq!(first, [100, 101, 102, 103, 104, 105, 106, 900, 901, 902]);
    // Snapshots may come more often than once a second.
    let mut sum = 0;
    for _ in 0..20 {
        host.pass(SECOND / 10).tick();
        sum += host.engine.needs().paths.values().map(Vec::len).sum::<usize>();
    }
    assert_eq!(sum, 20);
    for qpn in first {
        answer(&mut host, qpn, None);
    }
    host.pass(9 * SECOND);
    assert_eq!(asked(&mut host).len(), 10, "a pause saves nothing up");
}

#[test]
fn both_ends_here_are_known_by_the_firmware_s_addresses_alone() {
    let mut host = host();
    let own = |index: u32, last: u8| {
        let mut device = mlx5(index);
        let mut gid = PEER;
        gid.0[15] = last;
        device.ports[0].gids = Some(vec![PortGid {
            index: 3,
            gid,
            v1: Some(false),
        }]);
        device
    };
    host.devices(vec![own(0, 8), own(1, 9), own(2, 10)]);
    // Numbers repeat over NICs.
    let of = |device_index: u32, qpn: u32, to: u32| QpReading {
        device_index,
        remote_qpn: Some(to),
        ..connected(qpn, 231 + device_index)
    };
    let sample = QpsSample {
        mono_ns: host.now,
        complete: vec![0, 1, 2],
        qps: vec![of(0, 17, 18), of(1, 18, 17), of(2, 18, 17)],
        errors: Vec::new(),
    };
    host.apply(Input::Qps(Box::new(sample)));
    let name = |host: &mut Host| {
        let snapshot = host.tick();
        snapshot.peer(&snapshot.qps[0]).map(|peer| peer.name())
    };
    assert_eq!(name(&mut host), None);
    answer(&mut host, 17, Some((18, PEER, 3)));
    assert_eq!(name(&mut host).as_deref(), Some("232 #232"));
}
