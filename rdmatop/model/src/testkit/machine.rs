//! A machine as its sources report it, second by second: what the engine is given on a real one.

use std::{collections::BTreeSet, sync::Arc};

use rdmatop_common::{
    counters::{QpSlot, VerbErrorKey, VerbKey, VerbStats, bucket, slot_flag},
    event::{DevxRecord, Prefix, QpRecord, Record, UNKNOWN_U8, UNKNOWN_U32, flag, kind},
    verb,
};
use zerocopy::FromZeros as _;

use crate::engine::{Engine, EngineConfig};
use crate::findings::FindingId;
use crate::ib::{Gid, PhysState, PortState, QpState};
use crate::input::{
    Bond, DataPaths, DeviceReading, DevicesSample, EbpfReport, EbpfState, HealthSample, HostFacts, Input,
    LockedMemory, Member, NetdevDown, NetnsReading, Now, PortGid, PortReading, ProbeVerdict, ProcessFacts,
    PsnReading, RawReading, RawSource, ReadAt, SlotsSample, TcpSample, TcpTotals, VerbsSample, Verdict,
};
use crate::snapshot::{Snapshot, may_hide_qps};

const S: u64 = 1_000_000_000;
const WALL: u64 = 1_780_000_000 * S;
/// `reg_mr` as a write command.
pub const REG_MR: u32 = verb::write(9);
/// `dereg_mr`, likewise.
pub const DEREG_MR: u32 = verb::write(13);
/// `devx_obj_create` of mlx5, which makes objects past the kernel.
const DEVX_CREATE: u32 = verb::ioctl(4097, 4096);

/// A counter of a port and how fast it grows.
struct Counting {
    name: &'static str,
    source: RawSource,
    per_s: f64,
    total: f64,
}

struct Nic {
    reading: DeviceReading,
    counters: Vec<Counting>,
}

/// What a QP does in a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Send WRs.
    pub tx: f64,
    /// Bytes of each.
    pub size: f64,
    /// Opcode of each.
    pub opcode: usize,
    /// How many receives end.
    pub rx: f64,
    /// Packets sent again.
    pub again: f64,
    /// RNR waits.
    pub rnr: f64,
    /// Nanoseconds from the post of each to its completion; 0: 180 us.
    pub ns: u64,
}

struct Qp {
    slot: QpSlot,
    counted: bool,
    work: Work,
    /// Packets that it moves each way in a second, and has moved.
    packets: [f64; 2],
    /// Exact totals: send WRs, receives, packets sent again, RNR waits.
    done: [f64; 4],
}

struct Calls {
    pid: u32,
    verb: u32,
    per_s: f64,
    /// How many of a second fail, and with which errno.
    failing: f64,
    errno: u32,
    done: [f64; 2],
}

struct Tcp {
    pid: u32,
    per_s: f64,
    total: f64,
}

/// The machine.
pub struct Machine {
    engine: Engine,
    now: u64,
    nics: Vec<Nic>,
    qps: Vec<Qp>,
    calls: Vec<Calls>,
    tcp: Vec<Tcp>,
    /// Processes start while rdmatop runs.
    starts: bool,
    /// What the last second gave.
    last: Option<Arc<Snapshot>>,
}

/// A value as a counter has it.
pub fn count(value: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "small positive test values"
    )]
    let whole = value as u64;
    whole
}

fn name<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    let room = text.len().min(N - 1);
    bytes[..room].copy_from_slice(&text.as_bytes()[..room]);
    bytes
}

/// 10.0.0.n, as RoCE v2 spells it.
pub fn gid(last: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]
}

