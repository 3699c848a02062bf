//! Which part of a port's bytes each of its users has.
//!
//! What a program posts to a NIC bypasses the kernel, and nothing counts it; the NIC's ports count. Where one
//! process alone can have moved what a port counted (`port_users.rs`), it is its. Where several can have,
//! each has a part by the PSNs of its queue pairs (`psn_shares.rs`), or moved at most what the port counted,
//! less what others are known to have moved (`others.rs`).

use rdmatop_base::order::Gather as _;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    devices::Devices,
    groups::Groups,
    losses::Losses,
    others::{Others, Reading},
    port_users::{Seen, User, Users},
    processes::Processes,
    programs::Programs,
    psn_batches::{Batches, Credit, Place},
    psn_shares::Way,
    unlisted::Makers,
};
use crate::{
    input::{EbpfState, PsnReading},
    judgement::are_known,
    snapshot::{DeviceRow, DeviceState, PortRow, QpRow},
    value::{Counter, RateIs, Source},
};

/// What a process moved through a port.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    /// Bytes sent and received while it alone can have moved them.
    bytes: [u64; 2],
    /// More may be its.
    short: [bool; 2],
    /// Packets sent, by PSN.
    packets: u64,
}

impl Moved {
    /// Adds what PSNs say of so many seconds.
    fn add(&mut self, way: usize, shown: &Way, process: u64, seconds: f64) {
        let part = shown.part(process);
        self.bytes[way] = self.bytes[way].saturating_add(whole(part.bytes[0] * seconds));
        if way == 0 {
            self.packets = self.packets.saturating_add(whole(part.packets * seconds));
        }
    }
}

/// More than this part of what its ports can carry is no bound of what a process moved: it is the sum over
/// others on which it is only not known to have no queue pairs.
const MOST: f64 = 1.05;

/// By how much of its rate a port may have changed since its PSNs were read.
pub(super) const CHANGED: f64 = 0.1;

/// What is known of a process by its ports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// Bytes sent and received.
    pub(super) bytes: [Counter; 2],
    /// Packets sent, if PSNs say something of them.
    pub(super) packets: Option<Counter>,
    /// The part of its ports' packets that PSNs explain, where bytes are known by them.
    pub(super) explained: Option<f64>,
    /// How much more than the middles of close bounds it may be.
    above: [f64; 2],
}

impl Share {
    /// The sum over no port, to which shares are added.
    const NOTHING: Self = Self {
        bytes: [Counter {
            rate_is: RateIs::Exact,
            ..Counter::whole(0, Some(0.0), Source::Port)
        }; 2],
        packets: None,
        explained: None,
        above: [0.0; 2],
    };

    /// Adds what PSNs say of a process, and returns whether its bytes are known better by that than by the
    /// port, whose rate is `rate` and of which they are `limit` at most.
    fn add(&mut self, way: usize, shown: &Way, process: u64, (rate, limit): (f64, f64)) -> bool {
        let part = shown.part(process);
        if way == 0 {
            let before = self.packets.and_then(|packets| packets.rate).unwrap_or_default();
            // Queue pairs that nobody lists have more.
            self.packets = Some(Counter {
                partial: true,
                ..Counter::whole(0, Some(before + part.packets), Source::Psn)
            });
        }
        let (close, most) = (part.close(), part.bytes[1]);
        // The port's rate has changed since: nobody knows by whom.
        let changed = (rate - shown.bytes).abs() > CHANGED * rate;
        if changed || close.is_none() && most >= limit {
            return false;
        }
        let sum = &mut self.bytes[way];
        sum.rate = sum.rate.map(|sum| sum + close.unwrap_or(most));
        sum.source = sum.source.max(Source::Psn);
        match close {
            Some(close) => self.above[way] += most - close,
            None => sum.rate_is = RateIs::AtMost,
        }
        self.explained = Some(self.explained.unwrap_or(1.0).min(shown.explained));
        true
    }
}

