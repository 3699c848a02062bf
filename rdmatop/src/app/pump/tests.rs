//! The pump between a made-up machine and a view.

use super::*;
use crate::app::testkit::{Fake, devices};
use rdmatop_common::{
    counters::{VerbErrorKey, VerbKey, VerbStats},
    verb,
};
use rdmatop_model::input::{EbpfState, QpReading, QpsSample, VerbsSample};
use rdmatop_sources::seam::Polled;
use zerocopy::FromZeros as _;

fn pump(source: Fake, filter: Filter) -> Pump {
    let polled: Vec<Box<dyn Polled>> = vec![Box::new(source)];
    let sources = Sources {
        polled,
        subsystem: true,
        ..Sources::default()
    };
    let settings = Settings {
        filter,
        counters: true,
        ..Settings::default()
    };
    Pump::start(sources, settings).map(|(pump, _)| pump).unwrap()
}

fn programs(follows_qps: bool) -> Input {
    Input::Ebpf(Box::new(EbpfReport {
        state: EbpfState::On {
            datapaths: rdmatop_model::input::DataPaths::default(),
        },
        follows_qps,
        ..EbpfReport::default()
    }))
}

fn on() -> Vec<Input> {
    vec![programs(true)]
}

fn named(name: &str) -> Filter {
    Filter {
        device: Some(name.to_owned()),
        ..Filter::default()
    }
}

#[tokio::test]
async fn the_view_gets_what_the_filter_lets_and_the_mode_sees_all() {
    let mut pump = pump(Fake::new(vec![vec![devices(&["rxe0", "rxe1"])]]), named("rxe1"));
    pump.sample().await.unwrap();
    assert_eq!(pump.latest().devices.len(), 2);
    let shown = pump.subscribe().borrow().clone();
    assert_eq!(
        shown.devices.iter().map(|d| &*d.name).collect::<Vec<_>>(),
        ["rxe1"]
    );
}

#[tokio::test]
async fn without_programs_every_round_dumps_the_queue_pairs() {
    let source = Fake::new(Vec::new());
    let asked = Arc::clone(&source.asked);
    let mut pump = pump(source, Filter::default());
    for _ in 0..3 {
        pump.sample().await.unwrap();
    }
    let asked = asked.lock().unwrap();
    assert_eq!(
        asked.iter().map(|w| (w.round, w.qps)).collect::<Vec<_>>(),
        [(0, true), (1, true), (2, true)]
    );
}

#[tokio::test]
async fn the_last_round_is_marked_as_the_last() {
    let source = Fake::new(Vec::new());
    let asked = Arc::clone(&source.asked);
    let mut pump = pump(source, Filter::default());
    pump.sample().await.unwrap();
    pump.last_sample().await.unwrap();
    let asked = asked.lock().unwrap();
    assert_eq!(asked.iter().map(|w| w.last).collect::<Vec<_>>(), [false, true]);
}

#[tokio::test]
async fn a_single_sample_reads_the_psns_of_the_same_queue_pairs_at_its_ends() {
    use rdmatop_base::ib::{QpState, QpType};
    use rdmatop_model::input::{PortReading, RawReading, RawSource, ReadAt};
    let Input::Devices(mut sample) = devices(&["rxe0"]) else {
        unreachable!()
    };
    let names = ["sent_pkts", "rcvd_pkts", "sent_bytes", "rcvd_bytes"];
    let counter = |name: &str| RawReading {
        name: name.into(),
        value: Some(1),
        source: RawSource::Netlink,
        at: ReadAt::from(sample.mono_ns),
    };
    let port = PortReading {
        number: 1,
        counters: names.into_iter().map(counter).collect(),
        ..PortReading::default()
    };
    sample.devices[0].driver = Some("rdma_rxe".to_owned());
    sample.devices[0].ports = vec![port];
    // Of two processes, and more than are asked for twice in a second.
    let qps = (0..150).map(|number| QpReading {
        port: Some(1),
        qpn: 100 + number,
        qp_type: Some(QpType::RC),
        state: Some(QpState::RTS),
        ..dump_of(231 + number % 2).qps[0].clone()
    });
    let dump = QpsSample {
        qps: qps.collect(),
        ..dump_of(231)
    };
    let first = vec![programs(true), Input::Devices(sample), Input::Qps(Box::new(dump))];
    let source = Fake::new(vec![first]);
    let asked = Arc::clone(&source.asked);
    let mut pump = pump(source, Filter::default());
    pump.sample().await.unwrap();
    pump.sample_psns().await.unwrap();
    pump.last_sample().await.unwrap();
    let asked = asked.lock().unwrap();
    let ends = asked.iter().rev().take(2);
    let ends: Vec<usize> = ends
        .map(|wants| wants.psns.values().map(Vec::len).sum())
        .collect();
    assert_eq!(ends, [150, 150]);
}

