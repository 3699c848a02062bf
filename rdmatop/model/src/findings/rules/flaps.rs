//! Links that go down and come up again, over and over.

use std::collections::{BTreeMap, VecDeque};

use super::Scene;
use super::link::{interface, name, used_by};
use crate::findings::{About, FindingId, Limits, Severity, Symptom, words};
use crate::ib::PortState;
use crate::snapshot::{PortRow, Snapshot};
use rdmatop_base::step::step;
use rdmatop_base::text;

const S: u64 = 1_000_000_000;
/// Times kept of each port: more make no other finding.
const KEPT: usize = 64;

/// When a port went down, by each of the two witnesses, oldest first, ns. A short outage is seen by the
/// counter alone, and not every driver has the counter.
#[derive(Clone, Debug, Default)]
struct Port {
    /// The last snapshot with it, ns.
    seen_ns: u64,
    active: Option<bool>,
    /// The port was ACTIVE in some snapshot.
    was_active: bool,
    by_state: VecDeque<u64>,
    downed: Option<u64>,
    by_counter: VecDeque<u64>,
}

/// Ports by device and number.
#[derive(Clone, Debug, Default)]
pub(super) struct Flaps(BTreeMap<(u64, u32), Port>);

/// How often a port went down in the window, when first and when last.
pub(super) struct Downs<'a> {
    times: &'a VecDeque<u64>,
    witness: &'static str,
}

fn downed(port: &PortRow) -> Option<u64> {
    let row = port.counters.iter().find(|row| &*row.name == "link_downed")?;
    Some(row.counter.total)
}

impl Port {
    fn look(&mut self, port: &PortRow, now: u64, oldest: u64) {
        self.seen_ns = now;
        if let Some(active) = port.state.map(PortState::is_active) {
            if self.active == Some(true) && !active {
                self.by_state.push_back(now);
            }
            self.active = Some(active);
            self.was_active |= active;
        }
        if let Some(total) = downed(port) {
            let more = self.downed.map_or(0, |before| total.saturating_sub(before));
            for _ in 0..more.min(KEPT as u64) {
                self.by_counter.push_back(now);
            }
            self.downed = Some(total);
        }
        for times in [&mut self.by_state, &mut self.by_counter] {
            while times.front().is_some_and(|at| *at < oldest) || times.len() > KEPT {
                times.pop_front();
            }
        }
    }
}

impl Flaps {
    pub(super) fn look(&mut self, snapshot: &Snapshot, limits: &Limits) {
        let now = snapshot.mono_ns;
        let oldest = now.saturating_sub(limits.flap_window_s * S);
        for port in &snapshot.ports {
            let kept = self.0.entry((port.device_uid, port.port)).or_default();
            kept.look(port, now, oldest);
        }
        if self.0.len() > snapshot.ports.len() {
            self.0.retain(|_, kept| kept.seen_ns == now);
        }
    }

    /// Whether a port was ACTIVE since rdmatop began.
    pub(super) fn was_active(&self, port: &PortRow) -> bool {
        self.0
            .get(&(port.device_uid, port.port))
            .is_some_and(|kept| kept.was_active)
    }

    /// The outages of a port, if they are as many as make a flapping link.
    pub(super) fn of(&self, port: &PortRow, limits: &Limits) -> Option<Downs<'_>> {
        let kept = self.0.get(&(port.device_uid, port.port))?;
        let (times, witness) = if kept.by_counter.len() > kept.by_state.len() {
            (&kept.by_counter, "link_downed")
        } else {
            (&kept.by_state, "the port's state")
        };
        (times.len() as u64 >= limits.flaps).then_some(Downs { times, witness })
    }
}

/// Ports that went down several times within minutes.
pub(super) fn flaps(scene: &Scene<'_>, out: &mut Vec<Symptom>) {
    for port in &scene.snapshot.ports {
        let Some(downs) = scene.growth.flaps.of(port, scene.limits) else {
            continue;
        };
        let (Some(first), Some(last)) = (downs.times.front(), downs.times.back()) else {
            continue;
        };
        let users: Vec<_> = scene.holders(&port.device).collect();
        let ago = |at: u64| text::age(scene.snapshot.mono_ns.saturating_sub(at) / S);
        // It works for the moment.
        let up = port.state.is_none_or(PortState::is_active);
        out.push(Symptom {
            verdict: format!(
                "The link of {} flaps: it went down {} within {}{}",
                name(port),
                words::count(downs.times.len() as u64, "time"),
                ago(*first),
                used_by(&users)
            ),
            evidence: vec![format!("by {}, the last time {} ago", downs.witness, ago(*last))],
            next: interface(port).map_or_else(
                || "ibdiagnet   # names the link -> change its cable or transceiver; again -> the switch's log".into(),
                |(netdev, more)| {
                    step!(
                        "sudo ethtool -m {}   # optical power below its low alarm -> change transceiver or cable, which ends the job   # else -> the switch's \
                         log, firmware of both ends{}",
                        netdev,
                        more
                    )
                },
            ),
            short: "link flaps".to_owned(),
            victims: users.iter().map(|row| row.uid).collect(),
            since_ns: *first,
            ..scene.symptom(
                FindingId::LinkFlaps,
                if up { Severity::Warning } else { Severity::Critical },
                About::of_port(port),
            )
        });
    }
}
