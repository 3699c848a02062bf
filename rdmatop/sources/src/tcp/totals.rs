//! From counts of connections to counts of processes. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::SocketAddr,
};

use rdmatop_base::{order::Gather as _, text};
use rdmatop_model::input::TcpTotals;

use super::{
    diag::Connection,
    owners::{Descriptor, SocketKey},
};

/// Bytes per second from which the process of a connection is searched: that reads `/proc/*/fd` of all
/// processes.
const BUSY: f64 = 10e6;
/// Connections kept at most.
const MOST: usize = 1 << 16;
const OF_USER: usize = MOST / 4;

#[derive(Debug)]
struct Entry {
    user: u32,
    inode: u32,
    remote: SocketAddr,
    /// Bytes sent and received, as read last.
    read: [u64; 2],
    /// Of these in the last interval, where they are its owner's.
    lately: [u64; 2],
    owner: Owner,
}

/// Whose connection it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// Its process was not looked for.
    Unknown,
    /// No process that matters has it open.
    Nobody,
    By(Descriptor),
}

/// Counts of connections over time. At each look `look` reads them, `release`, `forget` and `learn` change
/// whose they are, and then `count` counts what they moved since the look before: who is not known as the
/// owner by then gets none of it, also not later.
#[derive(Debug, Default)]
pub(super) struct Totals {
    known: HashMap<u64, Entry>,
    /// Bytes that processes moved, up to the last look and in the last interval.
    sums: BTreeMap<u32, [[u64; 2]; 2]>,
    at_ns: Option<u64>,
    elapsed_ns: u64,
    /// The connections of the last look that found no place, and their users.
    left_out: HashMap<u64, u32>,
    /// Connections that the last look lacks. The kernel's list may lack one that is open: while it is sent in
    /// parts, others that close move it (`inet_diag_dump_icsk`, net/ipv4/inet_diag.c).
    missed: BTreeSet<u64>,
    /// Users of whom the last list lacks connections, and those of whom the next one does.
    cut: [BTreeSet<u32>; 2],
}

impl Totals {
    /// Says of which users the next list lacks connections, because they have too many.
    pub(super) fn lacks(&mut self, users: BTreeSet<u32>) {
        self.cut[1] = users;
    }

    /// Takes the connections of one look, at `now_ns`.
    pub(super) fn look(&mut self, connections: &[Connection], now_ns: u64) {
        let is_first = self.at_ns.is_none();
        self.elapsed_ns = self.at_ns.map_or(0, |last| now_ns.saturating_sub(last));
        self.at_ns = Some(now_ns);
        let missed_before = std::mem::take(&mut self.missed);
        // Before places are given: those of connections that have closed are free.
        self.close(connections);
        let mut of_user: HashMap<u32, usize> = HashMap::new();
        for known in self.known.values() {
            *of_user.entry(known.user).or_default() += 1;
        }
        let had_no_place = std::mem::take(&mut self.left_out);
        for connection in connections {
            let cookie = connection.cookie;
            let of_user = of_user.entry(connection.user).or_default();
            let is_room = self.known.len() < MOST && *of_user < OF_USER;
            match self.known.get_mut(&cookie) {
                Some(known) => known.read(connection),
                None if is_room => {
                    *of_user += 1;
                    let was_there = had_no_place.contains_key(&cookie)
                        || missed_before.contains(&cookie)
                        || self.cut[0].contains(&connection.user);
                    let entry = Entry::new(connection, !is_first && !was_there);
                    self.known.insert(cookie, entry);
                }
                None => {
                    self.left_out.insert(cookie, connection.user);
                }
            }
        }
        self.cut[0] = std::mem::take(&mut self.cut[1]);
    }

    /// Forgets connections that are not among these.
    fn close(&mut self, connections: &[Connection]) {
        let open: BTreeSet<u64> = connections.iter().map(|one| one.cookie).gather();
        let missed = &mut self.missed;
        self.known.retain(|cookie, known| {
            known.lately = [0; 2];
            let stays = open.contains(cookie);
            if !stays {
                missed.insert(*cookie);
            }
            stays
        });
    }

