//! Rows: the tables as views see them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    devices::Devices,
    flow::Flow,
    groups::Groups,
    machine::Machine,
    processes::{Process, Processes},
    qp::{Qp, unknown_traffic},
    shares::Share,
    traffic::Sweeps,
    unlisted::Makers,
};
use crate::{
    snapshot::{HISTORY, ProcessRow, QP_HISTORY, QpRow, Recent, Traffic, Unlisted, count},
    value::{Counter, Known, Shared, Source},
};
use rdmatop_base::order::Ordered as _;
use rdmatop_base::text;

/// What the last snapshot has of all QPs.
#[derive(Debug, Default)]
pub(super) struct Rows {
    qps: Shared<Arc<QpRow>>,
    /// None of them changes by itself: as long as no QP is touched, the next snapshot has the same list.
    at_rest: bool,
    /// Processes with a QP that no program counts: their sums are lower bounds.
    uncounted: BTreeSet<u64>,
}

impl Rows {
    /// Rows of all QPs in the order in which they became known. A row in which nothing changed is the same
    /// `Arc` as before, and so is the list where no row changed.
    pub(super) fn qps(
        &mut self,
        machine: &mut Machine,
        groups: &Groups,
        sweeps: Sweeps,
    ) -> Shared<Arc<QpRow>> {
        let renamed_processes = std::mem::take(&mut machine.processes.renamed);
        let renamed_devices = std::mem::take(&mut machine.devices.renamed);
        let names_changed = !renamed_processes.is_empty() || !renamed_devices.is_empty();
        // Ten thousand idle QPs then cost as much as none.
        if self.at_rest && !sweeps.turned && !names_changed && !machine.qps.all.is_touched() {
            return self.qps.clone();
        }
        let mut rows = Vec::with_capacity(machine.qps.len());
        self.at_rest = true;
        self.uncounted.clear();
        for qp in machine.qps.iter_mut().filter(|qp| !qp.hidden) {
            // Most of ten thousand QPs are idle: they cost these few comparisons.
            let renamed = names_changed
                && (renamed_devices.contains(&qp.key.device)
                    || qp.process().is_some_and(|uid| renamed_processes.contains(&uid)));
            // An estimate's rate ages without any input.
            if qp.point(sweeps.now_ns, sweeps.fresh) || sweeps.turned || renamed || qp.psn.meter.is_some() {
                qp.touch();
            }
            if (qp.flow.is_none() || qp.blind)
                && sweeps
                    .last_ns
                    .is_some_and(|at| qp.is_uncounted(&machine.devices, at))
            {
                self.uncounted.extend(qp.process());
            }
            if qp.late && qp.lives() {
                self.uncounted.extend(qp.process());
            }
            let others = (&machine.devices, &machine.processes, groups);
            let row = qp.current_row(|qp, row| qp.complete(row, others, sweeps));
            self.at_rest &= qp.rests();
            rows.push(row);
        }
        machine.qps.all.settle();
        self.qps = rows.into();
        self.qps.clone()
    }

