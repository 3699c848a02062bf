//! A process or a kernel consumer.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rdmatop_base::order::Ordered as _;
use rdmatop_base::text;
use rdmatop_model::fields::PROCESS;
use rdmatop_model::judgement::why_process_is_uncounted;
use rdmatop_model::snapshot::{CounterGroup, DeviceRow, ProcessRow, Unlisted};
use rdmatop_model::value::{Known, Source};

use super::super::format;
use super::super::state::State;
use super::super::theme::{Tone, stuck_tone};
use super::{Pane, chart, facts_of, traffic};

/// The other ends of the process's QPs, those with most QPs first.
fn peers(pane: &mut Pane<'_>, p: &ProcessRow) {
    let snapshot = &pane.state.snapshot;
    let mut ends: BTreeMap<String, u64> = BTreeMap::new();
    let own = snapshot.qps.iter().filter(|qp| qp.process_uid == Some(p.uid));
    for peer in own.filter_map(|qp| snapshot.peer(qp)) {
        *ends.entry(peer.name()).or_default() += 1;
    }
    let mut ends: Vec<_> = ends.into_iter().collect();
    ends.order_by_key(|(_, qps)| Reverse(*qps));
    let ends = ends.into_iter().map(|(name, qps)| match qps {
        1 => name,
        qps => format!("{name} ({qps} QPs)"),
    });
    pane.long("peers", &text::names(ends));
}

/// A counter of the NIC, and what it has counted of the QPs that are bound to it.
fn bound_counter(pane: &mut Pane<'_>, group: &CounterGroup) {
    let CounterGroup {
        device,
        port,
        id,
        mode,
        ..
    } = group;
    pane.heading("Of the NIC, for bound QPs      per second        total  source");
    let qps = text::names(group.qps.iter());
    let line = format!("counter {id} of {device}/{port}, mode {mode}: QPs {qps}");
    pane.say(&line, Tone::Dim);
    let (some, none): (Vec<_>, Vec<_>) = group.counters.iter().partition(|c| c.counter.total > 0);
    pane.lines
        .extend(some.iter().map(|c| traffic::counter(&c.name, &c.counter)));
    if !none.is_empty() {
        pane.say(&format!("{} more stand at 0.", none.len()), Tone::Dim);
    }
}

/// How the process's bytes are known, if they are those of its ports.
fn by_ports(state: &State, p: &ProcessRow) -> Option<String> {
    let counters = [p.traffic.tx_bytes, p.traffic.rx_bytes];
    if let Some(explained) = p.psn_explains {
        return Some(format!(
            "~ at most 5 % wrong, 0-n between 0 and n: shares of what its ports moved, by the PSNs of their QPs, which explain {} % of the \
             ports' packets.",
            (explained * 100.0).floor()
        ));
    }
    let mut by_ports = counters
        .into_iter()
        .flatten()
        .filter(|counter| counter.source == Source::Port)
        .peekable();
    let unknown = by_ports.peek()?.rate.is_none();
    if !by_ports.any(|counter| counter.rate.is_none() || counter.rate_known() == Known::AtMost) {
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
        "{}, and {} may have moved a part of it.",
        if unknown {
            "TX and RX are not known: it may have used ports on which no QP of it is listed"
        } else {
            "0-n, between 0 and n: TX and RX are what its ports moved"
        },
        names(others().filter(may_share))
    );
    let less = if others().any(|other| !other.hw_counters.is_empty()) {
        " Of TX, what bound counters have of other processes may be taken off."
    } else {
        ""
    };
    let seconds = state.settings.delay().as_secs_f64();
    let mut ports = state.snapshot.ports.iter();
    let goes_round = ports.any(|port| p.devices.contains(&port.device) && port.psns_may_go_round(seconds));
    let round = if goes_round && others().any(|other| may_share(&other)) {
        " There are no shares by PSN: so many packets pass that a PSN of 24 bits may go round between two readings. \
         A shorter --delay may give shares."
    } else {
        ""
    };
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
    Some(line + less + &reason + round)
}

/// Names of processes in a sentence.
fn names<'a>(rows: impl Iterator<Item = &'a ProcessRow>) -> String {
    match text::names(rows.map(|row| format::process(&row.comm, row.pid))) {
        none if none.is_empty() => "others".to_owned(),
        names => names,
    }
}

