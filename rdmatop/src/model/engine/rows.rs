//! Rows: what the tables look like from outside.

use std::{
    collections::BTreeSet,
    sync::{Arc, LazyLock},
};

use super::{
    Engine,
    devices::Devices,
    names,
    processes::{Process, Processes},
    qp::Qp,
    tally::{Flow, RX_BYTES, TX_BYTES},
};
use crate::model::{
    snapshot::{ProcessRow, QpRow, Traffic},
    value::{Counter, Source},
};

/// What the rows of all QPs share whose traffic cannot be observed.
static UNKNOWN: LazyLock<Arc<Traffic>> = LazyLock::new(Arc::default);

impl Engine {
    /// Rows of all QPs in the order in which they were learnt of. A row in which nothing changed is the old one.
    pub(super) fn qp_rows(&mut self, now_ns: u64, all_changed: bool, fresh: bool) -> Vec<Arc<QpRow>> {
        let renamed_processes = std::mem::take(&mut self.processes.renamed);
        let renamed_devices = std::mem::take(&mut self.renamed_devices);
        let names_changed = !renamed_processes.is_empty() || !renamed_devices.is_empty();
        let mut rows = Vec::with_capacity(self.qps.len());
        for qp in self.qps.iter_mut().filter(|qp| !qp.hidden) {
            // Most of ten thousand QPs are idle: they cost these few comparisons.
            let renamed = names_changed
                && (renamed_devices.contains(&qp.key.device)
                    || qp
                        .owner
                        .process
                        .is_some_and(|uid| renamed_processes.contains(&uid)));
            // An estimate's rate ages without any input.
            if qp.point(now_ns, fresh) || all_changed || renamed || qp.psn.meter.is_some() {
                qp.touch();
            }
            let row = if let Some(row) = &qp.row {
                Arc::clone(row)
            } else {
                let row = Arc::new(qp.build(&self.devices, &self.processes, now_ns, fresh));
                qp.row = Some(Arc::clone(&row));
                row
            };
            rows.push(row);
        }
        rows
    }

    /// Rows of all processes.
    pub(super) fn process_rows(&mut self, now_ns: u64, fresh: bool) -> Vec<ProcessRow> {
        let counts_verbs = self.counts_verbs();
        let devices = &self.devices;
        let mut rows = Vec::new();
        for process in self.processes.iter_mut() {
            if let Some(flow) = &process.flow {
                let (tx, rx) = rates(flow, fresh);
                process.series.push(tx, rx, "bytes");
            }
            rows.push(process.build(devices, counts_verbs, now_ns, fresh));
        }
        rows
    }
}

fn rates(flow: &Flow, fresh: bool) -> (Option<f64>, Option<f64>) {
    (
        flow.counter(TX_BYTES, fresh).rate,
        flow.counter(RX_BYTES, fresh).rate,
    )
}

impl Qp {
    /// Adds a point to the history; true when that changed it.
    fn point(&mut self, now_ns: u64, fresh: bool) -> bool {
        let still = self.flow.as_ref().is_some_and(|flow| !flow.moving) && self.series.is_empty();
        if still || self.ended_ns.is_some() {
            return false;
        }
        match (&self.flow, self.packets(now_ns)) {
            (Some(flow), _) => {
                let (tx, rx) = rates(flow, fresh);
                self.series.push(tx, rx, "bytes")
            }
            (None, Some(packets)) => self.series.push(packets.rate, None, "packets"),
            (None, None) => false,
        }
    }

    fn packets(&self, now_ns: u64) -> Option<Counter> {
        self.psn
            .meter
            .as_ref()
            .map(|meter| meter.counter(Source::Est, now_ns))
    }

    fn build(&self, devices: &Devices, processes: &Processes, now_ns: u64, fresh: bool) -> QpRow {
        let traffic = match &self.flow {
            Some(flow) => flow.shared_traffic(fresh),
            None => match self.packets(now_ns) {
                Some(packets) => Arc::new(Traffic {
                    tx_packets: Some(packets),
                    ..Traffic::default()
                }),
                None => Arc::clone(&UNKNOWN),
            },
        };
        let process = self.owner.process.and_then(|uid| processes.get(uid));
        QpRow {
            uid: self.uid,
            device_uid: Some(self.key.device).filter(|uid| *uid != 0),
            device: self
                .device_name
                .clone()
                .or_else(|| {
                    devices
                        .get(self.key.device)
                        .map(|device| Arc::clone(&device.name))
                })
                .unwrap_or_else(|| "?".into()),
            port: self.port,
            qpn: self.key.qpn,
            qp_type: self.qp_type,
            state: self.state.map(|(state, _)| state),
            state_source: self.state.map(|(_, source)| source),
            pid: self.owner.pid,
            process_uid: self.owner.process,
            comm: process
                .map(|process| Arc::clone(&process.comm))
                .or_else(|| self.owner.comm.clone()),
            kernel: self.owner.kernel,
            orphan: self.orphan,
            exited: self.ended_ns.is_some(),
            since_attach: self.since_attach,
            remote_qpn: self.remote_qpn,
            remote_gid: self.remote_gid,
            path_mtu: self.path_mtu,
            born_mono_ns: self.born_ns,
            sq_psn: self.sq_psn,
            rq_psn: self.rq_psn,
            timeline: Arc::clone(&self.timeline),
            traffic,
            history: self.series.points(),
        }
    }
}

impl Process {
    fn build(&self, devices: &Devices, counts_verbs: bool, now_ns: u64, fresh: bool) -> ProcessRow {
        let mut on: Vec<Arc<str>> = self
            .qps
            .keys()
            .filter_map(|uid| devices.get(*uid))
            .map(|device| Arc::clone(&device.name))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        on.sort_by(|a, b| names::natural(a, b));
        // Every call since attach is counted: a user process without an entry has made none that failed.
        let faults = match &self.faults {
            Some(meter) => Some(meter.counter(Source::Ebpf, now_ns)),
            None if counts_verbs && !self.kernel => Some(Counter {
                total: 0,
                rate: None,
                source: Source::Ebpf,
            }),
            None => None,
        };
        ProcessRow {
            uid: self.uid,
            pid: self.pid,
            ppid: self.facts.ppid,
            kernel: self.kernel,
            exited: self.ended_ns.is_some(),
            comm: Arc::clone(&self.comm),
            cmdline: self.facts.cmdline.clone(),
            user: self.facts.user.clone(),
            cgroup: self.facts.cgroup.clone(),
            workload: self.facts.workload.clone(),
            devices: on,
            qps: self.qps.values().sum(),
            mr_bytes: self.memory.bytes(),
            traffic: self
                .flow
                .as_ref()
                .map(|flow| flow.traffic(fresh))
                .unwrap_or_default(),
            verb_errors: faults.filter(|_| counts_verbs),
            libraries: self.facts.libraries.clone(),
            environ: self.facts.environ.clone(),
            history: self.series.points(),
        }
    }
}
