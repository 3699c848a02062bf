//! Finds, among what exists now, the thing that an entry of the list stands for.
use super::LabError;
use super::host::{Host, Interface, Leaving, Present, RXE};
use super::state::{FoundDevice, FoundInterface, Made, MadeDevice, MadeInterface};
use rdmatop_sources::owned_file::agree;

/// The device that `ours` is about, whatever it is called by now.
///
/// A device that was about to be made is the software device on that interface which was not there before: an
/// interface carries one rxe device at most.
pub(super) fn device<'a>(ours: &MadeDevice, present: &'a [Present]) -> Option<&'a Present> {
    present.iter().find(|it| match &ours.found {
        Some(found) => {
            it.index == found.index && agree(it.node_guid, found.node_guid) && agree(it.inode, found.inode)
        }
        None => {
            it.software
                && !ours.before.contains(&it.index)
                && it.netdevs.iter().any(|netdev| netdev.index == ours.netdev_index)
        }
    })
}

/// Devices of the list that are being removed: netlink no longer lists them, but they still exist.
pub(super) fn leaving(host: &mut dyn Host, made: &Made, present: &[Present]) -> Vec<Leaving> {
    let missing = |ours: &&MadeDevice| ours.found.is_some() && device(ours, present).is_none();
    let missing: Vec<&MadeDevice> = made.devices.iter().filter(missing).collect();
    if missing.is_empty() {
        return Vec::new();
    }
    let mut leaving = host.leaving();
    leaving.retain(|going| missing.iter().any(|ours| going.name == *ours.name));
    leaving
}

/// The interface that `ours` is about. One that was about to be made is known by its made-up address.
pub(super) fn interface<'a>(ours: &MadeInterface, present: &'a [Interface]) -> Option<&'a Interface> {
    present.iter().find(|it| match &ours.found {
        Some(found) => it.index == found.index && agree(it.inode, found.inode),
        None => it.address == Some(ours.address),
    })
}

/// What the kernel gave a device.
pub(super) fn found_device(present: &Present) -> FoundDevice {
    FoundDevice {
        index: present.index,
        node_guid: present.node_guid,
        inode: present.inode,
    }
}

/// What the kernel gave an interface.
pub(super) fn found_interface(present: &Interface) -> FoundInterface {
    FoundInterface {
        index: present.index,
        inode: present.inode,
    }
}

/// Compares the list with what is there: what was not made after all or is gone leaves the list, and what is
/// there is completed.
pub(super) fn compare(host: &mut dyn Host, made: &mut Made) -> Result<(), LabError> {
    let devices = host.devices()?;
    let leaving = leaving(host, made, &devices);
    made.devices.retain_mut(|ours| {
        if leaving.iter().any(|going| going.name == *ours.name) {
            return true;
        }
        let present = device(ours, &devices);
        ours.found = present.map(found_device);
        present.is_some()
    });
    let interfaces = host.interfaces();
    made.interfaces.retain_mut(|ours| {
        let present = interface(ours, &interfaces);
        ours.found = present.map(found_interface);
        present.is_some()
    });
    let loaded = host.module_inode(RXE);
    made.module = made
        .module
        .take()
        .filter(|ours| loaded.is_some() && agree(ours.inode, loaded));
    if let Some(ours) = &mut made.module {
        ours.inode = loaded;
    }
    Ok(())
}
