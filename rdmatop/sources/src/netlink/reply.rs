//! Follows one answer, message by message, to its end.
use super::request::{Reply, Request};
use super::transport::{Datagram, Progress};
use super::wire::{
    Attrs, DONE, ERROR, F_DUMP_INTR, MIN_TYPE, Message, Messages, OVERRUN, Status, WireResult,
};
use super::{error::NetlinkError, name::Name};

/// State of an answer that is being read.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    reply: Reply,
    seq: u32,
    /// The kernel reported that the table changed during the dump.
    pub interrupted: bool,
}

impl Answer {
    /// Expects the answer to `request`, sent with `seq`.
    pub const fn new(request: &Request, seq: u32) -> Self {
        Self {
            reply: request.reply,
            seq,
            interrupted: false,
        }
    }

    /// Reads one datagram and hands each record's payload to `record`.
    pub fn read(
        &mut self,
        datagram: Datagram<'_>,
        record: &mut dyn FnMut(Attrs<'_>) -> WireResult<()>,
    ) -> Result<Progress, NetlinkError> {
        for message in Messages::new(datagram.bytes) {
            let message = message?;
            // A late answer to an abandoned request, or one to another socket, must not be taken for ours.
            if message.seq != self.seq || message.portid != datagram.portid {
                continue;
            }
            self.interrupted |= message.flags & F_DUMP_INTR != 0;
            if self.step(&message, record)? == Progress::Complete {
                return Ok(Progress::Complete);
            }
        }
        Ok(Progress::More)
    }

    fn step(
        &mut self,
        message: &Message<'_>,
        record: &mut dyn FnMut(Attrs<'_>) -> WireResult<()>,
    ) -> Result<Progress, NetlinkError> {
        match message.kind {
            OVERRUN => Err(NetlinkError::Overrun),
            ERROR => ended(Status::from_error(message)?),
            DONE => ended(Status::from_done(message)?),
            // The type is not compared with the request's: port records come as RDMA_NLDEV_CMD_GET from
            // nldev_port_get_doit, and rtnetlink answers GET with NEW. Sequence number and port id decide.
            kind if kind >= MIN_TYPE => {
                record(Attrs::new(message.payload))?;
                Ok(if self.reply == Reply::One {
                    Progress::Complete
                } else {
                    Progress::More
                })
            }
            // NOOP, and what a kernel to come may send.
            _ => Ok(Progress::More),
        }
    }
}

fn ended(status: Status) -> Result<Progress, NetlinkError> {
    if status.errno == 0 {
        return Ok(Progress::Complete);
    }
    let message = status.message.map(|words| Name::from(&*words));
    Err(NetlinkError::Kernel {
        errno: status.errno,
        message,
    })
}
