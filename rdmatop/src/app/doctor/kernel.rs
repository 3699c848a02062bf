//! What the RDMA core reports by netlink: devices that are being removed, and processes that use devices.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    ops::ControlFlow,
    os::unix::ffi::OsStrExt,
};

use rdmatop_base::{ib::QpType, text};
use rdmatop_doctor::Reading;
use rdmatop_sources::{
    netlink::{
        client::Nldev,
        error::NetlinkError,
        name::Name,
        record::{NetnsMode, Owner, Qp},
        transport::Transport,
    },
    open_files,
    proc::process_of,
    removal,
    root::Root,
};

#[derive(Debug, Default)]
pub(super) struct NetlinkFacts {
    /// Devices that are being removed, each with its holders.
    pub(super) leaving: Reading<Vec<(String, String)>>,
    /// Processes with an open device.
    pub(super) users: BTreeSet<u32>,
    /// Ports with queue pairs, by the name of their device.
    pub(super) in_use: BTreeMap<String, BTreeSet<u32>>,
    /// Processes with queue pairs.
    pub(super) with_qps: BTreeSet<u32>,
    /// Each device belongs to one network namespace (`rdma system`: netns exclusive).
    pub(super) exclusive: bool,
    /// Questions that netlink did not answer, or not whole, each with why: what they ask for is not known to
    /// be empty.
    pub(super) unanswered: Vec<(&'static str, &'static str)>,
}

pub(super) const USERS: &str = "processes that use RDMA";
const IN_USE: &str = "ports that have queue pairs";
const REFUSED: &str = "RDMA netlink answers with an error";
const CHANGING: &str = "its list changed each time while RDMA netlink sent it";

impl NetlinkFacts {
    /// Notes that a question has no answer.
    fn known<T: Default>(&mut self, what: &'static str, answer: Result<T, NetlinkError>) -> T {
        answer.unwrap_or_else(|error| {
            let why = match error {
                NetlinkError::Interrupted => CHANGING,
                _ => REFUSED,
            };
            self.unanswered.push((what, why));
            T::default()
        })
    }
}

pub(super) fn ask(root: &Root) -> NetlinkFacts {
    let mut nldev = match Nldev::open() {
        Ok(nldev) => nldev,
        Err(NetlinkError::NoRdma) => return NetlinkFacts::default(),
        Err(error) => {
            return NetlinkFacts {
                leaving: Reading::Unreadable(format!("RDMA netlink: {error}")),
                unanswered: vec![(USERS, REFUSED), (IN_USE, REFUSED)],
                ..NetlinkFacts::default()
            };
        }
    };
    let mode = nldev.netns_mode().ok().flatten();
    let mut said = NetlinkFacts {
        exclusive: mode == Some(NetnsMode::Exclusive),
        leaving: match leaving(root, &mut nldev) {
            Ok(leaving) => Reading::Known(leaving),
            Err(error) => Reading::Unreadable(format!("RDMA netlink: {error}")),
        },
        ..NetlinkFacts::default()
    };
    said.users = said.known(USERS, users(root, &mut nldev));
    (said.in_use, said.with_qps) = said.known(IN_USE, in_use(root, &mut nldev));
    said
}

/// Ports with queue pairs, and the processes that have any.
type InUse = (BTreeMap<String, BTreeSet<u32>>, BTreeSet<u32>);

/// Ports with queue pairs of programs, or connected ones of the kernel. The kernel has others (SMI, GSI,
/// IPoIB) on each port, whether it has a cable or not.
fn in_use<T: Transport>(root: &Root, nldev: &mut Nldev<T>) -> Result<InUse, NetlinkError> {
    let is_of_use = |qp: &Qp| {
        qp.owner.as_ref().and_then(Owner::pid).is_some()
            || matches!(qp.qp_type, Some(QpType::RC | QpType::UC))
    };
    let mut ports: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    let mut tids = BTreeSet::new();
    for (name, summary) in nldev.named_summaries()?.whole()? {
        let all = nldev.qps(summary.device_index)?.whole()?;
        tids.extend(all.iter().filter_map(|qp| qp.owner.as_ref().and_then(Owner::pid)));
        let device = name.to_string().replace('/', "!");
        ports
            .entry(device)
            .or_default()
            .extend(all.iter().filter(|qp| is_of_use(qp)).filter_map(|qp| qp.port));
    }
    Ok((ports, tids.into_iter().map(|tid| process_of(root, tid)).collect()))
}

