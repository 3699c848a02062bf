//! Histories of a machine: what happens there, and in which order the engine learns it.

use proptest::prelude::*;

use super::{
    kernel::{Kernel, Work},
    *,
};

/// What happens next, on the machine or on the way from it.
#[derive(Clone, Debug)]
pub(super) enum Step {
    AddDevice(u8),
    RemoveDevice(u8),
    Rename,
    Reload,
    Spawn {
        pid: u8,
        same_tick: bool,
    },
    Kill(u8),
    Create {
        device: u8,
        task: u8,
    },
    Modify {
        qp: u8,
        state: u8,
    },
    Move {
        qp: u8,
        work: Work,
    },
    Destroy(u8),
    Attach,
    Sweep,
    BeginDump,
    EndDump,
    ListDevices,
    LookAtProcesses,
    /// Records arrive, some of them turned around or lost.
    Records {
        count: u8,
        order: u8,
        lost: u8,
    },
    /// What was sampled arrives.
    Samples(u8),
    Pass(u16),
    /// The machine sleeps for so many minutes.
    Sleep(u16),
}

/// What a QP does at one time: it sends, it receives, or it does both.
fn work() -> impl Strategy<Value = Work> {
    let some = || 1u64..256;
    let none = || Just(0u64);
    prop_oneof![(some(), none()), (none(), some()), (some(), some())]
        .prop_map(|(sent, received)| Work { sent, received })
}

fn step() -> impl Strategy<Value = Step> {
    let some = any::<u8>;
    prop_oneof![
        2 => some().prop_map(Step::AddDevice),
        1 => some().prop_map(Step::RemoveDevice),
        1 => Just(Step::Rename),
        1 => prop_oneof![4 => Just(Step::ListDevices), 1 => Just(Step::Reload)],
        4 => (some(), any::<bool>()).prop_map(|(pid, same_tick)| Step::Spawn { pid, same_tick }),
        1 => some().prop_map(Step::Kill),
        12 => (some(), some()).prop_map(|(device, task)| Step::Create { device, task }),
        2 => (some(), some()).prop_map(|(qp, state)| Step::Modify { qp, state }),
        12 => (some(), work()).prop_map(|(qp, work)| Step::Move { qp, work }),
        8 => some().prop_map(Step::Destroy),
        1 => Just(Step::Attach),
        3 => Just(Step::Sweep),
        1 => Just(Step::BeginDump),
        2 => Just(Step::EndDump),
        1 => Just(Step::ListDevices),
        2 => Just(Step::LookAtProcesses),
        6 => (1u8..8, some(), 0u8..4).prop_map(|(count, order, lost)| Step::Records { count, order, lost }),
        4 => (1u8..4).prop_map(Step::Samples),
        2 => any::<u16>().prop_map(Step::Pass),
        1 => any::<u16>().prop_map(Step::Sleep),
    ]
}

/// The machine, and the engine that gets the inputs from it.
pub(super) struct Lab {
    pub(super) kernel: Kernel,
    pub(super) engine: Engine,
    /// Another engine, which is given the same and must say the same.
    pub(super) twin: Option<Engine>,
    /// Whether records may be lost.
    pub(super) lossy: bool,
    losses: u64,
    /// The test's history forgets nothing.
    pub(super) keeps_all: bool,
}

impl Lab {
    pub(super) fn new(config: EngineConfig, lossy: bool) -> Self {
        let mut lab = Self {
            kernel: Kernel::new(),
            keeps_all: config == EngineConfig::keep_all(),
            engine: Engine::new(config),
            twin: None,
            lossy,
            losses: 0,
        };
        for device in 0..2 {
            lab.kernel.add_device(device);
            lab.kernel.spawn(device, false);
        }
        lab
    }

    /// When inputs arrive: the record of a call comes when the call has returned.
    pub(super) fn present(&self) -> Now {
        after_sleep(self.kernel.now + 10 * MS, self.kernel.slept_ns)
    }

    fn apply(&mut self, input: Input) -> Vec<Event> {
        let now = self.present();
        let timed = input.at(now);
        let twin = self.twin.as_mut().map(|twin| twin.apply(timed.clone()));
        let events = self.engine.apply(timed);
        if let Some(twin) = twin {
            assert_eq!(format!("{twin:?}"), format!("{events:?}"));
        }
        events
    }

    /// Returns the events that the engine makes of it.
    pub(super) fn run(&mut self, step: &Step) -> Vec<Event> {
        let kernel = &mut self.kernel;
        let mut inputs = Vec::new();
        match *step {
            Step::AddDevice(which) => kernel.add_device(which),
            Step::RemoveDevice(which) => kernel.remove_device(which),
            Step::Rename => kernel.rename(),
            Step::Reload => kernel.reload(&mut inputs),
            Step::Spawn { pid, same_tick } => kernel.spawn(pid, same_tick),
            Step::Kill(which) => kernel.kill(which),
            Step::Create { device, task } => kernel.create(device, task),
            Step::Modify { qp, state } => kernel.modify(qp, state),
            Step::Move { qp, work } => kernel.move_data(qp, work),
            Step::Destroy(which) => kernel.end(which),
            Step::Attach => kernel.attach(&mut inputs),
            Step::Sweep => kernel.sweep(),
            Step::BeginDump => kernel.begin_dump(),
            Step::EndDump => kernel.end_dump(),
            Step::ListDevices => kernel.list_devices(),
            Step::LookAtProcesses => {
                let needs = self.engine.needs();
                if let Some(twin) = &mut self.twin {
                    assert_eq!(twin.needs(), needs);
                }
                kernel.look_at_processes(needs.processes);
            }
            Step::Records { count, order, lost } => inputs = self.records(count, order, lost),
            Step::Samples(count) => {
                let count = usize::from(count).min(kernel.samples.len());
                inputs.extend(kernel.samples.drain(..count));
            }
            Step::Pass(ms) => kernel.now += u64::from(ms) * MS,
            Step::Sleep(minutes) => kernel.slept_ns += 60 * SECOND * u64::from(minutes),
        }
        inputs.into_iter().flat_map(|input| self.apply(input)).collect()
    }

    fn records(&mut self, count: u8, order: u8, lost: u8) -> Vec<Input> {
        let count = usize::from(count).min(self.kernel.records.len());
        let mut records: Vec<Record> = self.kernel.records.drain(..count).collect();
        if count > 0 {
            records.rotate_left(usize::from(order) % count);
        }
        if order % 2 == 1 {
            records.reverse();
        }
        let keep = records.len() - usize::from(lost).min(records.len()) * usize::from(self.lossy);
        self.losses += (records.len() - keep) as u64;
        records.truncate(keep);
        vec![
            Input::Records(records),
            Input::Losses([self.losses, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ]
    }

    /// Everything arrives.
    pub(super) fn settle(&mut self) {
        self.run(&Step::Records {
            count: u8::MAX,
            order: 0,
            lost: 0,
        });
        while !self.kernel.records.is_empty() {
            self.run(&Step::Records {
                count: u8::MAX,
                order: 0,
                lost: 0,
            });
        }
        self.kernel.now += 20 * MS;
        for step in [Step::EndDump, Step::Sweep, Step::EndDump, Step::ListDevices] {
            self.run(&step);
        }
        while !self.kernel.samples.is_empty() {
            self.run(&Step::Samples(u8::MAX));
        }
    }
}

pub(super) fn history() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(step(), 1..120)
}
