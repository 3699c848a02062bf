//! What a trace says of work requests adds up in whatever order devices, QPs and work requests come and go:
//! each post and end is among the events printed, filtered out, sampled out or lost, and what is printed is
//! what was asked for.
//!
//! The programs stand here for what they count, one work request at a time. Two CPUs at one QP (a claim that
//! one holds while the other ends a request) are not in it: the simulation would have to say again what
//! `body/wr.rs` does with the words in memory, and would show that of the copy alone. `wr_events` has them,
//! on kernels: `every_kind_of_request` with two CPUs at each signaled send.

use std::cell::RefCell;

use clap::Parser;
use proptest::{collection::vec, prelude::*};
use rdmatop_common::{
    counters::loss,
    event::{COMM_LEN, DEVICE_NAME_LEN, UNKNOWN_U32},
    wr::{NO_STATUS, WrFilter, WrRecord, count, flag, kind},
};
use zerocopy::FromZeros as _;

use super::{filter, summary};
use crate::{
    app::{
        plan::{Plan, Terminal, plan},
        sink::{EventCounts, Sink, To},
    },
    cli::Cli,
};
use rdmatop_model::{
    engine::{Engine, EngineConfig},
    event::{Event, EventKind},
    input::{DeviceReading, DevicesSample, Input, Now},
};

/// Names that a device can have, and owners of QPs. The third owner's name is shown otherwise than the kernel
/// has it.
const NAMES: [&str; 3] = ["rxe0", "rxe1", "a\u{1b}b"];
const OWNERS: [(u32, &str); 3] = [(7, "pair"), (8, "storm"), (9, "a b")];

/// Each argument list is a kind of filter.
const MODES: [&[&str]; 10] = [
    &["--event", "wr"],
    &["--event", "wr_post"],
    &["--event", "wr_done"],
    &["--event", "wr", "--sample", "3"],
    &["--event", "wr", "--device", "rxe0"],
    &["--event", "wr", "--device", "rxe1", "--sample", "2"],
    &["--event", "wr_done", "--pid", "7"],
    &["--event", "wr", "--comm", "storm"],
    &["--event", "wr", "--comm", "a b"],
    &["--event", "wr", "--qpn", "2", "--device", "rxe0"],
];

#[derive(Clone, Debug)]
enum Step {
    Add(usize),
    Remove(usize),
    Rename(usize, usize),
    /// The list of devices is read now, and arrives with a later [`Step::Arrive`].
    List,
    Arrive,
    Create {
        device: usize,
        owner: usize,
    },
    Destroy(usize),
    /// A post or an end, whose record finds room in the ring or not.
    Work {
        qp: usize,
        post: bool,
        full: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let some = 0..4usize;
    prop_oneof![
        1 => (0..NAMES.len()).prop_map(Step::Add),
        1 => some.clone().prop_map(Step::Remove),
        1 => (some.clone(), 0..NAMES.len()).prop_map(|(at, name)| Step::Rename(at, name)),
        1 => Just(Step::List),
        1 => Just(Step::Arrive),
        2 => (some.clone(), 0..OWNERS.len()).prop_map(|(device, owner)| Step::Create { device, owner }),
        1 => some.clone().prop_map(Step::Destroy),
        8 => (some, any::<bool>(), prop::bool::weighted(0.1))
            .prop_map(|(qp, post, full)| Step::Work { qp, post, full }),
    ]
}

struct Device {
    index: u32,
    name: usize,
}

struct Qp {
    number: u32,
    device_index: u32,
    /// The device's name when the QP was made.
    name: usize,
    owner: usize,
    wanted: bool,
    posts: u64,
    ends: u64,
}

/// Devices and QPs as the kernel has them, the programs as `body/wr.rs` and `body/wr_qps.rs` have them, and
/// the engine.
struct Simulation {
    plan: Plan,
    asked: WrFilter,
    now: u64,
    devices: Vec<Device>,
    qps: Vec<Qp>,
    indexes: u32,
    numbers: u32,
    counts: [u64; count::COUNT as usize],
    losses: [u64; loss::COUNT as usize],
    engine: Engine,
    listed: Option<DevicesSample>,
    seen: EventCounts,
    printed: Vec<Event>,
    /// Number and device of what the user asked for and the ring had room for.
    expected: Vec<(u32, &'static str)>,
}

fn is(wanted: &[u8], has: &str) -> bool {
    let end = wanted.iter().position(|byte| *byte == 0).unwrap_or(wanted.len());
    end == 0 || &wanted[..end] == has.as_bytes()
}

impl Simulation {
    fn new(args: &[&str]) -> Self {
        let cli = Cli::try_parse_from(["rdmatop", "--trace"].iter().chain(args)).unwrap();
        let plan = plan(&cli, Terminal::default()).unwrap();
        Self {
            asked: filter(&plan, false),
            plan,
            now: 1_000,
            devices: vec![Device { index: 0, name: 0 }],
            qps: Vec::new(),
            indexes: 1,
            numbers: 1,
            counts: [0; count::COUNT as usize],
            losses: [0; loss::COUNT as usize],
            engine: Engine::new(EngineConfig::default()),
            listed: None,
            seen: EventCounts::default(),
            printed: Vec::new(),
            expected: Vec::new(),
        }
    }

