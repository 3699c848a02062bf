//! What the user asked to see, with one meaning for events and for rows in every mode.

use super::{
    event::{Event, EventKind},
    findings::Finding,
    judgement::Judgement,
    snapshot::{Facts, ProcessRow, QpRow, Snapshot},
};

/// Bytes of `comm` that the kernel keeps: `TASK_COMM_LEN` without its NUL.
const COMM_MAX: usize = rdmatop_common::event::COMM_LEN - 1;

/// A filter; every part that is set must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Owner's process id.
    pub pid: Option<u32>,
    /// Owner's name, in full. A kernel consumer matches with and without its brackets; a name longer than the
    /// kernel keeps matches the part that it keeps.
    pub comm: Option<String>,
    /// Device name, whole.
    pub device: Option<String>,
    /// QP number. Has no meaning for rows that are no QPs.
    pub qpn: Option<u32>,
    /// Kinds of event; empty is all. Has no meaning for rows.
    pub events: Vec<EventKind>,
}

impl Filter {
    /// True when nothing is filtered out.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether findings are shown.
    pub fn shows_findings(&self) -> bool {
        self.events.is_empty() || self.events.iter().any(|kind| kind.is_finding())
    }

    /// Whether to show an event. Losses always pass: a user who sees only a part must learn that it may have
    /// gaps.
    pub fn matches_event(&self, event: &Event) -> bool {
        if event.event == EventKind::Lost {
            return true;
        }
        (self.events.is_empty() || self.events.contains(&event.event))
            && (self.qpn.is_none() || self.qpn == event.qpn)
            && self.owner(event.pid, event.comm.as_deref())
            && self.device(event.device.as_deref())
    }

    /// Whether to show a finding that this snapshot raised or cleared, as [`Filter::apply`] does with those
    /// of a snapshot. One that is cleared may be of a process that is gone.
    pub fn matches_change(&self, event: &Event, snapshot: &Snapshot) -> bool {
        let Some(finding) = &event.finding else {
            return false;
        };
        if !self.events.is_empty() && !self.events.contains(&event.event) {
            return false;
        }
        let rows = || snapshot.processes.iter();
        let gone = !rows().any(|row| finding.concerns_process(row.uid));
        if finding.about.process.is_some() && gone {
            return self.owner(finding.pid, finding.comm.as_deref())
                && self.device(finding.device.as_deref());
        }
        self.matches_finding(finding, rows().filter(|row| self.matches_process(row)))
    }

    /// Whether to show a QP.
    pub fn matches_qp(&self, row: &QpRow) -> bool {
        self.owner(row.pid, row.comm.as_deref())
            && self.device(Some(&row.device))
            && self.qpn.is_none_or(|qpn| qpn == row.qpn)
    }

    /// Whether to show a process. With a device filter: when it has QPs on that device.
    pub fn matches_process(&self, row: &ProcessRow) -> bool {
        let is_on = |device: &String| row.devices.iter().any(|name| **name == **device);
        self.owner(row.pid, Some(&row.comm)) && self.device.as_ref().is_none_or(is_on)
    }

    /// The part of a snapshot that matches, with a judgement of its own. Health stays complete.
    ///
    /// Verb rows have no device: with a device filter the rows of the processes that stay do.
    pub fn apply(&self, snapshot: &Snapshot) -> Snapshot {
        let processes = keep(&snapshot.processes, |row| self.matches_process(row));
        let is_known = |pid: u32| processes.iter().any(|process| process.pid == Some(pid));
        let verbs = keep(&snapshot.verbs, |row| {
            self.owner(Some(row.pid), row.comm.as_deref()) && (self.device.is_none() || is_known(row.pid))
        });
        let findings = keep(&snapshot.findings, |found| {
            self.matches_finding(found, processes.iter())
        });
        let facts = Facts {
            devices: keep(&snapshot.devices, |row| self.device(Some(&row.name))),
            ports: keep(&snapshot.ports, |row| self.device(Some(&row.device))),
            processes,
            qps: keep(&snapshot.qps, |row| self.matches_qp(row)).into(),
            verbs,
            ..snapshot.facts.clone()
        };
        let unexplained = &snapshot.judgement.unexplained;
        let unexplained = keep(unexplained, |one| self.device(Some(&one.device)));
        Snapshot {
            judgement: Judgement::of(&facts, unexplained, None),
            facts,
            findings: findings.into(),
            still_looks: snapshot.still_looks.clone(),
        }
    }

