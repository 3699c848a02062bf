//! From counts of connections to counts of processes. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::SocketAddr,
};

use rdmatop_base::text;

use super::diag::Connection;

/// Bytes per second from which the process of a connection is searched: that reads `/proc/*/fd` of all
/// processes.
const BUSY: f64 = 10e6;
/// Connections kept at most.
const MOST: usize = 1 << 16;
/// Of these of one user.
const OF_USER: usize = MOST / 4;

/// What connections of one process moved since they were first seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Connections that are open.
    pub(super) connections: u32,
    /// The other end of the one that moved most in the last interval.
    pub(super) busiest: Option<SocketAddr>,
}

#[derive(Debug)]
struct Entry {
    user: u32,
    inode: u32,
    remote: SocketAddr,
    /// Counts as read last.
    sent: u64,
    received: u64,
    /// Bytes moved since the connection was first seen: sent, received.
    moved: [u64; 2],
    /// Bytes sent and received in the last interval.
    lately: u64,
}

/// Counts of connections over time.
#[derive(Debug, Default)]
pub(super) struct Totals {
    known: HashMap<u64, Entry>,
    /// Bytes that the closed connections of a process moved: sent, received.
    closed: BTreeMap<u32, [u64; 2]>,
    /// PID by inode. `None`: searched, and no process that matters has it open.
    owners: HashMap<u32, Option<u32>>,
    at_ns: Option<u64>,
    elapsed_ns: u64,
    /// The connections of the last look that found no place, and their users.
    left_out: HashMap<u64, u32>,
}

impl Totals {
    /// Takes the connections of one look, at `now_ns`.
    pub(super) fn look(&mut self, connections: &[Connection], now_ns: u64) {
        let is_first = self.at_ns.is_none();
        self.elapsed_ns = self.at_ns.map_or(0, |last| now_ns.saturating_sub(last));
        self.at_ns = Some(now_ns);
        // Before places are given: those of connections that have closed are free.
        self.close(connections);
        let mut of_user: HashMap<u32, usize> = HashMap::new();
        for known in self.known.values() {
            *of_user.entry(known.user).or_default() += 1;
        }
        let had_no_place = std::mem::take(&mut self.left_out);
        for connection in connections {
            let of_user = of_user.entry(connection.user).or_default();
            let is_room = self.known.len() < MOST && *of_user < OF_USER;
            match self.known.get_mut(&connection.cookie) {
                Some(known) => known.read(connection),
                None if is_room => {
                    *of_user += 1;
                    let is_new = !is_first && !had_no_place.contains_key(&connection.cookie);
                    let entry = Entry::new(connection, is_new);
                    self.known.insert(connection.cookie, entry);
                }
                None => {
                    self.left_out.insert(connection.cookie, connection.user);
                }
            }
        }
    }

