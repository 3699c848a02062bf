//! Cut, mutated and random bytes: no panic, no value that was not sent.
use proptest::prelude::*;

use super::super::client::Nldev;
use super::super::error::NetlinkError;
use super::super::record::{Entry, Qp};
use super::super::reply::Answer;
use super::super::request::{Reply, Request};
use super::super::sample::Dump;
use super::super::sampler::{self, Want};
use super::super::transport::{Datagram, Progress};
use super::super::wire::{Attrs, MESSAGE_HEADER, MessageWriter, Messages};
use super::fixtures::FIXTURES;
use crate::fake::recording::{Exchange, Recording, Replay};

fn exchanges() -> Vec<Exchange> {
    FIXTURES
        .iter()
        .flat_map(|(_, bytes)| Recording::decode(bytes).unwrap().exchanges)
        .collect()
}

/// Asks everything of `recording`, however broken.
fn ask_everything(recording: Recording) {
    let mut nldev = Nldev::new(Replay::new(recording));
    for device in nldev.devices().unwrap_or_default().items {
        let index = device.index;
        let sample = sampler::sample(
            &mut nldev,
            device,
            Want {
                ports: true,
                mrs: true,
            },
            None,
        );
        // Every error is printed too.
        let _ = sample.errors().map(ToString::to_string).collect::<Vec<_>>();
        let _ = (nldev.qps(index), nldev.cm_ids(index));
        let _ = (nldev.pds(index), nldev.ctxs(index));
    }
    let _ = (nldev.netns_mode(), nldev.named_summaries());
    let _ = nldev.each_counter(0, 1, &mut |_, _| {});
}

#[test]
fn an_answer_cut_at_any_length_is_never_taken_for_complete() {
    for exchange in exchanges() {
        let request = Messages::new(&exchange.request).next().unwrap().unwrap();
        let kind = if request.flags & 0x300 == 0x300 {
            Reply::Dump
        } else {
            Reply::One
        };
        let Some(last) = exchange.datagrams.last() else {
            continue;
        };
        for length in 0..last.len() {
            let mut answer = Answer::new(&Request::new(request.kind, kind, 0), request.seq);
            let read = answer.read(
                Datagram {
                    portid: exchange.portid,
                    bytes: &last[..length],
                },
                &mut |_| Ok(()),
            );
            assert!(
                !matches!(read, Ok(Progress::Complete)),
                "{length} of {} bytes: {read:?}",
                last.len()
            );
        }
    }
}

