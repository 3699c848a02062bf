//! What `lab up` and `lab run` made, and how it is distinguished from what others made.
//!
//! Each thing is listed before the kernel is asked for it, with what will identify it once it is there, and
//! again with what the kernel gave it. So whatever ends `lab up` at whatever moment, what it made is in the
//! list.
use serde::{Deserialize, Serialize};

use super::disk::MODULES;
use rdmatop_base::text;

/// Form of the file.
const VERSION: u32 = 2;
/// `lab up` makes at most 64 of each.
const MOST: usize = 256;
/// An interface's name has 15 bytes, each of which may have become an escape.
const LONGEST: usize = 128;

/// An RDMA device that we made or were about to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MadeDevice {
    /// The name that we gave it. Anybody may have renamed it since.
    pub(super) name: String,
    /// The interface that it lies on, and that one's index.
    pub(super) netdev: String,
    pub(super) netdev_index: u32,
    /// Indexes of the devices that were there before: none of them is ours.
    pub(super) before: Vec<u32>,
    /// None: it was about to be made.
    pub(super) found: Option<FoundDevice>,
    /// Made by `lab run`, which removes it at its end.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) run: bool,
}

/// What the kernel gave a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FoundDevice {
    /// A renaming keeps it; the numbers start again when ib_core is loaded again.
    pub(super) index: u32,
    pub(super) node_guid: Option<u64>,
    /// Inode of its directory in sysfs. The kernel gives a number once per boot (`kernfs_new_node`), and a
    /// renaming keeps it.
    pub(super) inode: Option<u64>,
}

/// An interface that we made or were about to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MadeInterface {
    /// The name that we gave it.
    pub(super) name: String,
    /// The address that we gave it, made up for this one.
    pub(super) address: [u8; 6],
    /// None: it was about to be made.
    pub(super) found: Option<FoundInterface>,
    /// As [`MadeDevice::run`]: the end of a cable to the switch, and no dummy.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) run: bool,
}

/// What the kernel gave an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FoundInterface {
    pub(super) index: u32,
    /// As [`FoundDevice::inode`]: the same index exists in each network namespace.
    pub(super) inode: Option<u64>,
}

/// A module that we loaded or were about to load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MadeModule {
    /// Inode of /sys/module/rdma_rxe, as [`FoundDevice::inode`] is of a device.
    pub(super) inode: Option<u64>,
}

/// A disk that we made or were about to make, for `lab run`: see `disk.rs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MadeDisk {
    /// Name of the target's subsystem, and so of the host's controller; made up for this disk.
    pub(super) name: String,
    /// Number of the target's port, made up too.
    pub(super) port: u16,
    /// The interface that its address belongs to.
    pub(super) netdev: String,
    /// Modules that were not loaded before, in the order of loading.
    pub(super) modules: Vec<DiskModule>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DiskModule {
    pub(super) name: String,
    /// Inode of the module's directory, as [`MadeModule::inode`].
    pub(super) inode: Option<u64>,
}

/// How the name of a disk begins.
pub(super) const DISK: &str = "rdmatop-lab.";

impl MadeDisk {
    fn is_ours(&self) -> bool {
        let made_up = self.name.strip_prefix(DISK);
        let hex = |word: &str| word.len() == 12 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        made_up.is_some_and(hex)
            && self.netdev == "labnet0"
            && self
                .modules
                .iter()
                .all(|module| MODULES.contains(&module.name.as_str()))
    }
}

/// Everything that we made, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Made {
    version: u32,
    /// The boot that it was made in (/proc/sys/kernel/random/boot_id): nothing of it outlives that.
    pub(super) boot: String,
    /// rdma_rxe, if it was not loaded before.
    pub(super) module: Option<MadeModule>,
    pub(super) interfaces: Vec<MadeInterface>,
    pub(super) devices: Vec<MadeDevice>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) disk: Option<MadeDisk>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(value: &bool) -> bool {
    !value
}

impl Made {
    /// A list with nothing made yet.
    pub(super) fn new(boot: &str) -> Self {
        Self {
            version: VERSION,
            boot: boot.into(),
            ..Self::default()
        }
    }

    /// Whether what is listed may have been made in this boot. An id that could not be read, which is empty,
    /// is no proof of another boot.
    pub(super) fn may_be_of(&self, boot: &str) -> bool {
        boot.is_empty() || self.boot.is_empty() || self.boot == boot
    }

    /// True when there is nothing to remove.
    pub(super) fn is_nothing(&self) -> bool {
        self.module.is_none() && self.interfaces.is_empty() && self.devices.is_empty() && self.disk.is_none()
    }

    /// Parses the file. `Err`: why the lab cannot have written it, in one line that is safe to print.
    pub(super) fn parse(raw: &[u8]) -> Result<Self, String> {
        let made: Self =
            serde_json::from_slice(raw).map_err(|error| text::sanitize(error.to_string().as_bytes()))?;
        if made.version != VERSION {
            return Err(format!("it has version {} and not {VERSION}", made.version));
        }
        if made.devices.len() > MOST || made.interfaces.len() > MOST {
            return Err(format!("it lists more than {MOST} things"));
        }
        let numbered = |name: &str, prefix| {
            let digits = name.strip_prefix(prefix);
            digits.is_some_and(|digits: &str| digits.len() <= 3 && digits.parse::<u8>().is_ok())
        };
        let device = |device: &MadeDevice| numbered(&device.name, if device.run { "lab" } else { "rxe" });
        let interface = |interface: &MadeInterface| {
            numbered(&interface.name, if interface.run { "labnet" } else { "rdmatop" })
        };
        let ours = made.devices.iter().all(device)
            && made.interfaces.iter().all(interface)
            && made.disk.iter().all(MadeDisk::is_ours);
        if !ours {
            return Err("it has names that `lab up` and `lab run` do not give".into());
        }
        let printable = |word: &String| word.len() <= LONGEST && text::sanitize(word.as_bytes()) == **word;
        if !made
            .devices
            .iter()
            .map(|device| &device.netdev)
            .chain([&made.boot])
            .all(printable)
        {
            return Err("it has names that `lab up` does not write".into());
        }
        Ok(made)
    }

    /// The file.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }
}
