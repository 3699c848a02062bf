//! What `--hw-counters` asks the kernel, and the requests by which it changes something.

use std::{collections::BTreeSet, ffi::OsString, fs, os::unix::fs::MetadataExt as _};

use crate::netlink::client::Nldev;
use crate::netlink::error::NetlinkError;
use crate::netlink::record::{Binding, CounterSet, OptionalCounter};
use crate::netlink::request::Request;
use crate::netlink::socket::Socket;
use crate::platform::find_parts;
use crate::privileges::Raised;
use crate::root::Root;
use crate::sysfs::{device_dir, list_devices, read_device, verbs_files};
use rdmatop_base::text;
use rdmatop_common::provider::Counted;

/// A device, with the values by which it is known after a renaming.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Present {
    /// Name, safe to print.
    pub name: String,
    /// Index.
    pub index: u32,
    /// Node GUID.
    pub node_guid: Option<u64>,
    /// Inode of the device's directory in sysfs.
    pub inode: Option<u64>,
    /// Number of ports.
    pub ports: u32,
}

/// The kernel, or a test's own.
pub trait Kernel {
    /// The id of this boot (/proc/sys/kernel/random/boot_id); empty where it cannot be read.
    fn boot(&mut self) -> String;
    /// Names of the devices' directories in sysfs: when they differ, the list of devices has changed.
    fn dirs(&mut self) -> Option<Vec<OsString>>;
    /// Index and name of each device, safe to print; asks no driver.
    fn list(&mut self) -> Result<Vec<(u32, String)>, NetlinkError>;
    /// The device with this index.
    fn device(&mut self, index: u32) -> Result<Present, NetlinkError>;
    /// Whether the device of this name is in some network namespace.
    fn is_anywhere(&mut self, name: &str) -> bool;
    /// Whether the driver of a device has a function that binds QPs to counters; `None` where that cannot be
    /// known.
    fn binds(&mut self, device: &Present) -> Option<bool>;
    /// How QPs of a port are bound.
    fn binding(&mut self, device: u32, port: u32) -> Result<Binding, NetlinkError>;
    /// Counters that QPs are bound to.
    fn bound(&mut self, device: u32) -> Result<Vec<CounterSet>, NetlinkError>;
    /// Optional counters; none where the kernel or the driver has none.
    fn optional(&mut self, device: u32, port: u32) -> Result<Vec<OptionalCounter>, NetlinkError>;
    /// Sends a request that changes something, with the capability for it in effect.
    fn order(&mut self, order: &Request) -> Result<(), NetlinkError>;
}

/// The kernel of this machine.
#[derive(Debug)]
pub struct Live {
    root: Root,
    nldev: Nldev<Socket>,
    /// First words of the functions that bind QPs to counters, such as `mlx5`.
    binders: Option<BTreeSet<String>>,
}

impl Live {
    /// A kernel that nothing has been asked yet.
    pub fn new(root: Root) -> Self {
        Self {
            root,
            nldev: Nldev::unopened(),
            binders: None,
        }
    }

    /// The first word of the names of its driver's functions.
    fn family(&mut self, device: &Present) -> Option<String> {
        let named = self.nldev.device(device.index).ok()?;
        let facts = read_device(&self.root, &device_dir(named.name.as_bytes())?)?;
        if facts.software {
            let counted = Counted::of_software(named.protocol.as_deref(), facts.parent_netdev.is_some());
            return Some(counted?.prefix.to_owned());
        }
        facts.driver.as_deref().map(first_word)
    }
}

fn first_word(name: &str) -> String {
    name.split('_').next().unwrap_or_default().to_owned()
}

impl Kernel for Live {
    fn boot(&mut self) -> String {
        self.root.boot_id()
    }

    fn dirs(&mut self) -> Option<Vec<OsString>> {
        list_devices(&self.root)
    }

    fn list(&mut self) -> Result<Vec<(u32, String)>, NetlinkError> {
        let list = self.nldev.named_summaries()?.whole()?.into_iter();
        Ok(list
            .map(|(name, counts)| (counts.device_index, text::sanitize(name.as_bytes())))
            .filter(|(_, name)| !self.root.excludes(name))
            .collect())
    }

    fn device(&mut self, index: u32) -> Result<Present, NetlinkError> {
        let device = self.nldev.device(index)?;
        let dir = device_dir(device.name.as_bytes());
        let path = dir.map(|dir| self.root.sys("class/infiniband").join(dir));
        Ok(Present {
            name: text::sanitize(device.name.as_bytes()),
            index,
            node_guid: device.node_guid,
            inode: path.and_then(|path| Some(fs::metadata(path).ok()?.ino())),
            ports: device.port_count,
        })
    }

    fn is_anywhere(&mut self, name: &str) -> bool {
        let files = verbs_files(&self.root).unwrap_or_default();
        files.iter().any(|(_, device)| text::sanitize(device) == name)
    }

    fn binds(&mut self, device: &Present) -> Option<bool> {
        let family = self.family(device)?;
        let root = &self.root;
        if self.binders.is_none() {
            let functions = find_parts(root, "_counter_bind_qp")?;
            self.binders = Some(functions.iter().map(|function| first_word(function)).collect());
        }
        self.binders.as_ref().map(|binders| binders.contains(&family))
    }

    fn binding(&mut self, device: u32, port: u32) -> Result<Binding, NetlinkError> {
        self.nldev.binding(device, port)
    }

    fn bound(&mut self, device: u32) -> Result<Vec<CounterSet>, NetlinkError> {
        self.nldev.counter_sets(device).map(|dump| dump.items)
    }

    fn optional(&mut self, device: u32, port: u32) -> Result<Vec<OptionalCounter>, NetlinkError> {
        match self.nldev.optional_counters(device, port) {
            // Kernels before 5.16 do not know the request (EINVAL), and a driver may have no counters.
            Err(NetlinkError::Kernel {
                errno: libc::EINVAL | libc::EOPNOTSUPP,
                ..
            }) => Ok(Vec::new()),
            read => read,
        }
    }

    fn order(&mut self, order: &Request) -> Result<(), NetlinkError> {
        // The kernel checks the capability of the one who opened the socket and of the one who sends.
        let _raised = Raised::for_net_admin();
        let outcome = Nldev::open()?.order(order);
        log::info!(order:? = order, outcome:? = outcome; "hardware counters");
        outcome
    }
}
