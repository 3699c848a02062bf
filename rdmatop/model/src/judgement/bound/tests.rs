//! Each verdict and its nearest neighbour.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::{
    ib::{PortState, QpState, QpType},
    snapshot::{Snapshot, Traffic},
    testkit::{self, rows},
};

pub(super) const S: u64 = 1_000_000_000;
/// Bytes per second that a link of 400 Gb/s carries.
pub(super) const FULL: f64 = 50e9;

/// Adds a process with a QP on its own port of 400 Gb/s, of its own device.
pub(super) fn add(s: &mut Snapshot, uid: u64, tx: f64, rx: f64) {
    let name = format!("mlx5_{uid}");
    let (mut device, mut port) = rows::rail(uid, &name, Some(400_000_000_000), None, None);
    (device.uid, port.device_uid, port.state) = (uid, uid, Some(PortState(4)));
    s.devices.push(device);
    s.ports.push(port);
    let pid = u32::try_from(uid).unwrap();
    let mut process = rows::process(uid, Some(pid), "rank", &name, Traffic::default());
    process.workload = None;
    process.recent = Some(Recent {
        ns: 30 * S,
        tx: Some(tx),
        rx: Some(rx),
        whole: true,
        source: Source::Hw,
    });
    s.processes.push(process);
    let mut qp = rows::qp(uid, &name, 17, 3, Some(pid), "rank", Traffic::default());
    Arc::make_mut(&mut qp).device_uid = Some(uid);
    s.qps.push(qp);
}

pub(super) fn alone(tx: f64, rx: f64) -> Snapshot {
    let mut s = testkit::empty();
    add(&mut s, 1, tx, rx);
    s
}

fn recent(s: &mut Snapshot) -> &mut Recent {
    s.processes[0].recent.as_mut().unwrap()
}

/// Returns the line about the first process.
fn line(s: &Snapshot) -> Option<String> {
    let s = s.clone().judged(None);
    s.judgement.bounds(&s, &[])[0].map(|bound| bound.line())
}

fn said(s: &Snapshot) -> String {
    line(s).unwrap_or_default()
}

#[test]
fn the_busier_direction_counts_and_the_verdict_begins_at_its_share() {
    let bound = "80 % busy over the last 30 s: communication-bound";
    assert_eq!(said(&alone(0.8 * FULL, 0.1 * FULL)), bound);
    assert_eq!(said(&alone(0.1 * FULL, 0.8 * FULL)), bound);
    assert_eq!(
        said(&alone(0.799 * FULL, 0.1 * FULL)),
        "79 % busy over the last 30 s"
    );
    // Few bytes do not prove that it computes.
    assert_eq!(said(&alone(0.12 * FULL, 0.0)), "12 % busy over the last 30 s");
    assert_eq!(said(&alone(0.0, 0.0)), "0 % busy over the last 30 s");
    assert_eq!(
        said(&alone(0.009 * FULL, 0.0)),
        "under 1 % busy over the last 30 s"
    );
}

#[test]
fn a_short_time_gives_a_share_and_no_verdict() {
    let mut s = alone(0.9 * FULL, 0.0);
    recent(&mut s).ns = 10 * S;
    assert_eq!(said(&s), "90 % busy over the last 10 s: communication-bound");
    recent(&mut s).ns = 10 * S - 1;
    assert_eq!(said(&s), "90 % busy over the last 10 s");
}

#[test]
fn a_lower_bound_says_so_and_can_show_that_links_are_busy() {
    let mut s = alone(0.5 * FULL, 0.0);
    recent(&mut s).whole = false;
    assert_eq!(said(&s), "at least 50 % busy over the last 30 s");
    recent(&mut s).tx = Some(0.9 * FULL);
    assert_eq!(
        said(&s),
        "at least 90 % busy over the last 30 s: communication-bound"
    );
    recent(&mut s).tx = Some(0.009 * FULL);
    assert_eq!(line(&s), None, "at least nothing");
    let mut s = alone(0.5 * FULL, 0.0);
    recent(&mut s).rx = None;
    assert_eq!(said(&s), "at least 50 % busy over the last 30 s");
    recent(&mut s).tx = None;
    assert_eq!(line(&s), None);
}

#[test]
fn without_a_true_rate_of_each_link_nothing_is_said() {
    let whole = alone(0.9 * FULL, 0.0);
    assert!(line(&whole).is_some());
    let with = |edit: fn(&mut Snapshot)| {
        let mut s = whole.clone();
        edit(&mut s);
        line(&s)
    };
    assert_eq!(with(|s| s.ports[0].rate_bps = None), None);
    assert_eq!(with(|s| s.ports[0].rate_bps = Some(0)), None);
    assert_eq!(with(|s| s.ports[0].state = None), None);
    assert_eq!(with(|s| s.ports[0].state = Some(PortState(1))), None);
    assert_eq!(with(|s| s.ports.clear()), None);
    assert_eq!(with(|s| s.processes[0].recent = None), None);
    assert_eq!(with(|s| s.processes[0].exited = true), None);
    assert_eq!(with(|s| Arc::make_mut(&mut s.qps[0]).exited = true), None);
    // A QP in INIT moves nothing.
    assert_eq!(
        with(|s| Arc::make_mut(&mut s.qps[0]).state = Some(QpState(1))),
        None
    );
    // If more bytes are counted than the link can carry, they did not pass it.
    assert_eq!(with(|s| recent(s).tx = Some(1.06 * FULL)), None);
    let full = with(|s| recent(s).tx = Some(1.04 * FULL));
    assert_eq!(
        full.unwrap(),
        "100 % busy over the last 30 s: communication-bound"
    );
}

