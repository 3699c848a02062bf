//! Ports of one driver and link layer compared with each other: a slow one, a hot one, idle ones, one that
//! gets all receives.

use std::collections::{BTreeMap, BTreeSet};

use super::link::{self, name, who};
use super::{RuleContext, growing, has_one_of, is_collective};
use crate::facts::{PortRow, ProcessRow};
use crate::findings::{About, Finding, FindingId, Severity, words};
use crate::value::Counter;
use rdmatop_base::order::{Gather as _, Ordered as _};
use rdmatop_base::step::{NextStep, ShellWord, step};
use rdmatop_base::{fabric, locked, text};

/// With fewer ports than this there is no pattern.
const LEAST: usize = 3;

/// What an EFA port carries at least, bytes/s: drivers before Linux 6.17 and amzn-drivers r2.13 tell no rate.
const EFA_BYTES_PER_S: f64 = 12.5e9;

/// ACTIVE ports by driver and link layer, where there are at least [`LEAST`]. A node may have the cards of
/// its InfiniBand rails for storage on Ethernet, too.
fn groups<'a>(ctx: &RuleContext<'a>) -> Vec<Vec<&'a PortRow>> {
    let mut groups: BTreeMap<(&str, Option<&str>), Vec<&PortRow>> = BTreeMap::new();
    for port in ctx.active_ports() {
        if let Some(driver) = ctx.driver(port) {
            let kind = (driver, port.link_layer.as_deref());
            groups.entry(kind).or_default().push(port);
        }
    }
    let groups = groups.into_values();
    groups.filter(|ports| ports.len() >= LEAST).collect()
}

/// A port that negotiated a lower rate than most ports of its driver, and that one process uses together with
/// them. Ports that no process uses together need not be alike: a node may have storage NICs with the driver
/// of the NICs that its jobs use.
pub(super) fn slow(ctx: &RuleContext<'_>, out: &mut Vec<Finding>) {
    for ports in &groups(ctx) {
        out.extend(ports.iter().filter_map(|port| slower(ctx, ports, port)));
    }
}

fn slower(ctx: &RuleContext<'_>, ports: &[&PortRow], port: &PortRow) -> Option<Finding> {
    let best = ports.iter().filter_map(|port| port.rate_bps).max()?;
    let rate = port.rate_bps.filter(|rate| *rate < best)?;
    let fast = ports.iter().filter(|other| other.rate_bps == Some(best));
    let fast: Vec<_> = fast.map(|other| &other.device).collect();
    let both = |row: &&ProcessRow| fast.iter().filter(|name| row.devices.contains(name)).count() >= 2;
    let user = ctx.users(&port.device).find(both)?;
    let at_best = fast.len();
    // UCX has a QP on each port that it finds, so one of another network is used only if it carries
    // something.
    let most = ports.iter().filter_map(|port| carries(port)).fold(0.0, f64::max);
    let is_idle = carries(port).is_some_and(|bytes| bytes < ctx.limits.idle_share * most);
    if at_best * 2 <= ports.len() || is_idle {
        return None;
    }
    let gb = |rate: u64| rate / 1_000_000_000;
    let best_gb = gb(best);
    Some(Finding {
        verdict: format!(
            "{} runs at {} Gb/s{}, the other ports at {best_gb}: it slows {}, which uses them together",
            name(port),
            gb(rate),
            link::load(port),
            words::process(user)
        ),
        victims: vec![user.uid],
        evidence: vec![format!(
            "{at_best} of {} ports run at {best_gb} Gb/s",
            ports.len()
        )],
        next: match link::interface(ctx, port) {
            Some((netdev, more)) => step!(
                "ethtool {}   # Link partner advertised modes lack {} Gb/s -> set the switch's port to it   # else -> change cable or transceiver; the job stops \
                 meanwhile{}",
                netdev,
                best_gb,
                more
            ),
            None if link::is_infiniband(port) => fabric::speed_up(&port.device, port.port),
            None => {
                "sudo dmesg | tail -50   # what its driver says of the link; nothing -> its vendor".into()
            }
        },
        short: format!("link {} Gb/s", gb(rate)),
        ..ctx.finding(FindingId::PortSlow, About::of_port(port))
    })
}

