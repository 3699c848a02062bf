//! Whom queue pairs of mlx5 send to, as their firmware says. No such answer could be recorded: these are
//! built from the published layout.

use super::*;
use rdmatop_base::ib::{Gid, QpState, QpType};

const PEER: Gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 9]);

/// A queue pair of port 1 that sends to 10.0.0.9.
fn context(qpn: u32) -> QpContext {
    QpContext {
        qpn,
        state: QpState::RTS,
        qp_type: QpType::RC,
        remote_qpn: 100 + qpn,
        port: 1,
        grh: true,
        sgid_index: 3,
        remote_gid: PEER,
    }
}

/// One device with these queue pairs, whose port of Ethernet has GID 3 alone.
fn host(contexts: Vec<QpContext>) -> Host {
    let host = Host::new(1);
    let port = "class/infiniband/rxe0/ports/1";
    host.files.sys(format!("{port}/link_layer"), "Ethernet\n").sys(
        format!("{port}/gids/3"),
        "0000:0000:0000:0000:0000:ffff:0a00:0001\n",
    );
    for unset in 0..3 {
        host.files.sys(
            format!("{port}/gids/{unset}"),
            "0000:0000:0000:0000:0000:0000:0000:0000\n",
        );
    }
    host.kernel.change(0, |made| {
        made.qps = contexts.iter().map(|context| (context.qpn, 0)).collect();
        made.contexts = contexts;
    });
    host
}

/// The path of a queue pair, by its number.
type Read = (u32, Option<(u32, Gid, u8)>);

/// One round that asks for the peers of these queue pairs: what was read, and how often the firmware was
/// asked.
fn ask(host: &mut Host, numbers: &[u32]) -> (Vec<Read>, usize) {
    let wants = Wants {
        round: host.round,
        counters: true,
        paths: Arc::new([(0, numbers.to_vec())].into()),
        ..Wants::default()
    };
    host.round += 1;
    let mut read = Vec::new();
    host.source.poll(&wants, &mut |input| {
        if let Input::Paths(paths) = input {
            read.extend(paths.iter().map(|path| (path.qpn, path.path)));
        }
    });
    (read, host.kernel.asked(cmd::RES_QP_GET_RAW).len())
}

#[test]
fn the_firmware_s_address_of_a_peer_is_read_after_all_else() {
    let mut host = host(vec![context(17), context(18)]);
    host.poll(false);
    host.kernel.asked(0);
    let wants = Wants {
        round: 1,
        qps: true,
        counters: true,
        paths: Arc::new([(0, vec![17, 99, 18])].into()),
        ..Wants::default()
    };
    let mut seen = Vec::new();
    host.source.poll(&wants, &mut |input| match input {
        Input::Qps(sample) => seen.extend(sample.qps.iter().map(|qp| (qp.qpn, None))),
        Input::Paths(paths) => seen.extend(paths.iter().map(|path| (path.qpn, path.path))),
        _ => {}
    });
    let path = |qpn| (qpn, Some((100 + qpn, PEER, 3)));
    assert_eq!(
        seen,
        [(17, None), (18, None), (1, None), path(17), (99, None), path(18)]
    );
    let state = host.kernel.0.lock().unwrap();
    let commands: Vec<u16> = state.asked.iter().map(|(command, _)| *command).collect();
    let first = commands
        .iter()
        .position(|command| *command == cmd::RES_QP_GET_RAW)
        .unwrap();
    let last_of_others = commands
        .iter()
        .rposition(|command| !matches!(*command, cmd::RES_QP_GET_RAW | cmd::RES_QP_GET));
    assert!(last_of_others.unwrap() < first, "{commands:?}");
}

#[test]
fn addresses_that_an_owner_may_choose_end_the_asking_for_nobody() {
    let no_address: [fn(&mut QpContext); 2] = [
        |context| context.sgid_index = 2,
        |context| context.remote_gid = Gid([0; 16]),
    ];
    for change in no_address {
        let mut host = host(vec![context(17)]);
        let mut without = context(17);
        change(&mut without);
        host.kernel.change(0, |made| made.raw = Some(without.encode()));
        for _ in 0..5 {
            assert_eq!(ask(&mut host, &[17]), (vec![(17, None)], 1));
        }
        host.kernel.change(0, |made| made.raw = None);
        assert_eq!(ask(&mut host, &[17]), (vec![(17, Some((117, PEER, 3)))], 1));
    }
}

