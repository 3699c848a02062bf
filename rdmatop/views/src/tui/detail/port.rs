//! A port and its device, with every counter the provider has.

use rdmatop_model::snapshot::{DeviceRow, DeviceState, Member, PortRow};
use rdmatop_model::value::Counter;

use super::super::columns::Cell;
use super::super::format;
use super::super::state::State;
use super::super::text;
use super::super::theme::Tone;
use super::traffic::{COUNTERS, counter};
use super::{Pane, chart, counters_of, facts_of};
use rdmatop_model::fields::{DEVICE, PORT};
use rdmatop_model::judgement::counts_bytes;

pub(super) fn fill(pane: &mut Pane<'_>, p: &PortRow) {
    let state = pane.state;
    let device = state.snapshot.devices.iter().find(|d| d.uid == p.device_uid);
    pane.facts(&facts_of(state, PORT, p));
    if let Some(bond) = &p.bond {
        pane.heading("Links of its bond           rate   sent/s   recv/s");
        pane.lines
            .extend(bond.members.iter().map(|member| link(state, member)));
        let mode = bond.mode.as_deref().unwrap_or("not known");
        pane.say(&format!("Mode of the bond: {mode}."), Tone::Dim);
    }
    if let Some(d) = device {
        if d.state == Some(DeviceState::Removing) {
            let why = "The device is being removed: the kernel waits until no process has it open. What netlink reports of it is unknown.";
            pane.say(why, Tone::Bad);
        }
        elsewhere(pane, d);
        let mut of_device = facts_of(state, DEVICE, d);
        for (what, _, limit) in d.headroom() {
            if let (Some(limit), Some((_, value))) =
                (limit, of_device.iter_mut().find(|(label, _)| *label == what))
            {
                *value = format!("{value} of {}", format::exact(limit));
            }
        }
        pane.facts(&of_device);
    }
    let unexplained = state.snapshot.judgement.unexplained.iter();
    for one in unexplained.filter(|one| one.device == p.device && one.port == p.port) {
        let line = format!(
            "It moves data without a queue pair that the kernel lists: {}.",
            one.cause.reason()
        );
        pane.say(&line, Tone::Warn);
    }
    let unobserved = &state.snapshot.judgement.unobserved;
    for unobserved in unobserved.iter().filter(|u| u.device == p.device) {
        pane.say(&format!("Not observable: {unobserved}"), Tone::Dim);
    }
    chart::history(pane, &p.history, 3, !counts_bytes(p));
    if p.history.unit == "bytes" && !counts_bytes(p) {
        let why = "Bytes of work requests here; what peers write and read by RDMA is in the packets only.";
        pane.say(why, Tone::Dim);
    }
    let counters = counters_of(state, PORT, p);
    let known: Vec<_> = counters
        .iter()
        .filter_map(|(name, c)| Some((name, c.as_ref()?)))
        .collect();
    if !known.is_empty() {
        pane.heading(COUNTERS);
        pane.lines.extend(known.iter().map(|(name, c)| counter(name, c)));
    }
    if known.iter().any(|(_, c)| c.partial) {
        let why = "> at least: a counter of the sum could not be read.";
        pane.say(why, Tone::Warn);
    }
    if !p.gauges.is_empty() {
        pane.heading("Of the driver, as it is now");
    }
    for gauge in &p.gauges {
        let source = format!("{:?}", gauge.source).to_lowercase();
        let line = format!("{:<24}{:>29}", gauge.name, format::exact(gauge.value));
        let line = Cell::new(line, Tone::Normal).and(format!("  {source}"), Tone::Dim);
        pane.add(explained(line, gauge.help, pane.width));
    }
    if p.counters.is_empty() {
        return pane.say("The provider has no counters.", Tone::Dim);
    }
    pane.heading("Of the driver, as it counts   per second        total  source");
    // Counters that move come first; otherwise they are in the provider's order.
    let moving = |c: &rdmatop_model::value::Counter| c.rate.is_some_and(|r| r > 0.0);
    let (live, still): (Vec<_>, Vec<_>) = p.counters.iter().partition(|c| moving(&c.counter));
    for c in live.into_iter().chain(still) {
        let line = counter(&c.name, &c.counter);
        let line = match c.unit_bytes {
            Some(bytes) => line.and(format!(", words of {bytes} bytes"), Tone::Dim),
            None => line,
        };
        pane.add(explained(line, c.help, pane.width));
    }
}

/// A link of a bond, and what passes it.
fn link(state: &State, member: &Member) -> Cell {
    let (word, tone) = match member.up {
        Some(true) => ("up", Tone::Good),
        Some(false) => ("down", Tone::Bad),
        None => ("-", Tone::Dim),
    };
    let rate = |counter: Option<&Counter>| format!("{:>9}", format::byte_rate(counter, state.settings.units));
    let speed = member.rate_bps.map_or_else(|| "-".to_owned(), format::link);
    Cell::new(format!("{:<16}", member.name), Tone::Strong)
        .and(format!("{word:<5}"), tone)
        .and(format!("{speed:>11}"), Tone::Normal)
        .and(rate(member.tx_bytes.as_ref()), Tone::Tx)
        .and(rate(member.rx_bytes.as_ref()), Tone::Rx)
}

/// A counter's line, followed by what the counter means if there is room.
fn explained(line: Cell, help: Option<&str>, width: usize) -> Cell {
    match help.map(|help| format!("  {help}")) {
        Some(help) if line.width() + text::width(&help) <= width => line.and(help, Tone::Dim),
        _ => line,
    }
}

/// Where a device of another network namespace is.
fn elsewhere(pane: &mut Pane<'_>, d: &DeviceRow) {
    let (Some(netns), Some(pid)) = (d.netns, d.netns_pid) else {
        return;
    };
    let whose = d.netns_holder.as_deref().unwrap_or("a process");
    let line = format!("It is in the network namespace of {whose} (PID {pid}, net:[{netns}]).");
    pane.say(&line, Tone::Normal);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tui::settings::Settings;
    use crate::tui::tab::Tab;
    use crate::tui::theme::Depth;
    use rdmatop_model::testkit::full;

    #[test]
    fn beside_what_a_device_has_stands_what_its_driver_allows() {
        let snapshot = Arc::new(full::snapshot());
        let shown = Arc::clone(&snapshot);
        let state = State::new(shown, Settings::default(), Tab::Devices, true, Depth::True);
        let of = |device: &str| {
            let port = snapshot.ports.iter().find(|port| &*port.device == device);
            let lines = super::super::filled(&state, 200, |pane| fill(pane, port.unwrap()));
            lines.iter().map(Cell::text).collect::<Vec<_>>().join("\n")
        };
        let known = of("mlx5_0");
        assert!(known.contains("QPs 2 of 1,024"), "{known}");
        let there = "in the network namespace of pod 8d2f5e10-7a55-4c1b-9d0e-1f2a3b4c5d6e (PID 4711, net:[4026532201])";
        assert!(known.contains(there), "{known}");
        let unknown = of("rxe0");
        assert!(
            unknown.contains("QPs 2 ") && !unknown.contains("QPs 2 of") && !unknown.contains("namespace"),
            "{unknown}"
        );
    }
}
