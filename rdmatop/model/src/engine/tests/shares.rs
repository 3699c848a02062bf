//! Bytes of ports, and which process moved them.

use proptest::prelude::*;

use super::*;
use crate::{
    input::{DataPaths, EbpfState},
    value::{Counter, Known, Source},
};

/// A queue pair: its number, its process (`None`: a kernel consumer's) and its state.
type Pair = (u32, Option<u32>, u8);

const RTS: u8 = 3;
const RATE: u64 = 1_000_000;

/// A NIC whose driver no program of ours follows.
struct Nic {
    engine: Engine,
    driver: &'static str,
    second: u64,
    sent: u64,
    contexts: Option<Vec<u32>>,
    /// Each process has a queue pair on a device without counters, too.
    beside: bool,
}

impl Nic {
    fn new(driver: &'static str) -> Self {
        Self::with(driver, true)
    }

    fn with(driver: &'static str, ebpf: bool) -> Self {
        let mut nic = Self {
            engine: Engine::new(EngineConfig::default()),
            driver,
            second: 1,
            sent: 77_000_000,
            contexts: None,
            beside: false,
        };
        if ebpf {
            let on = EbpfReport {
                state: EbpfState::On {
                    datapaths: DataPaths::default(),
                },
                follows_qps: true,
                ..EbpfReport::default()
            };
            nic.apply(Input::Ebpf(Box::new(on)));
        }
        nic
    }

    fn apply(&mut self, input: Input) {
        self.engine.apply(input.at(at(self.second * SECOND)));
    }

    /// What /proc says of a process.
    fn libraries(&mut self, pid: u32, libraries: &[&str]) {
        self.apply(Input::Process(Box::new(ProcessFacts {
            pid,
            start_ticks: 7,
            libraries: Some(libraries.iter().map(|&name| name.to_owned()).collect()),
            ..ProcessFacts::default()
        })));
    }

    /// A second in which the port sends `bytes`, at whose end there are these queue pairs.
    fn second(&mut self, bytes: u64, pairs: &[Pair]) -> Arc<Snapshot> {
        self.second += 1;
        self.sent += bytes;
        let (name, source, value) = match self.driver {
            "efa" => ("tx_bytes", RawSource::Netlink, self.sent),
            _ => ("port_xmit_data", RawSource::Pma, self.sent / 4),
        };
        let mut device = rxe(0, "nic0");
        device.driver = Some(self.driver.into());
        device.resources = [("qp".to_owned(), pairs.len() as u64)].into();
        device.contexts.clone_from(&self.contexts);
        device.ports[0].link_layer = Some("Ethernet".into());
        device.ports[0].counters = vec![RawReading {
            name: name.into(),
            value: Some(value),
            source,
            at: (self.second * SECOND).into(),
        }];
        self.apply(Input::Devices(Box::new(DevicesSample {
            mono_ns: self.second * SECOND,
            devices: if self.beside {
                vec![device, counting(1, "hns_0", "hns3", &[])]
            } else {
                vec![device]
            },
            ..DevicesSample::default()
        })));
        let qp = |(qpn, pid, state): &Pair| QpReading {
            device_index: 0,
            port: Some(1),
            qpn: *qpn,
            qp_type: Some(QpType(2)),
            state: Some(QpState(*state)),
            remote_qpn: None,
            sq_psn: None,
            rq_psn: None,
            pid: *pid,
            kern_name: pid.is_none().then(|| "nvme_rdma".to_owned()),
        };
        let beside = pairs.iter().filter(|_| self.beside).map(|pair| QpReading {
            device_index: 1,
            ..qp(pair)
        });
        let beside: Vec<_> = beside.collect();
        self.apply(Input::Qps(Box::new(QpsSample {
            mono_ns: self.second * SECOND,
            complete: vec![0, 1],
            qps: pairs.iter().map(qp).chain(beside).collect(),
            errors: Vec::new(),
        })));
        self.engine.tick(at(self.second * SECOND))
    }

