//! The socket: the only I/O of this module.
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{bind, connect, getsockname, recvfrom, sendto, socket_with};

use super::error::NetlinkError;
use super::transport::{Datagram, Progress, Sink, Transport};

/// How long to wait for one datagram. The kernel answers while it handles the send, so this time passes only
/// when something is badly wrong.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Receive buffer. The kernel makes dump datagrams as large as the largest buffer it has seen, up to 32 KiB.
/// Fewer datagrams cost it less, because for each it scans the table from the start.
const BUFFER: usize = 64 * 1024;

/// A netlink socket. After an exchange that did not end cleanly it is closed, and the next exchange opens
/// another, so that no rest of an answer is taken for a later one.
#[derive(Debug)]
pub struct Socket {
    protocol: Option<Protocol>,
    open: Option<Open>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Open {
    fd: OwnedFd,
    portid: u32,
}

impl Socket {
    /// A socket to RDMA netlink. [`NetlinkError::NoRdma`] where ib_core is not loaded.
    pub fn rdma() -> Result<Self, NetlinkError> {
        Self::unopened().opened()
    }

    /// A socket to rtnetlink.
    pub fn route() -> Result<Self, NetlinkError> {
        // NETLINK_ROUTE is 0, which rustix spells as no protocol.
        Self::new(None).opened()
    }

    /// A socket to sock_diag.
    pub fn sock_diag() -> Result<Self, NetlinkError> {
        Self::new(Some(rustix::net::netlink::SOCK_DIAG)).opened()
    }

    /// A socket to RDMA netlink that its first exchange opens.
    pub fn unopened() -> Self {
        Self::new(Some(rustix::net::netlink::RDMA))
    }

    fn new(protocol: Option<Protocol>) -> Self {
        Self {
            protocol,
            open: None,
            buffer: vec![0; BUFFER],
        }
    }

    fn opened(mut self) -> Result<Self, NetlinkError> {
        self.open = Some(Open::new(self.protocol)?);
        Ok(self)
    }
}

impl Open {
    fn new(protocol: Option<Protocol>) -> Result<Self, NetlinkError> {
        Self::with_errno(protocol).map_err(|errno| match errno {
            Errno::PROTONOSUPPORT => NetlinkError::NoRdma,
            errno => NetlinkError::Open {
                errno: errno.raw_os_error(),
            },
        })
    }

    fn with_errno(protocol: Option<Protocol>) -> Result<Self, Errno> {
        let fd = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        set_socket_timeout(&fd, Timeout::Recv, Some(RECEIVE_TIMEOUT))?;
        // Both only improve errors (the kernel's words; no echo of the request), so neither is required.
        let _ = set_netlink_option(&fd, libc::NETLINK_EXT_ACK);
        let _ = set_netlink_option(&fd, libc::NETLINK_CAP_ACK);
        bind(&fd, &SocketAddrNetlink::new(0, 0))?;
        let portid = SocketAddrNetlink::try_from(getsockname(&fd)?)?.pid();
        // From then on the kernel alone can send to it (`netlink_getsockbyportid`, net/netlink/af_netlink.c):
        // in a network namespace of a user's, his datagrams could keep an exchange from ever ending.
        connect(&fd, &SocketAddrNetlink::new(0, 0))?;
        Ok(Self { fd, portid })
    }

    fn exchange(&self, buffer: &mut [u8], request: &[u8], sink: &mut Sink<'_>) -> Result<(), NetlinkError> {
        let kernel = SocketAddrNetlink::new(0, 0);
        retry_on_intr(|| sendto(&self.fd, request, SendFlags::empty(), &kernel))
            .map_err(|errno| failed("send", errno))?;
        loop {
            // With MSG_TRUNC the kernel returns the datagram's full length, however much of it fitted.
            let (_, received, sender) =
                retry_on_intr(|| recvfrom(&self.fd, &mut buffer[..], RecvFlags::TRUNC))
                    .map_err(|errno| failed("receive", errno))?;
            let from_kernel = sender
                .and_then(|address| SocketAddrNetlink::try_from(address).ok())
                .is_some_and(|address| address.pid() == 0);
            if !from_kernel {
                continue;
            }
            let bytes = buffer.get(..received).ok_or(NetlinkError::Overrun)?;
            if sink(Datagram {
                portid: self.portid,
                bytes,
            })? == Progress::Complete
            {
                return Ok(());
            }
        }
    }
}

fn failed(action: &'static str, errno: Errno) -> NetlinkError {
    match errno {
        Errno::AGAIN => NetlinkError::Timeout {
            seconds: RECEIVE_TIMEOUT.as_secs(),
        },
        Errno::NOBUFS => NetlinkError::Overrun,
        errno => NetlinkError::Io {
            action,
            errno: errno.raw_os_error(),
        },
    }
}

/// Switches a boolean option of level `SOL_NETLINK` on; rustix has none of them.
fn set_netlink_option(fd: &impl AsFd, option: libc::c_int) -> Result<(), Errno> {
    let on: libc::c_int = 1;
    let size = libc::socklen_t::try_from(size_of_val(&on)).map_err(|_| Errno::INVAL)?;
    // SAFETY: the descriptor is open for as long as `fd` is borrowed; the value is a live c_int and `size` is
    // its size, as netlink(7) asks for these options; the kernel only reads it.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            libc::SOL_NETLINK,
            option,
            (&raw const on).cast(),
            size,
        )
    };
    if rc == 0 { Ok(()) } else { Err(Errno::NOPROTOOPT) }
}

impl Transport for Socket {
    fn exchange(&mut self, request: &[u8], sink: &mut Sink<'_>) -> Result<(), NetlinkError> {
        let open = match self.open.take() {
            Some(open) => open,
            None => Open::new(self.protocol)?,
        };
        let result = open.exchange(&mut self.buffer, request, sink);
        if result.as_ref().err().is_none_or(NetlinkError::is_final) {
            self.open = Some(open);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_but_the_kernel_can_send_to_it() {
        let ours = Open::new(None).unwrap();
        let other = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        bind(&other, &SocketAddrNetlink::new(0, 0)).unwrap();
        let to = SocketAddrNetlink::new(ours.portid, 0);
        let sent = sendto(&other, &[0; 64], SendFlags::empty(), &to);
        // Who is not root may not send to a program at all.
        assert!(matches!(sent, Err(Errno::CONNREFUSED | Errno::PERM)), "{sent:?}");
    }
}
