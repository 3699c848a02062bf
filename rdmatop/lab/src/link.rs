//! The little of rtnetlink that the lab needs: dummy interfaces with an address, and cables to a switch, on
//! which packets are lost or overtake others. Layouts: include/uapi/linux/rtnetlink.h, if_link.h, if_addr.h,
//! veth.h, pkt_sched.h.
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{
    IFA_ADDRESS, IFA_LOCAL, IFLA_ADDRESS, IFLA_IFNAME, IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINKINFO,
    IFLA_MASTER, IFLA_MTU, IFLA_NET_NS_FD, RTM_DELLINK, RTM_NEWADDR, RTM_NEWLINK, RTM_NEWQDISC, TCA_KIND,
    TCA_OPTIONS,
};

use super::run::Wire;
use rdmatop_sources::netlink::client::Nldev;
use rdmatop_sources::netlink::error::NetlinkError;
use rdmatop_sources::netlink::request::{Reply, Request};
use rdmatop_sources::netlink::socket::Socket;
use rdmatop_sources::netlink::wire::MessageWriter;

/// `NLM_F_EXCL | NLM_F_CREATE`.
const CREATE: u16 = 0x600;
const IFF_UP: u32 = 1;
const IFLA_BR_MCAST_SNOOPING: u16 = 23;
const VETH_INFO_PEER: u16 = 1;
const TCA_NETEM_REORDER: u16 = 3;
const TCA_NETEM_LATENCY64: u16 = 10;
const TC_H_ROOT: u32 = 0xffff_ffff;
const AF_INET: u8 = 2;
/// Index of the switch in its own network namespace.
const SWITCH: u32 = 1000;
/// Packets that a netem queue holds: the default of tc(8).
const QUEUE: u32 = 1000;

/// `struct ifinfomsg`.
fn ifinfo(index: u32, flags: u32) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend_from_slice(&index.to_ne_bytes());
    bytes.extend_from_slice(&flags.to_ne_bytes());
    // Which flags to change: those that are set.
    bytes.extend_from_slice(&flags.to_ne_bytes());
    bytes
}

fn order(request: &Request) -> Result<(), NetlinkError> {
    Nldev::new(Socket::route()?).order(request)
}

/// Makes a dummy interface with a hardware address, up. udev leaves an address alone that is given here.
pub(super) fn add_dummy(name: &str, address: [u8; 6]) -> Result<(), NetlinkError> {
    order(&Request::new(RTM_NEWLINK, Reply::Ack, CREATE).with(|writer| {
        writer
            .raw(&ifinfo(0, IFF_UP))
            .bytes(IFLA_ADDRESS, &address)
            .string(IFLA_IFNAME, name.as_bytes())
            .nest(IFLA_LINKINFO, |info| info.bytes(IFLA_INFO_KIND, b"dummy"))
    }))
}

/// Gives an interface an IPv4 address of a /24: RoCE v2 takes its GIDs from addresses.
pub(super) fn add_address(index: u32, address: [u8; 4]) -> Result<(), NetlinkError> {
    let mut ifaddr = vec![AF_INET, 24, 0, 0];
    ifaddr.extend_from_slice(&index.to_ne_bytes());
    order(&Request::new(RTM_NEWADDR, Reply::Ack, CREATE).with(|writer| {
        writer
            .raw(&ifaddr)
            .bytes(IFA_LOCAL, &address)
            .bytes(IFA_ADDRESS, &address)
    }))
}

pub(super) fn remove(index: u32) -> Result<(), NetlinkError> {
    order(&Request::new(RTM_DELLINK, Reply::Ack, 0).with(|writer| writer.raw(&ifinfo(index, 0))))
}

/// Makes the switch, in the network namespace of this thread. It floods multicast, by which neighbours are
/// found: nothing there says who listens.
pub(super) fn add_switch() -> Result<(), NetlinkError> {
    order(&Request::new(RTM_NEWLINK, Reply::Ack, CREATE).with(|writer| {
        writer
            .raw(&ifinfo(SWITCH, IFF_UP))
            .string(IFLA_IFNAME, b"switch")
            .nest(IFLA_LINKINFO, |info| {
                info.bytes(IFLA_INFO_KIND, b"bridge")
                    .nest(IFLA_INFO_DATA, |data| data.u8(IFLA_BR_MCAST_SNOOPING, 0))
            })
    }))
}

