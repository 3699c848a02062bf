//! Lists in order and trees, without a sort of their own. std compiles its sort anew for each type and each
//! comparison, also where an iterator is collected into a `BTreeMap` or a `BTreeSet`: 5 to 6 KB each time, a
//! tenth of the program. What sorts thousands of rows each second, or events, has std's.

use std::cmp::Ordering;

/// Sorts as slices do, stably, and twice as slowly.
pub trait Ordered<T> {
    /// As `sort_by`.
    fn order_by(&mut self, compare: impl FnMut(&T, &T) -> Ordering);

    /// As `sort_by_key`.
    fn order_by_key<K: Ord>(&mut self, mut key: impl FnMut(&T) -> K) {
        self.order_by(|a, b| key(a).cmp(&key(b)));
    }
}

impl<T> Ordered<T> for [T] {
    fn order_by(&mut self, mut compare: impl FnMut(&T, &T) -> Ordering) {
        let mut places: Vec<usize> = (0..self.len()).collect();
        sort(&mut places, &mut |a, b| compare(&self[a], &self[b]));
        // Each cycle of the permutation is walked once: the one that is in the way goes on to the next place.
        for start in 0..places.len() {
            let mut at = start;
            loop {
                let from = std::mem::replace(&mut places[at], at);
                if from == start {
                    break;
                }
                self.swap(at, from);
                at = from;
            }
        }
    }
}

/// Sorts places of any list: std compiles this sort once, whatever the list holds.
fn sort(places: &mut [usize], compare: &mut dyn FnMut(usize, usize) -> Ordering) {
    places.sort_by(|a, b| compare(*a, *b));
}

/// Collects an iterator into a tree, item by item.
pub trait Gather: Iterator + Sized {
    /// As `collect`, for a `BTreeMap` or a `BTreeSet`.
    fn gather<C: Default + Extend<Self::Item>>(self) -> C {
        let mut all = C::default();
        all.extend(self);
        all
    }
}

impl<I: Iterator> Gather for I {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn lists_have_the_order_that_std_gives_them(list: Vec<u8>) {
            // What is equal by its key is not equal by its place: the order is stable.
            let mut ours: Vec<(u8, usize)> = list.iter().map(|one| one % 16).zip(0..).collect();
            let (mut wanted, mut by) = (ours.clone(), ours.clone());
            wanted.sort_by_key(|one| one.0);
            ours.order_by_key(|one| one.0);
            prop_assert_eq!(&ours, &wanted);
            by.order_by(|a, b| b.0.cmp(&a.0));
            wanted.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
            prop_assert_eq!(&by, &wanted);
        }

        #[test]
        fn trees_have_what_collect_puts_into_them(list: Vec<(u8, u16)>) {
            let ours: BTreeMap<u8, u16> = list.iter().copied().gather();
            prop_assert_eq!(ours, list.iter().copied().collect::<BTreeMap<_, _>>());
        }
    }
}