/// What a port carries in its busier direction, bytes/s.
pub(super) fn carries(port: &PortRow) -> Option<f64> {
    let rate = |bytes: Option<Counter>| bytes?.rate;
    Some(rate(port.tx_bytes)?.max(rate(port.rx_bytes)?))
}

/// The rates of some ports in one direction; there is no `Load` if the rate of one is unknown.
struct Load {
    rates: Vec<f64>,
    sum: f64,
    /// Index of the busiest port.
    top: usize,
    bytes: bool,
}

impl Load {
    fn of(
        ports: &[&PortRow],
        bytes: fn(&PortRow) -> Option<Counter>,
        packets: fn(&PortRow) -> Option<Counter>,
    ) -> Option<Self> {
        let all = |get: fn(&PortRow) -> Option<Counter>| -> Option<Vec<f64>> {
            ports.iter().map(|port| get(port)?.rate).collect()
        };
        let (rates, bytes) = match all(bytes) {
            Some(rates) => (rates, true),
            None => (all(packets)?, false),
        };
        let top = (0..rates.len()).max_by(|a, b| rates[*a].total_cmp(&rates[*b]))?;
        Some(Self {
            sum: rates.iter().sum(),
            rates,
            top,
            bytes,
        })
    }

    fn mean(&self) -> f64 {
        self.sum / self.rates.len() as f64
    }

    fn is_worth_a_look(&self, ctx: &RuleContext<'_>) -> bool {
        let least = if self.bytes {
            ctx.limits.rail_bytes_per_s
        } else {
            ctx.limits.rail_packets_per_s
        };
        self.rates[self.top] >= least
    }

    fn of_port(&self, at: usize) -> String {
        if self.bytes {
            words::bits(self.rates[at])
        } else {
            format!("{} packets", words::per_s(self.rates[at]))
        }
    }

    /// Indices of the idle ports.
    fn idle(&self, share: f64) -> Vec<usize> {
        let limit = self.rates[self.top] * share;
        (0..self.rates.len())
            .filter(|at| self.rates[*at] < limit)
            .collect()
    }
}

/// One port that sends or receives nearly everything.
pub(super) fn load(ctx: &RuleContext<'_>, out: &mut Vec<Finding>) {
    for ports in &groups(ctx) {
        let Some(tx) = sent(ports) else { continue };
        // Nothing was sent, so there is nothing to compare.
        if tx.sum <= 0.0 {
            continue;
        }
        // Idle ports are no part of a pattern.
        let (_, used) = idle_and_used(ctx, ports, &tx).unwrap_or_default();
        let used: Vec<_> = used.into_iter().map(|at| ports[at]).collect();
        if let Some(rx) = received(&used).filter(|rx| is_funnel(ctx, &used, rx)) {
            out.push(funnel(ctx, &used, &rx));
        } else if tx.is_worth_a_look(ctx) {
            // If several ports are full, it does not matter that one of them carries more.
            out.extend(idle(ctx, ports, &tx).or_else(|| hot(ctx, ports)));
        }
    }
}

/// Indices of the ports that carry nothing either way, and of the others; `None` if receives are not counted.
fn idle_and_used(ctx: &RuleContext<'_>, ports: &[&PortRow], tx: &Load) -> Option<(Vec<usize>, Vec<usize>)> {
    let (share, rx) = (ctx.limits.idle_share, received(ports)?);
    let (sends_none, receives_none) = (tx.idle(share), rx.idle(share));
    let is_idle = |at: &usize| sends_none.contains(at) && receives_none.contains(at);
    Some((0..ports.len()).partition(is_idle))
}

fn sent(ports: &[&PortRow]) -> Option<Load> {
    Load::of(ports, |port| port.tx_bytes, |port| port.tx_packets)
}

fn received(ports: &[&PortRow]) -> Option<Load> {
    Load::of(ports, |port| port.rx_bytes, |port| port.rx_packets)
}

