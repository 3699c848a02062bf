//! `lab run` on a made-up machine, without programs: a child would inherit the locks of the tests that run
//! beside it.
use std::panic::{self, AssertUnwindSafe};

use super::Lab;
use crate::run::{Scenario, Wire, run_scenario};
use crate::say::Printer;
use crate::{LabError, RunArgs};

const SCENARIO: Scenario = Scenario {
    name: "idle",
    what: "",
    look: "",
    ports: 2,
    mtu: 1500,
    wire: Wire::Clean,
    traffic: &[],
};

const WITH_DISK: Scenario = Scenario {
    ports: 1,
    wire: Wire::None,
    ..SCENARIO
};

impl Lab {
    fn scenario(&mut self, force: bool) -> (Result<(), LabError>, String, Vec<String>) {
        self.one(&SCENARIO, force)
    }

    fn one(&mut self, scenario: &Scenario, force: bool) -> (Result<(), LabError>, String, Vec<String>) {
        let mut out = Vec::new();
        let args = RunArgs {
            scenario: None,
            list: false,
            seconds: Some(0),
            view: false,
            force,
            programs: None,
            quiet: true,
        };
        let store = self.store();
        let result = run_scenario(
            &mut self.machine,
            &store,
            scenario,
            &args,
            &mut Printer::new(&mut out),
        );
        (
            result,
            String::from_utf8(out).unwrap(),
            std::mem::take(&mut self.machine.log),
        )
    }

    /// Runs a scenario and is killed at a moment, as [`Lab::killed`].
    fn killed_in_scenario(&mut self, scenario: &Scenario, moment: u32) -> bool {
        self.machine.fuse = Some(moment);
        let run = panic::catch_unwind(AssertUnwindSafe(|| self.one(scenario, false)));
        self.machine.fuse = None;
        self.machine.log.clear();
        run.is_err()
    }
}

#[test]
fn a_scenario_removes_at_its_end_what_it_made_and_nothing_that_up_made() {
    let mut lab = Lab::new(&["ens5"], Some("ens5"));
    let before = lab.machine.things();
    let (result, out, log) = lab.scenario(false);
    result.unwrap();
    let made = ["+labnet0", "+lab0@labnet0", "+labnet1", "+lab1@labnet1"];
    let removed = ["-lab1", "-lab0", "-labnet1", "-labnet0", "-rdma_rxe"];
    assert_eq!(log, [&made[..], &removed[..]].concat());
    assert!(out.contains("running for 0 s"), "{out}");
    assert_eq!(lab.machine.things(), before);
    assert!(lab.store().read().unwrap().is_none());
    lab.up(None, 2).0.unwrap();
    let before = lab.machine.things();
    let (result, _, log) = lab.scenario(false);
    result.unwrap();
    assert_eq!(log, [&made[..], &removed[..4]].concat());
    assert_eq!(lab.machine.things(), before);
    assert_eq!(lab.down(false).2, ["-rxe1", "-rxe0", "-rdmatop1", "-rdma_rxe"]);
}

#[test]
fn a_machine_with_devices_of_its_own_runs_a_scenario_only_when_told() {
    let mut lab = Lab::new(&["ens5"], Some("ens5"));
    lab.machine.device("mlx5_0", &["ens5"], false);
    let (result, _, log) = lab.scenario(false);
    let error = result.unwrap_err().to_string();
    assert!(
        error.contains("(mlx5_0)") && error.ends_with("add --force"),
        "{error}"
    );
    assert!(log.is_empty() && lab.machine.rxe.is_none(), "{log:?}");
    lab.scenario(true).0.unwrap();
    assert_eq!(lab.machine.devices.len(), 1);
}

#[test]
fn a_scenario_leaves_a_device_that_has_the_name_of_its_own() {
    let mut lab = Lab::new(&["ens5"], Some("ens5"));
    lab.machine.device("lab1", &["ens5"], true);
    let before = lab.machine.devices.clone();
    let error = lab.scenario(false).0.unwrap_err().to_string();
    assert!(error.starts_with("there is a lab1 already"), "{error}");
    assert_eq!(lab.machine.devices, before);
    assert_eq!(lab.machine.interfaces.len(), 1);
}

#[test]
fn a_scenario_killed_at_any_moment_leaves_what_down_or_the_next_removes() {
    for next in [false, true] {
        let mut moment = 0;
        loop {
            let mut lab = Lab::new(&["ens5"], None);
            let before = lab.machine.things();
            let ended = !lab.killed_in_scenario(&SCENARIO, moment);
            let after = if next {
                lab.scenario(false)
            } else {
                lab.down(false)
            };
            after.0.unwrap();
            assert_eq!(lab.machine.things(), before, "killed at {moment}");
            assert!(lab.store().read().unwrap().is_none(), "killed at {moment}");
            if ended {
                assert!(moment > 12, "{moment}");
                break;
            }
            moment += 1;
        }
    }
}

#[test]
fn a_disk_and_the_modules_that_it_loaded_go_before_its_device() {
    let mut lab = Lab::new(&["ens5"], None);
    // As on a machine that boots from an NVMe disk.
    lab.machine.modules.insert("nvme_core", 7);
    let before = lab.machine.things();
    let (result, _, log) = lab.one(&WITH_DISK, false);
    result.unwrap();
    assert_eq!(
        log,
        [
            "+labnet0, no cable",
            "+lab0@labnet0",
            "+disk@lab0",
            "-disk",
            "-nvmet_rdma",
            "-nvme_rdma",
            "-nvmet",
            "-nvme_fabrics",
            "-nvme_auth",
            "-nvme_keyring",
            "-lab0",
            "-labnet0",
            "-rdma_rxe"
        ]
    );
    assert_eq!(lab.machine.things(), before);
    assert_eq!(lab.machine.modules.len(), 1);
}

#[test]
fn a_disk_scenario_killed_at_any_moment_leaves_what_down_removes() {
    for next in [false, true] {
        let mut moment = 0;
        loop {
            let mut lab = Lab::new(&["ens5"], None);
            lab.machine.disks.push("somebody's".into());
            let before = lab.machine.things();
            let ended = !lab.killed_in_scenario(&WITH_DISK, moment);
            let after = if next {
                lab.scenario(false)
            } else {
                lab.down(false)
            };
            after.0.unwrap();
            assert_eq!(lab.machine.things(), before, "killed at {moment}");
            assert!(lab.machine.modules.is_empty(), "killed at {moment}");
            assert_eq!(lab.machine.disks, ["somebody's"], "killed at {moment}");
            assert!(lab.store().read().unwrap().is_none(), "killed at {moment}");
            if ended {
                assert!(moment > 20, "{moment}");
                break;
            }
            moment += 1;
        }
    }
}

#[test]
fn a_module_that_was_loaded_again_by_somebody_else_stays() {
    let mut lab = Lab::new(&["ens5"], None);
    let mut moment = 0;
    // Killed as soon as the disk is there.
    while lab.machine.disks.is_empty() {
        lab = Lab::new(&["ens5"], None);
        lab.killed_in_scenario(&WITH_DISK, moment);
        moment += 1;
    }
    lab.machine.modules.insert("nvmet", 4711);
    lab.down(false).0.unwrap();
    assert_eq!(lab.machine.modules.keys().collect::<Vec<_>>(), [&"nvmet"]);
}
