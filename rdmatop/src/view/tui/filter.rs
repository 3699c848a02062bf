//! Which rows a user wants to see: `rxe0`, `dev:mlx5_0 state:ERR`, `!comm:perftest`.
//!
//! All words must hold. A word with a field's name looks at that field only; a table without the field lets
//! the word pass, so that `qpn:17` narrows the QPs and leaves the devices alone.

use super::columns::{Ctx, Spec, Value};

/// Every field a word may name, in any table.
pub const FIELDS: &[&str] = &[
    "dev", "pid", "comm", "user", "job", "cgroup", "cmd", "qpn", "state", "type", "netdev", "link", "driver",
    "verb", "errno", "event", "program", "hook", "verdict",
];

/// What people call them as well.
const ALIASES: &[(&str, &str)] = &[
    ("device", "dev"),
    ("name", "comm"),
    ("command", "cmd"),
    ("qp", "qpn"),
    ("container", "job"),
    ("pod", "job"),
];

/// The field that `name` means.
fn field(name: &str) -> Option<&'static str> {
    let name = ALIASES
        .iter()
        .find(|(alias, _)| alias.eq_ignore_ascii_case(name))
        .map_or(name, |(_, field)| field);
    FIELDS.iter().find(|f| f.eq_ignore_ascii_case(name)).copied()
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    field: Option<&'static str>,
    needle: String,
    number: Option<u64>,
    negate: bool,
}

/// A parsed filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    text: String,
    terms: Vec<Term>,
}

impl Filter {
    /// Every text is a filter; a word that names no known field is looked for as it is.
    pub fn parse(text: &str) -> Self {
        let terms = text.split_whitespace().filter_map(|word| {
            let (negate, word) = word.strip_prefix('!').map_or((false, word), |rest| (true, rest));
            let (field, needle) = match word.split_once(':') {
                Some((name, rest)) => match field(name) {
                    Some(field) => (Some(field), rest),
                    None => (None, word),
                },
                None => (None, word),
            };
            // While a word is still being typed, `dev:` alone hides nothing.
            (!needle.is_empty()).then(|| Term {
                field,
                needle: needle.to_lowercase(),
                number: needle.parse().ok(),
                negate,
            })
        });
        Self {
            terms: terms.collect(),
            text: text.trim().to_owned(),
        }
    }

    /// As typed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Lets every row pass.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// What stands before the colon of a word that looks like one with a field, and names none.
    pub fn no_field(&self) -> Option<&str> {
        let plain = self.terms.iter().filter(|t| t.field.is_none());
        plain
            .filter_map(|t| t.needle.split_once(':'))
            .map(|(name, _)| name)
            .find(|name| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphabetic() || b == b'_'))
    }

    /// Whether row `at` is to be seen.
    pub fn matches(&self, ctx: &Ctx<'_>, spec: &Spec, at: usize) -> bool {
        self.terms.iter().all(|term| {
            if term.field.is_some_and(|f| !spec.field_names.contains(&f)) {
                return true;
            }
            let mut found = false;
            (spec.fields)(ctx, at, &mut |name, value| {
                if term.field.is_none_or(|f| f == name) && term.hit(value) {
                    found = true;
                }
                !found
            });
            found != term.negate
        })
    }
}

impl Term {
    fn hit(&self, value: Value<'_>) -> bool {
        match value {
            Value::Text(text) => contains(text, &self.needle),
            Value::Num(number) if self.field.is_some() => self.number == Some(number),
            Value::Num(number) => self.number.is_some() && number.to_string().starts_with(&self.needle),
        }
    }
}

/// Case-blind `contains`; `needle` is lower case already. Names are nearly always ASCII, which needs no copy.
fn contains(text: &str, needle: &str) -> bool {
    if text.is_ascii() && needle.is_ascii() {
        let needle = needle.as_bytes();
        return text
            .as_bytes()
            .windows(needle.len())
            .any(|w| w.eq_ignore_ascii_case(needle));
    }
    text.to_lowercase().contains(needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_goes_by_the_names_people_give_it() {
        assert_eq!(Filter::parse("qp:18").terms, Filter::parse("qpn:18").terms);
        assert_eq!(
            Filter::parse("!Device:rxe0").terms,
            Filter::parse("!dev:rxe0").terms
        );
        assert!(
            ALIASES.iter().all(|(_, f)| FIELDS.contains(f)),
            "an alias means a field"
        );
        assert!(
            ALIASES.iter().all(|(a, _)| !FIELDS.contains(a)),
            "no alias hides a field"
        );
    }

    #[test]
    fn a_word_that_names_no_field_is_told_from_plain_text() {
        assert_eq!(Filter::parse("dev:rxe0 colour:red").no_field(), Some("colour"));
        for plain in ["rxe0", "dev:a:b", "00:1b:21", "fe80::1", ":x", ""] {
            assert_eq!(Filter::parse(plain).no_field(), None, "{plain}");
        }
    }
}