impl Machine {
    /// One that has no device yet; eBPF is on.
    pub fn new(hostname: &str, datapath: bool) -> Self {
        let mut machine = Self {
            engine: Engine::new(EngineConfig::default()),
            now: 2_000 * S,
            nics: Vec::new(),
            qps: Vec::new(),
            calls: Vec::new(),
            tcp: Vec::new(),
            starts: false,
            last: None,
        };
        let probe = |n: usize| ProbeVerdict {
            program: format!("p{n}"),
            hook: format!("kprobe:{}", if n == 0 { "ib_uverbs_cmd_verbs" } else { "f" }),
            gives: "events".to_owned(),
            verdict: if n < 21 || datapath {
                Verdict::Ok
            } else {
                Verdict::NotApplicable
            },
            causes: Vec::new(),
        };
        let datapaths = DataPaths::default();
        machine.apply(Input::Ebpf(Box::new(EbpfReport {
            state: EbpfState::On {
                datapaths: if datapath {
                    datapaths.and("rdma_rxe", "kprobe")
                } else {
                    datapaths
                },
            },
            programs: 21,
            follows_qps: true,
            probes: (0..29).map(probe).collect::<Vec<_>>().into(),
            ..EbpfReport::default()
        })));
        machine.apply(Input::Health(Box::new(HealthSample {
            host: HostFacts {
                hostname: Some(hostname.to_owned()),
                kernel: Some("6.12.57".to_owned()),
                uptime_s: Some(86_400 * 3),
            },
            self_cpu: Some(0.004),
            self_rss: Some(18 << 20),
            ..HealthSample::default()
        })));
        machine
    }

    fn at(&self) -> Now {
        Now {
            mono_ns: self.now,
            wall_ns: WALL + self.now,
        }
    }

    fn apply(&mut self, input: Input) {
        let at = self.at();
        self.engine.apply(input.at(at));
    }

    /// A device with one port whose address is 10.0.0.(its number + 1); returns its number.
    pub fn nic(&mut self, device: &str, driver: &str, rate_gb: Option<u64>) -> usize {
        let at = self.nics.len();
        let index = u32::try_from(at).unwrap_or(0);
        let last = u8::try_from(at + 1).unwrap_or(0);
        let hardware = rate_gb.is_some();
        self.nics.push(Nic {
            reading: DeviceReading {
                index,
                name: device.to_owned(),
                node_guid: Some(0x0254_00ff_fe12_3400 + u64::from(last)),
                driver: Some(driver.to_owned()),
                fw_version: hardware.then(|| "28.41.1000".to_owned()),
                pci: hardware.then(|| format!("0000:{:02x}:00.0", 0x18 + at * 8)),
                numa_node: hardware.then(|| i32::from(at > 3)),
                ports: vec![PortReading {
                    number: 1,
                    state: Some(PortState(4)),
                    phys_state: Some(PhysState(5)),
                    link_layer: Some("Ethernet".to_owned()),
                    netdev: Some(format!("eth{at}")),
                    netdev_mtu: Some(if hardware { 9000 } else { 1500 }),
                    rate_bps: rate_gb.map(|gb| gb * S),
                    gids: Some(vec![PortGid {
                        index: 1,
                        gid: Gid(gid(last)),
                        v1: Some(false),
                    }]),
                    ..PortReading::default()
                }],
                ..DeviceReading::default()
            },
            counters: Vec::new(),
        });
        at
    }

    /// How fast a counter of a device's port grows from now on.
    pub fn counter(&mut self, nic: usize, name: &'static str, source: RawSource, per_s: f64) {
        let counters = &mut self.nics[nic].counters;
        if let Some(known) = counters.iter_mut().find(|known| known.name == name) {
            known.per_s = per_s;
            return;
        }
        counters.push(Counting {
            name,
            source,
            per_s,
            // Trouble of long ago is none of today.
            total: if per_s > 0.0 { 0.0 } else { 3.0 },
        });
    }

    /// The port of a device changes its state.
    pub fn port(&mut self, nic: usize, state: u8, phys: u8) {
        let port = &mut self.nics[nic].reading.ports[0];
        (port.state, port.phys_state) = (Some(PortState(state)), Some(PhysState(phys)));
    }

    /// What is under the port of a device carries nothing.
    pub fn netdev_down(&mut self, nic: usize, down: NetdevDown) {
        self.nics[nic].reading.ports[0].netdev_down = Some(down);
    }

