//! Ports: state, errors, congestion, MTU, commands.

use std::collections::{BTreeMap, BTreeSet};

use super::RuleContext;
use crate::cause::CauseId;
use crate::facts::{NamedCounter, PortRow, ProcessRow};
use crate::findings::{About, FindingId, Severity, Symptom, words};
use crate::ib::{PhysState, PortState};
use crate::input::NetdevDown;
use crate::value::Source;
use rdmatop_base::driver_log;
use rdmatop_base::fabric;
use rdmatop_base::order::Gather as _;
use rdmatop_base::roce::payload;
use rdmatop_base::step::{NextStep, ShellWord, step};
use rdmatop_base::wire_bytes::without_member;
use rdmatop_base::wire_errors;
use rdmatop_common::provider::Counted;

pub(super) fn name(port: &PortRow) -> String {
    format!("{}/{}", port.device, port.port)
}

/// Whether a port is of InfiniBand: nothing of Ethernet and IP means anything there.
pub(super) fn is_infiniband(port: &PortRow) -> bool {
    port.link_layer.as_deref() == Some("InfiniBand")
}

/// The network device that has the link of a port (of a bond its first member), and a remark about the other
/// members, or about where it is. `None` where there is none, as on InfiniBand.
pub(super) fn interface(ctx: &RuleContext<'_>, port: &PortRow) -> Option<(ShellWord, NextStep)> {
    let Some(netdev) = port.netdev.as_deref() else {
        return (port.link_layer.as_deref() == Some("Ethernet")).then(|| elsewhere(ctx, port));
    };
    let members = port.bond.as_ref().map_or(&[][..], |bond| &*bond.members);
    let Some((first, more)) = members.split_first() else {
        return Some((ShellWord::netdev(netdev), NextStep::default()));
    };
    let more = match more {
        [] => NextStep::default(),
        [second, ..] => step!(
            "   # and so each other member of {}: {}",
            ShellWord::said(netdev),
            ShellWord::said(&second.name)
        ),
    };
    Some((ShellWord::netdev(&first.name), more))
}

/// A place for the network device of an Ethernet port that has none in this network namespace, and how to run
/// a command in that of a process with QPs there.
fn elsewhere(ctx: &RuleContext<'_>, port: &PortRow) -> (ShellWord, NextStep) {
    let mut notes = ctx.facts.health.notes.iter();
    let pid = ctx.holders(&port.device).find_map(|row| row.pid);
    let where_it_is = match pid {
        // Only PIDs of this namespace are known here, and those are of its containers.
        _ if notes.any(|note| note.id == CauseId::PidNamespace) => {
            "   # INTERFACE is in another network namespace: look on the node".into()
        }
        // The process may be in the own namespace, and have the device from another.
        Some(pid) => step!(
            "   # INTERFACE is in another network namespace, usually that of PID {}: run it behind sudo nsenter -t {} -n, and ip -br link to find it   # not there -> sudo lsns -t net lists the others",
            pid,
            pid
        ),
        None => "   # INTERFACE is in another network namespace: sudo lsns -t net shows each with a PID; run it behind sudo nsenter -t PID -n, and ip -br link to find it".into(),
    };
    (ShellWord::or(None, "INTERFACE"), where_it_is)
}

pub(super) fn rate_of(port: &PortRow, name: &str) -> Option<f64> {
    let row = port.counters.iter().find(|row| &*row.name == name)?;
    row.counter.rate
}

/// Ports of which any counter rises. Most ports of a large node are at rest, which spares the look-ups of
/// many counters by name.
fn moving<'a>(ctx: &RuleContext<'a>) -> impl Iterator<Item = &'a PortRow> {
    let rises = |row: &NamedCounter| row.counter.rate.is_some_and(|rate| rate > 0.0);
    let ports = ctx.facts.ports.iter();
    ports.filter(move |port| port.counters.iter().any(rises))
}