#[test]
fn a_queue_pair_without_a_port_is_on_the_only_one_of_its_device() {
    let mut s = alone(0.9 * FULL, 0.0);
    let mut again = (*s.qps[0]).clone();
    (again.uid, again.port) = (2, None);
    s.qps.push(Arc::new(again));
    assert_eq!(said(&s), "90 % busy over the last 30 s: communication-bound");
    let mut second = s.ports[0].clone();
    second.port = 2;
    s.ports.push(second);
    assert_eq!(line(&s), None);
}

#[test]
fn only_active_ports_with_queue_pairs_carry() {
    let mut s = alone(0.9 * FULL, 0.0);
    let mut idle = s.ports[0].clone();
    idle.port = 2;
    s.ports.push(idle);
    assert_eq!(said(&s), "90 % busy over the last 30 s: communication-bound");
    let mut other = (*s.qps[0]).clone();
    (other.uid, other.port) = (2, Some(2));
    s.qps.push(Arc::new(other));
    assert_eq!(said(&s), "45 % busy over the last 30 s");
    s.ports[1].state = Some(PortState(1));
    assert_eq!(said(&s), "90 % busy over the last 30 s: communication-bound");
}

/// Two processes of one job.
fn two() -> Snapshot {
    let mut s = alone(0.9 * FULL, 0.0);
    add(&mut s, 2, 0.7 * FULL, 0.0);
    for row in &mut s.processes {
        row.workload = Some("slurm 7".into());
    }
    s
}

#[test]
fn the_processes_of_a_job_are_judged_together() {
    let mut s = two();
    let together = "80 % busy over the last 30 s, all 2 processes of the job together";
    assert_eq!(said(&s), format!("{together}: communication-bound"));
    let judged = s.clone().judged(None);
    let judged = judged.judgement.bounds(&judged, &[]);
    assert_eq!(judged[0], judged[1]);
    // On one link they share its capacity.
    Arc::make_mut(&mut s.qps[1]).device_uid = Some(1);
    s.processes[1].recent.as_mut().unwrap().tx = Some(0.05 * FULL);
    let shared = "95 % busy over the last 30 s, all 2 processes of the job together";
    assert!(said(&s).starts_with(shared), "{}", said(&s));
    // Without a workload each process is its own job.
    let mut s = two();
    s.processes[1].workload = None;
    assert_eq!(said(&s), "90 % busy over the last 30 s: communication-bound");
    // A workload that a user claims does not join two processes to a job, whatever its name.
    for claims in [[true, true], [false, true], [true, false]] {
        let mut s = two();
        for (row, claimed) in s.processes.iter_mut().zip(claims) {
            row.workload_claimed = claimed;
        }
        assert_eq!(said(&s), "90 % busy over the last 30 s: communication-bound");
    }
}

#[test]
fn a_process_of_the_job_that_is_unknown_or_new_makes_a_lower_bound() {
    let mut s = two();
    s.processes[1].recent = None;
    let at_least = "at least 45 % busy over the last 30 s, all 2 processes of the job together";
    assert_eq!(said(&s), at_least);
    let mut s = two();
    s.processes[1].recent.as_mut().unwrap().ns = 3 * S;
    assert!(
        said(&s).starts_with("at least 48 % busy over the last 30 s"),
        "{}",
        said(&s)
    );
    // A process without QPs that can move data moves none.
    let mut s = two();
    s.qps.pop();
    s.processes[1].recent = None;
    assert_eq!(said(&s), "90 % busy over the last 30 s: communication-bound");
}

/// Gives the port of the first process this traffic; nothing else is known about it.
fn passed(tx: f64) -> Snapshot {
    let mut s = alone(0.0, 0.0);
    s.ports[0].recent = s.processes[0].recent.take();
    s.ports[0].recent.as_mut().unwrap().tx = Some(tx);
    s.ports[0].rdma_alone = true;
    s
}

