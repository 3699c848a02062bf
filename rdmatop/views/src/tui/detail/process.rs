//! A process or a kernel consumer.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rdmatop_base::order::Ordered as _;
use rdmatop_model::fields::PROCESS;
use rdmatop_model::judgement::why_process_is_uncounted;
use rdmatop_model::snapshot::{CounterGroup, DeviceRow, ProcessRow, Unlisted};
use rdmatop_model::value::{Known, Source};

use super::super::columns::Cell;
use super::super::format;
use super::super::state::State;
use super::super::theme::{Tone, stuck_tone};
use super::{chart, facts, facts_of, heading, long, traffic};

/// The other ends of the process's QPs, those with most QPs first.
fn peers(state: &State, p: &ProcessRow, width: usize) -> Vec<Cell> {
    const SHOWN: usize = 6;
    let snapshot = &state.snapshot;
    let mut ends: BTreeMap<String, u64> = BTreeMap::new();
    let own = snapshot.qps.iter().filter(|qp| qp.process_uid == Some(p.uid));
    for peer in own.filter_map(|qp| snapshot.peer(qp)) {
        *ends.entry(peer.name()).or_default() += 1;
    }
    let mut ends: Vec<_> = ends.into_iter().collect();
    ends.order_by_key(|(_, qps)| Reverse(*qps));
    let names = ends.iter().take(SHOWN).map(|(name, qps)| match qps {
        1 => name.clone(),
        qps => format!("{name} ({qps} QPs)"),
    });
    let mut line = names.collect::<Vec<_>>().join(", ");
    match ends.len() {
        0 => return Vec::new(),
        all if all > SHOWN => line = format!("{line} and {} more", all - SHOWN),
        _ => {}
    }
    long("peers", &line, width)
}

/// A counter of the NIC, and what it has counted of the QPs that are bound to it.
fn bound_counter(group: &CounterGroup, width: usize) -> Vec<Cell> {
    const SHOWN: usize = 8;
    let CounterGroup {
        device,
        port,
        id,
        mode,
        ..
    } = group;
    let mut out = vec![heading(
        "Of the NIC, for bound QPs      per second        total  source",
    )];
    let numbers: Vec<_> = group.qps.iter().take(SHOWN).map(ToString::to_string).collect();
    let mut qps = numbers.join(", ");
    if group.qps.len() > SHOWN {
        qps = format!("{qps} and {} more", group.qps.len() - SHOWN);
    }
    let line = format!("counter {id} of {device}/{port}, mode {mode}: QPs {qps}");
    out.extend(Cell::lines(&line, width, Tone::Dim));
    let (some, none): (Vec<_>, Vec<_>) = group.counters.iter().partition(|c| c.counter.total > 0);
    out.extend(some.iter().map(|c| traffic::counter(&c.name, &c.counter)));
    if !none.is_empty() {
        let line = format!("{} more stand at 0.", none.len());
        out.push(Cell::new(line, Tone::Dim));
    }
    out
}

/// How the process's bytes are known, if they are those of its ports.
fn by_ports(state: &State, p: &ProcessRow) -> Option<String> {
    let counters = [p.traffic.tx_bytes, p.traffic.rx_bytes];
    if let Some(explained) = p.psn_explains {
        return Some(format!(
            "~ at most 5 % wrong, < at most: shares of what its ports moved, by the PSNs of their QPs, which explain {} % of the \
             ports' packets.",
            (explained * 100.0).floor()
        ));
    }
    let mut by_ports = counters
        .into_iter()
        .flatten()
        .filter(|counter| counter.source == Source::Port)
        .peekable();
    by_ports.peek()?;
    if !by_ports.any(|counter| counter.rate_known() == Known::AtMost) {
        return Some(
            "TX and RX are what its ports moved, headers too: no other process is known that can have used them."
                .to_owned(),
        );
    }
    let on_its = || {
        let devices = state.snapshot.devices.iter();
        devices.filter(|device| p.devices.contains(&device.name))
    };
    let others = || state.snapshot.processes.iter().filter(|other| other.uid != p.uid);
    // NCCL opens every device: only who may have queue pairs there that nobody lists is meant.
    let hides = |other: &&ProcessRow| {
        let has_open = |device: &DeviceRow| {
            let pids = device.contexts.as_deref().unwrap_or_default();
            device.may_hide_qps() && other.pid.is_some_and(|pid| pids.contains(&pid))
        };
        other.unlisted.is_some() && !other.exited && on_its().any(has_open)
    };
    let may_share = |other: &&ProcessRow| {
        let shares = other.devices.iter().any(|device| p.devices.contains(device));
        let has_qps = other.qps > 0 || other.unlisted_qps().next().is_some();
        (shares && has_qps && &*other.comm != "[ib_core]") || hides(other)
    };
    let line = format!(
        "< at most: TX and RX are what its ports moved, and {} may have moved a part of it.",
        names(others().filter(may_share))
    );
    let because = |why: Unlisted| {
        others()
            .filter(hides)
            .filter(move |other| other.unlisted == Some(why))
    };
    let reason = if because(Unlisted::Library).next().is_some() {
        " A process that has UCX, NVSHMEM or DOCA mapped, and of which rdmatop did not see each call, may have queue pairs that \
         the kernel does not list. Of a job that starts while rdmatop runs with eBPF, its calls tell."
            .to_owned()
    } else if because(Unlisted::Made).next().is_some() {
        format!(
            " The kernel does not list what {} made by devx_obj_create: queue pairs, maybe.",
            names(because(Unlisted::Made))
        )
    } else if because(Unlisted::Unknown).next().is_some() {
        format!(
            " Nothing tells whether {} made queue pairs that the kernel does not list.",
            names(because(Unlisted::Unknown))
        )
    } else {
        String::new()
    };
    Some(line + &reason)
}

