//! Counters of a port: every one under its own name, and those with a shared meaning.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    history::{Average, Series},
    meter::Meter,
    names,
    providers::{Entry, Provider, Role},
    psn::Passed,
    psn_batches::PortTotals,
};
use crate::{
    input::{Bond, Member, PortReading, RawReading, RawSource, ReadAt},
    snapshot::{Gauge, HISTORY, NamedCounter, PortRow, Recent},
    value::{Counter, Shared, Source},
};
use rdmatop_base::{order::Ordered as _, wire_bytes};

/// The counter of READs that peers made (mlx5).
const READS: &str = "rx_read_requests";

/// One port of one generation of a device.
#[derive(Debug, Default)]
pub(super) struct Port {
    /// What a reading said of it, as views see it.
    row: PortRow,
    /// In the order of their shown names.
    counters: Vec<PortCounter>,
    /// Place in `counters` of each counter of the last reading; `None` for a name that was there already.
    places: Vec<Option<usize>>,
    /// Each role that some counters make up, with the place of each.
    parts: Vec<(Role, usize)>,
    /// Packets both ways at the last dump of QPs, and when that began.
    at_dump: Option<(u64, u64)>,
    provider: Provider,
    history: Series,
    average: Average,
}

#[derive(Debug)]
struct PortCounter {
    /// The counter's name as it was read.
    raw: Arc<str>,
    shown: Arc<str>,
    from: RawSource,
    /// What its driver's table says of it.
    entry: &'static Entry,
    /// `None` until it was read for the first time, and for a gauge.
    meter: Option<Meter>,
    /// Of a number that may fall, which it was at the last reading.
    gauge: Option<u64>,
    /// The last reading could read it. One that could not be read keeps its meter: the next rate is over the
    /// time since the last read.
    read: bool,
}

impl PortCounter {
    fn new(raw: &RawReading, shown: Arc<str>, provider: Provider) -> Self {
        Self {
            raw: Arc::clone(&raw.name),
            shown,
            from: raw.source,
            entry: provider.entry(raw.source, &raw.name),
            meter: None,
            gauge: None,
            read: false,
        }
    }

    fn fold(&mut self, raw: &RawReading) {
        self.read = raw.value.is_some();
        if self.entry.is_gauge() {
            self.gauge = raw.value;
            return;
        }
        match (&mut self.meter, raw.value) {
            (_, None) => {}
            (Some(meter), Some(value)) => meter.read(value, raw.at, self.entry.width),
            (meter, Some(value)) => *meter = Some(Meter::first(value, raw.at, self.entry.width)),
        }
    }

    /// As the provider counts it; `None` when it cannot be read now.
    fn counter(&self, now_ns: u64) -> Option<Counter> {
        let meter = self.meter.as_ref().filter(|_| self.read)?;
        Some(meter.counter(source(self.from), now_ns))
    }

    /// The counter in bytes, if its unit is a number of bytes.
    fn in_bytes(&self, now_ns: u64) -> Option<Counter> {
        let counter = self.counter(now_ns)?;
        let unit = self.entry.unit_bytes().unwrap_or(1);
        Some(Counter {
            total: counter.total.saturating_mul(unit),
            rate: counter.rate.map(|rate| rate * unit as f64),
            ..counter
        })
    }
}

impl Port {
    /// Folds a reading in. A counter that is not in it is not there any more: it is forgotten, not kept at
    /// its last value.
    pub(super) fn read(&mut self, reading: &PortReading, provider: Provider) {
        self.count(&reading.counters, provider);
        self.describe(reading);
    }

    /// Takes over what a reading says of the port, without its counters.
    pub(super) fn describe(&mut self, reading: &PortReading) {
        self.row = PortRow {
            port: reading.number,
            state: reading.state,
            phys_state: reading.phys_state,
            link_layer: names::safe_opt(reading.link_layer.as_ref()),
            iwarp: reading.iwarp,
            netdev: names::safe_opt(reading.netdev.as_ref()),
            bond: reading.bond.clone(),
            netdev_mtu: reading.netdev_mtu,
            netdev_down: reading.netdev_down,
            pfc: reading.pfc,
            gids: reading.gids.as_deref().map(Arc::from),
            rate_bps: reading.rate_bps,
            lanes: reading.lanes,
            ..PortRow::default()
        };
        // Drivers say the rate of one member, or a sum of all.
        if let Some(bond) = &self.row.bond {
            self.row.rate_bps = bond.rate_bps();
        }
    }

