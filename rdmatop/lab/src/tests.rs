//! The lab's decisions on a made-up machine.
mod scenario;

use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::time::Duration;

use super::disk;
use super::host::{Host, Interface, Leaving, Netdev, NetnsMode, Present, RXE, Switch, refused};
use super::run::Wire;
use super::state::MadeDisk;
use super::store::Store;
use super::{DownArgs, LabArgs, LabCommand, LabError, UpArgs, cannot, run_on};
use rdmatop_sources::netlink::name::Name;

/// A machine. It gives no number twice; of the real kernel's numbers this is sure only of inodes in sysfs.
#[derive(Default)]
struct Machine {
    boot: String,
    rxe: Option<u64>,
    in_use: bool,
    exclusive: bool,
    devices: Vec<Present>,
    interfaces: Vec<Interface>,
    default_netdev: Option<String>,
    /// Who holds rxe0; no other device is held.
    holders: Vec<String>,
    /// Devices that netlink lists no more and that are there still.
    leaving: Vec<String>,
    /// The modules of the scenario with a disk, and how often each is used.
    modules: BTreeMap<&'static str, u64>,
    disks: Vec<String>,
    next: u32,
    log: Vec<String>,
    /// Kills the program after this many more changes of the machine: before one, or just after it.
    fuse: Option<u32>,
}

impl Machine {
    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// A moment at which a signal may end the program.
    fn moment(&mut self) {
        if let Some(left) = &mut self.fuse {
            match left.checked_sub(1) {
                Some(less) => *left = less,
                None => panic::resume_unwind(Box::new("killed")),
            }
        }
    }

    fn did(&mut self, what: String) {
        self.log.push(what);
        self.moment();
    }

    fn device(&mut self, name: &str, netdevs: &[&str], software: bool) {
        let index = self.number();
        let of = |name: &&str| {
            let found = self.interfaces.iter().find(|interface| interface.name == **name);
            Netdev {
                index: found.map_or(0, |interface| interface.index),
                name: Name::from(*name),
            }
        };
        let netdevs = netdevs.iter().map(of).collect();
        self.devices.push(Present {
            name: Name::from(name),
            index,
            node_guid: Some(u64::from(index) << 8),
            inode: Some(1000 + u64::from(index)),
            software,
            netdevs,
        });
    }

    fn interface(&mut self, name: &str, address: [u8; 6]) {
        let index = self.number();
        self.interfaces.push(Interface {
            name: Name::from(name),
            index,
            address: Some(address),
            inode: Some(2000 + u64::from(index)),
        });
    }

    /// All there is, for comparison.
    fn things(&self) -> (Vec<Present>, Vec<Interface>, Option<u64>) {
        (self.devices.clone(), self.interfaces.clone(), self.rxe)
    }
}