    /// Two such seconds.
    fn seconds(&mut self, bytes: u64, pairs: &[Pair]) -> Arc<Snapshot> {
        self.second(bytes, pairs);
        self.second(bytes, pairs)
    }
}

fn sent(snapshot: &Snapshot, pid: Option<u32>) -> Option<Counter> {
    let mut rows = snapshot.processes.iter();
    let row = rows.find(|row| row.pid == pid && (pid.is_some() || row.kernel));
    row.and_then(|row| row.traffic.tx_bytes)
}

/// The rate that is shown of what a process sent, with what is known of it and of the total.
fn shown(snapshot: &Snapshot, pid: u32) -> Option<(Option<f64>, Known, Known)> {
    let counter = sent(snapshot, Some(pid))?;
    assert_eq!(counter.source, Source::Port);
    Some((counter.rate, counter.rate_known(), counter.total_known()))
}

const EXACT: Option<(Option<f64>, Known, Known)> = Some((Some(RATE as f64), Known::Exact, Known::AtLeast));
const AT_MOST: Option<(Option<f64>, Known, Known)> = Some((Some(RATE as f64), Known::AtMost, Known::AtLeast));

#[test]
fn what_a_port_moves_is_its_only_users() {
    let mut nic = Nic::new("efa");
    assert_eq!(nic.seconds(0, &[]).processes.len(), 0);
    let before = nic.sent;
    nic.second(RATE, &[(10, Some(231), RTS)]);
    let snapshot = nic.second(RATE, &[(10, Some(231), RTS)]);
    let counter = sent(&snapshot, Some(231)).unwrap();
    assert_eq!(
        counter,
        Counter {
            rate_is: crate::value::RateIs::Exact,
            ..Counter::whole(nic.sent - before, Some(RATE as f64), Source::Port)
        }
    );
    let row = &snapshot.processes[0];
    assert_eq!(row.history.tx.last(), Some(&Some(RATE as f64)));
    assert!(
        row.recent
            .is_some_and(|recent| recent.whole || recent.rx.is_none())
    );
}

#[test]
fn what_a_process_moved_before_rdmatop_is_not_known() {
    let mut nic = Nic::new("efa");
    let pairs = [(10, Some(231), RTS)];
    assert_eq!(shown(&nic.seconds(RATE, &pairs), 231), EXACT);
    assert_eq!(
        sent(&nic.second(RATE, &pairs), Some(231)).unwrap().total,
        2 * RATE
    );
}

#[test]
fn of_several_users_each_moved_at_most_what_the_port_did() {
    let mut nic = Nic::new("efa");
    let both = [(10, Some(231), RTS), (11, Some(232), RTS)];
    let snapshot = nic.seconds(RATE, &both);
    assert_eq!([231, 232].map(|pid| shown(&snapshot, pid)), [AT_MOST, AT_MOST]);
    assert_eq!(snapshot.processes[0].history.tx.last(), None);
    // Nothing moved: of nobody.
    let snapshot = nic.seconds(0, &both);
    assert_eq!(
        shown(&snapshot, 232).map(|(rate, known, _)| (rate, known)),
        Some((Some(0.0), Known::Exact))
    );
}

#[test]
fn who_came_or_went_has_a_part_until_no_rate_can_show_it() {
    let mut nic = Nic::new("efa");
    let (one, both) = (
        [(10, Some(231), RTS)],
        [(10, Some(231), RTS), (11, Some(232), RTS)],
    );
    nic.seconds(RATE, &one);
    assert_eq!(shown(&nic.second(RATE, &one), 231), EXACT);
    assert_eq!(shown(&nic.second(RATE, &both), 231), AT_MOST, "it came");
    let kept = sent(&nic.second(RATE, &both), Some(231)).unwrap().total;
    for _ in 0..4 {
        assert_eq!(shown(&nic.second(RATE, &one), 231), AT_MOST, "it went");
    }
    nic.second(RATE, &one);
    let snapshot = nic.second(RATE, &one);
    assert_eq!(shown(&snapshot, 231), EXACT);
    let total = sent(&snapshot, Some(231)).unwrap().total;
    assert!(total > kept, "{total} after {kept}");
}

