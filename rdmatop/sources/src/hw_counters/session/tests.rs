use std::cell::RefCell;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::*;
use crate::netlink::attr::{
    DEV_INDEX, PORT_INDEX, RES_LQPN, STAT_AUTO_MODE_MASK, STAT_COUNTER_ID, STAT_HWCOUNTERS, STAT_MODE,
    STAT_OPCOUNTER_ENABLED, cmd, message_type,
};
use crate::netlink::record::{Binding, OptionalCounter, Owner};
use crate::netlink::request::Request;
use crate::netlink::wire::{Attrs, Messages};

/// A port of a made-up kernel, which follows counters.c.
#[derive(Clone, Debug, Default)]
struct Port {
    mode: u32,
    mask: u32,
    bind_optional: bool,
    /// Mode at the binding, id, QPs.
    sets: Vec<(u32, u32, Vec<u32>)>,
    optional: Vec<(u32, &'static str, bool)>,
    refuses: Option<i32>,
}

#[derive(Debug, Default)]
struct Machine {
    ports: Vec<Port>,
    inode: u64,
    /// The device is in another network namespace.
    elsewhere: bool,
    orders: usize,
    knows_optional_binding: bool,
    boot: &'static str,
    /// Errnos of the next requests for a device, for bound QPs, and for optional counters.
    fails: [Option<i32>; 3],
}

#[derive(Clone, Default)]
struct Fake(Rc<RefCell<Machine>>);

const DEVICE: u32 = 5;

fn errno(errno: i32) -> NetlinkError {
    NetlinkError::Kernel { errno, message: None }
}

impl Kernel for Fake {
    fn boot(&mut self) -> String {
        self.0.borrow().boot.to_owned()
    }

    fn dirs(&mut self) -> Option<Vec<OsString>> {
        Some(vec!["mlx5_0".into()])
    }

    fn list(&mut self) -> Result<Vec<(u32, String)>, NetlinkError> {
        Ok(vec![(DEVICE, "mlx5_0".to_owned())])
    }

    fn device(&mut self, index: u32) -> Result<Present, NetlinkError> {
        let machine = self.0.borrow();
        if index != DEVICE {
            return Err(errno(libc::EINVAL));
        }
        if let Some(fails) = machine.fails[0] {
            return Err(errno(fails));
        }
        Ok(Present {
            name: "mlx5_0".to_owned(),
            index,
            node_guid: Some(1),
            inode: Some(machine.inode),
            ports: u32::try_from(machine.ports.len()).unwrap(),
        })
    }

    fn is_anywhere(&mut self, name: &str) -> bool {
        name == "mlx5_0" && self.0.borrow().elsewhere
    }

    fn binds(&mut self, _device: &Present) -> Option<bool> {
        Some(true)
    }

    fn binding(&mut self, _device: u32, port: u32) -> Result<Binding, NetlinkError> {
        let machine = self.0.borrow();
        let port = &machine.ports[port as usize - 1];
        Ok(Binding {
            mode: port.mode.into(),
            mask: Mask(port.mask),
        })
    }

    fn bound(&mut self, _device: u32) -> Result<Vec<CounterSet>, NetlinkError> {
        let machine = self.0.borrow();
        if let Some(fails) = machine.fails[1] {
            return Err(errno(fails));
        }
        let mut out = Vec::new();
        for (number, port) in (1..).zip(&machine.ports) {
            out.extend(port.sets.iter().map(|(mode, id, qps)| CounterSet {
                id: *id,
                port: number,
                mode: Some((*mode).into()),
                owner: Some(Owner::Process(231)),
                qp_type: None,
                qps: qps.clone(),
                counters: Vec::new(),
            }));
        }
        Ok(out)
    }

    fn optional(&mut self, _device: u32, port: u32) -> Result<Vec<OptionalCounter>, NetlinkError> {
        let machine = self.0.borrow();
        if let Some(fails) = machine.fails[2] {
            return Err(errno(fails));
        }
        let all = machine.ports[port as usize - 1].optional.iter();
        let all = all.map(|(index, name, on)| OptionalCounter {
            name: (*name).into(),
            index: *index,
            on: *on,
        });
        Ok(all.collect())
    }

