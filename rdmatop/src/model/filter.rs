//! What the user asked to see. One meaning for events and for rows, in every mode.

use std::sync::Arc;

use super::{
    event::{Event, EventKind},
    snapshot::{ProcessRow, QpRow, Snapshot},
};

/// Bytes of `comm` that the kernel keeps: `TASK_COMM_LEN` without its NUL.
const COMM_MAX: usize = rdmatop_common::event::COMM_LEN - 1;

/// A filter; every part that is set must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Owner's process id.
    pub pid: Option<u32>,
    /// Owner's name, whole. A kernel consumer matches with and without its brackets; a name longer than the
    /// kernel keeps matches what it was cut to.
    pub comm: Option<String>,
    /// Device name, whole.
    pub device: Option<String>,
    /// Kinds of event; empty is all. Has no meaning for rows.
    pub events: Vec<EventKind>,
}

impl Filter {
    /// True when nothing is filtered out.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether to show an event. Losses always pass: who looks at a part must know that it may have holes.
    pub fn matches_event(&self, event: &Event) -> bool {
        if event.event == EventKind::Lost {
            return true;
        }
        (self.events.is_empty() || self.events.contains(&event.event))
            && self.owner(event.pid, event.comm.as_deref())
            && self.device(event.device.as_deref())
    }

    /// Whether to show a QP.
    pub fn matches_qp(&self, row: &QpRow) -> bool {
        self.owner(row.pid, row.comm.as_deref()) && self.device(Some(&row.device))
    }

    /// Whether to show a process. With a device filter: when it has QPs on that device.
    pub fn matches_process(&self, row: &ProcessRow) -> bool {
        self.owner(row.pid, Some(&row.comm))
            && self
                .device
                .as_ref()
                .is_none_or(|device| row.devices.iter().any(|name| **name == **device))
    }

    /// The part of a snapshot that matches. Health stays whole.
    ///
    /// Verb rows know no device: with a device filter those stay whose process stays.
    pub fn apply(&self, snapshot: &Snapshot) -> Snapshot {
        let mut kept = Snapshot {
            schema: snapshot.schema,
            time: snapshot.time,
            mono_ns: snapshot.mono_ns,
            interval_ns: snapshot.interval_ns,
            host: snapshot.host.clone(),
            health: snapshot.health.clone(),
            devices: keep(&snapshot.devices, |row| self.device(Some(&row.name))),
            ports: keep(&snapshot.ports, |row| self.device(Some(&row.device))),
            processes: keep(&snapshot.processes, |row| self.matches_process(row)),
            qps: snapshot
                .qps
                .iter()
                .filter(|row| self.matches_qp(row))
                .map(Arc::clone)
                .collect(),
            verbs: Vec::new(),
        };
        kept.verbs = keep(&snapshot.verbs, |row| {
            self.owner(Some(row.pid), row.comm.as_deref())
                && (self.device.is_none()
                    || kept.processes.iter().any(|process| process.pid == Some(row.pid)))
        });
        kept
    }

    fn owner(&self, pid: Option<u32>, comm: Option<&str>) -> bool {
        (self.pid.is_none() || self.pid == pid)
            && self
                .comm
                .as_ref()
                .is_none_or(|wanted| comm.is_some_and(|comm| same_comm(wanted, comm)))
    }

    fn device(&self, name: Option<&str>) -> bool {
        self.device.is_none() || self.device.as_deref() == name
    }
}

fn keep<T: Clone>(rows: &[T], matches: impl Fn(&T) -> bool) -> Vec<T> {
    rows.iter().filter(|row| matches(row)).cloned().collect()
}

fn same_comm(wanted: &str, comm: &str) -> bool {
    wanted == comm
        || comm.strip_prefix('[').and_then(|name| name.strip_suffix(']')) == Some(wanted)
        || (wanted.len() > COMM_MAX && wanted.as_bytes().get(..COMM_MAX) == Some(comm.as_bytes()))
}