/// Ports that are not ACTIVE although processes have QPs on their device, or the kernel has connected ones.
pub(super) fn state(ctx: &RuleContext<'_>, out: &mut Vec<Symptom>) {
    for port in &ctx.facts.ports {
        let Some(state) = port.state.filter(|state| !state.is_active()) else {
            continue;
        };
        let own_ports = ctx
            .facts
            .ports
            .iter()
            .filter(|other| other.device_uid == port.device_uid);
        // If the device has several ports, the processes' QPs may be on another one.
        let mut users: Vec<_> = if own_ports.count() == 1 {
            ctx.users(&port.device).collect()
        } else {
            Vec::new()
        };
        // A port that was ACTIVE before is not a spare one: it is taken for the one that they use.
        let was_active = ctx.history.flaps.was_active(port);
        if users.is_empty() && was_active {
            users = ctx.holders(&port.device).collect();
        }
        let mut beside = ctx.consumers(port);
        if users.is_empty() {
            users = std::mem::take(&mut beside);
        }
        let are_listed = !users.is_empty();
        if !are_listed && was_active {
            users = ctx.openers(port.device_uid).collect();
        }
        // Some destroy their QPs soon after the link is lost (`nvme_rdma_teardown_io_queues`), and make
        // others when it is back.
        if users.is_empty() {
            let before = ctx.history.flaps.consumers(port);
            users = before.filter_map(|uid| ctx.process(uid)).collect();
        }
        let [first, rest @ ..] = &users[..] else { continue };
        let more = match rest.len() {
            0 => String::new(),
            more if first.kernel => format!(" and {more} more"),
            1 => " and 1 more process".to_owned(),
            more => format!(" and {more} more processes"),
        };
        let mut evidence = vec![format!("state {state}")];
        evidence.extend(port.phys_state.map(|phys| format!("physical state {phys}")));
        if !are_listed {
            let words = if first.kernel {
                "its QPs there are destroyed: it had them while the port was ACTIVE"
            } else {
                PAST_KERNEL
            };
            evidence.push(words.to_owned());
        }
        evidence.extend(who(&beside).map(|who| format!("the kernel has QPs there, too: {who}")));
        let why = why_not_active(port, state).map_or_else(String::new, |why| format!(" ({why})"));
        let ranks = ctx.ranks_behind(port.device_uid, &users);
        let jobs: BTreeSet<_> = ranks.iter().map(|row| &row.workload).gather();
        let whose = if jobs.len() > 1 { "their jobs" } else { "the job" };
        let behind = match ranks.len() {
            0 => String::new(),
            1 => format!("; 1 more rank of {whose} moves nothing"),
            more => format!("; {more} more ranks of {whose} move nothing"),
        };
        evidence.extend(who(&ranks).map(|who| format!("ranks that move nothing: {who}")));
        out.push(Symptom {
            verdict: format!(
                "{} is {state}{why}: {}{more} cannot send or receive{behind}",
                name(port),
                words::process(first)
            ),
            evidence,
            next: bring_up(ctx, port, state),
            short: format!("port {state}"),
            victims: users
                .iter()
                .chain(&beside)
                .chain(&ranks)
                .map(|row| row.uid)
                .collect(),
            ..ctx.symptom(FindingId::PortDown, Severity::Critical, About::of_port(port))
        });
    }
}

fn why_not_active(port: &PortRow, state: PortState) -> Option<String> {
    let netdev = port.netdev.as_deref().unwrap_or("its interface");
    match (port.netdev_down, port.phys_state) {
        (Some(NetdevDown::Off), _) => Some(format!("{netdev} is switched off")),
        (Some(NetdevDown::NoCarrier), _) => Some(format!("{netdev} has no signal")),
        _ if !is_infiniband(port) => None,
        _ if state == PortState::INIT => Some("waits for a subnet manager".to_owned()),
        (_, Some(PhysState::POLLING)) => Some("no signal".to_owned()),
        (_, Some(PhysState::DISABLED)) => Some("it is disabled".to_owned()),
        _ => None,
    }
}

/// What is known of processes that only have a device open.
pub(super) const PAST_KERNEL: &str = "the kernel lists no QP there: the process has the device open, and a library that makes QPs past the kernel";