/// Keeps from one snapshot to the next which bytes of ports are whose.
#[derive(Debug, Default)]
pub(super) struct Shares {
    pub(super) users: Users,
    /// Bytes that each port had sent and received, as the last snapshot had them.
    totals: BTreeMap<Place, [Option<u64>; 2]>,
    moved: BTreeMap<(u64, Place), Moved>,
    /// Records lost at the last snapshot.
    lost: Option<u64>,
    /// Who has devices open decides if bytes are those of a process, as of the last snapshot.
    pub(super) wants_contexts: bool,
    /// PSNs of ports that several users share.
    pub(super) batches: Batches,
    /// How many queue pairs may be asked for.
    pub(super) credit: Credit,
    /// What bound counters say of them.
    others: BTreeMap<Place, Others>,
}

impl Shares {
    /// Takes over PSNs, with what their ports have counted.
    pub(super) fn psns(&mut self, read: Vec<PsnReading>, devices: &mut Devices, now_ns: u64) {
        let mut ports: BTreeMap<Place, BTreeMap<u32, PsnReading>> = BTreeMap::new();
        for qp in read {
            let device = devices.resolve(qp.device_index, None, qp.at_ns);
            if let Some(port) = qp.port {
                ports.entry((device, port)).or_default().insert(qp.qpn, qp);
            }
        }
        for (place, qps) in ports {
            if let Some(totals) = devices.totals(place.0, place.1, now_ns) {
                self.batches.read(place, totals, qps);
            }
        }
    }

    /// Takes over what counters have counted that queue pairs are bound to, just after those of their ports.
    pub(super) fn counted(&mut self, groups: &Groups, devices: &Devices, now_ns: u64) {
        let mut on_ports = groups.on_ports(now_ns);
        self.others.retain(|place, _| on_ports.contains_key(place));
        while let Some((place, (at, counted))) = on_ports.pop_first() {
            let sent = devices.sent(place.0, place.1, now_ns);
            let others = self.others.entry(place).or_default();
            others.read(Reading { sent, at, counted });
        }
    }

    /// Whether no record was lost since this was last asked.
    fn lost_none(&mut self, lost: u64) -> bool {
        self.lost.replace(lost) == Some(lost)
    }

    /// What is known of each process by its ports, as of a snapshot with these rows.
    pub(super) fn apply(
        &mut self,
        (devices, ports, qps): (&[DeviceRow], &[PortRow], &[Arc<QpRow>]),
        processes: &Processes,
        makers: &Makers<'_>,
        programs: &Programs,
        losses: &Losses,
        now_ns: u64,
    ) -> BTreeMap<u64, Share> {
        let records = self.lost_none(losses.records()) && programs.follow_qps();
        self.moved
            .retain(|(process, _), _| processes.get(*process).is_some());
        self.look(&Seen {
            devices,
            ports,
            qps,
            processes,
            makers,
            records,
            follows: programs.follow_qps(),
            told_ns: losses.records_ns,
            starts: matches!(programs.ebpf.state, EbpfState::Starting),
            now_ns,
        })
    }