/// All devices that netlink lists: one that is left out would be called one that is being removed.
fn listed<T: Transport>(nldev: &mut Nldev<T>) -> Result<Vec<Name>, NetlinkError> {
    let all = nldev.named_summaries()?.whole()?;
    Ok(all.into_iter().map(|(name, _)| name).collect())
}

fn leaving<T: Transport>(root: &Root, nldev: &mut Nldev<T>) -> Result<Vec<(String, String)>, NetlinkError> {
    let shared = nldev.netns_mode()? == Some(NetnsMode::Shared);
    let found = removal::waiting(root, shared, || listed(nldev))?;
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let held = removal::holders(root).to_string();
    let held = |dir: OsString| (text::sanitize(dir.as_bytes()), held.clone());
    Ok(found.into_iter().map(held).collect())
}

fn users<T: Transport>(root: &Root, nldev: &mut Nldev<T>) -> Result<BTreeSet<u32>, NetlinkError> {
    let mut tids = BTreeSet::new();
    for (_, summary) in nldev.named_summaries()?.whole()? {
        // Linux 5.10 does not list contexts. A process with a context has a protection domain, unless it only
        // queries the device.
        let device = summary.device_index;
        let contexts = nldev.ctxs(device).or_else(|_| nldev.pds(device))?;
        tids.extend(
            contexts
                .whole()?
                .iter()
                .filter_map(|one| one.owner.as_ref()?.pid()),
        );
    }
    // Doctor looks at each process once: a thread would be a second one, with the same faults.
    Ok(tids.into_iter().map(|tid| process_of(root, tid)).collect())
}

/// Processes with an open file of an RDMA device or of a GPU, as far as their files are readable, each with
/// whether it is one of an RDMA device, and whether the search stopped at its limit of `most` files.
pub(super) fn openers(root: &Root, most: usize) -> (BTreeMap<u32, bool>, bool) {
    let mut found = BTreeMap::new();
    let walk = open_files::walk(root, most, is_device, |holder, file| {
        *found.entry(holder.pid).or_default() |= is_verbs(&file.target);
        ControlFlow::Continue(())
    });
    // Eight ranks with eight workers each, which load data, are 72.
    let forks = open_files::forks(root, found.keys().copied());
    found.retain(|pid, _| !forks.contains(pid));
    (found, walk.cut)
}

fn is_verbs(target: &[u8]) -> bool {
    target.starts_with(b"/dev/infiniband/uverbs")
}

