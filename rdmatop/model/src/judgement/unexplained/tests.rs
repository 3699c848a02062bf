use super::*;
use crate::{
    engine::{Engine, EngineConfig},
    ib::{QpState, QpType},
    input::{
        DataPaths, DeviceReading, DevicesSample, EbpfReport, EbpfState, Input, Now, PortReading, QpReading,
        QpsSample, RawReading, RawSource,
    },
    snapshot::Snapshot,
    testkit,
    value::Source,
};

const S: u64 = 1_000_000_000;

/// A device whose port sends `rate` bytes per second, with these QPs, after `samples` seconds.
struct Machine {
    driver: &'static str,
    device: &'static str,
    counter: &'static str,
    link_layer: &'static str,
    from: RawSource,
    rate: u64,
    ebpf: bool,
    nested_pids: bool,
    /// Number, type and state.
    qps: Vec<(u32, u8, u8)>,
    /// The number of QPs that the kernel counts.
    counted: u64,
    openers: Option<OpenersSample>,
}

fn mlx5() -> Machine {
    Machine {
        driver: "mlx5_core",
        device: "mlx5_0",
        counter: "port_xmit_data",
        link_layer: "Ethernet",
        from: RawSource::Pma,
        rate: 1_000_000_000,
        ebpf: true,
        nested_pids: false,
        // QP 0 and QP 1 belong to the kernel.
        qps: vec![(0, 0, 3), (1, 1, 3)],
        counted: 2,
        openers: None,
    }
}

fn efa() -> Machine {
    Machine {
        driver: "efa",
        device: "efa_0",
        counter: "tx_bytes",
        from: RawSource::Netlink,
        ..mlx5()
    }
}

impl Machine {
    fn devices(&self, second: u64) -> DevicesSample {
        let counter = RawReading {
            name: self.counter.into(),
            value: Some(self.rate * second),
            source: self.from,
            at: (second * S).into(),
        };
        let port = PortReading {
            number: 1,
            link_layer: Some(self.link_layer.into()),
            counters: vec![counter],
            ..PortReading::default()
        };
        let device = DeviceReading {
            index: 0,
            name: self.device.into(),
            driver: Some(self.driver.into()),
            resources: [("qp".to_owned(), self.counted)].into(),
            ports: vec![port],
            ..DeviceReading::default()
        };
        DevicesSample {
            mono_ns: second * S,
            devices: vec![device],
            ..DevicesSample::default()
        }
    }

    fn dump(&self, second: u64) -> QpsSample {
        let qp = |(qpn, kind, state): &(u32, u8, u8)| QpReading {
            device_index: 0,
            port: Some(1),
            qpn: *qpn,
            qp_type: Some(QpType(*kind)),
            state: Some(QpState(*state)),
            remote_qpn: None,
            sq_psn: None,
            rq_psn: None,
            pid: (*kind > 1).then_some(231),
            kern_name: (*kind < 2).then(|| "ib_core".to_owned()),
        };
        QpsSample {
            mono_ns: second * S,
            complete: vec![0],
            qps: self.qps.iter().map(qp).collect(),
            ..QpsSample::default()
        }
    }

    /// Returns the snapshot after `seconds`, and the engine.
    fn after(&self, seconds: u64) -> (Arc<Snapshot>, Engine) {
        let mut engine = Engine::new(EngineConfig {
            nested_pids: self.nested_pids,
            ..EngineConfig::default()
        });
        let now = |second| Now {
            mono_ns: second * S,
            wall_ns: second * S,
        };
        if self.ebpf {
            let on = EbpfReport {
                state: EbpfState::On {
                    datapaths: DataPaths::default(),
                },
                follows_qps: true,
                ..EbpfReport::default()
            };
            engine.apply(Input::Ebpf(Box::new(on)).at(now(1)));
        }
        let mut last = None;
        for second in 1..=seconds {
            let inputs = [
                Input::Devices(Box::new(self.devices(second))),
                Input::Qps(Box::new(self.dump(second))),
            ];
            let openers = self
                .openers
                .clone()
                .map(|openers| Input::Openers(Box::new(openers)));
            for input in inputs.into_iter().chain(openers) {
                engine.apply(input.at(now(second)));
            }
            last = Some(engine.tick(now(second)));
        }
        (last.unwrap(), engine)
    }

    fn is_unexplained(&self, seconds: u64) -> bool {
        let (snapshot, _) = self.after(seconds);
        !snapshot.judgement.unexplained.is_empty()
    }
}

