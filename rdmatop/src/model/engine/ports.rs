//! Counters of a port: every one under its own name, and those with a shared meaning.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    history::Series,
    meter::Meter,
    names,
    providers::{Provider, Role},
};
use crate::model::{
    input::{PortReading, RawSource},
    snapshot::{HISTORY, NamedCounter, PortRow},
    value::{Counter, Source},
};

/// One port of one generation of a device.
#[derive(Debug)]
pub(super) struct Port {
    reading: PortReading,
    counters: BTreeMap<Arc<str>, (Meter, RawSource)>,
    history: Series,
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
    pub(super) provider: Provider,
    pub(super) counted: Option<CountedBytes>,
}

impl Port {
    pub(super) fn new() -> Self {
        Self {
            reading: PortReading::default(),
            counters: BTreeMap::new(),
            history: Series::new(HISTORY),
        }
    }

    /// Folds a reading in. A counter that is not in it could not be read: it is forgotten, not kept at its last
    /// value.
    pub(super) fn read(
        &mut self,
        mut reading: PortReading,
        provider: Provider,
        at_ns: u64,
        min_interval_ns: u64,
    ) {
        // Netlink before sysfs: one name read from both is one counter.
        reading.counters.sort_by_key(|raw| raw.source as u8);
        let mut before = std::mem::take(&mut self.counters);
        for raw in &reading.counters {
            let name = shown_name(raw.source, &raw.name);
            if self.counters.contains_key(&name) {
                continue;
            }
            let meter = match before.remove(&name) {
                Some((mut meter, source)) if source == raw.source => {
                    meter.read(raw.value, at_ns, provider.width(&raw.name), min_interval_ns);
                    meter
                }
                _ => Meter::new(raw.value, at_ns),
            };
            self.counters.insert(name, (meter, raw.source));
        }
        reading.counters.clear();
        self.reading = reading;
    }

    /// The row at `now_ns`; adds a point to the history.
    pub(super) fn row(&mut self, of: &PortOf<'_>, now_ns: u64) -> PortRow {
        let role = |role| self.role(of.provider, role, now_ns);
        let mut row = PortRow {
            device_uid: of.device_uid,
            device: Arc::clone(of.device),
            port: self.reading.number,
            state: self.reading.state,
            phys_state: self.reading.phys_state,
            link_layer: names::safe_opt(self.reading.link_layer.as_ref()),
            netdev: names::safe_opt(self.reading.netdev.as_ref()),
            netdev_mtu: self.reading.netdev_mtu,
            rate_bps: self.reading.rate_bps,
            tx_bytes: role(Role::TxBytes).or(of.counted.map(|counted| counted.tx)),
            rx_bytes: role(Role::RxBytes).or(of.counted.map(|counted| counted.rx)),
            tx_packets: role(Role::TxPackets),
            rx_packets: role(Role::RxPackets),
            drops: role(Role::Drops),
            retransmits: role(Role::Retransmits),
            congestion: role(Role::Congestion),
            rnr_naks: role(Role::RnrNaks),
            counters: Vec::with_capacity(self.counters.len()),
            history: self.history.points(),
        };
        row.counters
            .extend(self.counters.iter().map(|(name, (meter, from))| NamedCounter {
                name: Arc::clone(name),
                counter: meter.counter(source(*from), now_ns),
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

    fn role(&self, provider: Provider, role: Role, now_ns: u64) -> Option<Counter> {
        provider.ways(role).iter().find_map(|names| {
            names
                .iter()
                .filter_map(|name| self.counters.get(*name))
                .map(|(meter, from)| meter.counter(source(*from), now_ns))
                .reduce(sum)
        })
    }
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
    use crate::model::{engine::meter::SECOND, input::RawReading};

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

    fn row(port: &mut Port, provider: Provider, now: u64) -> PortRow {
        let device: Arc<str> = "dev".into();
        port.row(
            &PortOf {
                device_uid: 1,
                device: &device,
                provider,
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
        port.read(reading(first), provider, SECOND, 1);
        port.read(reading(second), provider, 2 * SECOND, 1);
        row(&mut port, provider, 2 * SECOND)
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
    fn an_unknown_counter_passes_under_its_own_safe_name() {
        let row = two(Provider::Other, &[], &[("odd\u{1b}[31m", 3, RawSource::Sysfs)]);
        assert_eq!(&*row.counters[0].name, "odd\\x1b[31m");
    }
}