    pub(super) fn count(&mut self, counters: &[RawReading], provider: Provider) {
        if self.provider != provider || !self.is_laid_out_as(counters) {
            self.lay_out(counters, provider);
        }
        for (raw, place) in counters.iter().zip(&self.places) {
            if let Some(held) = place.and_then(|place| self.counters.get_mut(place)) {
                held.fold(raw);
            }
        }
    }

    /// Whether a reading has the counters of the last one in the same order, which is nearly always so.
    fn is_laid_out_as(&self, counters: &[RawReading]) -> bool {
        counters.len() == self.places.len()
            && counters.iter().zip(&self.places).all(|(raw, place)| {
                place
                    .and_then(|place| self.counters.get(place))
                    .is_some_and(|held| held.from == raw.source && held.raw == raw.name)
            })
    }

    /// Makes a place for each counter of a reading, and keeps those that were there.
    fn lay_out(&mut self, counters: &[RawReading], provider: Provider) {
        let before = std::mem::take(&mut self.counters);
        let mut held: BTreeMap<Arc<str>, (PortCounter, usize)> = BTreeMap::new();
        // Netlink before sysfs: one name read from both is one counter.
        let mut order: Vec<usize> = (0..counters.len()).collect();
        order.order_by_key(|at| counters.get(*at).map(|raw| raw.source as u8));
        for at in order {
            let Some(raw) = counters.get(at) else { continue };
            let shown = shown_name(raw);
            if held.contains_key(&shown) {
                continue;
            }
            let mut new = PortCounter::new(raw, Arc::clone(&shown), provider);
            let kept = before
                .iter()
                .find(|kept| kept.shown == shown && kept.from == raw.source);
            if let Some(kept) = kept.filter(|_| !new.entry.is_gauge()) {
                new.meter = kept.meter;
            }
            held.insert(shown, (new, at));
        }
        self.places = vec![None; counters.len()];
        for (place, (held, at)) in held.into_values().enumerate() {
            if let Some(slot) = self.places.get_mut(at) {
                *slot = Some(place);
            }
            self.counters.push(held);
        }
        self.provider = provider;
        let places = self.counters.iter().enumerate();
        let parts: Vec<_> = places
            .filter_map(|(place, held)| Some((provider.part(&held.shown)?, place)))
            .collect();
        // Of the ways to count a role the first of which there is any counter.
        let has_first = |role| parts.iter().any(|(part, _)| *part == (role, 0));
        let best = parts
            .iter()
            .filter(|((role, way), _)| *way == u8::from(!has_first(*role)));
        self.parts = best.map(|((role, _), place)| (*role, *place)).collect();
    }

    /// The counters that a role is the sum of.
    fn parts(&self, role: Role) -> impl Iterator<Item = &PortCounter> {
        let places = self.parts.iter().filter(move |(part, _)| *part == role);
        places.filter_map(|(_, place)| self.counters.get(*place))
    }

