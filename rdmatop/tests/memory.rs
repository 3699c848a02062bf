//! The model's memory under churn: what is gone is forgotten. In a process of its own, because it counts all
//! that is allocated.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use rdmatop_common::{
    counters::{QpSlot, VERB_ENTRIES, VerbErrorKey, VerbKey, VerbStats, slot_flag},
    event::{ObjectRecord, Prefix, QpRecord, Record, UNKNOWN_U8, UNKNOWN_U32, flag, kind},
};
use rdmatop_model::{
    engine::{Engine, EngineConfig},
    input::{DeviceReading, DevicesSample, Input, Now, PortReading, ProcessFacts, SlotsSample, VerbsSample},
    snapshot::Snapshot,
};
use zerocopy::FromZeros as _;

/// The system's allocator, and how many bytes it has given.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it came; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above; the block is the system's.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const SECOND: u64 = 1_000_000_000;
/// Processes of a round, each of which ends before the next but one.
const PROCESSES: u32 = 5;
/// QPs of a process.
const QPS: u32 = 20;
/// Verbs that a process calls.
const VERBS: u32 = 12;
/// The kernel side's table keeps ended processes until it is half full.
const KEPT: usize = VERB_ENTRIES as usize / 2;

/// A host on which short-lived processes make QPs.
struct Host {
    engine: Engine,
    now: u64,
    round: u32,
    /// The kernel side's table of verbs, oldest first.
    verbs: Vec<(VerbKey, VerbStats)>,
    shown: Option<Arc<Snapshot>>,
}

impl Host {
    fn new() -> Self {
        let mut host = Self {
            engine: Engine::new(EngineConfig::default()),
            now: SECOND,
            round: 0,
            verbs: Vec::with_capacity(2 * KEPT),
            shown: None,
        };
        let device = DeviceReading {
            index: 0,
            name: "rxe0".to_owned(),
            driver: Some("rdma_rxe".to_owned()),
            ports: vec![PortReading {
                number: 1,
                ..PortReading::default()
            }],
            ..DeviceReading::default()
        };
        let sample = DevicesSample {
            mono_ns: host.now,
            devices: vec![device],
            ..DevicesSample::default()
        };
        host.apply(Input::Devices(Box::new(sample)));
        host
    }

    fn apply(&mut self, input: Input) {
        let now = Now {
            mono_ns: self.now,
            wall_ns: self.now,
        };
        self.engine.fold(input.at(now), &mut |_| {});
    }

    /// Processes come, use a QP after the other and end; those of the round before are gone from /proc.
    fn round(&mut self) {
        self.now += SECOND;
        self.round += 1;
        let first = 1000 + (self.round * PROCESSES) % 30_000;
        let mut slots = Vec::new();
        for pid in first..first + PROCESSES {
            for number in 0..QPS {
                let (records, slot) = self.life(pid, number);
                self.apply(Input::Records(records));
                slots.push((number + QPS * (pid - first), slot));
            }
            for verb in 0..VERBS {
                let mut stats = VerbStats {
                    calls: u64::from(QPS),
                    errors: u64::from(verb == 3),
                    ns: 300 * u64::from(QPS),
                    ..VerbStats::new_zeroed()
                };
                stats.hist[8] = stats.calls;
                self.verbs.push((VerbKey { pid, verb }, stats));
            }
        }
        self.sweep(slots);
        for pid in self.engine.needs().processes {
            let facts = ProcessFacts {
                pid,
                start_ticks: u64::from(self.round) * 100,
                comm: Some("qp-churn".to_owned()),
                cmdline: Some(format!("qp-churn --count {QPS} --pid {pid}")),
                environ: Some(vec![("NCCL_DEBUG".to_owned(), "INFO".to_owned())]),
                ..ProcessFacts::default()
            };
            self.apply(Input::Process(Box::new(facts)));
        }
        for pid in first..first + PROCESSES {
            self.apply(Input::ProcessGone {
                pid,
                start_ticks: None,
            });
        }
        self.shown = Some(self.engine.tick(Now {
            mono_ns: self.now,
            wall_ns: self.now,
        }));
    }

