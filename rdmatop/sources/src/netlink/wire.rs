//! Netlink messages and attributes over byte slices: reading and writing, no I/O, no `unsafe`.
//!
//! Layout: include/uapi/linux/netlink.h. All numbers are in host byte order, everything is aligned to 4.
//! Reading trusts nothing: a length that does not fit is a [`WireError`], never a panic and never a made-up
//! value; callers skip unknown attributes.
use thiserror::Error;

use super::attr::attribute_name;

/// Bytes of `struct nlmsghdr`.
pub const MESSAGE_HEADER: usize = 16;
/// Bytes of `struct nlattr`.
pub const ATTR_HEADER: usize = 4;

/// `NLM_F_REQUEST`.
pub const F_REQUEST: u16 = 0x01;
/// `NLM_F_MULTI`: more messages of this reply follow, the last is [`DONE`].
pub const F_MULTI: u16 = 0x02;
/// `NLM_F_ACK`: answer success too.
pub const F_ACK: u16 = 0x04;
/// `NLM_F_DUMP_INTR`: the table changed while it was dumped.
pub const F_DUMP_INTR: u16 = 0x10;
/// `NLM_F_DUMP` (`ROOT | MATCH`), a request flag.
pub const F_DUMP: u16 = 0x300;
/// `NLM_F_CAPPED`: the error message does not repeat the request's payload.
pub const F_CAPPED: u16 = 0x100;
/// `NLM_F_ACK_TLVS`: attributes follow the error (extended ack).
pub const F_ACK_TLVS: u16 = 0x200;

/// `NLMSG_MIN_TYPE`: types below are netlink's own.
pub const MIN_TYPE: u16 = 0x10;
/// `NLMSG_ERROR`: an error, or with number 0 an acknowledgement.
pub const ERROR: u16 = 2;
/// `NLMSG_DONE`: end of a dump.
pub const DONE: u16 = 3;
/// `NLMSG_OVERRUN`: data was lost.
pub const OVERRUN: u16 = 4;

/// `NLMSGERR_ATTR_MSG`: the kernel's own words about an error.
pub const EXTACK_MESSAGE: u16 = 1;

/// `NLA_TYPE_MASK`: an attribute's type without the nested and byte-order flags.
const TYPE_MASK: u16 = 0x3fff;
/// `NLA_F_NESTED`.
const F_NESTED: u16 = 0x8000;

/// Bytes that do not fit the netlink format. Each variant names what did not fit.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WireError {
    /// A structure, or a length field, that does not fit its surroundings.
    #[error("{what} cannot have {length} bytes where {left} are left")]
    Length {
        /// The structure.
        what: &'static str,
        /// Its bytes, or the value of the length field.
        length: usize,
        /// Bytes there are.
        left: usize,
    },
    /// An attribute of a size its type does not have.
    #[error("attribute {number} ({}) has {have} bytes, its type has {need}", attribute_name(*.number))]
    AttrSize {
        /// Attribute number.
        number: u16,
        /// Bytes of its type.
        need: usize,
        /// Bytes it has.
        have: usize,
    },
    /// A record without the attribute that identifies it.
    #[error("{record} record without attribute {number} ({})", attribute_name(*.number))]
    Missing {
        /// Which record.
        record: &'static str,
        /// The attribute that is required.
        number: u16,
    },
}

impl WireError {
    /// For a record without the attribute that identifies it.
    pub const fn missing(record: &'static str, number: u16) -> Self {
        Self::Missing { record, number }
    }
}

/// Result of reading bytes.
pub type WireResult<T> = Result<T, WireError>;

#[inline]
fn take<const N: usize>(bytes: &[u8], at: usize, what: &'static str) -> WireResult<[u8; N]> {
    let left = bytes.len().saturating_sub(at);
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk::<N>())
        .copied()
        .ok_or(WireError::Length {
            what,
            length: N,
            left,
        })
}