    /// The port of a device is of InfiniBand.
    pub fn infiniband(&mut self, nic: usize) {
        let reading = &mut self.nics[nic].reading;
        let port = &mut reading.ports[0];
        (port.link_layer, port.lanes) = (Some("InfiniBand".to_owned()), Some(4));
        (port.netdev, port.netdev_mtu) = (None, None);
        let mut gid = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        gid[8..].copy_from_slice(&reading.node_guid.unwrap_or(0).to_be_bytes());
        port.gids = Some(vec![PortGid {
            index: 0,
            gid: Gid(gid),
            // As sysfs has it.
            v1: Some(true),
        }]);
    }

    /// The port of a device has another rate.
    pub fn rate(&mut self, nic: usize, gb: u64) {
        self.nics[nic].reading.ports[0].rate_bps = Some(gb * S);
    }

    /// The port of a device is over a bond of two links of so many Gb/s.
    pub fn bond(&mut self, nic: usize, links: [&str; 2], gb: u64) {
        let port = &mut self.nics[nic].reading.ports[0];
        port.netdev = Some("bond0".to_owned());
        port.bond = Some(Bond {
            mode: Some("802.3ad".into()),
            members: links
                .map(|name| Member {
                    name: name.into(),
                    up: Some(true),
                    rate_bps: Some(gb * S),
                    ..Member::default()
                })
                .into(),
        });
    }

    /// Processes start from now on while rdmatop runs; before, they ran before it.
    pub fn watch_starts(&mut self) {
        self.starts = true;
    }

    /// A process; `libraries` are those that it has loaded. Without a job it was started in a shell.
    pub fn process(
        &mut self,
        pid: u32,
        cmdline: &str,
        job: Option<&str>,
        libraries: &[&str],
        environ: &[(&str, &str)],
    ) {
        let program = cmdline.split(' ').next().unwrap_or_default();
        let comm = program.rsplit('/').next().unwrap_or_default();
        self.now += u64::from(self.starts);
        let facts = ProcessFacts {
            pid,
            start_ticks: u64::from(pid),
            born_ns: if self.starts { self.now } else { 0 },
            read_ns: self.now,
            comm: Some(comm.chars().take(15).collect()),
            cmdline: Some(cmdline.to_owned()),
            user: Some("train".to_owned()),
            workload: job.filter(|job| !job.starts_with(SERVICE)).map(str::to_owned),
            cgroup: Some(cgroup(job)),
            libraries: Some(libraries.iter().map(|l| (*l).to_owned()).collect()),
            environ: Some(
                environ
                    .iter()
                    .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
                    .collect(),
            ),
            ..ProcessFacts::default()
        };
        self.apply(Input::Process(Box::new(facts)));
    }

    fn record(&mut self, at: usize, comm: &str, of: u16, to: Option<u8>, peer: Option<(u32, u8)>) {
        let slot = &self.qps[at].slot;
        let reading = &self.nics[slot.device_index as usize].reading;
        let (device, hardware) = (&reading.name, reading.pci.is_some());
        // Within a subnet InfiniBand packets have a LID, and no GID.
        let has_gid = reading.ports[0].netdev.is_some();
        let mut prefix = Prefix {
            ts_ns: self.now,
            object: slot.qp,
            kind: of,
            flags: flag::DEVICE | flag::OWNER_TASK | flag::CREATED,
            device: name(device),
            device_index: slot.device_index,
            pid: slot.owner_pid,
            tid: slot.owner_pid,
            owner_pid: slot.owner_pid,
            comm: name(comm),
            owner_comm: name(comm),
            ..Prefix::new_zeroed()
        };
        prefix.duration_ns = if of == kind::QP_MODIFY { 9_000 } else { 0 };
        let record = QpRecord {
            prefix,
            qpn: slot.qpn,
            qp_type: 2,
            attr_mask: u32::from(to.is_some()),
            dest_qpn: peer.map_or(UNKNOWN_U32, |(qpn, _)| qpn),
            rq_psn: UNKNOWN_U32,
            sq_psn: UNKNOWN_U32,
            slot: UNKNOWN_U32,
            event: UNKNOWN_U32,
            from_state: UNKNOWN_U8,
            to_state: to.unwrap_or(UNKNOWN_U8),
            path_mtu: peer.map_or(UNKNOWN_U8, |_| if hardware { 5 } else { 3 }),
            port: 1,
            timeout: UNKNOWN_U8,
            retry_cnt: UNKNOWN_U8,
            rnr_retry: UNKNOWN_U8,
            sgid_index: UNKNOWN_U8,
            dest_gid: peer.filter(|_| has_gid).map_or([0; 16], |(_, last)| gid(last)),
            born_ns: slot.born_ns,
            owner_start_ns: 0,
        };
        self.apply(Input::Records(vec![Record::Qp(record)]));
    }

