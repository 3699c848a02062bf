//! How much it means when nothing is found.

use std::collections::BTreeMap;

use rdmatop_base::{order::Gather as _, text};

use super::{S, words};
use crate::facts::{Facts, PortRow};
use crate::input::EbpfState;
use crate::value::Counter;

/// How long and at how much the rules have looked when nothing is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoFindings {
    /// Programs are being attached.
    Starting,
    /// Rules have looked for this many seconds, and some need more.
    Looking(u64),
    /// Rules have looked at everything that they can, but for those of
    /// [`Snapshot::still_looks`](crate::snapshot::Snapshot::still_looks).
    Whole,
}

impl NoFindings {
    /// The longest `FindingKind::window_ns`, s: any symptom had time to be raised. Rules that compare with
    /// minutes before need longer ([`Snapshot::still_looks`](crate::snapshot::Snapshot::still_looks)).
    pub const ENOUGH_S: u64 = 30;

    /// How much the rules have looked at so far.
    pub fn of(facts: &Facts) -> Self {
        let seconds = facts.health.looked_ns / S;
        match facts.health.ebpf {
            EbpfState::Starting => Self::Starting,
            _ if seconds < Self::ENOUGH_S => Self::Looking(seconds),
            _ => Self::Whole,
        }
    }
}

/// Processes of several jobs that share a port, and how full it is: the first such port with traffic.
pub fn shared_port(facts: &Facts) -> Option<String> {
    let said = |port: &PortRow| {
        let ways = [port.tx_bytes, port.rx_bytes].into_iter().flatten();
        let full = ways.filter_map(Counter::certain_rate).reduce(f64::max)? / port.capacity()?;
        let rows = facts.processes.iter().filter(|row| !row.kernel && !row.exited);
        let users = rows.filter(|row| row.qps > 0 || row.unlisted_qps().next().is_some());
        let users = users.filter(|row| row.devices.contains(&port.device));
        let jobs = users.filter_map(|row| {
            let job = row.job();
            Some((
                (job, job.is_none().then_some(row.uid)),
                format!("PID {}", row.pid?),
            ))
        });
        let jobs: BTreeMap<_, String> = jobs.gather();
        let pids: Vec<String> = jobs.into_values().collect();
        let room = if full < 0.8 { ": room for all" } else { "" };
        (pids.len() > 1 && full > 0.01).then(|| {
            let (who, full) = (text::names(&pids), words::percent(full.min(1.0)));
            format!("{who} share {}, which is {full} full{room}", port.device)
        })
    };
    facts.ports.iter().filter(|port| port.is_active()).find_map(said)
}

/// What is judged without eBPF programs.
pub const WITHOUT_EBPF: &str = "ports and states of QPs";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::{FindingId, FindingTracker};
    use crate::testkit;

    #[test]
    fn every_window_is_over_after_that_time() {
        let windows = FindingId::ALL.iter().map(|id| id.kind().window_ns());
        assert_eq!(windows.max(), Some(NoFindings::ENOUGH_S * 1_000_000_000));
    }

    #[test]
    fn jobs_that_share_a_port_are_named_and_ranks_of_one_job_are_not() {
        let of = |name: &str| {
            let all = &testkit::situations::ALL;
            let situation = all.iter().find(|situation| situation.name == name).unwrap();
            (situation.make)()
        };
        let mut s = of("eight-11-two-jobs");
        let said = "PID 7100 and PID 7900 share mlx5_0, which is 42 % full: room for all";
        assert_eq!(shared_port(&s).as_deref(), Some(said));
        assert_eq!(shared_port(&of("eight-12-half-idle")), None);
        let jobs: Vec<_> = s.processes.iter().map(|row| row.workload.clone()).collect();
        for row in &mut s.processes {
            row.workload = jobs[0].clone();
        }
        assert_eq!(shared_port(&s), None);
        let other = s.processes.iter_mut().find(|row| row.pid == Some(7900)).unwrap();
        other.workload_claimed = true;
        for port in &mut s.ports {
            port.rate_bps = Some(170_000_000_000);
        }
        let full = shared_port(&s).unwrap();
        assert!(full.ends_with("which is 99 % full"), "{full}");
    }

    #[test]
    fn nothing_found_is_no_verdict_of_rules_that_look_for_longer() {
        let mut s = testkit::one_row();
        let mut watch = FindingTracker::default();
        s.health.ebpf = EbpfState::Disabled;
        let mut after = |seconds: u64| {
            s.mono_ns += seconds * 1_000_000_000;
            watch.look_at(&s);
            s.health.looked_ns = watch.looked_ns();
            let longest = watch
                .still_looks()
                .into_iter()
                .max_by_key(|(_, seconds)| *seconds);
            (NoFindings::of(&s), longest)
        };
        let growth = Some((FindingId::MrGrowth, 1800));
        assert_eq!(after(0), (NoFindings::Looking(0), growth));
        assert_eq!(after(29), (NoFindings::Looking(29), growth));
        assert_eq!(after(60), (NoFindings::Whole, growth));
        assert_eq!(after(1710), (NoFindings::Whole, growth));
        assert_eq!(after(1), (NoFindings::Whole, None));
    }
}