    fn look(&mut self, seen: &Seen<'_>) -> BTreeMap<u64, Share> {
        self.credit.grow(seen.now_ns);
        self.wants_contexts = false;
        if !seen.records {
            self.batches.forget();
        }
        let device = |uid: u64| seen.devices.iter().find(|device| device.uid == uid);
        let ports: Vec<(&PortRow, &DeviceRow)> = seen
            .ports
            .iter()
            .filter_map(|port| Some((port, device(port.device_uid)?)))
            .collect();
        let is_of_use = |(port, device): &(&PortRow, &DeviceRow)| seen.is_of_use(port, device);
        if !ports.iter().any(is_of_use) {
            self.users.forget();
            *self = Self {
                lost: self.lost,
                users: std::mem::take(&mut self.users),
                others: std::mem::take(&mut self.others),
                credit: self.credit,
                ..Self::default()
            };
            return BTreeMap::new();
        }
        let places = ports.iter().map(|(port, _)| (port.device_uid, port.port));
        let places: BTreeSet<Place> = places.gather();
        self.totals.retain(|place, _| places.contains(place));
        self.batches.keep(|place| places.contains(place));
        let mut sums: BTreeMap<u64, Share> = BTreeMap::new();
        // Nothing is known of them.
        for process in self.users.look(seen, &places) {
            for sum in &mut sums.entry(process).or_insert(Share::NOTHING).bytes {
                (sum.rate, sum.partial) = (None, true);
            }
        }
        let mut shared = BTreeMap::new();
        for (port, device) in ports {
            let asks = self.port(seen, (port, device), &mut sums);
            if let Some((index, moves)) = device.index.zip(asks) {
                shared.insert((port.device_uid, port.port), (index, moves));
            }
        }
        self.batches
            .plan(&shared, seen.qps, &mut self.credit, seen.now_ns);
        let users: BTreeSet<u64> = sums.keys().copied().gather();
        for ((process, place), moved) in &self.moved {
            // Before its first queue pair that is listed it may have had others.
            let may_hide =
                device(place.0).is_some_and(DeviceRow::may_hide_qps) && !seen.knows_all_of(*process);
            let sums = sums.entry(*process).or_insert(Share::NOTHING);
            for way in [0, 1] {
                let sum = &mut sums.bytes[way];
                if may_hide && self.users.is_open_to_anybody(place) && !users.contains(process) {
                    sum.rate = None;
                }
                sum.total = sum.total.saturating_add(moved.bytes[way]);
                sum.partial |= moved.short[way] || may_hide;
            }
            if let Some(packets) = &mut sums.packets {
                packets.total = packets.total.saturating_add(moved.packets);
            }
        }
        let bounds = sums.iter().filter(|(_, share)| {
            let mut ways = share.bytes.iter();
            ways.any(|sum| sum.rate_is == RateIs::AtMost)
        });
        let can_carry = can_carry(seen, &bounds.map(|(process, _)| *process).gather());
        for (process, share) in &mut sums {
            let most_of_it = MOST * can_carry.get(process).copied().unwrap_or(0.0);
            for (sum, above) in share.bytes.iter_mut().zip(share.above) {
                if sum.rate_is == RateIs::AtMost {
                    let most = sum.rate.map(|rate| rate + above);
                    sum.rate = most.filter(|most| *most <= most_of_it);
                }
                if sum.rate.is_none() {
                    sum.rate_is = RateIs::Exact;
                }
            }
        }
        sums
    }

    /// Adds what a port says to the sums of its users. Where PSNs would say more, because several users share
    /// it, returns whether it moves.
    fn port(
        &mut self,
        seen: &Seen<'_>,
        (row, device): (&PortRow, &DeviceRow),
        sums: &mut BTreeMap<u64, Share>,
    ) -> Option<bool> {
        let place = (row.device_uid, row.port);
        let users = self.users.of(place, device, seen);
        let qps_are_known = || seen.records && are_known(seen.qps, device);
        let all_known = row.rdma_alone && device.state == Some(DeviceState::Registered) && qps_are_known();
        let sole = users.sole.filter(|_| all_known);
        let of_use = seen.is_of_use(row, device);
        self.wants_contexts |= of_use
            && all_known
            && seen.makers.since_ns.is_some()
            && device.may_hide_qps()
            && users.has_process;
        let may_ask = of_use && seen.follows && sole.is_none() && users.all.len() > 1 && row.ib_packets;
        // Path MTUs and PSNs may be others than modifies said.
        let may_ask = may_ask && !seen.makers.modified_some_of(device);
        let batches = Some(&mut self.batches).filter(|_| may_ask);
        let all_listed = all_known && !users.may_hide && !seen.makers.carry(device.uid);
        let knows = (seen.told_ns, all_listed);
        let shown = batches.and_then(|batches| batches.look(place, seen.qps, knows, seen.now_ns));
        let new_seconds = shown
            .as_ref()
            .filter(|shown| shown.is_new)
            .map(|shown| shown.seconds);
        let totals = self.totals.entry(place).or_default();
        let others = self
            .others
            .get(&place)
            .filter(|_| sole.is_none() && qps_are_known() && !seen.makers.modified_some_of(device));
        let rest = others.and_then(|others| {
            let of_it = |qp: &&QpRow| qp.device_uid == Some(device.uid);
            let qps = seen.qps.iter().map(|qp| &**qp).filter(of_it);
            let ports = seen.ports.iter().filter(|port| port.device_uid == device.uid);
            others.rest(qps, &ports.collect::<Vec<_>>(), (seen.told_ns, seen.now_ns))
        });
        let mut moves = false;
        for (way, counter) in [row.tx_bytes, row.rx_bytes].into_iter().enumerate() {
            let whole = counter.filter(|counter| of_use && !counter.partial);
            let now = whole.map(|counter| counter.total);
            let before = std::mem::replace(&mut totals[way], now);
            let delta = now.zip(before).and_then(|(now, before)| now.checked_sub(before));
            for user in &users.all {
                let User::Process(process) = *user else { continue };
                let moved = self.moved.entry((process, place)).or_default();
                match delta {
                    Some(delta) if sole.is_some() => {
                        moved.bytes[way] = moved.bytes[way].saturating_add(delta);
                    }
                    Some(0) => {}
                    _ => moved.short[way] = true,
                }
                let share = sums.entry(process).or_insert(Share::NOTHING);
                let rate = whole.and_then(|counter| counter.rate);
                let rest = rest.as_ref().zip(row.rate_bps).filter(|_| way == 0);
                let less = |rate| rest.and_then(|(rest, link)| rest.of(process, rate, link));
                let limit = rate.map(|rate| less(rate).unwrap_or(rate));
                moves |= rate != Some(0.0);
                if let Some((shown, rate)) = shown
                    .as_deref()
                    .and_then(|shown| shown.ways[way].as_ref())
                    .zip(rate.filter(|rate| *rate > 0.0))
                {
                    if let Some(seconds) = new_seconds {
                        moved.add(way, shown, process, seconds);
                    }
                    if share.add(way, shown, process, (rate, limit.unwrap_or(rate))) {
                        continue;
                    }
                }
                let sum = &mut share.bytes[way];
                sum.rate = sum.rate.zip(limit).map(|(sum, limit)| sum + limit);
                if sole.is_none() && rate != Some(0.0) {
                    sum.rate_is = RateIs::AtMost;
                }
            }
        }
        if let Some(shown) = shown {
            shown.is_new = false;
        }
        (may_ask && row.tx_packets.is_some()).then_some(moves)
    }
}