impl Host for Machine {
    fn boot(&mut self) -> String {
        self.boot.clone()
    }
    fn has_rxe(&mut self) -> bool {
        self.rxe.is_some()
    }
    fn load_rxe(&mut self) -> Result<(), LabError> {
        if self.rxe.is_none() {
            self.moment();
            self.rxe = Some(u64::from(self.number()));
            self.moment();
        }
        Ok(())
    }
    fn netns_mode(&mut self) -> Option<NetnsMode> {
        Some(if self.exclusive {
            NetnsMode::Exclusive
        } else {
            NetnsMode::Shared
        })
    }
    fn devices(&mut self) -> Result<Vec<Present>, LabError> {
        Ok(self.devices.clone())
    }
    fn leaving(&mut self) -> Vec<Leaving> {
        let leaving = |name: &String| Leaving {
            name: Name::from(name.as_str()),
            held: "held by 231 (ib_send_bw)".to_owned(),
        };
        self.leaving.iter().map(leaving).collect()
    }
    fn add_device(&mut self, name: &str, netdev: &Interface) -> Result<(), LabError> {
        self.moment();
        let netdev = netdev.name.to_string();
        self.device(name, &[&netdev], true);
        self.did(format!("+{name}@{netdev}"));
        Ok(())
    }
    fn remove_device(&mut self, device: &Present) -> Result<(), LabError> {
        self.moment();
        self.devices.retain(|known| known.index != device.index);
        self.did(format!("-{}", device.name));
        Ok(())
    }
    fn holders(&mut self, index: u32) -> Result<Vec<String>, LabError> {
        let held = self
            .devices
            .iter()
            .any(|device| device.index == index && device.name == "rxe0");
        Ok(if held { self.holders.clone() } else { Vec::new() })
    }
    fn default_netdev(&mut self) -> Option<String> {
        self.default_netdev.clone()
    }
    fn interfaces(&mut self) -> Vec<Interface> {
        self.interfaces.clone()
    }
    fn new_address(&mut self) -> [u8; 6] {
        let [.., high, low] = self.number().to_be_bytes();
        [2, 0, 0, 0, high, low]
    }
    fn add_dummy(&mut self, name: &str, address: [u8; 6]) -> Result<(), LabError> {
        self.moment();
        self.interface(name, address);
        self.moment();
        Ok(())
    }
    fn new_switch(&mut self) -> Result<Switch, LabError> {
        self.moment();
        Ok(Switch::default())
    }
    fn add_port(&mut self, _: &Switch, name: &str, address: [u8; 6], _: u32) -> Result<(), LabError> {
        self.moment();
        self.interface(name, address);
        self.did(format!("+{name}"));
        Ok(())
    }
    fn add_inside(&mut self, name: &str, address: [u8; 6]) -> Result<(), LabError> {
        self.moment();
        self.interface(name, address);
        self.did(format!("+{name}, no cable"));
        Ok(())
    }
    fn module_inode(&mut self, name: &str) -> Option<u64> {
        match name {
            RXE => self.rxe,
            name => self.modules.get(name).copied(),
        }
    }
    fn load_disk_modules(&mut self) -> Result<(), LabError> {
        for name in disk::MODULES {
            self.moment();
            if !self.modules.contains_key(name) {
                let inode = u64::from(self.number());
                self.modules.insert(name, inode);
            }
        }
        self.moment();
        Ok(())
    }
    fn unload(&mut self, name: &'static str) -> Result<(), LabError> {
        if name == RXE && self.in_use {
            return Err(cannot("run `rmmod rdma_rxe`", &"in use"));
        }
        self.moment();
        if name == RXE {
            self.rxe = None;
        }
        self.modules.remove(name);
        self.did(format!("-{name}"));
        Ok(())
    }
    fn make_disk(&mut self, disk: &MadeDisk, device: &str) -> Result<PathBuf, LabError> {
        self.moment();
        self.disks.push(disk.name.clone());
        self.did(format!("+disk@{device}"));
        Ok(PathBuf::from("/dev/nvme7n1"))
    }
    fn remove_disk(&mut self, disk: &MadeDisk) -> Result<bool, LabError> {
        self.moment();
        let before = self.disks.len();
        self.disks.retain(|name| *name != disk.name);
        let was = self.disks.len() < before;
        if was {
            self.did("-disk".into());
        }
        Ok(was)
    }
    fn await_device(&mut self, _: &str) -> Result<(), LabError> {
        Ok(())
    }
    fn disturb(&mut self, _: &Interface, _: Wire) -> Result<(), LabError> {
        Ok(())
    }
    fn add_ipv4(&mut self, interface: &Interface, address: [u8; 4]) -> Result<(), LabError> {
        self.moment();
        self.did(format!("+{} {address:?}", interface.name));
        Ok(())
    }
    fn remove_interface(&mut self, interface: &Interface) -> Result<(), LabError> {
        self.moment();
        self.interfaces.retain(|known| known.index != interface.index);
        self.did(format!("-{}", interface.name));
        Ok(())
    }
}

/// Where nothing can be written.
struct Full;

impl std::io::Write for Full {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::Error::from_raw_os_error(libc::ENOSPC))
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct Lab {
    machine: Machine,
    dir: tempfile::TempDir,
}

