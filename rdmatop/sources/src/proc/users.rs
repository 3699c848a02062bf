//! User names from `/etc/passwd`, parsed once.
use std::collections::HashMap;

use crate::root::Root;
use rdmatop_base::text;

/// Names by user number. Users of a directory service (LDAP, SSSD) are not in the file and stay numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Users {
    names: HashMap<u32, String>,
}

impl Users {
    /// Reads the file; without it no user has a name.
    pub fn read(root: &Root) -> Self {
        const LIMIT: usize = 16 << 20;
        Self::parse(&root.bytes(&root.etc("passwd"), LIMIT).unwrap_or_default())
    }

    /// Parses passwd(5). Odd lines are skipped; the first line of a number wins, as with getpwuid.
    pub fn parse(raw: &[u8]) -> Self {
        let mut names = HashMap::new();
        for line in raw.split(|b| *b == b'\n').filter(|line| !line.starts_with(b"#")) {
            let mut fields = line.split(|b| *b == b':');
            let (Some(name), Some(_), Some(uid)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            let uid = std::str::from_utf8(uid).ok().and_then(|uid| uid.parse().ok());
            if let Some(uid) = uid.filter(|_| !name.is_empty()) {
                names.entry(uid).or_insert_with(|| text::sanitize(name));
            }
        }
        Self { names }
    }

    /// The name of a user.
    pub fn name(&self, uid: u32) -> Option<&str> {
        self.names.get(&uid).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_line_of_a_number_wins_and_odd_lines_are_skipped() {
        let users = Users::parse(
            b"root:x:0:0:root:/root:/bin/sh\ntoor:x:0:0::/:\n#x:x:5:\n:x:6:\nb\x1bd:x:7:7\n+\nz:x:-1:\n",
        );
        assert_eq!(users.name(0), Some("root"));
        assert_eq!(users.name(7), Some("b\\x1bd"));
        assert_eq!((users.name(5), users.name(6)), (None, None));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(raw: Vec<u8>) {
            let _ = Users::parse(&raw);
        }
    }
}
