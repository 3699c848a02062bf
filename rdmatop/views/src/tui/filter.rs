//! Which rows a user wants to see: `rxe0`, `dev:mlx5_0 state:ERR`, `!comm:perftest`.
//!
//! A row must match all words. A word with a field's name is compared with that field only. A table that
//! lacks the field shows all rows, so that `qpn:17` narrows the QPs and leaves the devices as they are.

use rdmatop_base::errno;
use rdmatop_model::fields::Value;

use super::columns::{self, Ctx, Of, Spec};
use super::tab::Tab;

/// The word for the field that `name` means, in any table.
fn field(name: &str) -> Option<&'static str> {
    let mut named = Tab::ALL.into_iter().flat_map(|tab| columns::spec(tab).named());
    let known = |words: &&[&str]| words.iter().any(|word| word.eq_ignore_ascii_case(name));
    named.find_map(|of| Some(of.meta.words).filter(known)?.first().copied())
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
    /// Parses any text: a word that names no known field is searched for as text.
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
            // While the user is still typing, `dev:` alone hides nothing.
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

    /// The filter as it was typed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the filter lets every row pass.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The part before the colon of a word that looks like `field:text` but names no field.
    pub fn no_field(&self) -> Option<&str> {
        let plain = self.terms.iter().filter(|t| t.field.is_none());
        plain
            .filter_map(|t| t.needle.split_once(':'))
            .map(|(name, _)| name)
            .find(|name| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphabetic() || b == b'_'))
    }

    /// Whether row `at` is shown.
    pub fn matches(&self, ctx: &Ctx<'_>, spec: &Spec, at: usize) -> bool {
        self.terms.iter().all(|term| {
            let is_meant = |of: &&Of| term.field.is_none_or(|word| of.meta.words[0] == word);
            let mut meant = spec.named().iter().filter(is_meant).peekable();
            meant.peek().is_none() || meant.any(|of| term.hit(&of.value(ctx, at))) != term.negate
        })
    }
}

impl Term {
    fn hit(&self, value: &Value<'_>) -> bool {
        match value {
            Value::Text(text) | Value::State(_, text) => contains(text, &self.needle),
            Value::List(list) => list.iter().any(|text| contains(text, &self.needle)),
            Value::Errnos(list) => {
                let mut names = list.iter().filter_map(|(errno, _)| errno::name(*errno));
                names.any(|name| contains(name, &self.needle))
            }
            Value::Number(number) => match (u64::try_from(*number), self.number) {
                // A number must match completely if the word names the field, otherwise only at its
                // beginning.
                (Ok(number), Some(wanted)) if self.field.is_some() => number == wanted,
                (Ok(number), Some(_)) => number.to_string().starts_with(&self.needle),
                _ => false,
            },
            _ => false,
        }
    }
}

/// `contains` without regard to case; `needle` is in lower case already.
fn contains(text: &str, needle: &str) -> bool {
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
        // A word has to mean the same field in every table.
        for tab in Tab::ALL {
            for words in columns::spec(tab).named().iter().map(|of| of.meta.words) {
                for word in words {
                    assert_eq!(field(word), words.first().copied(), "{tab:?} {word}");
                }
            }
        }
    }

    #[test]
    fn a_word_that_names_no_field_is_distinguished_from_plain_text() {
        assert_eq!(Filter::parse("dev:rxe0 colour:red").no_field(), Some("colour"));
        for plain in ["rxe0", "dev:a:b", "00:1b:21", "fe80::1", ":x", ""] {
            assert_eq!(Filter::parse(plain).no_field(), None, "{plain}");
        }
    }
}