#[test]
fn a_port_that_moves_data_without_qps_says_so_and_requests_are_unknown() {
    for machine in [mlx5(), efa()] {
        let (snapshot, mut engine) = machine.after(2);
        let [one] = &snapshot.judgement.unexplained[..] else {
            panic!("{}", machine.driver);
        };
        assert_eq!(
            (&*one.device, one.port, one.cause.id),
            (machine.device, 1, CauseId::UnseenQps)
        );
        let wr = snapshot.judgement.totals.wr;
        assert_eq!((wr.rate, wr.partial), (None, true), "unknown, and not 0");
        let note = &snapshot.health.notes[0];
        assert_eq!(note.id, CauseId::UnseenQps);
        assert!(
            note.what
                .starts_with(&format!("{}/1 moves data without a queue pair", machine.device)),
            "{note}"
        );
        // DEVX is named only for a driver that lets a library create QPs.
        assert_eq!(note.why.contains("DEVX"), machine.driver == "mlx5_core", "{note}");
        assert!(engine.needs().openers, "who has it open?");
    }
}

#[test]
fn no_healthy_machine_is_told_so() {
    let quiet = [
        ("slow management", Machine { rate: 1000, ..mlx5() }),
        (
            "IPoIB",
            Machine {
                link_layer: "InfiniBand",
                ..mlx5()
            },
        ),
        (
            "a QP in RTS",
            Machine {
                qps: vec![(9, 2, 3)],
                counted: 1,
                ..mlx5()
            },
        ),
        (
            "a receiver in RTR",
            Machine {
                qps: vec![(9, 2, 2)],
                counted: 1,
                ..mlx5()
            },
        ),
        (
            "a QP that went to ERR just now",
            Machine {
                qps: vec![(9, 2, 6)],
                counted: 1,
                ..mlx5()
            },
        ),
        ("a QP that is not listed yet", Machine { counted: 3, ..mlx5() }),
        (
            "another PID namespace",
            Machine {
                nested_pids: true,
                ..mlx5()
            },
        ),
        (
            "bytes of bnxt_re",
            Machine {
                driver: "bnxt_en",
                device: "bnxt_re0",
                ..efa()
            },
        ),
        (
            "octets of IP",
            Machine {
                driver: "irdma",
                device: "irdma0",
                counter: "ip4OutOctets",
                ..efa()
            },
        ),
        (
            "SoftRoCE",
            Machine {
                driver: "rdma_rxe",
                device: "rxe0",
                counter: "sent_bytes",
                ..efa()
            },
        ),
        (
            "an unknown driver",
            Machine {
                driver: "hfi1",
                device: "hfi1_0",
                ..mlx5()
            },
        ),
    ];
    for (why, machine) in quiet {
        assert!(!machine.is_unexplained(6), "{why}");
    }
    for snapshot in [testkit::busy(), testkit::one_row(), testkit::empty()] {
        assert!(unexplained(&snapshot, None).is_empty());
    }
}

#[test]
fn a_queue_pair_that_has_long_been_unable_to_move_data_explains_nothing() {
    for state in [0, 1, 6] {
        let machine = Machine {
            qps: vec![(9, 2, state)],
            counted: 1,
            ..mlx5()
        };
        assert!(
            !machine.is_unexplained(5),
            "{state}: it may have moved data just before"
        );
        assert!(machine.is_unexplained(14), "{state}");
    }
}

#[test]
fn without_records_traffic_must_last_since_a_qp_may_have_come_and_gone() {
    let machine = Machine {
        ebpf: false,
        ..mlx5()
    };
    assert!(!machine.is_unexplained(3));
    assert!(machine.is_unexplained(6));
}

#[test]
fn idle_by_exact_counts_is_no_proof_because_a_peer_may_write_and_read() {
    let (snapshot, _) = Machine {
        qps: vec![(9, 2, 3)],
        counted: 1,
        ..mlx5()
    }
    .after(3);
    let mut snapshot = (*snapshot).clone();
    let traffic = Arc::make_mut(&mut Arc::make_mut(&mut snapshot.qps[0]).traffic);
    traffic.tx_wr = Some(crate::value::Counter::whole(5, Some(0.0), Source::Uprobe));
    assert!(unexplained(&snapshot, None).is_empty());
}

fn opener(pid: u32, workload: Option<&str>, libraries: &[&str]) -> Opener {
    Opener {
        device: "mlx5_0".into(),
        pid,
        user: (pid < 100).then_some(1000),
        comm: Some("python3".into()),
        workload: workload.map(str::to_owned),
        libraries: Some(libraries.iter().map(|&name| name.to_owned()).collect()),
    }
}

