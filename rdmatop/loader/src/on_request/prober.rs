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
use rdmatop_model::{cause::Cause, event::EventKind};
use rdmatop_sources::{limits::start_thread, netlink::client::Nldev};

/// Bytes of the ring buffer, into which these programs write nothing.
const RING_BYTES: u32 = 4096;

/// Probes at most one process at a time. Dropping it ends the probes.
#[derive(Debug)]
pub struct Prober {
    sweep: MapSweep,
    asked: u64,
    running: Option<(UserOptions, mpsc::Sender<()>)>,
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
        self.running.as_ref().and_then(|(wanted, _)| wanted.pid)
    }

    /// Probes a process from now on. Attaching and detaching take up to seconds, each on its own thread.
    /// `qps` are device and number of its QPs: the kernel side learns of QPs from before the probes by a
    /// query of each.
    pub fn probe(&mut self, wanted: UserOptions, qps: Vec<(String, u32)>) {
        self.stop();
        self.asked += 1;
        let (number, sweep) = (self.asked, self.sweep.clone());
        sweep.request_probes(number, wanted.report());
        let (to, orders) = mpsc::channel();
        self.running = Some((wanted, to));
        let work = {
            let sweep = sweep.clone();
            move || run(&sweep, number, wanted, &qps, &orders)
        };
        if let Err(obstacle) = start_thread("probe", work) {
            fails(&sweep, number, wanted, off(obstacle));
        }
    }

    /// Ends the probes; what they have counted is then unknown.
    pub fn stop(&mut self) {
        if self.running.take().is_some() {
            self.sweep.end_probes(self.asked);
        }
    }
}

/// Asks for the programs that find the process's QPs and those on its functions, and for nothing else.
fn options(wanted: UserOptions) -> Options {
    Options {
        ring_bytes: RING_BYTES,
        scope: Scope::Events(vec![EventKind::WrPost]),
        uprobes: Some(wanted),
        datapaths: false,
        ..Options::default()
    }
}

/// Probes the process until the sender is dropped.
fn run(
    sweep: &MapSweep,
    number: u64,
    wanted: UserOptions,
    qps: &[(String, u32)],
    orders: &mpsc::Receiver<()>,
) {
    let mut session = match Session::start(&options(wanted)) {
        Ok(session) => session,
        Err(obstacle) => return fails(sweep, number, wanted, off(obstacle)),
    };
    match session.user.take() {
        Some(Ok(path)) => sweep.set_probes(number, Ok(path)),
        Some(Err(cause)) => fails(sweep, number, wanted, cause),
        None => {}
    }
    if let Err(obstacle) = switch(&mut session, true) {
        fails(sweep, number, wanted, off(obstacle));
    }
    query(qps);
    // Wait until the sender is dropped.
    while orders.recv().is_ok() {}
    detach(session);
}

fn fails(sweep: &MapSweep, number: u64, wanted: UserOptions, cause: Cause) {
    let mut report = wanted.report();
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
