//! MRs, CQs and ids of rdma_cm of several devices, which have the same numbers, at addresses and in processes
//! whose numbers come again at once: each event and each byte goes to the true owner.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use rdmatop_common::event::cm;

/// Addresses that an object can have. The kernel has them for objects of all devices.
const ADDRESSES: std::ops::Range<u64> = 1..5;
const DEVICES: u32 = 3;
const PIDS: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Mr,
    Cq,
    /// An id of rdma_cm, where the module has BTF.
    Id,
    /// One where it has not.
    BareId,
}

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A pid goes to another process, with or without the same name.
    Spawn {
        pid: u32,
        renamed: bool,
    },
    Create {
        kind: Kind,
        device: u32,
        pid: u32,
    },
    /// Its destruction begins: its address and its number are free.
    Destroy(u8),
    /// A destruction ends, or fails.
    Return {
        which: u8,
        fails: bool,
    },
    /// Something happens to an id of rdma_cm, in a worker or in its owner's context.
    Event {
        which: u8,
        in_worker: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        4 => Just(Kind::Mr),
        1 => Just(Kind::Cq),
        2 => Just(Kind::Id),
        2 => Just(Kind::BareId)
    ];
    prop_oneof![
        1 => (0..PIDS, any::<bool>()).prop_map(|(pid, renamed)| Step::Spawn { pid, renamed }),
        6 => (kind, 0..DEVICES, 0..PIDS).prop_map(|(kind, device, pid)| Step::Create { kind, device, pid }),
        4 => any::<u8>().prop_map(Step::Destroy),
        3 => (any::<u8>(), any::<bool>()).prop_map(|(which, fails)| Step::Return { which, fails }),
        6 => (any::<u8>(), any::<bool>()).prop_map(|(which, in_worker)| Step::Event { which, in_worker }),
    ]
}

/// A process.
#[derive(Clone, Debug)]
struct Task {
    pid: u32,
    start_ns: u64,
    comm: &'static str,
}

/// An object, and what is known of it.
#[derive(Clone, Debug)]
struct Object {
    kind: Kind,
    device: u32,
    owner: Task,
    address: u64,
    /// The object's number, among those of its kind on its device.
    number: u32,
    /// Of an id: no two connections have the same.
    port: u16,
    size: u64,
    began_ns: Option<u64>,
    /// Of a region: the record of the next one at its address told its end.
    told: bool,
}

struct Machine {
    host: Host,
    tasks: Vec<Task>,
    objects: Vec<Object>,
    last_port: u16,
    /// Bytes that each process has registered, as its records say.
    bytes: BTreeMap<u64, u64>,
}

impl Machine {
    fn new() -> Self {
        let mut host = Host::new();
        host.devices(
            (0..DEVICES)
                .map(|index| rxe(index, &format!("rxe{index}")))
                .collect(),
        );
        let mut machine = Self {
            host,
            tasks: Vec::new(),
            objects: Vec::new(),
            last_port: 1000,
            bytes: BTreeMap::new(),
        };
        for pid in 0..PIDS {
            let start_ns = machine.tick();
            machine.tasks.push(Task {
                pid: 300 + pid,
                start_ns,
                comm: "traffic",
            });
        }
        machine
    }

    fn tick(&mut self) -> u64 {
        self.host.now += 1000;
        self.host.now
    }

    /// The prefix of a record about an object that its owner makes.
    fn prefix(&mut self, kind: u16, object: &Object) -> Prefix {
        Prefix {
            device: bytes(&format!("rxe{}", object.device)),
            device_index: object.device,
            ..by(
                prefix(kind, self.tick(), object.address),
                object.owner.pid,
                object.owner.comm,
            )
        }
    }

    fn report(&mut self, kind: u16, object: &Object, began_ns: Option<u64>, rc: i32) {
        let mut prefix = self.prefix(kind, object);
        prefix.duration_ns = began_ns.map_or(0, |began| prefix.ts_ns - began);
        prefix.rc = rc;
        let record = ObjectRecord {
            prefix,
            size: object.size,
            limits: [UNKNOWN_U32; 2],
            owner_start_ns: object.owner.start_ns,
        };
        self.hear(Record::Object(record), object, Some(object.owner.pid));
    }