    /// The row at `now_ns`; adds a point to the history. `counted`: bytes sent and received and packets sent
    /// again, as the slots of a software device's QPs have them.
    pub(super) fn row(
        &mut self,
        (device_uid, device): (u64, &Arc<str>),
        counted: [Option<Counter>; 3],
        now_ns: u64,
    ) -> PortRow {
        let role = |role| self.role(&[role], now_ns);
        let [wr_tx_bytes, wr_rx_bytes, retransmits] = counted;
        let mut row = PortRow {
            device_uid,
            device: Arc::clone(device),
            bond: self.row.bond.as_ref().map(|bond| self.with_bytes(bond, now_ns)),
            tx_bytes: role(Role::TxBytes),
            rx_bytes: role(Role::RxBytes),
            wr_tx_bytes,
            wr_rx_bytes,
            tx_packets: role(Role::TxPackets),
            rx_packets: role(Role::RxPackets),
            drops: self.role(&[Role::Drops, Role::OutOfBuffer], now_ns),
            out_of_buffer: role(Role::OutOfBuffer),
            retransmits: role(Role::Retransmits).or(retransmits),
            retries: role(Role::Retries),
            congestion: self.role(&[Role::EcnMarked, Role::CnpHandled], now_ns),
            ecn_marked: role(Role::EcnMarked),
            cnp_handled: role(Role::CnpHandled),
            cnp_sent: role(Role::CnpSent),
            rnr_naks: self.role(&[Role::RnrNaks, Role::RnrNaksSent], now_ns),
            rnr_naks_sent: role(Role::RnrNaksSent),
            all_of_rdma: self.provider.counts_all_of_rdma(),
            ib_packets: self.provider.has_ib_packets(),
            rdma_alone: self.provider.counts_rdma_alone(self.row.link_layer.as_deref()),
            counters: self.shown(now_ns),
            gauges: self.gauges(),
            ..self.row.clone()
        };
        let bytes = [row.any_tx_bytes().copied(), row.any_rx_bytes().copied()];
        let (moved, unit) = if bytes.iter().any(Option::is_some) {
            (bytes, "bytes")
        } else {
            ([row.tx_packets, row.rx_packets], "packets")
        };
        self.history
            .push(moved.map(|counter| counter?.rate), unit, HISTORY);
        row.history = self.history.points();
        let passed = row.tx_bytes.zip(row.rx_bytes).map(|(tx, rx)| Recent {
            ns: 0,
            tx: tx.rate,
            rx: rx.rate,
            whole: !tx.partial && !rx.partial,
            source: tx.source,
        });
        row.recent = self.average.push(now_ns, passed);
        row
    }

    /// A bond with what passed the wire of each member.
    fn with_bytes(&self, bond: &Bond, now_ns: u64) -> Bond {
        let counter = |member: &Member, way| {
            let software = wire_bytes::SOFTWARE.get(way).copied();
            let mut names = wire_bytes::names(way).chain(software);
            names.find_map(|name| {
                let name = wire_bytes::of_member(&member.name, name);
                let at = self.counters.binary_search_by(|held| (*held.shown).cmp(&name));
                self.counters.get(at.ok()?)?.counter(now_ns)
            })
        };
        let member = |member: &Member| Member {
            tx_bytes: counter(member, 0),
            rx_bytes: counter(member, 1),
            ..member.clone()
        };
        Bond {
            mode: bond.mode.clone(),
            members: bond.members.iter().map(member).collect(),
        }
    }

    /// All counters at `now_ns`.
    fn shown(&self, now_ns: u64) -> Shared<NamedCounter> {
        let shown = |held: &PortCounter| {
            Some(NamedCounter {
                name: Arc::clone(&held.shown),
                unit_bytes: held.entry.unit_bytes(),
                help: held.entry.meaning(),
                counter: held.counter(now_ns)?,
            })
        };
        let mut rows = Vec::with_capacity(self.counters.len());
        rows.extend(self.counters.iter().filter_map(shown));
        rows.into()
    }

    /// The numbers that may fall.
    fn gauges(&self) -> Vec<Gauge> {
        let gauge = |held: &PortCounter| {
            Some(Gauge {
                name: Arc::clone(&held.shown),
                help: held.entry.meaning(),
                value: held.gauge?,
                source: source(held.from),
            })
        };
        self.counters.iter().filter_map(gauge).collect()
    }

    /// Packets both ways since this was last asked; `None` where they are not counted, and the first time.
    pub(super) fn passed(&mut self, began_ns: u64) -> Option<Passed> {
        let of = |role| self.role(&[role], began_ns).filter(|counter| !counter.partial);
        let now = of(Role::TxPackets)
            .zip(of(Role::RxPackets))
            .map(|(tx, rx)| (tx.total.saturating_add(rx.total), began_ns));
        let before = std::mem::replace(&mut self.at_dump, now);
        let ((before, since_ns), (now, _)) = before.zip(now)?;
        Some(Passed {
            since_ns,
            packets: now.saturating_sub(before),
        })
    }

    /// Bytes that it has sent, and when that was read; `None` where they are not counted, or not all.
    pub(super) fn sent(&self, now_ns: u64) -> Option<(u64, ReadAt)> {
        let counter = self
            .role(&[Role::TxBytes], now_ns)
            .filter(|counter| !counter.partial)?;
        let first = self.parts(Role::TxBytes).next()?;
        Some((counter.total, first.meter.as_ref()?.read_at()?))
    }