    pub(super) fn processes(
        &self,
        machine: &mut Machine,
        groups: &Groups,
        (shares, makers): (&BTreeMap<u64, Share>, &Makers<'_>),
        counts_verbs: bool,
        Sweeps { now_ns, fresh, .. }: Sweeps,
    ) -> Vec<ProcessRow> {
        let uncovered = groups.uncovered(&machine.qps);
        let devices = &machine.devices;
        let mut rows = Vec::new();
        for process in machine.processes.iter_mut() {
            let is_program = !process.kernel && process.pid.is_some();
            let unlisted = is_program.then(|| makers.of((&*process).into(), None)).flatten();
            // No count has what queue pairs move that the kernel does not list.
            let hides = unlisted == Some(Unlisted::Made);
            let lacks = hides || process.lacks || self.uncounted.contains(&process.uid);
            let flow = process.flow.as_ref().and_then(|flow| flow.whole());
            let exact = flow.is_some_and(|flow| flow.known(count::TX_BYTES, fresh).is_some()) && !lacks;
            // What programs of ours count exactly is better: bytes of work requests. The NIC's are of
            // packets.
            let hw = groups.sum(process.uid, now_ns, hides || uncovered.contains(&process.uid));
            let all_packets = hw.as_ref().map(|hw| hw.rates());
            let hw = hw.filter(|_| !exact);
            let share = shares
                .get(&process.uid)
                .filter(|_| hw.is_none() && flow.is_none());
            let points = match (&hw, flow) {
                (Some(hw), _) if hw.tx_bytes.or(hw.rx_bytes).is_some() => Some(hw.rates()),
                (_, Some(flow)) => Some(rates(flow, fresh)),
                (_, None) => share.map(|share| share.bytes.map(drawn)),
            };
            if let Some(rates) = points {
                process.series.push(rates, "bytes", HISTORY);
            }
            let mut row = process.build(devices, counts_verbs, now_ns, fresh);
            if lacks {
                row.traffic.is_partial();
            }
            // Where nothing else is known of bytes.
            if let Some(share) = share
                && row.traffic.tx_bytes.or(row.traffic.rx_bytes).is_none()
            {
                [row.traffic.tx_bytes, row.traffic.rx_bytes] = share.bytes.map(Some);
                row.traffic.tx_packets = row.traffic.tx_packets.or(share.packets);
                row.psn_explains = share.explained;
            }
            let rates = recent_rates(all_packets, &row.traffic);
            row.recent = process.average.push(now_ns, rates);
            if let Some(hw) = hw {
                hw.take_place(&mut row.traffic);
            }
            if is_program {
                let told = (&*process).into();
                row.unlisted = unlisted;
                row.host_regions = makers.without_dmabuf(told);
                row.is_of_devx(makers.devx.rows(process.uid, devices, makers.saw_each_of(told)));
            }
            row.hw_counters = groups.rows(process.uid, devices, now_ns);
            rows.push(row);
        }
        rows
    }
}

/// The rate that a graph shows: a share stands in it where it stands on the screen, an upper bound not at
/// all.
fn drawn(share: Counter) -> Option<f64> {
    match share.rate_known() {
        Known::Exact => share.rate,
        _ => share.certain_rate(),
    }
}

fn rates(flow: &Flow, fresh: bool) -> [Option<f64>; 2] {
    [count::TX_BYTES, count::RX_BYTES].map(|count| flow.known(count, fresh)?.rate)
}

/// What is known of all that a process moves: packets of all its QPs where the NIC counts them. Of work
/// requests only a lower bound: what a peer reads and writes by itself is none.
fn recent_rates(all_packets: Option<[Option<f64>; 2]>, traffic: &Traffic) -> Option<Recent> {
    let counters = [traffic.tx_bytes, traffic.rx_bytes];
    let ([tx, rx], source) = if let Some(rates @ [Some(_), Some(_)]) = all_packets {
        (rates, Source::Hw)
    } else {
        let source = counters.iter().flatten().map(|counter| counter.source).max()?;
        let exact = |counter: Counter| counter.rate.filter(|_| counter.rate_known() == Known::Exact);
        match source {
            Source::Port | Source::Psn => (counters.map(|counter| counter.and_then(exact)), source),
            _ => (traffic.ways(), source),
        }
    };
    Some(Recent {
        ns: 0,
        tx,
        rx,
        whole: matches!(source, Source::Hw | Source::Port | Source::Psn),
        source,
    })
}

impl Qp {
    /// Whether no program counts what it does, although it was there before the last sweep began. One of
    /// SoftRoCE that is older than the programs gets its slot when it moves.
    fn is_uncounted(&self, devices: &Devices, last_sweep_ns: u64) -> bool {
        let gets_one_later = || {
            !self.created
                && devices
                    .get(self.key.device)
                    .is_none_or(super::devices::Device::is_followed)
        };
        self.lives() && self.seen_ns < last_sweep_ns && !gets_one_later()
    }

    /// It counts nothing and has no history: its row changes only when something touches it.
    fn is_still(&self) -> bool {
        self.flow.as_ref().is_some_and(|flow| !flow.moving) && self.series.is_empty()
    }

    /// Whether nothing but a touch can change its row, or what its process lacks.
    fn rests(&self) -> bool {
        self.is_still() && !self.blind && !self.late && self.psn.meter.is_none()
    }