    /// Gives the engine a record, whose event must name this owner, and the object's device.
    fn hear(&mut self, record: Record, object: &Object, pid: Option<u32>) {
        let event = self.host.record(record).remove(0);
        assert_eq!(event.pid, pid, "{event:?} of {object:?}");
        if object.kind != Kind::BareId {
            assert_eq!(
                event.device.as_deref(),
                Some(&*format!("rxe{}", object.device)),
                "{event:?}"
            );
        }
    }

    fn create(&mut self, kind: Kind, device: u32, pid: u32) {
        let is_empty = |address: &u64| {
            !self
                .objects
                .iter()
                .any(|object| object.address == *address && object.began_ns.is_none())
        };
        let Some(address) = { ADDRESSES }.find(is_empty) else {
            return;
        };
        let same = |object: &&Object| (object.kind, object.device) == (kind, device);
        let number = self.objects.iter().filter(same).count();
        self.last_port += 1;
        let object = Object {
            kind,
            device,
            owner: self.tasks[pid as usize].clone(),
            address,
            number: u32::try_from(number).unwrap() + 1,
            port: self.last_port,
            size: 1 << (self.last_port % 48),
            began_ns: None,
            told: false,
        };
        match kind {
            Kind::Mr => {
                // A region whose address another one has has ended, although the record of its end is still
                // to come.
                for other in &mut self.objects {
                    if other.kind == Kind::Mr && other.address == address && !other.told {
                        other.told = true;
                        *self.bytes.get_mut(&other.owner.start_ns).unwrap() -= other.size;
                    }
                }
                *self.bytes.entry(object.owner.start_ns).or_default() += object.size;
                self.report(kind::MR_REG, &object, None, 0);
            }
            Kind::Cq => self.report(kind::CQ_CREATE, &object, None, 0),
            Kind::Id | Kind::BareId => {}
        }
        self.objects.push(object);
    }

    fn returned(&mut self, object: &Object, fails: bool) {
        let (rc, kind) = match object.kind {
            Kind::Mr => (-i32::from(fails), kind::MR_DEREG),
            Kind::Cq => (-i32::from(fails), kind::CQ_DESTROY),
            Kind::Id | Kind::BareId => return,
        };
        if object.kind == Kind::Mr && !fails && !object.told {
            *self.bytes.get_mut(&object.owner.start_ns).unwrap() -= object.size;
        }
        self.report(kind, object, object.began_ns, rc);
    }

    /// An event of an id of rdma_cm.
    fn happens(&mut self, object: &mut Object, in_worker: bool) {
        let mut record = CmRecord {
            prefix: self.prefix(kind::CM, object),
            what: if in_worker { cm::EVENT } else { cm::CONNECT },
            event: 9,
            status: 0,
            cm_id: object.number,
            src: [0; 28],
            dst: [0; 28],
            qpn: UNKNOWN_U32,
            reserved: 0,
        };
        record.src[..8].copy_from_slice(&[2, 0, 0x1d, 0x0c, 10, 77, 0, 1]);
        record.dst = record.src;
        record.dst[2..4].copy_from_slice(&object.port.to_be_bytes());
        if in_worker {
            record.prefix.flags |= flag::KTHREAD;
            (record.prefix.pid, record.prefix.tid) = (31, 31);
        }
        let mut pid = Some(object.owner.pid);
        if object.kind == Kind::BareId {
            record.prefix.object = 0;
            record.prefix.flags &= !flag::DEVICE;
            if in_worker {
                record.prefix.flags &= !flag::OWNER_TASK;
                record.prefix.owner_pid = 0;
                pid = None;
            }
        }
        self.hear(Record::Cm(record), object, pid);
    }