/// Makes a cable: an interface here, down, and one of the same name in another network namespace.
pub(super) fn add_cable(
    name: &str,
    address: [u8; 6],
    mtu: u32,
    namespace: BorrowedFd<'_>,
) -> Result<(), NetlinkError> {
    let namespace = namespace.as_raw_fd().cast_unsigned();
    order(&Request::new(RTM_NEWLINK, Reply::Ack, CREATE).with(|writer| {
        writer
            .raw(&ifinfo(0, 0))
            .bytes(IFLA_ADDRESS, &address)
            .string(IFLA_IFNAME, name.as_bytes())
            .u32(IFLA_MTU, mtu)
            .nest(IFLA_LINKINFO, |info| {
                info.bytes(IFLA_INFO_KIND, b"veth").nest(IFLA_INFO_DATA, |data| {
                    data.nest(VETH_INFO_PEER, |peer| {
                        peer.raw(&ifinfo(0, 0))
                            .string(IFLA_IFNAME, name.as_bytes())
                            .u32(IFLA_MTU, mtu)
                            .u32(IFLA_NET_NS_FD, namespace)
                    })
                })
            })
    }))
}

/// Plugs a cable into the switch, in the switch's network namespace.
pub(super) fn plug(name: &str) -> Result<(), NetlinkError> {
    order(&Request::new(RTM_NEWLINK, Reply::Ack, 0).with(|writer| {
        writer
            .raw(&ifinfo(0, IFF_UP))
            .string(IFLA_IFNAME, name.as_bytes())
            .u32(IFLA_MASTER, SWITCH)
    }))
}

/// Brings an interface up.
pub(super) fn set_up(index: u32) -> Result<(), NetlinkError> {
    order(&Request::new(RTM_NEWLINK, Reply::Ack, 0).with(|writer| writer.raw(&ifinfo(index, IFF_UP))))
}

/// How long packets that do not overtake wait, ns.
const LATE_NS: u64 = 1_000_000;

/// Disturbs the packets that an interface sends (`tc qdisc add ... netem`).
pub(super) fn disturb(index: u32, wire: Wire) -> Result<(), NetlinkError> {
    order(&Request::new(RTM_NEWQDISC, Reply::Ack, CREATE).with(|writer| {
        // `struct tcmsg`: family, index, handle (the kernel gives one), parent, info.
        let mut tcmsg = vec![0; 4];
        for word in [index, 0, TC_H_ROOT, 0] {
            tcmsg.extend_from_slice(&word.to_ne_bytes());
        }
        writer
            .raw(&tcmsg)
            .string(TCA_KIND, b"netem")
            .nest(TCA_OPTIONS, |options| netem(options, wire))
    }))
}

fn netem(options: MessageWriter, wire: Wire) -> MessageWriter {
    // The kernel takes shares as parts of 2^32.
    let share = |one_in: u32| u32::MAX / one_in.max(1);
    let (loss, gap) = match wire {
        Wire::Clean | Wire::None => (0, 0),
        Wire::Loses(one_in) => (share(one_in), 0),
        // Each packet may overtake.
        Wire::Reorders(_) => (0, 1),
    };
    // `struct tc_netem_qopt`: latency, limit, loss, gap, duplicate, jitter.
    let all = [0, QUEUE, loss, gap, 0, 0];
    let options = options.raw(&all.map(u32::to_ne_bytes).concat());
    let Wire::Reorders(one_in) = wire else {
        return options;
    };
    // `struct tc_netem_reorder`: probability, correlation.
    let reorder = [share(one_in), 0].map(u32::to_ne_bytes).concat();
    options
        .u64(TCA_NETEM_LATENCY64, LATE_NS)
        .bytes(TCA_NETEM_REORDER, &reorder)
}