    fn order(&mut self, order: &Request) -> Result<(), NetlinkError> {
        let mut machine = self.0.borrow_mut();
        machine.orders += 1;
        let bytes = order.encode(1);
        let message = Messages::new(&bytes).next().unwrap().unwrap();
        let number = |wanted: u16| {
            let attr = Attrs::new(message.payload)
                .flatten()
                .find(|attr| attr.number == wanted);
            attr.and_then(|attr| attr.u32().ok())
        };
        let has = |wanted: u16| {
            Attrs::new(message.payload)
                .flatten()
                .any(|attr| attr.number == wanted)
        };
        assert_eq!(number(DEV_INDEX), Some(DEVICE));
        let knows = machine.knows_optional_binding;
        let port = &mut machine.ports[number(PORT_INDEX).unwrap() as usize - 1];
        if let Some(refusal) = port.refuses {
            return Err(errno(refusal));
        }
        if message.kind == message_type(cmd::STAT_DEL) {
            assert_eq!(port.mode, 2, "the kernel unbinds by hand only in manual mode");
            let (id, qp) = (number(STAT_COUNTER_ID).unwrap(), number(RES_LQPN).unwrap());
            for (_, known, qps) in &mut port.sets {
                if *known == id {
                    qps.retain(|known| *known != qp);
                }
            }
            port.sets.retain(|(.., qps)| !qps.is_empty());
            if port.sets.is_empty() {
                port.mode = 0;
            }
        } else if has(STAT_HWCOUNTERS) {
            let table = Attrs::new(message.payload)
                .flatten()
                .find(|attr| attr.number == STAT_HWCOUNTERS)
                .unwrap();
            let on: Vec<u32> = table.nest().flatten().map(|attr| attr.u32().unwrap()).collect();
            for (index, _, is_on) in &mut port.optional {
                *is_on = on.contains(index);
            }
        } else {
            assert_eq!(number(STAT_MODE), Some(1));
            if has(STAT_OPCOUNTER_ENABLED) && !knows {
                return Err(errno(libc::EINVAL));
            }
            let mask = number(STAT_AUTO_MODE_MASK).unwrap();
            port.bind_optional = has(STAT_OPCOUNTER_ENABLED);
            (port.mode, port.mask) = match (mask, port.sets.is_empty()) {
                (0, true) => (0, 0),
                (0, false) => (2, 0),
                (_, false) => return Err(errno(libc::EBUSY)),
                (mask, true) => (1, mask),
            };
        }
        Ok(())
    }
}

struct Run {
    kernel: Fake,
    session: Session<Fake>,
    dir: TempDir,
}

impl Run {
    fn new(ports: Vec<Port>) -> Self {
        let kernel = Fake::default();
        *kernel.0.borrow_mut() = Machine {
            ports,
            elsewhere: false,
            inode: 7,
            orders: 0,
            knows_optional_binding: true,
            boot: "b",
            fails: [None; 3],
        };
        let dir = tempfile::tempdir().unwrap();
        Self {
            session: Session::new(kernel.clone(), &dir.path().join("run")),
            kernel,
            dir,
        }
    }

    fn look(&mut self) -> HwCountersReport {
        self.session.look().unwrap()
    }

    fn port(&self) -> Port {
        self.kernel.0.borrow().ports[0].clone()
    }

    fn bind(&self, qps: &[u32]) {
        let port = &mut self.kernel.0.borrow_mut().ports[0];
        port.sets.push((port.mode, 3, qps.to_vec()));
    }

