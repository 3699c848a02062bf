//! Names that come from the kernel and are chosen by people.
//!
//! The kernel accepts any byte but NUL in a device name (`rdma dev set DEV name ...`): `/`, ESC, newline and
//! broken UTF-8 were all seen. The bytes are kept as they are (sysfs paths need them), and every way to print
//! them makes them safe.
use std::fmt;

use rdmatop_base::text;

/// A name as the kernel gave it. [`Display`](fmt::Display) is safe for a terminal ([`text::sanitize`]).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Name(Box<[u8]>);

impl Name {
    /// The raw bytes, for paths and comparison.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
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
        f.pad(&text::sanitize(&self.0))
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
    fn invalid_utf8_is_kept_byte_by_byte() {
        let name = Name::from(&b"a\xff\\b"[..]);
        assert_eq!(name.to_string(), "a\\xff\\b");
    }

    proptest! {
        #[test]
        fn display_is_printable_and_that_of_all_other_text(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let shown = Name::from(&bytes[..]).to_string();
            prop_assert!(!shown.chars().any(|c| c.is_ascii_control() || (!c.is_ascii() && text::is_unsafe(c))));
            prop_assert_eq!(shown, text::sanitize(&bytes));
        }
    }
}
