//! Sums over a snapshot, and the scale on which ports compare.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use super::{Rows, Unexplained, are_known};
use crate::{
    cause::CauseId,
    facts::{DeviceRow, Facts, PortRow, ProcessRow, QpRow, Unlisted},
    ib::QpState,
    input::EbpfState,
    value::{Counter, Known, Source},
};

/// Owner of the QPs that carry management datagrams.
const MAD: &str = "[ib_core]";

/// A sum of rates of which some may be unknown.
///
/// In JSON, as with a [`Counter`], the rate of a lower bound is null, and the known part is `at_least`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum {
    /// The sum of the known rates; `None` when none is known.
    pub rate: Option<f64>,
    /// A part of the sum is unknown.
    pub partial: bool,
}

impl Sum {
    /// Adds a counter's rate; what is not exact makes the sum a lower bound.
    fn add_counter(&mut self, counter: Option<Counter>) {
        self.add(counter.and_then(Counter::certain_rate));
        self.partial |=
            counter.is_some_and(|counter| counter.rate_known() != Known::Exact || counter.is_share());
    }

    fn add(&mut self, rate: Option<f64>) {
        match rate {
            Some(rate) => *self.rate.get_or_insert(0.0) += rate,
            None => self.partial = true,
        }
    }

    /// The rate where it says something: "at least 0" says nothing, and must not look like 0.
    pub fn known(self) -> Option<f64> {
        self.rate.filter(|rate| *rate > 0.0 || !self.partial)
    }
}

impl Serialize for Sum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Sum", if self.partial { 2 } else { 1 })?;
        fields.serialize_field("rate", &self.rate.filter(|_| !self.partial))?;
        if self.partial {
            fields.serialize_field("at_least", &self.rate)?;
        }
        fields.end()
    }
}

/// Live QPs of one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StateCount {
    /// The state; `None` if no source reported it.
    pub state: Option<QpState>,
    /// The number of QPs in this state.
    pub qps: u64,
}

/// Sums over a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    /// Bytes sent per second, of all devices.
    pub tx: Sum,
    /// Bytes received per second, of all devices.
    pub rx: Sum,
    /// Send WRs finished per second, of all processes.
    pub wr: Sum,
    /// Live QPs.
    pub qps: u64,
    /// There may be more QPs: rdmatop leaves devices alone, and of those it knows only QPs whose creation a
    /// program saw.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub qps_are_partial: bool,
    /// The same by state, in numeric order.
    pub states: Vec<StateCount>,
}

impl Totals {
    pub(super) fn of(facts: &Facts, unexplained: &[Unexplained], rows: &Rows) -> Self {
        let mut out = Self {
            qps: rows.live,
            qps_are_partial: facts
                .health
                .notes
                .iter()
                .any(|note| matches!(note.id, CauseId::Excluded | CauseId::OtherNamespace)),
            states: rows.states.clone(),
            ..Self::default()
        };
        out.add_devices(facts, rows);
        // A process that ended within the window has no QP any more, but what it moved is counted.
        let moves = |row: &&ProcessRow| row.qps > 0 || row.traffic.tx_wr.is_some();
        for process in facts.processes.iter().filter(moves) {
            let sent = process.traffic.tx_wr;
            // Its management datagrams are no process's traffic: what is not known of them must not make sums
            // lower bounds.
            if !(process.kernel && &*process.comm == MAD) {
                out.wr.add_counter(sent);
            } else if let Some(rate) = sent.and_then(|sent| sent.rate) {
                out.wr.add(Some(rate));
            }
        }
        // Where nothing counts, a row without a number makes no 0.
        let counted = match &facts.health.ebpf {
            EbpfState::On { datapaths } => {
                !datapaths.is_empty() || !facts.processes.iter().any(|row| moves(&row))
            }
            _ => false,
        };
        let hides = !unexplained.is_empty() || facts.devices.iter().any(DeviceRow::may_hide_qps);
        if out.wr == Sum::default() && counted && !hides && !facts.devices.is_empty() {
            // No process exists that could have posted a WR.
            out.wr.add(Some(0.0));
        }
        let mut processes = facts.processes.iter();
        let hides = processes.any(|row| !row.exited && row.unlisted == Some(Unlisted::Made));
        out.wr.partial |= hides || !unexplained.is_empty();
        out
    }

    fn add_devices(&mut self, facts: &Facts, rows: &Rows) {
        for device in &facts.devices {
            let ports = || facts.ports.iter().filter(|p| p.device_uid == device.uid);
            if ports().any(counts_bytes) {
                ports().for_each(|p| {
                    self.tx.add_counter(p.tx_bytes);
                    self.rx.add_counter(p.rx_bytes);
                });
                continue;
            }
            // The provider (rxe) counts no bytes: the bytes that eBPF counted by QP take their place.
            let [tx, rx] = rows.moved.get(&device.uid).copied().unwrap_or_default();
            // If no packet passed, no byte did either. Otherwise a peer's reads are sent and its writes
            // received without a work request here, so the sum is a lower bound.
            let managed = carries_management_alone(facts, rows, device);
            let packets: [fn(&PortRow) -> Option<Counter>; 2] = [|p| p.tx_packets, |p| p.rx_packets];
            for (sum, bytes, packets) in [(&mut self.tx, tx, packets[0]), (&mut self.rx, rx, packets[1])] {
                let mut rates = ports().map(|p| packets(p).and_then(|c| c.rate));
                let still = ports().next().is_some() && rates.all(|rate| rate == Some(0.0));
                if managed || (still && bytes.is_none_or(|rate| rate == 0.0)) {
                    // Where nothing counts, management is no part of the sum.
                    if still || bytes.is_some() || device.datapath.is_some() {
                        sum.add(Some(bytes.unwrap_or(0.0)));
                    }
                } else {
                    sum.add(bytes);
                    sum.partial = true;
                }
            }
        }
    }
}