    /// Forgets connections that are not among these, but for what they moved for their processes.
    fn close(&mut self, connections: &[Connection]) {
        let open: BTreeSet<u64> = connections.iter().map(|one| one.cookie).collect();
        let Self {
            known,
            owners,
            closed,
            ..
        } = self;
        known.retain(|cookie, known| {
            let stays = open.contains(cookie);
            if !stays && let Some(Some(pid)) = owners.remove(&known.inode) {
                let sum = closed.entry(pid).or_default();
                (0..2).for_each(|way| sum[way] += known.moved[way]);
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
        Some(format!(
            "no place for {count} of user {user}{others}: one user has {OF_USER} at most, all together {MOST}"
        ))
    }

    /// Inodes of busy connections whose process has not been looked for.
    pub(super) fn ownerless(&self) -> BTreeSet<u32> {
        let seconds = self.elapsed_ns as f64 / 1e9;
        let busy = |known: &&Entry| known.lately as f64 >= BUSY * seconds && known.lately > 0;
        let busy = self.known.values().filter(busy).map(|known| known.inode);
        busy.filter(|inode| *inode != 0 && !self.owners.contains_key(inode))
            .collect()
    }

    /// Learns the process of an inode; `None` when no process that matters has it open.
    pub(super) fn learn(&mut self, inode: u32, pid: Option<u32>) {
        self.owners.insert(inode, pid);
    }

    /// Has connections searched again whose process did not matter: libraries may be loaded late.
    pub(super) fn doubt(&mut self) {
        self.owners.retain(|_, pid| pid.is_some());
    }

    /// Forgets a process that ended.
    pub(super) fn forget(&mut self, pid: u32) {
        self.owners.retain(|_, owner| *owner != Some(pid));
        self.closed.remove(&pid);
    }

    /// What each process that matters moved.
    pub(super) fn processes(&self) -> BTreeMap<u32, Use> {
        let mut out: BTreeMap<u32, (Use, u64)> = BTreeMap::new();
        for known in self.known.values() {
            let Some(Some(pid)) = self.owners.get(&known.inode) else {
                continue;
            };
            let (sum, most) = out.entry(*pid).or_default();
            sum.sent += known.moved[0];
            sum.received += known.moved[1];
            sum.connections += 1;
            if sum.busiest.is_none() || known.lately > *most {
                (sum.busiest, *most) = (Some(known.remote), known.lately);
            }
        }
        for (pid, [sent, received]) in &self.closed {
            let (sum, _) = out.entry(*pid).or_default();
            sum.sent += sent;
            sum.received += received;
        }
        out.into_iter().map(|(pid, (sum, _))| (pid, sum)).collect()
    }
}

impl Entry {
    /// One that is new has moved all of its bytes since the look before; of any other it is not known when.
    fn new(connection: &Connection, is_new: bool) -> Self {
        let mut new = Self {
            user: connection.user,
            inode: connection.inode,
            remote: connection.remote,
            sent: connection.sent,
            received: connection.received,
            moved: [0; 2],
            lately: 0,
        };
        if is_new {
            (new.sent, new.received) = (0, 0);
            new.read(connection);
        }
        new
    }

    fn read(&mut self, connection: &Connection) {
        let more = [
            connection.sent.saturating_sub(self.sent),
            connection.received.saturating_sub(self.received),
        ];
        (self.sent, self.received) = (connection.sent, connection.received);
        self.inode = connection.inode;
        (0..2).for_each(|way| self.moved[way] += more[way]);
        self.lately = more[0] + more[1];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

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
        assert_eq!(totals.ownerless(), BTreeSet::from([8, 9]));
        for inode in [8, 9] {
            totals.learn(inode, Some(inode));
        }
        assert_eq!(
            [8, 9].map(|pid| totals.processes()[&pid].sent),
            [40_000_000, 50_000_000]
        );
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
        totals.learn(8, Some(8));
        assert_eq!(totals.processes()[&8].sent, 30_000_000);
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
        assert_eq!(totals.ownerless(), BTreeSet::from([11, 13]));
        totals.learn(11, Some(4711));
        totals.learn(13, None);
        assert_eq!(totals.ownerless(), BTreeSet::new());
        let sums = totals.processes();
        assert_eq!(sums.len(), 1);
        assert_eq!(
            (sums[&4711].sent, sums[&4711].received, sums[&4711].connections),
            (30_000_000, 7, 1)
        );
        assert_eq!(sums[&4711].busiest.unwrap().to_string(), "10.0.0.1:45000");
        // Library loaded late.
        totals.doubt();
        totals.look(&[now[0], connection(3, 13, 80_000_000, 0)], 3 * S);
        assert_eq!(totals.ownerless(), BTreeSet::from([13]));
    }

    #[test]
    fn a_closed_connection_stays_in_its_process_s_sum_until_that_ends() {
        let mut totals = Totals::default();
        totals.look(&[], S);
        totals.look(&[connection(1, 11, 30_000_000, 0)], 2 * S);
        totals.learn(11, Some(7));
        totals.look(&[], 3 * S);
        let sums = totals.processes();
        assert_eq!((sums[&7].sent, sums[&7].connections), (30_000_000, 0));
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
}
