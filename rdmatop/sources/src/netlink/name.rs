//! Names that come from the kernel and are chosen by people.
//!
//! The kernel accepts any byte but NUL in a device name (`rdma dev set DEV name ...`): `/`, ESC, newline and
//! broken UTF-8 were all seen. The bytes are kept as they are (sysfs paths need them), and every way to print
//! them escapes.
use std::fmt::{self, Write as _};

use rdmatop_base::text::is_unsafe;

/// A name as the kernel gave it. [`Display`](fmt::Display) is safe for a terminal: it escapes backslashes and
/// what [`rdmatop_base::text::sanitize`] escapes, reversibly.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Name(Box<[u8]>);

impl Name {
    /// The raw bytes, for paths and comparison.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The directory of this device under /sys/class/infiniband: sysfs writes `!` for `/`
    /// (`kobject_set_name_vargs`, lib/kobject.c).
    pub fn sysfs_bytes(&self) -> Vec<u8> {
        self.0
            .iter()
            .map(|&byte| if byte == b'/' { b'!' } else { byte })
            .collect()
    }

    /// Reads back what [`Display`](fmt::Display) wrote; `None` when it is not such a text.
    pub fn unescape(text: &str) -> Option<Self> {
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('\\') {
            bytes.extend_from_slice(&rest.as_bytes()[..at]);
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix('\\') {
                bytes.push(b'\\');
                rest = after;
            } else if let Some(after) = rest.strip_prefix('x') {
                bytes.push(u8::from_str_radix(after.get(..2)?, 16).ok()?);
                rest = after.get(2..)?;
            } else {
                let after = rest.strip_prefix("u{")?;
                let (digits, after) = after.split_once('}')?;
                let char = char::from_u32(u32::from_str_radix(digits, 16).ok()?)?;
                bytes.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
                rest = after;
            }
        }
        bytes.extend_from_slice(rest.as_bytes());
        Some(Self(bytes.into()))
    }
}

impl From<&[u8]> for Name {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().into())
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other.as_bytes()
    }
}

impl PartialEq<&str> for Name {
    fn eq(&self, other: &&str) -> bool {
        *self.0 == *other.as_bytes()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::with_capacity(self.0.len());
        for chunk in self.0.utf8_chunks() {
            for char in chunk.valid().chars() {
                match char {
                    '\\' => out.push_str("\\\\"),
                    c if c.is_ascii_control() => write!(out, "\\x{:02x}", u32::from(c))?,
                    c if is_unsafe(c) => write!(out, "\\u{{{:x}}}", u32::from(c))?,
                    c => out.push(c),
                }
            }
            for byte in chunk.invalid() {
                write!(out, "\\x{byte:02x}")?;
            }
        }
        f.pad(&out)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_escape_sequence_and_a_newline_cannot_reach_the_terminal() {
        let name = Name::from("rxe\u{1b}[2J\n\u{202e}0");
        assert_eq!(name.to_string(), "rxe\\x1b[2J\\x0a\\u{202e}0");
    }

    #[test]
    fn what_draws_nothing_on_its_own_is_visible_too() {
        let name = Name::from("rxe\u{7ef}0\u{301}\u{3164}");
        assert_eq!(name.to_string(), "rxe\\u{7ef}0\\u{301}\\u{3164}");
    }

    #[test]
    fn a_slash_becomes_an_exclamation_mark_in_sysfs_only() {
        let name = Name::from("foo/bar");
        assert_eq!(name.sysfs_bytes(), b"foo!bar");
        assert_eq!(name.to_string(), "foo/bar");
    }

    #[test]
    fn invalid_utf8_is_kept_byte_by_byte() {
        let name = Name::from(&b"a\xff\\b"[..]);
        assert_eq!(name.to_string(), "a\\xff\\\\b");
    }

    proptest! {
        #[test]
        fn display_is_printable_and_reversible(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let name = Name::from(&bytes[..]);
            let text = name.to_string();
            prop_assert!(!text.chars().any(is_unsafe));
            prop_assert_eq!(Name::unescape(&text), Some(name));
        }

        #[test]
        fn unescape_takes_any_text_without_panic(text in ".*") {
            let _ = Name::unescape(&text);
        }
    }
}
