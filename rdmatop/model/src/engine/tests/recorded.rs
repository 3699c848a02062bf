//! Playing a recording gives the same snapshots and events, byte by byte.

use std::sync::{Mutex, PoisonError};

use proptest::prelude::*;
use rdmatop_common::wr::WrRecord;

use super::{
    history::{Lab, Step, history},
    *,
};
use crate::{
    cause::{CauseId, Concerns, Obstacle},
    input::{
        CountersSample, EbpfState, Flood, HealthSample, HostFacts, LimitReached, LockedMemory, LoggedError,
        MappingCount, MappingsSample, PortCounters, ProbeVerdict, SeenByPrograms, Skipped, SlotHead, Verdict,
        WatchReport, WatchSample,
    },
    recording::{Entry, Player, Recorder, Tap},
};

/// A recorder, and the tap that fills it.
fn recorder(config: &EngineConfig) -> (Arc<Mutex<Recorder>>, Tap) {
    let recorder = Arc::new(Mutex::new(Recorder::new(config)));
    let filled = Arc::clone(&recorder);
    let tap = move |entry: &Entry<'_>| filled.lock().unwrap_or_else(PoisonError::into_inner).add(entry);
    (recorder, Box::new(tap))
}

/// Snapshots and events of a recording, as text in which nothing is left out.
fn played(bytes: &[u8]) -> (Vec<String>, Vec<String>) {
    let mut player = Player::new(bytes).unwrap();
    let (mut snapshots, mut events) = (Vec::new(), Vec::new());
    while let Some(snapshot) = player
        .next(&mut |event| events.push(format!("{event:?}")))
        .unwrap()
    {
        snapshots.push(format!("{snapshot:?}"));
    }
    (snapshots, events)
}

fn text<T: std::fmt::Debug>(list: &[T]) -> Vec<String> {
    list.iter().map(|one| format!("{one:?}")).collect()
}

proptest! {
    #[test]
    fn a_recorded_history_plays_back_identically(lossy: bool, first: bool, steps in history()) {
        let config = EngineConfig { max_ended: 4, ..EngineConfig::default() };
        let (recorder, tap) = recorder(&config);
        let mut lab = Lab::tapped(config, lossy, Some(tap));
        let (mut snapshots, mut events) = (Vec::new(), Vec::new());
        if first {
            events.extend(lab.run(&Step::Attach));
        }
        for step in &steps {
            events.extend(lab.run(step));
            snapshots.push(lab.engine.tick(lab.present()));
        }
        let bytes = recorder.lock().unwrap().take();
        prop_assert_eq!(played(&bytes), (text(&snapshots), text(&events)));
    }
}

fn watch(report: WatchReport) -> Input {
    Input::Watch(Box::new(WatchSample {
        watch: 1,
        qp: 7,
        report,
    }))
}

