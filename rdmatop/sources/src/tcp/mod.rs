//! Bytes that programs with RDMA-capable communication libraries move by TCP instead: sock_diag(7) and
//! `/proc/PID/fd`.
//!
//! Only connections between two ports that the kernel or a library chose are looked at: libraries for
//! collective communication listen on such ports, servers of files and data do not. Only connections of our
//! own network namespace are seen.

pub(crate) mod diag;
mod octets;
mod owners;
mod totals;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use self::{
    diag::{Connection, FAMILIES, connection, request},
    octets::Octets,
    owners::SocketKey,
    totals::Totals,
};
use crate::{
    netlink::{client::Nldev, error::NetlinkError, socket::Socket},
    open_files,
    proc::{ProcKey, ended, key},
    root::Root,
};
use rdmatop_base::order::Gather as _;
use rdmatop_model::{
    cause::{Cause, CauseId, Concerns},
    input::{ReadAt, TcpSample, TcpTotals},
};

const S: u64 = 1_000_000_000;
/// Looks take at most one part in `SHARE` of the time.
const SHARE: u64 = 1000;
/// Time between two looks of a running view: for each the kernel walks its whole table of connections, which
/// costs more than all else that an idle view reads in a second.
const EVERY_NS: u64 = 10 * S;
/// Time from the first look to the second, and between the first two counts of bytes: a rate needs two.
const SOON_NS: u64 = S;
/// Time between two searches of all processes, at least.
const SEARCH_NS: u64 = 5 * S;
/// After this time, processes that had no such library are searched again: they may have loaded one.
const DOUBT_NS: u64 = 60 * S;

/// Connections of one user that a look takes at most: the kernel may have millions.
const TAKEN: usize = 1 << 16;

/// What a look takes of the kernel's list.
#[derive(Debug, Default)]
struct Taken {
    all: Vec<Connection>,
    of_user: HashMap<u32, usize>,
}

impl Taken {
    fn take(&mut self, one: Connection) {
        let of_user = self.of_user.entry(one.user).or_default();
        *of_user += 1;
        if *of_user <= TAKEN {
            self.all.push(one);
        }
    }

    /// The users who have more.
    fn cut(&self) -> BTreeSet<u32> {
        let more = self.of_user.iter().filter(|(_, count)| **count > TAKEN);
        more.map(|(user, _)| *user).collect()
    }
}

/// The note that `what` is unknown of some connections.
fn unknown(what: &str, why: String) -> Cause {
    Cause {
        id: CauseId::SlowProcess,
        concerns: Concerns::Host,
        what: format!("Unknown of some TCP connections: {what}"),
        why,
        remedy: "".into(),
    }
}

/// Follows connections.
#[derive(Debug, Default)]
pub struct TcpReader {
    nldev: Option<Nldev<Socket>>,
    octets: Octets,
    totals: Totals,
    processes: BTreeMap<u32, ProcKey>,
    cut: bool,
    last: Option<ReadAt>,
    next_ns: u64,
    search_ns: u64,
    doubted_ns: u64,
}

/// Whether a library carries data between processes of a job, by RDMA where it can.
fn communicates(library: &str) -> bool {
    const NAMES: [&str; 6] = [
        "libnccl",
        "librccl",
        "libfabric",
        "libucp",
        "libnvshmem",
        "libnixl",
    ];
    NAMES.iter().any(|name| library.starts_with(name))
}

/// The first port that the kernel chooses by itself, `net.ipv4.ip_local_port_range`.
fn first_chosen(root: &Root) -> u16 {
    let range = root.value(&root.proc("sys/net/ipv4/ip_local_port_range"));
    let first = range.and_then(|range| {
        let first = range.split(u8::is_ascii_whitespace).next()?;
        std::str::from_utf8(first).ok()?.parse().ok()
    });
    first.unwrap_or(32_768)
}

/// Time after a search that took `took_ns`, in which there is no other. A user with many open files makes
/// searches long: they must not keep other users' connections without a process for longer than [`DOUBT_NS`].
fn until_next_search(took_ns: u64) -> u64 {
    took_ns.saturating_mul(SHARE).clamp(SEARCH_NS, DOUBT_NS)
}

