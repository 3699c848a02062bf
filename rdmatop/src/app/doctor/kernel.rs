//! What the RDMA core reports by netlink: devices that are being removed, and processes that use devices.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    ops::ControlFlow,
    os::unix::ffi::OsStrExt,
    thread,
    time::Duration,
};

use rdmatop_base::{ib::QpType, text};
use rdmatop_doctor::Fact;
use rdmatop_sources::{
    netlink::{
        client::Nldev,
        enums::NetnsMode,
        error::NetlinkError,
        record::{Owner, Qp},
        socket::Socket,
    },
    open_files, removal,
    root::Root,
    sysfs::list_devices,
};

/// A device that is being created looks for some milliseconds like one that is being removed.
const AGAIN: Duration = Duration::from_millis(250);

/// Netlink's answers.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// Devices that are being removed, each with its holders.
    pub(super) leaving: Fact<Vec<(String, String)>>,
    /// Processes with an open device.
    pub(super) users: BTreeSet<u32>,
    /// Ports with queue pairs, by the name of their device.
    pub(super) in_use: BTreeMap<String, BTreeSet<u32>>,
    /// Questions that netlink did not answer: what they ask for is not known to be empty.
    pub(super) unanswered: Vec<&'static str>,
}

/// Processes that use RDMA.
pub(super) const USERS: &str = "processes that use RDMA";
const IN_USE: &str = "ports that have queue pairs";
/// Why something is among [`Said::unanswered`].
pub(super) const REFUSED: &str = "RDMA netlink answers with an error";

impl Said {
    /// Notes that a question has no answer.
    fn known<T: Default>(&mut self, what: &'static str, answer: Result<T, NetlinkError>) -> T {
        answer.unwrap_or_else(|_| {
            self.unanswered.push(what);
            T::default()
        })
    }
}

pub(super) fn ask(root: &Root) -> Said {
    let mut nldev = match Nldev::open() {
        Ok(nldev) => nldev,
        Err(NetlinkError::NoRdma) => return Said::default(),
        Err(error) => {
            return Said {
                leaving: Fact::Unreadable(format!("RDMA netlink: {error}")),
                unanswered: vec![USERS, IN_USE],
                ..Said::default()
            };
        }
    };
    let mut said = Said {
        leaving: match leaving(root, &mut nldev) {
            Ok(leaving) => Fact::Known(leaving),
            Err(error) => Fact::Unreadable(format!("RDMA netlink: {error}")),
        },
        ..Said::default()
    };
    said.users = said.known(USERS, users(&mut nldev));
    said.in_use = said.known(IN_USE, in_use(&mut nldev));
    said
}

/// Ports with queue pairs of programs, or connected ones of the kernel. The kernel has others (SMI, GSI,
/// IPoIB) on each port, whether it has a cable or not.
fn in_use(nldev: &mut Nldev<Socket>) -> Result<BTreeMap<String, BTreeSet<u32>>, NetlinkError> {
    let is_of_use = |qp: &Qp| {
        qp.owner.as_ref().and_then(Owner::pid).is_some()
            || matches!(qp.qp_type, Some(QpType::RC | QpType::UC))
    };
    let mut ports: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for (name, summary) in nldev.named_summaries()?.items {
        if summary.get("qp") == Some(0) {
            continue;
        }
        let all = nldev.qps(summary.device_index)?.items;
        let device = text::sanitize(&name.sysfs_bytes());
        ports
            .entry(device)
            .or_default()
            .extend(all.iter().filter(|qp| is_of_use(qp)).filter_map(|qp| qp.port));
    }
    Ok(ports)
}

fn leaving(root: &Root, nldev: &mut Nldev<Socket>) -> Result<Vec<(String, String)>, NetlinkError> {
    let shared = nldev.sys_get()?.netns_mode == Some(NetnsMode::Shared);
    let mut unlisted = || -> Result<Vec<OsString>, NetlinkError> {
        let listed = nldev.named_summaries()?.items;
        let has = |dir: &OsStr| {
            listed
                .iter()
                .any(|(name, _)| OsStr::from_bytes(&name.sysfs_bytes()) == dir)
        };
        let dirs = list_devices(root).unwrap_or_default();
        Ok(removal::unlisted(root, &dirs, has, shared))
    };
    let first = unlisted()?;
    if first.is_empty() {
        return Ok(Vec::new());
    }
    thread::sleep(AGAIN);
    let still = unlisted()?;
    let held = removal::holders(root).to_string();
    Ok(still
        .iter()
        .filter(|dir| first.contains(dir))
        .map(|dir| (text::sanitize(dir.as_bytes()), held.clone()))
        .collect())
}

fn users(nldev: &mut Nldev<Socket>) -> Result<BTreeSet<u32>, NetlinkError> {
    let mut users = BTreeSet::new();
    for (_, summary) in nldev.named_summaries()?.items {
        // Linux 5.10 does not list contexts. A process with a context has a protection domain, unless it only
        // queries the device.
        let device = summary.device_index;
        match nldev.ctxs(device) {
            Ok(all) => users.extend(
                all.items
                    .iter()
                    .filter_map(|ctx| ctx.owner.as_ref().and_then(Owner::pid)),
            ),
            Err(_) => users.extend(
                nldev
                    .pds(device)?
                    .items
                    .iter()
                    .filter_map(|pd| pd.owner.as_ref().and_then(Owner::pid)),
            ),
        }
    }
    Ok(users)
}

/// Processes with an open file of an RDMA device or of a GPU, as far as their files are readable, and whether
/// the search stopped at its limit of `most` files.
pub(super) fn openers(root: &Root, most: usize) -> (BTreeSet<u32>, bool) {
    let mut found = BTreeSet::new();
    let walk = open_files::walk(root, most, |pid, _, target| {
        if is_device(target) {
            found.insert(pid);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    (found, walk.cut)
}

fn is_device(target: &[u8]) -> bool {
    let gpu = target
        .strip_prefix(b"/dev/nvidia")
        .is_some_and(|rest| rest.first().is_some_and(u8::is_ascii_digit));
    gpu || target.starts_with(b"/dev/infiniband/uverbs") || target == b"/dev/kfd"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_netlink_is_not_taken_for_an_empty_answer() {
        let mut said = Said::default();
        let users = said.known(USERS, Ok(BTreeSet::from([7])));
        assert_eq!((users, said.unanswered.len()), (BTreeSet::from([7]), 0));
        let ports: BTreeMap<String, BTreeSet<u32>> = said.known(IN_USE, Err(NetlinkError::NoRdma));
        assert!(ports.is_empty());
        assert_eq!(said.unanswered, [IN_USE]);
    }
}