/// What to do about a port that is not ACTIVE.
fn bring_up(ctx: &RuleContext<'_>, port: &PortRow, state: PortState) -> NextStep {
    let (netdev, place) = match port.netdev.as_deref() {
        _ if is_infiniband(port) => {
            let has_signal = matches!(state, PortState::INIT | PortState::ARMED);
            let active = ctx.active_ports_like(port, None).next();
            let active = active.map(|port| (&*port.device, port.port));
            return fabric::bring_up(&port.device, port.port, has_signal, active);
        }
        // Of a bond the one that all its members make up.
        Some(netdev) => (ShellWord::netdev(netdev), NextStep::default()),
        None if port.link_layer.as_deref() == Some("Ethernet") => elsewhere(ctx, port),
        None => {
            return "sudo dmesg | tail -50   # what its driver says of the link; nothing -> its vendor"
                .into();
        }
    };
    // A device of software has no cable.
    let driver = ctx
        .device(port.device_uid)
        .and_then(|device| device.driver.as_deref());
    let is_software = driver.and_then(Counted::of_driver).is_some();
    match port
        .netdev_down
        .filter(|why| !is_software || *why == NetdevDown::Off)
    {
        Some(NetdevDown::Off) => step!(
            "sudo ip link set dev {} up   # until the next boot, if nobody switched it off on purpose{}",
            netdev,
            place
        ),
        Some(NetdevDown::NoCarrier) => step!(
            "sudo ethtool {}   # Link detected: no (No cable) -> plug in the cable   # a virtual function -> on its host: ip link show PF, state \
             disable -> ask who set it   # else -> switch on the port at its other end, or change cable or transceiver{}",
            netdev,
            place
        ),
        None => step!(
            "ip link show dev {}   # no UP within <> -> sudo ip link set dev {} up (until the next boot)   # NO-CARRIER -> plug in the cable, or \
             switch on the port at its other end{}",
            netdev,
            netdev,
            place
        ),
    }
}

/// The counter of InfiniBand that counts how often the link went down.
pub(in crate::findings) const LINK_DOWNED: &str = "link_downed";

/// The counter of times that a port's link went down: of Ethernet that of the network device, because the
/// one of InfiniBand stays at 0 there. Those of the links of a bond are others.
pub(super) fn down_counter(port: &PortRow) -> Option<&NamedCounter> {
    let is_it = |row: &&NamedCounter| &*row.name == LINK_DOWNED || wire_errors::is_down(&row.name);
    let all = port.counters.iter().filter(is_it);
    all.max_by_key(|row| (row.counter.source == Source::Ethtool) != is_infiniband(port))
}

/// The same of the links of its bond.
pub(super) fn down_counters_of_bond(port: &PortRow) -> impl Iterator<Item = &NamedCounter> {
    let is_it = |row: &&NamedCounter| {
        let of_member = row.name.split_once(':');
        of_member.is_some_and(|(_, name)| wire_errors::is_down(name))
    };
    port.counters.iter().filter(is_it)
}

/// Damaged packets per second of an Ethernet link, above which it has errors.
const DAMAGED_PER_S: f64 = 1.0;

/// Counters of a link, each with its limit per second.
const ERRORS: &[(&str, f64, Severity)] = &[
    ("local_link_integrity_errors", 0.0, Severity::Critical),
    ("excessive_buffer_overrun_errors", 0.0, Severity::Critical),
    ("link_error_recovery", 0.0, Severity::Warning),
    ("symbol_error", 10.0, Severity::Warning),
    ("port_rcv_errors", 10.0, Severity::Warning),
    ("port_xmit_discards", 100.0, Severity::Warning),
];

/// The first of these processes, and how many more there are.
pub(super) fn who(rows: &[&ProcessRow]) -> Option<String> {
    let [first, more @ ..] = rows else { return None };
    let first = words::process(first);
    Some(match more.len() {
        0 => first,
        more => format!("{first} and {more} more"),
    })
}

/// Names who suffers from a port's trouble.
pub(super) fn used_by(users: &[&ProcessRow]) -> String {
    who(users).map_or_else(String::new, |who| format!("; used by {who}"))
}