    /// Whether a finding concerns one of the processes that match, or a device that they use.
    fn matches_finding<'a>(&self, found: &Finding, mut rows: impl Iterator<Item = &'a ProcessRow>) -> bool {
        if found.about.process.is_some() {
            return rows.any(|row| found.concerns_process(row.uid));
        }
        let whole = self.pid.is_none() && self.comm.is_none();
        found.device.as_deref().is_none_or(|name| {
            let mut used = || rows.any(|row| row.devices.iter().any(|own| &**own == name));
            self.device(Some(name)) && (whole || used())
        })
    }

    fn owner(&self, pid: Option<u32>, comm: Option<&str>) -> bool {
        let is_it = |wanted: &String| comm.is_some_and(|comm| same_comm(wanted, comm));
        (self.pid.is_none() || self.pid == pid) && self.comm.as_ref().is_none_or(is_it)
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        engine::{Engine, EngineConfig},
        input::{DeviceReading, DevicesSample, Input, Now, PortReading, QpReading, QpsSample},
        testkit::{self, full},
    };

    const NOW: Now = Now {
        mono_ns: 1,
        wall_ns: 2,
    };

    /// Two devices; process 231 on `rxe0`, process 240 on `rxe1`, the kernel on both.
    fn snapshot() -> Arc<Snapshot> {
        let mut engine = Engine::new(EngineConfig::default());
        let device = |index: u32| DeviceReading {
            index,
            name: format!("rxe{index}"),
            ports: vec![PortReading {
                number: 1,
                ..PortReading::default()
            }],
            ..DeviceReading::default()
        };
        let devices = DevicesSample {
            mono_ns: 1,
            devices: vec![device(0), device(1)],
            ..DevicesSample::default()
        };
        engine.apply(Input::Devices(Box::new(devices)).at(NOW));
        let qp = |device_index, qpn, pid, kern_name: Option<&str>| QpReading {
            device_index,
            port: Some(1),
            qpn,
            qp_type: None,
            state: None,
            remote_qpn: None,
            sq_psn: None,
            rq_psn: None,
            pid,
            kern_name: kern_name.map(Into::into),
        };
        let qps = QpsSample {
            mono_ns: 1,
            qps: vec![
                qp(0, 1, None, Some("ib_core")),
                qp(1, 1, None, Some("ib_core")),
                qp(0, 17, Some(231), None),
                qp(1, 18, Some(240), None),
            ],
            ..QpsSample::default()
        };
        engine.apply(Input::Qps(Box::new(qps)).at(NOW));
        engine.tick(NOW)
    }

    fn event(kind: EventKind, pid: Option<u32>, comm: &str, device: &str) -> Event {
        Event {
            pid,
            comm: Some(comm.into()),
            device: Some(device.into()),
            ..Event::new(kind, 0, 0)
        }
    }

    /// A filter of names and numbers of this snapshot, and of others.
    fn filters(snapshot: &Snapshot) -> impl Strategy<Value = Filter> + use<> {
        let or_none = |names: Vec<String>| prop::option::of(prop::sample::select(names));
        let processes = || snapshot.processes.iter();
        let pids: Vec<u32> = processes().filter_map(|row| row.pid).chain([1]).collect();
        let comms = processes()
            .map(|row| row.comm.to_string())
            .chain(["x".to_owned()]);
        let devices = snapshot.devices.iter().map(|row| row.name.to_string());
        let qpns: Vec<u32> = snapshot.qps.iter().map(|row| row.qpn).chain([1]).collect();
        (
            prop::option::of(prop::sample::select(pids)),
            or_none(comms.collect()),
            or_none(devices.chain(["x".to_owned()]).collect()),
            prop::option::of(prop::sample::select(qpns)),
        )
            .prop_map(|(pid, comm, device, qpn)| Filter {
                pid,
                comm,
                device,
                qpn,
                events: Vec::new(),
            })
    }

    fn snapshots() -> Vec<Snapshot> {
        let all = [
            full::snapshot(),
            testkit::busy(),
            testkit::troubled(),
            testkit::degraded(),
            testkit::hostile(),
        ];
        all.into_iter().map(|snapshot| snapshot.judged(None)).collect()
    }

    proptest! {
        #[test]
        fn a_filter_hides_rows_and_changes_none(
            (whole, filter) in prop::sample::select(snapshots()).prop_flat_map(|s| (filters(&s), Just(s)).prop_map(|(f, s)| (s, f)))
        ) {
            let kept = serde_json::to_value(filter.apply(&whole)).unwrap();
            let whole = serde_json::to_value(&whole).unwrap();
            for table in ["devices", "ports", "processes", "qps", "verbs", "findings"] {
                let all = whole[table].as_array().unwrap();
                let rows = kept[table].as_array().unwrap();
                // In their order, each as it is without the filter.
                let mut rest = all.iter();
                for row in rows {
                    prop_assert!(rest.any(|one| one == row), "{table}: {row}");
                }
            }
            for key in ["health", "host", "time", "interval_ns"] {
                prop_assert_eq!(&kept[key], &whole[key]);
            }
        }
    }

    #[test]
    fn no_filter_keeps_everything() {
        let snapshot = snapshot();
        let kept = Filter::default().apply(&snapshot);
        let json = |snapshot: &Snapshot| serde_json::to_value(snapshot).unwrap();
        assert_eq!(json(&kept), json(&snapshot));
        assert!(Filter::default().is_empty());
    }

    #[test]
    fn rows_and_events_are_filtered_alike() {
        let snapshot = snapshot();
        let filters = [
            Filter {
                pid: Some(231),
                ..Filter::default()
            },
            Filter {
                comm: Some("ib_core".into()),
                ..Filter::default()
            },
            Filter {
                device: Some("rxe1".into()),
                ..Filter::default()
            },
        ];
        for (filter, expected) in filters.iter().zip([vec![17], vec![1, 1], vec![1, 18]]) {
            let kept = filter.apply(&snapshot);
            assert_eq!(
                kept.qps.iter().map(|row| row.qpn).collect::<Vec<_>>(),
                expected,
                "{filter:?}"
            );
            for row in &snapshot.qps {
                let event = event(
                    EventKind::QpModify,
                    row.pid,
                    row.comm.as_deref().unwrap(),
                    &row.device,
                );
                assert_eq!(
                    filter.matches_event(&event),
                    filter.matches_qp(row),
                    "{filter:?} {row:?}"
                );
            }
        }
    }

    #[test]
    fn a_qp_number_filters_events_and_qps() {
        let filter = Filter {
            qpn: Some(17),
            ..Filter::default()
        };
        let kept = filter.apply(&snapshot());
        assert_eq!(kept.qps.iter().map(|row| row.qpn).collect::<Vec<_>>(), [17]);
        assert_eq!(kept.processes.len(), 3);
        let on = |qpn| Event {
            qpn,
            ..event(EventKind::WrPost, Some(1), "a", "rxe0")
        };
        let matches = |qpn| filter.matches_event(&on(qpn));
        assert!(matches(Some(17)) && !matches(Some(18)) && !matches(None));
    }

    #[test]
    fn a_device_filter_keeps_its_ports_and_the_processes_on_it() {
        let filter = Filter {
            device: Some("rxe1".into()),
            ..Filter::default()
        };
        let kept = filter.apply(&snapshot());
        assert_eq!(kept.devices.len(), 1);
        assert_eq!(
            kept.ports.iter().map(|row| &*row.device).collect::<Vec<_>>(),
            ["rxe1"]
        );
        assert_eq!(
            kept.processes.iter().map(|row| &*row.comm).collect::<Vec<_>>(),
            ["[ib_core]", "#240"]
        );
    }

    #[test]
    fn a_name_is_whole_but_for_brackets_and_what_the_kernel_cut_off() {
        let filter = |comm: &str| Filter {
            comm: Some(comm.into()),
            ..Filter::default()
        };
        let matches = |wanted: &str, comm: &str| {
            filter(wanted).matches_event(&event(EventKind::QpCreate, Some(1), comm, "rxe0"))
        };
        assert!(matches("ib_send_bw", "ib_send_bw"));
        assert!(!matches("ib_send", "ib_send_bw"));
        assert!(matches("nvme_rdma", "[nvme_rdma]"));
        assert!(matches("[nvme_rdma]", "[nvme_rdma]"));
        assert!(matches("all_reduce_perf_mpi", "all_reduce_perf"));
        assert!(!matches("all_reduce_perf", "all_reduce"));
    }

    #[test]
    fn kinds_filter_events_but_a_loss_is_always_shown() {
        let filter = Filter {
            pid: Some(231),
            events: vec![EventKind::QpCreate],
            ..Filter::default()
        };
        assert!(filter.matches_event(&event(EventKind::QpCreate, Some(231), "a", "rxe0")));
        assert!(!filter.matches_event(&event(EventKind::QpModify, Some(231), "a", "rxe0")));
        assert!(!filter.matches_event(&event(EventKind::QpCreate, None, "a", "rxe0")));
        assert!(filter.matches_event(&Event::new(EventKind::Lost, 0, 0)));
    }
}
