//! Requests to nldev, as bytes.
use super::attr::{DEV_INDEX, PORT_INDEX, message_type};
use super::wire::{F_ACK, F_DUMP, F_REQUEST, MessageWriter};

/// How the answer to a request ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// One record. No acknowledgement is requested: it would cost one more receive.
    One,
    /// Many records, closed by `NLMSG_DONE`.
    Dump,
    /// An acknowledgement alone (`NLMSG_ERROR` with number 0).
    Ack,
}

/// A request without its sequence number.
#[derive(Debug, Clone)]
pub struct Request {
    /// How the answer ends.
    pub reply: Reply,
    writer: MessageWriter,
}

impl Request {
    /// Asks nldev `command`.
    pub fn nldev(command: u16, reply: Reply) -> Self {
        Self::new(message_type(command), reply, 0)
    }

    /// A request of any kind; `extra` flags are added to those that `reply` needs.
    pub fn new(kind: u16, reply: Reply, extra: u16) -> Self {
        let flags = F_REQUEST
            | extra
            | match reply {
                Reply::One => 0,
                Reply::Dump => F_DUMP,
                Reply::Ack => F_ACK,
            };
        Self {
            reply,
            writer: MessageWriter::new(kind, flags, 0),
        }
    }

    /// Adds the device that the request is about.
    #[must_use]
    pub fn device(self, index: u32) -> Self {
        self.with(|writer| writer.u32(DEV_INDEX, index))
    }

    /// Adds the port that the request is about.
    #[must_use]
    pub fn port(self, port: u32) -> Self {
        self.with(|writer| writer.u32(PORT_INDEX, port))
    }

    /// Adds attributes.
    #[must_use]
    pub fn with(mut self, write: impl FnOnce(MessageWriter) -> MessageWriter) -> Self {
        self.writer = write(self.writer);
        self
    }

    /// The finished message.
    pub fn encode(&self, seq: u32) -> Vec<u8> {
        self.writer.clone().seq(seq).finish()
    }
}
