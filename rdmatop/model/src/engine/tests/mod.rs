//! Scenarios: what happens on a host, as the sources report it, and what a user must see.

use std::{collections::HashMap, sync::Arc};

use rdmatop_common::{
    counters::{QpSlot, VerbErrorKey, VerbKey, VerbStats, slot_flag},
    event::{
        CmRecord, ObjectRecord, Prefix, QpRecord, Record, UNKNOWN_U8, UNKNOWN_U32, VerbRecord, flag, kind,
    },
};
use zerocopy::FromZeros;

use super::{Engine, EngineConfig};
use crate::{
    event::Event,
    ib::{QpState, QpType},
    input::{
        DeviceReading, DevicesSample, EbpfReport, Input, Now, PortReading, ProcessFacts, QpReading,
        QpsSample, RawReading, RawSource, ReadAt, SlotsSample, VerbsSample,
    },
    snapshot::{ProcessRow, QpRow, Snapshot},
};

mod changes;
mod devx;
mod dmabuf;
mod dumps;
mod events;
mod floods;
mod groups;
mod history;
mod kernel;
mod keys;
mod lifecycle;
mod logs;
mod no_slot;
mod objects;
mod paths;
mod ports;
mod probed_sums;
mod processes;
mod programs;
mod properties;
mod psn_shares;
mod rates;
mod removal;
mod shares;
mod sums;
mod traffic;
mod truth;
mod twins;
mod uprobes;
mod verbs;

const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;
const WALL: u64 = 1_700_000_000 * SECOND;

fn at(mono_ns: u64) -> Now {
    after_sleep(mono_ns, 0)
}

/// On a machine that has slept for so long: that moves the clock of the day and not the other one.
fn after_sleep(mono_ns: u64, slept_ns: u64) -> Now {
    Now {
        mono_ns,
        wall_ns: WALL + mono_ns + slept_ns,
    }
}

/// An engine and the time. Sources' times are the present unless a test says otherwise.
struct Host {
    engine: Engine,
    now: u64,
    /// How long the machine has slept: the clock of the day and that of starts went on, `now` did not.
    slept_ns: u64,
    /// What the kernel side remembers of QPs, by address and number: birth, and whether it saw the creation.
    births: HashMap<(u64, u32), (u64, bool)>,
}

impl Host {
    /// A host with `rxe0` (index 0), one second after start.
    fn new() -> Self {
        Self::with(EngineConfig::default())
    }

    fn with(config: EngineConfig) -> Self {
        let mut host = Self {
            engine: Engine::new(config),
            now: SECOND,
            slept_ns: 0,
            births: HashMap::new(),
        };
        host.devices(vec![rxe(0, "rxe0")]);
        host
    }

    fn pass(&mut self, ns: u64) -> &mut Self {
        self.now += ns;
        self
    }

    fn apply(&mut self, input: Input) -> Vec<Event> {
        self.engine.apply(input.at(after_sleep(self.now, self.slept_ns)))
    }

    fn record(&mut self, record: Record) -> Vec<Event> {
        self.apply(Input::Records(vec![record]))
    }

    /// A record, which has the birth that the kernel side remembers unless the test says another.
    fn qp(&mut self, mut record: QpRecord) -> Event {
        let prefix = &mut record.prefix;
        if record.born_ns == 0 {
            let key = (prefix.object, record.qpn);
            let call_ns = prefix.ts_ns - prefix.duration_ns;
            let (born_ns, created) = if prefix.kind == kind::QP_CREATE {
                self.births.insert(key, (call_ns, true));
                (call_ns, true)
            } else {
                *self.births.entry(key).or_insert((call_ns, false))
            };
            record.born_ns = born_ns;
            if created {
                prefix.flags |= flag::CREATED;
            }
        }
        let mut events = self.record(Record::Qp(record));
        assert_eq!(events.len(), 1);
        events.remove(0)
    }

