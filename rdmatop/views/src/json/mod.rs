//! JSON: schema 1, docs/json.md. The model's types are the schema; this module only writes them.

use serde::Serialize;

use rdmatop_model::cause::Cause;
use rdmatop_model::event::Event;
use rdmatop_model::input::{EbpfState, ProbeVerdict};
use rdmatop_model::snapshot::{Health, SCHEMA, Snapshot};

#[cfg(test)]
mod document_tests;

/// Writes the snapshot as one line of JSON.
pub fn snapshot(snapshot: &Snapshot) -> String {
    line(snapshot)
}

/// Appends one event as one line.
pub fn event(out: &mut Vec<u8>, event: &Event) {
    // Writing into memory cannot fail, and an event is always JSON.
    let _ = serde_json::to_writer(&mut *out, event);
    out.push(b'\n');
}

/// The output of `rdmatop probes --json`: one line.
pub fn probes(health: &Health) -> String {
    line(&ProbesReport {
        schema: SCHEMA,
        ebpf: &health.ebpf,
        probes: &health.probes,
        notes: &health.notes,
    })
}

#[derive(Serialize)]
struct ProbesReport<'a> {
    schema: u32,
    ebpf: &'a EbpfState,
    probes: &'a [ProbeVerdict],
    notes: &'a [Cause],
}

/// serde_json writes NaN and the infinities as null, which means "unknown" here, and escapes every control
/// character, so an object is always one line. No type of a document refuses to be written.
pub(crate) fn line(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rdmatop_model::event::{Event, EventKind};
    use rdmatop_model::testkit::full;
    use rdmatop_model::value::{Counter, Source};

    #[test]
    fn every_kind_of_event_is_one_object_on_one_line() {
        let mut out = Vec::new();
        for e in full::events() {
            event(&mut out, &e);
        }
        insta::assert_snapshot!(String::from_utf8(out).unwrap());
    }

    #[test]
    fn the_snapshot_and_the_probes_have_the_shape_of_schema_1() {
        let full = full::snapshot();
        insta::assert_snapshot!(serde_json::to_string_pretty(&full).unwrap());
        insta::assert_snapshot!(probes(&full.health));
    }

    #[test]
    fn an_event_of_which_nothing_is_known_still_has_its_six_fields() {
        let mut out = Vec::new();
        event(&mut out, &Event::new(EventKind::QpCreate, 1, 2));
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "{\"schema\":1,\"ts_ns\":1,\"mono_ns\":2,\"event\":\"qp_create\",\"device\":null,\"qpn\":null,\
             \"pid\":null,\"tid\":null,\"comm\":null,\"rc\":null}\n"
        );
    }

    proptest! {
        #[test]
        fn a_rate_leaves_as_a_number_or_as_null(rate in proptest::num::f64::ANY, total: u64) {
            let mut snapshot = full::snapshot();
            for port in &mut snapshot.ports {
                port.tx_bytes = Some(Counter::whole(total, Some(rate), Source::Sysfs));
            }
            snapshot.health.self_cpu = Some(rate);
            let out = super::snapshot(&snapshot);
            prop_assert_eq!(out.lines().count(), 1);
            let value: serde_json::Value = serde_json::from_str(&out).unwrap();
            let written = &value["ports"][0]["tx_bytes"];
            prop_assert_eq!(written["total"].as_u64(), Some(total));
            prop_assert_eq!(written["rate"].is_null(), !rate.is_finite());
            prop_assert_eq!(value["health"]["self_cpu"].is_null(), !rate.is_finite());
        }
    }
}
