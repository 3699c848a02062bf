//! `/proc/PID/limits`: how much memory a process may pin.
use serde::{Deserialize, Serialize};

use crate::source::root::parse_u64;

/// One limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    /// `RLIM_INFINITY`.
    Unlimited,
    /// Bytes.
    Bytes(u64),
}

/// `RLIMIT_MEMLOCK`: registration of memory fails with ENOMEM beyond it, unless the process has
/// `CAP_IPC_LOCK` (`ib_umem_get` in drivers/infiniband/core/umem.c).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memlock {
    /// The limit in force.
    pub soft: Limit,
    /// How far the process may raise it.
    pub hard: Limit,
}

impl Memlock {
    /// Finds the line in the file.
    pub fn parse(raw: &[u8]) -> Option<Self> {
        let line = raw
            .split(|b| *b == b'\n')
            .find_map(|line| line.strip_prefix(b"Max locked memory"))?;
        let mut words = line
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty());
        Some(Self {
            soft: limit(words.next()?)?,
            hard: limit(words.next()?)?,
        })
    }
}

fn limit(word: &[u8]) -> Option<Limit> {
    if word == b"unlimited" {
        Some(Limit::Unlimited)
    } else {
        parse_u64(word).map(Limit::Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_memlock_line_is_found_among_the_others() {
        let raw = b"Limit                     Soft Limit           Hard Limit           Units     \n\
            Max processes             31                   31                   processes \n\
            Max locked memory         8388608              unlimited            bytes     \n";
        let want = Memlock {
            soft: Limit::Bytes(8_388_608),
            hard: Limit::Unlimited,
        };
        assert_eq!(Memlock::parse(raw), Some(want));
        assert_eq!(Memlock::parse(b"Max processes 1 1 processes\n"), None);
        assert_eq!(Memlock::parse(b"Max locked memory  5\n"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_numbers_read_back(raw: Vec<u8>, soft: u64, hard: u64) {
            let _ = Memlock::parse(&raw);
            let text = format!("Max locked memory         {soft:<20} {hard:<20} bytes     \n");
            let want = Memlock { soft: Limit::Bytes(soft), hard: Limit::Bytes(hard) };
            prop_assert_eq!(Memlock::parse(text.as_bytes()), Some(want));
        }
    }
}
