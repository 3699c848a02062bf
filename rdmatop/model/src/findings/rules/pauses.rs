//! Ethernet flow control: many pauses, and traffic in a class without flow control.

use super::RuleContext;
use super::link::{interface_or_place, name, used_by};
use crate::facts::{PortRow, ProcessRow};
use crate::findings::{About, Finding, FindingId, Severity, words};
use crate::value::Source;
use rdmatop_base::pause::{Meaning, Unit, Way, list, meaning};
use rdmatop_base::step::{ShellWord, step};
use rdmatop_base::wire_bytes::without_member;

/// Environment variables of libraries that choose the traffic class of RoCE packets.
const CLASSES: [&str; 2] = ["NCCL_IB_TC", "UCX_IB_TRAFFIC_CLASS"];

/// Counters of flow control that rise, with their rates per second.
fn rising(port: &PortRow) -> impl Iterator<Item = (Meaning, f64)> {
    let of_netdev = port
        .counters
        .iter()
        .filter(|row| row.counter.source == Source::Ethtool);
    of_netdev.filter_map(|row| {
        let rate = row.counter.rate.filter(|rate| *rate > 0.0)?;
        Some((meaning(without_member(&row.name))?, rate))
    })
}

/// What a port counts of pauses in one direction.
#[derive(Default)]
struct Paused {
    /// The largest share of the time for which a priority, or the link, is paused; `None` if the driver
    /// counts no durations.
    share: Option<f64>,
    /// Pause frames per second; `None` if none are counted, or their count does not rise.
    frames: Option<f64>,
    storms: f64,
    priorities: Vec<u8>,
}

impl Paused {
    fn of(port: &PortRow, way: Way) -> Self {
        let mut out = Self::default();
        for (meaning, rate) in rising(port).filter(|(meaning, _)| meaning.way == way) {
            match meaning.unit {
                Unit::Micros => out.share = Some(out.share.unwrap_or(0.0).max((rate / 1e6).min(1.0))),
                Unit::Frames => out.frames = Some(out.frames.unwrap_or(0.0) + rate),
                Unit::Storms => out.storms += rate,
                Unit::Bytes => continue,
            }
            out.priorities.extend(meaning.priority);
        }
        out.priorities.sort_unstable();
        out.priorities.dedup();
        out
    }

    fn is_storm(&self, ctx: &RuleContext<'_>) -> bool {
        self.storms > 0.0
            || self
                .frames
                .is_some_and(|frames| frames >= ctx.limits.pause_frames_per_s)
            || self.share.is_some_and(|share| share >= ctx.limits.pause_share)
    }

    fn evidence(&self) -> Vec<String> {
        let mut out = Vec::new();
        if let Some(share) = self.share {
            out.push(format!("paused {} of the time", words::percent(share)));
        }
        let on = match &self.priorities[..] {
            [] => String::new(),
            priorities => format!(" on {}", list(priorities)),
        };
        match self.frames {
            Some(frames) => out.push(format!("{} pause frames{on}", words::per_s(frames))),
            None if !on.is_empty() => out.push(format!("paused{on}")),
            None => {}
        }
        if self.storms > 0.0 {
            out.push("the driver's watchdog saw pauses without end (tx_pause_storm_*_events)".to_owned());
        }
        out
    }
}

/// Ports that are paused for long, or pause the other end of their link for long.
pub(super) fn storm(ctx: &RuleContext<'_>, out: &mut Vec<Finding>) {
    for port in &ctx.facts.ports {
        for way in [Way::Tx, Way::Rx] {
            let paused = Paused::of(port, way);
            if !paused.is_storm(ctx) {
                continue;
            }
            let users = ctx.carried(port);
            let (netdev, more) = interface_or_place(ctx, port);
            let (place, used) = (name(port), used_by(&users));
            let (verdict, next, part, short) = match way {
                Way::Tx => (
                    format!(
                        "{place} asks its senders to pause: this host takes packets slower than they come{used}"
                    ),
                    step!(
                        "ethtool -S {} | grep -E 'outbound_pci_stalled|discards|buffer'   # stalled_rd, _wr (percent of the last second) above 0, or another that grows -> PCIe link, IOMMU, memory: rdmatop doctor   # all 0 -> the NIC itself: many QPs or memory regions, firmware{}",
                        netdev,
                        more
                    ),
                    "tx",
                    "sends pauses",
                ),
                Way::Rx => (
                    format!(
                        "{place} is told to pause: the network or a receiver behind it is congested{used}"
                    ),
                    step!(
                        "ethtool -S {} | grep pause   # it grows -> on the switch: the host behind the port that sends most pauses is the slow one{}",
                        netdev,
                        more
                    ),
                    "rx",
                    "is paused",
                ),
            };
            out.push(Finding {
                verdict,
                evidence: paused.evidence(),
                next,
                short: short.to_owned(),
                victims: users.iter().map(|row| row.uid).collect(),
                severity: Severity::critical_if(paused.storms > 0.0),
                ..ctx.finding(FindingId::PauseStorm, About::of_port(port).part(part))
            });
        }
    }
}

