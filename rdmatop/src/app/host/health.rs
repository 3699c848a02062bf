//! The state of rdmatop itself: programs, notes, host facts, own cost.

use std::time::{Duration, Instant};

use crate::{
    app::source::{Source, Wants},
    model::input::{HealthSample, HostFacts, Input, Note},
    source::{ebpf::SharedStatus, platform::Platform, proc::self_cost, root::Root},
};

/// Reports health once a round.
pub struct HealthSource {
    root: Root,
    status: SharedStatus,
    notes: Vec<Note>,
    host: HostFacts,
    started: Instant,
    before: Option<(Instant, Duration)>,
}

impl HealthSource {
    /// `notes` are what is missing on this machine; `platform` was read at the start.
    pub fn new(root: Root, status: SharedStatus, platform: &Platform, notes: Vec<Note>) -> Self {
        let host = HostFacts {
            hostname: platform.host.hostname.clone(),
            kernel: platform.host.kernel.clone(),
            uptime_s: platform.host.uptime_s,
        };
        Self {
            root,
            status,
            notes,
            host,
            started: Instant::now(),
            before: None,
        }
    }

    /// Own CPU time since the round before, as a fraction of one core.
    fn cpu(&mut self, cpu: Option<Duration>) -> Option<f64> {
        let now = Instant::now();
        let before = self.before;
        self.before = cpu.map(|cpu| (now, cpu));
        let (at, spent) = before?;
        let wall = now.duration_since(at).as_secs_f64();
        let used = cpu?.checked_sub(spent)?.as_secs_f64();
        (wall > 0.0).then(|| used / wall)
    }
}

impl Source for HealthSource {
    fn name(&self) -> &'static str {
        "health"
    }

    fn poll(&mut self, wants: &Wants, out: &mut dyn FnMut(Input)) {
        if wants.is_light() {
            return;
        }
        let status = self.status.get();
        let cost = self_cost(&self.root);
        let self_cpu = self.cpu(cost.cpu);
        let mut host = self.host.clone();
        host.uptime_s = host
            .uptime_s
            .map(|at_start| at_start + self.started.elapsed().as_secs());
        out(Input::Health(Box::new(HealthSample {
            ebpf: status.state,
            probes: status.probes,
            notes: self.notes.iter().cloned().chain(status.notes).collect(),
            host,
            self_cpu,
            self_rss: cost.rss,
        })));
    }
}