pub(super) fn errors(ctx: &RuleContext<'_>, out: &mut Vec<Symptom>) {
    for port in moving(ctx) {
        damage(ctx, port, out);
        downs(ctx, port, out);
        for (counter, limit, severity) in ERRORS {
            let Some(row) = port.counters.iter().find(|row| &*row.name == *counter) else {
                continue;
            };
            let Some(rate) = row.counter.rate.filter(|rate| rate > limit) else {
                continue;
            };
            let (place, users) = (name(port), ctx.carried(port));
            let drops = *counter == "port_xmit_discards";
            out.push(Symptom {
                verdict: if drops {
                    format!("{place} drops packets that it cannot send{}", used_by(&users))
                } else {
                    format!("The link of {place} has errors ({counter}){}", used_by(&users))
                },
                next: interface(ctx, port).map_or_else(
                    || fabric::bad_links(&port.device, port.port),
                    |(netdev, more)| {
                        step!(
                            "ethtool -S {} | grep -v ': 0$'   # error counts that grow -> change cable or transceiver, else the \
                             switch's port{}",
                            netdev,
                            more
                        )
                    },
                ),
                short: if drops { "drops on send" } else { "link errors" }.to_owned(),
                victims: users.iter().map(|row| row.uid).collect(),
                evidence: vec![rose(row, rate)],
                ..ctx.symptom(FindingId::LinkErrors, *severity, About::of_port(port).part(*counter))
            });
        }
    }
}

fn rose(row: &NamedCounter, rate: f64) -> String {
    let (counter, total) = (&row.name, row.counter.total);
    format!(
        "{counter} {total} in all, {} when it last rose",
        words::per_s(rate)
    )
}

/// The link of a port in words, or that link of its bond whose counter this is, and its network device.
fn link_of(
    ctx: &RuleContext<'_>,
    port: &PortRow,
    row: &NamedCounter,
) -> (String, Option<(ShellWord, NextStep)>) {
    match row.name.split_once(':') {
        Some((member, _)) => (
            format!("{member}, of the bond of {},", name(port)),
            Some((ShellWord::netdev(member), NextStep::default())),
        ),
        None => (name(port), interface(ctx, port)),
    }
}

/// Links that went down.
fn downs(ctx: &RuleContext<'_>, port: &PortRow, out: &mut Vec<Symptom>) {
    let flaps = ctx.history.flaps.of(port, ctx.limits).is_some();
    // `link-flaps` says it already.
    let own = down_counter(port).filter(|_| !flaps);
    for row in down_counters_of_bond(port).chain(own) {
        let Some(rate) = row.counter.rate.filter(|rate| *rate > 0.0) else {
            continue;
        };
        let of_bond = row.name.contains(':');
        let users = ctx.carried(port);
        let (link, netdev) = link_of(ctx, port, row);
        // A process that lost packets or connections has findings of its own.
        let (again, severity) = match port.is_active() {
            true if of_bond => ("", Severity::Warning),
            true => (" and is up again", Severity::Warning),
            false => ("", Severity::Critical),
        };
        let part = if of_bond { &*row.name } else { LINK_DOWNED };
        out.push(Symptom {
            verdict: format!("The link of {link} went down{again}{}", used_by(&users)),
            next: netdev.map_or_else(
                || fabric::bad_links(&port.device, port.port),
                |(netdev, more)| {
                    step!(
                        "sudo ethtool -m {}   # optical power below its low alarm -> change transceiver or cable, which ends the job   # else -> the \
                         switch's log says why that port went down{}",
                        netdev,
                        more
                    )
                },
            ),
            short: "link flapped".to_owned(),
            victims: users.iter().map(|row| row.uid).collect(),
            evidence: vec![rose(row, rate)],
            ..ctx.symptom(FindingId::LinkErrors, severity, About::of_port(port).part(part))
        });
    }
}

