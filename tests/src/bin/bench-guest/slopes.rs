//! The cost of a refresh as a function of idle QPs, processes and devices.

use std::{process::Command, thread, time::Duration};

use anyhow::{Context as _, Result};
use rdmatop_tests::child::Child;

use crate::{
    Bench, cpu,
    floor::{self, Floor},
    live::View,
    report::Report,
};

/// The CPU time of a refreshing view is averaged over this time. It has ten refreshes of one second, and
/// exactly two of the readings made every five seconds, wherever it begins.
const WINDOW: Duration = Duration::from_millis(9500);
/// By then a view has done what it does once: attaching, the first sync, and learning which devices are idle,
/// which takes two readings of their counts five seconds apart.
const WARM: Duration = Duration::from_secs(9);
const READY: Duration = Duration::from_mins(4);

/// A number of idle QPs, spread over a number of processes.
struct Load {
    name: &'static str,
    qps: u32,
    processes: u32,
    goals: &'static [&'static str],
}

const LOADS: [Load; 5] = [
    Load {
        name: "idle",
        qps: 0,
        processes: 0,
        goals: &["G1", "G2", "G3", "G5"],
    },
    Load {
        name: "q1000",
        qps: 1000,
        processes: 10,
        goals: &["G2", "G3"],
    },
    Load {
        name: "q10000",
        qps: 10_000,
        processes: 10,
        goals: &["G2", "G3", "G10"],
    },
    Load {
        name: "p1",
        qps: 1000,
        processes: 1,
        goals: &["G4"],
    },
    Load {
        name: "p100",
        qps: 1000,
        processes: 100,
        goals: &["G4"],
    },
];

/// Measures all loads on one device.
pub(crate) fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    for load in LOADS {
        if !bench.wants(load.goals) {
            continue;
        }
        let name = load.name;
        let held = hold(&load);
        match held {
            Ok(holder) => {
                measure(bench, name, load.qps, report);
                if name.starts_with('q') || name == "idle" {
                    let mut command = Command::new("rdma");
                    report.try_value(
                        &format!("rdma.{name}.qps"),
                        cpu::of_run(command.args(["res", "show", "qp"])),
                    );
                }
                release(holder)?;
            }
            Err(error) => report.missing(name, &format!("{error:#}")),
        }
        report.write()?;
    }
    Ok(())
}

/// Measures all devices of the guest without any QP.
pub(crate) fn devices(bench: &Bench, report: &mut Report) -> Result<()> {
    measure(bench, "many", 0, report);
    let mut command = Command::new("rdma");
    let cost = cpu::of_run(command.args(["-j", "statistic", "show"]))?;
    report.value("rdma.many.stat", cost);
    Ok(())
}

fn hold(load: &Load) -> Result<Option<Child>> {
    if load.qps == 0 {
        return Ok(None);
    }
    let program = std::env::current_exe()?.with_file_name("idle-qps");
    let mut command = Command::new(program);
    command.args([
        "--qps",
        &load.qps.to_string(),
        "--processes",
        &load.processes.to_string(),
    ]);
    let child = Child::spawn(&mut command)?;
    child
        .out
        .wait_for("line of idle-qps", READY, |line| line.contains("\"ready\":true"))?;
    Ok(Some(child))
}

fn release(holder: Option<Child>) -> Result<()> {
    if let Some(mut child) = holder {
        child.close_stdin();
        child.succeed(READY)?;
    }
    Ok(())
}

fn measure(bench: &Bench, load: &str, made: u32, report: &mut Report) {
    match floor::measure() {
        Ok(Floor {
            stat,
            port,
            devices,
            qps,
        }) => {
            report.value(format!("floor.{load}.stat"), stat);
            report.value(format!("floor.{load}.port"), port);
            report.value(format!("floor.{load}.devices"), devices);
            report.value(format!("floor.{load}.qps"), qps);
        }
        Err(error) => report.missing(&format!("floor.{load}"), &format!("{error:#}")),
    }
    for view in [View::OursNoEbpf, View::Ours, View::Peer] {
        let name = format!("{}.{load}", view.name());
        match refresh(bench, view, made) {
            Ok(Some(refresh)) => {
                report.value(format!("{name}.cpu"), refresh.cpu);
                report.value(format!("{name}.rss"), refresh.resident);
                report.value(format!("{name}.anon"), refresh.anonymous);
                report.value(format!("{name}.maps"), refresh.maps);
            }
            Ok(None) => {}
            Err(error) => report.missing(&name, &format!("{error:#}")),
        }
    }
}

/// The cost of a running view.
struct Refresh {
    /// Instructions per second.
    cpu: f64,
    /// Bytes of resident memory.
    resident: f64,
    /// Bytes that are neither files nor eBPF maps.
    anonymous: f64,
    /// Bytes of mapped eBPF maps.
    maps: f64,
}

fn refresh(bench: &Bench, view: View, qps: u32) -> Result<Option<Refresh>> {
    let Some((mut running, _)) = view.start_for(bench, qps)? else {
        return Ok(None);
    };
    thread::sleep(WARM);
    let cpu = cpu::per_second(running.pid(), WINDOW)?;
    let memory = |name| cpu::memory(running.pid(), name);
    let (resident, anonymous) = (memory("VmRSS")?, memory("RssAnon")?);
    let maps = cpu::mapped(running.pid())?;
    running.alive().context("while it was measured")?;
    running.quit()?;
    Ok(Some(Refresh {
        cpu,
        resident,
        anonymous,
        maps,
    }))
}