/// Names of processes in a sentence.
fn names<'a>(mut rows: impl Iterator<Item = &'a ProcessRow>) -> String {
    const SHOWN: usize = 4;
    let named = rows.by_ref().take(SHOWN).map(|row| match row.pid {
        Some(pid) => format!("{} ({pid})", row.comm),
        None => row.comm.to_string(),
    });
    let named: Vec<_> = named.collect();
    match (named.is_empty(), rows.count()) {
        (true, _) => "others".to_owned(),
        (false, 0) => named.join(", "),
        (false, more) => format!("{} and {more} more", named.join(", ")),
    }
}

/// Lines for a process.
pub(super) fn lines(state: &State, p: &ProcessRow, width: usize) -> Vec<Cell> {
    let mut out = Vec::new();
    if p.exited {
        out.push(Cell::new(
            "It has ended; its objects or counters remain.",
            Tone::Warn,
        ));
    }
    if !p.kernel && p.pid.is_none() {
        out.push(Cell::new(
            "Its creator has ended and another process holds the verbs file: the kernel reports no owner.",
            Tone::Warn,
        ));
    }
    for found in state
        .snapshot
        .findings
        .iter()
        .filter(|found| found.concerns_process(p.uid))
    {
        let line = format!("{}. {}", found.verdict, found.next);
        let tone = super::super::columns::finding_tone(found.severity);
        out.extend(Cell::lines(&line, width, tone));
    }
    if let Some((count, why)) = state.snapshot.judgement.stuck_of(p.uid) {
        let line = format!(
            "{} of its QPs: {} (Tab 2 shows each.)",
            format::count(count),
            why.sentence(state.snapshot.mono_ns)
        );
        out.extend(Cell::lines(&line, width, stuck_tone(why)));
    }
    out.extend(peers(state, p, width));
    // Values that may be long have lines of their own.
    let (long_ones, short): (Vec<_>, Vec<_>) = facts_of(state, PROCESS, p)
        .into_iter()
        .partition(|(label, _)| ["links", "job", "cgroup", "command"].contains(label));
    out.extend(facts(width, &short));
    if let Some(words) = p.devx_words() {
        out.extend(long("past the kernel", &words, width));
    }
    out.extend(chart::history(state, &p.history, width, 2, false));
    for (label, value) in long_ones.iter().filter(|(_, value)| value != format::UNKNOWN) {
        out.extend(long(label, value, width));
    }
    if let Some(line) = by_ports(state, p) {
        out.extend(Cell::lines(&line, width, Tone::Dim));
    }
    out.extend(traffic::lines(
        state,
        (PROCESS, p),
        &p.traffic,
        why_process_is_uncounted(&state.snapshot, p).as_slice(),
        width,
    ));
    for group in &p.hw_counters {
        out.extend(bound_counter(group, width));
    }
    if let Some(libraries) = p.libraries.as_ref().filter(|l| !l.is_empty()) {
        out.extend(long("libraries", &libraries.join(" "), width));
    }
    if let Some(environ) = p.environ.as_ref().filter(|e| !e.is_empty()) {
        out.push(heading("Environment"));
        for (name, value) in environ {
            out.extend(long(&format!("{name}="), value, width));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tui::settings::Settings;
    use crate::tui::tab::Tab;
    use crate::tui::theme::Depth;
    use rdmatop_model::testkit::situations::ALL;

    /// What is said of the bytes of a process in a situation.
    fn said(situation: &str, pid: u32) -> String {
        let situation = ALL.iter().find(|known| known.name == situation).unwrap();
        let snapshot = Arc::new((situation.make)());
        let state = State::new(
            Arc::clone(&snapshot),
            Settings::default(),
            Tab::Processes,
            true,
            Depth::True,
        );
        let row = snapshot.processes.iter().find(|row| row.pid == Some(pid));
        by_ports(&state, row.unwrap()).unwrap()
    }

    #[test]
    fn bytes_by_ports_say_whose_they_may_be_too() {
        let said = |pid| said("eight-11-two-jobs", pid);
        for pid in [7100, 7900] {
            let share = said(pid);
            assert!(
                share.ends_with("which explain 99 % of the ports' packets."),
                "{share}"
            );
        }
        assert!(said(7101).contains("no other process is known that can have used them"));
    }

    #[test]
    fn bytes_by_ports_say_why_another_may_have_a_part_and_what_to_do() {
        let late = said("eight-16-came-later", 7103);
        assert!(
            late.contains("all_reduce_perf (7100), all_reduce_perf (7101), all_reduce_perf (7102)"),
            "{late}"
        );
        assert!(late.contains("and 3 more may have moved a part"), "{late}");
        assert!(
            late.contains("UCX") && late.contains("starts while rdmatop runs"),
            "{late}"
        );
        let made = said("eight-17-devx", 7101);
        assert!(
            made.contains("ucx_perftest (7700) may have") && made.contains("by devx_obj_create"),
            "{made}"
        );
    }
}
