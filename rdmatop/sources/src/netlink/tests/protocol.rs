//! How an answer is followed: ends, errors, flags, messages for other sockets.
use super::super::attr::{
    DEV_INDEX, DEV_NAME, DRIVER_DETAILS, PORT_INDEX, RES_LQPN, RES_PID, RES_QP, RES_QP_ENTRY, RES_RAW,
    RES_SQ_PSN, RES_STATE, RES_TYPE, cmd, message_type,
};
use super::super::client::Nldev;
use super::super::error::NetlinkError;
use super::super::name::Name;
use super::super::record::Owner;
use super::super::wire::{
    Attrs, ERROR, EXTACK_MESSAGE, F_ACK_TLVS, F_CAPPED, F_DUMP, F_DUMP_INTR, F_MULTI, F_REQUEST, Message,
    MessageWriter, OVERRUN, WireError,
};
use super::{FakeKernel, PORTID, done, reply};
use rdmatop_base::ib::{QpState, QpType};

fn qp(writer: MessageWriter, lqpn: u32, psn: u32) -> MessageWriter {
    writer.nest(RES_QP_ENTRY, |entry| {
        entry
            .u32(RES_LQPN, lqpn)
            .u8(RES_TYPE, 2)
            .u8(RES_STATE, 3)
            .u32(RES_SQ_PSN, psn)
            .u32(RES_PID, 231)
            .u32(0x3abc, 1) // an attribute of a kernel to come
    })
}

fn qps(request: &Message<'_>, flags: u16, list: &[(u32, u32)]) -> Vec<u8> {
    let message = reply(request, F_MULTI | flags)
        .u32(DEV_INDEX, 0)
        .string(DEV_NAME, b"rxe0");
    message
        .nest(RES_QP, |table| {
            list.iter()
                .fold(table, |table, &(lqpn, psn)| qp(table, lqpn, psn))
        })
        .finish()
}

fn error(request: &Message<'_>, errno: i32, words: Option<&str>, capped: bool) -> Vec<u8> {
    let flags = if capped { F_CAPPED } else { 0 } | if words.is_some() { F_ACK_TLVS } else { 0 };
    let echoed = MessageWriter::new(request.kind, request.flags, request.seq)
        .raw(request.payload)
        .finish();
    let echo = if capped { &echoed[..16] } else { &echoed[..] };
    let message = MessageWriter::new(ERROR, flags, request.seq)
        .portid(PORTID)
        .raw(&(-errno).to_ne_bytes())
        .raw(echo);
    words
        .iter()
        .fold(message, |message, words| {
            message.string(EXTACK_MESSAGE, words.as_bytes())
        })
        .finish()
}

#[test]
fn a_dump_in_several_datagrams_is_read_to_its_done() {
    let mut nldev = Nldev::new(FakeKernel(|request: &Message<'_>| {
        assert_eq!(request.flags, F_REQUEST | F_DUMP);
        let mut attrs = Attrs::new(request.payload).flatten();
        let types = attrs.find(|attr| attr.number == DRIVER_DETAILS);
        assert_eq!(types.unwrap().u8(), Ok(1), "a driver's own types too");
        vec![
            qps(request, 0, &[(17, 1), (18, 2)]),
            qps(request, 0, &[(19, 3)]),
            done(request, 0),
        ]
    }));
    let dump = nldev.qps(0).unwrap();
    assert_eq!(
        dump.items.iter().map(|qp| qp.lqpn).collect::<Vec<_>>(),
        [17, 18, 19]
    );
    let first = &dump.items[0];
    assert_eq!((first.qp_type, first.state), (Some(QpType::RC), Some(QpState(3))));
    assert_eq!(first.owner, Some(Owner::Process(231)));
    assert_eq!(
        (first.rqpn, first.port, first.rq_psn),
        (None, None, None),
        "what was not sent is not 0"
    );
    assert!(!dump.interrupted);
}

