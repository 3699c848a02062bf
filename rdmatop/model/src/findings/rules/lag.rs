//! Ports over a bond (RoCE LAG): one member that carries nearly everything, and members without a link.

use std::collections::BTreeSet;

use super::RuleContext;
use super::link::{interface, name, used_by};
use crate::facts::{Member, PortRow};
use crate::findings::{About, Finding, FindingId, Severity, words};
use crate::value::Counter;
use rdmatop_base::fabric;
use rdmatop_base::order::Ordered as _;
use rdmatop_base::roce::udp_source_port;
use rdmatop_base::step::NextStep;

/// What a member counted in one direction.
type Bytes = fn(&Member) -> Option<Counter>;

/// The member that carries nearly everything in one direction, its rate, and its share of the whole; `None`
/// if the load is small or spread, or not known of each member.
fn alone<'a>(ctx: &RuleContext<'_>, up: &[&'a Member], bytes: Bytes) -> Option<(&'a Member, f64, f64)> {
    let rates: Vec<f64> = up
        .iter()
        .map(|member| bytes(member)?.certain_rate())
        .collect::<Option<_>>()?;
    let (member, rate) = up.iter().zip(&rates).max_by(|a, b| a.1.total_cmp(b.1))?;
    let least = member.rate_bps.map_or(ctx.limits.rail_bytes_per_s, |bits| {
        ctx.limits.lag_load * bits as f64 / 8.0
    });
    let share = rate / rates.iter().sum::<f64>();
    (*rate >= least && share >= ctx.limits.lag_share).then_some((member, *rate, share))
}

/// One member of a bond sends nearly everything.
pub(super) fn sends(ctx: &RuleContext<'_>, port: &PortRow) -> Option<Finding> {
    one_link(ctx, port, "sends", |member| member.tx_bytes)
}

/// One member of a bond receives nearly everything.
pub(super) fn receives(ctx: &RuleContext<'_>, port: &PortRow) -> Option<Finding> {
    one_link(ctx, port, "receives", |member| member.rx_bytes)
}

fn one_link(ctx: &RuleContext<'_>, port: &PortRow, way: &'static str, bytes: Bytes) -> Option<Finding> {
    let bond = port
        .bond
        .as_ref()
        .filter(|bond| port.is_active() && !bond.is_active_backup())?;
    let up: Vec<&Member> = bond.up().collect();
    let links = up.len();
    let (member, rate, share) = alone(ctx, &up, bytes).filter(|_| links >= 2)?;
    // What one link of the bond could carry, bytes/s. Where it is nearly full another one would help.
    let capacity = member.rate_bps.map(|bits| bits as f64 / 8.0);
    let is_full = capacity.is_some_and(|capacity| rate >= ctx.limits.hot_share * capacity);
    let users: Vec<_> = ctx.users(&port.device).collect();
    let others = up.iter().filter(|other| other.name != member.name);
    let others: Vec<&str> = others.map(|other| &*other.name).collect();
    let qps: Vec<_> = ctx
        .qps_on(port.device_uid)
        .filter(|qp| qp.pid.is_some())
        .collect();
    let sources = qps.iter().map(|qp| Some(udp_source_port(qp.qpn, qp.remote_qpn?)));
    // Where one is not known, the others are no count.
    let sources = sources.collect::<Option<BTreeSet<u16>>>();
    let sources = sources.filter(|sources| !sources.is_empty() && way == "sends");
    let sources = sources.map(|sources| {
        let what = "UDP source ports, by which the bond tells them apart";
        format!("{what}: {}, if no program sets flow labels", sources.len())
    });
    let (link, others, rate_words) = (&member.name, others.join(", "), words::bits(rate));
    let load = capacity.map_or_else(String::new, |capacity| {
        format!(" ({} full)", words::percent((rate / capacity).min(1.0)))
    });
    Some(Finding {
        verdict: format!(
            "{} {way} {} of its data by {link} alone{load}, though {links} links of its bond are up{}",
            name(port),
            words::percent(share),
            used_by(&users)
        ),
        victims: users.iter().map(|row| row.uid).collect(),
        evidence: [
            format!("{rate_words} by {link}, next to nothing by {others}"),
            format!("QPs there: {}, of {} processes", qps.len(), users.len()),
        ]
        .into_iter()
        .chain(sources)
        .collect(),
        next: if way == "sends" {
            "Use more QPs at the next start (NCCL_IB_QPS_PER_CONNECTION=4; other programs: several QPs for each connection): a bond puts each QP on one link."
        } else {
            "on the switch: its port channel has to hash UDP ports too, and senders need several QPs for each connection, each \
             of which has a UDP source port of its own (NCCL_IB_QPS_PER_CONNECTION)"
        }
        .into(),
        short: format!("one of {links} links"),
        severity: Severity::info_if(!is_full),
        ..ctx.finding(FindingId::LagImbalance, About::of_port(port).part(way))
    })
}

/// Why the bond does not send by a member.
fn lacks(member: &Member) -> String {
    let what = if member.outside {
        "is outside of its aggregate (LACP)"
    } else {
        "has none"
    };
    format!("{} {what}", member.name)
}

/// A member of a bond has no link, or the switch has it in no aggregate, so the port has less than its full
/// rate.
pub(super) fn without_link(ctx: &RuleContext<'_>, port: &PortRow) -> Option<Finding> {
    let bond = port
        .bond
        .as_ref()
        .filter(|bond| port.is_active() && bond.up().next().is_some())?;
    let down = bond.members.iter().filter(|member| member.up == Some(false));
    // The first that is shown decides what to do.
    let mut down: Vec<&Member> = down.collect();
    down.order_by_key(|member| member.outside);
    let first = down.first()?;
    let users: Vec<_> = ctx.users(&port.device).collect();
    users.first()?;
    // Of such a bond one link carries all.
    let is_backup = bond.is_active_backup();
    let reserve = if is_backup { ", so it has no reserve" } else { "" };
    let lacking: Vec<String> = down.iter().map(|member| lacks(member)).collect();
    let left = port.capacity().filter(|_| !is_backup);
    let left = left.map(|link| format!("{} are left", words::bits(link)));
    Some(Finding {
        verdict: format!(
            "{} has {} of {} links of its bond: {}{reserve}{}",
            name(port),
            bond.up().count(),
            bond.members.len(),
            lacking.join(", "),
            used_by(&users)
        ),
        victims: users.iter().map(|row| row.uid).collect(),
        evidence: left.into_iter().collect(),
        next: interface(ctx, port).map_or_else(NextStep::default, |_| {
            fabric::bond_member(port.netdev.as_deref(), &first.name, first.outside)
        }),
        short: "link of bond".to_owned(),
        severity: Severity::info_if(is_backup),
        ..ctx.finding(FindingId::LagDegraded, About::of_port(port))
    })
}