    fn devices(&mut self, mut devices: Vec<DeviceReading>) {
        let ports = devices.iter_mut().flat_map(|device| &mut device.ports);
        for counter in ports.flat_map(|port| &mut port.counters) {
            counter.at = self.now.into();
        }
        let sample = DevicesSample {
            mono_ns: self.now,
            devices,
            ..DevicesSample::default()
        };
        self.apply(Input::Devices(Box::new(sample)));
    }

    fn dump(&mut self, began_ns: u64, qps: Vec<QpReading>) {
        let sample = QpsSample {
            mono_ns: began_ns,
            complete: vec![0],
            qps,
            errors: Vec::new(),
        };
        self.apply(Input::Qps(Box::new(sample)));
    }

    fn sweep(&mut self, slots: &[QpSlot]) {
        for slot in slots {
            let created = slot.flags & slot_flag::SINCE_ATTACH == 0;
            self.births.insert((slot.qp, slot.qpn), (slot.born_ns, created));
        }
        let slots = slots
            .iter()
            .enumerate()
            .map(|(i, slot)| (u32::try_from(i).unwrap(), *slot));
        let sample = SlotsSample {
            mono_ns: self.now,
            slots: slots.collect(),
            ..SlotsSample::default()
        };
        self.apply(Input::Slots(Box::new(sample)));
    }

    fn facts(&mut self, pid: u32, start_ticks: u64, comm: &str) {
        let facts = ProcessFacts {
            pid,
            start_ticks,
            comm: Some(comm.into()),
            ..ProcessFacts::default()
        };
        self.apply(Input::Process(Box::new(facts)));
    }

    /// /proc has no such process.
    fn gone(&mut self, pid: u32) {
        self.apply(Input::ProcessGone {
            pid,
            start_ticks: None,
        });
    }

    fn tick(&mut self) -> Arc<Snapshot> {
        self.engine.tick(after_sleep(self.now, self.slept_ns))
    }

    /// The only QP there is.
    fn only_qp(&mut self) -> Arc<QpRow> {
        let snapshot = self.tick();
        assert_eq!(snapshot.qps.len(), 1, "{:?}", snapshot.qps);
        Arc::clone(&snapshot.qps[0])
    }

    fn process(&mut self, pid: u32) -> ProcessRow {
        let snapshot = self.tick();
        let found: Vec<_> = snapshot
            .processes
            .iter()
            .filter(|row| row.pid == Some(pid))
            .collect();
        assert_eq!(found.len(), 1, "{:?}", snapshot.processes);
        found[0].clone()
    }
}

fn rxe(index: u32, name: &str) -> DeviceReading {
    DeviceReading {
        index,
        name: name.into(),
        node_guid: Some(0x0254_00ff_fe12_3456 + u64::from(index)),
        driver: Some("rdma_rxe".into()),
        ports: vec![PortReading {
            number: 1,
            ..PortReading::default()
        }],
        ..DeviceReading::default()
    }
}

/// A device whose counters are read when [`Host::devices`] lists it.
fn counting(index: u32, name: &str, driver: &str, counters: &[(&str, u64)]) -> DeviceReading {
    let mut device = rxe(index, name);
    device.driver = Some(driver.into());
    device.ports[0].counters = counters
        .iter()
        .map(|(name, value)| RawReading {
            name: (*name).into(),
            value: Some(*value),
            source: RawSource::Netlink,
            at: ReadAt::default(),
        })
        .collect();
    device
}

fn bytes<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

fn prefix(kind: u16, ts_ns: u64, object: u64) -> Prefix {
    Prefix {
        ts_ns,
        object,
        kind,
        flags: flag::DEVICE,
        device: bytes("rxe0"),
        device_index: 0,
        ..Prefix::new_zeroed()
    }
}

/// A user's prefix: the owner makes the call.
fn by(mut prefix: Prefix, pid: u32, comm: &str) -> Prefix {
    prefix.flags |= flag::OWNER_TASK;
    prefix.pid = pid;
    prefix.tid = pid;
    prefix.owner_pid = pid;
    prefix.comm = bytes(comm);
    prefix.owner_comm = bytes(comm);
    prefix
}