    fn at(&self) -> Now {
        Now {
            mono_ns: self.now,
            wall_ns: self.now,
        }
    }

    fn give(&mut self, input: Input) {
        let at = self.at();
        let (seen, printed) = (RefCell::new(&mut self.seen), RefCell::new(&mut self.printed));
        let asked = &self.plan.filter;
        self.engine.fold(input.at(at), &mut |event| {
            Sink::new(To::Nobody).give(event.clone(), asked, &mut seen.borrow_mut());
            if asked.matches_event(&event) && event.event.is_on_request() {
                printed.borrow_mut().push(event);
            }
        });
    }

    fn step(&mut self, step: &Step) {
        self.now += 10;
        let free = |simulation: &Self, name| simulation.devices.iter().all(|device| device.name != name);
        match *step {
            Step::Add(name) if free(self, name) => {
                self.devices.push(Device {
                    index: self.indexes,
                    name,
                });
                self.indexes += 1;
            }
            Step::Remove(at) if at < self.devices.len() => {
                let gone = self.devices.remove(at).index;
                self.qps.retain(|qp| qp.device_index != gone);
            }
            Step::Rename(at, name) if at < self.devices.len() && free(self, name) => {
                self.devices[at].name = name;
            }
            Step::List => {
                let devices = self.devices.iter().map(|device| DeviceReading {
                    index: device.index,
                    name: NAMES[device.name].to_owned(),
                    ..DeviceReading::default()
                });
                self.listed = Some(DevicesSample {
                    mono_ns: self.now,
                    devices: devices.collect(),
                    ..DevicesSample::default()
                });
            }
            Step::Arrive => {
                if let Some(sample) = self.listed.take() {
                    self.give(Input::Devices(Box::new(sample)));
                }
            }
            Step::Create { device, owner } if device < self.devices.len() => self.create(device, owner),
            Step::Destroy(at) if at < self.qps.len() => _ = self.qps.remove(at),
            Step::Work { qp, post, full } if qp < self.qps.len() => self.work(qp, post, full),
            _ => {}
        }
    }

    fn create(&mut self, device: usize, owner: usize) {
        let Device { index, name } = self.devices[device];
        let (pid, comm) = OWNERS[owner];
        let WrFilter {
            pid: asked,
            qpn,
            flags,
            ..
        } = self.asked;
        let number = self.numbers;
        self.numbers += 1;
        self.qps.push(Qp {
            number,
            device_index: index,
            name,
            owner,
            wanted: (asked == 0 || asked == pid)
                && (flags & WrFilter::QPN == 0 || qpn == number)
                && is(&self.asked.comm, comm)
                && is(&self.asked.device, NAMES[name]),
            posts: 0,
            ends: 0,
        });
    }