    /// All records of a QP, and its slot.
    fn life(&self, pid: u32, number: u32) -> (Vec<Record>, QpSlot) {
        let qpn = 17 + (self.round * PROCESSES * QPS + pid * QPS + number) % 60_000;
        let object = 0xffff_8880_0000_0000 + u64::from((pid + number) % 40) * 4096;
        let born_ns = self.now - SECOND / 2 + u64::from(pid * QPS + number) % 1_000_000 * 100;
        let owner_start_ns = u64::from(self.round) * SECOND;
        let record = |kind, ts_ns, to_state| {
            let mut record = QpRecord {
                prefix: by(pid, kind, ts_ns, object),
                born_ns,
                owner_start_ns,
                qpn,
                qp_type: 2,
                slot: UNKNOWN_U32,
                event: UNKNOWN_U32,
                from_state: UNKNOWN_U8,
                to_state,
                ..QpRecord::new_zeroed()
            };
            record.prefix.flags |= flag::CREATED;
            record.attr_mask = u32::from(to_state != UNKNOWN_U8);
            Record::Qp(record)
        };
        let region = |kind, ts_ns| {
            Record::Object(ObjectRecord {
                prefix: by(pid, kind, ts_ns, object + 64),
                size: 4096,
                limits: [0; 2],
                owner_start_ns: 0,
            })
        };
        let mut records = vec![
            record(kind::QP_CREATE, born_ns, UNKNOWN_U8),
            region(kind::MR_REG, born_ns + 10),
        ];
        records.extend((1..4).map(|state| record(kind::QP_MODIFY, born_ns + u64::from(state) * 20, state)));
        records.push(region(kind::MR_DEREG, born_ns + 80));
        records.push(record(kind::QP_DESTROY, born_ns + 90, UNKNOWN_U8));
        let slot = QpSlot {
            qp: object,
            born_ns,
            since_ns: born_ns,
            owner_start_ns,
            qpn,
            owner_pid: pid,
            flags: slot_flag::DESTROYED,
            tx_done: 3,
            tx_posted: 3,
            cqes: 3,
            ..QpSlot::new_zeroed()
        };
        (records, slot)
    }

    /// The maps are read.
    fn sweep(&mut self, slots: Vec<(u32, QpSlot)>) {
        self.apply(Input::Slots(Box::new(SlotsSample {
            mono_ns: self.now,
            slots,
            partial: true,
            capacity: 16_384,
            ..SlotsSample::default()
        })));
        // As `Table::make_room`: 64 entries at a time.
        let over = self.verbs.len().saturating_sub(KEPT).min(64);
        self.verbs.drain(..over);
        let errors = self.verbs.iter().filter(|(_, stats)| stats.errors > 0);
        let error = |(key, stats): &(VerbKey, VerbStats)| {
            let key = VerbErrorKey {
                pid: key.pid,
                verb: key.verb,
                errno: 22,
                reserved: 0,
            };
            (key, stats.errors)
        };
        let sample = VerbsSample {
            mono_ns: self.now,
            verbs: self.verbs.clone(),
            errors: errors.map(error).collect(),
            ..VerbsSample::default()
        };
        self.apply(Input::Verbs(Box::new(sample)));
    }
}

fn by(pid: u32, kind: u16, ts_ns: u64, object: u64) -> Prefix {
    let mut prefix = Prefix {
        ts_ns,
        object,
        duration_ns: 5,
        kind,
        flags: flag::DEVICE | flag::OWNER_TASK,
        pid,
        tid: pid,
        owner_pid: pid,
        ..Prefix::new_zeroed()
    };
    prefix.comm[..8].copy_from_slice(b"qp-churn");
    prefix.owner_comm = prefix.comm;
    prefix.device[..4].copy_from_slice(b"rxe0");
    prefix
}

fn live() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// Bytes allocated in so many rounds and still there.
fn left(host: &mut Host, rounds: u32) -> usize {
    let before = live();
    for _ in 0..rounds {
        host.round();
    }
    live().saturating_sub(before)
}

#[test]
fn what_short_lived_processes_leave_behind_is_small_and_does_not_grow() {
    let mut host = Host::new();
    // What is shown for some seconds after its end is there from now on.
    left(&mut host, 10);
    // In these the kernel side's table of verbs becomes half full.
    let small = left(&mut host, 100);
    assert_eq!(host.verbs.len(), KEPT, "the table is full");
    assert!(small < 4 << 20, "{small} bytes of {KEPT} entries");
    // 40,000 QPs of 2000 processes.
    let more = left(&mut host, 400);
    assert!(
        more < small / 10,
        "{more} bytes after four times as many, {small} before"
    );
}
