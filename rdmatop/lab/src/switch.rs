//! The switch that the ports of `lab run` are plugged into: a bridge in a network namespace of its own.
//!
//! Both ends of a connection are in the machine's own network namespace: before Linux 7 rdma_rxe sends and
//! receives in the first one alone (`rxe_net.c`: `init_net`). Packets between two of its ports cross the
//! switch all the same, because a link-local address belongs to one interface: to any other it is a
//! neighbour. So no route, rule or setting of the machine is changed.
//!
//! The namespace has no name. It lives as long as this process holds it, and with it go the switch, the
//! cables, both ends of each, and the RDMA devices on them: whatever ends the process.
use std::fs::{self, File};
use std::{io, os::fd::AsFd, path::Path, thread, time::Duration};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use super::{LabError, cannot, link};
use super::{host::refused, work::wait};
use rdmatop_sources::netlink::error::NetlinkError;

/// A port is ready within milliseconds, on an emulated machine within a second.
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
pub(super) struct Switch {
    /// None on the made-up machine of the tests.
    namespace: Option<File>,
}

impl Switch {
    /// Makes a namespace with the switch in it.
    pub(super) fn make() -> Result<Self, LabError> {
        let made = in_thread(|| {
            // SAFETY: the network namespace alone is another one, and of this thread, which ends below. File
            // descriptors and memory stay shared as they were.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(std::io::Error::from)?;
            let namespace = File::open("/proc/thread-self/ns/net")?;
            Ok((namespace, link::add_switch()))
        });
        let (namespace, added) = made.map_err(|error| no_namespace(&error))?;
        added.map_err(refused("make a bridge (module bridge)"))?;
        Ok(Self {
            namespace: Some(namespace),
        })
    }

    /// Makes an interface here, down, whose other end is plugged in.
    pub(super) fn add_cable(&self, name: &str, address: [u8; 6], mtu: u32) -> Result<(), LabError> {
        let Some(namespace) = &self.namespace else {
            return Ok(());
        };
        link::add_cable(name, address, mtu, namespace.as_fd())
            .map_err(refused(format!("make interface {name} (module veth)")))?;
        let plugged: Result<Result<(), NetlinkError>, _> = in_thread(|| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(link::plug(name))
        });
        plugged
            .map_err(|error| no_namespace(&error))?
            .map_err(refused(format!("plug {name} in")))
    }
}

fn no_namespace(error: &io::Error) -> LabError {
    let reason = format!("{error}; it takes CAP_SYS_ADMIN: run on the host");
    cannot("use a network namespace", &reason)
}

/// Runs `work` in a thread: when that changes its network namespace, the caller's stays as it is.
fn in_thread<T: Send>(work: impl FnOnce() -> std::io::Result<T> + Send) -> std::io::Result<T> {
    thread::scope(|scope| {
        let ended = scope.spawn(work).join();
        ended.unwrap_or_else(|_| Err(std::io::Error::other("a thread panicked")))
    })
}

/// Lets the kernel give an interface a link-local address that can be used at once: nobody else can have it,
/// so duplicates are not looked for. The machine's defaults may be otherwise.
pub(super) fn prepare_ipv6(name: &str) -> Result<(), LabError> {
    let dir = Path::new("/proc/sys/net/ipv6/conf").join(name);
    if !dir.exists() {
        return Err(LabError::NoIpv6);
    }
    for (file, value) in [("disable_ipv6", "0"), ("accept_dad", "0"), ("addr_gen_mode", "0")] {
        let path = dir.join(file);
        fs::write(&path, value).map_err(|error| cannot(format!("write {}", path.display()), &error))?;
    }
    Ok(())
}

/// Waits until port 1 of a device is ACTIVE and has its link-local GID, which the kernel writes from a work
/// queue.
pub(super) fn await_device(name: &str) -> Result<(), LabError> {
    let port = Path::new("/sys/class/infiniband").join(name).join("ports/1");
    let has =
        |file: &str, word: &str| fs::read_to_string(port.join(file)).is_ok_and(|text| text.contains(word));
    let is_ready = || (has("state", "ACTIVE") && has("gids/0", "fe80:")).then_some(());
    wait(LIMIT, is_ready).ok_or_else(|| LabError::NotReady(name.into()))
}
