//! Values of the kernel-user ABI in a recording: each is a list of numbers.
//!
//! Most words of a record and of a counter slot are zero, so a value is written as the number of its other
//! words, followed by the place and the value of each.

use rdmatop_common::{
    counters::{QpSlot, VerbErrorKey, VerbKey, VerbStats},
    event::{self, CmRecord, ObjectRecord, QpRecord, Record, VerbRecord},
    wr::WrRecord,
};
use serde::{Deserialize, Deserializer, Serializer, de::Error as _};
use zerocopy::{FromBytes, IntoBytes};

const WORD: usize = size_of::<u64>();

/// Sizes and byte order of the types that a recording holds as they are in memory: a reader with another
/// layout must refuse it.
pub(super) fn layout() -> Vec<usize> {
    vec![
        size_of::<QpRecord>(),
        size_of::<ObjectRecord>(),
        size_of::<CmRecord>(),
        size_of::<VerbRecord>(),
        size_of::<QpSlot>(),
        size_of::<VerbKey>(),
        size_of::<VerbStats>(),
        size_of::<VerbErrorKey>(),
        size_of::<WrRecord>(),
        usize::from(u16::from_ne_bytes([1, 0])),
    ]
}

/// A value that is written as numbers.
pub(super) trait Numbers: Sized {
    /// Appends its numbers.
    fn put(&self, out: &mut Vec<u64>);
    /// Reads the numbers that [`Numbers::put`] appended; `None` when they do not form such a value.
    fn take(from: &mut std::slice::Iter<'_, u64>) -> Option<Self>;
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u64>) {
    let (words, rest) = bytes.as_chunks::<WORD>();
    debug_assert!(rest.is_empty(), "only whole words are written");
    let words = words.iter();
    let words = words.map(|word| u64::from_ne_bytes(*word));
    let some = words.zip(0..).filter(|(word, _)| *word != 0);
    let before = out.len();
    out.push(0);
    out.extend(some.flat_map(|(word, place)| [place, word]));
    out[before] = (out.len() - before - 1) as u64 / 2;
}

fn take_bytes(from: &mut std::slice::Iter<'_, u64>, size: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; size];
    for _ in 0..*from.next()? {
        let place = usize::try_from(*from.next()?).ok()?.checked_mul(WORD)?;
        let word = bytes.get_mut(place..place.checked_add(WORD)?)?;
        word.copy_from_slice(&from.next()?.to_ne_bytes());
    }
    Some(bytes)
}

macro_rules! as_words {
    ($($type:ty),*) => {$(
        impl Numbers for $type {
            fn put(&self, out: &mut Vec<u64>) {
                const { assert!(size_of::<$type>().is_multiple_of(WORD)) };
                put_bytes(self.as_bytes(), out);
            }

            fn take(from: &mut std::slice::Iter<'_, u64>) -> Option<Self> {
                let bytes = take_bytes(from, size_of::<Self>())?;
                Self::read_from_bytes(&bytes).ok()
            }
        }
    )*};
}

as_words!(QpSlot, VerbKey, VerbStats, VerbErrorKey, WrRecord);

/// The size comes first, because the record's kind is among its bytes.
impl Numbers for Record {
    fn put(&self, out: &mut Vec<u64>) {
        let bytes = match self {
            Self::Qp(record) => record.as_bytes(),
            Self::Object(record) => record.as_bytes(),
            Self::Cm(record) => record.as_bytes(),
            Self::Verb(record) => record.as_bytes(),
        };
        out.push(bytes.len() as u64);
        put_bytes(bytes, out);
    }

    fn take(from: &mut std::slice::Iter<'_, u64>) -> Option<Self> {
        let size = usize::try_from(*from.next()?).ok()?;
        // No record is longer.
        let bytes = (size <= size_of::<CmRecord>()).then(|| take_bytes(from, size))??;
        event::decode(&bytes).ok()
    }
}

impl Numbers for u32 {
    fn put(&self, out: &mut Vec<u64>) {
        out.push((*self).into());
    }

    fn take(from: &mut std::slice::Iter<'_, u64>) -> Option<Self> {
        Self::try_from(*from.next()?).ok()
    }
}

impl Numbers for u64 {
    fn put(&self, out: &mut Vec<u64>) {
        out.push(*self);
    }

    fn take(from: &mut std::slice::Iter<'_, u64>) -> Option<Self> {
        from.next().copied()
    }
}

impl<A: Numbers, B: Numbers> Numbers for (A, B) {
    fn put(&self, out: &mut Vec<u64>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(from: &mut std::slice::Iter<'_, u64>) -> Option<Self> {
        Some((A::take(from)?, B::take(from)?))
    }
}

/// Writes a list of values; for `#[serde(with = "numbers")]`.
pub(super) fn serialize<T: Numbers, S: Serializer>(list: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(list.iter().map(|value| {
        let mut numbers = Vec::new();
        value.put(&mut numbers);
        numbers
    }))
}

/// Reads a list of values; for `#[serde(with = "numbers")]`.
pub(super) fn deserialize<'de, T: Numbers, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let lists = Vec::<Vec<u64>>::deserialize(deserializer)?;
    let value = |list: &Vec<u64>| {
        let mut numbers = list.iter();
        let value = T::take(&mut numbers).filter(|_| numbers.len() == 0);
        value.ok_or_else(|| D::Error::custom("numbers that are no such value"))
    };
    lists.iter().map(value).collect()
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros as _;

    use super::*;

    fn numbers(value: &impl Numbers) -> Vec<u64> {
        let mut numbers = Vec::new();
        value.put(&mut numbers);
        numbers
    }

    #[test]
    fn a_value_comes_back_and_only_its_contents_take_space() {
        let slot = QpSlot {
            qp: 7,
            tx_done: u64::MAX,
            ..QpSlot::new_zeroed()
        };
        let written = numbers(&(3u32, slot));
        assert_eq!(written.len(), 1 + 1 + 2 * 2, "{written:?}");
        let (number, read) = <(u32, QpSlot)>::take(&mut written.iter()).unwrap();
        assert_eq!((number, read.as_bytes()), (3, slot.as_bytes()));
    }

    #[test]
    fn invalid_numbers_are_refused_without_allocating() {
        for wrong in [
            &[][..],
            &[1],
            &[1, 0],
            &[1, u64::MAX, 7],
            &[u64::MAX, 0, 7],
            &[1, 1000, 7],
        ] {
            assert!(QpSlot::take(&mut wrong.iter()).is_none(), "{wrong:?}");
            assert!(Record::take(&mut wrong.iter()).is_none(), "{wrong:?}");
        }
        let vast = [u64::MAX, 0];
        assert!(Record::take(&mut vast.iter()).is_none());
    }
}
