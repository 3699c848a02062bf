//! What a person is told to do next. Much of it is a command that is pasted into a shell, often as root, and
//! names what other users have named: cgroups, network interfaces, devices.
//!
//! A [`NextStep`] is made of text of this program and of [`ShellWord`]s, numbers and other steps. There is no
//! way from other text to a step, so a name cannot get into a command unless it is quoted.

use std::{borrow::Cow, fmt, ops::Deref};

use serde::Serialize;

use crate::text;

/// A name as one word of a command, or a part of one.
///
/// A word of letters, digits and `_@%+=:,./-` that begins with a letter, a digit or one of `_./` stays as it
/// is, any other is in single quotes. Where a name is not safe to paste, a placeholder stands for it, and the
/// step says so:
/// * one that begins with `-` would be an option;
/// * one with white space: a view breaks its lines there, and the pasted word would be another one;
/// * one that was made safe to print ([`text::sanitize`]) is not the real name, so the command would act on
///   something else;
/// * one with `'`, `!` or a backslash, except those of systemd's names (`\x2d`): in single quotes sh, fish
///   and csh read these differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShellWord {
    word: Cow<'static, str>,
    /// Whether the word is a placeholder.
    stands_in: bool,
}

impl ShellWord {
    /// `name`, or `place` where that cannot be pasted.
    pub fn new(name: &str, place: &'static str) -> Self {
        let word = quoted(name);
        Self {
            stands_in: word.is_none(),
            word: word.map_or(Cow::Borrowed(place), Cow::Owned),
        }
    }

    /// [`Self::new`], or `place` for a name that is not known.
    pub fn or(name: Option<&str>, place: &'static str) -> Self {
        name.map_or(
            Self {
                word: Cow::Borrowed(place),
                stands_in: false,
            },
            |name| Self::new(name, place),
        )
    }

    /// A name in a sentence, not in a command: as it is shown elsewhere, in quotes if it has anything that a
    /// shell acts on.
    pub fn said(name: &str) -> Self {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b" _@%+:,./-".contains(&byte);
        Self {
            word: Cow::Owned(if name.bytes().all(plain) {
                name.to_owned()
            } else {
                in_quotes(name)
            }),
            stands_in: false,
        }
    }

    /// A network interface.
    pub fn netdev(name: &str) -> Self {
        Self::new(name, "NETDEV")
    }

    /// An RDMA device.
    pub fn device(name: &str) -> Self {
        Self::new(name, "DEVICE")
    }

    /// The path of a cgroup below the mount point of its hierarchy; it begins with `/`.
    pub fn cgroup(path: &str) -> Self {
        Self::new(path, "/CGROUP")
    }
}

impl fmt::Display for ShellWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.word)
    }
}

/// The word that a shell takes for exactly this name; `None` for one that is not safe to paste.
fn quoted(name: &str) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte);
    let odd = |c: char| {
        c.is_whitespace() || c.is_control() || "'!".contains(c) || (!c.is_ascii() && text::is_unsafe(c))
    };
    let of_systemd = |after: &str| {
        let hex = after.strip_prefix('x').and_then(|hex| hex.get(..2));
        hex.is_some_and(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    let differs = !name.split('\\').skip(1).all(of_systemd);
    if name.is_empty()
        || name.starts_with('-')
        || name.contains(odd)
        || differs
        || text::may_be_sanitized(name)
    {
        return None;
    }
    // At the beginning of a word some shells expand `=` and `%`.
    let bare = name.starts_with(|c: char| c.is_ascii_alphanumeric() || "/_.".contains(c));
    Some(if bare && name.bytes().all(plain) {
        name.to_owned()
    } else {
        in_quotes(name)
    })
}

fn in_quotes(name: &str) -> String {
    format!("'{}'", name.replace('\'', r"'\''"))
}

/// What to do next: sentences and commands, in one line. It is read as a string.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct NextStep(Cow<'static, str>);

impl NextStep {
    /// `template` with a part in the place of each `{}`: [`step!`] makes sure that there are as many.
    pub fn of(template: &'static str, parts: &[&dyn part::Part]) -> Self {
        let mut text = String::with_capacity(template.len() + 16 * parts.len());
        let mut stand_ins: Vec<&str> = Vec::new();
        let mut rest = template.split("{}");
        text.push_str(rest.next().unwrap_or_default());
        for (part, after) in parts.iter().zip(rest) {
            part.put(&mut text);
            stand_ins.extend(part.stand_in().filter(|word| !stand_ins.contains(word)));
            text.push_str(after);
        }
        for word in stand_ins {
            text.push_str("   # ");
            text.push_str(word);
            text.push_str(" stands for the real name, which is not safe to paste");
        }
        Self(Cow::Owned(text))
    }

    /// `sentence`, which has no full stop, and behind it this step. Only a step with a capital letter is a
    /// sentence of its own: many begin with a command.
    pub fn after(&self, sentence: &str) -> String {
        match self.chars().next() {
            None => format!("{sentence}."),
            Some(first) if first.is_uppercase() => format!("{sentence}. {self}"),
            Some(_) => format!("{sentence}; {self}"),
        }
    }
}

impl Deref for NextStep {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl From<&'static str> for NextStep {
    fn from(text: &'static str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl fmt::Display for NextStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl PartialEq<&str> for NextStep {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

/// What may stand in a step. The trait cannot be named outside of this file, so nothing else becomes a part.
mod part {
    use std::borrow::Cow;
    use std::fmt::Write as _;
    use std::net::Ipv4Addr;

    use super::{NextStep, ShellWord};

    pub trait Part {
        fn put(&self, out: &mut String);

        /// The placeholder, if the part is one.
        fn stand_in(&self) -> Option<&'static str> {
            None
        }
    }

    impl Part for ShellWord {
        fn put(&self, out: &mut String) {
            out.push_str(&self.word);
        }

        fn stand_in(&self) -> Option<&'static str> {
            match self.word {
                Cow::Borrowed(word) if self.stands_in => Some(word.trim_start_matches('/')),
                _ => None,
            }
        }
    }

    impl Part for NextStep {
        fn put(&self, out: &mut String) {
            out.push_str(self);
        }
    }

    /// Text of this program: no other lives as long as the program.
    impl Part for &'static str {
        fn put(&self, out: &mut String) {
            out.push_str(self);
        }
    }

    macro_rules! of_digits {
        ($($kind:ty),*) => {
            $(impl Part for $kind {
                fn put(&self, out: &mut String) {
                    let _ = write!(out, "{self}");
                }
            })*
        };
    }

    of_digits!(u8, u16, u32, u64, usize, Ipv4Addr);
}

/// How many `{}` a template has.
pub const fn holes(template: &str) -> usize {
    let bytes = template.as_bytes();
    let (mut at, mut found) = (1, 0);
    while at < bytes.len() {
        if bytes[at - 1] == b'{' && bytes[at] == b'}' {
            found += 1;
        }
        at += 1;
    }
    found
}

/// A [`NextStep`]: a literal template, and what stands in the place of each `{}`. Braces with something
/// between them are text.
#[doc(hidden)]
#[macro_export]
macro_rules! __step {
    ($template:literal $(, $part:expr)* $(,)?) => {{
        const {
            let parts: &[&str] = &[$(stringify!($part)),*];
            assert!($crate::step::holes($template) == parts.len(), "each {{}} takes one part");
        };
        $crate::step::NextStep::of($template, &[$(&$part),*])
    }};
}
#[doc(inline)]
pub use __step as step;

#[cfg(test)]
mod tests;