/// A dump in which `pid` owns QP 17.
fn dump_of(pid: u32) -> QpsSample {
    let reading = QpReading {
        device_index: 0,
        port: None,
        qpn: 17,
        qp_type: None,
        state: None,
        remote_qpn: None,
        sq_psn: None,
        rq_psn: None,
        pid: Some(pid),
        kern_name: None,
    };
    QpsSample {
        mono_ns: 1,
        qps: vec![reading],
        ..QpsSample::default()
    }
}

#[tokio::test]
async fn the_first_snapshot_has_the_names_of_the_first_rounds_processes() {
    use rdmatop_model::input::ProcessFacts;
    let dump = dump_of(231);
    let facts = ProcessFacts {
        pid: 231,
        comm: Some("ib_send_bw".to_owned()),
        ..ProcessFacts::default()
    };
    let rounds = vec![
        vec![Input::Qps(Box::new(dump))],
        vec![Input::Process(Box::new(facts))],
    ];
    let source = Fake::new(rounds);
    let asked = Arc::clone(&source.asked);
    let mut pump = pump(source, Filter::default());
    pump.sample().await.unwrap();
    assert_eq!(pump.latest().qps[0].comm.as_deref(), Some("ib_send_bw"));
    pump.sample().await.unwrap();
    let asked = asked.lock().unwrap();
    let processes: Vec<&[u32]> = asked.iter().map(|wants| &*wants.processes).collect();
    assert_eq!(processes, [&[][..], &[231], &[]]);
    assert_eq!(
        asked.iter().map(|wants| wants.round).collect::<Vec<_>>(),
        [0, 1, 2]
    );
}

#[tokio::test]
async fn a_process_of_the_window_is_looked_up_before_the_window_closes() {
    let dump = dump_of(231);
    let source = Fake::new(Vec::new());
    let asked = Arc::clone(&source.asked);
    let mut pump = pump(source, Filter::default());
    pump.sample().await.unwrap();
    let first = Arc::clone(pump.latest());
    // As a record of a QP's creation would have it.
    pump.engine.apply(Input::Qps(Box::new(dump)).at(now()));
    pump.wait(tokio::time::sleep(PROCESSES_EVERY * 3)).await;
    {
        let asked = asked.lock().unwrap();
        let looked: Vec<_> = asked.iter().filter(|wants| wants.only_processes).collect();
        assert_eq!(
            looked.iter().map(|wants| &*wants.processes).collect::<Vec<_>>(),
            [&[231]]
        );
    }
    assert!(
        Arc::ptr_eq(&first, pump.latest()),
        "rates would be of a part of the window"
    );
    pump.sample().await.unwrap();
    assert!(!Arc::ptr_eq(&first, pump.latest()));
}

#[tokio::test]
async fn how_much_a_process_may_lock_is_asked_whichever_round_comes_next() {
    const REG_MR: u32 = verb::WRITE | 9;
    let verbs = |failed: u64| VerbsSample {
        mono_ns: now().mono_ns,
        verbs: vec![(
            VerbKey {
                pid: 231,
                verb: REG_MR,
            },
            VerbStats {
                calls: failed,
                errors: failed,
                ..VerbStats::new_zeroed()
            },
        )],
        errors: vec![(
            VerbErrorKey {
                pid: 231,
                verb: REG_MR,
                errno: 12,
                reserved: 0,
            },
            failed,
        )],
        ..VerbsSample::default()
    };
    let source = Fake::new(Vec::new());
    let asked = Arc::clone(&source.asked);
    let mut pump = pump(source, Filter::default());
    pump.sample().await.unwrap();
    pump.engine.apply(Input::Qps(Box::new(dump_of(231))).at(now()));
    // Once between two samples, and once with the next sample.
    pump.engine.apply(Input::Verbs(Box::new(verbs(3))).at(now()));
    pump.wait(tokio::time::sleep(PROCESSES_EVERY * 3)).await;
    pump.engine.apply(Input::Verbs(Box::new(verbs(4))).at(now()));
    pump.sample().await.unwrap();
    let asked = asked.lock().unwrap();
    let wanted: Vec<_> = asked.iter().filter(|wants| !wants.locked.is_empty()).collect();
    let kinds: Vec<_> = wanted
        .iter()
        .map(|wants| (&*wants.locked, wants.only_processes))
        .collect();
    assert_eq!(kinds, [(&[231][..], true), (&[231], false)]);
}

#[tokio::test]
async fn with_programs_a_dump_follows_the_attach_and_then_none() {
    let source = Fake::new(vec![on(), on(), on(), on()]);
    let asked = Arc::clone(&source.asked);
    let mut pump = pump(source, Filter::default());
    for _ in 0..4 {
        pump.sample().await.unwrap();
    }
    let qps: Vec<bool> = asked.lock().unwrap().iter().map(|w| w.qps).collect();
    assert_eq!(qps, [true, true, false, false]);
}

