//! What is requested when, with a made-up kernel.

mod elsewhere;
mod paths;
mod rest;
mod slow;

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::net::UnixDatagram,
    sync::{Arc, Mutex, Weak},
};

use super::*;
use rdmatop_base::exclude::Excluded;
use rdmatop_model::{
    engine::{Engine, EngineConfig},
    input::{DeviceReading, DevicesSample, QpsSample, RawReading, RawSource, UNLISTED},
    snapshot::{PortRow, Quantity},
    value::Counter,
};
use rdmatop_sources::{
    fake::Fake,
    netlink::{
        attr::{
            DEV_INDEX, DEV_NAME, PORT_INDEX, RES_CTX, RES_CTX_ENTRY, RES_CTXN, RES_LQPN, RES_PID, RES_QP,
            RES_QP_ENTRY, RES_RAW, RES_RQPN, RES_SQ_PSN, RES_STATE, RES_SUMMARY, RES_SUMMARY_ENTRY,
            RES_SUMMARY_ENTRY_CURR, RES_SUMMARY_ENTRY_NAME, RES_TYPE, STAT_HWCOUNTER_ENTRY,
            STAT_HWCOUNTER_ENTRY_NAME, STAT_HWCOUNTER_ENTRY_VALUE, STAT_HWCOUNTERS, SYS_NETNS_MODE, cmd,
            message_type,
        },
        record::{QpContext, Summary},
        transport::{Datagram, Progress, Sink},
        wire::{Attrs, DONE, ERROR, F_DUMP, F_DUMP_INTR, F_MULTI, Message, MessageWriter, Messages},
    },
};

const PORTID: u32 = 77;

/// One device of the made-up kernel.
#[derive(Clone, Default)]
struct Made {
    /// Number of the network namespace that it belongs to in mode exclusive; 0 is rdmatop's own.
    netns: u64,
    /// QPs besides QP 1: number and send PSN.
    qps: Vec<(u32, u32)>,
    ctxs: u64,
    /// Processes that have it open; 0 is one that the kernel does not name.
    open: Vec<u32>,
    packets: u64,
    /// Ports beside the first.
    more_ports: u32,
    /// Hardware counters; empty: `sent_pkts` with `packets`.
    counters: Vec<(&'static str, u64)>,
    /// Dumps of QPs end with this errno.
    errno: i32,
    interrupted: bool,
    /// Counters are refused with this errno.
    refuses: i32,
    /// Its driver sleeps this long, ms, when it is asked for counters.
    sleeps: u64,
    /// The driver sleeps in this command instead.
    sleeps_in: Option<u16>,
    /// What its driver logs when its counters are read.
    logs: &'static [&'static str],
    /// What the firmware has of QPs that have a peer, and with which errno it is refused.
    contexts: Vec<QpContext>,
    denies: i32,
    /// Bytes that it sends in their place.
    raw: Option<Vec<u8>>,
    /// QPs that the next dumps leave out although they live, one list for each dump.
    left_out: Vec<Vec<u32>>,
}

#[derive(Default)]
struct State {
    devices: Vec<Made>,
    exclusive: bool,
    /// Network namespaces in which no list of devices can be had.
    silent: BTreeSet<u64>,
    /// Connections that were opened in each network namespace.
    connections: BTreeMap<u64, Vec<Weak<()>>>,
    /// Commands and the device that each named, in order.
    asked: Vec<(u16, Option<u32>)>,
    /// How many requests for counters get no answer.
    lost: usize,
    log: Option<UnixDatagram>,
}

/// A connection to it in one network namespace.
#[derive(Clone, Default)]
struct Kernel(Arc<Mutex<State>>, u64, Arc<()>);

impl Kernel {
    /// A connection in the namespace of this thread.
    fn here(&self) -> Self {
        let netns = thread::current()
            .name()
            .and_then(|name| name.strip_prefix("netns-")?.parse().ok());
        let here = Self(Arc::clone(&self.0), netns.unwrap_or(0), Arc::default());
        let mut state = self.0.lock().unwrap();
        state
            .connections
            .entry(here.1)
            .or_default()
            .push(Arc::downgrade(&here.2));
        drop(state);
        here
    }

    /// How many connections were opened in a namespace, and how many of them are open.
    fn connections(&self, netns: u64) -> (usize, usize) {
        let state = self.0.lock().unwrap();
        let all = state.connections.get(&netns).map_or(&[][..], |all| all);
        (all.len(), all.iter().filter(|one| one.strong_count() > 0).count())
    }

    /// Requests of a command since the last call.
    fn asked(&self, command: u16) -> Vec<Option<u32>> {
        let mut state = self.0.lock().unwrap();
        let asked = std::mem::take(&mut state.asked);
        asked
            .into_iter()
            .filter(|(c, _)| *c == command)
            .map(|(_, d)| d)
            .collect()
    }

    /// Sleeps as a driver that waits for its firmware: it blocks the thread that asks, and no other.
    fn sleep(&self, request: &Message<'_>) {
        let index = Attrs::new(request.payload)
            .flatten()
            .find(|attr| attr.number == DEV_INDEX)
            .map(|attr| attr.u32().unwrap());
        let made = index.and_then(|index| self.0.lock().unwrap().devices.get(index as usize).cloned());
        if let Some(made) = made
            && request.kind - message_type(0) == made.sleeps_in.unwrap_or(cmd::STAT_GET)
        {
            thread::sleep(Duration::from_millis(made.sleeps));
        }
    }

    fn change(&self, device: usize, change: impl FnOnce(&mut Made)) {
        change(&mut self.0.lock().unwrap().devices[device]);
    }
}

fn reply(request: &Message<'_>) -> MessageWriter {
    MessageWriter::new(request.kind, F_MULTI, request.seq).portid(PORTID)
}

fn ended(request: &Message<'_>, errno: i32) -> Vec<u8> {
    let end = MessageWriter::new(DONE, F_MULTI, request.seq).portid(PORTID);
    end.raw(&(-errno).to_ne_bytes()).finish()
}

fn refused(request: &Message<'_>, errno: i32) -> Vec<u8> {
    let error = MessageWriter::new(ERROR, 0, request.seq).portid(PORTID);
    error.raw(&(-errno).to_ne_bytes()).raw(&[0; 16]).finish()
}

