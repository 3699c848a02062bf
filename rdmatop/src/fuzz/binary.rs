//! Readers of the kernel's data: netlink, records of the ring buffer, BTF.
use std::sync::Arc;

use super::assert_safe;
use rdmatop_loader::offsets::btf::Btf;
use rdmatop_model::engine::{Engine, EngineConfig};
use rdmatop_model::event::Event;
use rdmatop_model::fields::{EVENT, Value};
use rdmatop_model::input::{Input, Now};
use rdmatop_model::snapshot::Snapshot;
use rdmatop_sources::netlink::attr;
use rdmatop_sources::netlink::client::Nldev;
use rdmatop_sources::netlink::error::NetlinkError;
use rdmatop_sources::netlink::record::{Entry, Qp, QpContext};
use rdmatop_sources::netlink::sampler::{self, Want};
use rdmatop_sources::netlink::transport::{Datagram, Progress, Sink, Transport};
use rdmatop_sources::netlink::wire::{Attrs, MessageWriter, Messages, Status};

/// Port id of the made-up socket.
const PORTID: u32 = 77;

/// A kernel that answers every request with the same bytes, with matching sequence number and port id.
#[derive(Debug)]
struct Kernel<'a>(&'a [u8]);

impl Transport for Kernel<'_> {
    fn exchange(&mut self, request: &[u8], sink: &mut Sink<'_>) -> Result<(), NetlinkError> {
        let mut bytes = self.0.to_vec();
        let mut at = 0;
        while let Some(header) = bytes.get_mut(at..at + 16) {
            let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
            header[8..12].copy_from_slice(&request[8..12]);
            header[12..16].copy_from_slice(&PORTID.to_ne_bytes());
            at = at.saturating_add(length.max(16).next_multiple_of(4));
        }
        let datagram = Datagram {
            portid: PORTID,
            bytes: &bytes,
        };
        match sink(datagram)? {
            Progress::Complete => Ok(()),
            Progress::More => Err(NetlinkError::EndedEarly),
        }
    }
}

/// Messages of RDMA netlink.
pub(super) fn netlink(raw: &[u8]) {
    for message in Messages::new(raw).flatten() {
        let _ = (Status::from_error(&message), Status::from_done(&message));
        written_again(message.payload);
        for table in Attrs::new(message.payload).flatten() {
            for entry in table.nest().flatten().filter(|entry| entry.number == Qp::ENTRY) {
                qp(&entry.nest());
            }
        }
    }
    context(raw);
    // One request after another, each with these bytes as its answer.
    let mut nldev = Nldev::new(Kernel(raw));
    for device in nldev.devices().unwrap_or_default().items {
        let sample = sampler::sample(
            &mut nldev,
            device,
            Want {
                ports: true,
                mrs: true,
            },
            None,
        );
        for error in sample.errors() {
            assert_safe(&error.to_string());
        }
    }
    let errors = [
        nldev.netns_mode().err(),
        nldev.named_summaries().err(),
        nldev.ports(0).err(),
        nldev.qps(0).err(),
        nldev.mrs(0).err(),
        nldev.pds(0).err(),
        nldev.ctxs(0).err(),
        nldev.cm_ids(0).err(),
        nldev.each_counter(0, 1, &mut |_, _| {}).err(),
        nldev.counter_sets(0).err(),
        nldev.binding(0, 1).err(),
        nldev.optional_counters(0, 1).err(),
        nldev.raw_qp(0, 1, 17).map(|raw| context(&raw)).err(),
    ];
    for error in errors.into_iter().flatten() {
        assert_safe(&error.to_string());
    }
}

/// A context is in bytes that a firmware may send, alone and in a message.
fn context(raw: &[u8]) {
    match QpContext::decode(raw) {
        Ok(context) => {
            let gid = context.remote_gid.0;
            assert!(raw.windows(16).any(|bytes| bytes == gid), "{context:?}");
            assert!(
                context.state.0 <= 6 && context.remote_qpn < 1 << 24,
                "{context:?}"
            );
            assert!(
                raw.len() >= 16 + 256 + 4 && raw.len().is_multiple_of(4),
                "{}",
                raw.len()
            );
        }
        Err(why) => assert!(!why.is_empty()),
    }
}

