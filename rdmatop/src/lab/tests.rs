//! The lab's decisions on a made-up machine.
use super::host::{Host, Present};
use super::state::Store;
use super::{DownArgs, LabArgs, LabCommand, LabError, UpArgs, run_on};
use crate::source::netlink::name::Name;

#[derive(Default)]
struct Machine {
    loaded: bool,
    devices: Vec<Present>,
    interfaces: Vec<(String, u32)>,
    default_netdev: Option<String>,
    /// Of rxe0; the others are free.
    holders: Vec<String>,
    next: u32,
    log: Vec<String>,
}

impl Machine {
    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }
}

impl Host for Machine {
    fn load_rxe(&mut self) -> Result<bool, LabError> {
        Ok(!std::mem::replace(&mut self.loaded, true))
    }
    fn devices(&mut self) -> Result<Vec<Present>, LabError> {
        Ok(self.devices.clone())
    }
    fn add_device(&mut self, name: &str, netdev: &str) -> Result<(), LabError> {
        let index = self.number();
        self.devices.push(Present {
            name: Name::from(name),
            index,
            netdevs: vec![Name::from(netdev)],
        });
        self.log.push(format!("+{name}@{netdev}"));
        Ok(())
    }
    fn remove_device(&mut self, name: &str, index: u32) -> Result<(), LabError> {
        self.devices.retain(|device| device.index != index);
        self.log.push(format!("-{name}"));
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
    fn interface_index(&mut self, name: &str) -> Option<u32> {
        self.interfaces
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, index)| *index)
    }
    fn add_dummy(&mut self, name: &str, address: [u8; 4]) -> Result<u32, LabError> {
        let index = self.number();
        self.interfaces.push((name.into(), index));
        self.log.push(format!("+{name} {address:?}"));
        Ok(index)
    }
    fn remove_interface(&mut self, name: &str, index: u32) -> Result<(), LabError> {
        self.interfaces.retain(|(_, known)| *known != index);
        self.log.push(format!("-{name}"));
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
            default_netdev: default.map(String::from),
            ..Machine::default()
        };
        for name in interfaces {
            let index = machine.number();
            machine.interfaces.push(((*name).into(), index));
        }
        Self {
            machine,
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn run(&mut self, command: LabCommand) -> (Result<(), LabError>, String, Vec<String>) {
        let store = Store::new(&self.dir.path().join("rdmatop/lab.json"));
        let mut out = Vec::new();
        let result = run_on(&mut self.machine, &store, true, &LabArgs { command }, &mut out).map(|_| ());
        (
            result,
            String::from_utf8(out).unwrap(),
            std::mem::take(&mut self.machine.log),
        )
    }

    fn up(&mut self, netdev: Option<&str>, devices: u8) -> (Result<(), LabError>, String, Vec<String>) {
        self.run(LabCommand::Up(UpArgs {
            netdev: netdev.map(String::from),
            devices,
        }))
    }

    fn down(&mut self, force: bool) -> (Result<(), LabError>, String, Vec<String>) {
        self.run(LabCommand::Down(DownArgs { force }))
    }
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
    lab.machine.devices.push(Present {
        name: Name::from("mlx5_0"),
        index: 100,
        netdevs: vec![],
    });
    lab.up(None, 2).0.unwrap();
    let (result, _, log) = lab.down(false);
    result.unwrap();
    assert_eq!(log, ["-rxe1", "-rxe0", "-rdmatop1", "-rdmatop0"]);
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
    assert_eq!(log, ["-rxe1", "-rxe0", "-rdmatop1"]);
}

#[test]
fn a_device_somebody_else_made_is_neither_touched_nor_removed() {
    let mut lab = Lab::new(&["ens5"], Some("ens5"));
    lab.machine.devices.push(Present {
        name: Name::from("rxe0"),
        index: 9,
        netdevs: vec![Name::from("ens5")],
    });
    let (result, out, _) = lab.up(None, 1);
    result.unwrap();
    assert!(out.contains("not made by rdmatop"), "{out}");
    lab.down(false).0.unwrap();
    assert_eq!(lab.machine.devices.len(), 1);
}

#[test]
fn a_default_interface_that_carries_a_device_is_not_asked_for_a_second() {
    let mut lab = Lab::new(&["ens5"], Some("ens5"));
    lab.machine.devices.push(Present {
        name: Name::from("mlx5_0"),
        index: 9,
        netdevs: vec![Name::from("ens5")],
    });
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
    assert!(log.is_empty() && !lab.machine.loaded);
}

#[test]
fn changing_anything_needs_root_and_looking_does_not() {
    let mut lab = Lab::new(&[], None);
    let store = Store::new(&lab.dir.path().join("lab.json"));
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
fn a_broken_file_is_told_and_kept() {
    let mut lab = Lab::new(&["ens5"], None);
    let path = lab.dir.path().join("rdmatop/lab.json");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, "{").unwrap();
    assert!(matches!(
        lab.down(false).0,
        Err(LabError::State { action: "read", .. })
    ));
    assert!(path.exists());
}

#[test]
fn root_without_the_right_is_told_which_one_it_takes() {
    let refused = |errno| LabError::Netlink {
        action: "make rxe0 on eth0".into(),
        source: crate::source::netlink::error::NetlinkError::Kernel { errno, message: None },
    };
    let line = refused(libc::EPERM).to_string();
    assert!(
        line.starts_with("cannot make rxe0 on eth0: Operation not permitted"),
        "{line}"
    );
    assert!(line.contains("--cap-add NET_ADMIN"), "{line}");
    assert!(!refused(libc::ENOMEM).to_string().contains("CAP_NET_ADMIN"));
}
