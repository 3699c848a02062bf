//! Counters of a port: every one under its own name, and those with a shared meaning.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    history::Series,
    meter::{Meter, Width},
    names,
    providers::{Provider, Role},
};
use crate::model::{
    ib::{PhysState, PortState},
    input::{PortReading, RawReading, RawSource},
    snapshot::{HISTORY, NamedCounter, PortRow},
    value::{Counter, Source},
};

/// One port of one generation of a device.
#[derive(Debug)]
pub(super) struct Port {
    number: u32,
    state: Option<PortState>,
    phys_state: Option<PhysState>,
    link_layer: Option<Arc<str>>,
    netdev: Option<Arc<str>>,
    netdev_mtu: Option<u32>,
    rate_bps: Option<u64>,
    /// In the order of their shown names.
    counters: Vec<Held>,
    /// Place in `counters` of each counter of the last reading; `None` for a name that was there already.
    places: Vec<Option<usize>>,
    /// Places in `counters` of what each role is made of, by [`Role`].
    roles: [Vec<usize>; Role::ALL.len()],
    provider: Provider,
    history: Series,
}

/// A counter.
#[derive(Debug)]
struct Held {
    /// As it was read.
    raw: Arc<str>,
    shown: Arc<str>,
    from: RawSource,
    width: Width,
    meter: Meter,
}

/// What the port of a software device sent and received according to the slots of its QPs.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedBytes {
    pub(super) tx: Counter,
    pub(super) rx: Counter,
}

/// Who owns the port, for its row.
pub(super) struct PortOf<'a> {
    pub(super) device_uid: u64,
    pub(super) device: &'a Arc<str>,
    pub(super) counted: Option<CountedBytes>,
}

impl Port {
    pub(super) fn new() -> Self {
        Self {
            number: 0,
            state: None,
            phys_state: None,
            link_layer: None,
            netdev: None,
            netdev_mtu: None,
            rate_bps: None,
            counters: Vec::new(),
            places: Vec::new(),
            roles: Default::default(),
            provider: Provider::Other,
            history: Series::new(HISTORY),
        }
    }

    /// Folds a reading in. A counter that is not in it could not be read: it is forgotten, not kept at its last
    /// value.
    pub(super) fn read(
        &mut self,
        reading: &PortReading,
        provider: Provider,
        at_ns: u64,
        min_interval_ns: u64,
    ) {
        self.count(&reading.counters, provider, at_ns, min_interval_ns);
        self.describe(reading);
    }

    /// Takes over what a reading says of the port, without its counters.
    pub(super) fn describe(&mut self, reading: &PortReading) {
        self.number = reading.number;
        self.state = reading.state;
        self.phys_state = reading.phys_state;
        self.link_layer = names::safe_opt(reading.link_layer.as_ref());
        self.netdev = names::safe_opt(reading.netdev.as_ref());
        self.netdev_mtu = reading.netdev_mtu;
        self.rate_bps = reading.rate_bps;
    }

    /// Folds the counters of a reading in.
    pub(super) fn count(
        &mut self,
        counters: &[RawReading],
        provider: Provider,
        at_ns: u64,
        min_interval_ns: u64,
    ) {
        if self.provider != provider || !self.is_laid_out_as(counters) {
            self.lay_out(counters, provider, at_ns);
        }
        for (raw, place) in counters.iter().zip(&self.places) {
            if let Some(held) = place.and_then(|place| self.counters.get_mut(place)) {
                held.meter.read(raw.value, at_ns, held.width, min_interval_ns);
            }
        }
    }

    /// Whether a reading has the counters of the last one in its order, which is nearly always.
    fn is_laid_out_as(&self, counters: &[RawReading]) -> bool {
        counters.len() == self.places.len()
            && counters.iter().zip(&self.places).all(|(raw, place)| {
                place
                    .and_then(|place| self.counters.get(place))
                    .is_some_and(|held| held.from == raw.source && same(&held.raw, &raw.name))
            })
    }