#[expect(clippy::too_many_lines, reason = "a list of examples, one after another")]
fn every_input() -> Vec<Input> {
    let cause =
        || Obstacle::new(CauseId::Refused, "why", "do").takes("what", Concerns::Programs(vec!["qp".into()]));
    let head = SlotHead::of(&slot(1, 0xb0, 18, 0));
    let slots = SlotsSample {
        mono_ns: 5,
        at: Some(ReadAt::between(5, 9)),
        slots: vec![(3, slot(1, 0xa0, 17, 5))],
        idle: vec![(4, head)],
        partial: true,
        more: true,
        capacity: 16,
        lacks_some: true,
    };
    let port = PortCounters {
        device_index: 0,
        number: 1,
        counters: vec![RawReading {
            name: "x".into(),
            value: None,
            source: RawSource::Pma,
            at: 7.into(),
        }],
    };
    let stats = VerbStats {
        calls: 3,
        max_ns: u64::MAX,
        ..VerbStats::new_zeroed()
    };
    let verbs = VerbsSample {
        mono_ns: 1,
        partial: true,
        gone: vec![(7, 1)],
        verbs: vec![(VerbKey { pid: 231, verb: 1 }, stats)],
        calls_only: vec![(VerbKey { pid: 231, verb: 2 }, 9)],
        calls_only_ns: Some(2),
        errors: vec![(
            VerbErrorKey {
                pid: 231,
                verb: 1,
                errno: 22,
                reserved: 0,
            },
            1,
        )],
    };
    let facts = ProcessFacts {
        pid: 231,
        comm: Some("\u{1b}[2J\n".into()),
        environ: Some(vec![("NCCL_DEBUG".into(), "INFO".into())]),
        libraries: Some(vec!["libnccl".into()]),
        ..ProcessFacts::default()
    };
    let probe = ProbeVerdict {
        program: "p".into(),
        hook: "kprobe:f".into(),
        gives: "g".into(),
        verdict: Verdict::Partial,
        causes: vec![cause()],
    };
    let health = HealthSample {
        notes: vec![cause()].into(),
        host: HostFacts {
            hostname: Some("h".into()),
            kernel: None,
            uptime_s: Some(3),
        },
        self_cpu: Some(0.1 + 0.2),
        self_rss: Some(u64::MAX),
    };
    let mut devices = vec![counting(0, "rxe0", "rdma_rxe", &[("x", 1)])];
    devices[0].mr_bytes = Some([(231, 4096)].into());
    devices[0].resources = [("qp".to_owned(), 2)].into();
    let report = |state| EbpfReport {
        state,
        probes: vec![probe.clone()].into(),
        pinned: vec!["ib_core".into()],
        ..EbpfReport::default()
    };
    let skipped = Skipped {
        program: "p".into(),
        hook: "h".into(),
        count: 2,
        cost: "c".into(),
    };
    let cm = CmRecord {
        prefix: prefix(kind::CM, 1, 0),
        ..CmRecord::new_zeroed()
    };
    let verb = VerbRecord {
        prefix: prefix(kind::VERB_ERROR, 1, 0),
        verb: 1,
        reserved: 0,
    };
    let qp = QpReading {
        qp_type: Some(QpType(99)),
        kern_name: Some("nvme".into()),
        ..dumped(17, None, 3)
    };
    vec![
        Input::Records(vec![
            Record::Qp(create(1, 0xa0, 17)),
            region(kind::MR_REG, 2, 0xc0, 231, 4096),
            Record::Cm(cm),
            Record::Verb(verb),
        ]),
        Input::BadRecord,
        watch(WatchReport::Starting),
        watch(WatchReport::Records {
            records: vec![WrRecord::new_zeroed()],
            full: 1,
            missed: u64::MAX,
        }),
        watch(WatchReport::Off(Obstacle::new(CauseId::NotFollowed, "a", "b"))),
        Input::Ebpf(Box::new(report(EbpfState::On {
            datapaths: crate::input::DataPaths::default().and("rdma_rxe", "kprobe"),
        }))),
        Input::Ebpf(Box::new(report(EbpfState::unavailable(Obstacle::new(
            CauseId::Lockdown,
            "a",
            "b",
        ))))),
        Input::Losses([1, 2, 3, 4, 5, 6, 7, u64::MAX, 0, 0, 0]),
        Input::Floods(vec![Flood {
            pid: None,
            comm: Some("x".into()),
            failures: 1,
            records: u64::MAX,
        }]),
        Input::Skipped(Some(vec![skipped])),
        Input::Seen(SeenByPrograms {
            session: 1,
            mono_ns: 2,
            packets: Some(u64::MAX),
            receives: None,
        }),
        Input::ChannelDropped(3),
        Input::Devices(Box::new(DevicesSample {
            mono_ns: 1,
            devices,
            errors: vec![cause()],
            unread: false,
            notes: vec![cause()],
        })),
        Input::Counters(Box::new(CountersSample {
            mono_ns: 2,
            changed: vec![rxe(0, "rxe0")],
            ports: vec![port],
            mr_bytes: Some([(231, 1)].into()),
        })),
        Input::Qps(Box::new(QpsSample {
            mono_ns: 3,
            complete: vec![0],
            qps: vec![qp],
            errors: vec![cause()],
        })),
        Input::Slots(Box::new(slots)),
        Input::Verbs(Box::new(verbs)),
        Input::Process(Box::new(facts)),
        Input::Logged(Ok(vec![LoggedError {
            text: "infiniband rxe0: a".into(),
            device: Some("+pci:0000:3b:00.0".into()),
        }])),
        Input::Logged(Err(Box::new(cause()))),
        Input::RdmaLimits(vec![LimitReached {
            pid: 231,
            cgroup: "/a".into(),
            device: "rxe0".into(),
            resource: "hca_object".into(),
            max: 5,
        }]),
        Input::Locked(vec![LockedMemory {
            pid: 231,
            limit: Some(65_536),
            exempt: Some(false),
            pinned: None,
        }]),
        Input::Mappings(MappingsSample {
            limit: Some(65_530),
            processes: vec![MappingCount {
                start_ticks: 1,
                pid: 231,
                count: Some(62_000),
                read_ns: 4,
            }],
        }),
        Input::ProcessGone {
            pid: 231,
            start_ticks: None,
        },
        Input::Slow(vec![cause()]),
        Input::SlowProcesses(vec![cause()]),
        Input::RoundHangs(Some(Box::new(cause()))),
        Input::Health(Box::new(health)),
    ]
}

