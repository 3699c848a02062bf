//! The state of rdmatop itself: programs, notes, host facts, own cost.

use std::time::{Duration, Instant};

use super::Advice;
use crate::{
    app::source::{Source, Wants},
    model::input::{EbpfState, HealthSample, HostFacts, Input, Note},
    source::{ebpf::SharedStatus, proc::SelfMeter, root::Root},
};

/// Reports health once a round.
pub struct HealthSource {
    meter: SelfMeter,
    status: SharedStatus,
    /// Version of the status that `sample` tells.
    version: Option<u64>,
    advice: Advice,
    /// What the eBPF side says is missing.
    of_ebpf: Vec<Note>,
    /// What the last round told, to be told again.
    sample: HealthSample,
    uptime_s: Option<u64>,
    started: Instant,
    before: Option<(Instant, Duration)>,
}

impl HealthSource {
    /// `advice` is what is missing on this machine.
    pub fn new(root: Root, status: SharedStatus, advice: Advice) -> Self {
        let platform = advice.platform();
        let host = HostFacts {
            hostname: platform.host.hostname.clone(),
            kernel: platform.host.kernel.clone(),
            uptime_s: None,
        };
        let uptime_s = platform.host.uptime_s;
        Self {
            meter: SelfMeter::new(root),
            status,
            version: None,
            advice,
            of_ebpf: Vec::new(),
            sample: HealthSample {
                host,
                ..HealthSample::default()
            },
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

impl Source for HealthSource {
    fn name(&self) -> &'static str {
        "health"
    }

    fn poll(&mut self, wants: &Wants, out: &mut dyn FnMut(Input)) {
        if wants.is_light() || wants.only_processes {
            return;
        }
        let status = self.status.newer(self.version);
        // Programs that come or go are often a module's doing.
        let first = self.version.is_none();
        let changed = status.is_some();
        let other = self.advice.look(changed && !first);
        if let Some(status) = status {
            self.version = Some(status.version);
            self.sample.ebpf = status.state;
            self.sample.probes = status.probes.into();
            self.of_ebpf = status.notes;
        }
        if changed || other {
            let notes = self.advice.notes();
            let refused = refused(&self.sample.ebpf, notes);
            let notes = notes.iter().chain(&self.of_ebpf).cloned();
            self.sample.notes = refused.into_iter().chain(notes).collect();
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

/// Notes that say already why there is none.
const SAID: [&str; 3] = ["No eBPF", "no eBPF", "No RDMA"];
/// The note that says it of a map that the kernel refused: before Linux 5.11 a memlock limit does that with EPERM.
const MEMLOCK: &str = "eBPF maps may not fit";

/// The line for eBPF that is not to be had, unless a note says already why: the live view has room for notes, and not
/// for a reason.
fn refused(ebpf: &EbpfState, notes: &[Note]) -> Option<Note> {
    let EbpfState::Unavailable { why } = ebpf else {
        return None;
    };
    let not_permitted = std::io::Error::from_raw_os_error(libc::EPERM).to_string();
    let says = |note: &Note| {
        SAID.iter().any(|word| note.what.contains(word))
            || note.what == MEMLOCK && why.contains(&not_permitted)
    };
    if notes.iter().any(says) {
        return None;
    }
    let (why, remedy) = why
        .rsplit_once("; ")
        .unwrap_or((why, "`rdmatop probes` and dmesg may say more"));
    Some(Note {
        what: "No eBPF: no lifecycle events and no per-QP rates".to_owned(),
        why: why.to_owned(),
        remedy: remedy.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn off(why: &str) -> EbpfState {
        EbpfState::Unavailable { why: why.to_owned() }
    }

    #[test]
    fn ebpf_that_is_refused_has_one_note_with_why_and_the_remedy() {
        let note = refused(&off("no program would run: a switch is off; turn it on"), &[]).unwrap();
        assert_eq!(
            note.to_string(),
            "No eBPF: no lifecycle events and no per-QP rates: no program would run: a switch is off. turn it on"
        );
        assert_eq!(refused(&EbpfState::Disabled, &[]), None);
        let memlock = Note {
            what: MEMLOCK.to_owned(),
            ..note.clone()
        };
        let maps = off("cannot create map QPS: Operation not permitted (os error 1)");
        for (state, said) in [(off("too many open files"), note), (maps, memlock.clone())] {
            assert_eq!(refused(&state, &[said]), None, "it is said already");
        }
        // A limit of memory is not why a thread could not start.
        assert!(refused(&off("cannot start a thread"), &[memlock]).is_some());
        assert!(refused(&off("too many open files"), &[]).is_some_and(|note| note.remedy.contains("dmesg")));
    }
}
