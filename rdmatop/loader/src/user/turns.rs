//! Whose queue pairs are looked at next. A program can have each question about it take as long as it likes,
//! up to a limit, and make queue pairs without end. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::probed::Party;
use rdmatop_base::order::{Gather as _, Ordered as _};

/// How long a round of questions may take, ns. What is left waits for the next round.
pub(super) const ROUND_NS: u64 = 250_000_000;
/// A question that takes longer than this, ns, is late. Where [`CREDIT_NS`] were spent on the user, he is not
/// asked for [`REST`] times as long: one process that is stuck does not make the others of its user wait.
const LATE_NS: u64 = 1_000_000_000;
const CREDIT_NS: u64 = 4_000_000_000;
const REST: u64 = 4;
/// Time that was spent counts half after this time, ns.
const HALF_NS: u64 = 10_000_000_000;

/// What was spent on a user or a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Spent {
    ns: u64,
    /// The number of the last question, by which those on whom equally much was spent take turns.
    asked: u64,
}

/// How much time was spent on each user, and on each process.
#[derive(Debug, Default)]
pub(super) struct Turns {
    users: BTreeMap<Option<u32>, Spent>,
    processes: BTreeMap<Party, Spent>,
    /// Until when a user is not asked, ns.
    rests: BTreeMap<Option<u32>, u64>,
    questions: u64,
    /// Up to when the times have been halved, ns.
    halved_ns: u64,
}

impl Turns {
    pub(super) fn may_ask(&self, user: Option<u32>, now_ns: u64) -> bool {
        self.rests.get(&user).is_none_or(|until| *until <= now_ns)
    }

    /// Puts in front the processes of the user on whom the least time was spent, and of his own the one on
    /// which the least was. The order of what belongs to one process stays.
    pub(super) fn order<T>(&mut self, waiting: &mut [T], now_ns: u64, of: impl Fn(&T) -> Party) {
        self.halve(now_ns);
        let by_user = |party: &Party| self.users.get(&party.user).copied().unwrap_or_default();
        let by_process = |party: &Party| self.processes.get(party).copied().unwrap_or_default();
        waiting.order_by_key(|item| {
            let party = of(item);
            (by_user(&party), party.user, by_process(&party), party.process)
        });
    }

    /// Halves all times once for each [`HALF_NS`] that has passed, whether anybody was asked meanwhile or
    /// not.
    fn halve(&mut self, now_ns: u64) {
        let halves = now_ns.saturating_sub(self.halved_ns) / HALF_NS;
        self.halved_ns += halves * HALF_NS;
        let halves = u32::try_from(halves).unwrap_or(u32::MAX);
        for spent in self.users.values_mut().chain(self.processes.values_mut()) {
            spent.ns = spent.ns.checked_shr(halves).unwrap_or(0);
        }
    }

    /// Notes how long else a process kept the thread: with its lock, its files and probes.
    pub(super) fn spent(&mut self, party: Party, more_ns: u64) {
        self.users.entry(party.user).or_default().ns += more_ns;
        self.processes.entry(party).or_default().ns += more_ns;
    }

    /// Notes how long a question took. Returns true if others were late because of it.
    pub(super) fn took(&mut self, party: Party, took_ns: u64, now_ns: u64) -> bool {
        self.halve(now_ns);
        self.spent(party, took_ns);
        self.questions += 1;
        let is_late = took_ns > LATE_NS;
        let of_user = self.users.entry(party.user).or_default();
        of_user.asked = self.questions;
        if is_late && of_user.ns > CREDIT_NS {
            let until_ns = now_ns.saturating_add(REST.saturating_mul(took_ns));
            self.rests.insert(party.user, until_ns);
        }
        self.processes.entry(party).or_default().asked = self.questions;
        is_late
    }

