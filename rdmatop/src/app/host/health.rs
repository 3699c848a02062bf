//! The state of rdmatop itself: what is missing on the machine, host facts, own cost.

use std::time::{Duration, Instant};

use super::Advice;
use rdmatop_model::input::{HealthSample, HostFacts, Input};
use rdmatop_sources::seam::{Polled, Wants};
use rdmatop_sources::{proc::SelfMeter, root::Root};

/// Reports health once a round. `advice` is what is missing on this machine.
pub fn health(root: &Root, mut advice: Advice) -> impl Polled + use<> {
    let platform = advice.platform();
    let (uptime_s, started) = (platform.uptime_s, Instant::now());
    // What the last round sent, to be sent again.
    let mut sample = HealthSample {
        notes: advice.notes().to_vec().into(),
        host: HostFacts {
            hostname: platform.hostname.clone(),
            kernel: platform.kernel.clone(),
            uptime_s: None,
        },
        ..HealthSample::default()
    };
    let (meter, mut before) = (SelfMeter::new(root), None);
    let poll = move |wants: &Wants, out: &mut dyn FnMut(Input)| {
        if !wants.is_sample() {
            return;
        }
        if advice.look(wants.machine) {
            sample.notes = advice.notes().to_vec().into();
        }
        let asked = Instant::now();
        let (cpu, rss) = meter.read();
        let now = (asked + asked.elapsed() / 2, cpu);
        sample.self_cpu = before.replace(now).and_then(|before| share(before, now));
        sample.self_rss = rss;
        sample.host.uptime_s = uptime_s.map(|at_start| at_start + started.elapsed().as_secs());
        out(Input::Health(Box::new(sample.clone())));
    };
    ("health", poll)
}

/// A time and the CPU time that was spent until then.
type Spent = (Instant, Duration);

/// CPU time since the round before, as a fraction of one core.
fn share((before, spent): Spent, (now, cpu): Spent) -> Option<f64> {
    let wall = now.duration_since(before).as_secs_f64();
    let used = cpu.checked_sub(spent)?.as_secs_f64();
    (wall > 0.0).then(|| used / wall)
}