    /// What it has counted, and when that was read; `None` where packets or bytes are not counted, or not
    /// all.
    pub(super) fn totals(&self, now_ns: u64) -> Option<PortTotals> {
        let of = |role: Role| {
            let counter = self.role(&[role], now_ns).filter(|counter| !counter.partial)?;
            let first = self.parts(role).next()?;
            Some((counter.total, first.meter.as_ref()?.at_ns()))
        };
        let named = |name: &str| {
            let held = self.counters.iter().find(|held| *held.shown == *name)?;
            Some(held.counter(now_ns)?.total)
        };
        let [counted, more] = self.provider.sent_again();
        let again = counted.split_whitespace().map(named).sum::<Option<u64>>();
        let more: u64 = more.split_whitespace().filter_map(named).sum();
        Some(PortTotals {
            packets: [of(Role::TxPackets)?, of(Role::RxPackets)?],
            bytes: [of(Role::TxBytes)?, of(Role::RxBytes)?],
            reads: named(READS),
            again: again
                .filter(|_| !counted.is_empty())
                .map(|again| again.saturating_add(more)),
            has_ethernet: self.provider.counts_ethernet(),
        })
    }

    /// The sum of the counters that make up roles. Where some of them cannot be read, a lower bound.
    fn role(&self, roles: &[Role], now_ns: u64) -> Option<Counter> {
        let parts = || roles.iter().flat_map(|role| self.parts(*role));
        let sum = parts()
            .filter_map(|held| held.in_bytes(now_ns))
            .reduce(Counter::plus)?;
        let missing = parts().any(|held| !held.read);
        Some(Counter {
            partial: sum.partial || missing,
            ..sum
        })
    }
}

fn source(from: RawSource) -> Source {
    match from {
        RawSource::Netlink => Source::Netlink,
        RawSource::Sysfs | RawSource::Device | RawSource::Pma => Source::Sysfs,
        RawSource::Ethtool => Source::Ethtool,
    }
}