fn named(request: &Message<'_>, index: u32) -> MessageWriter {
    reply(request)
        .u32(DEV_INDEX, index)
        .string(DEV_NAME, format!("rxe{index}").as_bytes())
}

fn summary(request: &Message<'_>, index: u32, made: &Made) -> Vec<u8> {
    let counts = [
        (&b"qp"[..], made.qps.len() as u64 + 1),
        (b"mr", 0),
        (b"ctx", made.ctxs),
    ];
    let entry = |table: MessageWriter, (name, count): (&[u8], u64)| {
        table.nest(RES_SUMMARY_ENTRY, |entry| {
            entry
                .string(RES_SUMMARY_ENTRY_NAME, name)
                .u64(RES_SUMMARY_ENTRY_CURR, count)
        })
    };
    named(request, index)
        .nest(RES_SUMMARY, |table| counts.into_iter().fold(table, entry))
        .finish()
}

fn user(writer: MessageWriter, (number, psn): (u32, u32)) -> MessageWriter {
    writer
        .u32(RES_LQPN, number)
        .u8(RES_TYPE, 2)
        .u32(RES_SQ_PSN, psn)
        .u32(RES_PID, u32::MAX)
}

fn one_qp(request: &Message<'_>, index: u32, number: u32, made: &Made) -> Vec<u8> {
    let context = made.contexts.iter().find(|context| context.qpn == number);
    let told = |writer: MessageWriter| match context {
        Some(context) => writer
            .u8(RES_STATE, context.state.0)
            .u32(RES_RQPN, context.remote_qpn)
            .u32(PORT_INDEX, context.port),
        None => writer,
    };
    match made.qps.iter().find(|(qpn, _)| *qpn == number) {
        Some(qp) => told(user(named(request, index), *qp)).finish(),
        None => refused(request, libc::ENOENT),
    }
}

/// The context of a queue pair as its firmware sends it.
fn context(request: &Message<'_>, index: u32, number: u32, made: &Made) -> Vec<u8> {
    let context = made.contexts.iter().find(|context| context.qpn == number);
    match context {
        _ if made.denies != 0 => refused(request, made.denies),
        Some(context) => {
            let raw = made.raw.clone().unwrap_or_else(|| context.encode());
            named(request, index).bytes(RES_RAW, &raw).finish()
        }
        None => refused(request, libc::ENOENT),
    }
}

fn qps(request: &Message<'_>, index: u32, made: &Made, left_out: &[u32]) -> Vec<u8> {
    let flags = F_MULTI | if made.interrupted { F_DUMP_INTR } else { 0 };
    let shown = made.qps.iter().filter(|(qpn, _)| !left_out.contains(qpn));
    let user = |table: MessageWriter, qp: &(u32, u32)| table.nest(RES_QP_ENTRY, |entry| user(entry, *qp));
    let special =
        |table: MessageWriter| table.nest(RES_QP_ENTRY, |entry| entry.u32(RES_LQPN, 1).u8(RES_TYPE, 1));
    MessageWriter::new(request.kind, flags, request.seq)
        .portid(PORTID)
        .u32(DEV_INDEX, index)
        .nest(RES_QP, |table| special(shown.fold(table, user)))
        .finish()
}

fn contexts(request: &Message<'_>, index: u32, made: &Made) -> Vec<u8> {
    let entry = |table: MessageWriter, (number, pid): (u32, &u32)| {
        table.nest(RES_CTX_ENTRY, |entry| match pid {
            0 => entry.u32(RES_CTXN, number),
            pid => entry.u32(RES_CTXN, number).u32(RES_PID, *pid),
        })
    };
    MessageWriter::new(request.kind, F_MULTI, request.seq)
        .portid(PORTID)
        .u32(DEV_INDEX, index)
        .nest(RES_CTX, |table| (0..).zip(&made.open).fold(table, entry))
        .finish()
}

fn counter(request: &Message<'_>, made: &Made) -> Vec<u8> {
    let entry = |table: MessageWriter, (name, value): (&str, u64)| {
        table.nest(STAT_HWCOUNTER_ENTRY, |entry| {
            entry
                .string(STAT_HWCOUNTER_ENTRY_NAME, name.as_bytes())
                .u64(STAT_HWCOUNTER_ENTRY_VALUE, value)
        })
    };
    let mut counters = made.counters.clone();
    if counters.is_empty() {
        counters.push(("sent_pkts", made.packets));
    }
    reply(request)
        .nest(STAT_HWCOUNTERS, |table| counters.into_iter().fold(table, entry))
        .finish()
}

