//! Bounded lists in which processes of several users want places: no user with many may take those of others.

use std::collections::BTreeMap;

/// Up to `most` of `all`, in their order. The users take turns, so that one with many hides no other's.
pub fn in_turn<T, U: Ord>(all: impl IntoIterator<Item = T>, most: usize, user: impl Fn(&T) -> U) -> Vec<T> {
    let mut turns: BTreeMap<U, usize> = BTreeMap::new();
    let numbered = all.into_iter().enumerate().map(|(at, one)| {
        let turn = turns.entry(user(&one)).or_default();
        *turn += 1;
        (*turn, at, one)
    });
    let mut taken: Vec<_> = numbered.collect();
    taken.sort_unstable_by_key(|(turn, at, _)| (*turn, *at));
    taken.truncate(most);
    taken.sort_unstable_by_key(|(_, at, _)| *at);
    taken.into_iter().map(|(_, _, one)| one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_take_turns_in_the_order_of_the_list() {
        let all = (0..100).map(|pid| (pid, 1)).chain([(500, 2), (501, 3), (502, 3)]);
        let taken = |most| -> Vec<i32> {
            let taken = in_turn(all.clone(), most, |(_, user)| *user);
            taken.into_iter().map(|(pid, _)| pid).collect()
        };
        assert_eq!(taken(10), [0, 1, 2, 3, 4, 5, 6, 500, 501, 502]);
        assert_eq!(taken(2), [0, 500]);
        assert_eq!(
            (taken(0).len(), taken(103).len(), taken(999).len()),
            (0, 103, 103)
        );
    }
}