impl TcpReader {
    /// Looks at the connections, unless the last look is too recent for its cost, or this namespace moves too
    /// few bytes for a job. With `must` it looks anyway. `None`: it did not look, or sock_diag is not there.
    /// `libraries` returns what processes have loaded, as far as they answer.
    pub fn look(
        &mut self,
        root: &Root,
        must: bool,
        clock: impl Fn() -> u64,
        libraries: impl FnOnce(Vec<ProcKey>) -> BTreeMap<ProcKey, Vec<String>>,
    ) -> Option<TcpSample> {
        if !root.is_live() || (clock() < self.next_ns && !must) {
            return None;
        }
        if !must && self.processes.is_empty() {
            let now_ns = clock();
            if let Some(wait) = self.octets.rest(root, now_ns) {
                self.next_ns = now_ns + wait;
                // The next look starts anew: otherwise it would show what connections moved in all this time
                // as moved just now.
                (self.totals, self.last) = (Totals::default(), None);
                return None;
            }
        }
        let lowest = first_chosen(root);
        if self.last.is_none() {
            // The first request loads the module tcp_diag, which takes longer than any look.
            let _ = self.connections(lowest);
        }
        let begin = clock();
        let Ok(connections) = self.connections(lowest) else {
            // Without the module inet_diag or tcp_diag there is nothing to see.
            self.next_ns = begin + DOUBT_NS;
            return None;
        };
        let end = clock();
        self.totals.look(&connections, end);
        let searched = self.attribute(root, begin, must, libraries);
        let end_ns = clock();
        if searched {
            self.search_ns = end_ns + until_next_search(end_ns - end);
        }
        let wait = if self.last.is_some() { EVERY_NS } else { SOON_NS };
        self.next_ns = end_ns + wait.max((end - begin) * SHARE);
        let at = ReadAt::between(begin, end);
        let before = self.last.replace(at);
        Some(TcpSample {
            at,
            before,
            processes: self.uses(),
            cut: self.note().map(Box::new),
        })
    }

    /// What is unknown of some connections: what they move, or their processes, because a search in the last
    /// minute stopped at its limit, [`open_files::MOST`] files of one user.
    fn note(&self) -> Option<Cause> {
        let left_out = self.totals.left_out().map(|why| unknown("what they move", why));
        left_out.or_else(|| {
            self.cut
                .then(|| unknown("their processes", open_files::CUT.to_owned()))
        })
    }

    /// Learns the processes of connections, at the time `begin`, and counts what these moved. Returns whether
    /// it searched all processes.
    fn attribute(
        &mut self,
        root: &Root,
        begin: u64,
        must: bool,
        libraries: impl FnOnce(Vec<ProcKey>) -> BTreeMap<ProcKey, Vec<String>>,
    ) -> bool {
        // Before the search: it may find a process that has the number of one that has ended, and would add
        // to what that one moved.
        self.let_go(root);
        self.totals
            .release(|owned| owners::closed(root, owned.into_iter()));
        if begin >= self.doubted_ns + DOUBT_NS {
            self.doubted_ns = begin;
            self.totals.doubt();
            self.cut = false;
        }
        let wanted = self.totals.ownerless();
        let searches = !wanted.is_empty() && (begin >= self.search_ns || must);
        if searches {
            self.search(root, &wanted, libraries);
        }
        self.totals.count();
        searches
    }

    /// What each process with such a library moved by TCP, by number.
    fn uses(&self) -> Vec<TcpTotals> {
        let sums = self.totals.processes().into_values();
        sums.filter_map(|sum| {
            let start_ticks = self.processes.get(&sum.pid)?.start;
            Some(TcpTotals { start_ticks, ..sum })
        })
        .collect()
    }

    /// Looks for the processes of connections.
    fn search(
        &mut self,
        root: &Root,
        wanted: &BTreeSet<SocketKey>,
        libraries: impl FnOnce(Vec<ProcKey>) -> BTreeMap<ProcKey, Vec<String>>,
    ) {
        let (mut found, cut) = owners::find(root, wanted, open_files::MOST);
        self.cut |= cut;
        let pids: BTreeSet<u32> = found.values().map(|found| found.pid).gather();
        for (process, libraries) in libraries(pids.iter().filter_map(|pid| key(root, *pid)).collect()) {
            if libraries.iter().any(|name| communicates(name)) {
                self.processes.insert(process.pid, process);
            }
        }
        found.retain(|_, found| self.processes.contains_key(&found.pid));
        self.totals.learn(wanted, &found);
    }

    /// Forgets processes that ended.
    fn let_go(&mut self, root: &Root) {
        let Self {
            processes, totals, ..
        } = self;
        for ended in ended(root, processes.values().copied()) {
            processes.remove(&ended.pid);
            totals.forget(ended.pid);
        }
    }

    /// Connections between two ports that were chosen.
    fn connections(&mut self, lowest: u16) -> Result<Vec<Connection>, NetlinkError> {
        let is_between_chosen = |one: &Connection| one.local.port() >= lowest && one.remote.port() >= lowest;
        let mut out = Taken::default();
        let nldev = match &mut self.nldev {
            Some(nldev) => nldev,
            none => none.insert(Nldev::new(Socket::sock_diag()?)),
        };
        for family in FAMILIES {
            nldev.run(&request(family), &mut |record| {
                // Others are left at once.
                if let Some(one) = connection(record.bytes())?.filter(is_between_chosen) {
                    out.take(one);
                }
                Ok(())
            })?;
        }
        self.totals.lacks(out.cut());
        Ok(out.all)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{TcpListener, TcpStream},
    };

    use super::*;
    use crate::fake::Fake;