#[test]
fn an_address_whose_context_differs_from_netlink_s_is_not_taken() {
    type Change = fn(&mut QpContext);
    let changes: [Change; 5] = [
        |context| context.qpn += 1,
        |context| context.state = QpState::RTR,
        |context| context.qp_type = QpType::UC,
        |context| context.remote_qpn ^= 1 << 20,
        |context| context.port = 2,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut host = host(vec![context(17)]);
        let mut wrong = context(17);
        change(&mut wrong);
        host.kernel.change(0, |made| made.raw = Some(wrong.encode()));
        for asked in [1, 1, 1, 0, 0] {
            assert_eq!(ask(&mut host, &[17]), (vec![(17, None)], asked), "{number}");
        }
        // Three answers that do not hold end it for good.
        host.kernel.change(0, |made| made.raw = None);
        assert_eq!(ask(&mut host, &[17]), (vec![(17, None)], 0), "{number}");
    }
    let mut host = host(vec![context(17)]);
    let path = (vec![(17, Some((117, PEER, 3)))], 1);
    for _ in 0..2 {
        for wrong in [true, true, false] {
            host.kernel
                .change(0, |made| made.raw = wrong.then(|| vec![0; 300]));
            let read = ask(&mut host, &[17]);
            assert_eq!(
                read,
                if wrong {
                    (vec![(17, None)], 1)
                } else {
                    path.clone()
                },
                "one that holds proves the device"
            );
        }
    }
}

#[test]
fn what_an_owner_can_do_to_his_queue_pairs_ends_it_for_nobody() {
    let mut host = host(vec![context(17), context(18)]);
    // Rings too large for the driver's buffer; and a modify between the two questions.
    for round in 0..6 {
        host.kernel.change(0, |made| made.raw = Some(Vec::new()));
        assert_eq!(ask(&mut host, &[17]), (vec![(17, None)], 1), "{round}");
    }
    host.kernel.change(0, |made| made.raw = None);
    assert_eq!(
        ask(&mut host, &[18, 99]).0,
        [(18, Some((118, PEER, 3))), (99, None)]
    );
}

#[test]
fn a_device_that_refuses_is_asked_once() {
    for errno in [libc::EPERM, libc::EOPNOTSUPP, libc::EINVAL, libc::EIO] {
        let mut host = host(vec![context(17), context(18)]);
        host.kernel.change(0, |made| made.denies = errno);
        assert_eq!(ask(&mut host, &[17, 18]), (vec![(17, None), (18, None)], 1));
        host.kernel.change(0, |made| made.denies = 0);
        host.source.listed_ns = None;
        assert_eq!(ask(&mut host, &[17, 18]).1, 0, "also after it was listed again");
    }
    let mut host = host(vec![context(17)]);
    host.source.present.root = host.files.root().without(Excluded::new(&["rxe0".to_owned()]));
    assert_eq!(ask(&mut host, &[17]), (vec![], 0), "--exclude-device");
}

#[test]
fn a_path_without_a_global_header_has_no_address() {
    let local = QpContext {
        grh: false,
        ..context(17)
    };
    let mut ethernet = host(vec![local]);
    assert_eq!(
        ask(&mut ethernet, &[17]).0,
        [(17, Some((117, PEER, 3)))],
        "RoCE always has one"
    );
    let mut infiniband = host(vec![local]);
    infiniband
        .files
        .sys("class/infiniband/rxe0/ports/1/link_layer", "InfiniBand\n");
    for _ in 0..5 {
        assert_eq!(
            ask(&mut infiniband, &[17]),
            (vec![(17, None)], 1),
            "that is no flaw"
        );
    }
}

#[test]
fn asking_for_peers_takes_a_tenth_of_a_device_s_time() {
    let mut host = host((17..27).map(context).collect());
    host.kernel.change(0, |made| {
        (made.sleeps, made.sleeps_in) = (60, Some(cmd::RES_QP_GET_RAW));
    });
    let all: Vec<u32> = (17..27).collect();
    let begun = std::time::Instant::now();
    assert_eq!(
        ask(&mut host, &all).1,
        1,
        "the others would take longer than 50 ms"
    );
    let took = begun.elapsed();
    assert_eq!(ask(&mut host, &all), (vec![], 0), "the firmware has other work");
    thread::sleep(took * 9);
    assert_eq!(ask(&mut host, &all[1..]).1, 1);
}