    fn count(&mut self, what: u32) {
        self.counts[what as usize] += 1;
    }

    fn work(&mut self, at: usize, post: bool, full: bool) {
        let qp = &mut self.qps[at];
        // Nothing ends before it is posted.
        if !post && qp.ends >= qp.posts {
            return;
        }
        let nth = if post { &mut qp.posts } else { &mut qp.ends };
        *nth += 1;
        let nth = *nth - 1;
        let (number, device_index, name, wanted) = (qp.number, qp.device_index, qp.name, qp.wanted);
        let (pid, comm) = OWNERS[qp.owner];
        self.count(count::HAPPENED);
        let sample = u64::from(self.asked.sample.max(1));
        let event = if post {
            EventKind::WrPost
        } else {
            EventKind::WrDone
        };
        let asked = &self.plan.filter;
        if asked.events.contains(&event)
            && asked.pid.is_none_or(|asked| asked == pid)
            && asked.comm.as_deref().is_none_or(|asked| asked == comm)
            && asked.device.as_deref().is_none_or(|asked| asked == NAMES[name])
            && asked.qpn.is_none_or(|asked| asked == number)
            && nth.is_multiple_of(sample)
            && !full
        {
            self.expected.push((number, NAMES[name]));
        }
        if !wanted {
            return self.count(count::FILTERED);
        }
        if !nth.is_multiple_of(sample) {
            return self.count(count::SAMPLED_OUT);
        }
        let unwanted = if post {
            WrFilter::NO_POSTS
        } else {
            WrFilter::NO_ENDS
        };
        if self.asked.flags & unwanted != 0 {
            return self.count(count::FILTERED);
        }
        if full {
            self.losses[loss::WR_RING as usize] += 1;
            return;
        }
        let mut record = WrRecord::new_zeroed();
        record.kind = if post { kind::POST } else { kind::DONE };
        record.flags = flag::OWNER_TASK;
        (record.ts_ns, record.status) = (self.now, NO_STATUS);
        (record.qpn, record.dest_qpn) = (number, UNKNOWN_U32);
        (record.device_index, record.owner_pid) = (device_index, pid);
        record.owner_comm = padded::<COMM_LEN>(comm);
        record.device = padded::<DEVICE_NAME_LEN>(NAMES[name]);
        self.give(Input::WorkRequests(vec![record]));
    }

    /// The numbers of the last line: happened, seen, filtered out, sampled out, lost.
    fn sum(&mut self) -> Vec<u64> {
        self.give(Input::WorkCounts(self.counts));
        self.give(Input::Losses(self.losses));
        let health = &self.engine.tick(self.at()).health;
        let line = summary(health, self.seen).unwrap();
        let words = line.split_whitespace();
        words.filter_map(|word| word.parse().ok()).take(5).collect()
    }
}

fn padded<const N: usize>(name: &str) -> [u8; N] {
    let mut bytes = [0; N];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes
}

proptest! {
    #[test]
    fn each_request_is_seen_filtered_sampled_or_lost_in_any_order(
        mode in 0..MODES.len(),
        steps in vec(step(), 0..120),
    ) {
        let mut simulation = Simulation::new(MODES[mode]);
        for step in &steps {
            simulation.step(step);
        }
        let sum = simulation.sum();
        let [happened, seen, filtered, sampled, lost] = sum[..] else { panic!("{sum:?}") };
        prop_assert_eq!(seen + filtered + sampled + lost, happened);
        prop_assert_eq!(seen, simulation.printed.len() as u64, "what is said to be seen is printed");
        let printed = simulation.printed.iter().map(|event| (event.qpn.unwrap(), event.device.clone().unwrap()));
        let shown = |name: &str| rdmatop_base::text::sanitize(name.as_bytes());
        let expected = simulation.expected.iter().map(|(qpn, name)| (*qpn, shown(name).into()));
        prop_assert_eq!(printed.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }
}
