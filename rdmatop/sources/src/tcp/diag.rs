//! TCP connections as sock_diag(7) lists them: the request and the answer's records, no I/O.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::netlink::request::{Reply, Request};
use crate::netlink::wire::{Attrs, WireError, WireResult};

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// `AF_INET` and `AF_INET6`, as the bytes that they are here.
pub(super) const FAMILIES: [u8; 2] = [2, 10];
/// `IPPROTO_TCP`.
const TCP: u8 = 6;
/// Bytes of `struct inet_diag_req_v2`.
const REQUEST: usize = 56;
/// Bytes of `struct inet_diag_msg`; attributes follow.
const RECORD: usize = 72;
/// `INET_DIAG_INFO`: the attribute is a `struct tcp_info`.
const INFO: u16 = 2;
/// `TCP_ESTABLISHED` and `TCP_CLOSE_WAIT`, as bits: connections that may still move bytes.
const STATES: u32 = 1 << 1 | 1 << 8;
/// Offsets of `tcpi_bytes_acked` and `tcpi_bytes_received` in `struct tcp_info` (Linux 4.1 and later).
const BYTES_ACKED: usize = 120;
const BYTES_RECEIVED: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connection {
    /// Unique while the kernel runs.
    pub(super) cookie: u64,
    /// Inode of the socket, as `/proc/PID/fd` names it; 0 when no process has it open.
    pub(super) inode: u32,
    pub(super) user: u32,
    pub(super) local: SocketAddr,
    /// Address of the other end.
    pub(super) remote: SocketAddr,
    /// Bytes that the peer acknowledged.
    pub(crate) sent: u64,
    /// Bytes received in order.
    pub(crate) received: u64,
}

/// Asks for all connections of an address family (`AF_INET`, `AF_INET6`) in our network namespace.
pub(super) fn request(family: u8) -> Request {
    let mut body = vec![family, TCP, 1 << (INFO - 1), 0];
    body.extend(STATES.to_ne_bytes());
    body.resize(REQUEST, 0);
    Request::new(BY_FAMILY, Reply::Dump, 0).with(|writer| writer.raw(&body))
}

fn at<const N: usize>(bytes: &[u8], offset: usize) -> WireResult<[u8; N]> {
    let rest = bytes.get(offset..).and_then(|rest| rest.first_chunk::<N>());
    rest.copied().ok_or(WireError::Length {
        what: "inet_diag_msg",
        length: offset + N,
        left: bytes.len(),
    })
}

/// Reads one record; `None` when it has no counts: the kernel leaves them out for a socket that is just
/// closing.
pub(crate) fn connection(payload: &[u8]) -> WireResult<Option<Connection>> {
    let [family] = at(payload, 0)?;
    let end = |port: usize, address: usize| -> WireResult<SocketAddr> {
        let ip = if family == FAMILIES[0] {
            IpAddr::from(Ipv4Addr::from(at::<4>(payload, address)?))
        } else {
            let ip = Ipv6Addr::from(at::<16>(payload, address)?);
            ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)
        };
        Ok(SocketAddr::new(ip, u16::from_be_bytes(at(payload, port)?)))
    };
    let (local, remote) = (end(4, 8)?, end(6, 24)?);
    let cookie = u64::from_ne_bytes(at(payload, 44)?);
    let [user, inode] = [at(payload, 64)?, at(payload, 68)?].map(u32::from_ne_bytes);
    let attrs = Attrs::new(payload.get(RECORD..).unwrap_or_default());
    let info = attrs.get(INFO, |attr| Ok(attr.payload))?;
    let count = |offset: usize| Some(u64::from_ne_bytes(*info?.get(offset..)?.first_chunk()?));
    let counts = count(BYTES_ACKED).zip(count(BYTES_RECEIVED));
    Ok(counts.map(|(sent, received)| Connection {
        cookie,
        inode,
        user,
        local,
        remote,
        sent,
        received,
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The record of a connection, as Linux 6.12 lays it out.
    fn record(family: u8, info: &[u8]) -> Vec<u8> {
        let mut out = vec![family, 1, 0, 0];
        out.extend(40_000_u16.to_be_bytes());
        out.extend(45_001_u16.to_be_bytes());
        for last in [1, 2] {
            let mut address = [0; 16];
            if family == FAMILIES[0] {
                address[..4].copy_from_slice(&[10, 0, 0, last]);
            } else {
                address[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, last]);
            }
            out.extend(address);
        }
        out.extend(7_u32.to_ne_bytes());
        out.extend(0x1234_5678_9abc_u64.to_ne_bytes());
        out.extend([0; 12]);
        out.extend(1000_u32.to_ne_bytes());
        out.extend(4242_u32.to_ne_bytes());
        out.extend(u16::try_from(info.len() + 4).unwrap().to_ne_bytes());
        out.extend(INFO.to_ne_bytes());
        out.extend(info);
        out
    }

    fn info() -> Vec<u8> {
        let mut info = vec![0; 232];
        info[BYTES_ACKED..][..8].copy_from_slice(&1_000_001_u64.to_ne_bytes());
        info[BYTES_RECEIVED..][..8].copy_from_slice(&77_u64.to_ne_bytes());
        info
    }

    #[test]
    fn a_record_has_both_ends_the_inode_and_both_counts() {
        for family in FAMILIES {
            let read = connection(&record(family, &info())).unwrap().unwrap();
            assert_eq!(read.local.to_string(), "10.0.0.1:40000");
            assert_eq!(read.remote.to_string(), "10.0.0.2:45001");
            assert_eq!(
                (read.cookie, read.user, read.inode),
                (0x1234_5678_9abc, 1000, 4242)
            );
            assert_eq!((read.sent, read.received), (1_000_001, 77));
        }
    }

    #[test]
    fn a_record_without_counts_is_unknown_and_not_zero() {
        assert_eq!(connection(&record(2, &info()[..100])), Ok(None));
        assert_eq!(connection(&record(2, &[])[..RECORD]), Ok(None));
    }

    #[test]
    fn a_request_is_a_dump_of_tcp_with_its_counts() {
        let request = request(2).encode(9);
        assert_eq!(request.len(), 72);
        assert_eq!(request[..4], 72_u32.to_ne_bytes());
        assert_eq!(request[16..20], [2, 6, 2, 0]);
        assert_eq!(request[20..24], (1_u32 << 1 | 1 << 8).to_ne_bytes());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, cut in 0_usize..400) {
            let _ = connection(&bytes);
            let whole = record(10, &info());
            let cut = cut.min(whole.len());
            prop_assert!(connection(&whole[..cut]).is_ok_and(|read| read.is_none()) || connection(&whole[..cut]).is_err() || cut == whole.len());
        }
    }
}
