//! The floor of all tools: one request to RDMA netlink whose answer is received and discarded.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use anyhow::{Context as _, Result, ensure};

use crate::cpu::least_of;

const NETLINK_RDMA: i32 = 20;
/// `RDMA_NL_NLDEV << 10`, to which the command's number is added (include/uapi/rdma/rdma_netlink.h).
const NLDEV: u16 = 5 << 10;
const GET: u16 = NLDEV + 1;
const PORT_GET: u16 = NLDEV + 5;
const QP_GET: u16 = NLDEV + 10;
const STAT_GET: u16 = NLDEV + 17;
const DEV_INDEX: u16 = 1;
const PORT_INDEX: u16 = 3;
const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Keeps a dump cheap: the kernel starts over at each receive and fills at most this much.
const BUFFER: usize = 64 << 10;
const RUNS: u32 = 5;

/// Costs in instructions.
pub(crate) struct Floor {
    /// Counters of one port.
    pub(crate) stat: f64,
    /// State of one port.
    pub(crate) port: f64,
    /// All devices.
    pub(crate) devices: f64,
    /// All QPs of device 0.
    pub(crate) qps: f64,
}

/// Measures on the first device: the least of a few runs.
pub(crate) fn measure() -> Result<Floor> {
    let socket = Socket::open()?;
    let mut buffer = vec![0_u8; BUFFER];
    let index = socket.first_device(&mut buffer)?;
    let port = [(DEV_INDEX, index), (PORT_INDEX, 1)];
    let mut cost = |kind, flags, attributes: &[(u16, u32)]| {
        least_of(RUNS, || socket.ask(kind, flags, attributes, &mut buffer))
    };
    Ok(Floor {
        stat: cost(STAT_GET, 0, &port)?,
        port: cost(PORT_GET, 0, &port)?,
        devices: cost(GET, DUMP, &[])?,
        qps: cost(QP_GET, DUMP, &port[..1])?,
    })
}

struct Socket(OwnedFd);

impl Socket {
    fn open() -> Result<Self> {
        // SAFETY: only numbers are passed.
        let fd = unsafe {
            libc::socket(
                libc::AF_NETLINK,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC,
                NETLINK_RDMA,
            )
        };
        ensure!(fd >= 0, "netlink socket: {}", io::Error::last_os_error());
        // SAFETY: the descriptor was just opened and has no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn send(&self, kind: u16, flags: u16, attributes: &[(u16, u32)]) -> Result<()> {
        let mut message = Vec::new();
        let length = u32::try_from(16 + 8 * attributes.len())?;
        message.extend(length.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((REQUEST | flags).to_ne_bytes());
        message.extend([0; 8]);
        for (attribute, value) in attributes {
            message.extend(8_u16.to_ne_bytes());
            message.extend(attribute.to_ne_bytes());
            message.extend(value.to_ne_bytes());
        }
        // SAFETY: the buffer lives during the call.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
        ensure!(sent >= 0, "netlink send: {}", io::Error::last_os_error());
        Ok(())
    }

    fn receive(&self, buffer: &mut [u8]) -> Result<usize> {
        // SAFETY: the kernel writes at most the buffer's length.
        let got = unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        usize::try_from(got).map_err(|_| anyhow::anyhow!("netlink receive: {}", io::Error::last_os_error()))
    }

    /// Sends a request and receives the whole answer: one message, or all messages before DONE.
    fn ask(&self, kind: u16, flags: u16, attributes: &[(u16, u32)], buffer: &mut [u8]) -> Result<()> {
        self.send(kind, flags, attributes)?;
        loop {
            let got = self.receive(buffer)?;
            let first = u16_at(buffer, 4)
                .filter(|_| got >= 16)
                .context("a short answer")?;
            ensure!(
                first != ERROR,
                "nldev refused command {}: errno {}",
                kind - NLDEV,
                u32_at(buffer, 16).unwrap_or_default().wrapping_neg()
            );
            if flags & DUMP == 0 || first == DONE {
                return Ok(());
            }
        }
    }

    /// Returns the index of the first listed device.
    fn first_device(&self, buffer: &mut [u8]) -> Result<u32> {
        self.send(GET, DUMP, &[])?;
        let got = self.receive(buffer)?;
        let end = (u32_at(buffer, 0).unwrap_or_default() as usize).min(got);
        let mut found = None;
        let mut at = 16;
        while at + 8 <= end {
            let length = usize::from(u16_at(buffer, at).unwrap_or_default());
            if u16_at(buffer, at + 2) == Some(DEV_INDEX) {
                found = u32_at(buffer, at + 4);
            }
            at += length.max(4).next_multiple_of(4);
        }
        while u16_at(buffer, 4) != Some(DONE) {
            self.receive(buffer)?;
        }
        found.context("no RDMA device")
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..at + 2)
        .and_then(|part| part.try_into().ok())
        .map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..at + 4)
        .and_then(|part| part.try_into().ok())
        .map(u32::from_ne_bytes)
}