/// Links of Ethernet on which packets arrive damaged.
fn damage(ctx: &RuleContext<'_>, port: &PortRow, out: &mut Vec<Symptom>) {
    let rises = |row: &NamedCounter, limit: f64| row.counter.rate.is_some_and(|rate| rate > limit);
    let member = |row: &NamedCounter| {
        row.name
            .split_once(':')
            .map_or("", |(member, _)| member)
            .to_owned()
    };
    let mut links: BTreeMap<String, Vec<&NamedCounter>> = BTreeMap::new();
    for row in port.counters.iter().filter(|_| !is_infiniband(port)) {
        if wire_errors::is_damage(without_member(&row.name)) && rises(row, DAMAGED_PER_S) {
            links.entry(member(row)).or_default().push(row);
        }
    }
    // A link that comes up counts errors until both ends agree.
    let downs = down_counters_of_bond(port).chain(down_counter(port));
    for down in downs.filter(|row| rises(row, 0.0)) {
        links.remove(&member(down));
    }
    // The counters may be read only some time after it came up.
    links.retain(|member, _| !ctx.history.flaps.settles(port, member, ctx.facts.mono_ns));
    for (member, rows) in links {
        let Some(first) = rows.first() else { continue };
        let (users, (link, netdev)) = (ctx.carried(port), link_of(ctx, port, first));
        out.push(Symptom {
            verdict: format!(
                "Packets arrive damaged on the link of {link} ({}){}",
                without_member(&first.name),
                used_by(&users)
            ),
            next: netdev.map_or_else(NextStep::default, |(netdev, more)| {
                step!(
                    "sudo ethtool -m {}   # optical power below its low alarm -> clean the fibre, or change it or the transceiver, which ends the job   # else -> \
                     change the cable, then the switch's port   # only CRC or FCS errors grow -> switches may pass on what was damaged before: find the \
                     first port that counts them{}",
                    netdev,
                    more
                )
            }),
            short: "damaged packets".to_owned(),
            victims: users.iter().map(|row| row.uid).collect(),
            evidence: rows
                .iter()
                .filter_map(|row| Some(rose(row, row.counter.rate?)))
                .collect(),
            ..ctx.symptom(
                FindingId::LinkErrors,
                Severity::Warning,
                About::of_port(port).part(format!("damage:{member}")),
            )
        });
    }
}

/// Ports that ignore notifications of congestion, or send none.
pub(super) fn congestion(ctx: &RuleContext<'_>, out: &mut Vec<Symptom>) {
    for port in moving(ctx).filter(|port| !is_infiniband(port)) {
        let grows = |name| rate_of(port, name).filter(|rate| *rate > 0.0);
        let (verdict, evidence, which) = if let Some(rate) = grows("rp_cnp_ignored") {
            (
                format!(
                    "{} ignores congestion notifications: it does not slow down",
                    name(port)
                ),
                format!("rp_cnp_ignored {}", words::per_s(rate)),
                "roce_rp",
            )
        } else if let (Some(marked), Some(0.0)) =
            (grows("np_ecn_marked_roce_packets"), rate_of(port, "np_cnp_sent"))
        {
            (
                format!(
                    "{} receives packets marked by ECN and sends no congestion notification",
                    name(port)
                ),
                format!(
                    "np_ecn_marked_roce_packets {}, np_cnp_sent 0/s",
                    words::per_s(marked)
                ),
                "roce_np",
            )
        } else {
            continue;
        };
        out.push(Symptom {
            verdict,
            evidence: vec![evidence],
            next: step!(
                "cat /sys/class/net/{}/ecn/{}/enable/*   # by priority, 0 to 7; 0 for the one that RoCE uses -> switch it on until the next boot: \
                 echo 1 | sudo tee that file   # no such files -> the kernel's own driver: sudo mlxconfig -d {} q | grep ROCE_CC_PRIO_MASK",
                interface(ctx, port).map_or_else(|| ShellWord::or(None, "NETDEV"), |(netdev, _)| netdev),
                which,
                ShellWord::device(&port.device)
            ),
            short: "ECN ignored".to_owned(),
            ..ctx.symptom(FindingId::Congestion, Severity::Warning, About::of_port(port))
        });
    }
}

/// Whether the MTU of a port's network device limits its packets: those of iWARP are in a stream of TCP.
fn has_mtu_of_roce(port: &PortRow) -> bool {
    port.link_layer.as_deref() == Some("Ethernet") && !port.iwarp
}