    /// Makes a place for each counter of a reading, and keeps those that were there.
    fn lay_out(&mut self, counters: &[RawReading], provider: Provider, at_ns: u64) {
        let before = std::mem::take(&mut self.counters);
        let mut before: BTreeMap<Arc<str>, Held> = before
            .into_iter()
            .map(|held| (Arc::clone(&held.shown), held))
            .collect();
        let mut held: BTreeMap<Arc<str>, (Held, usize)> = BTreeMap::new();
        // Netlink before sysfs: one name read from both is one counter.
        let mut order: Vec<usize> = (0..counters.len()).collect();
        order.sort_by_key(|at| counters.get(*at).map(|raw| raw.source as u8));
        for at in order {
            let Some(raw) = counters.get(at) else { continue };
            let shown = shown_name(raw.source, &raw.name);
            if held.contains_key(&shown) {
                continue;
            }
            let kept = before.remove(&shown).filter(|kept| kept.from == raw.source);
            let meter = kept.map_or_else(|| Meter::new(raw.value, at_ns), |kept| kept.meter);
            let new = Held {
                raw: Arc::clone(&raw.name),
                shown: Arc::clone(&shown),
                from: raw.source,
                width: provider.width(&raw.name),
                meter,
            };
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
        self.roles = Role::ALL.map(|role| self.places_of(role));
    }

    /// Places of the counters that a role is the sum of.
    fn places_of(&self, role: Role) -> Vec<usize> {
        let place = |name: &&str| {
            self.counters
                .binary_search_by(|held| (*held.shown).cmp(*name))
                .ok()
        };
        self.provider
            .ways(role)
            .iter()
            .map(|names| names.iter().filter_map(place).collect::<Vec<_>>())
            .find(|places| !places.is_empty())
            .unwrap_or_default()
    }

    /// The row at `now_ns`; adds a point to the history.
    pub(super) fn row(&mut self, of: &PortOf<'_>, now_ns: u64) -> PortRow {
        let role = |role| self.role(role, now_ns);
        let mut row = PortRow {
            device_uid: of.device_uid,
            device: Arc::clone(of.device),
            port: self.number,
            state: self.state,
            phys_state: self.phys_state,
            link_layer: self.link_layer.clone(),
            netdev: self.netdev.clone(),
            netdev_mtu: self.netdev_mtu,
            rate_bps: self.rate_bps,
            tx_bytes: role(Role::TxBytes).or(of.counted.map(|counted| counted.tx)),
            rx_bytes: role(Role::RxBytes).or(of.counted.map(|counted| counted.rx)),
            tx_packets: role(Role::TxPackets),
            rx_packets: role(Role::RxPackets),
            drops: role(Role::Drops),
            retransmits: role(Role::Retransmits),
            congestion: role(Role::Congestion),
            rnr_naks: role(Role::RnrNaks),
            counters: Vec::with_capacity(self.counters.len()),
            history: Arc::default(),
        };
        row.counters.extend(self.counters.iter().map(|held| NamedCounter {
            name: Arc::clone(&held.shown),
            counter: held.meter.counter(source(held.from), now_ns),
        }));
        let (tx, rx, unit) = if row.tx_bytes.is_some() || row.rx_bytes.is_some() {
            (row.tx_bytes, row.rx_bytes, "bytes")
        } else {
            (row.tx_packets, row.rx_packets, "packets")
        };
        self.history
            .push(tx.and_then(|c| c.rate), rx.and_then(|c| c.rate), unit);
        row.history = self.history.points();
        row
    }

    fn role(&self, role: Role, now_ns: u64) -> Option<Counter> {
        self.roles
            .get(role as usize)?
            .iter()
            .filter_map(|place| self.counters.get(*place))
            .map(|held| held.meter.counter(source(held.from), now_ns))
            .reduce(sum)
    }
}

/// Names are shared by those who read them, mostly.
fn same(a: &Arc<str>, b: &Arc<str>) -> bool {
    Arc::ptr_eq(a, b) || a == b
}

/// Both together; the rate is known when both are.
fn sum(a: Counter, b: Counter) -> Counter {
    Counter {
        total: a.total.saturating_add(b.total),
        rate: a.rate.zip(b.rate).map(|(a, b)| a + b),
        source: a.source,
    }
}

fn source(from: RawSource) -> Source {
    match from {
        RawSource::Netlink => Source::Netlink,
        RawSource::Sysfs | RawSource::Netdev => Source::Sysfs,
    }
}

/// The network device's `tx_bytes` is another thing than the provider's: RDMA bypasses it.
fn shown_name(from: RawSource, name: &Arc<str>) -> Arc<str> {
    let safe = names::safe(name.as_bytes());
    match from {
        RawSource::Netdev => format!("netdev_{safe}").into(),
        RawSource::Netlink | RawSource::Sysfs if *safe == **name => Arc::clone(name),
        RawSource::Netlink | RawSource::Sysfs => safe.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::engine::meter::SECOND;

    fn reading(counters: &[(&str, u64, RawSource)]) -> PortReading {
        PortReading {
            number: 1,
            counters: counters
                .iter()
                .map(|(name, value, source)| RawReading {
                    name: (*name).into(),
                    value: *value,
                    source: *source,
                })
                .collect(),
            ..PortReading::default()
        }
    }

    fn row(port: &mut Port, now: u64) -> PortRow {
        let device: Arc<str> = "dev".into();
        port.row(
            &PortOf {
                device_uid: 1,
                device: &device,
                counted: None,
            },
            now,
        )
    }

    fn two(
        provider: Provider,
        first: &[(&str, u64, RawSource)],
        second: &[(&str, u64, RawSource)],
    ) -> PortRow {
        let mut port = Port::new();
        port.read(&reading(first), provider, SECOND, 1);
        port.read(&reading(second), provider, 2 * SECOND, 1);
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
    fn an_mlx5_port_has_bytes_drops_and_retransmits() {
        use RawSource::{Netlink, Sysfs};
        let row = two(
            Provider::Mlx5,
            &[
                ("port_xmit_data", 0, Sysfs),
                ("out_of_buffer", 1, Netlink),
                ("packet_seq_err", 2, Netlink),
            ],
            &[
                ("port_xmit_data", 4096, Sysfs),
                ("out_of_buffer", 3, Netlink),
                ("packet_seq_err", 2, Netlink),
            ],
        );
        let tx = row.tx_bytes.unwrap();
        assert_eq!(
            (tx.total, tx.rate, tx.source),
            (4096, Some(4096.0), Source::Sysfs)
        );
        assert_eq!(row.drops.unwrap().rate, Some(2.0));
        assert_eq!(row.retransmits.unwrap().rate, Some(0.0));
    }

    #[test]
    fn a_name_from_two_sources_is_one_counter_and_netlink_wins() {
        use RawSource::{Netdev, Netlink, Sysfs};
        let row = two(
            Provider::Efa,
            &[],
            &[
                ("tx_bytes", 9, Netdev),
                ("tx_bytes", 8, Sysfs),
                ("tx_bytes", 7, Netlink),
            ],
        );
        assert_eq!(row.tx_bytes.unwrap().total, 7);
        let names: Vec<_> = row.counters.iter().map(|c| (&*c.name, c.counter.total)).collect();
        assert_eq!(names, [("netdev_tx_bytes", 9), ("tx_bytes", 7)]);
    }

    #[test]
    fn the_network_device_never_stands_for_the_rdma_port() {
        let row = two(Provider::Efa, &[], &[("tx_bytes", 9, RawSource::Netdev)]);
        assert_eq!(row.tx_bytes, None);
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
