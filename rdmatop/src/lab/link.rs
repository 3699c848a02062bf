//! The little of rtnetlink that the lab needs: dummy interfaces with an address. Layouts:
//! include/uapi/linux/rtnetlink.h, if_link.h, if_addr.h.
use crate::source::netlink::client::Nldev;
use crate::source::netlink::error::NetlinkError;
use crate::source::netlink::request::{Reply, Request};
use crate::source::netlink::socket::Socket;

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
/// `NLM_F_EXCL | NLM_F_CREATE`.
const CREATE: u16 = 0x600;
const IFF_UP: u32 = 1;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const AF_INET: u8 = 2;

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
    Nldev::new(Socket::route()?)
        .run(request, &mut |_| Ok(()))
        .map(|_| ())
}

/// Makes a dummy interface with a hardware address, up. An address that is given is one that udev leaves alone.
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

/// Removes an interface.
pub(super) fn remove(index: u32) -> Result<(), NetlinkError> {
    order(&Request::new(RTM_DELLINK, Reply::Ack, 0).with(|writer| writer.raw(&ifinfo(index, 0))))
}