#[test]
fn every_input_comes_back_as_it_was() {
    let config = EngineConfig::keep_all();
    let (recorder, mut tap) = recorder(&config);
    let mut engine = Tee::new(config, None);
    let (mut snapshots, mut events, mut there) = (Vec::new(), Vec::new(), Vec::new());
    for (input, ms) in every_input().into_iter().zip(1..) {
        let now = at(SECOND + ms * MS);
        let timed = input.at(now);
        tap(&Entry::Input(std::borrow::Cow::Borrowed(&timed)));
        there.push(format!("{timed:?}"));
        events.extend(engine.apply(timed));
        snapshots.push(engine.tick(now));
        tap(&Entry::Tick(now));
    }
    let bytes = recorder.lock().unwrap().take();
    let back: Vec<String> = String::from_utf8(bytes.clone())
        .unwrap()
        .lines()
        .skip(1)
        .filter_map(|line| match serde_json::from_str(line).unwrap() {
            Entry::Input(timed) => Some(format!("{:?}", timed.into_owned())),
            _ => None,
        })
        .collect();
    assert_eq!(back, there);
    assert_eq!(played(&bytes), (text(&snapshots), text(&events)));
}

#[test]
fn other_recordings_are_refused_in_one_line() {
    let head = String::from_utf8(Recorder::new(&EngineConfig::default()).take()).unwrap();
    let refused = |bytes: &str| {
        let error = Player::new(bytes.as_bytes())
            .and_then(|mut player| player.next(&mut |_| ()))
            .unwrap_err();
        let line = error.to_string();
        assert!(!line.contains('\n'), "{line}");
        line
    };
    assert!(refused("").contains("no recording"));
    assert!(refused("time ns\n").contains("no recording"));
    // Slots of format 1 may hold counts that were read from the memory of programs, which nothing marks any
    // more.
    assert!(refused(&head.replace("\"recording\":2", "\"recording\":1")).contains("format 1"));
    assert!(refused(&head.replace("\"layout\":[", "\"layout\":[0,")).contains("layout"));
    assert!(refused(&format!("{head}{{\"tick\":{{\"mono_ns\"")).contains("line 2"));
    let asked = format!("{head}{{\"lacks\":{{\"repair\":true,\"processes\":[7]}}}}\n");
    assert!(refused(&asked).contains("defect"));
    assert!(
        Player::new(head.as_bytes())
            .unwrap()
            .next(&mut |_| ())
            .unwrap()
            .is_none()
    );
}