pub(super) fn fill(pane: &mut Pane<'_>, p: &ProcessRow) {
    let state = pane.state;
    if p.exited {
        pane.say("It has ended; its objects or counters remain.", Tone::Warn);
    }
    if !p.kernel && p.pid.is_none() {
        pane.say(
            "Its creator has ended and another process holds the verbs file: the kernel reports no owner.",
            Tone::Warn,
        );
    }
    let findings = state.snapshot.findings.iter();
    for found in findings.filter(|found| found.concerns_process(p.uid)) {
        let line = found.next.after(&found.verdict);
        let tone = super::super::columns::finding_tone(found.severity);
        pane.say(&line, tone);
    }
    if let Some((count, why)) = state.snapshot.judgement.stuck_of(p.uid) {
        let line = format!(
            "{} of its QPs: {} (Tab 2 shows each.)",
            format::count(count),
            why.sentence(state.snapshot.mono_ns)
        );
        pane.say(&line, stuck_tone(why));
    }
    peers(pane, p);
    // Values that may be long have lines of their own.
    let (long_ones, short): (Vec<_>, Vec<_>) = facts_of(state, PROCESS, p)
        .into_iter()
        .partition(|(label, _)| ["links", "job", "cgroup", "command"].contains(label));
    pane.facts(&short);
    if let Some(words) = p.devx_words() {
        pane.long("past the kernel", &words);
    }
    chart::history(pane, &p.history, 2, false);
    for (label, value) in long_ones.iter().filter(|(_, value)| value != format::UNKNOWN) {
        pane.long(label, value);
    }
    if let Some(line) = by_ports(state, p) {
        pane.say(&line, Tone::Dim);
    }
    let unknown = why_process_is_uncounted(&state.snapshot, p);
    traffic::fill(pane, (PROCESS, p), &p.traffic, unknown.as_slice());
    for group in &p.hw_counters {
        bound_counter(pane, group);
    }
    if let Some(libraries) = p.libraries.as_ref().filter(|l| !l.is_empty()) {
        pane.long("libraries", &libraries.join(" "));
    }
    if let Some(environ) = p.environ.as_ref().filter(|e| !e.is_empty()) {
        pane.heading("Environment");
        for (name, value) in environ {
            pane.long(&format!("{name}="), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::tui::settings::Settings;
    use crate::tui::tab::Tab;
    use crate::tui::theme::Depth;
    use rdmatop_model::snapshot::Snapshot;
    use rdmatop_model::testkit::situations::ALL;
    use rdmatop_model::value::Counter;

    fn said(situation: &str, pid: u32) -> String {
        said_after(situation, pid, |_| {})
    }

    fn said_after(situation: &str, pid: u32, change: impl FnOnce(&mut Snapshot)) -> String {
        let situation = ALL.iter().find(|known| known.name == situation).unwrap();
        let mut snapshot = (situation.make)();
        change(&mut snapshot);
        let snapshot = Arc::new(snapshot);
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
        assert!(!late.contains("taken off"), "{late}");
        // Of another a part was counted.
        let less = said_after("eight-16-came-later", 7103, |snapshot| {
            let bound = CounterGroup {
                device: "mlx5_0".into(),
                port: 1,
                id: 7,
                mode: "auto pid".into(),
                qps: Arc::default(),
                counters: Vec::new(),
            };
            let mut rows = snapshot.facts.processes.iter_mut();
            let other = rows.find(|row| row.pid == Some(7100)).unwrap();
            other.hw_counters.push(bound);
        });
        assert!(
            less.contains("Of TX, what bound counters have of other processes may be taken off."),
            "{less}"
        );
        // Packets of 800 Gb/s both ways.
        let fast = |rate: f64| {
            said_after("eight-16-came-later", 7103, |snapshot| {
                for port in &mut snapshot.facts.ports {
                    let packets = Some(Counter::whole(1, Some(rate), Source::Sysfs));
                    (port.tx_packets, port.rx_packets, port.ib_packets) = (packets, packets, true);
                }
            })
        };
        assert!(fast(24e6).contains("A shorter --delay may give shares."));
        assert!(!fast(12e6).contains("--delay"));
        let line = "0-n, between 0 and n: TX and RX are what its ports moved, and ucx_perftest (7700) may have moved a part of it.";
        assert_eq!(said("eight-17-devx", 7100), line);
        // A call was counted whose record was lost.
        let made = said_after("eight-17-devx", 7100, |snapshot| {
            let maker = snapshot.processes.iter_mut().find(|row| row.pid == Some(7700));
            maker.unwrap().unlisted = Some(Unlisted::Made);
            let nic = snapshot
                .devices
                .iter_mut()
                .find(|device| device.name == "mlx5_0".into());
            nic.unwrap().contexts = Some([7100, 7700].into());
        });
        let why =
            " The kernel does not list what ucx_perftest (7700) made by devx_obj_create: queue pairs, maybe.";
        assert_eq!(made, line.to_owned() + why);
    }
}