/// Rounds up to the next multiple of 4 (`NLMSG_ALIGN`, `NLA_ALIGN`).
const fn align(length: usize) -> usize {
    length.saturating_add(3) & !3
}

/// One netlink message of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_flags`.
    pub flags: u16,
    /// `nlmsg_seq`: of the request that is answered.
    pub seq: u32,
    /// `nlmsg_pid`: port id of the socket that is answered.
    pub portid: u32,
    /// What follows the header.
    pub payload: &'a [u8],
}

/// The messages of one datagram. The iteration ends after an error.
#[derive(Debug, Clone)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    /// Reads `datagram`.
    pub const fn new(datagram: &'a [u8]) -> Self {
        Self { rest: datagram }
    }

    fn read(&mut self) -> WireResult<Message<'a>> {
        let what = "message header";
        let header: [u8; MESSAGE_HEADER] = take(self.rest, 0, what)?;
        let length = u32::from_ne_bytes(take(&header, 0, what)?) as usize;
        let payload = self.rest.get(MESSAGE_HEADER..length).ok_or(WireError::Length {
            what: "message",
            length,
            left: self.rest.len(),
        })?;
        self.rest = self.rest.get(align(length)..).unwrap_or_default();
        Ok(Message {
            kind: u16::from_ne_bytes(take(&header, 4, what)?),
            flags: u16::from_ne_bytes(take(&header, 6, what)?),
            seq: u32::from_ne_bytes(take(&header, 8, what)?),
            portid: u32::from_ne_bytes(take(&header, 12, what)?),
            payload,
        })
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = WireResult<Message<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let message = self.read();
        if message.is_err() {
            self.rest = &[];
        }
        Some(message)
    }
}

/// One attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr<'a> {
    /// Type without flags.
    pub number: u16,
    /// Value without padding.
    pub payload: &'a [u8],
}

impl<'a> Attr<'a> {
    #[inline]
    fn exactly<const N: usize>(&self) -> WireResult<[u8; N]> {
        match self.payload.try_into() {
            Ok(bytes) => Ok(bytes),
            Err(_) => Err(self.not_of_size(N)),
        }
    }

    /// Not inlined: the caller runs for ten attributes of each of ten thousand records, and none comes here.
    #[cold]
    fn not_of_size(&self, need: usize) -> WireError {
        WireError::AttrSize {
            number: self.number,
            need,
            have: self.payload.len(),
        }
    }

    /// An `NLA_U8`.
    #[inline]
    pub fn u8(&self) -> WireResult<u8> {
        self.exactly::<1>().map(|[byte]| byte)
    }

    /// An `NLA_U32`.
    #[inline]
    pub fn u32(&self) -> WireResult<u32> {
        self.exactly().map(u32::from_ne_bytes)
    }

    /// An `NLA_U64`.
    #[inline]
    pub fn u64(&self) -> WireResult<u64> {
        self.exactly().map(u64::from_ne_bytes)
    }

    /// Bytes of an `NLA_NUL_STRING` up to its NUL. A string without NUL was cut: an error.
    pub fn string(&self) -> WireResult<&'a [u8]> {
        self.payload
            .iter()
            .position(|&byte| byte == 0)
            .map(|end| &self.payload[..end])
            .ok_or_else(|| self.not_of_size(self.payload.len() + 1))
    }

    /// A string made by the kernel, for display; bytes that are not UTF-8 become U+FFFD.
    pub fn text(&self) -> WireResult<Box<str>> {
        self.string().map(|bytes| String::from_utf8_lossy(bytes).into())
    }

    /// The attributes inside a nest.
    pub const fn nest(&self) -> Attrs<'a> {
        Attrs::new(self.payload)
    }
}

/// A run of attributes. The iteration ends after an error.
#[derive(Debug, Clone)]
pub struct Attrs<'a> {
    rest: &'a [u8],
}