/// What a counter is called. One of the whole device is none of the port: no sum and no finding of the port
/// looks for this name.
fn shown_name(raw: &RawReading) -> Arc<str> {
    let safe = names::safe(raw.name.as_bytes());
    if raw.source == RawSource::Device {
        format!("{safe} (device)").into()
    } else if *safe == *raw.name {
        Arc::clone(&raw.name)
    } else {
        safe.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::meter::SECOND;

    fn reading(at_ns: u64, counters: &[(&str, u64, RawSource)]) -> PortReading {
        PortReading {
            number: 1,
            counters: counters
                .iter()
                .map(|(name, value, source)| raw(at_ns, name, Some(*value), *source))
                .collect(),
            ..PortReading::default()
        }
    }

    fn raw(at_ns: u64, name: &str, value: Option<u64>, source: RawSource) -> RawReading {
        RawReading {
            name: name.into(),
            value,
            source,
            at: at_ns.into(),
        }
    }

    fn row(port: &mut Port, now: u64) -> PortRow {
        let device: Arc<str> = "dev".into();
        port.row((1, &device), [None; 3], now)
    }

    fn two(
        provider: Provider,
        first: &[(&str, u64, RawSource)],
        second: &[(&str, u64, RawSource)],
    ) -> PortRow {
        let mut port = Port::default();
        port.read(&reading(SECOND, first), provider);
        port.read(&reading(2 * SECOND, second), provider);
        row(&mut port, 2 * SECOND)
    }

    #[test]
    fn an_rxe_port_without_byte_counters_has_packets_and_unknown_bytes() {
        use RawSource::Netlink;
        let row = two(
            Provider::Rxe,
            &[("sent_pkts", 10, Netlink), ("rcvd_pkts", 20, Netlink)],
            &[("sent_pkts", 110, Netlink), ("rcvd_pkts", 20, Netlink)],
        );
        assert_eq!(row.tx_bytes, None);
        assert_eq!(row.tx_packets.unwrap().rate, Some(100.0));
        assert_eq!(row.rx_packets.unwrap().rate, Some(0.0));
        assert_eq!(
            (row.history.unit, row.history.tx.as_slice()),
            ("packets", [Some(100.0)].as_slice())
        );
        assert_eq!(row.drops, None);
    }

    #[test]
    fn irdma_adds_up_both_ip_families() {
        use RawSource::Netlink;
        let row = two(
            Provider::Irdma,
            &[("ip4OutOctets", 0, Netlink), ("ip6OutOctets", 5, Netlink)],
            &[("ip4OutOctets", 100, Netlink), ("ip6OutOctets", 55, Netlink)],
        );
        assert_eq!(row.tx_bytes.unwrap().total, 155);
        assert_eq!(row.tx_bytes.unwrap().rate, Some(150.0));
    }

    #[test]
    fn drops_and_congestion_are_the_sums_of_their_known_parts() {
        use RawSource::{Netlink, Pma};
        let at = |n| {
            [
                ("out_of_buffer", 3 * n, Netlink),
                ("port_xmit_discards", 2 * n, Pma),
                ("np_ecn_marked_roce_packets", 5 * n, Netlink),
                ("rp_cnp_handled", 7 * n, Netlink),
                ("np_cnp_sent", 11 * n, Netlink),
                ("of_a_later_kernel", n, Netlink),
            ]
        };
        let row = two(Provider::Mlx5, &at(1), &at(2));
        let rates = [row.drops, row.out_of_buffer, row.congestion, row.ecn_marked];
        let rates = rates.map(|c| c.and_then(|c| c.rate));
        assert_eq!(rates, [Some(5.0), Some(3.0), Some(12.0), Some(5.0)]);
        assert_eq!(row.cnp_handled.and_then(|c| c.rate), Some(7.0));
        assert_eq!(row.cnp_sent.and_then(|c| c.rate), Some(11.0), "and in no sum");
        let help = |name| row.counters.iter().find(|c| &*c.name == name).map(|c| c.help);
        assert_eq!(help("of_a_later_kernel"), Some(None), "shown under its own name");
        assert!(help("out_of_buffer").flatten().is_some());
    }

    #[test]
    fn an_mlx5_port_has_bytes_drops_and_retries() {
        use RawSource::{Netlink, Pma};
        let row = two(
            Provider::Mlx5,
            &[
                ("port_xmit_data", 0, Pma),
                ("out_of_buffer", 1, Netlink),
                ("packet_seq_err", 2, Netlink),
            ],
            &[
                ("port_xmit_data", 1024, Pma),
                ("out_of_buffer", 3, Netlink),
                ("packet_seq_err", 2, Netlink),
            ],
        );
        assert_eq!(
            row.tx_bytes,
            Some(Counter::whole(4096, Some(4096.0), Source::Sysfs))
        );
        assert_eq!(row.drops.unwrap().rate, Some(2.0));
        assert_eq!(row.retries.unwrap().rate, Some(0.0));
        assert_eq!(row.retransmits, None, "it counts no packets that were sent again");
        let words = row
            .counters
            .iter()
            .find(|c| &*c.name == "port_xmit_data")
            .unwrap();
        assert_eq!(
            (words.counter.total, words.counter.rate, words.unit_bytes),
            (1024, Some(1024.0), Some(4)),
            "as its file says it"
        );
    }

    #[test]
    fn a_sum_without_an_unreadable_part_is_a_bound_until_it_is_read() {
        use RawSource::{Netlink, Pma, Sysfs};
        let mut port = Port::default();
        let mut at = |second: u64, hw: Option<u64>, from| {
            let at_ns = second * SECOND;
            let counters = [
                raw(at_ns, "out_of_buffer", hw, from),
                raw(at_ns, "port_xmit_discards", Some(2 * second), Pma),
            ];
            port.count(&counters, Provider::Mlx5);
            row(&mut port, at_ns)
        };
        let drops = |row: &PortRow| row.drops.map(|c| (c.total, c.rate, c.partial)).unwrap();
        at(1, Some(200), Netlink);
        assert_eq!(drops(&at(2, Some(400), Netlink)), (404, Some(202.0), false));
        let part = at(3, None, Netlink);
        assert_eq!(drops(&part), (6, Some(2.0), true));
        assert!(part.counters.iter().all(|c| &*c.name != "out_of_buffer"));
        // Missed for one round: its next rate is over the two seconds since it was read.
        assert_eq!(drops(&at(4, Some(800), Netlink)), (808, Some(202.0), false));
        // Netlink refuses, and the file of the counter does too: the sum still counts as incomplete.
        assert_eq!(drops(&at(5, None, Sysfs)), (10, Some(2.0), true));
    }

    #[test]
    fn a_sum_without_any_part_is_unknown_and_no_counter_stands_in() {
        let mut port = Port::default();
        let counters = [
            raw(1, "port_xmit_data", None, RawSource::Pma),
            raw(1, "rdma_tx_bytes", Some(5), RawSource::Netlink),
        ];
        port.count(&counters, Provider::Mlx5);
        assert_eq!(row(&mut port, 1).tx_bytes, None);
    }

    #[test]
    fn a_number_that_may_fall_has_no_total_and_no_rate_and_is_no_counter() {
        use RawSource::Netlink;
        let mut port = Port::default();
        let names = ["num_qps_congested", "current_rate", "tx_bytes"];
        for (second, value) in [(1, 9), (2, 4), (3, 0)] {
            let at_ns = second * SECOND;
            let counters = names.map(|name| (name, if name == "tx_bytes" { second } else { value }, Netlink));
            port.read(&reading(at_ns, &counters), Provider::Mana);
            let row = row(&mut port, at_ns);
            let gauges: Vec<_> = row
                .gauges
                .iter()
                .map(|gauge| (&*gauge.name, gauge.value))
                .collect();
            assert_eq!(gauges, [("current_rate", value), ("num_qps_congested", value)]);
            let counters: Vec<_> = row.counters.iter().map(|row| &*row.name).collect();
            assert_eq!(counters, ["tx_bytes"]);
        }
        // When the driver becomes known, the counter of an unknown one is no counter.
        let mut port = Port::default();
        port.read(&reading(SECOND, &[("current_rate", 5, Netlink)]), Provider::Other);
        port.read(
            &reading(2 * SECOND, &[("current_rate", 3, Netlink)]),
            Provider::Mana,
        );
        let row = row(&mut port, 2 * SECOND);
        assert_eq!((row.counters.len(), row.gauges[0].value), (0, 3));
    }

    #[test]
    fn a_name_from_two_sources_is_one_counter_and_netlink_wins() {
        use RawSource::{Netlink, Sysfs};
        let row = two(
            Provider::Efa,
            &[],
            &[("tx_bytes", 8, Sysfs), ("tx_bytes", 7, Netlink)],
        );
        assert_eq!(row.tx_bytes.unwrap().total, 7);
        let names: Vec<_> = row.counters.iter().map(|c| (&*c.name, c.counter.total)).collect();
        assert_eq!(names, [("tx_bytes", 7)]);
    }

    #[test]
    fn a_counter_of_all_ports_is_shown_and_in_no_sum_of_one() {
        use RawSource::{Device, Netlink};
        let at = |n| [("sq_num_to", n, Netlink), ("sq_num_to", 9 * n, Device)];
        let row = two(Provider::Mlx4, &at(1), &at(2));
        assert_eq!(row.retries.map(|c| (c.total, c.rate)), Some((2, Some(1.0))));
        let seen: Vec<_> = row
            .counters
            .iter()
            .map(|c| (&*c.name, c.counter.total, c.help.is_some()))
            .collect();
        assert_eq!(seen, [("sq_num_to", 2, true), ("sq_num_to (device)", 18, true)]);
    }

    #[test]
    fn a_counter_that_cannot_be_read_any_more_is_unknown() {
        let row = two(Provider::Rxe, &[("sent_pkts", 10, RawSource::Netlink)], &[]);
        assert_eq!(row.tx_packets, None);
        assert!(row.counters.is_empty());
    }

    #[test]
    fn counters_that_come_in_another_order_are_the_same_counters() {
        use RawSource::{Netlink, Sysfs};
        let row = two(
            Provider::Rxe,
            &[
                ("sent_pkts", 10, Netlink),
                ("x", 1, Sysfs),
                ("rcvd_pkts", 20, Netlink),
            ],
            &[
                ("x", 2, Sysfs),
                ("rcvd_pkts", 30, Netlink),
                ("sent_pkts", 40, Netlink),
            ],
        );
        assert_eq!(row.tx_packets.unwrap().rate, Some(30.0));
        assert_eq!(row.rx_packets.unwrap().rate, Some(10.0));
        let rates: Vec<_> = row.counters.iter().map(|c| c.counter.rate).collect();
        assert_eq!(rates, [Some(10.0), Some(30.0), Some(1.0)]);
    }

    #[test]
    fn an_unknown_counter_passes_under_its_own_safe_name() {
        let row = two(Provider::Other, &[], &[("odd\u{1b}[31m", 3, RawSource::Sysfs)]);
        assert_eq!(&*row.counters[0].name, "odd\\x1b[31m");
    }
}