/// What the ports of the devices on which each of these processes has queue pairs can carry each way,
/// bytes/s. The rate of a device of software is only a name.
fn can_carry(seen: &Seen<'_>, of: &BTreeSet<u64>) -> BTreeMap<u64, f64> {
    let listed = seen
        .qps
        .iter()
        .filter_map(|qp| Some((qp.process_uid?, qp.device_uid?)));
    let some = listed.chain(seen.makers.carriers.iter().copied());
    let some: BTreeSet<(u64, u64)> = some.filter(|(process, _)| of.contains(process)).gather();
    let mut out: BTreeMap<u64, f64> = BTreeMap::new();
    for (process, device) in some {
        let ports = seen.ports.iter().filter(|port| port.device_uid == device);
        let hides = seen
            .devices
            .iter()
            .any(|row| row.uid == device && row.may_hide_qps());
        let most = ports.map(|port| port.capacity().filter(|_| hides).unwrap_or(f64::INFINITY));
        *out.entry(process).or_default() += most.sum::<f64>();
    }
    out
}

/// Cuts a count to a whole number; one that is too large becomes the largest.
fn whole(count: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a cast from float to integer saturates"
    )]
    let whole = count as u64;
    whole
}

#[cfg(test)]
mod tests {
    use super::{
        super::psn_shares::{PortRates, QpRates, ways},
        *,
    };

    #[test]
    fn a_share_holds_while_the_port_moves_as_much_as_when_psns_were_read() {
        let qp = |user| QpRates {
            user: Some(user),
            psns: [50_000.0, 0.0],
            path_mtu: Some(4096),
            is_ipv4: false,
            may_read: false,
        };
        let port = PortRates {
            packets: [100_000.0, 0.0],
            bytes: [4.17e8, 0.0],
            no_reads: true,
            answers: [false; 2],
            has_ethernet: true,
            between: [0.0; 2],
        };
        let [Some(way), _] = ways(&port, &[qp(1), qp(2)]) else {
            panic!("the packets are explained")
        };
        let holds = |rate: f64| {
            let mut share = Share::NOTHING;
            share.add(0, &way, 1, (rate, rate))
        };
        assert!(holds(4.17e8) && holds(4.4e8) && holds(4.0e8));
        assert!(!holds(5e8) && !holds(3.5e8));
    }
}