    /// A QP that a process creates and brings to a state; `peer`: number, and last byte of the address.
    /// Returns its place.
    pub fn qp(
        &mut self,
        nic: usize,
        qpn: u32,
        (pid, comm): (u32, &str),
        state: u8,
        peer: Option<(u32, u8)>,
    ) -> usize {
        let at = self.qps.len();
        let counted = self.nics[nic].reading.driver.as_deref() == Some("rdma_rxe");
        self.now += 1_000_000;
        self.qps.push(Qp {
            slot: QpSlot {
                qp: 0xffff_8880_0000_0000 + at as u64 * 4096,
                born_ns: self.now,
                since_ns: self.now,
                qpn,
                device_index: u32::try_from(nic).unwrap_or(0),
                owner_pid: pid,
                flags: slot_flag::provider::RXE,
                ..QpSlot::new_zeroed()
            },
            counted,
            work: Work::default(),
            packets: [0.0; 2],
            done: [0.0; 4],
        });
        self.record(at, comm, kind::QP_CREATE, None, None);
        for to in 1..=state {
            self.now += 1_000_000;
            self.record(at, comm, kind::QP_MODIFY, Some(to), peer.filter(|_| to == 2));
        }
        at
    }

    /// What a QP does from now on.
    pub fn work(&mut self, qp: usize, work: Work) {
        self.qps[qp].work = work;
    }

    /// How many packets each QP of a process sends and receives in a second from now on, by its PSNs.
    pub fn packets(&mut self, pid: u32, per_s: f64) {
        for qp in self.qps.iter_mut().filter(|qp| qp.slot.owner_pid == pid) {
            qp.packets[0] = per_s;
        }
    }

    fn read_psns(&mut self) {
        for qp in &mut self.qps {
            qp.packets[1] += qp.packets[0];
        }
        let wanted = self.engine.psns();
        let is_wanted = |qp: &&Qp| {
            let numbers = wanted.get(&qp.slot.device_index);
            numbers.is_some_and(|numbers| numbers.contains(&qp.slot.qpn))
        };
        let read = |qp: &Qp| {
            let psn = u32::try_from(count(qp.packets[1]) & 0xff_ffff).ok();
            PsnReading {
                device_index: qp.slot.device_index,
                port: Some(1),
                qpn: qp.slot.qpn,
                state: Some(QpState::RTS),
                sq_psn: psn,
                rq_psn: psn,
                at_ns: self.now,
            }
        };
        let read = self.qps.iter().filter(is_wanted).map(read).collect();
        self.apply(Input::Psns(read));
    }

    /// How often a process calls a verb from now on, and how many of the calls of a second fail.
    pub fn calls(&mut self, pid: u32, verb: u32, per_s: f64, failing: f64, errno: u32) {
        let before = self
            .calls
            .iter()
            .position(|calls| (calls.pid, calls.verb) == (pid, verb));
        let done = before.map_or([0.0; 2], |at| self.calls.remove(at).done);
        self.calls.push(Calls {
            pid,
            verb,
            per_s,
            failing,
            errno,
            done,
        });
    }

    /// A process makes queue pairs past the kernel on a NIC, in calls that were all recorded: what mlx5's
    /// `devx_obj_create` made by its command CREATE_QP.
    pub fn devx_qps(&mut self, (pid, comm): (u32, &str), nic: usize, made: u32) {
        let device_name = self.nics[nic].reading.name.clone();
        for handle in 1..=made {
            self.now += 1_000_000;
            let prefix = Prefix {
                ts_ns: self.now,
                object: 0xffff_8881_0000_0000 + u64::from(pid) * 4096,
                kind: kind::DEVX_CREATE,
                flags: flag::DEVICE | flag::OWNER_TASK | flag::CREATED,
                device: name(&device_name),
                device_index: u32::try_from(nic).unwrap_or(0),
                pid,
                tid: pid,
                owner_pid: pid,
                comm: name(comm),
                owner_comm: name(comm),
                duration_ns: 40_000,
                ..Prefix::new_zeroed()
            };
            self.apply(Input::Records(vec![Record::Devx(DevxRecord {
                prefix,
                handle,
                opcode: 0x500,
                owner_start_ns: 0,
            })]));
        }
        self.calls(pid, DEVX_CREATE, f64::from(made), 0.0, 0);
        self.run(1);
        self.calls(pid, DEVX_CREATE, 0.0, 0.0, 0);
    }

