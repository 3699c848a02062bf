//! Probes the programs of one process while the user asks for it: a session of its own, with its programs and
//! maps, which the sweep reads beside those of the session that counts. That one is not touched.

use std::{sync::mpsc, thread, time::Duration};

use super::{
    armed::Switches,
    choice::Options,
    scope::Scope,
    session::Session,
    sweep::MapSweep,
    user::{UserOptions, off},
    watcher::switch,
};
use rdmatop_model::{
    cause::{CauseId, Obstacle},
    event::EventKind,
    input::UprobesReport,
};
use rdmatop_sources::{limits, netlink::client::Nldev, privileges::Raised, root::Root};

/// How often to look whether programs can be detached.
const AGAIN: Duration = Duration::from_secs(1);
/// Bytes of the ring buffer, into which these programs write nothing.
const RING_BYTES: u32 = 4096;

/// A process whose programs are to be probed.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The process's PID in the initial namespace.
    pub pid: u32,
    /// How much of a core the probes may take.
    pub limit: f64,
    /// Device and number of its QPs: of those from before the probes the kernel side learns by a query of
    /// each.
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

    /// The process that is probed, or was, if its probes are off.
    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(|(pid, _)| *pid)
    }

    /// Probes a process from now on. Attaching and detaching take up to seconds, on threads of their own.
    pub fn probe(&mut self, asked: Asked) {
        self.stop();
        self.asked += 1;
        let (number, sweep) = (self.asked, self.sweep.clone());
        let report = report(&asked);
        sweep.asks(number, report.clone());
        let (to, orders) = mpsc::channel();
        self.running = Some((asked.pid, to));
        let work = {
            let sweep = sweep.clone();
            move || run(&sweep, number, &asked, &orders)
        };
        if let Err(error) = thread::Builder::new().name("probe".to_owned()).spawn(work) {
            let why = format!("cannot start a thread: {error}");
            let cause = off(Obstacle::new(CauseId::NoThread, why, limits::threads()));
            let off = Some(cause);
            sweep.lend(number, Err(UprobesReport { off, ..report }));
        }
    }

    /// Ends the probes; what they have counted becomes unknown.
    pub fn stop(&mut self) {
        if self.running.take().is_some() {
            self.sweep.asks_no_more(self.asked);
        }
    }
}

fn report(asked: &Asked) -> UprobesReport {
    UprobesReport {
        pid: Some(asked.pid),
        limit: asked.limit,
        ..UprobesReport::default()
    }
}

/// The programs that find the process's QPs, and those on its functions; nothing else.
fn options(asked: &Asked) -> Options {
    Options {
        ring_bytes: RING_BYTES,
        scope: Scope::Events(vec![EventKind::WrPost]),
        uprobes: Some(UserOptions {
            pid: Some(asked.pid),
            limit: asked.limit,
            ends: false,
        }),
        datapaths: false,
        ..Options::default()
    }
}

/// Probes until the sender is dropped.
fn run(sweep: &MapSweep, number: u64, asked: &Asked, orders: &mpsc::Receiver<()>) {
    let options = options(asked);
    let started = {
        let _rights = Raised::for_attach();
        Session::start(&options)
    };
    let mut session = match started {
        Ok(session) => session,
        Err(obstacle) => return fails(sweep, number, asked, obstacle),
    };
    match session.take_user() {
        Some(Ok(path)) => sweep.lend(number, Ok(path)),
        Some(Err(cause)) => {
            let off = Some(cause);
            sweep.lend(number, Err(UprobesReport { off, ..report(asked) }));
        }
        None => {}
    }
    if let Err(obstacle) = switch(&mut session, true) {
        fails(sweep, number, asked, obstacle);
    }
    query(&asked.qps);
    // Until the sender is dropped.
    while orders.recv().is_ok() {}
    let _ = switch(&mut session, false);
    // While kprobes are switched off, detaching them would disable ftrace until the next boot.
    let mut switches = Switches::new(&Root::default());
    while switches.why_not().is_some() {
        thread::sleep(AGAIN);
    }
}

fn fails(sweep: &MapSweep, number: u64, asked: &Asked, obstacle: Obstacle) {
    let off = Some(off(obstacle));
    sweep.lend(number, Err(UprobesReport { off, ..report(asked) }));
}

/// Asks the kernel for QPs, so that its programs see them. What cannot be asked for is found when it changes
/// its state.
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