fn consumer(mut prefix: Prefix, name: &str) -> Prefix {
    prefix.flags |= flag::OWNER_KERNEL | flag::KTHREAD;
    prefix.pid = 12;
    prefix.tid = 12;
    prefix.comm = bytes("kworker/0:1");
    prefix.owner_comm = bytes(name);
    prefix
}

fn record(prefix: Prefix, qpn: u32) -> QpRecord {
    QpRecord {
        prefix,
        qpn,
        qp_type: 2,
        attr_mask: 0,
        dest_qpn: UNKNOWN_U32,
        rq_psn: UNKNOWN_U32,
        sq_psn: UNKNOWN_U32,
        slot: UNKNOWN_U32,
        event: UNKNOWN_U32,
        from_state: UNKNOWN_U8,
        to_state: UNKNOWN_U8,
        path_mtu: UNKNOWN_U8,
        port: UNKNOWN_U8,
        timeout: UNKNOWN_U8,
        retry_cnt: UNKNOWN_U8,
        rnr_retry: UNKNOWN_U8,
        sgid_index: UNKNOWN_U8,
        dest_gid: [0; 16],
        born_ns: 0,
        owner_start_ns: 0,
    }
}

/// Process 231 creates QP `qpn` at address `object`.
fn create(ts_ns: u64, object: u64, qpn: u32) -> QpRecord {
    record(by(prefix(kind::QP_CREATE, ts_ns, object), 231, "ib_send_bw"), qpn)
}

fn modify(ts_ns: u64, object: u64, qpn: u32, state: u8) -> QpRecord {
    let mut record = record(by(prefix(kind::QP_MODIFY, ts_ns, object), 231, "ib_send_bw"), qpn);
    record.prefix.duration_ns = 5000;
    record.attr_mask = 1;
    record.to_state = state;
    record
}

fn destroy(ts_ns: u64, object: u64, qpn: u32) -> QpRecord {
    record(
        by(prefix(kind::QP_DESTROY, ts_ns, object), 231, "ib_send_bw"),
        qpn,
    )
}

fn region(kind: u16, ts_ns: u64, object: u64, pid: u32, size: u64) -> Record {
    Record::Object(ObjectRecord {
        prefix: by(prefix(kind, ts_ns, object), pid, "ib_send_bw"),
        size,
        limits: [UNKNOWN_U32; 2],
        owner_start_ns: 0,
    })
}

fn dumped(qpn: u32, pid: Option<u32>, state: u8) -> QpReading {
    QpReading {
        device_index: 0,
        port: Some(1),
        qpn,
        qp_type: Some(QpType(2)),
        state: Some(QpState(state)),
        remote_qpn: None,
        sq_psn: None,
        rq_psn: None,
        pid,
        kern_name: None,
    }
}

/// A slot of process 231's QP `qpn` with `done` send WRs of 100 bytes.
fn slot(born_ns: u64, object: u64, qpn: u32, done: u64) -> QpSlot {
    let mut slot = QpSlot {
        qp: object,
        born_ns,
        since_ns: born_ns,
        qpn,
        device_index: 0,
        owner_pid: 231,
        tx_done: done,
        tx_posted: done,
        tx_bytes: 100 * done,
        cqes: done,
        ..QpSlot::new_zeroed()
    };
    slot.ops[2] = done;
    slot.op_bytes[2] = 100 * done;
    slot.wc[0] = done;
    slot
}

fn final_slot(mut slot: QpSlot) -> QpSlot {
    slot.flags |= slot_flag::DESTROYED;
    slot
}

/// A report of other programs than those before.
fn anew() -> Input {
    Input::Ebpf(Box::new(EbpfReport {
        anew: true,
        ..EbpfReport::default()
    }))
}
