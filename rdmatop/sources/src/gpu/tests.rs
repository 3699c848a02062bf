//! A library of our own stands in for the driver's: it is loaded and called alike, and needs no GPU.

use std::{
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use super::*;
use crate::fake::Fake;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/gpu/fake_nvml.c");

/// Builds the library with these values.
fn library(dir: &Path, values: &[(&str, &str)]) -> PathBuf {
    let library = dir.join("libnvidia-ml.so.1");
    let done = Command::new("cc")
        .args([
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            "-o",
        ])
        .arg(&library)
        .args(values.iter().map(|(name, value)| format!("-D{name}={value}")))
        .arg(SOURCE)
        .status();
    assert!(done.unwrap().success());
    library
}

/// What a library says first, within some seconds.
fn read(values: &[(&str, &str)]) -> Result<GpuSample, NoGpus> {
    let dir = tempfile::tempdir().unwrap();
    let library = library(dir.path(), values);
    let fake = Fake::new();
    fake.sys("devices/pci0000:0e/0000:0e:01.0/0000:0f:00.0/numa_node", "1\n")
        .link(
            "sys/bus/pci/devices/0000:0f:00.0",
            fake.root().sys("devices/pci0000:0e/0000:0e:01.0/0000:0f:00.0"),
        );
    let mut gpus = Gpus::by(library.to_str().unwrap(), fake.root()).unwrap();
    let begin = Instant::now();
    loop {
        if let Some(sample) = gpus.poll()? {
            return Ok(sample);
        }
        assert!(begin.elapsed() < Duration::from_mins(1), "no answer");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn gpus_with_gpm_tell_where_they_are_how_busy_and_who_computes() {
    let values = [
        ("GPUS", "2"),
        ("GPM", "1"),
        ("SM", "87.5"),
        ("TENSOR", "25"),
        ("PID", "4711"),
    ];
    let sample = read(&values).unwrap();
    let reading = |place: GpuPlace| GpuReading {
        place: Some(Arc::new(place)),
        activity: Some(GpuActivity {
            sms: 0.875,
            tensor: 0.25,
        }),
        processes: Some(vec![4711]),
    };
    let path = ["pci0000:0e", "0000:0e:01.0", "0000:0f:00.0"];
    let first = GpuPlace {
        address: "0000:0f:00.0".to_owned(),
        path: path.map(str::to_owned).to_vec(),
        node: Some(1),
    };
    // sysfs has nothing of the second one.
    let second = GpuPlace {
        address: "0000:10:00.0".to_owned(),
        path: Vec::new(),
        node: None,
    };
    assert_eq!(sample.gpus, [reading(first), reading(second)]);
    assert!(sample.before_ns > 0 && sample.mono_ns - sample.before_ns >= EVERY / 2);
}

#[test]
fn the_last_reading_is_of_the_time_since_the_first() {
    let values = [
        ("GPUS", "1"),
        ("GPM", "1"),
        ("SM", "50"),
        ("TENSOR", "25"),
        ("PID", "4711"),
    ];
    let dir = tempfile::tempdir().unwrap();
    let library = library(dir.path(), &values);
    let mut gpus = Gpus::by(library.to_str().unwrap(), Fake::new().root()).unwrap();
    let begin = now().mono_ns;
    assert!(gpus.poll().unwrap().is_none() && gpus.waits);
    while gpus.waits {
        // The first reading is half of an answer.
        assert!(gpus.poll().unwrap().is_none());
        thread::sleep(Duration::from_millis(10));
    }
    let sample = gpus.finish().unwrap();
    assert!(
        begin <= sample.before_ns && sample.before_ns < sample.mono_ns,
        "{sample:?}"
    );
    assert!(sample.gpus[0].activity.is_some());
}

#[test]
fn a_value_that_is_none_is_unknown() {
    for percent in ["101", "-1", "0.0/0.0"] {
        let values = [
            ("GPUS", "1"),
            ("GPM", "1"),
            ("SM", percent),
            ("TENSOR", "25"),
            ("PID", "4711"),
        ];
        let sample = read(&values).unwrap();
        assert_eq!(sample.gpus[0].activity, None, "{percent}");
    }
}

#[test]
fn gpus_before_hopper_tell_who_computes_and_not_how_busy_they_are() {
    let values = [
        ("GPUS", "1"),
        ("GPM", "0"),
        ("SM", "90"),
        ("TENSOR", "25"),
        ("PID", "1"),
    ];
    let gpu = read(&values).unwrap().gpus.remove(0);
    assert_eq!((gpu.activity, gpu.processes), (None, Some(vec![1])));
}

#[test]
fn without_the_library_nobody_is_asked_again() {
    let mut none = Gpus::by("/no/such/libnvidia-ml.so.1", Fake::new().root()).unwrap();
    let begin = Instant::now();
    while none.poll().is_ok() {
        assert!(begin.elapsed() < Duration::from_mins(1), "it does not end");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_driver_that_does_not_answer_delays_nothing() {
    let values = [
        ("GPUS", "1"),
        ("GPM", "1"),
        ("SM", "90"),
        ("TENSOR", "25"),
        ("PID", "1"),
        ("DELAY", "3600"),
    ];
    let dir = tempfile::tempdir().unwrap();
    let library = library(dir.path(), &values);
    let mut gpus = Gpus::by(library.to_str().unwrap(), Fake::new().root()).unwrap();
    let begin = Instant::now();
    for _ in 0..100 {
        assert!(gpus.poll().unwrap().is_none());
    }
    assert!(gpus.finish().is_none());
    assert!(begin.elapsed() < PATIENCE * 20);
}

#[test]
fn a_machine_without_gpus_starts_no_thread() {
    let fake = Fake::new();
    assert!(Gpus::of(&fake.root()).is_none());
}

#[test]
fn what_can_give_a_nic_memory_of_a_gpu_by_its_address_is_found() {
    let with = |edit: fn(&Fake)| {
        let fake = Fake::new();
        fake.sys("module/nvidia/taint", "OE\n")
            .sys("module/efa/taint", "\n");
        edit(&fake);
        takes_addresses(&fake.root())
    };
    // No other machine tells whether GPU and CPU share page tables.
    let unknown = cfg!(not(target_arch = "x86_64"));
    assert_eq!(with(|_| ()), unknown);
    let changes: [fn(&Fake); 6] = [
        |fake| _ = fake.sys("module/nvidia_peermem/refcnt", "0\n"),
        |fake| _ = fake.sys("module/nv_peer_mem/refcnt", "0\n"),
        |fake| _ = fake.sys("module/efa_nv_peermem/refcnt", "0\n"),
        |fake| _ = fake.sys("module/bnxt_peer_mem/refcnt", "0\n"),
        |fake| _ = fake.sys("kernel/mm/memory_peers/nv_mem/version", "1\n"),
        |fake| _ = fake.sys("module/efa/taint", "OE\n"),
    ];
    for (n, change) in changes.into_iter().enumerate() {
        assert!(with(change), "{n}");
    }
    assert!(takes_addresses(&Fake::new().root()), "no list of modules");
}

#[test]
fn gpus_are_there_where_the_driver_lists_one() {
    let fake = Fake::new();
    assert!(!are_listed(&fake.root()));
    fake.dir("proc/driver/nvidia/gpus");
    assert!(!are_listed(&fake.root()));
    fake.dir("proc/driver/nvidia/gpus/0000:0f:00.0");
    assert!(are_listed(&fake.root()));
}