#[test]
fn a_qp_listed_twice_is_kept_once_with_its_last_reading() {
    let mut nldev = Nldev::new(FakeKernel(|request: &Message<'_>| {
        vec![
            qps(request, 0, &[(17, 1), (18, 2)]),
            qps(request, 0, &[(17, 9)]),
            done(request, 0),
        ]
    }));
    let dump = nldev.qps(0).unwrap();
    let seen: Vec<_> = dump.items.iter().map(|qp| (qp.lqpn, qp.sq_psn)).collect();
    assert_eq!(seen, [(17, Some(9)), (18, Some(2))]);
}

#[test]
fn the_gsi_qps_of_two_ports_are_two_qps() {
    let gsi = |table: MessageWriter, port: u32| {
        table.nest(RES_QP_ENTRY, |entry| {
            entry.u32(RES_LQPN, 1).u32(PORT_INDEX, port).u8(RES_TYPE, 1)
        })
    };
    let mut nldev = Nldev::new(FakeKernel(|request: &Message<'_>| {
        vec![
            reply(request, F_MULTI)
                .nest(RES_QP, |table| gsi(gsi(table, 1), 2))
                .finish(),
            done(request, 0),
        ]
    }));
    assert_eq!(nldev.qps(0).unwrap().items.len(), 2);
}

#[test]
fn an_interrupted_dump_is_asked_for_again() {
    let mut asked = 0;
    let mut nldev = Nldev::new(FakeKernel(|request: &Message<'_>| {
        asked += 1;
        let flag = if asked == 1 { F_DUMP_INTR } else { 0 };
        vec![qps(request, flag, &[(asked, 0)]), done(request, 0)]
    }));
    let dump = nldev.qps(0).unwrap();
    assert_eq!(
        (dump.items[0].lqpn, dump.items.len(), dump.interrupted),
        (2, 1, false)
    );
}

#[test]
fn a_dump_interrupted_twice_comes_with_its_flag() {
    let mut asked = 0;
    let mut nldev = Nldev::new(FakeKernel(|request: &Message<'_>| {
        asked += 1;
        vec![qps(request, F_DUMP_INTR, &[(17, 0)]), done(request, 0)]
    }));
    let dump = nldev.qps(0).unwrap();
    assert!(dump.interrupted);
    assert_eq!(dump.whole(), Err(NetlinkError::Interrupted));
    assert_eq!(asked, 2);
}

#[test]
fn answers_to_other_sockets_are_not_taken_for_ours() {
    let mut nldev = Nldev::new(FakeKernel(|request: &Message<'_>| {
        let late = Message {
            seq: request.seq.wrapping_sub(1),
            ..*request
        };
        let mut other_socket = qps(request, 0, &[(99, 0)]);
        other_socket[12..16].copy_from_slice(&(PORTID + 1).to_ne_bytes());
        let late_end = done(&late, 0);
        vec![
            qps(&late, 0, &[(98, 0)]),
            late_end,
            other_socket,
            qps(request, 0, &[(17, 0)]),
            done(request, 0),
        ]
    }));
    let dump = nldev.qps(0).unwrap();
    assert_eq!(dump.items.iter().map(|qp| qp.lqpn).collect::<Vec<_>>(), [17]);
}

#[test]
fn a_refusal_carries_errno_and_the_kernels_words() {
    for capped in [true, false] {
        let mut nldev = Nldev::new(FakeKernel(|request: &Message<'_>| {
            vec![error(request, 22, Some("Device is busy\u{1b}"), capped)]
        }));
        let message = Some(Name::from("Device is busy\u{1b}"));
        assert_eq!(nldev.summary(0), Err(NetlinkError::Kernel { errno: 22, message }));
    }
}

#[test]
fn a_dump_that_ends_with_an_error_is_an_error() {
    let mut nldev = Nldev::new(FakeKernel(|request: &Message<'_>| {
        vec![qps(request, 0, &[(17, 0)]), done(request, -19)]
    }));
    assert_eq!(
        nldev.qps(0),
        Err(NetlinkError::Kernel {
            errno: 19,
            message: None
        })
    );
}