fn answer(state: &mut State, request: &Message<'_>, netns: u64) -> Vec<Vec<u8>> {
    let device = Attrs::new(request.payload)
        .flatten()
        .find(|attr| attr.number == DEV_INDEX)
        .map(|attr| attr.u32().unwrap());
    let number = Attrs::new(request.payload)
        .flatten()
        .find(|attr| attr.number == RES_LQPN)
        .map(|attr| attr.u32().unwrap());
    let port = Attrs::new(request.payload)
        .flatten()
        .find(|attr| attr.number == PORT_INDEX)
        .map(|attr| attr.u32().unwrap());
    let command = request.kind - message_type(0);
    state.asked.push((command, device));
    let made = device.and_then(|index| state.devices.get_mut(index as usize));
    let left_out = match made {
        Some(made) if command == cmd::RES_QP_GET && number.is_none() && !made.left_out.is_empty() => {
            made.left_out.remove(0)
        }
        _ => Vec::new(),
    };
    if let (cmd::STAT_GET, Some(log), Some(index)) = (command, &state.log, device) {
        for line in state.devices[index as usize].logs {
            log.send(line.as_bytes()).unwrap();
        }
    }
    let exclusive = state.exclusive;
    let is_here = |made: &Made| !exclusive || made.netns == netns;
    let all = || (0..).zip(&state.devices).filter(|(_, made)| is_here(made));
    let one = |index: u32| &state.devices[index as usize];
    if command == cmd::STAT_GET && state.lost > 0 {
        state.lost -= 1;
        return Vec::new();
    }
    let gone = device.is_some_and(|index| !state.devices.get(index as usize).is_some_and(is_here));
    let mut out: Vec<Vec<u8>> = match (command, device) {
        _ if gone => return vec![refused(request, libc::EINVAL)],
        (cmd::RES_GET, None) if state.silent.contains(&netns) => return vec![refused(request, libc::EIO)],
        (cmd::GET, Some(index)) => {
            let ports = 1 + one(index).more_ports;
            vec![named(request, index).u32(PORT_INDEX, ports).finish()]
        }
        (cmd::GET, None) => all()
            .map(|(index, made)| {
                named(request, index)
                    .u32(PORT_INDEX, 1 + made.more_ports)
                    .finish()
            })
            .collect(),
        (cmd::RES_GET, None) => all().map(|(index, made)| summary(request, index, made)).collect(),
        (cmd::RES_GET, Some(index)) => vec![summary(request, index, one(index))],
        // As `res_get_common_doit`: all QPs are those of port 2 here, if the device has one.
        (cmd::RES_QP_GET, Some(index)) if number.is_some() => {
            let ports = 1 + u32::from(index == 1);
            match port {
                Some(port) if port == ports => {}
                Some(port) if port < ports => return vec![refused(request, libc::EAGAIN)],
                _ => return vec![refused(request, libc::EINVAL)],
            }
            vec![one_qp(request, index, number.unwrap_or(0), one(index))]
        }
        (cmd::RES_QP_GET_RAW, Some(index)) => {
            vec![context(request, index, number.unwrap_or(0), one(index))]
        }
        (cmd::RES_QP_GET, Some(index)) if one(index).errno != 0 => {
            let part = qps(request, index, one(index), &left_out);
            return vec![part, ended(request, one(index).errno)];
        }
        (cmd::RES_QP_GET, Some(index)) => vec![qps(request, index, one(index), &left_out)],
        (cmd::RES_CTX_GET, Some(index)) => vec![contexts(request, index, one(index))],
        (cmd::STAT_GET, Some(index)) if one(index).refuses != 0 => {
            return vec![refused(request, one(index).refuses)];
        }
        (cmd::STAT_GET, Some(index)) => vec![counter(request, one(index))],
        (cmd::SYS_GET, _) => vec![reply(request).u8(SYS_NETNS_MODE, u8::from(!exclusive)).finish()],
        (cmd::PORT_GET, _) => vec![reply(request).u32(PORT_INDEX, port.unwrap_or(1)).finish()],
        _ => return vec![refused(request, libc::EINVAL)],
    };
    if request.flags & F_DUMP == F_DUMP {
        out.push(ended(request, 0));
    }
    out
}

impl Transport for Kernel {
    fn exchange(&mut self, request: &[u8], sink: &mut Sink<'_>) -> Result<(), NetlinkError> {
        let request = Messages::new(request).next().unwrap().unwrap();
        self.sleep(&request);
        let datagrams = answer(&mut self.0.lock().unwrap(), &request, self.1);
        for bytes in &datagrams {
            let datagram = Datagram {
                portid: PORTID,
                bytes,
            };
            if sink(datagram)? == Progress::Complete {
                return Ok(());
            }
        }
        Err(NetlinkError::Timeout { seconds: 5 })
    }
}

/// A source with a made-up kernel of this many devices, after the rounds in which they become known.
struct Host {
    kernel: Kernel,
    source: DeviceSource,
    round: u64,
    files: Fake,
}

impl Host {
    fn new(devices: usize) -> Self {
        let kernel = Kernel::default();
        kernel.0.lock().unwrap().devices = vec![Made::default(); devices];
        let files = Fake::new();
        for index in 0..devices {
            files.sys(format!("class/infiniband/rxe{index}/node_type"), "1: CA\n");
        }
        let asked = kernel.clone();
        let mut source = DeviceSource::through(files.root(), Arc::new(move || Ok(Nldev::new(asked.here()))));
        // Rounds of tests follow each other at once.
        source.rested_ns = 0;
        Self {
            kernel,
            source,
            round: 0,
            files,
        }
    }

    /// Listed, and asked once more.
    fn known(devices: usize) -> Self {
        let mut host = Self::new(devices);
        host.poll(false);
        host.poll(false);
        host.kernel.asked(0);
        host
    }

    /// One round that lists the devices.
    fn listed(&mut self) -> DevicesSample {
        let wants = Wants {
            counters: true,
            ..Wants::default()
        };
        let mut found = None;
        self.source.poll(&wants, &mut |input| {
            if let Input::Devices(sample) = input {
                found = Some(*sample);
            }
        });
        found.expect("devices were listed")
    }

    /// One round without eBPF; returns its dump.
    fn poll(&mut self, repair: bool) -> QpsSample {
        let wants = Wants {
            round: self.round,
            qps: true,
            counters: true,
            repair,
            ..Wants::default()
        };
        self.round += 1;
        let mut found = None;
        self.source.poll(&wants, &mut |input| {
            if let Input::Qps(sample) = input {
                found = Some(*sample);
            }
        });
        found.expect("QPs were wanted")
    }
}

/// One round of counters: returns those of device 0, and the failures.
fn counters(host: &mut Host) -> (Vec<RawReading>, Vec<String>) {
    let wants = Wants {
        round: host.round,
        counters: true,
        ..Wants::default()
    };
    host.round += 1;
    let mut shown = (Vec::new(), Vec::new());
    host.source.poll(&wants, &mut |input| match input {
        Input::Devices(sample) => {
            shown.0.clone_from(&sample.devices[0].ports[0].counters);
            shown.1 = sample.errors.iter().map(Cause::line).collect();
        }
        Input::Counters(sample) => shown.0.clone_from(&sample.ports[0].counters),
        _ => {}
    });
    shown
}

#[test]
fn a_lost_answer_is_requested_again_and_reported_when_it_is_lost_again() {
    let mut host = Host::new(1);
    assert_eq!(counters(&mut host).0.len(), 1);
    host.kernel.0.lock().unwrap().lost = 1;
    let (read, errors) = counters(&mut host);
    assert_eq!(
        (read[0].value, errors),
        (Some(0), vec![]),
        "the second question was answered"
    );
    host.kernel.0.lock().unwrap().lost = 2;
    let (read, errors) = counters(&mut host);
    assert_eq!(read, []);
    assert_eq!(
        errors,
        [
            "counters of rxe0 port 1: no answer from the kernel in 5 s; a driver may hold the kernel's RDMA lock, see dmesg"
        ]
    );
    host.source.listed_ns = None;
    let (read, errors) = counters(&mut host);
    assert_eq!((read.len(), errors.len()), (1, 0));
}