    /// Does what the next start does after SIGKILL.
    fn next_start(&mut self) -> Vec<String> {
        // The kernel releases the lock when the process ends.
        self.session.locked = None;
        let at = self.dir.path().join("run");
        // The child of a test beside this one has it, too, between its fork and its execve.
        let until = Instant::now() + Duration::from_secs(20);
        let locked = loop {
            match Locked::at(&at, false) {
                Err(Denied::Busy) if Instant::now() < until => thread::sleep(Duration::from_millis(1)),
                locked => break locked,
            }
        };
        locked.map_or_else(
            |denied| {
                assert_eq!(denied, Denied::Nothing);
                Vec::new()
            },
            |locked| recover_with(&mut self.kernel.clone(), &locked),
        )
    }
}

#[test]
fn what_is_set_is_taken_back_with_what_the_kernel_bound_meanwhile() {
    let mut run = Run::new(vec![Port::default()]);
    let report = run.look();
    assert!(report.ports[0].set && report.ports[0].why.is_none());
    assert_eq!((run.port().mode, run.port().mask), (1, 2));
    run.bind(&[17, 18]);
    let lines = run.session.take_back();
    assert_eq!(
        lines,
        ["counters of mlx5_0 port 1: mode auto,pid set by rdmatop was taken back"]
    );
    assert_eq!((run.port().mode, run.port().sets.len()), (0, 0));
    assert_eq!(run.session.take_back(), Vec::<String>::new(), "once");
    assert!(run.session.look().is_none(), "nothing is set after the end");
    assert_eq!(run.next_start(), Vec::<String>::new());
}

#[test]
fn optional_counters_of_traffic_go_on_and_off_and_the_others_stay() {
    let optional = vec![(40, "cc_rx_ce_pkts", true), (44, "rdma_tx_bytes", false)];
    for knows in [true, false] {
        let mut run = Run::new(vec![Port {
            optional: optional.clone(),
            ..Port::default()
        }]);
        run.kernel.0.borrow_mut().knows_optional_binding = knows;
        assert_eq!(run.look().ports[0].optional, ["rdma_tx_bytes"]);
        assert_eq!((run.port().mode, run.port().bind_optional), (1, knows));
        assert!(run.port().optional.iter().all(|(.., on)| *on));
        run.session.take_back();
        assert_eq!(run.port().optional, optional);
        assert_eq!(run.port().mode, 0);
    }
}

#[test]
fn after_a_kill_the_next_start_takes_it_back_and_only_then() {
    let mut run = Run::new(vec![Port::default()]);
    run.look();
    run.bind(&[17]);
    let busy = Locked::at(&run.dir.path().join("run"), false).unwrap_err();
    assert_eq!(busy, Denied::Busy, "while it runs nobody takes it back");
    let lines = run.next_start();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("was taken back"), "{lines:?}");
    assert_eq!((run.port().mode, run.port().sets.len()), (0, 0));
    assert_eq!(run.next_start(), Vec::<String>::new());
}

#[test]
fn what_is_not_ours_any_more_stays() {
    // Another mode; another device under the number; another boot.
    let by_type = |run: &Run| run.kernel.0.borrow_mut().ports[0].mask = 1;
    let another = |run: &Run| run.kernel.0.borrow_mut().inode = 8;
    let rebooted = |run: &Run| run.kernel.0.borrow_mut().boot = "c";
    for change in [&by_type as &dyn Fn(&Run), &another, &rebooted] {
        let mut run = Run::new(vec![Port::default()]);
        run.look();
        change(&run);
        let (before, orders) = (run.port(), run.kernel.0.borrow().orders);
        run.next_start();
        assert_eq!(run.port().mode, before.mode);
        assert_eq!(run.port().mask, before.mask);
        assert_eq!(run.kernel.0.borrow().orders, orders, "no order was given");
        assert_eq!(run.next_start(), Vec::<String>::new(), "and it is forgotten");
    }
}

#[test]
fn a_refusal_changes_nothing_and_leaves_nothing_in_the_file() {
    for (refusal, id) in [
        (libc::EPERM, CauseId::NotPermitted),
        (libc::EBUSY, CauseId::CountersTaken),
        (libc::EOPNOTSUPP, CauseId::NoBinding),
    ] {
        let mut run = Run::new(vec![Port {
            refuses: Some(refusal),
            ..Port::default()
        }]);
        let report = run.look();
        assert_eq!(report.ports[0].why.as_ref().unwrap().id, id);
        assert!(!report.ports[0].set);
        assert_eq!(run.session.take_back(), Vec::<String>::new());
        assert_eq!(run.next_start(), Vec::<String>::new());
    }
}