/// Whether most of these ports send, and one of them receives nearly everything.
fn is_funnel(ctx: &RuleContext<'_>, ports: &[&PortRow], rx: &Load) -> bool {
    let Some(tx) = sent(ports).filter(|tx| ports.len() >= LEAST && tx.is_worth_a_look(ctx)) else {
        return false;
    };
    let half = tx.mean() / 2.0;
    let wide = tx.rates.iter().filter(|rate| **rate >= half).count();
    let spread = wide * 4 >= ports.len() * 3;
    spread && rx.is_worth_a_look(ctx) && rx.rates[rx.top] > ctx.limits.funnel_share * rx.sum
}

fn names(ports: &[&PortRow], at: &[usize]) -> String {
    let all: Vec<&str> = at.iter().map(|at| &*ports[*at].device).collect();
    text::names(&all)
}

/// The processes on a port's device that move at least half as much as the busiest, by PID. Equal ranks take
/// turns at being the busiest, so one maximum would not name them all.
fn movers<'a>(ctx: &RuleContext<'a>, port: &PortRow) -> Vec<&'a ProcessRow> {
    let rate = |row: &ProcessRow| {
        let traffic = &row.traffic;
        growing(traffic.tx_bytes).unwrap_or(0.0) + growing(traffic.rx_bytes).unwrap_or(0.0)
    };
    let most = ctx.holders(&port.device).map(rate).fold(0.0, f64::max);
    let mut rows: Vec<_> = ctx.holders(&port.device).collect();
    rows.retain(|row| rate(row) >= most / 2.0);
    rows.order_by_key(|row| row.pid);
    rows
}

/// Whether QPs of a port's device send packets again while none of them finishes work. The judgement calls
/// such QPs stuck only after some seconds.
fn only_repeats(ctx: &RuleContext<'_>, port: &PortRow) -> bool {
    let own = || ctx.qps_on(port.device_uid);
    own().any(|qp| growing(qp.traffic.retransmits).is_some())
        && !own().any(|qp| growing(qp.traffic.tx_wr).is_some())
}

/// One of the ports of one rate that has all traffic of them: a port of another rate may serve another
/// purpose.
fn hot(ctx: &RuleContext<'_>, ports: &[&PortRow]) -> Option<Finding> {
    let rates: BTreeSet<_> = ports.iter().map(|port| port.rate_bps).gather();
    rates.into_iter().find_map(|rate| {
        let alike = ports.iter().filter(|port| port.rate_bps == rate);
        hot_of(ctx, &alike.copied().collect::<Vec<_>>())
    })
}