fn is_device(target: &[u8]) -> bool {
    let gpu = target
        .strip_prefix(b"/dev/nvidia")
        .is_some_and(|rest| rest.first().is_some_and(u8::is_ascii_digit));
    gpu || is_verbs(target) || target == b"/dev/kfd"
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_sources::{
        fake::Fake,
        netlink::{
            attr::{
                DEV_INDEX, DEV_NAME, PORT_INDEX, RES_CTX, RES_CTX_ENTRY, RES_CTXN, RES_LQPN, RES_PID, RES_QP,
                RES_QP_ENTRY, RES_SUMMARY, cmd, message_type,
            },
            transport::{Datagram, Progress, Sink},
            wire::{DONE, F_DUMP_INTR, F_MULTI, MessageWriter, Messages},
        },
    };

    const PORTID: u32 = 77;

    /// A kernel with one device, on whose port 2 thread 10 has a context and a QP.
    struct FakeKernel {
        /// The command whose dumps change while they are sent, and how many of them do.
        changing: (u16, usize),
    }

    impl Transport for FakeKernel {
        fn exchange(&mut self, request: &[u8], sink: &mut Sink<'_>) -> Result<(), NetlinkError> {
            let request = Messages::new(request).next().unwrap().unwrap();
            let command = request.kind - message_type(0);
            let mut flags = F_MULTI;
            if command == self.changing.0 && self.changing.1 > 0 {
                self.changing.1 -= 1;
                flags |= F_DUMP_INTR;
            }
            let named = MessageWriter::new(request.kind, flags, request.seq)
                .portid(PORTID)
                .u32(DEV_INDEX, 0)
                .string(DEV_NAME, b"rxe0");
            let answer = match command {
                cmd::RES_GET => named.nest(RES_SUMMARY, |table| table),
                cmd::RES_CTX_GET => named.nest(RES_CTX, |table| {
                    table.nest(RES_CTX_ENTRY, |entry| entry.u32(RES_CTXN, 1).u32(RES_PID, 10))
                }),
                cmd::RES_QP_GET => named.nest(RES_QP, |table| {
                    table.nest(RES_QP_ENTRY, |entry| {
                        entry.u32(RES_LQPN, 17).u32(PORT_INDEX, 2).u32(RES_PID, 10)
                    })
                }),
                other => panic!("command {other}"),
            };
            let end = MessageWriter::new(DONE, F_MULTI, request.seq).portid(PORTID);
            for bytes in [answer.finish(), end.raw(&[0; 4]).finish()] {
                let portid = PORTID;
                let bytes = &bytes;
                if sink(Datagram { portid, bytes })? == Progress::Complete {
                    return Ok(());
                }
            }
            Err(NetlinkError::EndedEarly)
        }
    }

    /// Users and used ports by a kernel whose dumps of this command change so often.
    fn asked(command: u16, changes: usize) -> NetlinkFacts {
        let fake = Fake::new();
        fake.proc("10/status", "Tgid:\t9\nPid:\t10\n");
        let changing = (command, changes);
        let mut nldev = Nldev::new(FakeKernel { changing });
        let mut said = NetlinkFacts::default();
        said.users = said.known(USERS, users(&fake.root(), &mut nldev));
        (said.in_use, said.with_qps) = said.known(IN_USE, in_use(&fake.root(), &mut nldev));
        said
    }

    #[test]
    fn a_thread_that_opened_a_device_is_its_process() {
        let said = asked(cmd::RES_CTX_GET, 0);
        assert_eq!(said.users, BTreeSet::from([9]));
        assert_eq!(
            said.in_use,
            BTreeMap::from([("rxe0".to_owned(), BTreeSet::from([2]))])
        );
        assert_eq!(said.with_qps, BTreeSet::from([9]));
        assert_eq!(said.unanswered, []);
    }

    #[test]
    fn a_list_that_changes_is_asked_for_again_and_then_said_to_be_incomplete() {
        for command in [cmd::RES_CTX_GET, cmd::RES_QP_GET, cmd::RES_GET] {
            let once = asked(command, 1);
            assert_eq!((once.users.len(), once.in_use.len()), (1, 1), "{command}");
            assert_eq!(once.unanswered, [], "{command}");
        }
        let of_users = asked(cmd::RES_CTX_GET, usize::MAX);
        assert_eq!(of_users.unanswered, [(USERS, CHANGING)]);
        assert_eq!((of_users.users.len(), of_users.in_use.len()), (0, 1));
        let of_ports = asked(cmd::RES_QP_GET, usize::MAX);
        assert_eq!(of_ports.unanswered, [(IN_USE, CHANGING)]);
        let of_devices = asked(cmd::RES_GET, usize::MAX);
        assert_eq!(of_devices.unanswered, [(USERS, CHANGING), (IN_USE, CHANGING)]);
    }

    #[test]
    fn a_device_that_a_changing_list_lacks_is_not_taken_for_a_removed_one() {
        let fake = Fake::new();
        fake.sys("class/infiniband/rxe1/node_guid", "0:0\n");
        let changing = (cmd::RES_GET, usize::MAX);
        let mut nldev = Nldev::new(FakeKernel { changing });
        let error = removal::waiting(&fake.root(), true, || listed(&mut nldev)).unwrap_err();
        assert_eq!(error, NetlinkError::Interrupted);
        let changing = (cmd::RES_GET, 0);
        let mut nldev = Nldev::new(FakeKernel { changing });
        let found = removal::waiting(&fake.root(), true, || listed(&mut nldev)).unwrap();
        assert_eq!(found, ["rxe1"]);
    }

    #[test]
    fn an_error_of_netlink_is_not_taken_for_an_empty_answer() {
        let mut said = NetlinkFacts::default();
        let users = said.known(USERS, Ok(BTreeSet::from([7])));
        assert_eq!((users, said.unanswered.len()), (BTreeSet::from([7]), 0));
        let ports: BTreeMap<String, BTreeSet<u32>> = said.known(IN_USE, Err(NetlinkError::NoRdma));
        assert!(ports.is_empty());
        assert_eq!(said.unanswered, [(IN_USE, REFUSED)]);
    }
}
