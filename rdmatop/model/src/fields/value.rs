//! The value of a field of a row.

use std::{borrow::Cow, cmp::Ordering, sync::Arc};

use crate::{
    snapshot::{History, Latency},
    value::Counter,
};

/// The value of a field of a row.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    /// The value is unknown or cannot be observed.
    Unknown,
    /// A name.
    Text(Cow<'a, str>),
    /// A list of names.
    List(&'a [Arc<str>]),
    /// A word and its rank among such words.
    State(u64, Cow<'a, str>),
    /// The value is yes or no.
    Flag(bool),
    /// A number.
    Number(i64),
    /// The total of a counter.
    Total(Counter),
    /// The rate of a counter.
    Rate(Counter),
    /// A share of a whole, 1 is all.
    Share(f64),
    /// Points of the last minutes.
    History(&'a History),
    /// Failures by errno.
    Errnos(&'a [(u32, u64)]),
}

impl<'a> Value<'a> {
    /// Makes a name that may be unknown.
    pub fn text(text: Option<&'a Arc<str>>) -> Self {
        text.map_or(Self::Unknown, |text| Self::Text(Cow::Borrowed(text)))
    }

    /// Makes a number that may be unknown.
    pub fn number<T: TryInto<i64>>(number: Option<T>) -> Self {
        // Nanoseconds since the epoch fit until the year 2262.
        number
            .and_then(|n| n.try_into().ok())
            .map_or(Self::Unknown, Self::Number)
    }

    /// Makes the total of a counter that may be unknown.
    pub fn total(counter: Option<Counter>) -> Self {
        counter.map_or(Self::Unknown, Self::Total)
    }

    /// Makes the rate of a counter that may be unknown.
    pub fn rate(counter: Option<Counter>) -> Self {
        counter.map_or(Self::Unknown, Self::Rate)
    }

    /// Makes a word of a kernel enumeration from its number and its name, if it has one.
    pub fn word<T: ToString>(
        value: Option<T>,
        number: impl Fn(&T) -> u64,
        name: impl Fn(&T) -> Option<&'static str>,
    ) -> Self {
        value.map_or(Self::Unknown, |value| {
            let text = name(&value).map_or_else(|| Cow::Owned(value.to_string()), Cow::Borrowed);
            Self::State(number(&value), text)
        })
    }

    /// Makes a duration from a histogram.
    pub fn time(latency: Option<&Latency>, of: impl Fn(&Latency) -> Option<u64>) -> Self {
        Self::number(latency.and_then(of))
    }

    /// Returns the key by which the field is sorted.
    pub fn key(&self) -> Key<'_> {
        match self {
            Self::Unknown => Key::None,
            Self::Text(text) => Key::Text(text),
            Self::List(list) => list.first().map_or(Key::None, |first| Key::Text(first)),
            Self::State(rank, _) => Key::Num(*rank as f64),
            Self::Flag(on) => Key::Num(f64::from(u8::from(*on))),
            Self::Number(number) => Key::Num(*number as f64),
            Self::Total(counter) => Key::Num(counter.total as f64),
            Self::Rate(counter) => counter.rate.map_or(Key::None, Key::Num),
            Self::Share(share) => Key::Num(*share),
            Self::History(history) => moved(history),
            Self::Errnos(list) => match list.iter().map(|(_, count)| *count).sum::<u64>() {
                0 => Key::None,
                sum => Key::Num(sum as f64),
            },
        }
    }
}

/// Returns the sum of a history; a history without movement comes last.
fn moved(history: &History) -> Key<'static> {
    let sum: f64 = history.tx.iter().chain(&history.rx).flatten().sum();
    if sum > 0.0 { Key::Num(sum) } else { Key::None }
}

/// The key by which a row is sorted; unknown comes last in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Key<'a> {
    /// The value is unknown.
    None,
    /// A number.
    Num(f64),
    /// A text.
    Text(&'a str),
}

/// Compares two keys; unknown comes last whatever the direction.
pub fn compare(a: &Key<'_>, b: &Key<'_>, down: bool) -> Ordering {
    let known = match (a, b) {
        (Key::None, Key::None) => return Ordering::Equal,
        (Key::None, _) => return Ordering::Greater,
        (_, Key::None) => return Ordering::Less,
        (Key::Num(a), Key::Num(b)) => a.total_cmp(b),
        (Key::Text(a), Key::Text(b)) => a.cmp(b),
        (Key::Num(_), Key::Text(_)) => Ordering::Less,
        (Key::Text(_), Key::Num(_)) => Ordering::Greater,
    };
    if down { known.reverse() } else { known }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_come_last_in_both_directions() {
        for down in [false, true] {
            assert_eq!(compare(&Key::None, &Key::Num(1.0), down), Ordering::Greater);
            assert_eq!(compare(&Key::Text("a"), &Key::None, down), Ordering::Less);
        }
        assert_eq!(compare(&Key::Num(1.0), &Key::Num(2.0), true), Ordering::Greater);
        assert_eq!(
            compare(&Key::Num(f64::NAN), &Key::Num(f64::NAN), true),
            Ordering::Equal
        );
    }
}
