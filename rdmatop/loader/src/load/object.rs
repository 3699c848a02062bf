//! The eBPF object that build.rs embeds if it can, deflated to a fifth.

use std::{io::Read as _, ops::Deref};

use flate2::read::DeflateDecoder;
use zerocopy::IntoBytes as _;

/// What build.rs has made of the object; `None` in a build without the bpf toolchain.
#[cfg(ebpf_object)]
static EMBEDDED: Option<&[u8]> = Some(include_bytes!(env!("RDMATOP_EBPF_OBJECT")));
#[cfg(not(ebpf_object))]
static EMBEDDED: Option<&[u8]> = None;

/// An uncompressed object, aligned to 8 bytes as the ELF reader requires.
pub(crate) struct Object {
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

pub(crate) fn embedded() -> Option<Object> {
    EMBEDDED.and_then(Object::of)
}

/// Whether this binary carries the object.
pub fn available() -> bool {
    EMBEDDED.is_some()
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
