//! `lab up`.
use std::process::ExitCode;

use super::host::{Host, Interface, Present};
use super::ours;
use super::say::Printer;
use super::state::{Made, MadeDevice, MadeInterface, MadeModule};
use super::store::Store;
use super::{LabError, UpArgs};

/// Makes what is missing. What is about to be made is in the file before the kernel is asked for it, see
/// `state.rs`.
pub(super) fn up(
    host: &mut dyn Host,
    store: &Store,
    args: &UpArgs,
    say: &mut Printer<'_>,
) -> Result<ExitCode, LabError> {
    let locked = store.lock()?;
    let boot = host.boot();
    let mut made = locked
        .load()?
        .filter(|made| made.may_be_of(&boot))
        .unwrap_or_else(|| Made::new(&boot));
    if let Some(netdev) = &args.netdev
        && named(&host.interfaces(), netdev).is_none()
    {
        return Err(LabError::NoInterface(netdev.clone()));
    }
    let mut save = |made: &Made| locked.save(made);
    load_rxe(host, &mut made, &mut save, say)?;
    ours::compare(host, &mut made)?;
    save(&made)?;
    let present = host.devices()?;
    let leaving = ours::leaving(host, &made, &present);
    for number in 0..args.devices {
        let name = format!("rxe{number}");
        if let Some(going) = leaving.iter().find(|going| going.name == *name) {
            // The device is as good as gone, but no other can be made: the kernel still has the name.
            return Err(LabError::Leaving(name, going.held.clone()));
        }
        let present = host.devices()?;
        if let Some(known) = made.devices.iter().find(|ours| ours.name == name) {
            let now = ours::device(known, &present).filter(|now| now.name != *name);
            let renamed = now.map_or_else(String::new, |now| format!(" and called {} by now", now.name));
            say.line(format_args!("{name} is there already{renamed}"));
            continue;
        }
        if present.iter().any(|device| device.name == *name) {
            say.line(format_args!(
                "{name} is there already and not made by rdmatop: left as it is"
            ));
            continue;
        }
        let wanted = wanted_netdev(host, number, args, &present);
        let others_reach_it = wanted.is_some();
        let netdev = match wanted {
            Some(netdev) => netdev,
            None => own_dummy(host, number, &mut made, &mut save)?,
        };
        made.devices.push(MadeDevice {
            name: name.clone(),
            netdev: netdev.name.to_string(),
            netdev_index: netdev.index,
            before: present.iter().map(|device| device.index).collect(),
            found: None,
            run: false,
        });
        save(&made)?;
        let added = host.add_device(&name, &netdev);
        ours::compare(host, &mut made)?;
        save(&made)?;
        added?;
        say.line(format_args!("made {name} on {}", netdev.name));
        if others_reach_it {
            // rdma_rxe takes packets of everybody, and a peer that guesses a QP and a key reads and writes
            // memory.
            say.line(format_args!(
                "{name} is open to the network of {} (UDP port 4791): a firewall keeps strangers out, `rdmatop lab down` ends it",
                netdev.name
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn named<'a>(interfaces: &'a [Interface], name: &str) -> Option<&'a Interface> {
    interfaces.iter().find(|interface| interface.name == *name)
}

pub(super) fn load_rxe(
    host: &mut dyn Host,
    made: &mut Made,
    save: &mut dyn FnMut(&Made) -> Result<(), LabError>,
    say: &mut Printer<'_>,
) -> Result<(), LabError> {
    if host.has_rxe()? {
        return host.load_rxe();
    }
    made.module = Some(MadeModule { inode: None });
    save(made)?;
    let loaded = host.load_rxe();
    if loaded.is_err() && host.rxe_inode().is_none() {
        made.module = None;
        save(made)?;
    }
    loaded?;
    say.line(format_args!("loaded rdma_rxe"));
    Ok(())
}

/// The interface of the first device: the named one, else that of the default route unless it carries an RDMA
/// device already.
fn wanted_netdev(host: &mut dyn Host, number: u8, args: &UpArgs, present: &[Present]) -> Option<Interface> {
    if number > 0 {
        return None;
    }
    let interfaces = host.interfaces();
    let find = |name: String| named(&interfaces, &name).cloned();
    let free = |netdev: &Interface| {
        let mut used = present.iter().flat_map(|device| &device.netdevs);
        !used.any(|used| used.index == netdev.index)
    };
    args.netdev
        .clone()
        .and_then(find)
        .or_else(|| host.default_netdev().and_then(find).filter(free))
}

/// A dummy of our own with an address; one of that name that something else made serves too.
fn own_dummy(
    host: &mut dyn Host,
    number: u8,
    made: &mut Made,
    save: &mut dyn FnMut(&Made) -> Result<(), LabError>,
) -> Result<Interface, LabError> {
    let name = format!("rdmatop{number}");
    let known = |made: &Made| made.interfaces.iter().find(|ours| ours.name == name).cloned();
    if known(made).is_none() {
        if let Some(stranger) = named(&host.interfaces(), &name) {
            return Ok(stranger.clone());
        }
        let address = host.new_address();
        made.interfaces.push(MadeInterface {
            name: name.clone(),
            address,
            found: None,
            run: false,
        });
        save(made)?;
        let added = host.add_dummy(&name, address);
        ours::compare(host, made)?;
        save(made)?;
        added?;
    }
    let interfaces = host.interfaces();
    let present = known(made).and_then(|ours| ours::interface(&ours, &interfaces).cloned());
    let present = present.ok_or(LabError::NoInterface(name))?;
    // Again for an interface that exists: the `lab up` that made it may have been ended before this.
    host.add_ipv4(&present, [10, 77, number, 1])?;
    Ok(present)
}
