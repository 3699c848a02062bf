//! What the counters of each provider mean.
//!
//! Names are the drivers' own (`rdma_stat_desc` tables under drivers/infiniband, `ports/N/counters`). A meaning for
//! which a provider has no counter is unknown; a counter that is in no table is shown under its own name. Only
//! SoftRoCE's have been read on a working device, mlx5's and EFA's with a test driver; the others are from the
//! kernel's sources.

use rdmatop_common::counters::slot_flag;

use super::meter::Width;
use crate::model::{input::RawSource, judgement::Quantity, snapshot::Hidden};

/// A meaning that several providers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    TxBytes,
    RxBytes,
    TxPackets,
    RxPackets,
    Drops,
    /// Packets that were sent again.
    Retransmits,
    /// Times that a sender started again, each with any number of packets.
    Retries,
    Congestion,
    RnrNaks,
}

impl Role {
    /// All of them, in order.
    pub(super) const ALL: [Self; 9] = [
        Self::TxBytes,
        Self::RxBytes,
        Self::TxPackets,
        Self::RxPackets,
        Self::Drops,
        Self::Retransmits,
        Self::Retries,
        Self::Congestion,
        Self::RnrNaks,
    ];
}

/// Alternatives for one meaning, best first. The first alternative of which any name exists is taken, and its names
/// are added up.
type Ways = &'static [&'static [&'static str]];

/// A family of drivers with one set of counter names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Provider {
    Rxe,
    Siw,
    Mlx5,
    Efa,
    Bnxt,
    Mana,
    Irdma,
    Erdma,
    Hns,
    Other,
}

/// Beginning of a driver's or a device's name, and the family.
const FAMILIES: &[(&str, Provider)] = &[
    ("rdma_rxe", Provider::Rxe),
    ("rxe", Provider::Rxe),
    ("siw", Provider::Siw),
    ("mlx5", Provider::Mlx5),
    ("efa", Provider::Efa),
    ("bnxt", Provider::Bnxt),
    ("mana", Provider::Mana),
    ("irdma", Provider::Irdma),
    ("i40iw", Provider::Irdma),
    ("ice", Provider::Irdma),
    ("idpf", Provider::Irdma),
    ("erdma", Provider::Erdma),
    ("hns", Provider::Hns),
];

/// Counters that only one family has.
const SIGNATURES: &[(&str, Provider)] = &[
    ("sent_pkts", Provider::Rxe),
    ("rp_cnp_ignored", Provider::Mlx5),
    ("retrans_timeout_events", Provider::Efa),
    ("requester_oos_nak", Provider::Mana),
    ("ip4OutOctets", Provider::Irdma),
    ("hw_tx_bytes_cnt", Provider::Erdma),
];

