//! `lab up`.
use std::process::ExitCode;

use super::host::{Host, Interface, Present};
use super::{LabError, UpArgs};
use super::{ours, say::Printer, store::Store, work::Work};

/// Makes what is missing.
pub(super) fn up(
    host: &mut dyn Host,
    store: &Store,
    args: &UpArgs,
    say: &mut Printer<'_>,
) -> Result<ExitCode, LabError> {
    let locked = store.lock()?;
    let mut work = Work::begin(host, &locked, say)?;
    if let Some(netdev) = &args.netdev
        && named(&work.host.interfaces(), netdev).is_none()
    {
        return Err(LabError::NoInterface(netdev.clone()));
    }
    work.load_rxe()?;
    let present = work.host.devices()?;
    let leaving = ours::leaving(work.host, &work.made, &present);
    for number in 0..args.devices {
        let name = format!("rxe{number}");
        if let Some(going) = leaving.iter().find(|going| going.name == *name) {
            // The device is as good as gone, but no other can be made: the kernel still has the name.
            return Err(LabError::Leaving(name, going.held.clone()));
        }
        let present = work.host.devices()?;
        if let Some(known) = work.made.devices.iter().find(|ours| ours.name == name) {
            let now = ours::device(known, &present).filter(|now| now.name != *name);
            let renamed = now.map_or_else(String::new, |now| format!(" and called {} by now", now.name));
            work.say.line(format_args!("{name} is there already{renamed}"));
            continue;
        }
        if present.iter().any(|device| device.name == *name) {
            work.say.line(format_args!(
                "{name} is there already and not made by rdmatop: left as it is"
            ));
            continue;
        }
        let wanted = wanted_netdev(work.host, number, args, &present);
        let others_reach_it = wanted.is_some();
        let netdev = match wanted {
            Some(netdev) => netdev,
            None => own_dummy(&mut work, number)?,
        };
        work.add_device(&name, &netdev, false)?;
        if others_reach_it {
            // rdma_rxe takes packets of everybody, and a peer that guesses a QP and a key reads and writes
            // memory.
            work.say.line(format_args!(
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
fn own_dummy(work: &mut Work<'_, '_>, number: u8) -> Result<Interface, LabError> {
    let name = format!("rdmatop{number}");
    if !work.made.interfaces.iter().any(|ours| ours.name == name) {
        if let Some(stranger) = named(&work.host.interfaces(), &name) {
            return Ok(stranger.clone());
        }
        work.add_interface(&name, false, &|host, address| host.add_dummy(&name, address))?;
    }
    let present = work.interface(&name)?;
    // Again for an interface that exists: the `lab up` that made it may have been ended before this.
    work.host.add_ipv4(&present, [10, 77, number, 1])?;
    Ok(present)
}
