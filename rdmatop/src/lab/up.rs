//! `lab up`.
use std::io::Write;
use std::process::ExitCode;

use super::host::{Host, Present};
use super::state::{Made, MadeDevice, MadeInterface, Store};
use super::{LabError, UpArgs};

/// Makes what is missing. The file is written after each step, so that a failure half way leaves `down` the
/// truth.
pub(super) fn up(
    host: &mut dyn Host,
    store: &Store,
    args: &UpArgs,
    out: &mut dyn Write,
) -> Result<ExitCode, LabError> {
    let mut made = store.load()?;
    if let Some(netdev) = &args.netdev
        && host.interface_index(netdev).is_none()
    {
        return Err(LabError::NoInterface(netdev.clone()));
    }
    if host.load_rxe()? {
        writeln!(out, "loaded rdma_rxe")?;
    }
    forget_gone(host, &mut made)?;
    store.save(&made)?;
    for number in 0..args.devices {
        let name = format!("rxe{number}");
        let present = host.devices()?;
        if let Some(device) = present.iter().find(|device| device.name == *name) {
            let ours = made
                .devices
                .iter()
                .any(|ours| ours.name == name && ours.index == device.index);
            let whose = if ours {
                ""
            } else {
                " and not made by rdmatop: left as it is"
            };
            writeln!(out, "{name} is there already{whose}")?;
            continue;
        }
        let netdev = match wanted_netdev(host, number, args, &present) {
            Some(netdev) => netdev,
            None => own_dummy(host, store, number, &mut made)?,
        };
        host.add_device(&name, &netdev)?;
        let index = host
            .devices()?
            .into_iter()
            .find(|device| device.name == *name)
            .map(|device| device.index);
        writeln!(out, "made {name} on {netdev}")?;
        // Gone again already: nothing to remember.
        if let Some(index) = index {
            made.devices.push(MadeDevice { name, index, netdev });
            store.save(&made)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The interface of the first device: the named one, else that of the default route unless it carries an RDMA
/// device already.
fn wanted_netdev(host: &mut dyn Host, number: u8, args: &UpArgs, present: &[Present]) -> Option<String> {
    if number > 0 {
        return None;
    }
    let free = |netdev: &String| {
        !present
            .iter()
            .any(|device| device.netdevs.iter().any(|used| *used == **netdev))
    };
    args.netdev.clone().or_else(|| host.default_netdev().filter(free))
}

fn own_dummy(host: &mut dyn Host, store: &Store, number: u8, made: &mut Made) -> Result<String, LabError> {
    let name = format!("rdmatop{number}");
    if host.interface_index(&name).is_none() {
        let index = host.add_dummy(&name, [10, 77, number, 1])?;
        made.interfaces.push(MadeInterface {
            name: name.clone(),
            index,
        });
        store.save(made)?;
    }
    Ok(name)
}

/// Drops from the list what someone else removed.
fn forget_gone(host: &mut dyn Host, made: &mut Made) -> Result<(), LabError> {
    let present = host.devices()?;
    made.devices.retain(|ours| {
        present
            .iter()
            .any(|it| it.name == *ours.name && it.index == ours.index)
    });
    made.interfaces
        .retain(|ours| host.interface_index(&ours.name) == Some(ours.index));
    Ok(())
}