#[test]
fn a_mode_of_others_is_left_and_the_other_port_is_set() {
    let others = Port {
        mode: 1,
        mask: 3,
        ..Port::default()
    };
    let mut run = Run::new(vec![others, Port::default()]);
    let report = run.look();
    let why = report.ports[0].why.as_ref().unwrap();
    assert_eq!(why.id, CauseId::CountersTaken);
    assert!(why.line().contains("auto,type,pid"), "{}", why.line());
    assert!(report.ports[1].set);
    run.session.take_back();
    assert_eq!((run.port().mode, run.port().mask), (1, 3));
}

#[test]
fn what_cannot_be_taken_back_stays_in_the_file_and_the_line_says_how() {
    let mut run = Run::new(vec![Port::default()]);
    run.look();
    run.kernel.0.borrow_mut().ports[0].refuses = Some(libc::EPERM);
    let lines = run.session.take_back();
    assert!(
        lines[0].contains("rdma statistic qp set link mlx5_0/1 auto off"),
        "{lines:?}"
    );
    run.kernel.0.borrow_mut().ports[0].refuses = None;
    assert_eq!(run.next_start().len(), 1);
    assert_eq!(run.port().mode, 0);
}

#[test]
fn a_failed_reading_keeps_what_was_changed_for_the_next_start() {
    let optional = vec![(44, "rdma_tx_bytes", false)];
    for (what, says) in [
        "what rdmatop set could not be taken back",
        "mode auto,pid set by rdmatop could not be taken back",
        "optional counters that rdmatop switched on could not be taken back",
    ]
    .into_iter()
    .enumerate()
    {
        let mut run = Run::new(vec![Port {
            optional: optional.clone(),
            ..Port::default()
        }]);
        run.look();
        run.bind(&[17]);
        run.kernel.0.borrow_mut().fails[what] = Some(libc::ETIMEDOUT);
        let lines = run.next_start();
        assert!(lines.iter().any(|line| line.contains(says)), "{lines:?}");
        run.kernel.0.borrow_mut().fails = [None; 3];
        run.next_start();
        let port = run.port();
        assert_eq!(
            (port.mode, port.sets.len(), port.optional),
            (0, 0, optional.clone()),
            "{says}"
        );
        assert_eq!(run.next_start(), Vec::<String>::new());
    }
    let mut run = Run::new(vec![Port::default()]);
    run.look();
    run.kernel.0.borrow_mut().fails[0] = Some(libc::ENODEV);
    assert_eq!(run.next_start(), Vec::<String>::new(), "it is gone");
    run.kernel.0.borrow_mut().fails[0] = None;
    assert_eq!(run.next_start(), Vec::<String>::new(), "and forgotten");
}

#[test]
fn a_device_that_another_network_namespace_has_got_is_not_forgotten() {
    let mut run = Run::new(vec![Port::default()]);
    run.look();
    run.kernel.0.borrow_mut().fails[0] = Some(libc::EINVAL);
    run.kernel.0.borrow_mut().elsewhere = true;
    let lines = run.next_start();
    assert!(
        lines.len() == 1
            && lines[0].contains("sudo nsenter -t PID -n rdma statistic qp set link mlx5_0/1 auto off"),
        "{lines:?}"
    );
    // It is back.
    run.kernel.0.borrow_mut().fails[0] = None;
    run.next_start();
    assert_eq!(run.port().mode, 0);
}

#[test]
fn a_boot_that_is_unknown_is_not_another_one() {
    for (then, now) in [("b", ""), ("", "b")] {
        let mut run = Run::new(vec![Port::default()]);
        run.kernel.0.borrow_mut().boot = then;
        run.look();
        run.kernel.0.borrow_mut().boot = now;
        let lines = run.next_start();
        assert_eq!(run.port().mode, 0);
        assert!(
            lines[1].contains("the id of the boot cannot be read"),
            "{lines:?}"
        );
    }
}

#[test]
fn a_device_that_does_not_answer_is_said_and_asked_again() {
    let mut run = Run::new(vec![Port::default()]);
    run.kernel.0.borrow_mut().fails[0] = Some(libc::ETIMEDOUT);
    assert!(run.look().failed.is_some());
    run.kernel.0.borrow_mut().fails[0] = None;
    run.session.listed = None;
    let report = run.look();
    assert!(report.failed.is_none() && report.ports[0].set);
}