impl Provider {
    /// The family by the counters of a device that has no driver link and may have any name: rxe devices have
    /// none, and any device can be renamed.
    pub(super) fn by_counters<'a>(mut names: impl Iterator<Item = &'a str>) -> Option<Self> {
        names.find_map(|name| {
            SIGNATURES
                .iter()
                .find(|(signature, _)| *signature == name)
                .map(|(_, provider)| *provider)
        })
    }

    /// The family, by the driver's name if it is known, else by the device's (`mlx5_0`).
    pub(super) fn of(driver: Option<&str>, device: &str) -> Self {
        let name = driver.unwrap_or(device);
        FAMILIES
            .iter()
            .find(|(start, _)| name.starts_with(start))
            .map_or(Self::Other, |(_, provider)| *provider)
    }

    /// The module of a driver whose work requests programs of ours can count, `None` for any other.
    pub(super) fn driver(self) -> Option<&'static str> {
        match self {
            Self::Rxe => Some("rdma_rxe"),
            Self::Siw => Some("siw"),
            _ => None,
        }
    }

    /// What no program can see of this driver's work requests, and why.
    pub(super) fn hidden(self) -> &'static [Hidden] {
        const SIW: &[Hidden] = &[
            Hidden {
                what: Quantity::Retransmissions,
                why: "TCP sends again and does not report it to the driver",
            },
            Hidden {
                what: Quantity::ReceiverWaits,
                why: "iWARP has none: a message without a receive buffer ends the connection",
            },
            Hidden {
                what: Quantity::Latency,
                why: "no program times them with this driver",
            },
        ];
        match self {
            Self::Siw => SIW,
            _ => &[],
        }
    }

    /// The same as bits of `slot_flag`, as slots of this driver's QPs have them: for QPs without a slot.
    pub(super) fn unknown(self) -> u32 {
        self.hidden().iter().fold(0, |bits, hidden| {
            bits | match hidden.what {
                Quantity::Retransmissions => slot_flag::NO_RETRANSMITS,
                Quantity::ReceiverWaits => slot_flag::NO_RNR,
                Quantity::Latency => slot_flag::NO_LATENCY,
                Quantity::WorkRequests | Quantity::WireBytes => 0,
            }
        })
    }

    /// How to get a meaning.
    pub(super) fn ways(self, role: Role) -> Ways {
        match self {
            Self::Rxe => rxe(role),
            Self::Siw => &[],
            Self::Mlx5 => mlx5(role),
            Self::Efa => efa(role),
            Self::Bnxt => bnxt(role),
            Self::Mana => mana(role),
            Self::Irdma => irdma(role),
            Self::Erdma => erdma(role),
            Self::Hns => hns(role),
            Self::Other => infiniband(role),
        }
    }

    /// Width of a counter. Only those are 32 bits wide here that wrap: the fields of `query_q_counter_out` of
    /// mlx5 (`do_get_hw_stats`). Those of `ports/N/counters` stop at their maximum instead.
    pub(super) fn width(self, from: RawSource, name: &str) -> Width {
        if from == RawSource::Pma {
            return stops_at(name).map_or(Width::Bits64, Width::StopsAt);
        }
        let wraps = self == Self::Mlx5
            && !name.starts_with("port_")
            && !name.starts_with("rdma_")
            && !name.starts_with("cc_")
            && !matches!(
                name,
                "rp_cnp_ignored"
                    | "rp_cnp_handled"
                    | "np_cnp_sent"
                    | "np_ecn_marked_roce_packets"
                    | "rx_icrc_encapsulated"
            );
        if wraps { Width::Bits32 } else { Width::Bits64 }
    }
}

/// Bytes that one count of `ports/N/counters` stands for: the InfiniBand specification counts data in words of 32 bits,
/// and RoCE drivers divide by four to comply.
pub(super) fn unit_bytes(from: RawSource, name: &str) -> Option<u64> {
    (from == RawSource::Pma && matches!(name, "port_xmit_data" | "port_rcv_data")).then_some(4)
}

/// Where a counter of `ports/N/counters` stops, by its width in `PortCounters` of the InfiniBand specification (the
/// `PORT_PMA_ATTR`s of drivers/infiniband/core/sysfs.c). Where the device has the extended ones, data and packets have 64
/// bits and pass this value.
fn stops_at(name: &str) -> Option<u64> {
    let bits = match name {
        "local_link_integrity_errors" | "excessive_buffer_overrun_errors" => 4,
        "link_error_recovery"
        | "link_downed"
        | "port_xmit_constraint_errors"
        | "port_rcv_constraint_errors" => 8,
        "symbol_error"
        | "port_rcv_errors"
        | "port_rcv_remote_physical_errors"
        | "port_rcv_switch_relay_errors"
        | "port_xmit_discards"
        | "VL15_dropped" => 16,
        "port_xmit_data" | "port_rcv_data" | "port_xmit_packets" | "port_rcv_packets" | "port_xmit_wait" => {
            32
        }
        _ => return None,
    };
    Some((1 << bits) - 1)
}

/// `ports/N/counters` of the InfiniBand PMA, which most providers for InfiniBand links have.
fn infiniband(role: Role) -> Ways {
    match role {
        Role::TxBytes => &[&["port_xmit_data"]],
        Role::RxBytes => &[&["port_rcv_data"]],
        Role::TxPackets => &[&["port_xmit_packets"]],
        Role::RxPackets => &[&["port_rcv_packets"]],
        Role::Drops => &[&["port_xmit_discards"]],
        // port_xmit_wait counts ticks, not marks: it stays under its own name.
        Role::Retransmits | Role::Retries | Role::Congestion | Role::RnrNaks => &[],
    }
}

