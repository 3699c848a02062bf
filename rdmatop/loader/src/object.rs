//! The eBPF objects that build.rs embeds if it can, deflated: two thirds of a megabyte less of program.

use std::io::Read as _;
use std::ops::Deref;

use flate2::read::DeflateDecoder;
use zerocopy::IntoBytes as _;

/// What build.rs has made of an object; `None` in a build without the bpf toolchain.
macro_rules! embedded {
    ($variable:literal) => {{
        #[cfg(ebpf_object)]
        {
            Some(include_bytes!(env!($variable)).as_slice())
        }
        #[cfg(not(ebpf_object))]
        {
            None
        }
    }};
}

static COUNTING: Option<&[u8]> = embedded!("RDMATOP_COUNTING_OBJECT");
static TRACE: Option<&[u8]> = embedded!("RDMATOP_TRACE_OBJECT");

/// An object, at an address that the ELF reader can use.
pub(super) struct Object {
    words: Vec<u64>,
    length: usize,
}

impl Object {
    /// `None` if `embedded` is not what build.rs writes.
    fn of(embedded: &[u8]) -> Option<Self> {
        let (length, deflated) = embedded.split_first_chunk()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let mut words = vec![0_u64; length.div_ceil(size_of::<u64>())];
        let bytes = words.as_mut_bytes().get_mut(..length)?;
        DeflateDecoder::new(deflated).read_exact(bytes).ok()?;
        Some(Self { words, length })
    }
}

impl Deref for Object {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.words.as_bytes().get(..self.length).unwrap_or_default()
    }
}

/// The object of a session that `counts`, which has all programs, or of a trace. That has no programs that
/// count, and its others do not count, so that the kernel loads them with less work.
pub(super) fn of(counts: bool) -> Option<Object> {
    if counts { COUNTING } else { TRACE }.and_then(Object::of)
}

/// Whether this binary carries the objects.
pub fn available() -> bool {
    COUNTING.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_embedded_object_comes_back_and_a_part_of_one_does_not() {
        // Five bytes, stored as they are: RFC 1951, 3.2.4.
        let embedded = [
            5, 0, 0, 0, 0, 0, 0, 0, 1, 5, 0, 0xfa, 0xff, b'h', b'e', b'l', b'l', b'o',
        ];
        assert_eq!(Object::of(&embedded).as_deref(), Some(b"hello".as_slice()));
        for length in 0..embedded.len() {
            assert!(Object::of(&embedded[..length]).is_none(), "cut at {length}");
        }
    }
}