    fn run(&mut self, step: Step) {
        let pick =
            |which: u8, from: Vec<usize>| (!from.is_empty()).then(|| from[usize::from(which) % from.len()]);
        let those = |machine: &Self, is: &dyn Fn(&Object) -> bool| -> Vec<usize> {
            (0..machine.objects.len())
                .filter(|at| is(&machine.objects[*at]))
                .collect()
        };
        match step {
            Step::Spawn { pid, renamed } => {
                let start_ns = self.tick();
                let task = &mut self.tasks[pid as usize];
                task.start_ns = start_ns;
                if renamed {
                    task.comm = if task.comm == "traffic" {
                        "other"
                    } else {
                        "traffic"
                    };
                }
                // The objects of the one before ended with it.
                let pid = task.pid;
                let (ended, left) = self
                    .objects
                    .drain(..)
                    .partition(|object: &Object| object.owner.pid == pid);
                self.objects = left;
                for object in &ended {
                    self.returned(object, false);
                }
            }
            Step::Create { kind, device, pid } => self.create(kind, device, pid),
            Step::Destroy(which) => {
                let now = self.tick();
                if let Some(at) = pick(which, those(self, &|object| object.began_ns.is_none())) {
                    self.objects[at].began_ns = Some(now);
                }
            }
            Step::Return { which, fails } => {
                if let Some(at) = pick(which, those(self, &|object| object.began_ns.is_some())) {
                    let object = self.objects.remove(at);
                    // A call that fails gives nothing away.
                    let taken = self.objects.iter().any(|other| other.address == object.address);
                    let fails = fails && !taken;
                    self.returned(&object, fails);
                    if fails {
                        self.objects.push(Object {
                            began_ns: None,
                            ..object
                        });
                    }
                }
            }
            Step::Event { which, in_worker } => {
                let is_id = |object: &Object| matches!(object.kind, Kind::Id | Kind::BareId);
                if let Some(at) = pick(
                    which,
                    those(self, &|object| is_id(object) && object.began_ns.is_none()),
                ) {
                    let mut object = self.objects[at].clone();
                    self.happens(&mut object, in_worker);
                    self.objects[at] = object;
                }
            }
        }
    }

    /// Compares what processes have registered.
    fn check(&self) {
        for process in self.host.engine.machine.processes.iter() {
            let Some(start_ns) = process.start_ns else {
                continue;
            };
            let truth = self.bytes.get(&start_ns).copied();
            assert_eq!(process.memory.bytes(), truth, "{process:?}");
        }
    }
}

proptest! {
    #[test]
    fn objects_of_equal_numbers_and_addresses_have_their_own_owners(
        steps in proptest::collection::vec(step(), 1..120)
    ) {
        let mut machine = Machine::new();
        for step in steps {
            machine.run(step);
            machine.check();
        }
    }
}

#[test]
fn what_a_device_may_have_is_unknown_until_an_object_is_made() {
    let mut host = Host::new();
    let t = host.now;
    let limits = |host: &mut Host| {
        let snapshot = host.tick();
        snapshot.devices[0].headroom().map(|(_, _, limit)| limit)
    };
    assert_eq!(limits(&mut host), [None; 5]);
    host.qp(QpRecord {
        event: 1024,
        ..create(t, 0x1000, 17)
    });
    assert_eq!(limits(&mut host), [Some(1024), None, None, None, None]);
    let made = |kind, limits| match region(kind, t, 0x2000, 231, 4096) {
        Record::Object(record) => Record::Object(ObjectRecord { limits, ..record }),
        other => other,
    };
    host.record(made(kind::MR_REG, [1 << 24, 1 << 20]));
    host.record(made(kind::CQ_CREATE, [UNKNOWN_U32, 1 << 10]));
    let all = [Some(1024), None, Some(1 << 24), Some(1 << 10), Some(1 << 20)];
    // A kernel without the member, a driver that says nothing, and one that says nonsense.
    for limit in [UNKNOWN_U32, 0, 1 << 31] {
        host.record(made(kind::CQ_CREATE, [limit; 2]));
        assert_eq!(limits(&mut host), all, "{limit}");
    }
    host.record(made(kind::CQ_DESTROY, [7; 2]));
    host.pass(SECOND).devices(vec![rxe(0, "rxe0")]);
    assert_eq!(limits(&mut host), all, "a reading keeps them");
    // Another device at the index.
    host.pass(SECOND).devices(vec![]);
    host.pass(SECOND).devices(vec![rxe(0, "rxe0")]);
    assert_eq!(limits(&mut host), [None; 5]);
}