#[test]
fn counters_that_netlink_and_files_lack_are_known_to_be_missing() {
    let mut host = Host::new(1);
    let port = "class/infiniband/rxe0/ports/1";
    host.files
        .sys(format!("{port}/counters/port_xmit_discards"), "2\n");
    host.files
        .sys(format!("{port}/counters/link_downed"), "N/A (no PMA)\n");
    // EIO from the real kernel.
    host.files
        .link(format!("sys/{port}/hw_counters/out_of_buffer"), "/proc/self/mem");
    host.kernel.0.lock().unwrap().lost = usize::MAX;
    let (read, _) = counters(&mut host);
    let shown: Vec<_> = read
        .iter()
        .map(|raw| (&*raw.name, raw.value, raw.source))
        .collect();
    assert_eq!(
        shown,
        [
            ("port_xmit_discards", Some(2), RawSource::Pma),
            ("out_of_buffer", None, RawSource::Sysfs)
        ]
    );
}

/// One round of counters. Returns the processes that have device 0 open, each time that they are told.
fn opened(host: &mut Host) -> Vec<Option<Vec<u32>>> {
    let wants = Wants {
        round: host.round,
        counters: true,
        ..Wants::default()
    };
    host.round += 1;
    let mut told = Vec::new();
    host.source.poll(&wants, &mut |input| {
        let readings = match input {
            Input::Devices(sample) => sample.devices,
            Input::Counters(sample) => sample.changed,
            _ => return,
        };
        told.extend(readings.into_iter().map(|reading| reading.contexts));
    });
    told
}

#[test]
fn who_has_a_device_open_is_told_beside_its_counters() {
    // No process has these numbers, so that each is taken as it is.
    let [one, other] = [u32::MAX - 1, u32::MAX];
    let mut host = Host::new(1);
    host.kernel.change(0, |made| made.open = vec![other, one, other]);
    assert_eq!(opened(&mut host), [Some(vec![one, other])]);
    assert_eq!(opened(&mut host), [], "nothing has changed");
    host.kernel.change(0, |made| made.open = vec![one]);
    assert_eq!(opened(&mut host), [Some(vec![one])]);
    host.kernel.change(0, |made| made.open = vec![one, 0]);
    assert_eq!(opened(&mut host), [None], "one is in another PID namespace");
    // A driver whose library cannot hide QPs is not asked for contexts.
    let mut host = Host::new(1);
    host.files
        .link("sys/class/infiniband/rxe0/device/driver", "../../drivers/hns3");
    opened(&mut host);
    assert_eq!(host.kernel.asked(cmd::RES_CTX_GET).len(), 0);
}