impl<'a> Attrs<'a> {
    /// Reads `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been read yet: of a family with a header of its own, that comes first.
    pub const fn bytes(&self) -> &'a [u8] {
        self.rest
    }

    /// What `read` makes of the attribute `number`, of the last one where there are several. Fails where any
    /// attribute is malformed. Each call walks the whole run: a record of which a dump has thousands is read
    /// in one walk of its own.
    pub fn get<R>(&self, number: u16, read: impl Fn(&Attr<'a>) -> WireResult<R>) -> WireResult<Option<R>> {
        let mut found = None;
        for attr in self.clone() {
            let attr = attr?;
            if attr.number == number {
                found = Some(read(&attr)?);
            }
        }
        Ok(found)
    }

    /// As [`get`](Self::get), of an attribute that a record of the kind `record` has to have.
    pub fn need<R>(
        &self,
        record: &'static str,
        number: u16,
        read: impl Fn(&Attr<'a>) -> WireResult<R>,
    ) -> WireResult<R> {
        self.get(number, read)?.ok_or(WireError::missing(record, number))
    }

    /// The attributes inside the nest `number`; none without it.
    pub fn nested(&self, number: u16) -> WireResult<Self> {
        let nest = self.get(number, |attr| Ok(attr.nest()))?;
        Ok(nest.unwrap_or(Self::new(&[])))
    }

    /// What is wrong with the attribute at the front.
    #[cold]
    fn broken(&mut self) -> WireError {
        let rest = std::mem::take(&mut self.rest);
        match take::<ATTR_HEADER>(rest, 0, "attribute header") {
            Err(error) => error,
            Ok([l0, l1, ..]) => WireError::Length {
                what: "attribute",
                length: usize::from(u16::from_ne_bytes([l0, l1])),
                left: rest.len(),
            },
        }
    }
}

impl<'a> Iterator for Attrs<'a> {
    type Item = WireResult<Attr<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.rest;
        if rest.is_empty() {
            return None;
        }
        if let Some(&[l0, l1, k0, k1]) = rest.first_chunk::<ATTR_HEADER>() {
            let length = usize::from(u16::from_ne_bytes([l0, l1]));
            if let Some(payload) = rest.get(ATTR_HEADER..length) {
                self.rest = rest.get(align(length)..).unwrap_or_default();
                return Some(Ok(Attr {
                    number: u16::from_ne_bytes([k0, k1]) & TYPE_MASK,
                    payload,
                }));
            }
        }
        Some(Err(self.broken()))
    }
}

/// What an `NLMSG_ERROR` or `NLMSG_DONE` message carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Positive errno; 0 is success.
    pub errno: i32,
    /// The kernel's words (`NLMSGERR_ATTR_MSG`), when it gave any.
    pub message: Option<Box<str>>,
}

impl Status {
    /// Reads the payload of an `NLMSG_ERROR`: `struct nlmsgerr`, then perhaps the request's payload, then
    /// perhaps extended-ack attributes.
    pub fn from_error(message: &Message<'_>) -> WireResult<Self> {
        let errno = Self::errno(message.payload, "error message")?;
        let what = "request repeated in an error";
        let inner_length = u32::from_ne_bytes(take(message.payload, 4, what)?) as usize;
        let _: [u8; MESSAGE_HEADER] = take(message.payload, 4, what)?;
        let skip = if message.flags & F_CAPPED == 0 {
            align(inner_length)
        } else {
            MESSAGE_HEADER
        };
        Self::with_words(errno, message, 4 + skip)
    }

    /// Reads the payload of an `NLMSG_DONE`: the dump's result, then perhaps extended-ack attributes. Old
    /// kernels' empty payload is success.
    pub fn from_done(message: &Message<'_>) -> WireResult<Self> {
        if message.payload.is_empty() {
            return Ok(Self {
                errno: 0,
                message: None,
            });
        }
        let errno = Self::errno(message.payload, "end of dump")?;
        Self::with_words(errno, message, 4)
    }