/// RDMA traffic that leaves outside of the priorities with flow control of its port.
struct Outside {
    rdma: f64,
    lossless: f64,
    /// Priorities with flow control.
    on: Vec<u8>,
    /// Priorities without flow control that carry the traffic.
    used: Vec<u8>,
}

fn outside(ctx: &RuleContext<'_>, port: &PortRow) -> Option<Outside> {
    let mask = port.pfc.filter(|mask| *mask != 0 && port.is_active())?;
    let rdma = port.tx_bytes?.rate?;
    if rdma < ctx.limits.class_bytes_per_s {
        return None;
    }
    let has = |priority: u8| mask >> priority & 1 == 1;
    let (mut lossless, mut other, mut used) = (0.0, 0.0, Vec::new());
    for (meaning, rate) in rising(port) {
        let (Unit::Bytes, Way::Tx, Some(priority)) = (meaning.unit, meaning.way, meaning.priority) else {
            continue;
        };
        if has(priority) {
            lossless += rate;
        } else {
            other += rate;
            if rate >= rdma * ctx.limits.class_share {
                used.push(priority);
            }
        }
    }
    // The bytes that are missing must be counted on other priorities. Otherwise the driver does not count
    // bytes by priority, or not those of RDMA, and nothing is known.
    let is_outside = lossless < rdma * ctx.limits.class_share && other >= rdma / 2.0;
    is_outside.then(|| Outside {
        rdma,
        lossless,
        on: (0..8).filter(|priority| has(*priority)).collect(),
        used,
    })
}

/// Whether the traffic of a port leaves without the flow control that the port has: its packets are then lost
/// for that reason.
pub(super) fn is_outside(ctx: &RuleContext<'_>, port: &PortRow) -> bool {
    outside(ctx, port).is_some()
}

/// What the environment of a process says about its traffic class.
fn class_of(process: &ProcessRow) -> Option<String> {
    let environ = process.environ.as_ref()?;
    let set = environ.iter().find(|(key, _)| CLASSES.contains(&key.as_str()));
    Some(match set {
        Some((key, value)) => format!("{} has {key}={value}", words::process(process)),
        None => format!("{} sets no {}", words::process(process), CLASSES.join(", no ")),
    })
}

/// Ports whose traffic leaves on priorities without flow control.
pub(super) fn class(ctx: &RuleContext<'_>, port: &PortRow) -> Option<Finding> {
    let outside = outside(ctx, port)?;
    let users = ctx.carried(port);
    let [rdma, lossless] = [outside.rdma, outside.lossless].map(words::bits);
    let (on, used) = (list(&outside.on), list(&outside.used));
    let mut evidence = vec![format!("{rdma} of RDMA, {lossless} on {on}")];
    evidence.extend(users.first().and_then(|process| class_of(process)));
    // The DSCP in the middle of the eight that a NIC maps to this priority by default; bit 1 of the class
    // stands for ECN capable transport.
    let first = outside.on.first().copied().unwrap_or(0);
    let class = (u32::from(first) * 8 + 2) << 2 | 2;
    let (netdev, _) = interface_or_place(ctx, port);
    let show = if ctx.driver(port).is_some_and(|driver| driver.starts_with("mlx5")) {
        step!("sudo mlnx_qos -i {}", netdev)
    } else {
        step!("dcb app show dev {} dscp-prio", netdev)
    };
    let device = ShellWord::device(&port.device);
    Some(Finding {
        verdict: format!(
            "RoCE traffic of {} leaves on {used}, flow control (PFC) is on {on}{}",
            name(port),
            used_by(&users)
        ),
        evidence,
        next: if users.first().is_some_and(|user| user.kernel) {
            step!(
                "{}   # which DSCP belongs to priority {}, often {}; then, until the next boot and for what is connected from then on: sudo mkdir -p \
                 /sys/kernel/config/rdma_cm/{}; echo {} | sudo tee /sys/kernel/config/rdma_cm/{}/ports/{}/default_roce_tos",
                show,
                first,
                class >> 2,
                device,
                class,
                device,
                port.port
            )
        } else {
            step!(
                "{}   # which DSCP belongs to priority {}; then set it in the job, often NCCL_IB_TC={} UCX_IB_TRAFFIC_CLASS={}",
                show,
                first,
                class,
                class
            )
        },
        short: "no PFC class".to_owned(),
        victims: users.iter().map(|row| row.uid).collect(),
        ..ctx.finding(FindingId::TrafficClass, About::of_port(port))
    })
}