fn row(driver: &str, netlink: &[(&'static str, u64)], files: &[(&str, u64)]) -> PortRow {
    let mut host = Host::new(1);
    host.files.dir("sys/class/infiniband/rxe0/ports/1");
    host.files.dir("sys/class/infiniband/rxe0/device");
    host.files.link(
        "sys/class/infiniband/rxe0/device/driver",
        format!("../drivers/{driver}"),
    );
    for (name, value) in files {
        host.files.sys(
            format!("class/infiniband/rxe0/ports/1/counters/{name}"),
            format!("{value}\n"),
        );
    }
    host.kernel.change(0, |made| made.counters = netlink.to_vec());
    let wants = Wants {
        counters: true,
        ..Wants::default()
    };
    let mut engine = Engine::new(EngineConfig::default());
    host.source.poll(&wants, &mut |input| {
        engine.apply(input.at(now()));
    });
    let snapshot = engine.tick(now());
    assert_eq!(snapshot.devices[0].driver.as_deref(), Some(driver));
    snapshot.ports[0].clone()
}

#[test]
fn what_each_driver_counts_becomes_the_figures_of_its_port() {
    let total = |counter: Option<Counter>| counter.map(|c| (c.total, c.partial));
    let whole = |total| Some((total, false));
    let mlx5 = row(
        "mlx5_core",
        &[
            ("out_of_buffer", 200),
            ("packet_seq_err", 3),
            ("local_ack_timeout_err", 4),
            ("rdma_tx_bytes", 9),
        ],
        &[
            ("port_xmit_data", 1000),
            ("port_rcv_data", 10),
            ("port_xmit_packets", 5),
            ("port_xmit_discards", 2),
        ],
    );
    assert_eq!(
        (total(mlx5.tx_bytes), total(mlx5.rx_bytes)),
        (whole(4000), whole(40))
    );
    assert_eq!(
        (total(mlx5.tx_packets), total(mlx5.drops)),
        (whole(5), whole(202))
    );
    assert_eq!((total(mlx5.retries), total(mlx5.retransmits)), (whole(7), None));
    let words = mlx5
        .counters
        .iter()
        .find(|c| &*c.name == "port_xmit_data")
        .unwrap();
    assert_eq!((words.counter.total, words.unit_bytes), (1000, Some(4)));
    let efa = row(
        "efa",
        &[
            ("tx_bytes", 70),
            ("tx_pkts", 7),
            ("rx_drops", 1),
            ("retrans_pkts", 3),
            ("retrans_timeout_events", 2),
        ],
        &[],
    );
    assert_eq!(
        (total(efa.tx_bytes), total(efa.tx_packets)),
        (whole(70), whole(7))
    );
    assert_eq!((total(efa.retransmits), total(efa.retries)), (whole(3), whole(2)));
    assert_eq!((total(efa.drops), total(efa.rx_bytes)), (whole(1), None));
    let bnxt = row(
        "bnxt_en",
        &[
            ("tx_bytes", 80),
            ("rx_pkts", 6),
            ("to_retransmits", 2),
            ("seq_err_naks_rcvd", 1),
        ],
        &[],
    );
    assert_eq!(
        (total(bnxt.tx_bytes), total(bnxt.rx_packets)),
        (whole(80), whole(6))
    );
    assert_eq!((total(bnxt.retries), total(bnxt.retransmits)), (whole(3), None));
    let irdma = row(
        "irdma",
        &[
            ("ip4OutOctets", 60),
            ("ip6OutOctets", 40),
            ("RetransSegs", 5),
            ("ip4InDiscards", 1),
        ],
        &[],
    );
    assert_eq!(
        (total(irdma.tx_bytes), total(irdma.retransmits)),
        (whole(100), whole(5))
    );
    assert_eq!((total(irdma.drops), total(irdma.retries)), (whole(1), None));
}

/// Reads a device whose driver has one counter by netlink for each port, or refuses with an errno, and files
/// for the device. Returns the names and values of each port, but of that counter.
fn of_the_device(driver: &str, ports: u32, refuses: i32, device: &[(&str, u64)]) -> Vec<String> {
    let mut host = Host::new(1);
    let dir = "class/infiniband/rxe0";
    host.files.dir(format!("sys/{dir}/device"));
    host.files
        .link(format!("sys/{dir}/device/driver"), format!("../drivers/{driver}"));
    for (name, value) in device {
        host.files
            .sys(format!("{dir}/hw_counters/{name}"), format!("{value}\n"));
    }
    host.kernel.change(0, |made| {
        (made.more_ports, made.refuses) = (ports - 1, refuses);
        made.counters = vec![("sq_num_to", 1)];
    });
    let mut engine = Engine::new(EngineConfig::default());
    // As listed, and as the round after that reads them.
    for counters in [true, true] {
        let wants = Wants {
            round: host.round,
            counters,
            ..Wants::default()
        };
        host.round += 1;
        host.source.poll(&wants, &mut |input| {
            engine.apply(input.at(now()));
        });
    }
    let of_port = |port: &PortRow| {
        let named = port.counters.iter().filter(|c| &*c.name != "sq_num_to");
        let named: Vec<String> = named.map(|c| format!("{}={}", c.name, c.counter.total)).collect();
        let sums = [port.out_of_buffer, port.retries, port.ecn_marked, port.cnp_sent];
        let sums = sums.map(|sum| sum.map_or("-".to_owned(), |sum| sum.total.to_string()));
        format!("{} | {}", named.join(" "), sums.join(" "))
    };
    engine.tick(now()).ports.iter().map(of_port).collect()
}

#[test]
fn what_a_driver_counts_for_the_device_is_read_once_and_as_such() {
    let of = of_the_device;
    // The port has one of that name, too: the device's, of both ports, would be counted beside it.
    let mlx4 = [
        ("num_cqovf", 3),
        ("rq_num_udsdprd", 4),
        ("sq_num_to", 9),
        ("lifespan", 10),
    ];
    assert_eq!(
        of("mlx4_core", 1, 0, &mlx4),
        ["num_cqovf=3 rq_num_udsdprd=4 | 4 1 - -"]
    );
    assert_eq!(
        of("mlx4_core", 2, 0, &mlx4),
        [
            "num_cqovf (device)=3 rq_num_udsdprd (device)=4 | - 1 - -",
            " | - 1 - -"
        ]
    );
    // Firmware without counters of ports: those of the device are of both.
    assert_eq!(
        of("mlx4_core", 2, libc::EINVAL, &[("sq_num_to", 9)]),
        ["sq_num_to (device)=9 | - - - -", " | - - - -"]
    );
    let cxgb4 = [("ip4OutRsts", 5), ("ip6RetransSegs", 6)];
    assert_eq!(
        of("cxgb4", 2, libc::EINVAL, &cxgb4),
        [
            "ip4OutRsts (device)=5 ip6RetransSegs (device)=6 | - - - -",
            " | - - - -"
        ]
    );
    let mana = [("received_ecns", 7), ("sent_cnps", 8), ("qp_congested_events", 9)];
    assert_eq!(
        of("mana", 1, 0, &mana),
        ["qp_congested_events=9 received_ecns=7 sent_cnps=8 | - - 7 8"]
    );
    let efa = [("cmds_err", 1), ("submitted_cmds", 2)];
    assert_eq!(of("efa", 1, 0, &efa), ["cmds_err=1 submitted_cmds=2 | - - - -"]);
    // In switchdev mode mlx5 counts for the device.
    assert_eq!(
        of("mlx5_core", 1, libc::EINVAL, &[("out_of_buffer", 3)]),
        ["out_of_buffer=3 | 3 - - -"]
    );
    assert_eq!(of("hfi1", 1, 0, &[("RxRbufDataCorErr", 3)]), [" | - - - -"]);
}

#[test]
fn every_counter_has_the_time_of_its_own_read_in_the_sample() {
    let mut host = Host::new(1);
    let file = "class/infiniband/rxe0/ports/1/counters/port_xmit_discards";
    host.files.sys(file, "2\n");
    for _ in 0..2 {
        let before = now().mono_ns;
        let (read, _) = counters(&mut host);
        let after = now().mono_ns;
        assert_eq!(read.len(), 2);
        for raw in &read {
            let at = raw.at;
            assert!(
                before <= at.mono_ns - at.within_ns && at.mono_ns + at.within_ns <= after,
                "{raw:?}"
            );
        }
        assert!(read[0].at.mono_ns < read[1].at.mono_ns, "one after the other");
    }
}

fn numbers(sample: &QpsSample, device: u32) -> Vec<u32> {
    let of_device = sample.qps.iter().filter(|qp| qp.device_index == device);
    of_device.map(|qp| qp.qpn).collect()
}

#[test]
fn a_dump_that_fails_is_reported_and_removes_no_qp_of_its_device() {
    let mut host = Host::new(2);
    host.kernel.change(1, |made| {
        made.qps.push((17, 0));
        made.errno = 5;
    });
    let sample = host.poll(false);
    assert_eq!(sample.complete, [0]);
    assert_eq!(numbers(&sample, 1), [] as [u32; 0], "a part is no list");
    let [error] = &*sample.errors else {
        panic!("{:?}", sample.errors)
    };
    assert_eq!(error.line(), "QPs of rxe1: Input/output error (os error 5)");
    assert_eq!(
        (error.id, &error.concerns),
        (CauseId::ReadFailed, &Concerns::Device("rxe1".into()))
    );
}

#[test]
fn a_dump_under_churn_adds_what_it_saw_and_removes_nothing() {
    let mut host = Host::known(2);
    host.kernel.change(1, |made| {
        made.qps.push((17, 0));
        made.interrupted = true;
    });
    let sample = host.poll(false);
    assert_eq!(sample.complete, [0]);
    assert_eq!(numbers(&sample, 1), [17, 1], "the second attempt's, once");
    assert_eq!(
        host.kernel.asked(cmd::RES_QP_GET),
        [Some(1), Some(1)],
        "not for ever"
    );
}

#[test]
fn a_device_that_went_while_it_was_asked_makes_the_round_list_again() {
    let mut host = Host::known(2);
    host.kernel.0.lock().unwrap().devices.pop();
    host.kernel.change(0, |made| made.qps.push((17, 0)));
    let sample = host.poll(false);
    assert_eq!((sample.complete.as_slice(), sample.errors.len()), (&[0][..], 0));
    assert_eq!(host.kernel.asked(cmd::GET), [Some(0)]);
}

/// One device with these QPs, known from one dump.
fn holding(numbers: impl Iterator<Item = u32>) -> Host {
    let mut host = Host::new(1);
    host.kernel
        .change(0, |made| made.qps = numbers.map(|qpn| (qpn, 0)).collect());
    host.poll(false);
    host.kernel.asked(0);
    host
}

#[test]
fn a_qp_that_the_dump_left_out_is_asked_for_by_its_number() {
    let mut host = holding(17..20);
    host.kernel.change(0, |made| {
        made.qps.retain(|(qpn, _)| *qpn != 17);
        made.left_out = vec![vec![18]];
    });
    let sample = host.poll(false);
    assert_eq!(sample.complete, [0]);
    assert_eq!(
        numbers(&sample, 0),
        [19, 1, 18],
        "17 is gone, 18 was only left out"
    );
    // The dump, and one request for each of the two.
    assert_eq!(host.kernel.asked(cmd::RES_QP_GET).len(), 3);
    assert_eq!(numbers(&host.poll(false), 0), [18, 19, 1]);
    assert_eq!(host.kernel.asked(cmd::RES_QP_GET).len(), 1, "nothing is missing");
}

#[test]
fn after_the_end_of_a_job_a_second_dump_shows_what_is_gone() {
    let mut host = holding(100..400);
    host.kernel.change(0, |made| {
        made.qps.retain(|(qpn, _)| *qpn >= 300);
        made.left_out = vec![vec![300], vec![301]];
    });
    let sample = host.poll(false);
    assert_eq!(sample.complete, [0]);
    let mut shown = numbers(&sample, 0);
    shown.sort_unstable();
    assert_eq!(shown, [1].into_iter().chain(300..400).collect::<Vec<_>>());
    assert_eq!(
        host.kernel.asked(cmd::RES_QP_GET).len(),
        3,
        "two dumps, and 301 alone"
    );
}

#[test]
fn a_dump_that_lacks_most_qps_twice_removes_nothing() {
    let mut host = holding(100..400);
    host.kernel.change(0, |made| {
        made.left_out = vec![(100..200).collect(), (200..400).collect()];
    });
    let sample = host.poll(false);
    assert_eq!(sample.complete, [] as [u32; 0]);
    assert_eq!(host.kernel.asked(cmd::RES_QP_GET).len(), 2);
    assert_eq!(host.poll(false).complete, [0], "all are there again");
}

fn of_counters(host: &mut Host) -> Vec<String> {
    let errors = host.listed().errors.into_iter().map(|error| error.line());
    errors.filter(|line| line.starts_with("counters")).collect()
}

#[test]
fn counters_that_a_driver_withholds_are_reported_unlike_missing_ones() {
    for errno in [libc::EINVAL, libc::EOPNOTSUPP, libc::ENOENT] {
        let mut host = Host::new(1);
        host.kernel.change(0, |made| made.refuses = errno);
        assert_eq!(of_counters(&mut host), [""; 0], "{errno}");
        let mut host = Host::new(1);
        host.kernel.change(0, |made| made.refuses = errno);
        host.files
            .sys("class/infiniband/rxe0/ports/1/hw_counters/sent_pkts", "1\n");
        let errors = of_counters(&mut host);
        assert!(
            errors.len() == 1 && errors[0].starts_with("counters of rxe0 port 1"),
            "{errors:?}"
        );
    }
    let mut host = Host::new(1);
    host.kernel.change(0, |made| made.refuses = libc::EIO);
    assert_eq!(of_counters(&mut host).len(), 1);
}

#[test]
fn a_device_that_sysfs_has_and_netlink_lists_no_more_is_being_removed() {
    let mut host = Host::known(2);
    host.files.sys("class/infiniband_verbs/abi_version", "6\n");
    host.files.proc("231/comm", "ib_send_bw\n").dir("proc/231/fd");
    host.files
        .link("proc/231/fd/3", "/dev/infiniband/uverbs1 (deleted)");
    let gone = host.kernel.0.lock().unwrap().devices.pop();
    let sample = host.listed();
    let shown: Vec<_> = sample
        .devices
        .iter()
        .map(|d| (d.index, &*d.name, d.removing))
        .collect();
    assert_eq!(shown, [(0, "rxe0", false), (1, "rxe1", true)]);
    let note = sample.notes[0].to_string();
    assert!(
        note.contains("rxe1 is being removed") && note.contains("231 (ib_send_bw)"),
        "{note}"
    );
    assert_eq!(sample.errors, []);
    // Only a list shows when the removal is over.
    host.files.remove("sys/class/infiniband/rxe1");
    let sample = host.listed();
    assert_eq!((sample.devices.len(), sample.notes.len()), (1, 0));
    drop(gone);
}

#[test]
fn a_device_whose_removal_began_earlier_is_found_without_its_index() {
    let mut host = Host::new(1);
    host.files.sys("class/infiniband_verbs/abi_version", "6\n");
    host.files.sys("class/infiniband/old/node_type", "1: CA\n");
    let sample = host.listed();
    let shown: Vec<_> = sample
        .devices
        .iter()
        .map(|d| (&*d.name, d.index >= UNLISTED))
        .collect();
    assert_eq!(shown, [("rxe0", false), ("old", true)]);
    assert_eq!(host.listed().devices.len(), 2, "and it stays");
}

#[test]
fn a_device_of_another_network_namespace_is_not_being_removed() {
    let mut host = Host::new(1);
    host.files.sys("class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n");
    host.files.sys("class/infiniband/mlx5_0/node_type", "1: CA\n");
    let sample = host.listed();
    assert_eq!((sample.devices.len(), sample.notes.len()), (1, 0));
}

/// The indexes of devices that were asked for anything of their own since the last call.
fn asked_for(host: &Host) -> BTreeSet<u32> {
    let mut state = host.kernel.0.lock().unwrap();
    let asked = std::mem::take(&mut state.asked);
    asked.into_iter().filter_map(|(_, device)| device).collect()
}

#[test]
fn of_a_device_that_is_left_alone_only_the_kernels_list_tells() {
    let mut host = Host::new(3);
    host.source.present.root = host.files.root().without(Excluded::new(&["rxe1".to_owned()]));
    let mut seen = Vec::new();
    let mut notes = Vec::new();
    for round in 0..4 {
        let wants = Wants {
            round,
            qps: true,
            counters: true,
            repair: round > 1,
            ..Wants::default()
        };
        host.source.poll(&wants, &mut |input| match input {
            Input::Devices(sample) => seen = sample.devices,
            Input::Counters(sample) => assert!(sample.ports.iter().all(|port| port.device_index != 1)),
            Input::Slow(causes) => notes = causes.iter().map(Cause::line).collect(),
            _ => {}
        });
    }
    let mut is_held: Vec<_> = seen
        .iter()
        .map(|reading| (&*reading.name, reading.held, reading.left_alone))
        .collect();
    is_held.sort_unstable();
    assert_eq!(
        is_held,
        [
            ("rxe0", false, false),
            ("rxe1", true, true),
            ("rxe2", false, false)
        ]
    );
    assert_eq!(asked_for(&host), [0, 2].into());
    assert_eq!(notes, ["rxe1: not read, as --exclude-device or the settings say"]);
}

#[test]
fn counters_at_which_a_driver_fails_are_asked_for_no_more() {
    let mut host = Host::known(2);
    assert!(
        counters(&mut host)
            .0
            .iter()
            .all(|counter| counter.value.is_some())
    );
    host.kernel.change(0, |made| made.refuses = libc::EIO);
    let mut notes = Vec::new();
    for _ in 0..4 {
        host.source.listed_ns = None;
        let wants = Wants {
            counters: true,
            ..Wants::default()
        };
        host.source.poll(&wants, &mut |input| {
            if let Input::Slow(causes) = input {
                notes = causes.iter().map(Cause::line).collect();
            }
        });
    }
    assert!(
        notes.len() == 1 && notes[0].contains("rxe0") && notes[0].contains("--exclude-device rxe0,"),
        "{notes:?}"
    );
    host.kernel.asked(0);
    let (read, _) = counters(&mut host);
    assert_eq!(host.kernel.asked(cmd::STAT_GET), [Some(1)], "the neighbour alone");
    assert!(
        !read.is_empty() && read.iter().all(|counter| counter.value.is_none()),
        "known to be unknown: {read:?}"
    );
    // A refusal that says that there are no counters is no failure.
    let mut host = Host::known(1);
    host.kernel.change(0, |made| made.refuses = libc::EOPNOTSUPP);
    for _ in 0..6 {
        host.source.listed_ns = None;
        counters(&mut host);
    }
    assert!(!host.kernel.asked(cmd::STAT_GET).is_empty());
}

#[test]
fn a_log_that_cannot_be_read_is_reported_once() {
    let mut host = Host::known(1);
    host.source.log = Some(DriverLog::of(KernelLog::of(Err(harm::pause("any cause")))));
    let mut reports = 0;
    for _ in 0..3 {
        host.source.poll(&Wants::default(), &mut |input| {
            reports += usize::from(matches!(input, Input::Logged(Err(_))));
        });
    }
    assert_eq!(reports, 1);
}

#[test]
fn where_netlink_alone_fails_the_rest_is_read_and_nothing_listed() {
    let mut host = Host::new(1);
    let port = "class/infiniband/rxe0/ports/1/counters";
    host.files.sys(format!("{port}/port_xmit_discards"), "2\n");
    counters(&mut host);
    host.kernel.change(0, |made| made.refuses = libc::EIO);
    let (_, errors) = counters(&mut host);
    assert!(
        errors.len() == 1 && errors[0].contains("Input/output error"),
        "{errors:?}"
    );
    host.kernel.asked(0);
    for _ in 0..5 {
        let (read, _) = counters(&mut host);
        let values: Vec<_> = read.iter().map(|raw| (&*raw.name, raw.value)).collect();
        assert_eq!(values, [("sent_pkts", None), ("port_xmit_discards", Some(2))]);
    }
    assert_eq!(host.kernel.asked(cmd::GET), []);
    host.kernel.change(0, |made| made.refuses = 0);
    assert_eq!(
        counters(&mut host).0[0].value,
        Some(0),
        "it is asked again in each round"
    );
}

/// A round of counters; returns the notes about devices, where they have changed.
fn noted(host: &mut Host) -> Option<Vec<Cause>> {
    let wants = Wants {
        counters: true,
        ..Wants::default()
    };
    let mut notes = None;
    host.source.poll(&wants, &mut |input| {
        if let Input::Slow(causes) = input {
            notes = Some(causes);
        }
    });
    notes
}

/// A host whose device 0 was read until its counters were left alone.
fn paused() -> Host {
    let mut host = Host::known(1);
    host.kernel.change(0, |made| made.refuses = libc::EIO);
    let notes = (0..4).filter_map(|_| noted(&mut host)).next_back().unwrap();
    assert_eq!(notes, [harm::pause("rxe0")]);
    host
}

#[test]
fn the_pause_of_a_device_that_is_gone_does_not_hold_for_one_of_its_name() {
    let mut host = paused();
    let mut found = DeviceList::default();
    let counts = Summary {
        device_index: 9,
        counts: BTreeMap::new(),
    };
    found.devices.push(("rxe0".into(), counts));
    host.source.present.update(&found, now().mono_ns);
    assert_eq!(host.source.present.entries[0].index, 9);
    assert_eq!(host.source.present.pauses().count(), 0);
    // The modules are unloaded: nothing is said of what there was.
    let mut host = paused();
    let slow = host.source.present.entries[0].id;
    let progress = host
        .source
        .readings
        .schedule
        .ask(Subject::Device(slow), &"rxe0".into(), 0, false);
    progress.enter(schedule::Stage::Counters, 0);
    assert!(
        host.source
            .readings
            .schedule
            .answered(Subject::Device(slow), 2 * schedule::SLOW)
    );
    host.source.readings.device_list = Some(Err(NetlinkError::NoRdma));
    assert_eq!(noted(&mut host), Some(Vec::new()));
}

#[test]
fn a_pause_is_shown_with_its_cause_and_makes_no_wrong_rate() {
    let mut host = Host::new(1);
    let mut engine = Engine::new(EngineConfig::default());
    let mut round = |host: &mut Host, packets: u64| {
        host.kernel.change(0, |made| made.packets = packets);
        thread::sleep(Duration::from_millis(60));
        let wants = Wants {
            counters: true,
            ..Wants::default()
        };
        let begun_ns = now().mono_ns;
        host.source.poll(&wants, &mut |input| {
            engine.apply(input.at(now()));
        });
        (engine.tick(now()), begun_ns)
    };
    round(&mut host, 1000);
    let (seen, last_ns) = round(&mut host, 2000);
    assert!(seen.ports[0].tx_packets.unwrap().rate.is_some());
    host.kernel.change(0, |made| made.refuses = libc::EIO);
    for _ in 0..9 {
        let (seen, _) = round(&mut host, 2500);
        assert_eq!(seen.ports[0].tx_packets, None);
    }
    let (seen, _) = round(&mut host, 2500);
    let missing = seen
        .judgement
        .unobserved
        .iter()
        .filter(|one| one.what == Quantity::WireBytes);
    let causes: Vec<&Cause> = missing.map(|one| &one.cause).collect();
    assert!(
        causes.len() == 1 && causes[0].id == CauseId::CountersPaused && causes[0].line().contains("rxe0"),
        "{causes:?}"
    );
    host.kernel.change(0, |made| made.refuses = 0);
    host.source.present.entries[0].harm = harm::Harm::default();
    let (seen, now_ns) = round(&mut host, 3000);
    let packets = seen.ports[0].tx_packets.unwrap();
    assert_eq!((packets.total, packets.partial), (3000, false));
    let seconds = (now_ns - last_ns) as f64 / 1e9;
    let rate = packets.rate.unwrap();
    assert!(
        (0.8..1.2).contains(&(rate * seconds / 1000.0)),
        "{rate} for {seconds} s"
    );
}

#[test]
fn the_log_is_taken_in_each_round_and_no_critical_line_is_ours() {
    let mut host = Host::known(1);
    let (kernel, file) = UnixDatagram::pair().unwrap();
    file.set_nonblocking(true).unwrap();
    host.source.log = Some(DriverLog::of(KernelLog::of(Ok(file.into()))));
    host.kernel.0.lock().unwrap().log = Some(kernel.try_clone().unwrap());
    let round = |host: &mut Host, wants: Wants| {
        let mut lines = Vec::new();
        host.source.poll(&wants, &mut |input| {
            if let Input::Logged(errors) = input {
                lines.extend(errors.unwrap().into_iter().map(|error| (error.text, error.ours)));
            }
        });
        lines
    };
    let counters = || Wants {
        counters: true,
        ..Wants::default()
    };
    let said = |text: &str, ours: bool| (format!("infiniband rxe0: {text}"), ours);
    host.kernel
        .change(0, |made| made.logs = &["3,;infiniband rxe0: failed"]);
    for _ in 0..2 {
        assert_eq!(round(&mut host, counters()), [said("failed", false)]);
    }
    let logs = &[
        "3,;infiniband rxe0: failed",
        "2,;infiniband rxe0: burns",
        "4,;infiniband rxe0: Fatal error 7 detected",
        "3,;infiniband rxe1: failed",
    ];
    host.kernel.change(0, |made| made.logs = logs);
    let lines = round(&mut host, counters());
    let of_another = ("infiniband rxe1: failed".to_owned(), false);
    let kept = [
        said("burns", false),
        said("Fatal error 7 detected", false),
        of_another,
    ];
    assert_eq!(lines[..1], [said("failed", true)]);
    assert_eq!(lines[1..], kept);
    // Now they are left alone. Whatever is logged is another's, and is taken, whatever the round reads.
    let looks_up = Wants {
        only_processes: true,
        ..Wants::default()
    };
    let light = Wants {
        round: 1,
        ..Wants::default()
    };
    for wants in [counters(), looks_up, light, counters()] {
        kernel.send(b"3,;infiniband rxe0: failed").unwrap();
        assert_eq!(round(&mut host, wants), [said("failed", false)]);
    }
    assert_eq!(host.source.present.pauses().count(), 1);
}

#[test]
fn a_wanted_psn_costs_one_request_and_comes_after_the_counters() {
    let mut host = Host::new(1);
    host.kernel
        .change(0, |made| made.qps = vec![(17, 5), (18, 7), (19, 9)]);
    // A round that lists the device, and one that reads it again. There is no QP 99.
    for round in 0..2 {
        let wants = Wants {
            round,
            counters: true,
            psns: Arc::new([(0, vec![17, 99, 19])].into()),
            ..Wants::default()
        };
        let (mut read, mut counted) = (Vec::new(), false);
        host.source.poll(&wants, &mut |input| match input {
            Input::Devices(_) | Input::Counters(_) => counted = true,
            Input::Psns(psns) => {
                assert!(counted);
                read.extend(psns.iter().map(|qp| (qp.qpn, qp.sq_psn)));
            }
            _ => {}
        });
        assert_eq!(read, [(17, Some(5)), (19, Some(9))]);
        assert_eq!(host.kernel.asked(cmd::RES_QP_GET).len(), 3);
    }
}