fn rxe(role: Role) -> Ways {
    match role {
        // Kernel 7.2 and later; before, rxe counts no bytes at all.
        Role::TxBytes => &[&["sent_bytes"]],
        Role::RxBytes => &[&["rcvd_bytes"]],
        Role::TxPackets => &[&["sent_pkts"]],
        Role::RxPackets => &[&["rcvd_pkts"]],
        // Rounds: each returns to the first packet without an answer. The packets are counted by QP.
        Role::Retries => &[&["completer_retry_err"]],
        Role::RnrNaks => &[&["send_rnr_err", "rcvd_rnr_err"]],
        Role::Drops | Role::Congestion | Role::Retransmits => &[],
    }
}

fn mlx5(role: Role) -> Ways {
    match role {
        Role::Drops => &[&["out_of_buffer", "port_xmit_discards"]],
        // mlx5 counts the causes of retransmission, not the packets.
        Role::Retransmits => &[],
        Role::Retries => &[&[
            "packet_seq_err",
            "implied_nak_seq_err",
            "local_ack_timeout_err",
            "roce_adp_retrans",
        ]],
        Role::Congestion => &[&["np_ecn_marked_roce_packets", "rp_cnp_handled"]],
        Role::RnrNaks => &[&["rnr_nak_retry_err"]],
        Role::TxBytes => &[&["port_xmit_data"], &["rdma_tx_bytes"]],
        Role::RxBytes => &[&["port_rcv_data"], &["rdma_rx_bytes"]],
        Role::TxPackets => &[&["port_xmit_packets"], &["rdma_tx_packets"]],
        Role::RxPackets => &[&["port_rcv_packets"], &["rdma_rx_packets"]],
    }
}

fn efa(role: Role) -> Ways {
    match role {
        Role::TxBytes => &[&["tx_bytes"]],
        Role::RxBytes => &[&["rx_bytes"]],
        Role::TxPackets => &[&["tx_pkts"]],
        Role::RxPackets => &[&["rx_pkts"]],
        Role::Drops => &[&["rx_drops"]],
        Role::Retransmits => &[&["retrans_pkts"]],
        Role::Retries => &[&["retrans_timeout_events"]],
        Role::Congestion | Role::RnrNaks => &[],
    }
}

fn bnxt(role: Role) -> Ways {
    match role {
        Role::TxBytes => &[&["tx_bytes"]],
        Role::RxBytes => &[&["rx_bytes"]],
        Role::TxPackets => &[&["tx_pkts"]],
        Role::RxPackets => &[&["rx_pkts"]],
        // Newer drivers took over mlx5's names for some; of each pair only one is there.
        Role::Drops => &[&["rx_roce_discards", "rx_out_of_buffer", "out_of_buffer"]],
        Role::Retransmits => &[],
        Role::Retries => &[
            &["to_retransmits", "seq_err_naks_rcvd"],
            &["local_ack_timeout_err", "packet_seq_err"],
        ],
        Role::Congestion => &[
            &["rx_ecn_marked_pkts", "rx_cnp_pkts"],
            &["np_ecn_marked_roce_packets", "rp_cnp_handled"],
        ],
        Role::RnrNaks => &[&["rnr_naks_rcvd"], &["rnr_nak_retry_err"]],
    }
}

fn mana(role: Role) -> Ways {
    match role {
        Role::TxBytes => &[&["tx_bytes"]],
        Role::RxBytes => &[&["rx_bytes"]],
        Role::TxPackets => &[&["tx_packets"]],
        Role::RxPackets => &[&["rx_packets"]],
        Role::Retries => &[&["requester_timeout", "requester_oos_nak", "requester_implicit_nak"]],
        Role::Congestion => &[&["received_cnps"]],
        Role::RnrNaks => &[&["requester_rnr_nak", "responder_rnr_nak"]],
        Role::Drops | Role::Retransmits => &[],
    }
}

