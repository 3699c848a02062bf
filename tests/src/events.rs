//! The events of `rdmatop --trace --json`, with queries for tests.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use serde_json::Value;

/// Keys that every event has; null if unknown.
pub const ALWAYS: [&str; 10] = [
    "schema", "ts_ns", "mono_ns", "event", "device", "qpn", "pid", "tid", "comm", "rc",
];
/// Keys that an event may have.
pub const SOMETIMES: [&str; 35] = [
    "port",
    "qp_type",
    "kernel",
    "by_pid",
    "from",
    "to",
    "attr_mask",
    "dest_qpn",
    "dest_gid",
    "path_mtu",
    "sgid_index",
    "timeout",
    "retry_cnt",
    "rnr_retry",
    "async_event",
    "cm_event",
    "status",
    "cm_id",
    "src",
    "dst",
    "wr_id",
    "opcode",
    "signaled",
    "imm",
    "wc_status",
    "dropped",
    "cq_full",
    "bytes",
    "cqe",
    "devx",
    "verb",
    "duration_ns",
    "count",
    "where",
    "qp_uid",
];

/// A list of events in the order printed.
#[derive(Clone, Debug, Default)]
pub struct Events {
    list: Vec<Value>,
}

impl Events {
    /// Parses one event per line.
    pub fn parse(lines: &[String]) -> Result<Self> {
        let list: Result<_> = lines
            .iter()
            .map(|line| serde_json::from_str(line).with_context(|| format!("not JSON: {line:?}")))
            .collect();
        Ok(Self { list: list? })
    }

    /// Adds an event.
    pub fn push(&mut self, event: Value) {
        self.list.push(event);
    }

    /// All events.
    pub fn all(&self) -> &[Value] {
        &self.list
    }

    /// The events of `kind`.
    #[must_use]
    pub fn kind(&self, kind: &str) -> Self {
        self.filter(|event| event["event"] == kind)
    }

    /// The events of the hooks, without findings, which rdmatop makes itself.
    #[must_use]
    pub fn of_hooks(&self) -> Self {
        let finding = |event: &Value| {
            event["event"]
                .as_str()
                .is_some_and(|kind| kind.starts_with("finding_"))
        };
        self.filter(|event| !finding(event))
    }

    /// The events of process `pid`.
    #[must_use]
    pub fn pid(&self, pid: u32) -> Self {
        self.filter(|event| event["pid"] == pid)
    }

    /// The events about QP `qpn`.
    #[must_use]
    pub fn qpn(&self, qpn: u32) -> Self {
        self.filter(|event| event["qpn"] == qpn)
    }

    /// The events for which `keep` is true.
    #[must_use]
    pub fn filter(&self, keep: impl Fn(&Value) -> bool) -> Self {
        Self {
            list: self.list.iter().filter(|event| keep(event)).cloned().collect(),
        }
    }

    /// The number of events.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The distinct values of integer `key`.
    pub fn integers(&self, key: &str) -> BTreeSet<u64> {
        self.list.iter().filter_map(|event| event[key].as_u64()).collect()
    }

    /// The sum of integer `key`; fails if an event lacks it.
    pub fn sum(&self, key: &str) -> Result<u64> {
        self.list
            .iter()
            .map(|event| {
                event[key]
                    .as_u64()
                    .with_context(|| format!("no {key} in {event}"))
            })
            .sum()
    }

    /// The life of a QP in words: `create`, `RESET->INIT`, ..., `destroy`. Modifies that set no state, as
    /// `-R` makes them, are left out.
    pub fn life(&self) -> Vec<String> {
        self.list
            .iter()
            .filter_map(|event| match event["event"].as_str()? {
                "qp_create" => Some("create".into()),
                "qp_destroy" => Some("destroy".into()),
                "qp_modify" if event["to"].is_string() => {
                    let state = |key: &str| event[key].as_str().unwrap_or("?").to_owned();
                    Some(format!("{}->{}", state("from"), state("to")))
                }
                _ => None,
            })
            .collect()
    }

    /// The number of events reported as lost.
    pub fn lost(&self) -> u64 {
        self.kind("lost")
            .list
            .iter()
            .filter_map(|event| event["count"].as_u64())
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events() -> Events {
        Events::parse(
            &[
                r#"{"event":"qp_create","pid":5,"qpn":17}"#,
                r#"{"event":"qp_modify","pid":5,"qpn":17,"from":"RESET","to":"INIT"}"#,
                r#"{"event":"qp_modify","pid":5,"qpn":17,"attr_mask":32768}"#,
                r#"{"event":"qp_modify","pid":5,"qpn":17,"to":"RTR"}"#,
                r#"{"event":"qp_destroy","pid":5,"qpn":17}"#,
                r#"{"event":"lost","count":3}"#,
            ]
            .map(String::from),
        )
        .unwrap()
    }

    #[test]
    fn a_life_shows_unknown_states_as_such() {
        assert_eq!(
            events().qpn(17).life(),
            ["create", "RESET->INIT", "?->RTR", "destroy"]
        );
    }

    #[test]
    fn a_sum_over_a_missing_key_is_an_error() {
        assert!(events().sum("bytes").is_err());
        assert_eq!(events().lost(), 3);
    }
}
