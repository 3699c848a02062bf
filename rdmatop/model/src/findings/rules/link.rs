//! Ports: state, errors, congestion, MTU, commands.

use std::collections::BTreeMap;

use super::{RuleContext, growing};
use crate::cause::CauseId;
use crate::facts::{NamedCounter, PortRow, ProcessRow};
use crate::findings::{About, Finding, FindingId, Severity, words};
use crate::ib::{PhysState, PortState};
use crate::input::NetdevDown;
use crate::value::Source;
use rdmatop_base::driver_log;
use rdmatop_base::fabric;
use rdmatop_base::roce::payload;
use rdmatop_base::step::{NextStep, ShellWord, step};
use rdmatop_base::wire_bytes::without_member;
use rdmatop_base::wire_errors;
use rdmatop_common::provider::Counted;

pub(super) fn name(port: &PortRow) -> String {
    format!("{}/{}", port.device, port.port)
}

/// How much of its link a port sends, in brackets; empty where that is not known.
pub(super) fn load(port: &PortRow) -> String {
    let load = growing(port.tx_bytes).zip(port.capacity());
    let full = |(sent, link): (f64, f64)| format!(" ({} full)", words::percent((sent / link).min(1.0)));
    load.map_or_else(String::new, full)
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
    let pid = ctx.holders(&port.device).find_map(|row| row.pid);
    let where_it_is = match pid {
        // Only PIDs of this namespace are known here, and those are of its containers.
        _ if ctx.facts.health.note(CauseId::PidNamespace).is_some() => {
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

/// The same, or a place for what is not known.
pub(super) fn interface_or_place(ctx: &RuleContext<'_>, port: &PortRow) -> (ShellWord, NextStep) {
    interface(ctx, port).unwrap_or_else(|| (ShellWord::or(None, "NETDEV"), NextStep::default()))
}

pub(super) fn rate_of(port: &PortRow, name: &str) -> Option<f64> {
    let row = port.counters.iter().find(|row| &*row.name == name)?;
    row.counter.rate
}

/// The rate of a counter that rises.
pub(super) fn rising(port: &PortRow, name: &str) -> Option<f64> {
    rate_of(port, name).filter(|rate| *rate > 0.0)
}

/// Ports that are not ACTIVE although processes have QPs on their device, or the kernel has connected ones.
pub(super) fn state(ctx: &RuleContext<'_>, port: &PortRow) -> Option<Finding> {
    let state = port.state.filter(|state| !state.is_active())?;
    let of_device = |other: &&PortRow| other.device_uid == port.device_uid;
    // If the device has several ports, the processes' QPs may be on another one.
    let mut users: Vec<_> = if ctx.facts.ports.iter().filter(of_device).count() == 1 {
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
    let [first, rest @ ..] = &users[..] else {
        return None;
    };
    let more = match rest.len() {
        0 => " is".to_owned(),
        more if first.kernel => format!(" and {more} more are"),
        1 => " and 1 more process are".to_owned(),
        more => format!(" and {more} more processes are"),
    };
    let mut evidence = vec![format!("state {state}")];
    evidence.extend(port.phys_state.map(|phys| format!("physical state {phys}")));
    evidence.extend((!are_listed).then(|| {
        let words = if first.kernel {
            "its QPs there are destroyed: it had them while the port was ACTIVE"
        } else {
            PAST_KERNEL
        };
        words.to_owned()
    }));
    evidence.extend(who(&beside).map(|who| format!("the kernel has QPs there, too: {who}")));
    let why = why_not_active(port, state).map_or_else(String::new, |why| format!(" ({why})"));
    let ranks = ctx.ranks_behind(port.device_uid, &users);
    let is_one_job = ranks.windows(2).all(|two| two[0].workload == two[1].workload);
    let whose = if is_one_job { "the job" } else { "their jobs" };
    let behind = match ranks.len() {
        0 => String::new(),
        1 => format!("; 1 more rank of {whose} moves nothing"),
        more => format!("; {more} more ranks of {whose} move nothing"),
    };
    evidence.extend(who(&ranks).map(|who| format!("ranks that move nothing: {who}")));
    let victims = users.iter().chain(&beside).chain(&ranks);
    Some(Finding {
        verdict: format!(
            "{} is {state}{why}: {}{more} cut off{behind}",
            name(port),
            words::process(first)
        ),
        evidence,
        next: bring_up(ctx, port, state),
        short: format!("port {state}"),
        victims: victims.map(|row| row.uid).collect(),
        ..ctx.finding(FindingId::PortDown, About::of_port(port))
    })
}

fn why_not_active(port: &PortRow, state: PortState) -> Option<String> {
    let netdev = port.netdev.as_deref().unwrap_or("its interface");
    match (port.netdev_down, port.phys_state) {
        (Some(NetdevDown::Off), _) => Some(format!("{netdev} is switched off")),
        (Some(NetdevDown::NoCarrier), _) => Some(format!("{netdev} has no signal")),
        _ if !is_infiniband(port) => None,
        _ if state == PortState::INIT => Some("no subnet manager yet".to_owned()),
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
    let is_software = ctx.driver(port).and_then(Counted::of_driver).is_some();
    match port
        .netdev_down
        .filter(|why| !is_software || *why == NetdevDown::Off)
    {
        Some(NetdevDown::Off) => step!(
            "sudo ip link set dev {} up   # ask first whether somebody switched it off on purpose; it is up until the next boot{}",
            netdev,
            place
        ),
        Some(NetdevDown::NoCarrier) => step!(
            "sudo ethtool {}   # Link detected: no (No cable) -> plug in the cable   # else -> switch on the port at its other end, or change cable or transceiver   \
             # a virtual function (SR-IOV) -> ask who runs its card's host (ip link show PF: state disable){}",
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

/// Counters of a link, each with its limit per second. Above the limit of the first two it does not work.
const ERRORS: &[(&str, f64)] = &[
    ("local_link_integrity_errors", 0.0),
    ("excessive_buffer_overrun_errors", 0.0),
    ("link_error_recovery", 0.0),
    ("symbol_error", 10.0),
    ("port_rcv_errors", 10.0),
    ("port_xmit_discards", 100.0),
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

/// A link that has trouble: what is wrong with it, before those who use it.
fn troubled(ctx: &RuleContext<'_>, port: &PortRow, part: &str, verdict: &str) -> Finding {
    let users = ctx.carried(port);
    Finding {
        verdict: format!("{verdict}{}", used_by(&users)),
        victims: users.iter().map(|row| row.uid).collect(),
        ..ctx.finding(FindingId::LinkErrors, About::of_port(port).part(part))
    }
}

pub(super) fn errors(ctx: &RuleContext<'_>, out: &mut Vec<Finding>) {
    for port in &ctx.facts.ports {
        // Of nearly every port there is none, so that no name is compared.
        let rising: Vec<&NamedCounter> = port
            .counters
            .iter()
            .filter(|row| row.counter.rate.is_some_and(|rate| rate > 0.0))
            .collect();
        if rising.is_empty() {
            continue;
        }
        damage(ctx, port, out);
        downs(ctx, port, out);
        for (at, (counter, limit)) in ERRORS.iter().enumerate() {
            let row = rising.iter().find(|row| &*row.name == *counter);
            let Some(evidence) = row.and_then(|row| rose(row, *limit)) else {
                continue;
            };
            let (verdict, short) = if *counter == "port_xmit_discards" {
                (
                    format!("{} drops packets that it cannot send", name(port)),
                    "drops on send",
                )
            } else {
                (
                    format!("The link of {} has errors ({counter})", name(port)),
                    "link errors",
                )
            };
            out.push(Finding {
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
                short: short.to_owned(),
                evidence: vec![evidence],
                severity: Severity::critical_if(at < 2),
                ..troubled(ctx, port, counter, &verdict)
            });
        }
    }
}

/// What a counter has that rises faster than this.
pub(super) fn rose(row: &NamedCounter, limit: f64) -> Option<String> {
    let rate = row.counter.rate.filter(|rate| *rate > limit)?;
    let (counter, total) = (&row.name, row.counter.total);
    let rate = words::per_s(rate);
    Some(format!("{counter} {total} in all, {rate} when it last rose"))
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
fn downs(ctx: &RuleContext<'_>, port: &PortRow, out: &mut Vec<Finding>) {
    let flaps = ctx.history.flaps.of(port, ctx.limits).is_some();
    // `link-flaps` says it already.
    let own = down_counter(port).filter(|_| !flaps);
    for row in down_counters_of_bond(port).chain(own) {
        let Some(evidence) = rose(row, 0.0) else { continue };
        let of_bond = row.name.contains(':');
        let (link, netdev) = link_of(ctx, port, row);
        let is_up = port.is_active();
        let again = if is_up && !of_bond { " and is up again" } else { "" };
        let part = if of_bond { &*row.name } else { LINK_DOWNED };
        out.push(Finding {
            next: netdev.map_or_else(
                || fabric::bad_links(&port.device, port.port),
                |(netdev, more)| {
                    step!(
                        "sudo ethtool -m {}   # optical power below its low alarm -> change transceiver or cable when no job runs   # else -> once is no fault yet; again -> \
                         the switch's log of that port{}",
                        netdev,
                        more
                    )
                },
            ),
            short: "link flapped".to_owned(),
            evidence: vec![evidence],
            // A process that lost packets or connections has findings of its own.
            severity: Severity::critical_if(!is_up),
            ..troubled(ctx, port, part, &format!("The link of {link} went down{again}"))
        });
    }
}

/// Links of Ethernet on which packets arrive damaged.
fn damage(ctx: &RuleContext<'_>, port: &PortRow, out: &mut Vec<Finding>) {
    let member = |row: &NamedCounter| {
        row.name
            .split_once(':')
            .map_or("", |(member, _)| member)
            .to_owned()
    };
    let mut links: BTreeMap<String, Vec<&NamedCounter>> = BTreeMap::new();
    for row in port.counters.iter().filter(|_| !is_infiniband(port)) {
        if wire_errors::is_damage(without_member(&row.name)) && rose(row, DAMAGED_PER_S).is_some() {
            links.entry(member(row)).or_default().push(row);
        }
    }
    // A link that comes up counts errors until both ends agree.
    let downs = down_counters_of_bond(port).chain(down_counter(port));
    for down in downs.filter(|row| rose(row, 0.0).is_some()) {
        links.remove(&member(down));
    }
    // The counters may be read only some time after it came up.
    links.retain(|member, _| !ctx.history.flaps.settles(port, member, ctx.facts.mono_ns));
    for (member, rows) in links {
        let (link, netdev) = link_of(ctx, port, rows[0]);
        let counter = without_member(&rows[0].name);
        let verdict = format!("Packets arrive damaged on the link of {link} ({counter})");
        out.push(Finding {
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
            evidence: rows.iter().filter_map(|row| rose(row, 0.0)).collect(),
            ..troubled(ctx, port, &format!("damage:{member}"), &verdict)
        });
    }
}

/// Ports that ignore notifications of congestion, or send none.
pub(super) fn congestion(ctx: &RuleContext<'_>, port: &PortRow) -> Option<Finding> {
    let (does, evidence, which) = if let Some(rate) = rising(port, "rp_cnp_ignored") {
        (
            "ignores congestion notifications: it does not slow down",
            format!("rp_cnp_ignored {}", words::per_s(rate)),
            "roce_rp",
        )
    } else {
        let marked = words::per_s(rising(port, "np_ecn_marked_roce_packets")?);
        rate_of(port, "np_cnp_sent").filter(|rate| *rate <= 0.0)?;
        (
            "receives packets marked by ECN and sends no congestion notification",
            format!("np_ecn_marked_roce_packets {marked}, np_cnp_sent 0/s"),
            "roce_np",
        )
    };
    (!is_infiniband(port)).then(|| Finding {
        verdict: format!("{} {does}", name(port)),
        evidence: vec![evidence],
        next: step!(
            "cat /sys/class/net/{}/ecn/{}/enable/*   # by priority, 0 to 7; 0 for the one that RoCE uses -> switch it on until the next boot: \
             echo 1 | sudo tee that file   # no such files -> the kernel's own driver: sudo mlxconfig -d {} q | grep ROCE_CC_PRIO_MASK",
            interface_or_place(ctx, port).0,
            which,
            ShellWord::device(&port.device)
        ),
        short: "ECN ignored".to_owned(),
        ..ctx.finding(FindingId::Congestion, About::of_port(port))
    })
}

/// Whether the MTU of a port's network device limits its packets: those of iWARP are in a stream of TCP.
fn has_mtu_of_roce(port: &PortRow) -> bool {
    port.link_layer.as_deref() == Some("Ethernet") && !port.iwarp
}

/// Ethernet ports whose MTU is too small for RoCE packets of 4096 bytes.
pub(super) fn mtu(ctx: &RuleContext<'_>, port: &PortRow) -> Option<Finding> {
    let (rate, mtu) = (port.rate_bps?, port.netdev_mtu?);
    let payload = payload(mtu).map_or(0, u64::from);
    let small = rate >= ctx.limits.mtu_rate_bps && payload < ctx.limits.payload_bytes;
    let consumers = ctx.consumers(port);
    let is_used = ctx.users(&port.device).next().is_some() || !consumers.is_empty();
    if !port.is_active() || !has_mtu_of_roce(port) || !small || !is_used {
        return None;
    }
    let netdev = port.netdev.as_deref().unwrap_or("NETDEV");
    let (place, gb, most) = (name(port), rate / 1_000_000_000, ctx.limits.payload_bytes);
    let mut evidence = vec![format!("{place} of {gb} Gb/s, MTU {mtu} of {netdev}")];
    evidence.extend(who(&consumers).map(|who| format!("the kernel has QPs there: {who}")));
    Some(Finding {
        verdict: format!(
            "{netdev} has MTU {mtu}: packets of {place} carry {payload} bytes, {most} are possible"
        ),
        evidence,
        next: step!(
            "sudo ip link set dev {} mtu 9000   # until the next boot; as much on the switches first, then on all hosts; what is connected \
             keeps its packet size: start, mount or connect it anew",
            ShellWord::or(port.netdev.as_deref(), "NETDEV")
        ),
        short: format!("MTU {mtu}"),
        ..ctx.finding(FindingId::SmallMtu, About::of_port(port))
    })
}

/// QPs whose packets carry less than their port has room for.
pub(super) fn path_mtu(ctx: &RuleContext<'_>, out: &mut Vec<Finding>) {
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
        let (many, who, place) = (words::count(qps, "QP"), words::process(owner), name(row));
        let have = if qps == 1 { "has" } else { "have" };
        let netdev = row.netdev.as_deref().unwrap_or("its network device");
        out.push(Finding {
            verdict: format!("{many} of {who} on {place} {have} a path MTU of {mtu}, the port has room for {room}"),
            evidence: vec![format!("MTU {} of {netdev}", row.netdev_mtu.unwrap_or(0))],
            next: step!(
                "ip link   # on the peers: a smaller mtu there -> sudo ip link set dev NETDEV mtu 9000 (until the next boot; on the switches first)   # else {}",
                if owner.kernel {
                    "it was smaller when the kernel connected: mount or connect it anew"
                } else {
                    "the job asks for it: UCX_IB_PATH_MTU, perftest -m"
                }
            ),
            short: format!("path MTU {mtu}"),
            since_mono_ns: ctx.facts.mono_ns,
            ..ctx.finding(FindingId::SmallMtu, About::of_port(row).part("path").by(process))
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
pub(super) fn waits(ctx: &RuleContext<'_>, port: &PortRow) -> Option<Finding> {
    let ticks = rate_of(port, "port_xmit_wait").filter(|_| is_infiniband(port))?;
    let (rate, lanes) = (port.capacity()?, port.lanes?);
    // A tick is taken as the shortest possible: the time of one symbol (one byte) of a lane.
    let share = (ticks * f64::from(lanes) / rate).min(1.0);
    if share < ctx.limits.wait_share {
        return None;
    }
    let users = ctx.carried(port);
    let sent = port.any_tx_bytes().and_then(|sent| sent.rate);
    let sent = sent.map(|bytes| format!("it sends {} of {}", words::bits(bytes), words::bits(rate)));
    let (place, share, used) = (name(port), words::percent(share), used_by(&users));
    let waits = words::per_s(ticks);
    let waits = format!("port_xmit_wait {waits}, a tick taken as one symbol time");
    Some(Finding {
        verdict: format!(
            "{place} has data and waits at least {share} of the time to send it: the fabric or a receiver is congested{used}"
        ),
        evidence: std::iter::once(waits).chain(sent).collect(),
        next: step!(
            "sudo ibdiagnet -i {} -p {} -P all=1   # which switch ports wait too: the last one on the way leads to the slow receiver",
            ShellWord::device(&port.device),
            port.port
        ),
        short: "IB congestion".to_owned(),
        victims: users.iter().map(|row| row.uid).collect(),
        ..ctx.finding(FindingId::IbCongestion, About::of_port(port))
    })
}

/// Commands of a driver that its device refuses, or does not answer. Counters of single verbs, as
/// `reg_mr_err`, say neither: they also count what the driver itself refuses, memory that cannot be pinned
/// and flags that libfabric tries at each start (`efa_reg_mr`, efa_verbs.c).
pub(super) fn commands(ctx: &RuleContext<'_>, port: &PortRow) -> Option<Finding> {
    let silent = rising(port, "no_completion_cmds");
    let rate = silent.or_else(|| rising(port, "cmds_err"))?;
    let (counter, does, next) = if silent.is_some() {
        (
            "no_completion_cmds",
            "does not answer",
            "sudo dmesg | tail -50   # errors of the driver -> keep them for the vendor, then reset the NIC or reboot; again -> firmware, vendor"
                .into(),
        )
    } else {
        ("cmds_err", "refuses", driver_log::command())
    };
    Some(Finding {
        verdict: format!("{} {does} commands of its driver ({counter})", port.device),
        evidence: vec![format!("{counter} {}", words::per_s(rate))],
        next,
        short: counter.to_owned(),
        severity: Severity::critical_if(silent.is_some()),
        ..ctx.finding(FindingId::AdminErrors, About::of_port(port))
    })
}