fn hot_of(ctx: &RuleContext<'_>, ports: &[&PortRow]) -> Option<Finding> {
    let tx = sent(ports).filter(|tx| ports.len() >= LEAST && tx.is_worth_a_look(ctx))?;
    let idle = tx.idle(ctx.limits.idle_share);
    if tx.rates[tx.top] <= ctx.limits.hot_ratio * tx.mean() || idle.len() < 2 {
        return None;
    }
    let port = ports[tx.top];
    // Packets that are sent again and again are no load: the rules of QPs report them.
    let mut stuck = ctx.judgement.stuck();
    if stuck.any(|qp| qp.device == port.device && qp.stuck.reason.repeats()) || only_repeats(ctx, port) {
        return None;
    }
    // Below this share one NIC is enough for what there is to send.
    let link = port.capacity().filter(|_| tx.bytes);
    let least = link.or((tx.bytes && ctx.driver(port) == Some("efa")).then_some(EFA_BYTES_PER_S));
    if least.is_some_and(|least| tx.rates[tx.top] < ctx.limits.hot_share * least) {
        return None;
    }
    // Without a process, as on a storage server's own NIC, nobody can be told to use more NICs.
    let movers = movers(ctx, port);
    let who = who(&movers)?;
    let full = link.map_or(String::new(), |link| {
        format!(
            " ({} of its link)",
            words::percent((tx.rates[tx.top] / link).min(1.0))
        )
    });
    let choices: Option<Vec<Choice>> = movers.iter().map(|row| Choice::of(row, &port.device)).collect();
    let choices = choices.unwrap_or_default();
    let is_idle = |at: &usize| idle.contains(at);
    let busy = || (0..ports.len()).filter(|at| *at != tx.top && !is_idle(at));
    // What sends by several busy ports has more than one.
    let spreads = |row: &&ProcessRow| busy().any(|at| row.devices.contains(&ports[at].device));
    if movers.iter().any(spreads) {
        return None;
    }
    // Nor is more than one NIC of use to a process that computes on one GPU, unless its job has others here.
    let alone = match &movers[..] {
        [row] if choices.is_empty() => Some(*row),
        _ => None,
    };
    let gpus = alone.and_then(|row| gpus_of_job(ctx, row));
    if gpus.is_some_and(|gpus| gpus <= 1 + busy().count()) {
        return None;
    }
    let may_have_one = alone.is_some_and(|row| row.gpus.is_none() && computes(row));
    // A NIC on a command line is meant. A variable may be left over from a test, or from another machine.
    let meant = !choices.is_empty() && choices.iter().all(|choice| choice.is_option);
    // Storage may use one NIC of several: only ranks that wait for one another want all. What may be one is
    // not taken for storage. A process of theirs that has QPs on the idle ones has its reasons, unless a
    // variable forbids it to use them.
    let of_nccl = |choice: &Choice| choice.name == "NCCL_IB_HCA";
    let may_be_rank = |row: &&ProcessRow| {
        let of_slurm = row.job().is_some_and(|job| job.starts_with("slurm"));
        row.libraries.is_none() || computes(row) || of_slurm
    };
    let is_job = movers.iter().any(may_be_rank) || choices.iter().any(of_nccl);
    // A service of the system uses the NIC that its settings name.
    if !is_job && movers.iter().all(|row| is_service(row)) {
        return None;
    }
    let is_on_idle = |row: &&ProcessRow| idle.iter().any(|at| row.devices.contains(&ports[*at].device));
    let has_others = choices.is_empty() && movers.iter().any(is_on_idle);
    let choice = choices.into_iter().next();
    let whose = if movers.len() == 1 { "its" } else { "their" };
    let because = choice.as_ref().map_or_else(String::new, |choice| {
        format!(", which {whose} {} chose", choice.words)
    });
    let (place, are_idle, all) = (name(port), idle.len(), ports.len());
    let share = words::percent(ctx.limits.idle_share);
    let mut evidence = vec![
        format!("{place} sends {}", tx.of_port(tx.top)),
        format!("{are_idle} of {all} ports send less than {share} of that"),
    ];
    if has_others {
        evidence.push("on idle ports it has QPs, too: they may be for something else".to_owned());
    }
    // What chose the NIC says more than the names, and a line of 80 columns has no room for both.
    let others = match &choice {
        Some(_) if are_idle > 3 => are_idle.to_string(),
        _ => names(ports, &idle),
    };
    let next = match (&choice, movers[0].pid) {
        (Some(choice), _) => choice.next(&port.device),
        (None, Some(pid)) if is_job => step!(
            "sudo grep -zE '_HCA|_NET_DEVICES|_EFA_IFACE' /proc/{}/environ | cat -v   # names one NIC -> restart without it, or name all NICs   # prints nothing -> an option of the \
             program (perftest: -d)",
            pid
        ),
        (None, None) if is_job => {
            "Where one NIC is not meant, start the job without NCCL_IB_HCA, UCX_NET_DEVICES or FI_EFA_IFACE that names it.".into()
        }
        _ => "Where one NIC is meant, as for storage, nothing is to be done. Else name the others to the program too: by an option of its own, or \
              by UCX_NET_DEVICES or FI_EFA_IFACE."
            .into(),
    };
    Some(Finding {
        verdict: format!("All traffic of {who} leaves by {place}{full}{because}: {others} are idle"),
        evidence,
        next,
        short: format!("one NIC of {all}"),
        victims: movers.iter().map(|row| row.uid).collect(),
        severity: Severity::info_if(meant || !is_job || has_others || may_have_one),
        ..ctx.finding(FindingId::HotPort, About::of_port(port))
    })
}

/// Whether it may compute on GPUs, which is no storage. A framework may have its collectives linked into it.
fn computes(row: &ProcessRow) -> bool {
    is_collective(row) || has_one_of(row, &["libcuda"])
}

