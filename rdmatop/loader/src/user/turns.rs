//! Whose queue pairs are looked at next. A program can have each question about it take as long as it likes,
//! up to a limit, and make queue pairs without end. Pure.

use std::collections::BTreeMap;

use super::probed::Party;

/// How long a round of questions may take, ns. What is left waits for the next round.
pub(super) const ROUND_NS: u64 = 250_000_000;
/// A question that takes longer than this, ns, is late. Where [`CREDIT_NS`] were spent on the user, he is not
/// asked for [`REST`] times as long: one process that is stuck does not make the others of its user wait.
const LATE_NS: u64 = 1_000_000_000;
const CREDIT_NS: u64 = 4_000_000_000;
const REST: u64 = 4;
/// Time that was spent counts half after this time, ns.
const HALF_NS: u64 = 10_000_000_000;

/// How much time was spent on each process, ns.
#[derive(Debug, Default)]
pub(super) struct Turns {
    spent: BTreeMap<Party, u64>,
    /// Until when a user is not asked, ns.
    rests: BTreeMap<Option<u32>, u64>,
    halved_ns: u64,
}

impl Turns {
    /// Whether a user's processes may be asked now.
    pub(super) fn may_ask(&self, user: Option<u32>, now_ns: u64) -> bool {
        self.rests.get(&user).is_none_or(|until| *until <= now_ns)
    }

    /// Puts in front the processes of the user on whom the least time was spent, and of his own the one on
    /// which the least was. The order of what belongs to one process stays.
    pub(super) fn order<T>(&self, waiting: &mut [T], of: impl Fn(&T) -> Party) {
        let mut users: BTreeMap<Option<u32>, u64> = BTreeMap::new();
        for (party, spent) in &self.spent {
            *users.entry(party.user).or_default() += spent;
        }
        let spent = |party: &Party| self.spent.get(party).copied().unwrap_or(0);
        waiting.sort_by_key(|item| {
            let party = of(item);
            let by_user = users.get(&party.user).copied().unwrap_or(0);
            (by_user, party.user, spent(&party), party.pid)
        });
    }

    /// Notes how long else a user's QP kept the thread: with locks, files and probes.
    pub(super) fn spent(&mut self, party: Party, more_ns: u64) {
        *self.spent.entry(party).or_default() += more_ns;
    }

    /// Notes how long a question took. Returns true if others were late because of it.
    pub(super) fn took(&mut self, party: Party, took_ns: u64, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.halved_ns) > HALF_NS {
            self.halved_ns = now_ns;
            self.spent.retain(|_, spent| {
                *spent /= 2;
                *spent > 0
            });
            self.rests.retain(|_, until| *until > now_ns);
        }
        self.spent(party, took_ns);
        let is_late = took_ns > LATE_NS;
        let of_user = self.spent.iter().filter(|(of, _)| of.user == party.user);
        if is_late && of_user.map(|(_, spent)| spent).sum::<u64>() > CREDIT_NS {
            self.rests
                .insert(party.user, now_ns.saturating_add(REST.saturating_mul(took_ns)));
        }
        is_late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const SECOND: u64 = 1000 * MS;

    fn party(user: u32, pid: u32) -> Party {
        Party {
            user: Some(user),
            pid,
        }
    }

    #[test]
    fn who_took_the_least_time_comes_first_by_user_and_then_by_process() {
        let mut turns = Turns::default();
        turns.took(party(1000, 1), 200 * MS, SECOND);
        turns.took(party(1000, 2), 100 * MS, SECOND);
        turns.took(party(1001, 3), 250 * MS, SECOND);
        let mut waiting = [
            (1, 1000, 0),
            (2, 1000, 1),
            (3, 1001, 2),
            (4, 1002, 3),
            (4, 1002, 4),
            (5, 1000, 5),
        ];
        turns.order(&mut waiting, |(pid, user, _)| party(*user, *pid));
        assert_eq!(waiting.map(|(_, _, number)| number), [3, 4, 2, 5, 1, 0]);
    }

    #[test]
    fn what_else_is_done_for_a_qp_counts_and_makes_nobody_rest() {
        let mut turns = Turns::default();
        for _ in 0..9 {
            turns.took(party(1000, 1), MS, SECOND);
            turns.spent(party(1000, 1), SECOND);
            turns.took(party(1001, 2), 2 * MS, SECOND);
        }
        let mut waiting = [(1000, 1), (1001, 2)];
        turns.order(&mut waiting, |(user, pid)| party(*user, *pid));
        assert_eq!(waiting, [(1001, 2), (1000, 1)]);
        assert!(turns.may_ask(Some(1000), SECOND));
    }

    /// The longest time that another user's new QP waits, and the time spent on a hostile user whose
    /// processes take this long to answer, in 50 seconds.
    fn rounds(answers_ns: u64) -> (u64, u64) {
        let mut turns = Turns::default();
        let (mut now, mut hostile, mut longest) = (0, 0, 0);
        while now < 50 * SECOND {
            let mut waiting: Vec<Party> = (0..10).map(|pid| party(1000, pid)).collect();
            waiting.push(party(1001, 500));
            turns.order(&mut waiting, |party| *party);
            let begun = now;
            for of in waiting {
                if now - begun > ROUND_NS {
                    break;
                }
                if !turns.may_ask(of.user, now) {
                    continue;
                }
                let took = if of.pid == 500 { MS } else { answers_ns };
                now += took;
                turns.took(of, took, now);
                if of.pid == 500 {
                    longest = longest.max(now - begun);
                } else {
                    hostile += took;
                }
            }
            // A QP that is made at the beginning of a round waits for the next one.
            longest = longest.max(now - begun);
            now += 20 * MS;
        }
        (longest, hostile)
    }

    #[test]
    fn one_process_that_is_stuck_leaves_others_of_its_user_their_turn() {
        let mut turns = Turns::default();
        assert!(turns.took(party(0, 7), 2 * SECOND, 2 * SECOND));
        assert!(turns.may_ask(Some(0), 2 * SECOND));
        for pid in 8..10 {
            assert!(turns.took(party(0, pid), 2 * SECOND, 6 * SECOND));
        }
        assert!(!turns.may_ask(Some(0), 13 * SECOND) && turns.may_ask(Some(0), 14 * SECOND));
        assert!(turns.may_ask(Some(1), 6 * SECOND));
    }

    #[test]
    fn a_user_whose_processes_answer_late_delays_no_other_for_long() {
        let (longest, hostile) = rounds(1900 * MS);
        assert!(longest < 2 * SECOND, "{longest} ns");
        assert!(
            (5 * SECOND..17 * SECOND).contains(&hostile),
            "{hostile} ns of 50 s"
        );
        let (longest, _) = rounds(900 * MS);
        assert!(longest < SECOND, "{longest} ns");
        let (longest, _) = rounds(10 * MS);
        assert!(longest < 300 * MS, "{longest} ns");
    }
}
