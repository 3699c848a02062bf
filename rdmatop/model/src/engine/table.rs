//! A table by numbers that are given in rising order and never reused.

/// Entries in the order of their numbers, side by side: allocated one by one between short-lived objects,
/// each would keep a page of memory. A removed entry leaves a gap until gaps are the greater part.
///
/// A look-up guesses the place, which is right for all that came since gaps were closed last, and searches
/// only when that fails: a record looks its QP up several times, and a tree costs two hundred instructions
/// each time.
#[derive(Debug)]
pub(super) struct Table<T> {
    entries: Vec<(u64, Option<T>)>,
    len: usize,
    /// The number of the last entry less its place.
    ahead: u64,
    /// An entry may have changed since [`Table::settle`].
    touched: bool,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            len: 0,
            ahead: 0,
            touched: false,
        }
    }
}

impl<T> Table<T> {
    fn place(&self, number: u64) -> Option<usize> {
        // Of a lower number the guess is beyond the end.
        let guess = usize::try_from(number.wrapping_sub(self.ahead)).ok()?;
        if self.entries.get(guess).is_some_and(|(there, _)| *there == number) {
            return Some(guess);
        }
        self.search(number)
    }

    #[cold]
    fn search(&self, number: u64) -> Option<usize> {
        self.entries
            .binary_search_by_key(&number, |(number, _)| *number)
            .ok()
    }

    pub(super) fn get(&self, number: u64) -> Option<&T> {
        self.entries.get(self.place(number)?)?.1.as_ref()
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.touched = true;
        let place = self.place(number)?;
        self.entries.get_mut(place)?.1.as_mut()
    }

    /// Adds an entry. `number` is higher than all before.
    pub(super) fn push(&mut self, number: u64, value: T) {
        debug_assert!(self.entries.last().is_none_or(|(last, _)| *last < number));
        self.touched = true;
        self.ahead = number.wrapping_sub(self.entries.len() as u64);
        self.entries.push((number, Some(value)));
        self.len += 1;
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        self.touched = true;
        let place = self.place(number)?;
        let value = self.entries[place].1.take()?;
        self.len -= 1;
        let gaps = self.entries.len() - self.len;
        if gaps > 64 && gaps > self.len {
            self.entries.retain(|(_, value)| value.is_some());
            if let Some((last, _)) = self.entries.last() {
                self.ahead = last.wrapping_sub(self.entries.len() as u64 - 1);
            }
        }
        Some(value)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter_map(|(_, value)| value.as_ref())
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.touched = true;
        self.entries.iter_mut().filter_map(|(_, value)| value.as_mut())
    }

    /// Whether an entry came, went, or was given out to be changed since [`Table::settle`].
    pub(super) fn is_touched(&self) -> bool {
        self.touched
    }

    /// All entries have been looked at.
    pub(super) fn settle(&mut self) {
        self.touched = false;
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_long_lived_entry_among_millions_of_others_keeps_no_gaps() {
        let mut table = Table::default();
        table.push(1, 1);
        for number in 2..100_000 {
            table.push(number, number);
            assert_eq!(table.remove(number), Some(number));
        }
        assert!(table.entries.len() < 200, "{}", table.entries.len());
        assert_eq!((table.get(1), table.get(2), table.len()), (Some(&1), None, 1));
    }

    proptest! {
        #[test]
        fn it_holds_the_same_entries_as_a_tree(steps in proptest::collection::vec((0u64..4, 0u64..400), 0..600)) {
            let (mut table, mut tree) = (Table::default(), BTreeMap::new());
            let mut last = 0;
            for (step, number) in steps {
                if step < 2 {
                    last += 1 + step * (number % 3);
                    table.push(last, number);
                    tree.insert(last, number);
                } else {
                    prop_assert_eq!(table.remove(number), tree.remove(&number));
                }
                prop_assert_eq!(table.get(number), tree.get(&number));
                prop_assert_eq!(table.get_mut(last), tree.get_mut(&last));
                prop_assert_eq!(table.len(), tree.len());
            }
            prop_assert!(table.values().eq(tree.values()));
            prop_assert!(table.values_mut().eq(tree.values_mut()));
        }
    }
}