/// On how many GPUs the job of a process computes here, as far as that is known; `None` if this process does
/// not compute on one GPU, or if that is not known.
fn gpus_of_job(ctx: &RuleContext<'_>, row: &ProcessRow) -> Option<usize> {
    let Some([_]) = row.gpus.as_deref() else {
        return None;
    };
    let of_it = |other: &&ProcessRow| other.user == row.user && other.workload == row.workload;
    let gpus = ctx
        .facts
        .processes
        .iter()
        .filter(of_it)
        .flat_map(|other| &other.gpus);
    let addresses: BTreeSet<&str> = gpus
        .flat_map(|gpus| gpus.iter())
        .map(|gpu| &*gpu.address)
        .gather();
    Some(addresses.len())
}

/// Whether it is a service that root has set up, as a file system's daemon is: no job, and no user's own.
fn is_service(row: &ProcessRow) -> bool {
    let unit = row.cgroup.as_deref().and_then(locked::unit);
    row.kernel || unit.is_some_and(|unit| row.workload.is_none() && !unit.starts_with("user@"))
}

/// What made a process use one device alone.
pub(super) struct Choice {
    /// An option of the command line, or else an environment variable.
    pub(super) is_option: bool,
    pub(super) name: &'static str,
    /// As it is set.
    words: String,
}

impl Choice {
    /// The variable or option that names this device alone; `None` if there is none, or neither can be read.
    pub(super) fn of(row: &ProcessRow, device: &str) -> Option<Self> {
        const VARIABLES: [&str; 3] = ["NCCL_IB_HCA", "UCX_NET_DEVICES", "FI_EFA_IFACE"];
        const OPTIONS: [&str; 4] = ["-d", "--ib-dev", "--ib_dev", "--device"];
        // NCCL has `=mlx5_0:1`, UCX and others `mlx5_0:1`. After `^` the list says which NICs not to use.
        let names = |value: &str| {
            let value = value.trim().trim_start_matches('=');
            !value.contains(',') && value.split(':').next() == Some(device)
        };
        let mut variables = row.environ.iter().flat_map(|all| all.iter());
        let variable = variables.find_map(|(name, value)| {
            let known = VARIABLES.into_iter().find(|known| known == name)?;
            names(value).then(|| Self {
                is_option: false,
                name: known,
                words: format!("{name}={value}"),
            })
        });
        if variable.is_some() {
            return variable;
        }
        let words: Vec<&str> = row.cmdline.as_deref()?.split(' ').collect();
        let option = words.iter().enumerate().find_map(|(at, word)| {
            let (option, value) = match word.split_once('=') {
                Some((option, value)) => (option, value),
                None => (*word, *words.get(at + 1)?),
            };
            let known = OPTIONS.into_iter().find(|known| *known == option)?;
            names(value).then_some(known)
        });
        option.map(|name| Self {
            is_option: true,
            name,
            words: format!("command line ({name} {device})"),
        })
    }

    fn next(&self, device: &str) -> NextStep {
        if self.is_option {
            return step!(
                "Where one NIC is not meant, start one such program for each NIC, or the job without {} {}. Where it is, as in a \
                 measurement of one NIC, nothing is to be done.",
                self.name,
                ShellWord::device(device)
            );
        }
        step!(
            "Where one NIC is not meant, restart the job without {}, or with all NICs named in it.",
            self.name
        )
    }
}

fn funnel(ctx: &RuleContext<'_>, ports: &[&PortRow], rx: &Load) -> Finding {
    let port = ports[rx.top];
    let mut victims = movers(ctx, port);
    let place = name(port);
    let share = words::percent(rx.rates[rx.top] / rx.sum);
    // Processes that send by the other ports wait for answers that come by this one.
    for row in ports.iter().flat_map(|port| movers(ctx, port)) {
        let known = victims.iter().any(|victim| victim.uid == row.uid);
        if !known && growing(row.traffic.tx_bytes).is_some() {
            victims.push(row);
        }
    }
    Finding {
        verdict: format!(
            "{place} gets {share} of what this host receives, though all {} ports send; it limits {}",
            ports.len(),
            who(&victims).unwrap_or_default()
        ),
        evidence: vec![format!("{place} receives {}, {share} of all", rx.of_port(rx.top))],
        next: if port.link_layer.as_deref() == Some("Ethernet") {
            "sysctl net.ipv4.conf.all.arp_ignore   # 0, its NICs share a subnet -> one may answer ARP for all; job anew after   # sudo sysctl -w net.ipv4.conf.all.arp_ignore=1 \
             (until the next boot)   # else -> peers send to that NIC's address alone: name all NICs in their NCCL_IB_HCA or UCX_NET_DEVICES"
        } else {
            "Peers send to one port of this host: name all ports in the NCCL_IB_HCA, UCX_NET_DEVICES or FI_EFA_IFACE of both sides, when the job starts next."
        }
        .into(),
        short: "Rx funnel".to_owned(),
        victims: victims.iter().map(|row| row.uid).collect(),
        ..ctx.finding(FindingId::RxFunnel, About::of_port(port))
    }
}