    /// Adds the kernel's words, where the payload has them from `at` on.
    fn with_words(errno: i32, message: &Message<'_>, at: usize) -> WireResult<Self> {
        let rest = message.payload.get(at..).unwrap_or_default();
        let has_words = message.flags & F_ACK_TLVS != 0;
        let words = Attrs::new(if has_words { rest } else { &[] });
        let message = words.get(EXTACK_MESSAGE, Attr::text)?;
        Ok(Self { errno, message })
    }

    fn errno(payload: &[u8], what: &'static str) -> WireResult<i32> {
        let number = i32::from_ne_bytes(take(payload, 0, what)?);
        // A dump may end with a positive count of bytes, which is no error.
        Ok(number.checked_neg().map_or(i32::MAX, |errno| errno.max(0)))
    }
}

/// Writes one message: header, payload, attributes. Lengths are filled in by [`finish`](Self::finish).
#[derive(Debug, Clone)]
#[must_use]
pub struct MessageWriter {
    bytes: Vec<u8>,
}

impl MessageWriter {
    /// Starts a message; port id 0, as requests have it.
    pub fn new(kind: u16, flags: u16, seq: u32) -> Self {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend_from_slice(&0_u32.to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&seq.to_ne_bytes());
        bytes.extend_from_slice(&0_u32.to_ne_bytes());
        Self { bytes }
    }

    /// Sets `nlmsg_seq`.
    pub fn seq(mut self, seq: u32) -> Self {
        self.bytes[8..12].copy_from_slice(&seq.to_ne_bytes());
        self
    }

    /// Sets `nlmsg_pid`, for messages of a made-up kernel.
    pub fn portid(mut self, portid: u32) -> Self {
        self.bytes[12..16].copy_from_slice(&portid.to_ne_bytes());
        self
    }

    /// Adds bytes that are not an attribute, padded to 4 (a family's own header).
    pub fn raw(mut self, payload: &[u8]) -> Self {
        self.bytes.extend_from_slice(payload);
        self.pad();
        self
    }

    /// Adds an attribute of any bytes. A payload over 65531 bytes does not fit and is left out.
    pub fn bytes(mut self, number: u16, payload: &[u8]) -> Self {
        if let Ok(length) = u16::try_from(ATTR_HEADER + payload.len()) {
            self.bytes.extend_from_slice(&length.to_ne_bytes());
            self.bytes.extend_from_slice(&number.to_ne_bytes());
            self.bytes.extend_from_slice(payload);
            self.pad();
        }
        self
    }

    /// Adds an `NLA_U8`.
    pub fn u8(self, number: u16, value: u8) -> Self {
        self.bytes(number, &[value])
    }

    /// Adds an `NLA_U32`.
    pub fn u32(self, number: u16, value: u32) -> Self {
        self.bytes(number, &value.to_ne_bytes())
    }

    /// Adds an `NLA_U64`.
    pub fn u64(self, number: u16, value: u64) -> Self {
        self.bytes(number, &value.to_ne_bytes())
    }

    /// Adds an `NLA_NUL_STRING`.
    pub fn string(self, number: u16, value: &[u8]) -> Self {
        let mut payload = value.to_vec();
        payload.push(0);
        self.bytes(number, &payload)
    }

    /// Adds a nest: what `fill` writes becomes its content. A content over 65531 bytes does not fit and is
    /// left out with its nest.
    pub fn nest(mut self, number: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; ATTR_HEADER]);
        let mut inner = fill(self);
        if let Ok(length) = u16::try_from(inner.bytes.len() - start) {
            inner.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
            inner.bytes[start + 2..start + 4].copy_from_slice(&(number | F_NESTED).to_ne_bytes());
        } else {
            inner.bytes.truncate(start);
        }
        inner
    }

    fn pad(&mut self) {
        self.bytes.resize(align(self.bytes.len()), 0);
    }

    /// The finished message.
    pub fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.bytes[..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes
    }
}