#[test]
fn what_passed_the_ports_stands_for_what_is_not_counted_of_the_job() {
    let bound = "90 % busy over the last 30 s, with all traffic of its ports: communication-bound";
    let s = passed(0.9 * FULL);
    assert_eq!(said(&s), bound);
    let rest = said(&passed(0.1 * FULL));
    assert_eq!(
        rest,
        "10 % busy over the last 30 s, with all traffic of its ports"
    );
    // The job's own count is preferred if it is complete, but not if it is a lower bound.
    let mut known = s.clone();
    known.processes[0].recent = alone(0.5 * FULL, 0.0).processes[0].recent;
    assert_eq!(said(&known), "50 % busy over the last 30 s");
    recent(&mut known).whole = false;
    assert_eq!(said(&known), bound);
    // A lower bound of the port's traffic is not preferred.
    known.ports[0].recent.as_mut().unwrap().whole = false;
    assert_eq!(said(&known), "at least 50 % busy over the last 30 s");
    known.processes[0].recent = None;
    assert_eq!(line(&known), None);
}

#[test]
fn traffic_that_may_be_of_others_gives_a_share_and_no_verdict() {
    let share = "90 % busy over the last 30 s, with all traffic of its ports";
    let mut s = passed(0.9 * FULL);
    s.ports[0].rdma_alone = false;
    assert_eq!(said(&s), share);
    let mut s = passed(0.9 * FULL);
    add(&mut s, 2, 0.0, 0.0);
    let bound = format!("{share}: communication-bound");
    assert_eq!(said(&s), bound, "the other has a port of its own");
    Arc::make_mut(&mut s.qps[1]).device_uid = Some(1);
    assert_eq!(said(&s), share);
    // Traffic also counts as another's if its process is unknown or has ended.
    let mut unknown = s.clone();
    unknown.processes.pop();
    assert_eq!(said(&unknown), share);
    let other = Arc::make_mut(&mut unknown.qps[1]);
    (other.process_uid, other.port) = (None, None);
    assert_eq!(said(&unknown), share);
    Arc::make_mut(&mut unknown.qps[1]).device_uid = Some(2);
    assert_eq!(said(&unknown), bound);
    // A QP for management datagrams moves almost nothing.
    Arc::make_mut(&mut s.qps[1]).qp_type = Some(QpType(1));
    assert_eq!(said(&s), bound);
}

#[test]
fn a_job_s_sum_has_the_weakest_source_and_shares_leave_room_in_verdicts() {
    let of = |per_s: f64, ns: u64, source: Source| Recent {
        ns,
        tx: Some(per_s),
        rx: Some(0.0),
        whole: true,
        source,
    };
    let two = |one, other| Carried::sum(&[one, other], 2).unwrap();
    for parts in [
        [of(1.0, 30 * S, Source::Hw), of(2.0, 29 * S, Source::Psn)],
        [of(2.0, 29 * S, Source::Psn), of(1.0, 30 * S, Source::Hw)],
    ] {
        let [one, other] = parts;
        assert_eq!(two(one, other).source, Source::Psn);
        assert!(!two(one, other).partial);
    }
    let port = of(1.0, 30 * S, Source::Port);
    assert_eq!(two(of(1.0, 30 * S, Source::Hw), port).source, Source::Port);
    let with = |share: f64, source: Source| {
        let mut s = alone(share * FULL, 0.0);
        recent(&mut s).source = source;
        said(&s)
    };
    assert!(with(0.82, Source::Port).ends_with("communication-bound"));
    assert!(
        !with(0.82, Source::Psn).contains("bound"),
        "{}",
        with(0.82, Source::Psn)
    );
    assert!(with(0.86, Source::Psn).starts_with("about 86 %"));
    assert!(with(0.86, Source::Psn).ends_with("communication-bound"));
}

proptest! {
    #[test]
    fn a_job_s_sum_over_mixed_sources_is_as_certain_as_its_weakest_part(
        parts in prop::collection::vec((0.0..1e10_f64, 0.0..1.0_f64, 0..4), 1..6),
        lacks_one: bool,
    ) {
        let mut truth = 0.0;
        let recent = parts.iter().map(|(rate, off, kind)| {
            truth += rate;
            let (tx, whole, source) = match kind {
                0 => (*rate, true, Source::Hw),
                1 => (*rate, true, Source::Port),
                2 => (rate * 1.05 / (1.0 + 0.1 * off), true, Source::Psn),
                _ => (rate * off, false, Source::Ebpf),
            };
            Recent { ns: 30 * S, tx: Some(tx), rx: Some(0.0), whole, source }
        });
        let recent: Vec<Recent> = recent.collect();
        let sum = Carried::sum(&recent, recent.len() as u64 + u64::from(lacks_one)).unwrap();
        prop_assert_eq!(Some(sum.source), recent.iter().map(|one| one.source).max());
        prop_assert_eq!(sum.partial, lacks_one || recent.iter().any(|one| !one.whole));
        let off = (sum.per_s - truth) / truth.max(1e-9);
        if sum.partial {
            prop_assert!(off <= 1e-9, "{} of {}", sum.per_s, truth);
        } else {
            let error = if sum.source == Source::Psn { MIDDLE_IS_WITHIN } else { 0.0 };
            prop_assert!(off.abs() <= error + 1e-9, "{} of {}", sum.per_s, truth);
        }
    }
}