/// Some of these ports carry next to nothing, two or more others are full, and the processes on those could
/// use the idle ones. A job with no more processes than full ports uses what it was given.
fn idle(ctx: &RuleContext<'_>, ports: &[&PortRow], tx: &Load) -> Option<Finding> {
    let rx = received(ports)?;
    let (idle, full) = idle_and_used(ctx, ports, tx)?;
    let first = *idle.first()?;
    let is_full = |at: &usize| match ports[*at].capacity().filter(|_| tx.bytes) {
        Some(link) => tx.rates[*at].max(rx.rates[*at]) >= ctx.limits.hot_share * link,
        None => tx.rates[*at] >= tx.rates[tx.top] / 2.0,
    };
    // A slower port may serve another purpose.
    let is_alike = |at: &usize| ports[*at].rate_bps == ports[full[0]].rate_bps;
    if full.len() < 2 || !full.iter().all(is_full) || !idle.iter().all(is_alike) {
        return None;
    }
    let mut seen = BTreeSet::new();
    let mut users: Vec<&ProcessRow> = full.iter().flat_map(|at| movers(ctx, ports[*at])).collect();
    users.retain(|row| seen.insert(row.uid));
    let job = shared_job(&users, full.len());
    let who = if let Some(job) = job {
        format!(
            "{} processes of {job} share the others, which are full",
            users.len()
        )
    } else {
        let has_qps = |row: &ProcessRow, at: &usize| row.devices.contains(&ports[*at].device);
        let uses_all = |row: &&ProcessRow| {
            full.iter().filter(|at| has_qps(row, at)).count() >= 2 && idle.iter().all(|at| has_qps(row, at))
        };
        users.retain(uses_all);
        let user = words::process(users.first()?);
        format!("{user} has QPs on them, and fills the others")
    };
    let pid = users.iter().find_map(|row| row.pid)?;
    let (are_idle, all, share) = (idle.len(), ports.len(), words::percent(ctx.limits.idle_share));
    Some(Finding {
        verdict: format!(
            "{are_idle} of {all} ports are idle ({}): {who}",
            names(ports, &idle)
        ),
        evidence: vec![
            format!(
                "{} ports carry traffic, the busiest sends {}",
                full.len(),
                tx.of_port(tx.top)
            ),
            format!("{are_idle} carry less than {share} of the busiest"),
        ],
        next: step!(
            "sudo grep -zE '_HCA|_NET_DEVICES|_EFA_IFACE' /proc/{}/environ | cat -v   # names some NICs -> name all that are meant at the next start   # prints nothing -> \
             start it with NCCL_DEBUG=INFO; rdmatop nccl-log FILE then shows each rank's NIC   # the idle ones are for something else -> leave it",
            pid
        ),
        short: words::count(idle.len() as u64, "NIC") + " idle",
        victims: users.iter().map(|row| row.uid).collect(),
        // The idle NICs may be for storage, and the process has queue pairs there too.
        severity: Severity::info_if(job.is_none()),
        ..ctx.finding(FindingId::RailsIdle, About::of_port(ports[first]))
    })
}

/// The one job of all these processes, if they are more than the ports that they fill.
fn shared_job<'a>(users: &[&'a ProcessRow], full: usize) -> Option<&'a str> {
    let job = users.first()?.workload.as_deref()?;
    let is_of_it = |row: &&ProcessRow| row.workload.as_deref() == Some(job) && !row.workload_claimed;
    (users.len() > full && users.iter().all(is_of_it)).then_some(job)
}