fn qp_entries(payload: &[u8]) -> Vec<Vec<u8>> {
    let tables = Attrs::new(payload)
        .flatten()
        .filter(|attr| attr.number == Qp::TABLE);
    tables
        .flat_map(|table| {
            table
                .nest()
                .flatten()
                .map(|entry| entry.payload.to_vec())
                .collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn a_qp_cut_at_any_length_says_nothing_that_the_whole_does_not() {
    let mut seen = 0;
    for exchange in exchanges() {
        for message in exchange
            .datagrams
            .iter()
            .flat_map(|datagram| Messages::new(datagram))
            .flatten()
        {
            for entry in qp_entries(message.payload) {
                // QP tables of other kinds of record have the same attribute, without a QP type.
                let Ok(whole) = Qp::decode(Attrs::new(&entry)) else {
                    continue;
                };
                seen += 1;
                for length in 0..entry.len() {
                    let Ok(cut) = Qp::decode(Attrs::new(&entry[..length])) else {
                        continue;
                    };
                    assert_eq!(cut.lqpn, whole.lqpn);
                    assert!(cut.state.is_none() || cut.state == whole.state);
                    assert!(cut.qp_type.is_none() || cut.qp_type == whole.qp_type);
                    assert!(cut.rqpn.is_none() || cut.rqpn == whole.rqpn);
                    assert!(cut.sq_psn.is_none() || cut.sq_psn == whole.sq_psn);
                    assert!(cut.rq_psn.is_none() || cut.rq_psn == whole.rq_psn);
                    assert!(cut.owner.is_none() || cut.owner == whole.owner);
                    assert!(cut.rq_psn.is_none() || cut.rq_psn == whole.rq_psn);
                }
            }
        }
    }
    assert!(seen > 80, "only {seen} QPs in the fixtures");
}

#[test]
fn a_request_that_was_not_recorded_ends_early() {
    let mut nldev = Nldev::new(Replay::new(Recording::default()));
    assert_eq!(nldev.devices(), Err(NetlinkError::EndedEarly));
    let _: Result<Dump<Qp>, _> = nldev.qps(0);
}

#[test]
fn a_cut_recording_is_an_error_or_shorter() {
    let (_, bytes) = FIXTURES[0];
    let whole = Recording::decode(bytes).unwrap();
    for length in (0..bytes.len()).step_by(7) {
        if let Some(cut) = Recording::decode(&bytes[..length]) {
            assert!(cut.exchanges.len() <= whole.exchanges.len());
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        for message in Messages::new(&bytes).flatten() {
            for attr in Attrs::new(message.payload).flatten() {
                let _ = (attr.u8(), attr.u32(), attr.u64(), attr.text(), attr.nest().count());
            }
        }
        let _ = Recording::decode(&bytes);
    }

    #[test]
    fn random_attributes_in_a_whole_message_never_panic(
        payload in proptest::collection::vec(any::<u8>(), 0..256), at in any::<prop::sample::Index>(),
    ) {
        let mut all = exchanges();
        let at = at.index(all.len());
        let seq = Messages::new(&all[at].request).next().unwrap().unwrap().seq;
        all[at].datagrams =
            vec![MessageWriter::new(5 << 10, 0, seq).portid(all[at].portid).raw(&payload).finish()];
        ask_everything(Recording { comment: String::new(), exchanges: all });
    }

    #[test]
    fn mutated_answers_never_panic(
        which in any::<prop::sample::Index>(),
        hits in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..40),
    ) {
        let (_, bytes) = FIXTURES[which.index(FIXTURES.len())];
        let mut recording = Recording::decode(bytes).unwrap();
        for (exchange, offset, byte) in hits {
            let at = exchange.index(recording.exchanges.len());
            let Some(datagram) = recording.exchanges[at].datagrams.first_mut() else { continue };
            // After the header: a changed sequence number or port id would only make the message another
            // socket's.
            if datagram.len() > MESSAGE_HEADER {
                let at = MESSAGE_HEADER + offset.index(datagram.len() - MESSAGE_HEADER);
                datagram[at] = byte;
            }
        }
        ask_everything(recording);
    }

    #[test]
    fn what_is_written_is_read_back(
        kind in any::<u16>(), flags in any::<u16>(), seq in any::<u32>(),
        attrs in proptest::collection::vec((0_u16..0x4000, proptest::collection::vec(any::<u8>(), 0..40)), 0..12),
    ) {
        let writer = MessageWriter::new(kind, flags, seq).nest(7, |nest| {
            attrs.iter().fold(nest, |nest, (number, payload)| nest.bytes(*number, payload))
        });
        let bytes = writer.u64(8, u64::MAX).string(9, b"rxe0").finish();
        let message = Messages::new(&bytes).next().unwrap().unwrap();
        prop_assert_eq!((message.kind, message.flags, message.seq, message.portid), (kind, flags, seq, 0));
        let outer: Vec<_> = Attrs::new(message.payload).collect::<Result<_, _>>().unwrap();
        let inner: Vec<_> = outer[0].nest().collect::<Result<_, _>>().unwrap();
        let expected: Vec<_> = attrs.iter().map(|(number, payload)| (*number, &payload[..])).collect();
        prop_assert_eq!(inner.iter().map(|attr| (attr.number, attr.payload)).collect::<Vec<_>>(), expected);
        prop_assert_eq!((outer[1].u64().unwrap(), outer[2].string().unwrap()), (u64::MAX, &b"rxe0"[..]));
    }
}