    /// Adds a point to the history; true when that changed it.
    #[inline]
    fn point(&mut self, now_ns: u64, fresh: bool) -> bool {
        !self.is_still() && self.lives() && self.moving_point(now_ns, fresh)
    }

    /// As [`Qp::point`], for a QP that may have moved.
    fn moving_point(&mut self, now_ns: u64, fresh: bool) -> bool {
        let flow = self
            .flow
            .as_ref()
            .filter(|_| !self.row().uncounted && !self.blind);
        let (rates, unit) = match (flow, self.packets(now_ns)) {
            (Some(flow), _) => (rates(flow, fresh), "bytes"),
            (None, Some(packets)) => ([packets.rate, None], "packets"),
            (None, None) => return false,
        };
        self.series.push(rates, unit, QP_HISTORY)
    }

    fn packets(&self, now_ns: u64) -> Option<Counter> {
        self.psn
            .meter
            .as_ref()
            .map(|meter| meter.counter(Source::Est, now_ns))
    }

    /// Fills in what other tables have, and the traffic.
    fn complete(
        &self,
        row: &mut QpRow,
        (devices, processes, groups): (&Devices, &Processes, &Groups),
        sweeps: Sweeps,
    ) {
        // In doubt it may be this QP that moved without a slot.
        let counted = |flow: &&Flow| !(row.uncounted || self.blind || flow.resting && sweeps.doubt);
        // What is counted is not estimated.
        let packets = || {
            self.packets(sweeps.now_ns)
                .filter(|_| !groups.counts_packets_of(&self.key))
        };
        row.traffic = if let Some(flow) = self.flow.as_ref().filter(counted) {
            flow.shared_traffic(sweeps.fresh)
        } else if let Some(packets) = packets() {
            Arc::new(Traffic {
                tx_packets: Some(packets),
                ..Traffic::default()
            })
        } else {
            unknown_traffic()
        };
        row.device_uid = Some(self.key.device).filter(|uid| *uid != 0);
        // The name of a removed device stays.
        if let Some(device) = devices.get(self.key.device) {
            row.device = Arc::clone(&device.name);
        }
        row.comm = row
            .process_uid
            .and_then(|uid| processes.get(uid))
            .map(|process| &process.comm)
            .or(self.comm.as_ref())
            .cloned();
        row.exited = !self.lives();
        row.history = self.series.points();
    }
}

impl Process {
    fn build(&self, devices: &Devices, counts_verbs: bool, now_ns: u64, fresh: bool) -> ProcessRow {
        // The QPs of a process end with it. It stays one of the devices that it used.
        let left = self.left.iter().filter(|_| self.ended_ns.is_some());
        let mut on: Vec<Arc<str>> = self
            .qps
            .keys()
            .chain(left)
            .filter_map(|uid| devices.get(*uid))
            .map(|device| Arc::clone(&device.name))
            .collect();
        // They are nearly always in order: devices get their numbers as they are found.
        on.order_by(|a, b| text::natural(a, b));
        on.dedup();
        // Every call since attach is counted: a user process without an entry has made none that failed.
        let faults = match &self.faults {
            Some(meter) => Some(meter.counter(Source::Ebpf, now_ns)),
            None if counts_verbs && !self.kernel => Some(Counter::whole(0, None, Source::Ebpf)),
            None => None,
        };
        ProcessRow {
            uid: self.uid,
            pid: self.pid,
            kernel: self.kernel,
            exited: self.ended_ns.is_some(),
            comm: Arc::clone(&self.comm),
            devices: on,
            qps: self.qps.values().sum(),
            mr_bytes: self.memory.bytes(),
            mr_registered: self.memory.registered,
            traffic: self
                .flow
                .as_ref()
                .and_then(|flow| flow.whole())
                .map(|flow| flow.traffic(fresh))
                .unwrap_or_default(),
            verb_errors: faults.filter(|_| counts_verbs),
            tcp: self.tcp.as_ref().map(|tcp| tcp.row(now_ns)),
            limited: self.limited.clone(),
            locked: self.locked.clone(),
            mappings: self.mappings,
            history: self.series.points(),
            ..self.facts.clone()
        }
    }
}
