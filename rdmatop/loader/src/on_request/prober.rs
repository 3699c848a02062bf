//! Probes the programs of one process while the user asks for it. It uses a session of its own, with programs
//! and maps, which the sweep reads too. The session that counts goes on as it is.

use std::sync::mpsc;

use super::{detach, switch};
use crate::{
    maps::sweep::MapSweep,
    plan::{options::Options, scope::Scope},
    session::Session,
    user::{UserOptions, off},
};
use rdmatop_model::{cause::Cause, event::EventKind, input::UprobesReport};
use rdmatop_sources::{limits::start_thread, netlink::client::Nldev};

/// Bytes of the ring buffer, into which these programs write nothing.
const RING_BYTES: u32 = 4096;

/// A process whose programs are to be probed.
#[derive(Clone, Debug)]
pub struct ProbeRequest {
    /// The process's PID in the initial namespace.
    pub pid: u32,
    /// How much of a core the probes may take.
    pub limit: f64,
    /// Device and number of its QPs. The kernel side learns of QPs from before the probes by a query of each.
    pub qps: Vec<(String, u32)>,
}

/// Probes at most one process at a time. Dropping it ends the probes.
#[derive(Debug)]
pub struct Prober {
    sweep: MapSweep,
    asked: u64,
    running: Option<(u32, mpsc::Sender<()>)>,
}

impl Prober {
    /// A prober that has loaded nothing. `sweep` reads what it counts.
    pub fn new(sweep: MapSweep) -> Self {
        Self {
            sweep,
            asked: 0,
            running: None,
        }
    }

    /// The process that is probed, or whose probes are off by now.
    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(|(pid, _)| *pid)
    }

    /// Probes a process from now on. Attaching and detaching take up to seconds, each on its own thread.
    pub fn probe(&mut self, request: ProbeRequest) {
        self.stop();
        self.asked += 1;
        let (number, sweep) = (self.asked, self.sweep.clone());
        let report = report(&request);
        sweep.request_probes(number, report.clone());
        let (to, orders) = mpsc::channel();
        self.running = Some((request.pid, to));
        let work = {
            let sweep = sweep.clone();
            move || run(&sweep, number, &request, &orders)
        };
        if let Err(obstacle) = start_thread("probe", work) {
            fails(&sweep, number, report, off(obstacle));
        }
    }

    /// Ends the probes; what they have counted is then unknown.
    pub fn stop(&mut self) {
        if self.running.take().is_some() {
            self.sweep.end_probes(self.asked);
        }
    }
}

fn report(request: &ProbeRequest) -> UprobesReport {
    UprobesReport {
        pid: Some(request.pid),
        limit: request.limit,
        ..UprobesReport::default()
    }
}

/// Asks for the programs that find the process's QPs and those on its functions, and for nothing else.
fn options(request: &ProbeRequest) -> Options {
    Options {
        ring_bytes: RING_BYTES,
        scope: Scope::Events(vec![EventKind::WrPost]),
        uprobes: Some(UserOptions {
            pid: Some(request.pid),
            limit: request.limit,
            ends: false,
        }),
        datapaths: false,
        ..Options::default()
    }
}

/// Probes the process until the sender is dropped.
fn run(sweep: &MapSweep, number: u64, request: &ProbeRequest, orders: &mpsc::Receiver<()>) {
    let mut session = match Session::start(&options(request)) {
        Ok(session) => session,
        Err(obstacle) => return fails(sweep, number, report(request), off(obstacle)),
    };
    match session.user.take() {
        Some(Ok(path)) => sweep.set_probes(number, Ok(path)),
        Some(Err(cause)) => fails(sweep, number, report(request), cause),
        None => {}
    }
    if let Err(obstacle) = switch(&mut session, true) {
        fails(sweep, number, report(request), off(obstacle));
    }
    query(&request.qps);
    // Wait until the sender is dropped.
    while orders.recv().is_ok() {}
    detach(session);
}

fn fails(sweep: &MapSweep, number: u64, mut report: UprobesReport, cause: Cause) {
    report.off = Some(cause);
    sweep.set_probes(number, Err(report));
}

/// Queries these QPs, so that the kernel side's programs see them. A QP that cannot be queried is found when
/// its state changes.
fn query(qps: &[(String, u32)]) {
    let Ok(mut nldev) = Nldev::open() else { return };
    let Ok(devices) = nldev.named_summaries() else {
        return;
    };
    for (name, qpn) in qps {
        let device = devices
            .items
            .iter()
            .find(|(device, _)| device.to_string() == *name);
        if let Some((_, device)) = device {
            let _ = nldev.qp(device.device_index, *qpn);
        }
    }
}