    /// A NIC is in a network namespace of its own: of process `pid`, which belongs to `holder`.
    pub fn netns(&mut self, nic: usize, pid: u32, holder: &str) {
        self.nics[nic].reading.netns = Some(NetnsReading {
            inode: 4_026_532_000 + u64::from(pid),
            pid,
            holder: Some(holder.to_owned()),
        });
    }

    /// How much memory a process may lock, and what drivers hold for it, bytes.
    pub fn locked(&mut self, pid: u32, limit: u64, pinned: u64) {
        self.apply(Input::Locked(vec![LockedMemory {
            pid,
            limit: Some(limit),
            exempt: Some(false),
            pinned: Some(pinned),
        }]));
    }

    /// What a process moves by TCP each way from now on.
    pub fn tcp(&mut self, pid: u32, per_s: f64) {
        self.tcp.push(Tcp {
            pid,
            per_s,
            total: 0.0,
        });
    }

    fn read_devices(&mut self) {
        let at = ReadAt::from(self.now);
        // NCCL opens every NIC.
        let open: BTreeSet<u32> = self.qps.iter().map(|qp| qp.slot.owner_pid).collect();
        let open: Vec<u32> = open.into_iter().collect();
        let devices = self.nics.iter_mut().enumerate().map(|(nic, this)| {
            let hides = may_hide_qps(this.reading.driver.as_deref());
            let mut reading = this.reading.clone();
            let qps = self
                .qps
                .iter()
                .filter(|qp| qp.slot.device_index as usize == nic)
                .count();
            reading.resources.insert("qp".to_owned(), qps as u64);
            reading.contexts = hides.then(|| open.clone());
            for counter in &mut this.counters {
                counter.total += counter.per_s;
            }
            reading.ports[0].counters = this
                .counters
                .iter()
                .map(|counter| RawReading {
                    name: counter.name.into(),
                    value: Some(count(counter.total)),
                    source: counter.source,
                    at,
                })
                .collect();
            reading
        });
        let sample = DevicesSample {
            mono_ns: self.now,
            devices: devices.collect(),
            ..DevicesSample::default()
        };
        self.apply(Input::Devices(Box::new(sample)));
    }

    fn sweep(&mut self) {
        for qp in self.qps.iter_mut().filter(|qp| qp.counted) {
            let Work {
                tx,
                size,
                opcode,
                rx,
                again,
                rnr,
                ns,
            } = qp.work;
            let ns = if ns == 0 { 180_000 } else { ns };
            for (done, more) in qp.done.iter_mut().zip([tx, rx, again, rnr]) {
                *done += more;
            }
            let slot = &mut qp.slot;
            let before = (slot.tx_done, slot.rx_done);
            (slot.tx_done, slot.rx_done) = (count(qp.done[0]), count(qp.done[1]));
            let new = slot.tx_done - before.0;
            let outstanding = 64 * u64::from(tx > 0.0 || again > 0.0 || rnr > 0.0);
            // Counts never fall, also when work stops.
            slot.tx_posted = slot.tx_posted.max(slot.tx_done + outstanding);
            slot.tx_bytes += new * count(size);
            slot.doorbells = slot.tx_done / 8;
            slot.rx_posted = slot.rx_posted.max(slot.rx_done + 512 * u64::from(rx > 0.0));
            slot.rx_bytes += (slot.rx_done - before.1) * count(size);
            slot.cqes = slot.tx_done + slot.rx_done;
            slot.wc[0] = slot.cqes;
            slot.ops[opcode] = slot.tx_done;
            slot.op_bytes[opcode] = slot.tx_bytes;
            (slot.retransmits, slot.rnr_waits) = (count(qp.done[2]), count(qp.done[3]));
            slot.latency[bucket(ns)] += new;
            slot.latency_sum_ns += new * ns;
            let longest = if slot.tx_done > 0 { ns * 23 / 10 } else { 0 };
            slot.latency_max_ns = slot.latency_max_ns.max(longest);
        }
        let slots = self.qps.iter().enumerate().filter(|(_, qp)| qp.counted);
        let slots = slots.map(|(at, qp)| (u32::try_from(at).unwrap_or(0), qp.slot));
        let sample = SlotsSample {
            mono_ns: self.now,
            slots: slots.collect(),
            capacity: 16_384,
            ..SlotsSample::default()
        };
        self.apply(Input::Slots(Box::new(sample)));
    }