/// Ethernet ports whose MTU is too small for RoCE packets of 4096 bytes.
pub(super) fn mtu(ctx: &RuleContext<'_>, out: &mut Vec<Symptom>) {
    for port in &ctx.facts.ports {
        let (Some(rate), Some(mtu)) = (port.rate_bps, port.netdev_mtu) else {
            continue;
        };
        let active = port.is_active();
        let roce = has_mtu_of_roce(port);
        let payload = payload(mtu).map_or(0, u64::from);
        let small = rate >= ctx.limits.mtu_rate_bps && payload < ctx.limits.payload_bytes;
        if !active || !roce || !small {
            continue;
        }
        let by_process = ctx.users(&port.device).next().is_some();
        let consumers = ctx.consumers(port);
        if !by_process && consumers.is_empty() {
            continue;
        }
        let netdev = port.netdev.as_deref().unwrap_or("NETDEV");
        let interface = ShellWord::or(port.netdev.as_deref(), "NETDEV");
        let mut evidence = vec![format!(
            "{} of {} Gb/s, MTU {mtu} of {netdev}",
            name(port),
            rate / 1_000_000_000
        )];
        evidence.extend(who(&consumers).map(|who| format!("the kernel has QPs there: {who}")));
        out.push(Symptom {
            verdict: format!(
                "{netdev} has MTU {mtu}: packets of {} carry {payload} bytes, {} are possible",
                name(port),
                ctx.limits.payload_bytes
            ),
            evidence,
            next: if by_process {
                step!(
                    "sudo ip link set dev {} mtu 9000   # until the next boot; as much on the switches first, then on all hosts; then restart the job",
                    interface
                )
            } else {
                step!(
                    "sudo ip link set dev {} mtu 9000   # until the next boot; as much on the switches first, then on all hosts; connections of the \
                     kernel keep their packet size until they are mounted or connected anew",
                    interface
                )
            },
            short: format!("MTU {mtu}"),
            ..ctx.symptom(FindingId::SmallMtu, Severity::Warning, About::of_port(port))
        });
    }
}

/// QPs whose packets carry less than their port has room for.
pub(super) fn path_mtu(ctx: &RuleContext<'_>, out: &mut Vec<Symptom>) {
    // One symptom for the QPs of one process on one port, with the smallest of their MTUs.
    let mut small: BTreeMap<(u64, u32, u64), (u32, u64)> = BTreeMap::new();
    for (path, qps) in ctx.judgement.paths() {
        let mtu = path.mtu.map(u32::from);
        let Some(mtu) = mtu.filter(|mtu| u64::from(*mtu) < ctx.limits.payload_bytes) else {
            continue;
        };
        if room(ctx, path.device, path.port).is_some_and(|room| mtu < room) {
            let all = small
                .entry((path.device, path.port, path.process))
                .or_insert((mtu, 0));
            *all = (all.0.min(mtu), all.1 + qps);
        }
    }
    for ((device, port, process), (mtu, qps)) in small {
        let (Some(row), Some(owner), Some(room)) = (
            ctx.port(device, port),
            ctx.process(process),
            room(ctx, device, port),
        ) else {
            continue;
        };
        out.push(Symptom {
            verdict: format!(
                "{} of {} on {} {} a path MTU of {mtu}, the port has room for {room}",
                words::count(qps, "QP"),
                words::process(owner),
                name(row),
                if qps == 1 { "has" } else { "have" },
            ),
            evidence: vec![format!(
                "MTU {} of {}",
                row.netdev_mtu.unwrap_or(0),
                row.netdev.as_deref().unwrap_or("its network device")
            )],
            next: step!(
                "ip link   # on the peers: a smaller mtu there -> sudo ip link set dev NETDEV mtu 9000 (until the next boot; on the switches first)   # else {}",
                if owner.kernel {
                    "it was smaller when the kernel connected: mount or connect it anew"
                } else {
                    "the job asks for it: UCX_IB_PATH_MTU, perftest -m"
                }
            ),
            short: format!("path MTU {mtu}"),
            since_ns: ctx.facts.mono_ns,
            ..ctx.symptom(
                FindingId::SmallMtu,
                Severity::Warning,
                About {
                    process: Some(process),
                    ..About::of_port(row).part("path")
                },
            )
        });
    }
}

