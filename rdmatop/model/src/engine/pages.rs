//! A table by small numbers that are used in ranges, such as those of slots.

/// Numbers of a page.
const PAGE: usize = 64;

/// Entries by number, in pages that are made when the first of their numbers comes: ranges without an entry
/// cost nothing, and those in use hold their entries side by side, without a hash's room to spare.
#[derive(Debug)]
pub(super) struct Pages<T>(Vec<Option<Box<[Option<T>; PAGE]>>>);

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// Page, and place there.
fn place(number: u32) -> (usize, usize) {
    let number = number as usize;
    (number / PAGE, number % PAGE)
}

impl<T> Pages<T> {
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let (page, place) = place(number);
        self.0.get_mut(page)?.as_mut()?.get_mut(place)?.as_mut()
    }

    /// Sets an entry; returns the one before.
    pub(super) fn insert(&mut self, number: u32, value: T) -> Option<T> {
        let (page, place) = place(number);
        if self.0.len() <= page {
            self.0.resize_with(page + 1, || None);
        }
        let page = self.0[page].get_or_insert_with(|| Box::new([const { None }; PAGE]));
        page[place].replace(value)
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let (page, place) = place(number);
        self.0.get_mut(page)?.as_mut()?.get_mut(place)?.take()
    }

    /// Keeps the entries for which `keep` is true, and the pages in which one is left.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        for page in &mut self.0 {
            let Some(entries) = page else { continue };
            for entry in entries.iter_mut() {
                if entry.as_ref().is_some_and(|entry| !keep(entry)) {
                    *entry = None;
                }
            }
            if entries.iter().all(Option::is_none) {
                *page = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_far_number_makes_one_page() {
        let mut pages = Pages::default();
        assert_eq!(pages.insert(1_000_000, 'a'), None);
        assert_eq!(pages.get_mut(1_000_000), Some(&mut 'a'));
        assert_eq!(pages.get_mut(2_000_000), None);
        assert_eq!(pages.0.iter().flatten().count(), 1);
        pages.retain(|_| false);
        assert_eq!(pages.0.iter().flatten().count(), 0);
    }

    proptest! {
        #[test]
        fn it_holds_the_same_entries_as_a_tree(steps in proptest::collection::vec((0u32..3, 0u32..400), 0..600)) {
            let (mut pages, mut tree) = (Pages::default(), BTreeMap::new());
            for (step, number) in steps {
                match step {
                    0 => prop_assert_eq!(pages.insert(number, number + step), tree.insert(number, number + step)),
                    1 => prop_assert_eq!(pages.remove(number), tree.remove(&number)),
                    _ => {
                        pages.retain(|entry| entry % 7 != number % 7);
                        tree.retain(|_, entry| *entry % 7 != number % 7);
                    }
                }
                prop_assert_eq!(pages.get_mut(number), tree.get_mut(&number));
            }
            for number in 0..400 {
                prop_assert_eq!(pages.get_mut(number), tree.get_mut(&number));
            }
        }
    }
}