#[test]
fn queue_pairs_that_carry_nothing_have_no_part() {
    let mut nic = Nic::new("efa");
    let pairs = [(10, Some(231), RTS), (11, Some(232), 0), (12, Some(233), 1)];
    nic.seconds(0, &pairs);
    for _ in 0..10 {
        nic.second(0, &pairs);
    }
    let snapshot = nic.seconds(RATE, &pairs);
    assert_eq!(
        shown(&snapshot, 231).map(|(rate, known, _)| (rate, known)),
        Some((Some(RATE as f64), Known::Exact))
    );
    assert_eq!(shown(&snapshot, 233).map(|(rate, ..)| rate), Some(Some(0.0)));
}

#[test]
fn a_kernel_consumer_has_its_ports_bytes() {
    let mut nic = Nic::new("efa");
    let snapshot = nic.seconds(RATE, &[(10, None, RTS)]);
    let counter = sent(&snapshot, None).unwrap();
    assert_eq!(
        (counter.rate, counter.rate_known()),
        (Some(RATE as f64), Known::Exact)
    );
}

#[test]
fn without_records_a_queue_pair_may_have_come_and_gone() {
    let mut nic = Nic::with("efa", false);
    assert_eq!(shown(&nic.seconds(RATE, &[(10, Some(231), RTS)]), 231), AT_MOST);
}

#[test]
fn on_mlx5_each_process_that_has_it_open_is_looked_at() {
    // The other process has a queue pair that carries nothing: nobody else may be meant.
    let pairs = [(10, Some(231), RTS), (20, Some(240), 1)];
    let shown_where = |contexts: Option<&[u32]>, libraries: Option<&[&str]>| {
        let mut nic = Nic::new("mlx5_core");
        nic.contexts = contexts.map(<[u32]>::to_vec);
        nic.second(RATE, &pairs);
        nic.libraries(231, &["libibverbs.so.1", "libnccl.so.2"]);
        if let Some(libraries) = libraries {
            nic.libraries(240, libraries);
        }
        for _ in 0..8 {
            nic.second(RATE, &pairs);
        }
        shown(&nic.second(RATE, &pairs), 231)
    };
    let plain: Option<&[&str]> = Some(&["libibverbs.so.1", "libnccl.so.2"]);
    assert_eq!(shown_where(None, plain), AT_MOST, "nobody said who has it open");
    assert_eq!(shown_where(Some(&[231]), None), EXACT);
    assert_eq!(shown_where(Some(&[231, 240]), plain), EXACT);
    assert_eq!(
        shown_where(Some(&[231, 240]), None),
        AT_MOST,
        "its libraries are not known"
    );
    let ucx: Option<&[&str]> = Some(&["libibverbs.so.1", "libuct.so.0"]);
    assert_eq!(
        shown_where(Some(&[231, 240]), ucx),
        AT_MOST,
        "it may have made its own"
    );
    assert_eq!(
        shown_where(Some(&[231, 999]), plain),
        AT_MOST,
        "a process without a row"
    );
}