#[test]
fn who_has_the_device_open_is_a_candidate_with_job_and_library() {
    let said = |openers: OpenersSample| {
        let (snapshot, mut engine) = Machine {
            openers: Some(openers),
            ..mlx5()
        }
        .after(2);
        assert!(!engine.needs().openers, "it was looked for a moment ago");
        snapshot.health.notes[0].remedy.clone()
    };
    let at = |found: Vec<Opener>, hidden| OpenersSample {
        mono_ns: S,
        found,
        hidden,
        ..OpenersSample::default()
    };
    let job = opener(
        231,
        Some("slurm 12.0"),
        &["libibverbs.so.1", "libmlx5.so.1", "libnvshmem_host.so.3"],
    );
    let mut other = opener(9, None, &[]);
    other.device = "mlx5_1".into();
    assert_eq!(
        said(at(vec![other.clone(), job.clone()], false)),
        "Candidates, which have the device open: python3 (PID 231, slurm 12.0, libnvshmem_host.so.3)"
    );
    assert_eq!(
        said(at(vec![other], false)),
        "No process of this machine has the device open"
    );
    assert!(said(at(vec![], true)).contains("sudo"));
    for hidden in [false, true] {
        let cut = said(OpenersSample {
            cut: true,
            ..at(vec![], hidden)
        });
        assert!(
            cut.contains("too many open files") && !cut.contains("sudo"),
            "{cut}"
        );
    }
    let many = (1..=7).map(|pid| opener(pid, None, &[])).collect();
    let many = said(at(many, true));
    assert!(many.contains("python3 (PID 4) and 3 more; others may"), "{many}");
    // Another user's is named, however many processes the first one has.
    let two = (1..=7).chain([231]).map(|pid| opener(pid, None, &[])).collect();
    let two = said(at(two, false));
    assert!(
        two.ends_with("python3 (PID 3), python3 (PID 231) and 4 more"),
        "{two}"
    );
}

#[test]
fn candidates_are_those_of_now_and_like_ports_share_a_note() {
    let (snapshot, mut engine) = mlx5().after(2);
    assert!(engine.with_openers(&snapshot).is_none(), "nobody has looked");
    let openers = OpenersSample {
        mono_ns: 2 * S,
        found: vec![opener(231, None, &["libuct.so.0"])],
        ..OpenersSample::default()
    };
    let input = Input::Openers(Box::new(openers));
    engine.apply(input.at(Now {
        mono_ns: 2 * S,
        wall_ns: 0,
    }));
    let again = engine.with_openers(&snapshot).unwrap();
    assert_eq!(again.health.notes.len(), snapshot.health.notes.len());
    assert!(
        again.health.notes[0].remedy.contains("libuct"),
        "{}",
        again.health.notes[0]
    );
    assert_eq!(
        (&again.ports[0].tx_bytes, again.interval_ns),
        (&snapshot.ports[0].tx_bytes, snapshot.interval_ns)
    );
    let mut two = again.judgement.unexplained.clone();
    two.push(Unexplained {
        port: 2,
        ..two[0].clone()
    });
    assert_eq!(notes_of(&two).len(), 1);
    assert!(
        notes_of(&two)[0]
            .what
            .starts_with("mlx5_0/1 and mlx5_0/2 move data"),
        "{}",
        notes_of(&two)[0]
    );
    let json = serde_json::to_value(&two).unwrap();
    assert_eq!(json[0]["candidates"][0]["pid"], 231);
    assert_eq!(json[0]["candidates_whole"], true);
}

#[test]
fn a_slow_card_is_said_before() {
    let (_, mut engine) = mlx5().after(2);
    let slow = Obstacle::new(CauseId::SlowDevice, "it is slow", "").takes("Old values", Concerns::Host);
    let now = Now {
        mono_ns: 3 * S,
        wall_ns: 0,
    };
    engine.apply(Input::Slow(vec![slow]).at(now));
    engine.apply(Input::Devices(Box::new(mlx5().devices(3))).at(now));
    let notes = engine.tick(now).health.notes.clone();
    let ids: Vec<CauseId> = notes.iter().map(|note| note.id).collect();
    assert_eq!(ids, [CauseId::SlowDevice, CauseId::UnseenQps]);
}

#[test]
fn a_filter_makes_no_port_unexplained() {
    let (snapshot, _) = Machine {
        qps: vec![(9, 2, 3)],
        counted: 1,
        ..mlx5()
    }
    .after(3);
    let filter = crate::filter::Filter {
        pid: Some(7),
        ..crate::filter::Filter::default()
    };
    let kept = filter.apply(&snapshot);
    assert!(kept.qps.is_empty() && kept.judgement.unexplained.is_empty());
}