#[test]
fn an_acknowledgement_ends_an_order_and_never_a_request_for_a_record() {
    let ack = |request: &Message<'_>| vec![error(request, 0, None, true)];
    assert_eq!(Nldev::new(FakeKernel(ack)).del_link(3), Ok(()));
    assert_eq!(
        Nldev::new(FakeKernel(ack)).summary(3),
        Err(NetlinkError::EndedEarly)
    );
}

#[test]
fn lost_data_is_reported() {
    let lost = |request: &Message<'_>| {
        vec![
            MessageWriter::new(OVERRUN, 0, request.seq)
                .portid(PORTID)
                .finish(),
        ]
    };
    assert_eq!(Nldev::new(FakeKernel(lost)).qps(0), Err(NetlinkError::Overrun));
}

#[test]
fn a_number_cut_short_is_an_error_not_a_zero() {
    let mut nldev = Nldev::new(FakeKernel(|request: &Message<'_>| {
        let cut = |table: MessageWriter| table.nest(RES_QP_ENTRY, |entry| entry.bytes(RES_LQPN, &[17, 0]));
        vec![
            reply(request, F_MULTI).nest(RES_QP, cut).finish(),
            done(request, 0),
        ]
    }));
    let wrong = WireError::AttrSize {
        number: RES_LQPN,
        need: 4,
        have: 2,
    };
    assert_eq!(nldev.qps(0), Err(NetlinkError::Wire(wrong)));
}

#[test]
fn a_qp_without_number_is_an_error() {
    let mut nldev = Nldev::new(FakeKernel(|request: &Message<'_>| {
        let bare = |table: MessageWriter| table.nest(RES_QP_ENTRY, |entry| entry.u8(RES_STATE, 3));
        vec![
            reply(request, F_MULTI).nest(RES_QP, bare).finish(),
            done(request, 0),
        ]
    }));
    let missing = WireError::Missing {
        record: "QP",
        number: RES_LQPN,
    };
    assert_eq!(nldev.qps(0), Err(NetlinkError::Wire(missing)));
}

#[test]
fn pid_0_is_no_owner() {
    let mut nldev = Nldev::new(FakeKernel(|request: &Message<'_>| {
        let orphan =
            |table: MessageWriter| table.nest(RES_QP_ENTRY, |entry| entry.u32(RES_LQPN, 5).u32(RES_PID, 0));
        vec![
            reply(request, F_MULTI).nest(RES_QP, orphan).finish(),
            done(request, 0),
        ]
    }));
    assert_eq!(nldev.qps(0).unwrap().items[0].owner, None);
}

#[test]
fn what_firmware_has_of_a_queue_pair_is_asked_for_by_port_and_number() {
    let mut asked = Vec::new();
    let mut ask = |answer: fn(&Message<'_>) -> Vec<u8>| {
        let mut kernel = |request: &Message<'_>| {
            let attrs = Attrs::new(request.payload).flatten();
            let numbers = attrs
                .map(|attr| (attr.number, attr.u32().unwrap()))
                .collect::<Vec<_>>();
            asked.push((request.kind, request.flags, numbers));
            vec![answer(request)]
        };
        Nldev::new(FakeKernel(&mut kernel)).raw_qp(4, 2, 17)
    };
    let sent = |request: &Message<'_>| {
        reply(request, 0)
            .u32(DEV_INDEX, 4)
            .bytes(RES_RAW, &[1, 2, 3])
            .finish()
    };
    assert_eq!(ask(sent), Ok(vec![1, 2, 3]));
    let without = |request: &Message<'_>| reply(request, 0).u32(DEV_INDEX, 4).finish();
    assert_eq!(ask(without), Ok(vec![]));
    // As mlx5 of a queue pair whose dump would have gone on: `err` is the answer "there is more", 1.
    assert_eq!(ask(|request| error(request, -1, None, false)), Ok(vec![]));
    let denied = ask(|request| error(request, libc::EPERM, None, false));
    assert_eq!(denied.unwrap_err().errno(), Some(libc::EPERM));
    let numbers = vec![(DEV_INDEX, 4), (PORT_INDEX, 2), (RES_LQPN, 17)];
    let one = (message_type(cmd::RES_QP_GET_RAW), F_REQUEST, numbers);
    assert_eq!(asked, vec![one; 4]);
}