/// Attributes are written as they were read.
fn written_again(payload: &[u8]) {
    let Ok(attrs) = Attrs::new(payload).collect::<Result<Vec<_>, _>>() else {
        return;
    };
    let writer = MessageWriter::new(16, 0, 1);
    let written = attrs
        .iter()
        .fold(writer, |writer, attr| writer.bytes(attr.number, attr.payload));
    let bytes = written.finish();
    let again: Vec<_> = Messages::new(&bytes)
        .flatten()
        .flat_map(|message| Attrs::new(message.payload).flatten())
        .collect();
    assert_eq!(again, attrs);
}

/// No value comes from an attribute that was not sent.
fn qp(entry: &Attrs<'_>) {
    let Ok(qp) = Qp::decode(entry.clone()) else { return };
    let sent = |number| entry.clone().flatten().any(|attr| attr.number == number);
    for (known, number) in [
        (true, attr::RES_LQPN),
        (qp.port.is_some(), attr::PORT_INDEX),
        (qp.qp_type.is_some(), attr::RES_TYPE),
        (qp.state.is_some(), attr::RES_STATE),
        (qp.rqpn.is_some(), attr::RES_RQPN),
        (qp.rq_psn.is_some(), attr::RES_RQ_PSN),
        (qp.sq_psn.is_some(), attr::RES_SQ_PSN),
    ] {
        assert!(!known || sent(number), "{qp:?} without attribute {number}");
    }
    assert!(
        qp.owner.is_none() || sent(attr::RES_PID) || sent(attr::RES_KERN_NAME),
        "{qp:?}"
    );
}

/// Records of both ring buffers, each after two bytes with its length, through the engine to the printed
/// output.
pub(super) fn event(raw: &[u8]) {
    let mut engine = Engine::new(EngineConfig::default());
    let now = Now {
        mono_ns: 1 << 40,
        wall_ns: 1 << 60,
    };
    let (mut rest, mut records, mut requests) = (raw, Vec::new(), Vec::new());
    while let Some((length, after)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(after.len());
        let (bytes, after) = after.split_at(length);
        rest = after;
        match rdmatop_common::event::decode(bytes) {
            Ok(record) => records.push(record),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        // Nothing in its bytes says which ring buffer a record is from: each reader gets all of them.
        match rdmatop_common::wr::decode(bytes) {
            Ok(request) => requests.push(request),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    let mut events = engine.apply(Input::Records(records).at(now));
    events.extend(engine.apply(Input::WorkRequests(requests).at(now)));
    let snapshot = engine.tick(now);
    for event in events {
        shown(&event, &snapshot);
    }
    let written = rdmatop_views::json::snapshot(&snapshot);
    assert!(serde_json::from_str::<serde_json::Value>(&written).is_ok());
}

/// What views make of an event is safe to print: its line, its JSON, its fields on the screen.
fn shown(event: &Event, snapshot: &Snapshot) {
    let (mut line, mut json) = (Vec::new(), Vec::new());
    rdmatop_views::line::event::line(&mut line, event);
    assert_safe(&String::from_utf8_lossy(&line));
    rdmatop_views::json::event(&mut json, event);
    let json = String::from_utf8_lossy(&json);
    assert_safe(json.trim_end_matches('\n'));
    assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok(), "{json}");
    for field in EVENT {
        if let Value::Text(text) | Value::State(_, text) = (field.get)(event, snapshot) {
            assert_safe(&text);
        }
    }
}

/// vmlinux's BTF and a module's: the first two bytes give the length of the first.
pub(super) fn btf(raw: &[u8]) {
    let Some((split, raw)) = raw.split_first_chunk::<2>() else {
        return;
    };
    let split = usize::from(u16::from_le_bytes(*split)).min(raw.len());
    let (base, module) = raw.split_at(split);
    let wanted = [
        ("outer", "x"),
        ("outer", "inner_member"),
        ("holder", "nested.y"),
        ("module_struct", "base_member.y"),
    ];
    let mut of_base = None;
    if let Ok(base) = Btf::parse(base.to_vec(), None) {
        assert!(base.offsets(&wanted).len() <= wanted.len());
        let _ = base.function("module_function");
        of_base = Some(Arc::new(base));
    }
    if let Ok(module) = Btf::parse(module.to_vec(), of_base) {
        assert!(module.offsets(&wanted).len() <= wanted.len());
        let _ = module.function("module_function");
    }
}
