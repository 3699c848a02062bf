//! Bytes of ports, and which process moved them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rdmatop_common::counters::loss;

use super::{devx::devx, *};
use crate::{
    ib::Gid,
    input::{
        DataPaths, DeviceGroups, EbpfState, GroupReading, Opener, OpenersSample, PortGid, ProbeVerdict,
        Verdict,
    },
    value::{Counter, Known, RateIs, Source},
};

/// A queue pair: its number, its process (`None`: a kernel consumer's) and its state.
type Pair = (u32, Option<u32>, u8);

const RTS: u8 = 3;
/// The number of mlx5's `devx_obj_create`, which makes objects that the kernel does not list.
const DEVX: u32 = 4097 << 16 | 4096;
/// That of its `devx_obj_modify`, which changes queue pairs whether the kernel lists them or not.
const MODIFY: u32 = (4097 << 16) + 4098;
const UCX: &[&str] = &["libibverbs.so.1", "libuct.so.0", "libuct_ib.so.0"];
const PLAIN: &[&str] = &["libibverbs.so.1", "libnccl.so.2", "libuct.so.0"];
const RATE: u64 = 1_000_000;

/// What is reported of the program that sees calls of verbs.
fn sees_calls(verdict: Verdict) -> EbpfReport {
    EbpfReport {
        probes: vec![ProbeVerdict {
            program: "cmd_verbs_ret".into(),
            hook: "kretprobe:ib_uverbs_cmd_verbs".into(),
            gives: String::new(),
            verdict,
            causes: Vec::new(),
        }]
        .into(),
        ..EbpfReport::default()
    }
}