impl Lab {
    fn new(interfaces: &[&str], default: Option<&str>) -> Self {
        let mut machine = Machine {
            boot: "first".into(),
            default_netdev: default.map(String::from),
            ..Machine::default()
        };
        for name in interfaces {
            machine.interface(name, [0, 1, 2, 3, 4, 5]);
        }
        Self {
            machine,
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn store(&self) -> Store {
        let owner = rustix::process::geteuid().as_raw();
        Store::new(&self.dir.path().join("rdmatop"), owner, Duration::ZERO)
    }

    fn run(&mut self, command: LabCommand) -> (Result<(), LabError>, String, Vec<String>) {
        let mut out = Vec::new();
        let store = self.store();
        let result = run_on(&mut self.machine, &store, true, &LabArgs { command }, &mut out).map(|_| ());
        (
            result,
            String::from_utf8(out).unwrap(),
            std::mem::take(&mut self.machine.log),
        )
    }

    fn up(&mut self, netdev: Option<&str>, devices: u8) -> (Result<(), LabError>, String, Vec<String>) {
        self.run(up(netdev, devices))
    }

    fn down(&mut self, force: bool) -> (Result<(), LabError>, String, Vec<String>) {
        self.run(LabCommand::Down(DownArgs { force }))
    }

    fn status(&mut self) -> String {
        self.run(LabCommand::Status).1
    }

    /// Runs a command that is killed at the given moment; false when it was over before.
    fn killed(&mut self, command: LabCommand, moment: u32) -> bool {
        self.machine.fuse = Some(moment);
        let run = panic::catch_unwind(AssertUnwindSafe(|| self.run(command)));
        self.machine.fuse = None;
        self.machine.log.clear();
        run.is_err()
    }
}

fn up(netdev: Option<&str>, devices: u8) -> LabCommand {
    LabCommand::Up(UpArgs {
        netdev: netdev.map(String::from),
        devices,
    })
}

#[test]
fn up_uses_the_default_route_first_and_own_dummies_after() {
    let mut lab = Lab::new(&["ens5"], Some("ens5"));
    let (result, out, log) = lab.up(None, 3);
    result.unwrap();
    let expected = [
        "+rxe0@ens5",
        "+rdmatop1 [10, 77, 1, 1]",
        "+rxe1@rdmatop1",
        "+rdmatop2 [10, 77, 2, 1]",
        "+rxe2@rdmatop2",
    ];
    assert_eq!(log, expected);
    assert!(out.starts_with("loaded rdma_rxe\nmade rxe0 on ens5\n"), "{out}");
    // The interface of the default route is everybody's, the dummies are nobody's.
    assert_eq!(out.matches("open to the network of ens5").count(), 1, "{out}");
    assert_eq!(out.matches("open to the network").count(), 1, "{out}");
}

#[test]
fn up_again_makes_nothing_and_more_devices_only_what_is_missing() {
    let mut lab = Lab::new(&["ens5"], Some("ens5"));
    lab.up(None, 1).0.unwrap();
    let (_, out, log) = lab.up(None, 1);
    assert_eq!((out.as_str(), log.len()), ("rxe0 is there already\n", 0));
    let (_, _, log) = lab.up(None, 2);
    assert_eq!(log, ["+rdmatop1 [10, 77, 1, 1]", "+rxe1@rdmatop1"]);
}

#[test]
fn down_removes_in_reverse_just_what_up_made() {
    let mut lab = Lab::new(&["ens5"], None);
    lab.machine.device("mlx5_0", &[], false);
    lab.up(None, 2).0.unwrap();
    let (result, _, log) = lab.down(false);
    result.unwrap();
    assert_eq!(log, ["-rxe1", "-rxe0", "-rdmatop1", "-rdmatop0", "-rdma_rxe"]);
    assert_eq!(lab.machine.devices.len(), 1);
    assert_eq!(lab.machine.interfaces.len(), 1);
    assert!(lab.down(false).1.starts_with("nothing to remove"));
}

#[test]
fn down_tells_of_what_is_gone_and_leaves_a_stranger_of_the_same_name() {
    let mut lab = Lab::new(&["ens5"], Some("ens5"));
    lab.up(None, 2).0.unwrap();
    lab.machine.devices.retain(|device| device.name != "rxe1");
    lab.machine.devices[0].index = 55;
    lab.machine.rxe = Some(9999);
    let (result, out, log) = lab.down(false);
    result.unwrap();
    assert!(
        out.contains("rxe1 is gone already") && out.contains("rxe0 is another device"),
        "{out}"
    );
    assert_eq!(log, ["-rdmatop1"]);
}

#[test]
fn down_refuses_a_device_in_use_names_the_holder_and_removes_nothing() {
    let mut lab = Lab::new(&["ens5"], Some("ens5"));
    lab.up(None, 2).0.unwrap();
    lab.machine.holders = vec!["231 (ib_send_bw)".into()];
    let (result, _, log) = lab.down(false);
    assert!(
        result
            .unwrap_err()
            .to_string()
            .starts_with("rxe0 is held open by 231 (ib_send_bw)")
    );
    assert!(log.is_empty(), "{log:?}");
    let (result, out, log) = lab.down(true);
    result.unwrap();
    assert!(
        out.starts_with("rxe0 is held open by 231 (ib_send_bw): waiting"),
        "{out}"
    );
    assert_eq!(log, ["-rxe1", "-rxe0", "-rdmatop1", "-rdma_rxe"]);
}

/// As `rdma link delete rxe0` does while a process has it open.
#[test]
fn a_device_whose_removal_hangs_stays_in_the_list_with_what_it_needs() {
    let mut lab = Lab::new(&["ens5"], None);
    lab.up(None, 2).0.unwrap();
    let rxe0 = lab.machine.devices.remove(0);
    lab.machine.leaving = vec!["rxe0".to_owned()];
    for force in [false, true] {
        let (result, _, log) = lab.down(force);
        let error = result.unwrap_err().to_string();
        assert!(
            error.starts_with("rxe0 is still being removed, held by 231"),
            "{error}"
        );
        assert!(log.is_empty(), "{log:?}");
    }
    // `up` makes none in its place and does not forget it.
    let (result, _, log) = lab.up(None, 2);
    assert!(result.unwrap_err().to_string().contains("still being removed"));
    assert!(log.is_empty(), "{log:?}");
    assert!(
        lab.status().contains("rxe0: being removed, made by rdmatop"),
        "{}",
        lab.status()
    );
    drop(rxe0);
    lab.machine.leaving.clear();
    let (result, out, log) = lab.down(false);
    result.unwrap();
    assert!(out.contains("rxe0 is gone already"), "{out}");
    assert_eq!(log, ["-rxe1", "-rdmatop1", "-rdmatop0", "-rdma_rxe"]);
}

#[test]
fn a_device_somebody_else_made_is_neither_touched_nor_removed() {
    let mut lab = Lab::new(&["ens5"], Some("ens5"));
    lab.machine.device("rxe0", &["ens5"], true);
    let (result, out, _) = lab.up(None, 1);
    result.unwrap();
    assert!(out.contains("not made by rdmatop"), "{out}");
    lab.down(false).0.unwrap();
    assert_eq!(lab.machine.devices.len(), 1);
}

#[test]
fn a_default_interface_that_carries_a_device_is_not_asked_for_a_second() {
    let mut lab = Lab::new(&["ens5"], Some("ens5"));
    lab.machine.device("mlx5_0", &["ens5"], false);
    assert_eq!(lab.up(None, 1).2, ["+rdmatop0 [10, 77, 0, 1]", "+rxe0@rdmatop0"]);
}

#[test]
fn an_interface_that_is_not_there_is_told_before_anything_is_made() {
    let mut lab = Lab::new(&["ens5"], Some("ens5"));
    let (result, _, log) = lab.up(Some("ens9"), 1);
    assert_eq!(
        result.unwrap_err().to_string(),
        "there is no network interface ens9; `ip link` lists them"
    );
    assert!(log.is_empty() && lab.machine.rxe.is_none());
}

#[test]
fn changing_anything_needs_root_and_looking_does_not() {
    let mut lab = Lab::new(&[], None);
    let store = lab.store();
    let down = LabArgs {
        command: LabCommand::Down(DownArgs { force: false }),
    };
    let error = run_on(&mut lab.machine, &store, false, &down, &mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("sudo rdmatop lab down"));
    let status = LabArgs {
        command: LabCommand::Status,
    };
    run_on(&mut lab.machine, &store, false, &status, &mut Vec::new()).unwrap();
}

#[test]
fn a_broken_file_is_told_with_its_remedy_and_kept_and_status_still_lists() {
    let mut lab = Lab::new(&["ens5"], None);
    lab.machine.device("rxe7", &["ens5"], true);
    let path = lab.dir.path().join("rdmatop/lab.json");
    drop(lab.store().lock().unwrap());
    std::fs::write(&path, "{").unwrap();
    for command in [
        up(None, 1),
        LabCommand::Down(DownArgs { force: true }),
        LabCommand::Status,
    ] {
        let (result, _, log) = lab.run(command);
        let error = result.unwrap_err().to_string();
        assert!(error.contains(&format!("sudo rm {}", path.display())), "{error}");
        assert!(
            error.contains("rdma link delete") && !error.contains('\n'),
            "{error}"
        );
        assert!(log.is_empty(), "{log:?}");
    }
    assert!(path.exists());
    assert_eq!(lab.status(), "rxe7: on ens5, not known whose, not in use\n");
}

#[test]
fn killed_at_any_moment_up_leaves_nothing_that_down_does_not_remove() {
    for default in [None, Some("ens5")] {
        let mut moment = 0;
        loop {
            let mut lab = Lab::new(&["ens5"], default);
            lab.machine.device("mlx5_0", &[], false);
            let before = lab.machine.things();
            let ended = !lab.killed(up(None, 3), moment);
            let up = lab.machine.things();
            let (result, out, _) = lab.down(false);
            result.unwrap();
            assert_eq!(lab.machine.things(), before, "killed at {moment}: {out}");
            assert!(lab.store().read().unwrap().is_none(), "killed at {moment}");
            assert!(!out.contains("gone already"), "killed at {moment}: {out}");
            if ended {
                assert_eq!((up.0.len(), moment > 12), (4, true));
                break;
            }
            moment += 1;
        }
    }
}

#[test]
fn killed_at_any_moment_up_is_made_whole_by_the_next_up() {
    let mut moment = 0;
    loop {
        let mut lab = Lab::new(&["ens5"], None);
        let before = lab.machine.things();
        let ended = !lab.killed(up(None, 2), moment);
        lab.up(None, 2).0.unwrap();
        let names: Vec<_> = lab
            .machine
            .devices
            .iter()
            .map(|device| device.name.to_string())
            .collect();
        assert_eq!(names, ["rxe0", "rxe1"], "killed at {moment}");
        assert_eq!(lab.machine.interfaces.len(), 3, "killed at {moment}");
        lab.down(false).0.unwrap();
        assert_eq!(lab.machine.things(), before, "killed at {moment}");
        if ended {
            break;
        }
        moment += 1;
    }
}

#[test]
fn killed_at_any_moment_down_is_ended_by_the_next_down() {
    let mut moment = 0;
    loop {
        let mut lab = Lab::new(&["ens5"], None);
        let before = lab.machine.things();
        lab.up(None, 2).0.unwrap();
        let ended = !lab.killed(LabCommand::Down(DownArgs { force: false }), moment);
        lab.down(false).0.unwrap();
        assert_eq!(lab.machine.things(), before, "killed at {moment}");
        if ended {
            break;
        }
        moment += 1;
    }
}

#[test]
fn where_nobody_takes_what_is_said_the_work_is_done_all_the_same() {
    let mut lab = Lab::new(&["ens5"], None);
    let before = lab.machine.things();
    let store = lab.store();
    for (command, devices) in [(up(None, 2), 2), (LabCommand::Down(DownArgs { force: false }), 0)] {
        let error = run_on(&mut lab.machine, &store, true, &LabArgs { command }, &mut Full).unwrap_err();
        assert!(matches!(error, LabError::Output(_)), "{error}");
        assert_eq!(lab.machine.devices.len(), devices);
    }
    assert_eq!(lab.machine.things(), before);
}

#[test]
fn what_was_renamed_is_still_ours() {
    let mut lab = Lab::new(&["ens5"], None);
    let before = lab.machine.things();
    lab.up(None, 1).0.unwrap();
    lab.machine.devices[0].name = Name::from("gpu\u{1b}0");
    lab.machine.interfaces[1].name = Name::from("lan0");
    let (_, out, log) = lab.up(None, 1);
    assert_eq!(out, "rxe0 is there already and called gpu\\x1b0 by now\n");
    assert!(log.is_empty(), "{log:?}");
    let status = lab.status();
    assert!(
        status.contains("made by rdmatop as rxe0") && status.contains("called lan0 by now"),
        "{status}"
    );
    let (_, out, _) = lab.down(false);
    assert!(out.contains("removed gpu\\x1b0, which was made as rxe0"), "{out}");
    assert_eq!(lab.machine.things(), before);
}

#[test]
fn a_number_that_was_given_again_is_not_ours() {
    // ib_core was loaded anew: indexes begin again, and somebody made another rxe0 on the same interface.
    for change in [
        (|device: &mut Present| device.node_guid = Some(1)) as fn(&mut Present),
        |device| device.inode = Some(77),
    ] {
        let mut lab = Lab::new(&["ens5"], Some("ens5"));
        lab.up(None, 1).0.unwrap();
        change(&mut lab.machine.devices[0]);
        let (_, out, log) = lab.down(false);
        assert!(
            out.contains("rxe0 is another device of that name now: left as it is"),
            "{out}"
        );
        assert_eq!((log.len(), lab.machine.devices.len()), (0, 1));
    }
    let mut lab = Lab::new(&["ens5"], None);
    lab.up(None, 1).0.unwrap();
    lab.machine.interfaces[1].inode = Some(77);
    lab.down(false).0.unwrap();
    assert_eq!(lab.machine.interfaces.len(), 2);
}

#[test]
fn after_a_boot_nothing_is_ours() {
    let mut lab = Lab::new(&["ens5"], Some("ens5"));
    lab.up(None, 1).0.unwrap();
    lab.machine.boot = "second".into();
    assert!(lab.status().contains("rxe0: on ens5, not ours"));
    let (_, out, log) = lab.down(false);
    assert!(out.contains("booted since") && log.is_empty(), "{out}");
    assert_eq!(lab.down(false).1.lines().count(), 1);
    assert_eq!(lab.machine.devices.len(), 1);
}

#[test]
fn where_the_boot_is_unknown_what_was_made_is_still_ours_and_removed() {
    let mut lab = Lab::new(&["ens5"], Some("ens5"));
    lab.up(None, 1).0.unwrap();
    lab.machine.boot.clear();
    assert!(lab.status().contains("rxe0: on ens5, made by rdmatop"));
    let (result, out, _) = lab.down(false);
    result.unwrap();
    assert!(out.contains("booted since `lab up` is not known"), "{out}");
    assert_eq!(lab.machine.devices.len(), 0);
}

#[test]
fn the_module_is_unloaded_only_if_up_loaded_it_and_nobody_has_use_of_it() {
    for (why, prepare) in [
        (
            "loaded before",
            (|m: &mut Machine| m.rxe = Some(1)) as fn(&mut Machine),
        ),
        ("mine0 may need it", |m| m.device("mine0", &[], true)),
        ("another network namespace", |m| m.exclusive = true),
        ("in use", |m| m.in_use = true),
    ] {
        let mut lab = Lab::new(&["ens5"], Some("ens5"));
        prepare(&mut lab.machine);
        let loaded_before = lab.machine.rxe.is_some();
        lab.up(None, 1).0.unwrap();
        let (result, out, _) = lab.down(false);
        result.unwrap();
        assert!(lab.machine.rxe.is_some(), "{why}: {out}");
        assert!(
            loaded_before || (out.contains("rdma_rxe stays loaded: ") && out.contains(why)),
            "{out}"
        );
        assert!(lab.store().read().unwrap().is_none());
    }
}

#[test]
fn a_second_lab_at_the_same_time_is_told_who_is_at_work() {
    let mut lab = Lab::new(&["ens5"], None);
    let other = lab.store();
    let _locked = other.lock().unwrap();
    let (result, _, log) = lab.up(None, 1);
    let error = result.unwrap_err().to_string();
    assert!(
        error.contains("another `rdmatop lab`") && error.contains("process "),
        "{error}"
    );
    assert!(log.is_empty());
    assert!(lab.status().contains("no RDMA devices"), "looking needs no lock");
}

#[test]
fn root_without_the_right_is_told_which_one_it_takes() {
    let refused = |errno| {
        let error = rdmatop_sources::netlink::error::NetlinkError::Kernel { errno, message: None };
        refused("make rxe0 on eth0")(error).to_string()
    };
    let line = refused(libc::EPERM);
    assert!(
        line.starts_with("cannot make rxe0 on eth0: Operation not permitted"),
        "{line}"
    );
    assert!(line.contains("--cap-add NET_ADMIN"), "{line}");
    assert!(!refused(libc::ENOMEM).contains("CAP_NET_ADMIN"));
}