    /// Why connections of the last look have no place, if some have none: whose, and which bound it is.
    pub(super) fn left_out(&self) -> Option<String> {
        let mut users: BTreeMap<u32, usize> = BTreeMap::new();
        for user in self.left_out.values() {
            *users.entry(*user).or_default() += 1;
        }
        let (user, count) = users.iter().max_by_key(|(_, count)| **count)?;
        let others = match users.len() - 1 {
            0 => String::new(),
            others => format!(" and some of {}", text::count(others, "other user")),
        };
        let least = if self.cut[0].contains(user) {
            "more than "
        } else {
            ""
        };
        Some(format!(
            "no place for {least}{count} of user {user}{others}: one user has {OF_USER} at most, all together {MOST}"
        ))
    }

    /// Sockets of busy connections whose process has not been looked for.
    pub(super) fn ownerless(&self) -> BTreeSet<SocketKey> {
        let seconds = self.elapsed_ns as f64 / 1e9;
        let busy = |known: &&Entry| known.lately() as f64 >= BUSY * seconds && known.lately() > 0;
        let busy = self.known.values().filter(busy);
        let ownerless = busy.filter(|known| known.inode != 0 && known.owner == Owner::Unknown);
        ownerless.map(Entry::socket).gather()
    }

    /// Learns which descriptors the sockets of [`Self::ownerless`] have; those that are not found belong to
    /// no process that matters.
    pub(super) fn learn(&mut self, wanted: &BTreeSet<SocketKey>, found: &BTreeMap<SocketKey, Descriptor>) {
        let ownerless =
            |known: &&mut Entry| known.owner == Owner::Unknown && wanted.contains(&known.socket());
        let mut sockets = BTreeSet::new();
        let all = self.known.values().map(Entry::socket);
        let twice: BTreeSet<SocketKey> = all.filter(|socket| !sockets.insert(*socket)).gather();
        for known in self.known.values_mut().filter(ownerless) {
            known.owner = found
                .get(&known.socket())
                .filter(|_| !twice.contains(&known.socket()))
                .map_or(Owner::Nobody, |found| Owner::By(*found));
        }
    }

    /// Has connections searched again whose process did not matter: libraries may be loaded late.
    pub(super) fn doubt(&mut self) {
        for known in self.known.values_mut() {
            if known.owner == Owner::Nobody {
                known.owner = Owner::Unknown;
            }
        }
    }

    /// Takes connections from owners of whose descriptors and inodes `closed` returns those that they have no
    /// longer.
    pub(super) fn release(
        &mut self,
        closed: impl FnOnce(Vec<(Descriptor, u32)>) -> BTreeSet<(Descriptor, u32)>,
    ) {
        let owned = |known: &Entry| match known.owner {
            Owner::By(descriptor) => Some((descriptor, known.inode)),
            Owner::Unknown | Owner::Nobody => None,
        };
        let closed = closed(self.known.values().filter_map(owned).collect());
        self.take(|known, descriptor| closed.contains(&(descriptor, known.inode)));
    }

    /// Forgets a process that ended.
    pub(super) fn forget(&mut self, pid: u32) {
        self.take(|_, descriptor| descriptor.pid == pid);
        self.sums.remove(&pid);
    }

    /// Takes connections from their owners. Another process, as a child, may have had them open all the time:
    /// for whoever is found they count from now on, because when in the last interval they changed hands is
    /// not known.
    fn take(&mut self, is: impl Fn(&Entry, Descriptor) -> bool) {
        for known in self.known.values_mut() {
            if let Owner::By(descriptor) = known.owner
                && is(known, descriptor)
            {
                (known.owner, known.lately) = (Owner::Unknown, [0; 2]);
            }
        }
    }