/// The largest payload of a packet on a fast ACTIVE Ethernet port, bytes.
fn room(ctx: &RuleContext<'_>, device: u64, port: u32) -> Option<u32> {
    let row = ctx.port(device, port)?;
    let fast = row.rate_bps.is_some_and(|rate| rate >= ctx.limits.mtu_rate_bps);
    let active = row.is_active();
    payload(row.netdev_mtu?).filter(|_| fast && active && has_mtu_of_roce(row))
}

/// InfiniBand ports that have data and may not send it, because the other end of the link gives no credits.
pub(super) fn waits(ctx: &RuleContext<'_>, out: &mut Vec<Symptom>) {
    for port in moving(ctx).filter(|port| is_infiniband(port)) {
        let (Some(ticks), Some(rate), Some(lanes)) =
            (rate_of(port, "port_xmit_wait"), port.rate_bps, port.lanes)
        else {
            continue;
        };
        // A tick is taken as the shortest possible: the time of one symbol (one byte) of a lane.
        let share = (ticks * f64::from(lanes) / (rate as f64 / 8.0)).min(1.0);
        if share < ctx.limits.wait_share {
            continue;
        }
        let users = ctx.carried(port);
        let sent = port.any_tx_bytes().and_then(|sent| sent.rate);
        let mut evidence = vec![format!(
            "port_xmit_wait {}, a tick taken as one symbol time",
            words::per_s(ticks)
        )];
        evidence.extend(sent.map(|bytes| {
            format!(
                "it sends {} of {}",
                words::bits(bytes),
                words::bits(rate as f64 / 8.0)
            )
        }));
        out.push(Symptom {
            verdict: format!(
                "{} has data and waits at least {} of the time to send it: the fabric or a receiver is congested{}",
                name(port),
                words::percent(share),
                used_by(&users)
            ),
            evidence,
            next: step!(
                "sudo ibdiagnet -i {} -p {} -P all=1   # which switch ports wait too: the last one on the way leads to the slow receiver",
                ShellWord::device(&port.device),
                port.port
            ),
            short: "IB congestion".to_owned(),
            victims: users.iter().map(|row| row.uid).collect(),
            ..ctx.symptom(FindingId::IbCongestion, Severity::Warning, About::of_port(port))
        });
    }
}

/// Commands of a driver that its device refuses, or does not answer. Counters of single verbs, as
/// `reg_mr_err`, say neither: they also count what the driver itself refuses, memory that cannot be pinned
/// and flags that libfabric tries at each start (`efa_reg_mr`, efa_verbs.c).
pub(super) fn commands(ctx: &RuleContext<'_>, out: &mut Vec<Symptom>) {
    const COUNTERS: [(&str, Severity); 2] = [
        ("no_completion_cmds", Severity::Critical),
        ("cmds_err", Severity::Warning),
    ];
    for port in moving(ctx) {
        let grows = |name| rate_of(port, name).filter(|rate| *rate > 0.0);
        let found = COUNTERS
            .into_iter()
            .find_map(|(name, severity)| Some((name, severity, grows(name)?)));
        let Some((counter, severity, rate)) = found else {
            continue;
        };
        let is_silent = severity == Severity::Critical;
        let does = if is_silent { "does not answer" } else { "refuses" };
        out.push(Symptom {
            verdict: format!("{} {does} commands of its driver ({counter})", port.device),
            evidence: vec![format!("{counter} {}", words::per_s(rate))],
            next: if is_silent {
                "sudo dmesg | tail -50   # errors of the driver -> keep them for the vendor, then reset the NIC or reboot; again -> firmware, vendor"
                    .into()
            } else {
                driver_log::command()
            },
            short: counter.to_owned(),
            ..ctx.symptom(FindingId::AdminErrors, severity, About::of_port(port))
        });
    }
}