    /// Forgets processes that are not among these, and users who have none, once nothing spent on them is
    /// left.
    pub(super) fn retain(&mut self, there: &BTreeSet<Party>, now_ns: u64) {
        let users: BTreeSet<_> = there.iter().map(|party| party.user).gather();
        self.processes.retain(|party, _| there.contains(party));
        self.users
            .retain(|user, spent| spent.ns > 0 || users.contains(user));
        self.rests.retain(|_, until| *until > now_ns);
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::{super::probed::Process, *};

    const MS: u64 = 1_000_000;
    const SECOND: u64 = 1000 * MS;

    fn party(user: u32, pid: u32) -> Party {
        Party {
            user: Some(user),
            process: Process { pid, start_ns: 7 },
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
        turns.order(&mut waiting, SECOND, |(pid, user, _)| party(*user, *pid));
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
        turns.order(&mut waiting, SECOND, |(user, pid)| party(*user, *pid));
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
            turns.order(&mut waiting, now, |party| *party);
            let begun = now;
            for of in waiting {
                if now - begun > ROUND_NS {
                    break;
                }
                if !turns.may_ask(of.user, now) {
                    continue;
                }
                let took = if of.process.pid == 500 { MS } else { answers_ns };
                now += took;
                turns.took(of, took, now);
                if of.process.pid == 500 {
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
        turns.order(&mut [party(0, 7)], SECOND, |party| *party);
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

    /// The order of two users, of whom the first was slow, after a while in which nobody was asked.
    #[test]
    fn what_was_spent_fades_whether_anybody_is_asked_meanwhile_or_not() {
        let (slow, other) = (party(1000, 1), party(1001, 2));
        let first = |pause_ns| {
            let mut turns = Turns::default();
            turns.took(slow, 2 * SECOND, SECOND);
            turns.took(other, 40 * MS, SECOND + pause_ns);
            let mut waiting = [slow, other];
            turns.order(&mut waiting, SECOND + pause_ns, |party| *party);
            waiting[0]
        };
        assert_eq!(first(0), other);
        assert_eq!(first(30 * SECOND), other, "an eighth of two seconds");
        assert_eq!(first(60 * SECOND), slow, "a part in 64 of two seconds");
    }

    #[test]
    fn who_is_gone_is_forgotten_and_its_user_is_not_before_his_time_has_faded() {
        let mut turns = Turns::default();
        turns.took(party(1000, 1), SECOND, SECOND);
        turns.took(party(1000, 2), SECOND, SECOND);
        turns.retain(&BTreeSet::from([party(1000, 2)]), SECOND);
        assert_eq!((turns.users.len(), turns.processes.len()), (1, 1));
        turns.retain(&BTreeSet::new(), SECOND);
        assert_eq!((turns.users.len(), turns.processes.len()), (1, 0));
        turns.order(&mut [party(1000, 2)], 400 * SECOND, |party| *party);
        turns.retain(&BTreeSet::new(), 400 * SECOND);
        assert!(turns.users.is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Processes whose QPs wait all the time, each with the time that it takes to answer. Each is asked
        /// again and again, also if a question to another takes as long as it may.
        #[test]
        fn nobody_starves_whoever_else_waits(
            asks in vec((0u32..4, prop_oneof![1u64..50, 900u64..2000]), 1..12),
            halves in 0u64..3,
        ) {
            let all: Vec<(Party, u64)> = asks
                .iter()
                .zip(1..)
                .map(|((user, ms), pid)| (party(*user, pid), ms * MS))
                .collect();
            let there: BTreeSet<Party> = all.iter().map(|(party, _)| *party).collect();
            let mut turns = Turns::default();
            let mut now = halves * HALF_NS;
            let end = now + 400 * SECOND;
            let mut asked: BTreeMap<Party, u64> = there.iter().map(|party| (*party, now)).collect();
            let mut longest = 0;
            while now < end {
                let mut waiting = all.clone();
                turns.order(&mut waiting, now, |(party, _)| *party);
                let begun = now;
                for (party, took) in waiting {
                    if now - begun > ROUND_NS {
                        break;
                    }
                    if turns.may_ask(party.user, now) {
                        now += took;
                        turns.took(party, took, now);
                        if let Some(before) = asked.insert(party, now) {
                            longest = longest.max(now - before);
                        }
                    }
                }
                turns.retain(&there, now);
                now += 20 * MS;
            }
            longest = longest.max(asked.values().map(|before| now.saturating_sub(*before)).max().unwrap_or(0));
            prop_assert!(longest < 150 * SECOND, "{} s", longest / SECOND);
        }
    }
}