    /// Counts what connections moved since the look before for their owners.
    pub(super) fn count(&mut self) {
        self.sums.values_mut().for_each(|[_, lately]| *lately = [0; 2]);
        for known in self.known.values() {
            if let Owner::By(Descriptor { pid, .. }) = known.owner {
                let sum = self.sums.entry(pid).or_default();
                for of in sum {
                    (0..2).for_each(|way| of[way] += known.lately[way]);
                }
            }
        }
    }

    /// What each process that matters moved. When it started is not known here.
    pub(super) fn processes(&self) -> BTreeMap<u32, TcpTotals> {
        let of = |(pid, [moved, lately]): (&u32, &[[u64; 2]; 2])| {
            let sum = TcpTotals {
                pid: *pid,
                moved: *moved,
                lately: *lately,
                ..TcpTotals::default()
            };
            (*pid, (sum, 0))
        };
        let mut out: BTreeMap<u32, (TcpTotals, u64)> = self.sums.iter().map(of).gather();
        for known in self.known.values() {
            if let Owner::By(Descriptor { pid, .. }) = known.owner
                && let Some((sum, most)) = out.get_mut(&pid)
            {
                sum.connections += 1;
                if sum.busiest.is_none() || known.lately() > *most {
                    (sum.busiest, *most) = (Some(known.remote), known.lately());
                }
            }
        }
        out.into_iter().map(|(pid, (sum, _))| (pid, sum)).gather()
    }
}

impl Entry {
    /// One that is new has moved all of its bytes since the look before; of any other it is not known when.
    fn new(connection: &Connection, is_new: bool) -> Self {
        let mut new = Self {
            user: connection.user,
            inode: connection.inode,
            remote: connection.remote,
            read: if is_new { [0; 2] } else { counts(connection) },
            lately: [0; 2],
            owner: Owner::Unknown,
        };
        new.read(connection);
        new
    }

    /// A list may have a connection twice.
    fn read(&mut self, connection: &Connection) {
        let read = counts(connection);
        (0..2).for_each(|way| self.lately[way] += read[way].saturating_sub(self.read[way]));
        (self.read, self.inode) = (read, connection.inode);
    }

    fn socket(&self) -> SocketKey {
        (self.inode, self.user)
    }

    /// Bytes both ways.
    fn lately(&self) -> u64 {
        self.lately.iter().sum()
    }
}