    fn count_calls(&mut self) {
        let mut sample = VerbsSample {
            mono_ns: self.now,
            ..VerbsSample::default()
        };
        for calls in &mut self.calls {
            calls.done[0] += calls.per_s;
            calls.done[1] += calls.failing;
            let mut stats = VerbStats {
                calls: count(calls.done[0]),
                errors: count(calls.done[1]),
                ns: count(calls.done[0] * 42_000.0),
                max_ns: 120_000,
                ..VerbStats::new_zeroed()
            };
            stats.hist[bucket(42_000)] = stats.calls;
            let (pid, verb) = (calls.pid, calls.verb);
            sample.verbs.push((VerbKey { pid, verb }, stats));
            if stats.errors > 0 {
                let key = VerbErrorKey {
                    pid,
                    verb,
                    errno: calls.errno,
                    reserved: 0,
                };
                sample.errors.push((key, stats.errors));
            }
        }
        self.apply(Input::Verbs(Box::new(sample)));
    }

    fn look_at_tcp(&mut self) {
        let processes = self.tcp.iter_mut().map(|tcp| {
            tcp.total += tcp.per_s;
            TcpTotals {
                pid: tcp.pid,
                start_ticks: u64::from(tcp.pid),
                moved: [count(tcp.total); 2],
                lately: [count(tcp.per_s); 2],
                connections: 16,
                busiest: Some(([10, 0, 0, 2], 45_001).into()),
            }
        });
        let sample = TcpSample {
            at: self.now.into(),
            before: Some((self.now - S).into()),
            processes: processes.collect(),
            cut: None,
        };
        if !sample.processes.is_empty() {
            self.apply(Input::Tcp(Box::new(sample)));
        }
    }

    /// Lets so many seconds pass.
    pub fn run(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now = (self.now / S + 1) * S;
            self.read_devices();
            self.read_psns();
            self.sweep();
            self.count_calls();
            self.look_at_tcp();
            let at = self.at();
            self.last = Some(self.engine.tick(at));
        }
    }

    /// What the last second found.
    pub fn found(&self) -> Vec<FindingId> {
        let last = self.last.iter().flat_map(|last| last.findings.iter());
        last.map(|finding| finding.id).collect()
    }

    /// What the last second showed.
    pub fn snapshot(mut self) -> Snapshot {
        if self.last.is_none() {
            self.run(1);
        }
        let last = self.last.take();
        last.map_or_else(super::empty, |last| (*last).clone())
    }
}

/// What a service of the system is called in the place of a job.
const SERVICE: &str = "service";

/// The cgroup of a process of such a job.
fn cgroup(job: Option<&str>) -> String {
    let rest = "0".repeat(64);
    match job.and_then(|job| job.split_once(' ')) {
        Some(("container", id)) => format!("/system.slice/docker-{id}{}.scope", &rest[id.len()..]),
        Some(("pod", uid)) => format!(
            "/kubepods.slice/kubepods-pod{}.slice/cri-containerd-{rest}.scope",
            uid.replace('-', "_")
        ),
        Some(("slurm", job)) => {
            let job = job.split('.').next().unwrap_or_default();
            format!("/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0")
        }
        Some((SERVICE, name)) => format!("/system.slice/{name}.service"),
        _ => "/user.slice/user-1000.slice/session-3.scope".to_owned(),
    }
}
