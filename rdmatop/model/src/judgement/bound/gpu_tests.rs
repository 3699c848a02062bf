//! Verdicts that need GPUs, and similar cases without one.

use super::tests::{FULL, S, add, alone};
use super::*;
use crate::input::{GpuActivity, GpuReading, GpuSample};
use crate::snapshot::Snapshot;

/// Makes a reading per second up to now, with one GPU for each list of processes.
fn readings(s: &Snapshot, seconds: u64, sms: f64, tensor: f64, processes: &[&[u32]]) -> Vec<GpuSample> {
    let gpu = |pids: &&[u32]| GpuReading {
        place: None,
        activity: Some(GpuActivity { sms, tensor }),
        processes: Some(pids.to_vec()),
    };
    let sample = |back: u64| GpuSample {
        before_ns: s.mono_ns - (back + 1) * S,
        mono_ns: s.mono_ns - back * S,
        gpus: processes.iter().map(gpu).collect(),
        takes_addresses: false,
    };
    (0..seconds).rev().map(sample).collect()
}

fn now() -> u64 {
    100 * S
}

/// A process whose links are busy by this share.
fn loaded(share: f64) -> Snapshot {
    let mut s = alone(share * FULL, 0.0);
    s.mono_ns = now();
    s
}

fn found(s: &Snapshot, gpus: &[GpuSample]) -> Bound {
    let s = s.clone().judged(None);
    s.judgement.bounds(&s, gpus)[0].unwrap()
}

fn verdict(s: &Snapshot, gpus: &[GpuSample]) -> Option<&'static str> {
    found(s, gpus).verdict
}

#[test]
fn links_at_rest_and_gpus_that_compute_make_a_job_compute_bound() {
    let s = loaded(0.1);
    let busy = readings(&s, 20, 0.85, 0.4, &[&[1]]);
    assert_eq!(
        found(&s, &busy).line(),
        "10 % busy over the last 30 s; multiprocessors 85 % busy, tensor cores 40 %: compute-bound"
    );
    // At the limits, and just below.
    for (sms, tensor, wanted) in [
        (0.7, 0.1, Some("compute")),
        (0.69, 0.1, None),
        (0.7, 0.09, None),
        // A waiting NCCL kernel: a few multiprocessors, no tensor core.
        (0.25, 0.0, None),
        // A kernel that waits on all multiprocessors.
        (1.0, 0.0, None),
    ] {
        let gpus = readings(&s, 20, sms, tensor, &[&[1]]);
        assert_eq!(verdict(&s, &gpus), wanted, "{sms} {tensor}");
    }
    for (share, wanted) in [(0.49, Some("compute")), (0.5, None), (0.79, None)] {
        let s = loaded(share);
        assert_eq!(verdict(&s, &busy), wanted, "{share}");
    }
}

#[test]
fn a_job_waits_for_full_links_unless_its_gpus_compute_all_the_same() {
    let s = loaded(0.9);
    assert_eq!(verdict(&s, &[]), Some("communication"));
    assert_eq!(
        verdict(&s, &readings(&s, 20, 0.25, 0.0, &[&[1]])),
        Some("communication")
    );
    let both = readings(&s, 20, 0.85, 0.4, &[&[1]]);
    assert_eq!(
        found(&s, &both).line(),
        "90 % busy over the last 30 s; multiprocessors 85 % busy, tensor cores 40 %"
    );
}

#[test]
fn what_of_the_gpus_is_not_known_gives_no_verdict() {
    let s = loaded(0.1);
    let good = readings(&s, 20, 0.85, 0.4, &[&[1]]);
    assert_eq!(verdict(&s, &good), Some("compute"));
    // Readings that are too short, of another process, shared, with a gap, or old.
    assert_eq!(found(&s, &good[11..]).gpu, None);
    assert_eq!(found(&s, &readings(&s, 20, 0.85, 0.4, &[&[2]])).gpu, None);
    assert_eq!(found(&s, &readings(&s, 20, 0.85, 0.4, &[&[1, 2]])).gpu, None);
    let mut gap = good.clone();
    gap.remove(15);
    assert_eq!(found(&s, &gap).gpu, None);
    let mut later = s.clone();
    later.mono_ns += 6 * S;
    assert_eq!(found(&later, &good).gpu, None);
    // One of its two GPUs has no activity, or it is unknown who computes on one.
    let two = readings(&s, 20, 0.85, 0.4, &[&[1], &[1]]);
    assert_eq!(found(&s, &two).gpu.unwrap().gpus, 2);
    let mut silent = two.clone();
    for sample in &mut silent {
        sample.gpus[1].activity = None;
    }
    assert_eq!(found(&s, &silent).gpu, None);
    let mut nobody = two;
    for sample in &mut nobody {
        sample.gpus[1].processes = None;
    }
    assert_eq!(found(&s, &nobody).gpu, None);
    // The traffic of its links is only a lower bound.
    let mut s = s;
    s.processes[0].recent.as_mut().unwrap().whole = false;
    assert_eq!(verdict(&s, &good), None);
}

#[test]
fn the_gpus_of_a_job_are_those_of_all_its_processes() {
    let mut s = loaded(0.1);
    add(&mut s, 2, 0.1 * FULL, 0.0);
    for row in &mut s.processes {
        row.workload = Some("job:7".into());
    }
    let mut gpus = readings(&s, 20, 0.9, 0.5, &[&[1], &[2]]);
    for sample in &mut gpus {
        sample.gpus[1].activity = Some(GpuActivity {
            sms: 0.7,
            tensor: 0.1,
        });
    }
    let of_both = found(&s, &gpus).gpu.unwrap();
    assert!((of_both.sm_share - 0.8).abs() < 1e-9 && (of_both.tensor_share - 0.3).abs() < 1e-9);
    assert_eq!((of_both.gpus, of_both.seconds), (2, 20.0));
}