    #[test]
    fn libraries_that_carry_data_of_jobs() {
        for (name, is) in [
            ("libnccl.so.2", true),
            ("libnccl-net-ofi.so", true),
            ("libucp.so.0", true),
            ("libibverbs.so.1", false),
            ("libcuda.so.1", false),
        ] {
            assert_eq!(communicates(name), is, "{name}");
        }
    }

    #[test]
    fn of_a_user_with_very_many_connections_some_are_taken_and_he_is_known() {
        let of = |user| Connection {
            user,
            cookie: 1,
            inode: 1,
            local: "10.0.0.1:40000".parse().unwrap(),
            remote: "10.0.0.2:45000".parse().unwrap(),
            sent: 0,
            received: 0,
        };
        let mut taken = Taken::default();
        (0..=TAKEN).for_each(|_| taken.take(of(1000)));
        (0..TAKEN).for_each(|_| taken.take(of(1001)));
        assert_eq!(
            (taken.all.len(), taken.cut()),
            (2 * TAKEN, BTreeSet::from([1000]))
        );
    }

    #[test]
    fn a_long_search_puts_the_next_one_off_by_a_minute_at_most() {
        let waits = [0, 20_000_000, S, u64::MAX].map(until_next_search);
        assert_eq!(waits, [5 * S, 20 * S, 60 * S, 60 * S]);
    }

    #[test]
    fn a_search_that_stopped_at_its_limit_is_told() {
        let mut reader = TcpReader::default();
        assert_eq!(reader.note(), None);
        reader.cut = true;
        let note = reader.note().unwrap().to_string();
        assert!(note.contains("TCP") && note.contains("200,000 files"), "{note}");
    }

    #[test]
    fn the_first_chosen_port_is_the_kernel_s_setting() {
        let fake = Fake::new();
        assert_eq!(first_chosen(&fake.root()), 32_768);
        fake.proc("sys/net/ipv4/ip_local_port_range", "20000\t60999\n");
        assert_eq!(first_chosen(&fake.root()), 20_000);
    }

    #[test]
    fn a_process_with_the_number_of_one_that_ended_has_its_own_bytes_alone() {
        let connection = |cookie, sent| Connection {
            user: open_files::real_user(&Fake::new().root(), 7),
            cookie,
            inode: 10 + u32::try_from(cookie).unwrap(),
            local: "10.0.0.1:40000".parse().unwrap(),
            remote: "10.0.0.2:45000".parse().unwrap(),
            sent,
            received: 0,
        };
        let fake = Fake::new();
        let mut reader = TcpReader::default();
        reader.totals.look(&[], S);
        let mut sent = |now_ns, start: u64, connection: Connection| {
            let tail = "S 1 7 7 0 -1 4194560 100 0 0 0 30 12 0 0 20 -5 4 0";
            fake.proc("7/stat", format!("7 (python3) {tail} {start} 1000 200 1\n"));
            fake.link("proc/7/fd/3", format!("socket:[{}]", connection.inode));
            reader.totals.look(&[connection], now_ns);
            reader.attribute(&fake.root(), now_ns, true, |all| {
                let libraries = || vec!["libnccl.so.2".to_owned()];
                all.into_iter().map(|process| (process, libraries())).collect()
            });
            let uses = reader.uses().into_iter();
            uses.map(|of| (of.start_ticks, of.moved[0])).collect::<Vec<_>>()
        };
        assert_eq!(sent(2 * S, 100, connection(1, 40_000_000)), [(100, 40_000_000)]);
        assert_eq!(sent(3 * S, 200, connection(2, 30_000_000)), [(200, 30_000_000)]);
    }

    /// Against this machine's kernel: what a connection moved is counted to the byte.
    #[test]
    fn a_connection_of_this_process_is_counted_to_the_byte() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        let mut reader = TcpReader::default();
        let local = sender.local_addr().unwrap();
        let of_sender = |reader: &mut TcpReader| {
            let all = match reader.connections(1024) {
                Ok(all) => all,
                Err(error) => {
                    println!("SKIPPED sock_diag: {error}");
                    return None;
                }
            };
            all.into_iter().find(|one| one.local == local)
        };
        let Some(before) = of_sender(&mut reader) else {
            return;
        };
        sender.write_all(&vec![7; 100_000]).unwrap();
        receiver.read_exact(&mut vec![0; 100_000]).unwrap();
        // The last acknowledgement may be delayed.
        for _ in 0..100 {
            if of_sender(&mut reader).is_some_and(|now| now.sent == before.sent + 100_000) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let after = of_sender(&mut reader).unwrap();
        assert_eq!(after.sent - before.sent, 100_000);
        assert_ne!(after.inode, 0);
        let socket = (after.inode, after.user);
        let (owners, _) = owners::find(&Root::default(), &BTreeSet::from([socket]), open_files::MOST);
        let owner = owners.get(&socket).unwrap();
        assert_eq!(owner.pid, std::process::id());
        assert!(owner.is(&Root::default(), after.inode));
    }
}