/// Whether all packets of a device are management datagrams, which no process sends or gets: the kernel lists
/// no other QP there, and one that is made is seen at once.
fn carries_management_alone(facts: &Facts, rows: &Rows, device: &DeviceRow) -> bool {
    !rows.able.contains(&device.uid)
        && facts.health.follows_qps
        && facts.health.lost_events == Some(0)
        && !device.may_hide_qps()
        && are_known(&facts.qps, device)
}

/// Adds the traffic of a QP to its device.
pub(super) fn add_moved(moved: &mut BTreeMap<u64, [Option<f64>; 2]>, qp: &QpRow) {
    let t = &*qp.traffic;
    let (Some(uid), true) = (qp.device_uid, t.tx_bytes.is_some() || t.rx_bytes.is_some()) else {
        return;
    };
    for (sum, rate) in moved.entry(uid).or_default().iter_mut().zip(t.ways()) {
        if let Some(rate) = rate {
            *sum.get_or_insert(0.0) += rate;
        }
    }
}

/// Whether the port has byte counters of its provider, which count every byte that passes.
pub fn counts_bytes(port: &PortRow) -> bool {
    port.tx_bytes.is_some() || port.rx_bytes.is_some()
}

/// Whether a counter is a 0 that eBPF counted from work requests: other traffic may have passed the port.
pub fn says_nothing(counter: &Counter) -> bool {
    counter.source == Source::Ebpf && counter.rate == Some(0.0)
}

/// What a full bar means where ports are compared: all share one scale.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scale {
    /// The true rate of every port is known: a full bar is the whole link.
    pub link: bool,
    /// No provider counts bytes: bars and rates are of packets.
    pub packets: bool,
    /// If `link` is false, a full bar is this rate: that of the busiest direction of any port.
    pub max: f64,
}

impl Scale {
    pub(super) fn of(ports: &[PortRow]) -> Self {
        // The provider counts all packets, while eBPF counts only the bytes of work requests.
        let packets = !ports.iter().any(counts_bytes)
            && ports
                .iter()
                .any(|p| p.tx_packets.is_some() || p.rx_packets.is_some());
        let bytes = !packets
            && ports
                .iter()
                .any(|p| p.any_tx_bytes().or(p.any_rx_bytes()).is_some());
        let link = bytes && ports.iter().all(|p| p.rate_bps.is_some_and(|r| r > 0));
        let mut scale = Self {
            link,
            packets,
            max: 0.0,
        };
        let counters = ports.iter().flat_map(|port| scale.ways(port)).flatten();
        scale.max = counters.filter_map(|c| c.rate).fold(0.0, f64::max);
        scale
    }

    /// What is counted of the data that a port sent and received: bytes, or packets where no port counts
    /// bytes.
    fn ways(&self, port: &PortRow) -> [Option<Counter>; 2] {
        if self.packets {
            [port.tx_packets, port.rx_packets]
        } else {
            [port.any_tx_bytes().copied(), port.any_rx_bytes().copied()]
        }
    }

    /// What is counted of the data that a port sent.
    pub fn sent(&self, port: &PortRow) -> Option<Counter> {
        self.ways(port)[0]
    }

    /// What is counted of the data that a port received.
    pub fn received(&self, port: &PortRow) -> Option<Counter> {
        self.ways(port)[1]
    }

    /// Share of the link, or of the busiest direction of any port; `None` when there is no rate.
    pub fn share(&self, port: &PortRow, counter: Option<Counter>) -> Option<f64> {
        let rate = counter.filter(|counter| !says_nothing(counter))?.rate?;
        let full = if self.link {
            port.rate_bps? as f64 / 8.0
        } else {
            self.max
        };
        Some(if full > 0.0 { rate / full } else { 0.0 })
    }

    /// The label of a full bar.
    pub fn name(&self) -> &'static str {
        if self.link { "of link" } else { "of max" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::RateIs;

    #[test]
    fn a_sum_of_exact_rates_is_exact_and_any_other_makes_it_a_lower_bound() {
        let exact = Counter::whole(7, Some(100.0), Source::Sysfs);
        let sum = |other: Option<Counter>| {
            let mut sum = Sum::default();
            sum.add_counter(Some(exact));
            sum.add_counter(other);
            (sum.rate, sum.partial)
        };
        let bound = |rate_is| Counter {
            partial: true,
            rate_is,
            ..exact
        };
        let share = Counter {
            source: Source::Psn,
            ..bound(RateIs::Exact)
        };
        for (other, expected) in [
            (Some(exact), (Some(200.0), false)),
            (Some(bound(RateIs::Exact)), (Some(200.0), false)),
            (Some(bound(RateIs::AsTotal)), (Some(200.0), true)),
            (Some(bound(RateIs::AtMost)), (Some(100.0), true)),
            (Some(share), (Some(195.0), true)),
            (Some(Counter { rate: None, ..exact }), (Some(100.0), true)),
            (None, (Some(100.0), true)),
        ] {
            assert_eq!(sum(other), expected, "{other:?}");
        }
    }
}
