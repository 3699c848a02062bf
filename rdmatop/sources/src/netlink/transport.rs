//! The seam between requests and the kernel: a socket, or recorded bytes.
use super::error::NetlinkError;

/// One received datagram.
#[derive(Debug, Clone, Copy)]
pub struct Datagram<'a> {
    /// Port id of the socket that received it: messages to any other are not ours.
    pub portid: u32,
    /// The messages.
    pub bytes: &'a [u8],
}

/// Whether the receiver needs more datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The answer goes on.
    More,
    /// The answer is complete.
    Complete,
}

/// Receives datagrams until the answer is complete.
pub type Sink<'a> = dyn FnMut(Datagram<'_>) -> Result<Progress, NetlinkError> + 'a;

/// Sends a request and hands every datagram that follows to a sink.
pub trait Transport {
    /// Runs one exchange: until `sink` returns [`Progress::Complete`] or anything fails.
    fn exchange(&mut self, request: &[u8], sink: &mut Sink<'_>) -> Result<(), NetlinkError>;
}