fn irdma(role: Role) -> Ways {
    match role {
        Role::TxBytes => &[&["ip4OutOctets", "ip6OutOctets"]],
        Role::RxBytes => &[&["ip4InOctets", "ip6InOctets"]],
        Role::TxPackets => &[&["ip4OutPkts", "ip6OutPkts"]],
        Role::RxPackets => &[&["ip4InPkts", "ip6InPkts"]],
        Role::Drops => &[&["ip4InDiscards", "ip6InDiscards"]],
        // Kernels up to 5.19 say tcpRetransSegs.
        Role::Retransmits => &[&["RetransSegs"], &["tcpRetransSegs"]],
        Role::Retries => &[],
        Role::Congestion => &[&["RxECNMrkd", "cnpHandled"]],
        Role::RnrNaks => &[&["RNR sent", "RNR received"]],
    }
}

fn erdma(role: Role) -> Ways {
    match role {
        Role::TxBytes => &[&["hw_tx_bytes_cnt"]],
        Role::RxBytes => &[&["hw_rx_bytes_cnt"]],
        Role::TxPackets => &[&["hw_tx_packets_cnt"]],
        Role::RxPackets => &[&["hw_rx_packets_cnt"]],
        Role::Drops => &[&[
            "hw_disable_drop_cnt",
            "hw_bps_limit_drop_cnt",
            "hw_pps_limit_drop_cnt",
            "hw_rx_disable_drop_cnt",
            "hw_rx_bps_limit_drop_cnt",
            "hw_rx_pps_limit_drop_cnt",
        ]],
        Role::Retransmits | Role::Retries | Role::Congestion | Role::RnrNaks => &[],
    }
}

fn hns(role: Role) -> Ways {
    match role {
        Role::TxPackets => &[&["tx_pkt"]],
        Role::RxPackets => &[&["rx_pkt"]],
        Role::Congestion => &[&["rx_cnp_pkt"]],
        Role::TxBytes | Role::RxBytes | Role::Drops | Role::Retransmits | Role::Retries | Role::RnrNaks => {
            &[]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_is_known_by_its_driver_or_else_by_the_device() {
        assert_eq!(Provider::of(Some("mlx5_core"), "anything"), Provider::Mlx5);
        assert_eq!(Provider::of(Some("bnxt_en"), "bnxt_re0"), Provider::Bnxt);
        assert_eq!(Provider::of(Some("rdma_rxe"), "foo/bar"), Provider::Rxe);
        assert_eq!(Provider::of(None, "rxe0"), Provider::Rxe);
        assert_eq!(Provider::of(Some("qedr"), "rxe_like"), Provider::Other);
    }

    #[test]
    fn a_renamed_device_without_a_driver_is_known_by_its_counters() {
        let names = ["ack_deferred", "sent_pkts"];
        assert_eq!(Provider::by_counters(names.into_iter()), Some(Provider::Rxe));
        assert_eq!(
            Provider::by_counters(["tx_bytes"].into_iter()),
            None,
            "several have it"
        );
    }

    #[test]
    fn only_q_counters_of_mlx5_wrap_at_32_bits() {
        let width = |provider: Provider, name| provider.width(RawSource::Netlink, name);
        assert_eq!(width(Provider::Mlx5, "out_of_buffer"), Width::Bits32);
        assert_eq!(width(Provider::Mlx5, "rp_cnp_handled"), Width::Bits64);
        assert_eq!(width(Provider::Rxe, "sent_pkts"), Width::Bits64);
    }

    #[test]
    fn counters_of_the_infiniband_specification_stop_where_it_says_and_only_they_count_words() {
        let width = |name| Provider::Mlx5.width(RawSource::Pma, name);
        assert_eq!(width("port_xmit_discards"), Width::StopsAt(65_535));
        assert_eq!(width("link_downed"), Width::StopsAt(255));
        assert_eq!(width("port_xmit_data"), Width::StopsAt(0xffff_ffff));
        assert_eq!(width("unicast_rcv_packets"), Width::Bits64);
        assert_eq!(unit_bytes(RawSource::Pma, "port_rcv_data"), Some(4));
        assert_eq!(unit_bytes(RawSource::Pma, "port_rcv_packets"), None);
        for other in [RawSource::Netlink, RawSource::Sysfs] {
            assert_eq!(unit_bytes(other, "port_rcv_data"), None);
        }
    }
}
