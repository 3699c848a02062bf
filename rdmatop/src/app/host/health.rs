//! The state of rdmatop itself: what is missing on the machine, host facts, own cost.

use std::time::{Duration, Instant};

use super::Advice;
use crate::app::source::{Polled, Wants};
use rdmatop_model::input::{HealthSample, HostFacts, Input};
use rdmatop_sources::{proc::SelfMeter, root::Root};

/// Reports health once a round.
pub struct HealthSource {
    meter: SelfMeter,
    advice: Advice,
    /// What the last round sent, to be sent again.
    sample: HealthSample,
    uptime_s: Option<u64>,
    started: Instant,
    before: Option<(Instant, Duration)>,
}

impl HealthSource {
    /// `advice` is what is missing on this machine.
    pub fn new(root: &Root, advice: Advice) -> Self {
        let platform = advice.platform();
        let host = HostFacts {
            hostname: platform.hostname.clone(),
            kernel: platform.kernel.clone(),
            uptime_s: None,
        };
        let uptime_s = platform.uptime_s;
        Self {
            meter: SelfMeter::new(root),
            sample: HealthSample {
                notes: advice.notes().to_vec().into(),
                host,
                ..HealthSample::default()
            },
            advice,
            uptime_s,
            started: Instant::now(),
            before: None,
        }
    }

    /// Own CPU time since the round before, as a fraction of one core; `now` is when it was read.
    fn cpu(&mut self, cpu: Option<Duration>, now: Instant) -> Option<f64> {
        let before = self.before;
        self.before = cpu.map(|cpu| (now, cpu));
        let (at, spent) = before?;
        let wall = now.duration_since(at).as_secs_f64();
        let used = cpu?.checked_sub(spent)?.as_secs_f64();
        (wall > 0.0).then(|| used / wall)
    }
}

impl Polled for HealthSource {
    fn name(&self) -> &'static str {
        "health"
    }

    fn poll(&mut self, wants: &Wants, out: &mut dyn FnMut(Input)) {
        if !wants.is_sample() {
            return;
        }
        if self.advice.look(wants.machine) {
            self.sample.notes = self.advice.notes().to_vec().into();
        }
        let before = Instant::now();
        let cost = self.meter.read();
        self.sample.self_cpu = self.cpu(cost.cpu, before + before.elapsed() / 2);
        self.sample.self_rss = cost.rss;
        self.sample.host.uptime_s = self
            .uptime_s
            .map(|at_start| at_start + self.started.elapsed().as_secs());
        out(Input::Health(Box::new(self.sample.clone())));
    }
}