#[test]
fn who_makes_objects_past_the_kernel_is_named_and_may_have_moved_them() {
    let mut nic = Nic::new("mlx5_core");
    nic.contexts = Some(vec![231, 240]);
    let pairs = [(10, Some(231), RTS), (20, Some(240), 1)];
    nic.second(RATE, &pairs);
    for pid in [231, 240] {
        nic.libraries(pid, &["libibverbs.so.1"]);
    }
    nic.seconds(RATE, &pairs);
    for _ in 0..8 {
        nic.second(RATE, &pairs);
    }
    assert_eq!(shown(&nic.second(RATE, &pairs), 231), EXACT);
    let key = VerbKey {
        pid: 240,
        verb: 4097 << 16 | 4096,
    };
    let mut stats = VerbStats::new_zeroed();
    (stats.calls, stats.errors) = (2, 1);
    nic.apply(Input::Verbs(Box::new(VerbsSample {
        mono_ns: nic.second * SECOND,
        verbs: vec![(key, stats)],
        ..VerbsSample::default()
    })));
    let snapshot = nic.second(RATE, &pairs);
    assert_eq!(&*snapshot.verbs[0].verb, "devx_obj_create");
    assert_eq!(shown(&snapshot, 231), AT_MOST);
    nic.contexts = Some(vec![231]);
    assert_eq!(
        shown(&nic.second(RATE, &pairs), 231),
        AT_MOST,
        "it closed the device"
    );
}

#[test]
fn unlisted_queue_pairs_are_of_the_only_one_that_has_it_open() {
    let shown_where = |contexts: &[u32]| {
        let mut nic = Nic::new("mlx5_core");
        nic.contexts = Some(contexts.to_vec());
        // A queue pair that carries nothing gives each process its row.
        let pairs = [(10, Some(231), 1), (20, Some(240), 1)];
        nic.second(RATE, &pairs);
        nic.libraries(231, &["libuct.so.0"]);
        nic.libraries(240, &["libnccl.so.2"]);
        for _ in 0..8 {
            nic.second(RATE, &pairs);
        }
        shown(&nic.second(RATE, &pairs), 231)
    };
    assert_eq!(shown_where(&[231]), EXACT);
    assert_eq!(shown_where(&[231, 240]), AT_MOST, "NCCL may have made its own");
}

#[test]
fn what_other_traffic_a_port_counts_decides_what_is_known() {
    for (driver, expected) in [
        // IP over InfiniBand passes it too.
        ("mlx4_core", Some(Known::AtMost)),
        // Which bytes it counts is not known.
        ("bnxt_re", None),
        ("irdma", None),
    ] {
        let mut nic = Nic::new(driver);
        let snapshot = nic.seconds(RATE, &[(10, Some(231), RTS)]);
        let known = sent(&snapshot, Some(231)).filter(|counter| counter.rate.is_some());
        assert_eq!(known.map(Counter::rate_known), expected, "{driver}");
    }
}

#[test]
fn a_process_with_a_port_that_counts_nothing_has_no_rate() {
    let mut nic = Nic::new("efa");
    let pairs = [(10, Some(231), RTS)];
    nic.beside = true;
    nic.seconds(RATE, &pairs);
    let counter = sent(&nic.second(RATE, &pairs), Some(231)).unwrap();
    assert_eq!((counter.rate, counter.total_known()), (None, Known::AtLeast));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(4)))]
    /// What is said for certain of all processes together is never more than the port moved.
    #[test]
    fn what_is_certain_adds_up_to_no_more_than_the_port(
        steps in prop::collection::vec((0..3_u64, 0..8_u32), 1..40)
    ) {
        let mut nic = Nic::new("efa");
        nic.second(0, &[]);
        let start = nic.sent;
        for (moved, users) in steps {
            let pairs: Vec<Pair> = (0..3)
                .filter(|user| users & 1 << user != 0)
                .map(|user| (10 + user, Some(231 + user), RTS))
                .collect();
            let snapshot = nic.second(moved * RATE, &pairs);
            let all: Vec<Counter> = snapshot.processes.iter().filter_map(|row| row.traffic.tx_bytes).collect();
            let totals: u64 = all.iter().map(|counter| counter.total).sum();
            prop_assert!(totals <= nic.sent - start);
            let rates: f64 = all.iter().filter_map(|counter| counter.certain_rate()).sum();
            prop_assert!(rates <= (moved * RATE) as f64 + 1.0, "{} of {}", rates, moved * RATE);
        }
    }
}
