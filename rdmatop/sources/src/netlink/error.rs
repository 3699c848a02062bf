//! Why a request to the kernel has no answer.
use std::io;

use thiserror::Error;

use super::{name::Name, sample::RequestError, wire::WireError};
use crate::limits;
use rdmatop_model::cause::{CauseId, Obstacle};

/// A failed netlink exchange. The request is added where it is known, in [`RequestError`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NetlinkError {
    /// `socket(AF_NETLINK, SOCK_RAW, NETLINK_RDMA)` said `EPROTONOSUPPORT`: ib_core is not loaded.
    #[error(
        "this kernel has no RDMA subsystem loaded (NETLINK_RDMA: EPROTONOSUPPORT); load a driver, or `modprobe ib_core`"
    )]
    NoRdma,
    /// The socket could not be created.
    #[error("cannot open a netlink socket: {}", os(*errno))]
    Open {
        /// errno.
        errno: i32,
    },
    /// Sending or receiving failed.
    #[error("cannot {action} netlink data: {}", os(*errno))]
    Io {
        /// `send` or `receive`.
        action: &'static str,
        /// errno.
        errno: i32,
    },
    /// No answer came in time (`SO_RCVTIMEO`).
    #[error("no answer from the kernel in {seconds} s")]
    Timeout {
        /// How long rdmatop waited for one datagram.
        seconds: u64,
    },
    /// Data was lost: the socket's queue was full (`ENOBUFS`, `NLMSG_OVERRUN`), or a datagram was larger than
    /// the buffer (`MSG_TRUNC`).
    #[error("a part of the answer was lost: it did not fit the socket's queue or buffer")]
    Overrun,
    /// The kernel refused (`NLMSG_ERROR`).
    #[error("{}{}", os(*errno), words(message.as_ref()))]
    Kernel {
        /// errno.
        errno: i32,
        /// The kernel's own words (extended ack).
        message: Option<Name>,
    },
    /// The answer does not follow the format.
    #[error("malformed answer: {0}")]
    Wire(#[from] WireError),
    /// The answer ended without the message that ends it.
    #[error("the answer ended early")]
    EndedEarly,
    /// The table changed during each dump (`NLM_F_DUMP_INTR`): what the dumps have may not be all.
    #[error("the list changed each time while the kernel sent it, so it may lack something; try again")]
    Interrupted,
}

impl NetlinkError {
    /// The kernel's errno, when it was the kernel that refused.
    pub const fn errno(&self) -> Option<i32> {
        match self {
            Self::Open { errno } | Self::Io { errno, .. } | Self::Kernel { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    /// Whether the exchange came to its end. If not, the rest of it may still arrive on the socket.
    pub const fn is_final(&self) -> bool {
        matches!(self, Self::Kernel { .. } | Self::NoRdma | Self::Open { .. })
    }

    /// The fact that prevents the answer.
    fn obstacle(&self) -> Obstacle {
        let (id, remedy) = match self {
            Self::NoRdma => (CauseId::NoRdmaSubsystem, ""),
            Self::Timeout { .. } => (
                CauseId::NoAnswer,
                "a driver may hold the kernel's RDMA lock, see dmesg",
            ),
            _ => match self.errno() {
                Some(libc::EMFILE | libc::ENFILE) => (CauseId::NoFiles, limits::FILES),
                Some(libc::ENOMEM) => (CauseId::NoMemory, limits::memory()),
                Some(libc::EPERM | libc::EACCES) => (CauseId::NotPermitted, ""),
                _ => (CauseId::ReadFailed, ""),
            },
        };
        Obstacle::new(id, self.to_string(), remedy)
    }

    /// Names the request that failed.
    pub fn of(&self, request: impl Into<Box<str>>) -> RequestError {
        RequestError {
            request: request.into(),
            why: self.obstacle(),
            errno: self.errno(),
        }
    }
}

fn os(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

fn words(message: Option<&Name>) -> String {
    message.map(|words| format!(": {words}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_words_are_shown_and_cannot_drive_the_terminal() {
        let error = NetlinkError::Kernel {
            errno: 1,
            message: Some(Name::from("no\u{1b}[m")),
        };
        let shown = error.of("QPs of rxe0").to_string();
        assert_eq!(
            shown,
            "QPs of rxe0: Operation not permitted (os error 1): no\\x1b[m"
        );
    }
}
