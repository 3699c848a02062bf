//! Orders and answers about counters that QPs are bound to, against what rdma(8) of iproute2 6.1 and Linux
//! 6.12 were seen to exchange (`strace -e trace=sendto,recvmsg -xx rdma statistic ...`, device index 0, port
//! 1).
use proptest::prelude::*;

use super::super::client::Nldev;
use super::super::counting::{set_auto, set_optional, unbind};
use super::super::record::{CounterSet, Entry as _, Mask, Mode, Owner, decode_binding, decode_optional};
use super::super::request::Request;
use super::super::wire::{Attrs, F_MULTI, Message, MessageWriter};
use super::{FakeKernel, done, reply};
use rdmatop_base::ib::QpType;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<char> = hex.chars().filter(|c| !c.is_whitespace()).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap())
        .collect()
}

/// What rdma sent: the header with its flags, without the sequence number that it had; then the attributes.
fn sent(kind: u16, attributes: &str) -> Vec<u8> {
    let attributes = bytes(attributes);
    let mut message = Vec::new();
    message.extend(u32::try_from(16 + attributes.len()).unwrap().to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    // NLM_F_REQUEST | NLM_F_ACK
    message.extend(5_u16.to_ne_bytes());
    message.extend(9_u32.to_ne_bytes());
    message.extend(0_u32.to_ne_bytes());
    message.extend(attributes);
    message
}

#[cfg(target_endian = "little")]
#[test]
fn orders_are_those_of_rdma_byte_for_byte() {
    let same = |ours: &Request, kind, theirs| assert_eq!(ours.encode(9), sent(kind, theirs), "{ours:?}");
    // rdma statistic qp set link rxe0/1 auto pid on
    same(
        &set_auto(0, 1, Mask::PID, false),
        0x1410,
        "0800010000000000 0800030001000000 08004b0013000000 08004a0001000000 08004c0002000000",
    );
    // rdma statistic qp set link rxe0/1 auto off
    same(
        &set_auto(0, 1, Mask::default(), false),
        0x1410,
        "0800010000000000 0800030001000000 08004b0013000000 08004a0001000000 08004c0000000000",
    );
    // rdma statistic unset link rxe0/1 optional-counters
    same(
        &set_optional(0, 1, &[]),
        0x1410,
        "0800010000000000 0800030001000000 04005080",
    );
    // rdma statistic set link mlx5_0/1 optional-counters cc_rx_ce_pkts,rdma_tx_bytes (device 1)
    same(
        &set_optional(1, 1, &[1, 2]),
        0x1410,
        "0800010001000000 0800030001000000 14005080 08005e0001000000 08005e0002000000",
    );
    // rdma statistic qp unbind link rxe0/1 cntn 2 lqpn 18
    same(
        &unbind(0, 1, 2, 18),
        0x1412,
        "08004a0002000000 08004b0013000000 0800010000000000 0800030001000000 08004f0002000000 0800150012000000",
    );
}

#[cfg(target_endian = "little")]
#[test]
fn the_mode_that_linux_answered_is_read() {
    let read = |hex: &str| decode_binding(&Attrs::new(&bytes(hex))).unwrap();
    // Nothing set.
    let none = read("0800010000000000 09000200727865300000000008000300010000 0008004a0000000000");
    assert_eq!(none.mode, Mode::None);
    // After `auto off`, while QPs are bound.
    let left = read("0800010000000000 09000200727865300000000008000300010000 0008004a0002000000");
    assert_eq!(left.mode, Mode::Manual);
    let auto = MessageWriter::new(0, 0, 0)
        .u32(74, 1)
        .u32(76, 3)
        .u8(104, 1)
        .finish()
        .split_off(16);
    let auto = decode_binding(&Attrs::new(&auto)).unwrap();
    assert_eq!((auto.mode, auto.mask), (Mode::Auto, Mask(3)));
}

#[cfg(target_endian = "little")]
#[test]
fn the_counter_that_linux_answered_is_read() {
    // Of `rdma statistic qp show`, the beginning of the first counter.
    let entry = bytes(
        "0800030001000000 08004f0001000000 08004a0001000000 08001c00f9000000 1000138 00c001480 0800150011000000 \
         44005080 20005180 0e00520073656e745f706b7473000000 0c005300afdd000000000000 20005180 \
         0e005200726376645f706b7473000000 0c0053000000000000000000",
    );
    let set = CounterSet::decode(Attrs::new(&entry)).unwrap();
    assert_eq!((set.id, set.port, set.mode), (1, 1, Some(Mode::Auto)));
    assert_eq!(set.owner, Some(Owner::Process(249)));
    assert_eq!(set.mask(), Mask::PID);
    assert_eq!(set.qps, [17]);
    let counters: Vec<_> = set
        .counters
        .iter()
        .map(|(name, value)| (&**name, *value))
        .collect();
    assert_eq!(counters, [("sent_pkts", 0xddaf), ("rcvd_pkts", 0)]);
}

fn a_set(table: MessageWriter, id: u32, qps: &[u32], value: u64) -> MessageWriter {
    table.nest(78, |entry| {
        let entry = entry.u32(3, 1).u32(79, id).u32(74, 1).u32(28, 231).u8(26, 2);
        let entry = entry.nest(19, |table| {
            qps.iter()
                .fold(table, |table, qp| table.nest(20, |entry| entry.u32(21, *qp)))
        });
        entry.nest(80, |table| {
            table.nest(81, |entry| entry.string(82, b"rdma_tx_bytes").u64(83, value))
        })
    })
}

#[test]
fn a_dump_lists_each_counter_once_with_all_of_its_qps() {
    let mut nldev = Nldev::new(FakeKernel(|request: &Message<'_>| {
        let table = |sets: &[(u32, u64)]| {
            let message = reply(request, F_MULTI).u32(1, 0).string(2, b"mlx5_0");
            message
                .nest(77, |table| {
                    sets.iter()
                        .fold(table, |table, (id, value)| a_set(table, *id, &[17, 19], *value))
                })
                .finish()
        };
        vec![table(&[(1, 10), (2, 20)]), table(&[(2, 25)]), done(request, 0)]
    }));
    let sets = nldev.counter_sets(0).unwrap().items;
    let seen: Vec<_> = sets.iter().map(|set| (set.id, set.counters[0].1)).collect();
    assert_eq!(seen, [(1, 10), (2, 25)]);
    assert_eq!(sets[0].qps, [17, 19]);
    assert_eq!(sets[0].qp_type, Some(QpType::RC));
    assert_eq!(sets[0].mask().words(), "type,pid");
}

