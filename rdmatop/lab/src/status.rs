//! `lab status`.
use std::process::ExitCode;

use super::host::{Host, Present};
use super::{LabError, ours, say::Printer, state::Made, store::Store};
use rdmatop_base::text;

/// Shows which devices there are, which of them `lab up` made, and which processes hold them. If the file
/// cannot be read it shows all but which are ours, and the error is the last line.
pub(super) fn status(
    host: &mut dyn Host,
    store: &Store,
    say: &mut Printer<'_>,
) -> Result<ExitCode, LabError> {
    let boot = host.boot();
    let looked = store.read();
    let made = match &looked {
        Ok(made) => Some(
            made.clone()
                .filter(|made| made.may_be_of(&boot))
                .unwrap_or_default(),
        ),
        Err(_) => None,
    };
    let present = host.devices()?;
    let leaving = host.leaving();
    let listed = made.as_ref().map_or(0, |made| made.devices.len());
    if leaving.is_empty() && present.is_empty() && listed == 0 {
        say.line(format_args!("no RDMA devices; `sudo rdmatop lab up` makes one"));
    }
    for device in &present {
        let line = device_line(host, device, made.as_ref(), &present);
        say.line(format_args!("{line}"));
    }
    for device in &leaving {
        let whose = match &made {
            None => "not known whose",
            Some(made) if made.devices.iter().any(|ours| device.name == *ours.name) => "made by rdmatop",
            Some(_) => "not ours",
        };
        say.line(format_args!(
            "{}: being removed, {whose}, {}",
            device.name, device.held
        ));
    }
    let made = made.unwrap_or_default();
    for gone in made.devices.iter().filter(|ours| ours.found.is_some()) {
        let leaves = leaving.iter().any(|device| device.name == *gone.name);
        if !leaves && ours::device(gone, &present).is_none() {
            say.line(format_args!("{}: made by rdmatop, gone since", gone.name));
        }
    }
    let interfaces = host.interfaces();
    for interface in &made.interfaces {
        let state = match ours::interface(interface, &interfaces) {
            Some(now) if now.name == *interface.name => String::new(),
            Some(now) => format!(", called {} by now", now.name),
            None if interface.found.is_none() => continue,
            None => ", gone since".into(),
        };
        let kind = if interface.run {
            "interface made by `lab run`"
        } else {
            "dummy interface made by rdmatop"
        };
        say.line(format_args!("{}: {kind}{state}", interface.name));
    }
    looked.map(|_| ExitCode::SUCCESS)
}

fn device_line(host: &mut dyn Host, device: &Present, made: Option<&Made>, present: &[Present]) -> String {
    let is_this = |ours: &&super::state::MadeDevice| {
        ours::device(ours, present).is_some_and(|found| found.index == device.index)
    };
    let whose = match made.map(|made| made.devices.iter().find(is_this)) {
        None => "not known whose".into(),
        Some(None) => "not ours".into(),
        Some(Some(ours)) if device.name == *ours.name => "made by rdmatop".into(),
        Some(Some(ours)) => format!("made by rdmatop as {}", ours.name),
    };
    let netdevs = text::names(device.netdevs.iter().map(|netdev| &netdev.name));
    let on = if netdevs.is_empty() {
        "no interface in sight".into()
    } else {
        format!("on {netdevs}")
    };
    let used = match host.holders(device.index) {
        Ok(holders) if holders.is_empty() => "not in use".into(),
        Ok(holders) => format!("used by {}", text::names(&holders)),
        Err(error) => error.to_string(),
    };
    format!("{}: {on}, {whose}, {used}", device.name)
}