fn counts(connection: &Connection) -> [u64; 2] {
    [connection.sent, connection.received]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: u64 = 1_000_000_000;

    fn by(pid: u32, fd: u32) -> Descriptor {
        let thread = pid;
        Descriptor { pid, thread, fd }
    }

    impl Totals {
        /// A search finds processes of inodes, and none of the others.
        fn found(&mut self, owners: &[(u32, u32)]) {
            let wanted = self.ownerless();
            let of_user = |key: &SocketKey| {
                let (_, pid) = owners.iter().find(|(inode, _)| *inode == key.0)?;
                Some((*key, by(*pid, 3)))
            };
            self.learn(&wanted, &wanted.iter().filter_map(of_user).collect());
            self.count();
        }

        fn sent(&self, pid: u32) -> u64 {
            self.processes()[&pid].moved[0]
        }
    }

    fn connection(cookie: u64, inode: u32, sent: u64, received: u64) -> Connection {
        let last = cookie % 256;
        Connection {
            cookie,
            inode,
            user: 1000,
            local: "10.0.0.1:40000".parse().unwrap(),
            remote: format!("10.0.0.{last}:45000").parse().unwrap(),
            sent,
            received,
        }
    }

    fn of(user: u32, cookie: u64, inode: u32, sent: u64) -> Connection {
        Connection {
            user,
            ..connection(cookie, inode, sent, 0)
        }
    }

    /// As many connections as one user may have, and two more.
    fn too_many() -> Vec<Connection> {
        let cookies = 0..u64::try_from(OF_USER).unwrap() + 2;
        cookies.map(|cookie| of(1000, cookie, 7, 900_000_000)).collect()
    }

    #[test]
    fn what_is_new_is_counted_whole_also_while_others_have_no_place() {
        let (mut totals, mut all) = (Totals::default(), too_many());
        totals.look(&all, S);
        assert_eq!((totals.left_out.len(), totals.known.len()), (2, OF_USER));
        // Another user's begins. Of the first user one closes, and one that begins is listed before those
        // that had no place.
        all[0] = of(1000, 1 << 20, 8, 40_000_000);
        all.push(of(2000, 1 << 21, 9, 50_000_000));
        totals.look(&all, 2 * S);
        assert_eq!((totals.left_out.len(), totals.known.len()), (2, OF_USER + 1));
        assert_eq!(totals.ownerless(), BTreeSet::from([(8, 1000), (9, 2000)]));
        totals.found(&[(8, 8), (9, 9)]);
        assert_eq!([8, 9].map(|pid| totals.sent(pid)), [40_000_000, 50_000_000]);
    }

    #[test]
    fn a_socket_of_another_user_with_the_same_inode_is_nobody_s() {
        let mut totals = Totals::default();
        totals.look(&[], S);
        let both = [of(1000, 1, 7, 40_000_000), of(2000, 2, 7, 90_000_000)];
        totals.look(&both, 2 * S);
        let its = BTreeMap::from([((7, 1000), by(9, 3))]);
        totals.learn(&totals.ownerless(), &its);
        totals.count();
        assert_eq!(totals.sent(9), 40_000_000);
    }

    #[test]
    fn of_two_connections_with_one_inode_none_has_an_owner() {
        let mut totals = Totals::default();
        totals.look(&[], S);
        totals.look(&[of(1000, 1, 7, 40_000_000), of(1000, 2, 7, 90_000_000)], 2 * S);
        totals.found(&[(7, 9)]);
        assert!(totals.processes().is_empty());
    }

    #[test]
    fn what_only_now_has_a_place_has_moved_nothing_yet() {
        let (mut totals, mut all) = (Totals::default(), too_many());
        totals.look(&all, S);
        all.drain(..2);
        totals.look(&all, 2 * S);
        assert_eq!((totals.left_out.len(), totals.known.len()), (0, OF_USER));
        assert_eq!(totals.ownerless(), BTreeSet::new());
        // What it moves from then on counts.
        all.last_mut().unwrap().inode = 8;
        all.last_mut().unwrap().sent += 30_000_000;
        totals.look(&all, 3 * S);
        totals.found(&[(8, 8)]);
        assert_eq!(totals.sent(8), 30_000_000);
    }

    #[test]
    fn the_note_names_the_bound_and_whose_connections_have_no_place() {
        let (mut totals, mut all) = (Totals::default(), too_many());
        totals.look(&all[2..], S);
        assert_eq!(totals.left_out(), None);
        totals.look(&all, 2 * S);
        let of_one = "no place for 2 of user 1000: one user has 16384 at most, all together 65536";
        assert_eq!(totals.left_out().as_deref(), Some(of_one));
        all.extend((0..=OF_USER).map(|at| of(2000, (1 << 32) + at as u64, 7, 0)));
        totals.look(&all, 3 * S);
        let of_two = of_one.replace("1000:", "1000 and some of 1 other user:");
        assert_eq!(totals.left_out(), Some(of_two));
    }

    #[test]
    fn a_process_has_what_its_connections_moved_since_they_were_seen() {
        let mut totals = Totals::default();
        totals.look(&[connection(1, 11, 500, 0), connection(2, 12, 0, 0)], S);
        assert_eq!(
            totals.ownerless(),
            BTreeSet::new(),
            "what it moved before is not known to be recent"
        );
        let now = [
            connection(1, 11, 30_000_500, 7),
            connection(2, 12, 5, 0),
            connection(3, 13, 40_000_000, 0),
        ];
        totals.look(&now, 2 * S);
        assert_eq!(totals.ownerless(), BTreeSet::from([(11, 1000), (13, 1000)]));
        totals.found(&[(11, 4711)]);
        assert_eq!(totals.ownerless(), BTreeSet::new());
        let sums = totals.processes();
        assert_eq!(sums.len(), 1);
        assert_eq!((sums[&4711].moved, sums[&4711].connections), ([30_000_000, 7], 1));
        assert_eq!(sums[&4711].busiest.unwrap().to_string(), "10.0.0.1:45000");
        // Library loaded late.
        totals.doubt();
        totals.look(&[now[0], connection(3, 13, 80_000_000, 0)], 3 * S);
        assert_eq!(totals.ownerless(), BTreeSet::from([(13, 1000)]));
    }

    #[test]
    fn a_closed_connection_stays_in_its_process_s_sum_until_that_ends() {
        let mut totals = Totals::default();
        totals.look(&[], S);
        totals.look(&[connection(1, 11, 30_000_000, 0)], 2 * S);
        totals.found(&[(11, 7)]);
        totals.look(&[], 3 * S);
        totals.count();
        let sums = totals.processes();
        assert_eq!(sums[&7].moved, [30_000_000, 0]);
        assert_eq!((sums[&7].lately, sums[&7].connections), ([0; 2], 0));
        totals.forget(7);
        assert_eq!(totals.processes(), BTreeMap::new());
    }

    #[test]
    fn a_slow_connection_is_not_worth_reading_every_process() {
        let mut totals = Totals::default();
        totals.look(&[], S);
        totals.look(&[connection(1, 11, 9_000_000, 0)], 2 * S);
        assert_eq!(totals.ownerless(), BTreeSet::new());
    }

    #[test]
    fn what_moved_before_its_owner_was_known_is_in_no_interval() {
        let mut totals = Totals::default();
        let mut sent = 0;
        for second in 1..=40 {
            totals.look(&[connection(1, 11, sent, 0)], second * S);
            sent += 1_000_000_000;
        }
        totals.found(&[(11, 7)]);
        let of = |totals: &Totals| (totals.processes()[&7].moved[0], totals.processes()[&7].lately[0]);
        assert_eq!(of(&totals), (1_000_000_000, 1_000_000_000));
        totals.look(&[connection(1, 11, sent, 0)], 41 * S);
        totals.count();
        assert_eq!(of(&totals), (2_000_000_000, 1_000_000_000));
    }

    #[test]
    fn what_a_list_that_is_cut_lacked_has_moved_nothing_yet() {
        let mut totals = Totals::default();
        let [mine, yours] = [of(1000, 1, 7, 90_000_000), of(2000, 2, 8, 90_000_000)];
        totals.lacks(BTreeSet::from([1000]));
        totals.look(&[], S);
        totals.look(&[mine, yours], 2 * S);
        totals.found(&[(7, 7), (8, 8)]);
        assert!(!totals.processes().contains_key(&7));
        assert_eq!(totals.sent(8), 90_000_000);
        // From then on, and of the next list nothing was said.
        let [mine, next] = [of(1000, 1, 7, 120_000_000), of(1000, 3, 9, 40_000_000)];
        totals.look(&[mine, next], 3 * S);
        totals.found(&[(7, 7), (9, 9)]);
        assert_eq!([7, 9].map(|pid| totals.sent(pid)), [30_000_000, 40_000_000]);
    }

    #[test]
    fn a_connection_that_one_list_lacks_moves_nothing_at_once() {
        let mut totals = Totals::default();
        let at = |sent| [connection(1, 11, sent, 0)];
        totals.look(&at(0), S);
        totals.look(&at(30_000_000), 2 * S);
        totals.found(&[(11, 7)]);
        for (second, list) in [(3, &[][..]), (4, &at(90_000_000))] {
            totals.look(list, second * S);
            totals.found(&[(11, 7)]);
            assert_eq!(
                (totals.sent(7), totals.processes()[&7].lately),
                (30_000_000, [0; 2])
            );
        }
        totals.look(&at(120_000_000), 5 * S);
        totals.found(&[(11, 7)]);
        assert_eq!(totals.sent(7), 60_000_000);
    }

    /// What happens between two looks.
    #[derive(Clone, Debug)]
    enum Step {
        /// A process opens a connection.
        Open(u32),
        Move(usize, u64),
        /// Another process gets it, and the one before closes it.
        HandOver(usize, u32),
        /// A process ends, and a child goes on with its connections; its number is another process's at once.
        End(u32),
        Close(usize),
        /// The next list lacks it.
        Hide(usize),
        /// Whether processes are searched, and which of them matter.
        Look(bool, [bool; 4]),
    }

    fn step() -> impl Strategy<Value = Step> {
        let (pid, at) = (|| 0..4_u32, || 0..4_usize);
        prop_oneof![
            pid().prop_map(Step::Open),
            (at(), 0..4_u64).prop_map(|(at, units)| Step::Move(at, units * 7_000_000)),
            (at(), 0..4_u64).prop_map(|(at, units)| Step::Move(at, units * 7_000_000)),
            (at(), pid()).prop_map(|(at, pid)| Step::HandOver(at, pid)),
            pid().prop_map(Step::End),
            at().prop_map(Step::Close),
            at().prop_map(Step::Hide),
            (any::<bool>(), any::<[bool; 4]>()).prop_map(|(search, matter)| Step::Look(search, matter)),
            (Just(true), Just([true; 4])).prop_map(|(search, matter)| Step::Look(search, matter)),
        ]
    }

    /// A process: its number, and how many had the number before it.
    type Who = (u32, u32);

    /// A connection as it truly is.
    #[derive(Clone, Debug)]
    struct Truth {
        sent: u64,
        open: bool,
        holder: Descriptor,
        hidden: bool,
        /// It was in the last list, and nobody else has had it since.
        steady: bool,
        /// Who was known to own it at the last look.
        known: Option<Who>,
        /// What each moved since then.
        moved: BTreeMap<Who, u64>,
    }

    #[derive(Default)]
    struct World {
        all: Vec<Truth>,
        lives: [u32; 4],
        ended: BTreeSet<u32>,
        totals: Totals,
        seconds: u64,
        /// The sums of what intervals had.
        sums: BTreeMap<Who, u64>,
    }

    impl World {
        fn who(&self, pid: u32) -> Who {
            (pid, self.lives[pid as usize])
        }

        fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
            let fd = u32::try_from(self.seconds).unwrap() + 10;
            let places = self.all.len().max(1);
            match *step {
                Step::Open(pid) => self.all.push(Truth {
                    sent: 0,
                    open: true,
                    holder: by(pid, fd),
                    hidden: false,
                    steady: false,
                    known: None,
                    moved: BTreeMap::new(),
                }),
                Step::Move(at, bytes) => {
                    let lives = self.lives;
                    if let Some(one) = self.all.get_mut(at % places).filter(|one| one.open) {
                        one.sent += bytes;
                        let pid = one.holder.pid;
                        *one.moved.entry((pid, lives[pid as usize])).or_default() += bytes;
                    }
                }
                Step::HandOver(at, pid) => {
                    if let Some(one) = self.all.get_mut(at % places) {
                        (one.holder, one.steady) = (by(pid, fd), false);
                    }
                }
                Step::End(pid) => {
                    self.ended.insert(pid);
                    self.lives[pid as usize] += 1;
                    for one in self.all.iter_mut().filter(|one| one.holder.pid == pid) {
                        (one.holder.pid, one.steady) = ((pid + 1) % 4, false);
                    }
                }
                Step::Close(at) => self
                    .all
                    .iter_mut()
                    .skip(at % places)
                    .take(1)
                    .for_each(|one| one.open = false),
                // What no list has had yet, or two lack, is new: nothing says how old it is.
                Step::Hide(at) => self
                    .all
                    .iter_mut()
                    .skip(at % places)
                    .take(1)
                    .for_each(|one| one.hidden = one.steady),
                Step::Look(search, matter) => return self.look(search, matter),
            }
            Ok(())
        }

        fn look(&mut self, search: bool, matter: [bool; 4]) -> Result<(), TestCaseError> {
            self.seconds += 1;
            let inode = |at: usize| u32::try_from(at).unwrap() + 1;
            let listed: Vec<usize> = (0..self.all.len())
                .filter(|at| self.all[*at].open && !self.all[*at].hidden)
                .collect();
            let list = listed
                .iter()
                .map(|at| connection(*at as u64, inode(*at), self.all[*at].sent, 0));
            self.totals.look(&list.collect::<Vec<_>>(), self.seconds * S);
            for pid in std::mem::take(&mut self.ended) {
                self.totals.forget(pid);
            }
            let all = &self.all;
            self.totals.release(|owned| {
                let is_closed =
                    |(descriptor, inode): &(Descriptor, u32)| all[*inode as usize - 1].holder != *descriptor;
                owned.into_iter().filter(is_closed).collect()
            });
            let wanted = self.totals.ownerless();
            if search {
                let holders = wanted
                    .iter()
                    .map(|key| (*key, self.all[key.0 as usize - 1].holder));
                let found = holders
                    .filter(|(_, holder)| matter[holder.pid as usize])
                    .collect();
                self.totals.learn(&wanted, &found);
            }
            self.totals.count();
            self.check(&listed)?;
            for (at, one) in self.all.iter_mut().enumerate() {
                let known = self.totals.known.get(&(at as u64)).map(|known| known.owner);
                one.known = match known {
                    Some(Owner::By(by)) => Some((by.pid, self.lives[by.pid as usize])),
                    _ => None,
                };
                (one.hidden, one.steady) = (false, listed.contains(&at));
                one.moved.clear();
            }
            Ok(())
        }

        fn check(&mut self, listed: &[usize]) -> Result<(), TestCaseError> {
            let uses = self.totals.processes();
            for pid in 0..4 {
                let who = self.who(pid);
                let lately = uses.get(&pid).map_or(0, |one| one.lately[0]);
                let of = |one: &Truth| one.holder.pid == pid;
                // Not what another owner moved who was known, nor what moved before the interval.
                let own = |one: &Truth| {
                    let others = one
                        .moved
                        .iter()
                        .filter(|(by, _)| **by == who || one.known != Some(**by));
                    others.map(|(_, bytes)| bytes).sum::<u64>()
                };
                let most: u64 = self.all.iter().filter(|one| of(one)).map(own).sum();
                prop_assert!(lately <= most, "{lately} of {most}: {pid} {:#?}", self.all);
                // All that it moved while it was known.
                let known = listed.iter().map(|at| &self.all[*at]);
                let known = known.filter(|one| one.known == Some(who) && one.steady);
                let least: u64 = known.map(|one| one.moved.get(&who).copied().unwrap_or(0)).sum();
                prop_assert!(lately >= least, "{lately}, not {least}: {pid} {:#?}", self.all);
                let sum = self.sums.entry(who).or_default();
                *sum += lately;
                prop_assert_eq!(*sum, uses.get(&pid).map_or(0, |one| one.moved[0]));
            }
            Ok(())
        }
    }

    proptest! {
        /// In any order of what happens to connections and their owners.
        #[test]
        fn each_has_what_moved_while_it_was_known_and_no_interval_has_more(
            steps in prop::collection::vec(step(), 1..60),
        ) {
            let mut world = World::default();
            for step in steps.iter().chain([&Step::Look(true, [true; 4])]) {
                world.step(step)?;
            }
        }
    }
}