#[test]
fn only_optional_counters_are_listed_as_such() {
    let message = MessageWriter::new(0, 0, 0).nest(80, |table| {
        let table = table.nest(81, |entry| entry.string(82, b"out_of_buffer").u32(94, 4));
        let table = table.nest(81, |entry| {
            entry.string(82, b"rdma_tx_bytes").u32(94, 45).u8(95, 0)
        });
        table.nest(81, |entry| {
            entry.string(82, b"cc_rx_ce_pkts").u32(94, 40).u8(95, 1)
        })
    });
    let message = message.finish().split_off(16);
    let optional = decode_optional(&Attrs::new(&message)).unwrap();
    let seen: Vec<_> = optional.iter().map(|c| (&*c.name, c.index, c.on)).collect();
    assert_eq!(seen, [("rdma_tx_bytes", 45, false), ("cc_rx_ce_pkts", 40, true)]);
}

proptest! {
    #[test]
    fn a_counter_cut_or_changed_says_nothing_that_the_whole_does_not(
        id: u32,
        qps in proptest::collection::vec(any::<u32>(), 0..6),
        value: u64,
        cut in 0_usize..400,
        change in proptest::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let whole = a_set(MessageWriter::new(0, 0, 0), id, &qps, value).finish().split_off(20);
        let all = CounterSet::decode(Attrs::new(&whole)).unwrap();
        prop_assert_eq!((all.id, &all.qps, all.counters[0].1), (id, &qps, value));
        let mut part = whole[..cut.min(whole.len())].to_vec();
        if let Ok(set) = CounterSet::decode(Attrs::new(&part)) {
            prop_assert_eq!(set.id, id);
            prop_assert!(set.qps.is_empty() || set.qps == qps);
            prop_assert!(set.counters.is_empty() || set.counters == all.counters);
        }
        if let Some((at, byte)) = change.filter(|_| !part.is_empty()) {
            let at = at.index(part.len());
            part[at] = byte;
            let _ = CounterSet::decode(Attrs::new(&part));
            let _ = decode_binding(&Attrs::new(&part));
            let _ = decode_optional(&Attrs::new(&part));
        }
    }
}