#[tokio::test]
async fn a_report_reaches_engine_and_mode_and_has_the_machine_looked_at_again() {
    let source = Fake::new(vec![Vec::new(), Vec::new(), Vec::new()]);
    let asked = Arc::clone(&source.asked);
    let start = |feed: Feed| feed.offer(programs(true)).unwrap();
    let sources = Sources {
        polled: vec![Box::new(source)],
        pushing: Some(rdmatop_sources::seam::Pushing {
            start: Box::new(start),
            stop: Box::new(|| ()),
        }),
        ..Sources::default()
    };
    let (mut pump, ebpf) = Pump::start(sources, Settings::default()).unwrap();
    assert_eq!(pump.latest().health.ebpf, EbpfState::Starting);
    let mut ebpf = ebpf.unwrap();
    let got = pump.wait(ebpf.started()).await.unwrap();
    assert!(got.state.is_on());
    for _ in 0..2 {
        pump.sample().await.unwrap();
    }
    assert!(pump.latest().health.ebpf.is_on() && pump.latest().health.follows_qps);
    let looked: Vec<bool> = asked.lock().unwrap().iter().map(|wants| wants.machine).collect();
    assert_eq!(looked, [true, false]);
}

#[tokio::test]
async fn programs_without_qp_records_do_not_replace_the_dump() {
    let half = || vec![programs(false)];
    let source = Fake::new((0..4).map(|_| half()).collect());
    let asked = Arc::clone(&source.asked);
    let mut pump = pump(source, Filter::default());
    for _ in 0..4 {
        pump.sample().await.unwrap();
    }
    assert!(asked.lock().unwrap().iter().all(|wants| wants.qps));
}

#[tokio::test]
async fn a_trace_reads_devices_often_until_it_is_in_step_then_rarely() {
    let source = Fake::new((0..40).map(|_| on()).collect());
    let asked = Arc::clone(&source.asked);
    let mut pump = pump(source, Filter::default());
    pump.settings.counters = false;
    for _ in 0..32 {
        pump.sample().await.unwrap();
    }
    // What was lost must be found out in the next round.
    pump.engine.apply(Input::BadRecord.at(now()));
    pump.sample().await.unwrap();
    let asked = asked.lock().unwrap();
    let full: Vec<u64> = asked.iter().filter(|w| !w.is_light()).map(|w| w.round).collect();
    assert_eq!(full, [0, 1, 30, 32]);
}

#[tokio::test]
async fn lines_that_the_writer_refuses_at_the_end_are_counted() {
    use crate::app::writer::Format;
    use rdmatop_common::event::{ObjectRecord, Record, kind};
    use rdmatop_sources::seam::Pushing;
    use zerocopy::FromZeros;
    let start = move |feed: Feed| {
        std::thread::spawn(move || {
            let mut record = ObjectRecord::new_zeroed();
            record.prefix.kind = kind::CQ_CREATE;
            for _ in 0..400 {
                let batch = Input::Records(vec![Record::Object(record); 100]);
                feed.send_blocking(batch).unwrap();
            }
        });
    };
    let sources = Sources {
        pushing: Some(Pushing {
            start: Box::new(start),
            stop: Box::new(|| ()),
        }),
        subsystem: true,
        ..Sources::default()
    };
    let (mut pump, _ebpf) = Pump::start(sources, Settings::default()).unwrap();
    // No reader: one page finds room, the rest waits and then gives up.
    let (to, mut pages) = mpsc::channel(1);
    let mut sink = Sink::new(To::Lines(Format::Lines, to));
    let (_end, mut ending) = watch::channel(Some(Instant::now() + Duration::from_millis(100)));
    let (_delay, mut delay) = watch::channel(HANG);
    pump.run(&mut sink, &mut delay, &mut ending, |_| Ok(()))
        .await
        .unwrap();
    let taken = pages.try_recv().unwrap().events;
    assert_eq!((pump.counts.seen, pump.counts.refused), (40_000, 40_000 - taken));
}

#[tokio::test]
async fn a_round_that_hangs_is_named_and_does_not_stop_the_view() {
    let mut pump = pump(Fake::hanging(HANG * 4), Filter::default());
    let mut shown = pump.subscribe();
    let (end, mut ending) = watch::channel(None);
    let (_delay, mut delay) = watch::channel(HANG / 2);
    let mut sink = Sink::new(To::Nobody);
    let got = async {
        let mut errors = Vec::new();
        while errors.is_empty() {
            shown.changed().await.unwrap();
            errors.clone_from(&shown.borrow_and_update().health.errors);
        }
        end.send_replace(Some(Instant::now()));
        errors
    };
    let (_, errors) = tokio::join!(pump.run(&mut sink, &mut delay, &mut ending, |_| Ok(())), got);
    assert_eq!(errors[0].id, CauseId::NoAnswer);
    assert!(
        errors[0].why.starts_with("no answer from the fake for"),
        "{errors:?}"
    );
}
