//! Requests to nldev, one method each.
use std::collections::BTreeMap;

use super::attr::{
    DEV_INDEX, DEV_NAME, LINK_TYPE, NDEV_NAME, RES_CM_ID, RES_CM_ID_ENTRY, RES_CM_IDN, RES_CTX,
    RES_CTX_ENTRY, RES_CTXN, RES_LQPN, RES_PD, RES_PD_ENTRY, RES_PDN, RES_RAW, cmd,
};
use super::record::{Device, Entry, Mr, NetnsMode, Owned, Port, Qp, Summary, visit_counters};
use super::request::{Reply, Request};
use super::transport::{Datagram, Transport};
use super::wire::{Attr, Attrs, WireResult};
use super::{error::NetlinkError, name::Name, reply::Answer, sample::Dump, socket::Socket};
use rdmatop_base::order::Gather as _;

/// How often rdmatop asks for a dump that the kernel flags as interrupted. The last keeps its flag.
const DUMP_ATTEMPTS: usize = 2;
/// Ports of a device: their number has eight bits in InfiniBand.
const MOST_PORTS: u32 = 255;

/// The RDMA device interface of netlink (nldev).
///
/// A device's index changes when it is added again. For an index that is gone the kernel answers `EINVAL`,
/// or, for a dump, an `NLMSG_DONE` that carries it (5.10 to 7.2). A device that is removed during its dump
/// may still leave a short list, so a caller that misses QPs of a device asks [`devices`](Self::devices)
/// again.
#[derive(Debug)]
pub struct Nldev<T> {
    transport: T,
    seq: u32,
}

impl Nldev<Socket> {
    /// Opens the interface.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self::new(Socket::rdma()?))
    }

    /// The interface, which its first request opens.
    pub fn unopened() -> Self {
        Self::new(Socket::unopened())
    }
}

impl<T: Transport> Nldev<T> {
    /// Speaks through `transport`.
    pub const fn new(transport: T) -> Self {
        Self { transport, seq: 0 }
    }

    /// The transport, to read what it recorded.
    pub fn into_transport(self) -> T {
        self.transport
    }