/// A NIC whose driver no program of ours follows.
struct Nic {
    engine: Engine,
    driver: &'static str,
    second: u64,
    sent: u64,
    contexts: Option<Vec<u32>>,
    /// How often each process made an object past the kernel, as is counted.
    made: BTreeMap<u32, u64>,
    /// How often each one changed something past it, as is counted: these calls fail.
    modified: BTreeMap<u32, u64>,
    /// Each process has a queue pair on a device without counters, too.
    beside: bool,
    /// Who has another NIC open.
    elsewhere: Vec<u32>,
    /// Contexts of the NIC, where the kernel counts them.
    ctxs: Option<u64>,
    /// A process whose queue pair is bound to a counter, and what that has counted: bytes and packets sent.
    bound: Option<(Pair, [u64; 2])>,
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
            made: BTreeMap::new(),
            modified: BTreeMap::new(),
            beside: false,
            elsewhere: Vec::new(),
            ctxs: None,
            bound: None,
        };
        if ebpf {
            nic.attach();
        }
        nic
    }

    /// Programs are on from now on.
    fn attach(&mut self) {
        let on = EbpfReport {
            state: EbpfState::On {
                datapaths: DataPaths::default(),
            },
            follows_qps: true,
            ..sees_calls(Verdict::Ok)
        };
        self.apply(Input::Ebpf(Box::new(on)));
    }

    fn apply(&mut self, input: Input) {
        self.engine.apply(input.at(at(self.second * SECOND)));
    }

    /// What /proc says of a process that was there before rdmatop.
    fn libraries(&mut self, pid: u32, libraries: &[&str]) {
        self.born(pid, 0, libraries);
    }

    /// What /proc says of a process now.
    fn born(&mut self, pid: u32, born_ns: u64, libraries: &[&str]) {
        self.born_of("ana", pid, born_ns, libraries);
    }

    fn born_of(&mut self, user: &str, pid: u32, born_ns: u64, libraries: &[&str]) {
        self.born_in((user, None), pid, born_ns, libraries);
    }

    /// One of this user, in this workload; `?` at its end: which a user may have named.
    fn born_in(&mut self, tenant: (&str, Option<&str>), pid: u32, born_ns: u64, libraries: &[&str]) {
        self.apply(Input::Process(Box::new(ProcessFacts {
            pid,
            // Of whoever has no name the number is known.
            uid: tenant.0.parse().ok(),
            user: Some(tenant.0.to_owned()).filter(|user| user.parse::<u32>().is_err()),
            workload: tenant.1.map(str::to_owned),
            workload_claimed: tenant.1.is_some_and(|name| name.ends_with('?')),
            start_ticks: 7,
            born_ns,
            read_ns: self.second * SECOND,
            libraries: Some(libraries.iter().map(|&name| name.to_owned()).collect()),
            ..ProcessFacts::default()
        })));
    }

    /// A call of a process made an object past the kernel by a command with this opcode, as is counted.
    fn devx(&mut self, pid: u32, opcode: u32) {
        let made = self.made.entry(pid).or_default();
        *made += 1;
        let place = (0xf000 + u64::from(pid), u32::try_from(*made).unwrap());
        self.object(pid, place, Some(opcode));
    }

    /// A call of a process changed something past the kernel, as is counted.
    fn modify(&mut self, pid: u32) {
        *self.modified.entry(pid).or_default() += 1;
        self.call(pid, (0xf000, 1), None, kind::DEVX_MODIFY);
    }

    fn object(&mut self, pid: u32, place: (u64, u32), opcode: Option<u32>) {
        let kind = if opcode.is_some() {
            kind::DEVX_CREATE
        } else {
            kind::DEVX_DESTROY
        };
        self.call(pid, place, opcode, kind);
    }

    fn call(&mut self, pid: u32, place: (u64, u32), opcode: Option<u32>, kind: u16) {
        let Record::Devx(mut record) = devx(self.second * SECOND, pid, place, opcode, 500) else {
            unreachable!()
        };
        record.prefix.kind = kind;
        record.prefix.device = bytes("nic0");
        // As `born` says it in ticks.
        record.owner_start_ns = 70_000_000;
        self.apply(Input::Records(vec![Record::Devx(record)]));
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
        let ctxs = self.ctxs.map(|ctxs| ("ctx".to_owned(), ctxs));
        device.resources.extend(ctxs);
        device.contexts.clone_from(&self.contexts);
        device.ports[0].link_layer = Some("Ethernet".into());
        device.ports[0].counters = vec![RawReading {
            name: name.into(),
            value: Some(value),
            source,
            at: (self.second * SECOND).into(),
        }];
        device.ports[0].rate_bps = Some(100_000_000);
        device.ports[0].gids = Some(vec![PortGid {
            index: 0,
            gid: Gid([1; 16]),
            v1: None,
        }]);
        let mut devices = vec![device];
        if self.beside {
            devices.push(counting(1, "hns_0", "hns3", &[]));
        }
        if !self.elsewhere.is_empty() {
            let mut other = rxe(2, "nic2");
            other.driver = Some(self.driver.into());
            other.contexts = Some(self.elsewhere.clone());
            devices.push(other);
        }
        self.apply(Input::Devices(Box::new(DevicesSample {
            mono_ns: self.second * SECOND,
            devices,
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
        let calls = self.made.iter().map(|(pid, made)| {
            let mut stats = VerbStats::new_zeroed();
            (stats.calls, stats.errors) = (*made + 1, 1);
            let (pid, verb) = (*pid, DEVX);
            (VerbKey { pid, verb }, stats)
        });
        let changes = self.modified.iter().map(|(pid, calls)| {
            let mut stats = VerbStats::new_zeroed();
            (stats.calls, stats.errors) = (*calls, *calls);
            let (pid, verb) = (*pid, MODIFY);
            (VerbKey { pid, verb }, stats)
        });
        let verbs = calls.chain(changes).collect();
        self.apply(Input::Verbs(Box::new(VerbsSample {
            mono_ns: self.second * SECOND,
            verbs,
            ..VerbsSample::default()
        })));
        self.counters();
        self.engine.tick(at(self.second * SECOND))
    }

    /// Those that queue pairs are bound to are read just after the port's.
    fn counters(&mut self) {
        let Some(((qpn, pid, _), [bytes, packets])) = self.bound else {
            return;
        };
        let names = [
            "rdma_tx_bytes",
            "rdma_rx_bytes",
            "rdma_tx_packets",
            "rdma_rx_packets",
        ];
        let values = [bytes, 0, packets, 0];
        self.apply(Input::Groups(vec![DeviceGroups {
            device_index: 0,
            at: (self.second * SECOND + SECOND / 1000).into(),
            groups: vec![GroupReading {
                id: 1,
                port: 1,
                mode: "auto pid".into(),
                pid,
                qp_type: None,
                qps: vec![qpn],
                counters: names.map(str::to_owned).into_iter().zip(values).collect(),
            }],
        }]));
    }

    /// A queue pair of a process is made and connected to a peer with this GID.
    fn connects(&mut self, (qpn, pid, _): Pair, peer: u8) {
        let ns = self.second * SECOND;
        let object = 0xabc0 + u64::from(qpn);
        let born = create(ns + 1, object, qpn);
        let mut to_rtr = modify(ns + 9_000, object, qpn, 2);
        to_rtr.dest_gid = [peer; 16];
        for mut record in [born, to_rtr, modify(ns + 18_000, object, qpn, RTS)] {
            let prefix = &mut record.prefix;
            (prefix.pid, prefix.tid, prefix.owner_pid) = (pid.unwrap(), pid.unwrap(), pid.unwrap());
            prefix.device = bytes("nic0");
            prefix.flags |= flag::CREATED;
            record.born_ns = ns + 1;
            record.port = 1;
            self.apply(Input::Records(vec![Record::Qp(record)]));
        }
    }

    /// A search of all open files found these, and so many descriptors.
    fn search(&mut self, pids: &[u32], files: u64, hidden: bool) {
        let opener = |pid: &u32| Opener {
            device: "nic0".into(),
            pid: *pid,
            user: None,
            comm: None,
            workload: None,
            libraries: None,
        };
        self.apply(Input::Openers(Box::new(OpenersSample {
            mono_ns: self.second * SECOND,
            found: pids.iter().map(opener).collect(),
            files: [("nic0".to_owned(), files)].into(),
            hidden,
            cut: false,
        })));
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
            rate_is: RateIs::Exact,
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
fn who_has_only_a_qp_without_a_number_uses_the_port() {
    let mut nic = Nic::new("mlx5_core");
    nic.contexts = Some(vec![231, 232]);
    let pairs = [(10, Some(231), RTS)];
    nic.seconds(RATE, &pairs);
    for pid in [232, 233] {
        let ns = nic.second * SECOND + u64::from(pid);
        for mut record in [
            create(ns, u64::from(pid), 0),
            modify(ns + 9_000, u64::from(pid), 0, 2),
        ] {
            let prefix = &mut record.prefix;
            (prefix.pid, prefix.tid, prefix.owner_pid) = (pid, pid, pid);
            prefix.device = bytes("nic0");
            prefix.flags |= flag::CREATED;
            (record.born_ns, record.port, record.qp_type) = (ns, 1, 255);
            nic.apply(Input::Records(vec![Record::Qp(record)]));
        }
    }
    let snapshot = nic.seconds(RATE, &pairs);
    assert_eq!([231, 232, 233].map(|pid| shown(&snapshot, pid)), [AT_MOST; 3]);
}

#[test]
fn what_the_nic_counted_of_others_is_no_user_s() {
    let most = |peer: u8| {
        let (old, new) = ((10, Some(231), RTS), (11, Some(232), RTS));
        let mut nic = Nic::new("mlx5_core");
        nic.contexts = Some(vec![231, 232]);
        nic.second(0, &[old]);
        nic.connects(new, peer);
        nic.bound = Some((new, [0; 2]));
        nic.second(RATE, &[old, new]);
        // Of 1.5 MB in a second one is counted of the new process, in packets of 4096 bytes and headers.
        for second in 1..4 {
            nic.bound = Some((new, [second * RATE, second * RATE / 4158]));
            nic.second(RATE * 3 / 2, &[old, new]);
        }
        let snapshot = nic.engine.tick(at(nic.second * SECOND));
        let counted = sent(&snapshot, Some(232)).unwrap();
        assert_eq!((counted.source, counted.rate), (Source::Hw, Some(RATE as f64)));
        shown(&snapshot, 231).unwrap()
    };
    let (rate, known, total) = most(9);
    assert_eq!((known, total), (Known::AtMost, Known::AtLeast));
    // Its own half, with headers of the other's packets and a thousandth of what the link carries.
    let rate = rate.unwrap();
    assert!((500_000.0..550_000.0).contains(&rate), "{rate}");
    // What stays in the NIC may be in no count of the port.
    assert_eq!(most(1).0, Some(1_500_000.0));
}

#[test]
fn what_the_nic_counted_is_a_part_of_a_maker_of_unlisted_queue_pairs() {
    let counted = |makes: bool| {
        let (old, new) = ((10, Some(231), RTS), (11, Some(232), RTS));
        let mut nic = Nic::new("mlx5_core");
        nic.contexts = Some(vec![231, 232]);
        nic.second(0, &[old]);
        nic.connects(new, 9);
        if makes {
            nic.devx(232, 0x500);
        }
        for second in 0..4 {
            nic.bound = Some((new, [second * RATE, second * RATE / 4158]));
            nic.second(RATE * 3 / 2, &[old, new]);
        }
        let counter = sent(&nic.engine.tick(at(nic.second * SECOND)), Some(232)).unwrap();
        (counter.source, counter.rate, counter.rate_known())
    };
    let rate = Some(RATE as f64);
    assert_eq!(counted(false), (Source::Hw, rate, Known::Exact));
    assert_eq!(counted(true), (Source::Hw, rate, Known::AtLeast));
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

/// A second has passed since counters can show what was before.
fn later(nic: &mut Nic, pairs: &[Pair]) -> Arc<Snapshot> {
    for _ in 0..8 {
        nic.second(RATE, pairs);
    }
    nic.second(RATE, pairs)
}

#[test]
fn on_mlx5_each_process_that_has_it_open_is_looked_at() {
    // The other process has a queue pair that carries nothing: nobody else may be meant.
    let pairs = [(10, Some(231), RTS), (20, Some(240), 1)];
    let shown_where = |contexts: Option<&[u32]>, libraries: Option<&[&str]>| {
        let mut nic = Nic::new("mlx5_core");
        nic.contexts = contexts.map(<[u32]>::to_vec);
        nic.second(RATE, &pairs);
        nic.libraries(231, PLAIN);
        if let Some(libraries) = libraries {
            nic.libraries(240, libraries);
        }
        shown(&later(&mut nic, &pairs), 231)
    };
    assert_eq!(
        shown_where(None, Some(PLAIN)),
        AT_MOST,
        "nobody said who has it open"
    );
    assert_eq!(shown_where(Some(&[231]), None), EXACT);
    assert_eq!(shown_where(Some(&[231, 240]), Some(PLAIN)), EXACT);
    assert_eq!(
        shown_where(Some(&[231, 240]), None),
        AT_MOST,
        "its libraries are not known"
    );
    assert_eq!(
        shown_where(Some(&[231, 240]), Some(UCX)),
        AT_MOST,
        "it may have made its own"
    );
}

#[test]
fn a_process_without_a_row_that_has_it_open_is_asked_about_once() {
    let pairs = [(10, Some(231), RTS)];
    let shown_where = |facts: Option<&[&str]>| {
        let mut nic = Nic::new("mlx5_core");
        nic.contexts = Some(vec![231, 999]);
        nic.second(RATE, &pairs);
        assert_eq!(nic.engine.needs().processes, [231, 999]);
        nic.libraries(231, PLAIN);
        if let Some(libraries) = facts {
            nic.libraries(999, libraries);
        }
        nic.second(RATE, &pairs);
        let snapshot = nic.second(RATE, &pairs);
        assert_eq!(nic.engine.needs().processes, [0; 0]);
        assert_eq!(snapshot.processes.len(), 1, "no QP, no call: no row");
        let before = shown(&snapshot, 231);
        let after = shown(&later(&mut nic, &pairs), 231);
        // It has a queue pair that carries nothing: what is known of it goes into its row.
        let both = [pairs[0], (20, Some(999), 1)];
        let snapshot = nic.second(RATE, &both);
        let row = snapshot.processes.iter().find(|row| row.pid == Some(999));
        assert_eq!(row.unwrap().libraries.is_some(), facts.is_some());
        (before, after)
    };
    assert_eq!(shown_where(None), (AT_MOST, AT_MOST));
    // It never was a user, so nothing has to fade.
    assert_eq!(shown_where(Some(PLAIN)), (EXACT, EXACT));
    assert_eq!(shown_where(Some(UCX)), (AT_MOST, AT_MOST));
}

#[test]
fn of_a_process_that_started_under_our_eyes_its_calls_tell() {
    let pairs = [(10, Some(231), RTS), (20, Some(240), 1)];
    let begun = |libraries: &[&str]| {
        let mut nic = Nic::new("mlx5_core");
        nic.contexts = Some(vec![231, 240]);
        nic.second(RATE, &pairs);
        nic.libraries(231, PLAIN);
        nic.born(240, SECOND + 1, libraries);
        assert_eq!(
            shown(&later(&mut nic, &pairs), 231),
            EXACT,
            "UCX alone moves nothing"
        );
        nic.engine.needs();
        nic
    };
    let mut nic = begun(UCX);
    nic.made.insert(240, 1);
    assert_eq!(
        shown(&nic.second(RATE, &pairs), 231),
        AT_MOST,
        "it made an object"
    );
    // Calls that may have made one are lost: who was there before them may have made it.
    for cause in [loss::VERB, loss::RETURN, loss::MISSED, loss::STASH] {
        let mut nic = begun(PLAIN);
        let mut losses = [0; loss::COUNT as usize];
        losses[cause as usize] = 1;
        nic.apply(Input::Losses(losses));
        assert_eq!(shown(&nic.second(RATE, &pairs), 231), AT_MOST, "{cause}");
        let lost_ns = nic.second * SECOND;
        assert_eq!(shown(&later(&mut nic, &pairs), 231), AT_MOST);
        assert_eq!(nic.engine.needs().processes, [231, 240]);
        nic.libraries(231, PLAIN);
        nic.born(240, lost_ns, PLAIN);
        assert_eq!(shown(&nic.second(RATE, &pairs), 231), EXACT);
    }
    // Programs that were attached anew saw nothing in between, and without the one for ioctls none is seen.
    let of_report = |report: EbpfReport| {
        let mut nic = begun(UCX);
        let on = EbpfReport {
            state: EbpfState::On {
                datapaths: DataPaths::default(),
            },
            follows_qps: true,
            ..report
        };
        nic.apply(Input::Ebpf(Box::new(on)));
        shown(&later(&mut nic, &pairs), 231)
    };
    assert_eq!(of_report(sees_calls(Verdict::Ok)), EXACT, "the same programs");
    let anew = EbpfReport {
        anew: true,
        ..sees_calls(Verdict::Ok)
    };
    assert_eq!(of_report(anew), AT_MOST);
    assert_eq!(of_report(sees_calls(Verdict::Broken)), AT_MOST);
    assert_eq!(of_report(EbpfReport::default()), AT_MOST, "no such program");
}

#[test]
fn libraries_that_were_read_before_calls_were_seen_are_read_again() {
    let pairs = [(10, Some(231), RTS), (20, Some(240), 1)];
    let mut nic = Nic::with("mlx5_core", false);
    nic.contexts = Some(vec![231, 240]);
    nic.second(RATE, &pairs);
    nic.engine.needs();
    for pid in [231, 240] {
        nic.libraries(pid, PLAIN);
    }
    nic.second(RATE, &pairs);
    nic.second += 1;
    nic.attach();
    assert_eq!(shown(&later(&mut nic, &pairs), 231), AT_MOST);
    assert_eq!(nic.engine.needs().processes, [231, 240]);
    for (libraries, expected) in [(UCX, AT_MOST), (PLAIN, AT_MOST)] {
        nic.libraries(231, PLAIN);
        nic.libraries(240, libraries);
        assert_eq!(shown(&nic.second(RATE, &pairs), 231), expected);
    }
    // It had UCX for a moment: what it moved then is still in the rate.
    assert_eq!(shown(&later(&mut nic, &pairs), 231), EXACT);
    assert_eq!(nic.engine.needs().processes, [0; 0]);
}

#[test]
fn what_a_process_makes_may_be_on_each_device_that_its_user_has_open() {
    let shown_to = |user: &str| {
        let mut nic = Nic::new("mlx5_core");
        (nic.contexts, nic.elsewhere) = (Some(vec![231]), vec![240]);
        let pairs = [(10, Some(231), RTS), (20, Some(240), 1)];
        nic.second(RATE, &pairs);
        for (pid, user) in [(231, "ana"), (240, user)] {
            nic.apply(Input::Process(Box::new(ProcessFacts {
                pid,
                start_ticks: 7,
                read_ns: nic.second * SECOND,
                user: Some(user.to_owned()),
                libraries: Some(Vec::new()),
                ..ProcessFacts::default()
            })));
        }
        nic.made.insert(240, 1);
        // Right after the call it may have been any device.
        later(&mut nic, &pairs);
        shown(&later(&mut nic, &pairs), 231)
    };
    assert_eq!(shown_to("bob"), EXACT);
    assert_eq!(
        shown_to("ana"),
        AT_MOST,
        "a descriptor can be passed to the other process"
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
    assert_eq!(shown(&later(&mut nic, &pairs), 231), EXACT);
    nic.made.insert(240, 1);
    let snapshot = nic.second(RATE, &pairs);
    assert_eq!(&*snapshot.verbs[0].verb, "devx_obj_create");
    assert_eq!(shown(&snapshot, 231), AT_MOST);
    nic.contexts = Some(vec![231]);
    assert_eq!(
        shown(&later(&mut nic, &pairs), 231),
        AT_MOST,
        "it may use what another has open"
    );
    nic.apply(Input::ProcessGone {
        pid: 240,
        start_ticks: Some(7),
    });
    assert_eq!(shown(&later(&mut nic, &pairs[..1]), 231), EXACT, "it ended");
}

#[test]
fn unlisted_queue_pairs_are_of_the_only_one_that_can_have_them() {
    // A queue pair that carries nothing gives each process its row.
    let pairs = [(10, Some(231), 1), (20, Some(240), 1)];
    let shown_where = |contexts: &[u32], born_ns: u64| {
        let mut nic = Nic::new("mlx5_core");
        nic.contexts = Some(contexts.to_vec());
        nic.second(RATE, &pairs);
        nic.libraries(231, UCX);
        nic.born(240, born_ns, PLAIN);
        shown(&later(&mut nic, &pairs), 231)
    };
    assert_eq!(shown_where(&[231], 0), EXACT);
    assert_eq!(shown_where(&[231, 240], 0), AT_MOST, "NCCL may have made its own");
    assert_eq!(shown_where(&[231, 240], SECOND + 1), EXACT, "it made none");
}

/// What is shown of a process, born while programs see each call, that makes these objects. Another one, with
/// NCCL alone, was there before and has the NIC open.
fn of_maker(opcodes: &[u32], contexts: &[u32]) -> (Nic, Arc<Snapshot>) {
    let mut nic = Nic::new("mlx5_core");
    nic.contexts = Some(contexts.to_vec());
    nic.second(RATE, &[(20, Some(240), 1)]);
    nic.libraries(240, PLAIN);
    for opcode in opcodes {
        nic.devx(231, *opcode);
    }
    nic.born(231, SECOND + 1, UCX);
    let snapshot = later(&mut nic, &[(20, Some(240), 1)]);
    (nic, snapshot)
}

#[test]
fn bytes_of_a_user_do_not_depend_on_what_another_one_says_of_his_objects() {
    let shown_beside = |user: &str, pod: Option<&str>| {
        let mut nic = Nic::new("mlx5_core");
        nic.contexts = Some(vec![231, 240]);
        let pairs = [(20, Some(240), 3)];
        nic.second(RATE, &pairs);
        nic.born_of("train", 240, 0, PLAIN);
        // Completion queues and keys, as its memory has it when the call returns.
        nic.devx(231, 0x400);
        nic.devx(231, 0x200);
        nic.born_in((user, pod), 231, SECOND + 1, UCX);
        shown(&later(&mut nic, &pairs), 240)
    };
    assert_eq!(shown_beside("train", None), EXACT);
    assert_eq!(shown_beside("mallory", None), AT_MOST);
    assert_eq!(
        shown_beside("train", Some("pod 7e2d")),
        AT_MOST,
        "whoever has that number there"
    );
    assert_eq!(shown_beside("root", None), EXACT);
    assert_eq!(shown_beside("root", Some("docker 1f")), AT_MOST);
}

#[test]
fn who_asked_for_changes_and_ended_leaves_no_doubt_about_other_devices() {
    let mut nic = Nic::new("mlx5_core");
    nic.contexts = Some(vec![231, 240]);
    let pairs = [(10, Some(231), RTS)];
    nic.second(RATE, &pairs);
    nic.born(231, SECOND + 1, PLAIN);
    nic.born_of("bob", 240, SECOND + 1, PLAIN);
    nic.modify(240);
    nic.second(RATE, &pairs);
    nic.modified.remove(&240);
    nic.apply(Input::ProcessGone {
        pid: 240,
        start_ticks: Some(7),
    });
    for _ in 0..12 {
        nic.second(RATE, &pairs);
        let modified = &nic.engine.devx.modified;
        assert!(modified.len() == 1 && !modified.contains(&0), "{modified:?}");
    }
}

#[test]
fn names_of_libraries_are_believed_about_their_own_tenant_alone() {
    let pairs = [(10, Some(231), RTS)];
    let shown_beside = |user, other, born_ns| {
        let mut nic = Nic::new("mlx5_core");
        nic.contexts = Some(vec![231, 240]);
        nic.second(RATE, &pairs);
        // A program with libmlx5 linked into it has no name of a library.
        nic.born_in(user, 231, 0, PLAIN);
        nic.born_in(other, 240, born_ns, &[]);
        shown(&later(&mut nic, &pairs), 231)
    };
    let (ana, bob) = (("ana", None), ("bob", None));
    assert_eq!(shown_beside(ana, bob, 0), AT_MOST);
    assert_eq!(shown_beside(ana, bob, SECOND + 1), EXACT, "its calls tell");
    assert_eq!(shown_beside(ana, ana, 0), EXACT);
    // Agents of root's, which have every device open; and what anybody runs in a container as root.
    assert_eq!(shown_beside(ana, ("root", None), 0), EXACT);
    for place in ["docker 1f", "docker 1f?"] {
        assert_eq!(shown_beside(ana, ("root", Some(place)), 0), AT_MOST);
        assert_eq!(shown_beside(("root", None), ("root", Some(place)), 0), AT_MOST);
    }
    let pod = ("root", Some("pod 7e2d"));
    assert_eq!(shown_beside(pod, pod, 0), EXACT);
    assert_eq!(
        shown_beside(pod, ("root", Some("pod 7e2d?")), 0),
        AT_MOST,
        "he says"
    );
    assert_eq!(shown_beside(("4000", None), ("4000", None), 0), EXACT);
    assert_eq!(shown_beside(("4000", None), ("4001", None), 0), AT_MOST);
    let job = |name| ("ana", Some(name));
    assert_eq!(shown_beside(job("slurm 12.0"), job("slurm 13.0"), 0), EXACT);
}

#[test]
fn whose_context_is_not_known_may_be_anybody_s_who_has_a_descriptor() {
    let pairs = [(10, Some(231), RTS)];
    // The second process was born under our eyes, and makes no call.
    let begun = |user: &str, contexts: Option<&[u32]>| {
        let mut nic = Nic::new("mlx5_core");
        (nic.contexts, nic.ctxs) = (contexts.map(<[u32]>::to_vec), Some(2));
        nic.second(RATE, &pairs);
        nic.born(231, SECOND + 1, PLAIN);
        nic.born_of(user, 240, SECOND + 1, PLAIN);
        nic.second(RATE, &pairs);
        nic
    };
    let found = |nic: &mut Nic, files: u64| {
        nic.search(&[231, 240], files, false);
        shown(&later(nic, &pairs), 231)
    };
    assert_eq!(
        shown(&later(&mut begun("bob", Some(&[231, 240])), &pairs), 231),
        EXACT
    );
    // It may have got it from one that has ended.
    assert_eq!(found(&mut begun("bob", None), 2), AT_MOST);
    assert_eq!(found(&mut begun("root", None), 2), EXACT);
    let mut nic = begun("ana", None);
    assert_eq!(found(&mut nic, 2), EXACT);
    // Somebody has a mapping alone.
    nic.ctxs = Some(3);
    assert_eq!(found(&mut nic, 2), AT_MOST);
    assert_eq!(found(&mut nic, 3), EXACT);
    // Who had made one ends: whoever got its file is in no search before.
    nic.devx(250, 0x500);
    nic.born_of("bob", 250, SECOND + 1, UCX);
    nic.second(RATE, &pairs);
    nic.apply(Input::ProcessGone {
        pid: 250,
        start_ticks: Some(7),
    });
    later(&mut nic, &pairs);
    assert_eq!(shown(&nic.second(RATE, &pairs), 231), AT_MOST);
    assert_eq!(found(&mut nic, 3), EXACT);
}

#[test]
fn the_port_of_a_queue_pair_past_the_kernel_is_its_owner_s() {
    for opcode in [0x500, 0x710, 0x904] {
        let (_, snapshot) = of_maker(&[0x400, opcode], &[231, 240]);
        assert_eq!(shown(&snapshot, 231), EXACT, "{opcode:#x}");
        let other = sent(&snapshot, Some(240)).and_then(|sent| sent.rate);
        assert!(other.is_none_or(|rate| rate == 0.0), "it has none");
        assert!(snapshot.judgement.unexplained.is_empty());
        let row = snapshot
            .processes
            .iter()
            .find(|row| row.pid == Some(231))
            .unwrap();
        assert_eq!(row.devices, ["nic0".into()]);
        assert!(row.devx.as_ref().unwrap()[0].whole);
    }
    // Nobody is the port's user by objects that carry nothing.
    let (mut nic, snapshot) = of_maker(&[0x400, 0x200, 0xa00, 0x90c], &[231, 240]);
    assert_eq!(sent(&snapshot, Some(231)), None);
    let snapshot = later(&mut nic, &[(20, Some(240), 1)]);
    assert!(!snapshot.judgement.unexplained.is_empty());
}

/// Two processes of which each call is seen: one with a queue pair in RTS, one with another in INIT.
fn one_and_an_idle_one() -> (Nic, [Pair; 2]) {
    let pairs = [(10, Some(231), RTS), (20, Some(240), 1)];
    let mut nic = Nic::new("mlx5_core");
    nic.contexts = Some(vec![231, 240]);
    nic.second(RATE, &pairs);
    for pid in [231, 240] {
        nic.born(pid, SECOND + 1, PLAIN);
    }
    assert_eq!(shown(&later(&mut nic, &pairs), 231), EXACT);
    (nic, pairs)
}

#[test]
fn who_changes_queue_pairs_past_the_kernel_may_use_them_in_any_state() {
    let (mut nic, pairs) = one_and_an_idle_one();
    nic.modify(240);
    assert_eq!(shown(&nic.second(RATE, &pairs), 231), AT_MOST);
    let snapshot = later(&mut nic, &pairs);
    assert_eq!([231, 240].map(|pid| shown(&snapshot, pid)), [AT_MOST, AT_MOST]);
    assert_eq!(
        snapshot.processes[1].devx.as_deref(),
        Some(&Vec::new()),
        "it made none"
    );
    // Who is alone is so also when it does so itself.
    let (mut nic, pairs) = one_and_an_idle_one();
    nic.contexts = Some(vec![231]);
    nic.modify(231);
    assert_eq!(shown(&later(&mut nic, &pairs[..1]), 231), EXACT);
}

#[test]
fn what_another_process_changed_past_the_kernel_is_still_its_owner_s() {
    let (mut nic, pairs) = one_and_an_idle_one();
    // A child of the second process calls, by the file that it got, and ends.
    nic.modify(250);
    nic.born(250, SECOND + 1, PLAIN);
    nic.second(RATE, &pairs);
    nic.modified.clear();
    nic.apply(Input::ProcessGone {
        pid: 250,
        start_ticks: Some(7),
    });
    later(&mut nic, &pairs);
    assert_eq!(shown(&later(&mut nic, &pairs), 231), AT_MOST);
}

#[test]
fn a_failed_change_without_a_record_may_have_been_one_of_any_device() {
    let (mut nic, pairs) = one_and_an_idle_one();
    nic.modified.insert(240, 1);
    later(&mut nic, &pairs);
    assert_eq!(shown(&later(&mut nic, &pairs), 231), AT_MOST);
}

#[test]
fn a_call_without_a_record_may_have_made_a_queue_pair() {
    let (mut nic, _) = of_maker(&[0x400], &[231]);
    *nic.made.entry(231).or_default() += 1;
    let snapshot = later(&mut nic, &[(20, Some(240), 1)]);
    let row = snapshot
        .processes
        .iter()
        .find(|row| row.pid == Some(231))
        .unwrap();
    assert!(!row.devx.as_ref().unwrap()[0].whole);
    assert!(sent(&snapshot, Some(231)).is_some_and(|sent| sent.rate.is_some()));
}

#[test]
fn who_destroys_the_last_queue_pair_past_the_kernel_is_no_user_any_more() {
    let (mut nic, _) = of_maker(&[0x500], &[231, 240]);
    nic.object(231, (0xf000 + 231, 1), None);
    let snapshot = later(&mut nic, &[(20, Some(240), 1)]);
    assert!(!snapshot.judgement.unexplained.is_empty());
    let before = sent(&snapshot, Some(231)).unwrap().total;
    assert_eq!(sent(&later(&mut nic, &[]), Some(231)).unwrap().total, before);
}

#[test]
fn faults_of_a_port_with_queue_pairs_past_the_kernel_are_lower_bounds() {
    let faults = |opcode| {
        let (mut nic, _) = of_maker(&[opcode], &[231]);
        let mut device = rxe(0, "nic0");
        device.driver = Some("mlx5_core".into());
        device.ports[0].counters = vec![RawReading {
            name: "out_of_buffer".into(),
            value: Some(0),
            source: RawSource::Netlink,
            at: (nic.second * SECOND).into(),
        }];
        nic.apply(Input::Devices(Box::new(DevicesSample {
            mono_ns: nic.second * SECOND,
            devices: vec![device],
            ..DevicesSample::default()
        })));
        let snapshot = nic.engine.tick(at(nic.second * SECOND));
        let port = &snapshot.ports[0];
        let all = [port.out_of_buffer, port.drops].map(|counter| counter.unwrap().total_known());
        (all, crate::judgement::unseen_qps(&snapshot))
    };
    assert_eq!(
        faults(0x500),
        (
            [Known::AtLeast; 2],
            Some("nothing is seen of 1 DEVX QP on nic0".to_owned())
        )
    );
    assert_eq!(faults(0x400), ([Known::Exact; 2], None));
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

/// A process in [`what_is_exact_is_true_whoever_comes_goes_and_is_not_seen`].
#[derive(Clone, Copy, Debug)]
struct Life {
    pid: u32,
    born_ns: u64,
    ucx: bool,
    /// It has queue pairs that the kernel does not list.
    unlisted: bool,
    listed: bool,
    /// It has a queue pair in INIT, as records say, and has moved it on past the kernel.
    changed: bool,
    /// It got its file from a process that has ended; `Some(false)`: it has a mapping alone.
    heir: Option<bool>,
    /// It made queue pairs without a library that has a name, or is an heir: it deceives itself.
    hides: bool,
    moved: u64,
}

/// What happens to a process in a second.
#[derive(Clone, Copy, Debug)]
enum Happens {
    StartsPlain,
    StartsWithUcx,
    LoadsUcx,
    MakesUnlisted,
    /// Likewise, and a record tells what it is.
    MakesTold,
    /// It makes what carries nothing, and a record tells it.
    MakesKeys,
    /// As the first, but the call is in no count.
    MakesUnseen,
    Connects,
    /// Past the kernel: a record tells that there was a call.
    ConnectsPastIt,
    Disconnects,
    Ends,
    /// A child that it forks keeps its file, and what is in it. It has a descriptor, or a mapping alone.
    LeavesHeir,
    LeavesMapping,
    Nothing,
}

fn happens() -> impl Strategy<Value = Happens> {
    prop::sample::select(vec![
        Happens::StartsPlain,
        Happens::StartsWithUcx,
        Happens::LoadsUcx,
        Happens::MakesUnlisted,
        Happens::MakesTold,
        Happens::MakesKeys,
        Happens::MakesUnseen,
        Happens::Connects,
        Happens::ConnectsPastIt,
        Happens::Disconnects,
        Happens::Ends,
        Happens::LeavesHeir,
        Happens::LeavesMapping,
        Happens::Nothing,
        Happens::Nothing,
    ])
}

proptest! {
    /// Processes come, load libraries, make queue pairs that are listed or not, and go, before and after
    /// programs see it, and calls are lost. Each is another user's, and names of libraries say nothing of it.
    /// Each second one of the true users, or each, moves what the port
    /// counts. What is shown as exact is what a process moved, and a bound is on its side of that.
    #[test]
    fn what_is_exact_is_true_whoever_comes_goes_and_is_not_seen(
        on in 0..4_usize,
        steps in prop::collection::vec((0..3_usize, happens(), 0..4_u64), 1..60),
    ) {
        let mut nic = Nic::with("mlx5_core", false);
        let mut lives: [Option<Life>; 3] = [None; 3];
        let (mut last_pid, mut lost) = (230, 0);
        for (at, (who, what, moves)) in steps.into_iter().enumerate() {
            if at == on {
                nic.attach();
            }
            let born_ns = nic.second * SECOND + 1;
            let is_seen = at >= on;
            let mut losses = [0; loss::COUNT as usize];
            let fresh = |ucx, pid| Life { pid, born_ns, ucx, unlisted: false, listed: false, changed: false, heir: None, hides: false, moved: 0 };
            match (what, &mut lives[who]) {
                (Happens::StartsPlain | Happens::StartsWithUcx, place @ None) => {
                    last_pid += 1;
                    *place = Some(fresh(matches!(what, Happens::StartsWithUcx), last_pid));
                }
                (Happens::LoadsUcx, Some(life)) => life.ucx = true,
                (Happens::MakesUnlisted | Happens::MakesUnseen, Some(life)) => {
                    life.unlisted = true;
                    life.hides |= !life.ucx;
                    let is_counted = matches!(what, Happens::MakesUnlisted);
                    if is_seen && is_counted {
                        *nic.made.entry(life.pid).or_default() += 1;
                    } else if is_seen {
                        lost += 1;
                    }
                }
                (Happens::MakesTold, Some(life)) if is_seen => {
                    life.unlisted = true;
                    nic.devx(life.pid, 0x500);
                }
                (Happens::MakesKeys, Some(life)) if is_seen => nic.devx(life.pid, 0x200),
                (Happens::Connects, Some(life)) => life.listed = true,
                (Happens::ConnectsPastIt, Some(life)) if is_seen => {
                    life.changed = true;
                    nic.modify(life.pid);
                }
                (Happens::Disconnects, Some(life)) => life.listed = false,
                (Happens::LeavesHeir | Happens::LeavesMapping, Some(life)) if !life.listed && !life.changed => {
                    nic.made.remove(&life.pid);
                    nic.apply(Input::ProcessGone { pid: life.pid, start_ticks: Some(7) });
                    last_pid += 1;
                    let has_file = matches!(what, Happens::LeavesHeir);
                    let heir = Some(life.heir.unwrap_or(true) && has_file);
                    *life = Life { unlisted: life.unlisted, heir, hides: true, ..fresh(life.ucx, last_pid) };
                }
                (Happens::Ends, place @ Some(_)) => {
                    let pid = place.take().map_or(0, |life| life.pid);
                    nic.made.remove(&pid);
                    nic.modified.remove(&pid);
                    nic.apply(Input::ProcessGone { pid, start_ticks: Some(7) });
                }
                _ => {}
            }
            losses[loss::VERB as usize] = lost;
            // Who can, moves: all of it, or a half each of two.
            let mut users: Vec<&mut Life> = lives.iter_mut().flatten().filter(|life| life.listed || life.unlisted || life.changed).collect();
            let mut rates: BTreeMap<u32, u64> = BTreeMap::new();
            let bytes = if users.is_empty() { 0 } else { moves * RATE };
            let first = at % users.len().max(1);
            let parts = if moves == 3 { users.len() as u64 } else { 1 };
            let mut left = bytes;
            for n in 0..parts.min(users.len() as u64) {
                let number = (first + usize::try_from(n).unwrap()) % users.len();
                let part = if n + 1 == parts { left } else { bytes / parts };
                left -= part;
                users[number].moved += part;
                *rates.entry(users[number].pid).or_default() += part;
            }
            nic.apply(Input::Losses(losses));
            let named = lives.iter().flatten().map(|life| life.heir.is_none().then_some(life.pid));
            nic.contexts = named.collect();
            nic.ctxs = Some(lives.iter().flatten().count() as u64);
            let pairs: Vec<Pair> = lives.iter().flatten().filter(|life| life.listed || life.changed)
                .map(|life| (life.pid, Some(life.pid), if life.listed { RTS } else { 1 })).collect();
            let snapshot = nic.second(bytes, &pairs);
            let needs = nic.engine.needs();
            for pid in needs.processes {
                if let Some(life) = lives.iter().flatten().find(|life| life.pid == pid) {
                    nic.born_of(&pid.to_string(), pid, life.born_ns, if life.ucx { UCX } else { PLAIN });
                }
            }
            if needs.openers {
                let found = lives.iter().flatten().filter(|life| life.heir != Some(false));
                let found: Vec<u32> = found.map(|life| life.pid).collect();
                nic.search(&found, found.len() as u64, false);
            }
            for life in lives.iter().flatten().filter(|life| !life.hides) {
                let Some(counter) = sent(&snapshot, Some(life.pid)) else { continue };
                match counter.total_known() {
                    Known::Exact => prop_assert_eq!(counter.total, life.moved, "{:?}", life),
                    _ => prop_assert!(counter.total <= life.moved, "{} of {:?}", counter.total, life),
                }
                let Some(rate) = counter.rate else { continue };
                let truth = rates.get(&life.pid).copied().unwrap_or(0) as f64;
                match counter.rate_known() {
                    Known::Exact => prop_assert!((rate - truth).abs() < 1.0, "{} and not {}: {:?}", rate, truth, life),
                    Known::AtMost => prop_assert!(rate >= truth - 1.0, "{} and not {}: {:?}", rate, truth, life),
                    Known::AtLeast => prop_assert!(rate <= truth + 1.0, "{} and not {}: {:?}", rate, truth, life),
                }
            }
        }
    }
}

#[test]
fn before_linux_5_14_a_search_of_open_files_tells_who_has_a_device_open() {
    let pairs = [(10, Some(231), RTS), (20, Some(240), 1)];
    let mut idle = Nic::new("mlx5_core");
    (0..5).for_each(|_| drop(idle.second(0, &[])));
    assert!(!idle.engine.needs().openers, "nobody uses it");
    let mut nic = Nic::new("mlx5_core");
    nic.second(RATE, &pairs);
    nic.libraries(231, PLAIN);
    nic.libraries(240, UCX);
    assert_eq!(shown(&later(&mut nic, &pairs), 231), AT_MOST);
    assert!(nic.engine.needs().openers, "who has it open?");
    let searched = |nic: &mut Nic, pids: &[u32], hidden: bool| {
        nic.search(pids, 0, hidden);
        shown(&later(nic, &pairs), 231)
    };
    assert_eq!(searched(&mut nic, &[231], false), EXACT);
    assert!(!nic.engine.needs().openers, "it was looked for a moment ago");
    assert_eq!(
        searched(&mut nic, &[231, 240], false),
        AT_MOST,
        "it may have some by UCX"
    );
    assert_eq!(searched(&mut nic, &[231], true), AT_MOST, "not all could be read");
    (0..20).for_each(|_| drop(nic.second(RATE, &pairs)));
    assert!(!nic.engine.needs().openers, "nor will they be the next time");
    assert_eq!(searched(&mut nic, &[231], false), EXACT);
    nic.second(RATE, &pairs);
    assert!(nic.engine.needs().openers, "ten seconds are over");
    later(&mut nic, &pairs);
    assert_eq!(shown(&later(&mut nic, &pairs), 231), AT_MOST, "that was long ago");
}
