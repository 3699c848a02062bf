//! Exchanges over RDMA netlink kept as bytes: to test against real kernels' answers, and to report a wrong
//! reading.
//!
//! File format, all numbers little-endian: the 8 bytes `rdmanl\x00\x01`, then frames. A frame is a kind byte,
//! a `u32` length and that many bytes. Kinds: `#` a comment (UTF-8), `>` a request (`u32` port id of the
//! socket, then the message), `<` a datagram received for the request before it. Messages inside are in the
//! byte order of the machine that recorded.
use crate::netlink::{
    attr::DRIVER_DETAILS,
    error::NetlinkError,
    transport::{Datagram, Progress, Sink, Transport},
    wire::{MESSAGE_HEADER, MessageWriter},
};

const MAGIC: &[u8; 8] = b"rdmanl\x00\x01";

/// One request and what came back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exchange {
    /// Port id of the socket that asked.
    pub portid: u32,
    /// The request.
    pub request: Vec<u8>,
    /// Datagrams received, in order.
    pub datagrams: Vec<Vec<u8>>,
}

/// Exchanges in the order they happened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recording {
    /// A comment: what was recorded.
    pub comment: String,
    /// The exchanges.
    pub exchanges: Vec<Exchange>,
}

impl Recording {
    /// Writes the file format.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        let mut frame = |kind: u8, parts: &[&[u8]]| {
            let length: usize = parts.iter().map(|part| part.len()).sum();
            out.push(kind);
            out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
            for part in parts {
                out.extend_from_slice(part);
            }
        };
        frame(b'#', &[self.comment.as_bytes()]);
        for exchange in &self.exchanges {
            frame(b'>', &[&exchange.portid.to_le_bytes(), &exchange.request]);
            exchange
                .datagrams
                .iter()
                .for_each(|datagram| frame(b'<', &[datagram]));
        }
        out
    }

    /// Reads the file format; `None` for what is no recording of this version, or has a frame that does not
    /// fit.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(MAGIC)?;
        let mut recording = Self::default();
        while let Some((&kind, after)) = rest.split_first() {
            let (length, after) = after.split_first_chunk::<4>()?;
            let length = u32::from_le_bytes(*length) as usize;
            let (body, after) = after.split_at_checked(length)?;
            match kind {
                b'#' => recording.comment.push_str(&String::from_utf8_lossy(body)),
                b'>' => {
                    let (portid, request) = body.split_first_chunk::<4>()?;
                    let portid = u32::from_le_bytes(*portid);
                    recording.exchanges.push(Exchange {
                        portid,
                        request: request.to_vec(),
                        datagrams: Vec::new(),
                    });
                }
                b'<' => recording.exchanges.last_mut()?.datagrams.push(body.to_vec()),
                _ => return None,
            }
            rest = after;
        }
        Some(recording)
    }
}

/// A transport that records the exchanges of another.
#[derive(Debug)]
pub struct Recorder<T> {
    inner: T,
    /// The exchanges so far.
    pub recording: Recording,
}

impl<T> Recorder<T> {
    /// Records what passes through `inner`.
    pub fn new(inner: T) -> Self {
        Self {
            inner,
            recording: Recording::default(),
        }
    }
}

impl<T: Transport> Transport for Recorder<T> {
    fn exchange(&mut self, request: &[u8], sink: &mut Sink<'_>) -> Result<(), NetlinkError> {
        let mut exchange = Exchange {
            request: request.to_vec(),
            ..Exchange::default()
        };
        let result = self.inner.exchange(request, &mut |datagram| {
            exchange.portid = datagram.portid;
            exchange.datagrams.push(datagram.bytes.to_vec());
            sink(datagram)
        });
        self.recording.exchanges.push(exchange);
        result
    }
}

/// A transport that answers from a recording.
///
/// A request gets the answer of the first unused recorded request that equals it except for the sequence
/// number, or of the last such one when all are used. The answer gets the new request's sequence number. What
/// was recorded before requests asked for a driver's own types of queue pairs is taken for the answer to one
/// that does: SoftRoCE has no such types.
#[derive(Debug)]
pub struct Replay {
    recording: Recording,
    used: Vec<bool>,
}

impl Replay {
    /// Answers from `recording`.
    pub fn new(recording: Recording) -> Self {
        let used = vec![false; recording.exchanges.len()];
        Self { recording, used }
    }
}

const SEQ: std::ops::Range<usize> = 8..12;

fn same_but_seq(one: &[u8], other: &[u8]) -> bool {
    let asks_for_types = MessageWriter::new(0, 0, 0).u8(DRIVER_DETAILS, 1).finish();
    let types = asks_for_types.get(MESSAGE_HEADER..).unwrap_or_default();
    // The length, which comes first, is that of the rest.
    let rest = |request| {
        let rest = <[u8]>::get(request, SEQ.end..)?;
        Some(rest.strip_suffix(types).unwrap_or(rest))
    };
    one.get(4..SEQ.start) == other.get(4..SEQ.start) && rest(one) == rest(other)
}

/// Moves messages numbered `from` to `to`, as far as the datagram is well formed.
fn renumber(datagram: &mut [u8], from: &[u8], to: &[u8]) {
    let mut at = 0;
    while let Some(message) = datagram.get_mut(at..) {
        let Some(length) = message
            .first_chunk()
            .map(|length| u32::from_ne_bytes(*length) as usize)
        else {
            return;
        };
        if let Some(seq) = message.get_mut(SEQ).filter(|seq| **seq == *from) {
            seq.copy_from_slice(to);
        }
        if length < MESSAGE_HEADER {
            return;
        }
        at = at.saturating_add(length.saturating_add(3) & !3);
    }
}

impl Transport for Replay {
    fn exchange(&mut self, request: &[u8], sink: &mut Sink<'_>) -> Result<(), NetlinkError> {
        let matching = |(_, exchange): &(usize, &Exchange)| same_but_seq(&exchange.request, request);
        let exchanges = || self.recording.exchanges.iter().enumerate().filter(matching);
        let found = exchanges()
            .find(|(at, _)| !self.used[*at])
            .or_else(|| exchanges().next_back());
        let Some((at, exchange)) = found else {
            return Err(NetlinkError::EndedEarly);
        };
        let (Some(from), Some(to)) = (exchange.request.get(SEQ), request.get(SEQ)) else {
            return Err(NetlinkError::EndedEarly);
        };
        self.used[at] = true;
        for datagram in &exchange.datagrams {
            let mut bytes = datagram.clone();
            renumber(&mut bytes, from, to);
            if sink(Datagram {
                portid: exchange.portid,
                bytes: &bytes,
            })? == Progress::Complete
            {
                return Ok(());
            }
        }
        Err(NetlinkError::EndedEarly)
    }
}