    /// Sends `request`, hands each record to `record`, and returns whether the dump was interrupted.
    pub fn run(
        &mut self,
        request: &Request,
        record: &mut dyn FnMut(Attrs<'_>) -> WireResult<()>,
    ) -> Result<bool, NetlinkError> {
        // 0 is what unsolicited messages carry.
        self.seq = self.seq.checked_add(1).unwrap_or(1);
        let mut answer = Answer::new(request, self.seq);
        let message = request.encode(self.seq);
        let mut sink = |datagram: Datagram<'_>| answer.read(datagram, record);
        self.transport.exchange(&message, &mut sink)?;
        Ok(answer.interrupted)
    }

    pub(super) fn one<R>(
        &mut self,
        request: &Request,
        mut decode: impl FnMut(&Attrs<'_>) -> WireResult<R>,
    ) -> Result<R, NetlinkError> {
        let mut found = None;
        self.run(request, &mut |attrs| {
            found = Some(decode(&attrs)?);
            Ok(())
        })?;
        found.ok_or(NetlinkError::EndedEarly)
    }

    /// Dumps; `decode` adds the objects of one message. Of objects with the same `identity` the last is kept.
    fn dump<R>(
        &mut self,
        request: &Request,
        decode: impl Fn(Attrs<'_>, &mut Vec<R>) -> WireResult<()>,
        identity: impl Fn(&R) -> Option<u64>,
    ) -> Result<Dump<R>, NetlinkError> {
        let mut dump = Dump::default();
        for _ in 0..DUMP_ATTEMPTS {
            let mut items = Vec::new();
            let interrupted = self.run(request, &mut |attrs| decode(attrs, &mut items))?;
            dump = Dump {
                items: without_duplicates(items, &identity),
                interrupted,
            };
            if !interrupted {
                break;
            }
        }
        Ok(dump)
    }

    /// Dumps messages of one record each.
    fn records<R>(
        &mut self,
        request: &Request,
        decode: impl Fn(&Attrs<'_>) -> WireResult<R>,
        index: impl Fn(&R) -> u32,
    ) -> Result<Dump<R>, NetlinkError> {
        let decode = |attrs: Attrs<'_>, out: &mut Vec<R>| {
            out.push(decode(&attrs)?);
            Ok(())
        };
        self.dump(request, decode, |record| Some(index(record).into()))
    }

    /// Every device visible in our network namespace.
    pub fn devices(&mut self) -> Result<Dump<Device>, NetlinkError> {
        let request = Request::nldev(cmd::GET, Reply::Dump);
        self.records(&request, Device::decode, |device| device.index)
    }

    /// Every port of a device.
    pub fn ports(&mut self, device: u32) -> Result<Dump<Port>, NetlinkError> {
        let request = Request::nldev(cmd::PORT_GET, Reply::Dump).device(device);
        self.records(&request, Port::decode, |port| port.port)
    }

    /// One port. Cheaper than [`ports`](Self::ports): a dump needs one more receive.
    pub fn port(&mut self, device: u32, port: u32) -> Result<Port, NetlinkError> {
        self.one(
            &Request::nldev(cmd::PORT_GET, Reply::One)
                .device(device)
                .port(port),
            Port::decode,
        )
    }

    /// How many of each resource a device holds.
    pub fn summary(&mut self, device: u32) -> Result<Summary, NetlinkError> {
        self.one(
            &Request::nldev(cmd::RES_GET, Reply::One)
                .device(device)
                .driver_types(),
            Summary::decode,
        )
    }

    /// Name and resource counts of every device: per device a third cheaper than [`summary`](Self::summary),
    /// but from Linux 6.10 on without queue pairs of a driver's own types.
    ///
    /// This lists devices without asking any driver. [`devices`](Self::devices) makes each driver report its
    /// firmware version (`ib_get_device_fw_str`), and waits for one that sleeps.
    pub fn named_summaries(&mut self) -> Result<Dump<(Name, Summary)>, NetlinkError> {
        let request = Request::nldev(cmd::RES_GET, Reply::Dump);
        let decode = |attrs: &Attrs<'_>| {
            let name = attrs.need("summary", DEV_NAME, Attr::string)?;
            Ok((Name::from(name), Summary::decode(attrs)?))
        };
        self.records(&request, decode, |(_, summary)| summary.device_index)
    }

    /// One device.
    pub fn device(&mut self, device: u32) -> Result<Device, NetlinkError> {
        self.one(
            &Request::nldev(cmd::GET, Reply::One).device(device),
            Device::decode,
        )
    }

    /// Hands each hardware counter of a port to `visit` by its raw name. A driver without any gives an error
    /// (`EINVAL`). It allocates nothing, because rdmatop reads these every second.
    pub fn each_counter(
        &mut self,
        device: u32,
        port: u32,
        visit: &mut dyn FnMut(&[u8], u64),
    ) -> Result<(), NetlinkError> {
        let request = Request::nldev(cmd::STAT_GET, Reply::One)
            .device(device)
            .port(port);
        let found = self.one(&request, |attrs| visit_counters(attrs, &mut *visit))?;
        found.then_some(()).ok_or(NetlinkError::EndedEarly)
    }

    /// In which network namespaces devices are seen.
    pub fn netns_mode(&mut self) -> Result<Option<NetnsMode>, NetlinkError> {
        self.one(&Request::nldev(cmd::SYS_GET, Reply::One), NetnsMode::decode)
    }

    pub(super) fn entries<E: Entry>(&mut self, request: &Request) -> Result<Dump<E>, NetlinkError> {
        let decode = |attrs: Attrs<'_>, out: &mut Vec<E>| each_entry(attrs, &mut |entry| out.push(entry));
        self.dump(request, decode, E::identity)
    }

    /// Queue pairs of a device.
    pub fn qps(&mut self, device: u32) -> Result<Dump<Qp>, NetlinkError> {
        self.entries(
            &Request::nldev(Qp::COMMAND, Reply::Dump)
                .device(device)
                .driver_types(),
        )
    }

    /// Like [`qps`](Self::qps), but hands each QP to `visit` as it arrives, so that ten thousand need no
    /// list. A QP may come twice. `None` marks the beginning of a dump, also of a repeated one. Returns
    /// whether the last dump was interrupted.
    pub fn each_qp(&mut self, device: u32, visit: &mut dyn FnMut(Option<Qp>)) -> Result<bool, NetlinkError> {
        let request = Request::nldev(Qp::COMMAND, Reply::Dump)
            .device(device)
            .driver_types();
        let mut interrupted = false;
        for _ in 0..DUMP_ATTEMPTS {
            visit(None);
            interrupted = self.run(&request, &mut |attrs| {
                each_entry(attrs, &mut |qp| visit(Some(qp)))
            })?;
            if !interrupted {
                break;
            }
        }
        Ok(interrupted)
    }

    /// One queue pair by its number; `None` when it does not exist, is not visible in our PID namespace, or
    /// has no port yet.
    ///
    /// The kernel refuses a request without a port (`res_get_common_doit`), and answers EAGAIN for the port
    /// of another QP, so each port is asked for in turn.
    pub fn qp(&mut self, device: u32, lqpn: u32) -> Result<Option<Qp>, NetlinkError> {
        for port in 1..=MOST_PORTS {
            let request = Request::nldev(Qp::COMMAND, Reply::One)
                .device(device)
                .port(port)
                .with(|writer| writer.u32(RES_LQPN, lqpn));
            match self.one(&request, |attrs| Qp::decode(attrs.clone())) {
                Err(NetlinkError::Kernel { errno, .. }) if errno == libc::ENOENT => return Ok(None),
                Err(NetlinkError::Kernel { errno, .. }) if errno == libc::EAGAIN => {}
                // EINVAL: there is no such port. For port 1 it means that there is no such device.
                Err(NetlinkError::Kernel { errno, .. }) if errno == libc::EINVAL && port > 1 => break,
                answer => return answer.map(Some),
            }
        }
        Ok(None)
    }

    /// What the firmware has of a queue pair of a port, in the driver's own format: of mlx5 one command of
    /// the firmware. It is empty where that did not fit the driver's buffer. Needs `CAP_NET_ADMIN`, also when
    /// the socket was opened (`netlink_capable`).
    pub fn raw_qp(&mut self, device: u32, port: u32, lqpn: u32) -> Result<Vec<u8>, NetlinkError> {
        let request = Request::nldev(cmd::RES_QP_GET_RAW, Reply::One)
            .device(device)
            .port(port)
            .with(|writer| writer.u32(RES_LQPN, lqpn));
        let raw = |attrs: &Attrs<'_>| attrs.get(RES_RAW, |attr| Ok(attr.payload.to_vec()));
        match self.one(&request, raw) {
            // `dump_rsc` of mlx5 returns 1 in place of an errno.
            Err(NetlinkError::EndedEarly) => Ok(Vec::new()),
            answer => Ok(answer?.unwrap_or_default()),
        }
    }

    /// Memory regions of a device.
    pub fn mrs(&mut self, device: u32) -> Result<Dump<Mr>, NetlinkError> {
        self.entries(&Request::nldev(Mr::COMMAND, Reply::Dump).device(device))
    }

    /// Connection-manager ids of a device.
    pub fn cm_ids(&mut self, device: u32) -> Result<Dump<Owned>, NetlinkError> {
        let entry = [RES_CM_ID, RES_CM_ID_ENTRY, RES_CM_IDN];
        self.owned(cmd::RES_CM_ID_GET, device, entry)
    }

    /// Protection domains of a device.
    pub fn pds(&mut self, device: u32) -> Result<Dump<Owned>, NetlinkError> {
        self.owned(cmd::RES_PD_GET, device, [RES_PD, RES_PD_ENTRY, RES_PDN])
    }

    /// User contexts of a device. Linux 5.10 answers `EINVAL`.
    pub fn ctxs(&mut self, device: u32) -> Result<Dump<Owned>, NetlinkError> {
        self.owned(cmd::RES_CTX_GET, device, [RES_CTX, RES_CTX_ENTRY, RES_CTXN])
    }

    /// Objects of which only the owner is of interest, by the attributes of their table, of an entry and of
    /// the id.
    fn owned(
        &mut self,
        command: u16,
        device: u32,
        [table, entry, id]: [u16; 3],
    ) -> Result<Dump<Owned>, NetlinkError> {
        let request = Request::nldev(command, Reply::Dump).device(device);
        let decode = |attrs: Attrs<'_>, out: &mut Vec<Owned>| {
            each_nest(attrs, table, entry, &mut |attrs| {
                out.push(Owned::decode(&attrs, id)?);
                Ok(())
            })
        };
        self.dump(&request, decode, |owned| owned.id.map(u64::from))
    }

    /// Creates software device `name` of `kind` (`rxe`, `siw`) on `netdev`. Needs `CAP_NET_ADMIN`; the kernel
    /// loads the driver if it can (`nldev_newlink`).
    pub fn new_link(&mut self, name: &[u8], kind: &[u8], netdev: &[u8]) -> Result<(), NetlinkError> {
        let request = Request::nldev(cmd::NEWLINK, Reply::Ack).with(|writer| {
            writer
                .string(DEV_NAME, name)
                .string(LINK_TYPE, kind)
                .string(NDEV_NAME, netdev)
        });
        self.order(&request)
    }

    /// Removes a software device. Needs `CAP_NET_ADMIN`. While a process holds the device open this blocks
    /// uninterruptibly in the kernel (`ib_uverbs_remove_one`): look for holders first.
    pub fn del_link(&mut self, device: u32) -> Result<(), NetlinkError> {
        let request = Request::nldev(cmd::DELLINK, Reply::Ack).with(|writer| writer.u32(DEV_INDEX, device));
        self.order(&request)
    }
}

/// Hands each entry of a message to `visit`.
fn each_entry<E: Entry>(attrs: Attrs<'_>, visit: &mut impl FnMut(E)) -> WireResult<()> {
    each_nest(attrs, E::TABLE, E::ENTRY, &mut |attrs| {
        visit(E::decode(attrs)?);
        Ok(())
    })
}

/// Hands each nest of number `entry` in those of number `table` to `visit`.
fn each_nest(
    attrs: Attrs<'_>,
    table: u16,
    entry: u16,
    visit: &mut impl FnMut(Attrs<'_>) -> WireResult<()>,
) -> WireResult<()> {
    for attr in attrs {
        let attr = attr?;
        if attr.number == table {
            for nest in attr.nest() {
                let nest = nest?;
                if nest.number == entry {
                    visit(nest.nest())?;
                }
            }
        }
    }
    Ok(())
}

/// Keeps one object for each identity, its last reading, in the order of identities.
fn without_duplicates<R>(items: Vec<R>, identity: &impl Fn(&R) -> Option<u64>) -> Vec<R> {
    // The kernel lists most tables in the order of their ids: QPs are as many as to make that count (G2).
    let ids = items.iter().map(&identity);
    if ids.is_sorted_by(|one, next| one.is_some() && one < next) {
        return items;
    }
    let (known, mut kept): (Vec<R>, Vec<R>) = items.into_iter().partition(|item| identity(item).is_some());
    let known: BTreeMap<Option<u64>, R> = known.into_iter().map(|item| (identity(&item), item)).gather();
    kept.extend(known.into_values());
    kept
}
