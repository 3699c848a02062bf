//! What the counters of each provider mean.
//!
//! Names are the drivers' own (`rdma_stat_desc` tables under drivers/infiniband, `ports/N/counters`), one
//! table in `counters.rs` for each provider. docs/counters.md repeats them, and says how each was verified
//! and which kernels have it. A meaning for which a provider has no counter is unknown; a counter that is in
//! no table is shown under its own name, with the width of 64 bits.

#[rustfmt::skip] // a counter is a line or two
mod counters;
mod table;
#[cfg(test)]
mod tests;

use rdmatop_common::{counters::slot_flag, provider::Counted};

use crate::{
    input::RawSource,
    snapshot::{Hidden, Quantity},
};

use table::{Carries, Table, Unit};
pub(super) use table::{Entry, Role};

/// Makes [`Provider`] of the families: the table of each, what its byte counters count, whether it has
/// `ports/N/counters` of the InfiniBand specification that mean something, and the beginnings of the names of
/// its drivers and devices.
macro_rules! families {
    ($($family:ident $table:ident $carries:ident $pma:literal: $($name:literal),*;)*) => {
        /// A family of drivers with one set of counter names.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(super) enum Provider {
            $($family,)*
            #[default]
            Other,
        }

        /// Beginning of a driver's or a device's name, and the family.
        const FAMILIES: &[(&str, Provider)] = &[$($(($name, Provider::$family),)*)*];

        impl Provider {
            /// The table of the provider's counters.
            fn table(self) -> Table {
                let (carries, pma, counters) = match self {
                    $(Self::$family => (Carries::$carries, $pma, counters::$table),)*
                    Self::Other => (Carries::More, true, counters::INFINIBAND),
                };
                Table { carries, pma, counters }
            }
        }
    };
}

families! {
    Rxe RXE Rdma false: "rdma_rxe", "rxe";
    Siw NONE Unknown false: "siw";
    Mlx5 MLX5 RdmaOnEthernet true: "mlx5";
    Mlx4 MLX4 More true: "mlx4";
    Efa EFA Rdma false: "efa";
    Bnxt BNXT_RE Unknown false: "bnxt";
    Mana MANA Unknown false: "mana";
    Irdma IRDMA Unknown false: "irdma", "i40iw", "ice", "idpf";
    Erdma ERDMA Unknown false: "erdma";
    Hns HNS Unknown false: "hns";
    Qedr NONE Unknown true: "qedr", "qede";
    Ionic IONIC Unknown false: "ionic";
    Cxgb4 CXGB4 Unknown false: "cxgb4", "iw_cxgb4";
    Hfi1 HFI1 More true: "hfi1";
}

/// The beginnings of names of drivers and devices, by family: for tests of other lists of drivers.
#[cfg(any(test, feature = "testkit"))]
pub fn families() -> Vec<Vec<&'static str>> {
    let same = FAMILIES.chunk_by(|(_, one), (_, next)| one == next);
    same.map(|names| names.iter().map(|(name, _)| *name).collect())
        .collect()
}

/// Whether a counter of a driver's device, whose ports have others, has a meaning. hfi1 has some three
/// hundred of the parts of its chip, which have none.
pub fn has_meaning(driver: Option<&str>, device: &str, counter: &str) -> bool {
    let provider = Provider::of(driver, device);
    provider.entry(RawSource::Device, counter).meaning().is_some()
}

/// A counter that only rxe has.
const SENT_BY_RXE: &str = "sent_pkts";

impl Provider {
    /// The family, by the driver's name if it is known, else by the device's (`mlx5_0`).
    pub(super) fn of(driver: Option<&str>, device: &str) -> Self {
        let name = driver.unwrap_or(device);
        FAMILIES
            .iter()
            .find(|(start, _)| name.starts_with(start))
            .map_or(Self::Other, |(_, provider)| *provider)
    }

    /// As [`Self::of`], of a device with counters of these names: those of rxe have no driver link, and any
    /// device can be renamed.
    pub(super) fn counting<'a>(self, mut names: impl Iterator<Item = &'a str>) -> Self {
        let mut is_rxe = || names.any(|name| name == SENT_BY_RXE);
        if self == Self::Other && is_rxe() {
            Self::Rxe
        } else {
            self
        }
    }

    /// The module of a driver whose work requests programs of ours can count, `None` for any other.
    pub(super) fn driver(self) -> Option<&'static str> {
        let mut names = FAMILIES.iter().filter(|(_, family)| *family == self);
        names.find_map(|(name, _)| Some(Counted::of_driver(name)?.driver))
    }

    /// What no program can see of this driver's work requests, and why.
    pub(super) fn hidden(self) -> &'static [Hidden] {
        const fn no(what: Quantity, why: &'static str) -> Hidden {
            Hidden { what, why }
        }
        const SIW: &[Hidden] = &[
            no(
                Quantity::Retransmissions,
                "TCP sends again and does not report it to the driver",
            ),
            no(
                Quantity::ReceiverWaits,
                "iWARP has none: a message without a receive buffer ends the connection",
            ),
            no(Quantity::Latency, "no program times them with this driver"),
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
                Quantity::WorkRequests | Quantity::WireBytes | Quantity::Completions => 0,
            }
        })
    }

    /// The role that a counter of this name is a part of, and in which way.
    pub(super) fn part(self, name: &str) -> Option<(Role, u8)> {
        let table = self.table();
        let pma = table.pma && self != Self::Other;
        let specified = if pma { counters::INFINIBAND } else { &[] };
        let mut named = table
            .counters
            .iter()
            .chain(specified)
            .filter(|entry| entry.is_named(name));
        // Of a counter with two names the second is the other way.
        let way = |entry: &Entry| if entry.name == name { entry.way } else { 1 };
        named.find_map(|entry| Some((entry.role?, way(entry))))
    }

    /// What a counter is; one that is in no table has 64 bits and no meaning.
    pub(super) fn entry(self, from: RawSource, name: &str) -> &'static Entry {
        static UNKNOWN: Entry = table::counter("", Unit::Events, "");
        let (table, name) = match from {
            RawSource::Pma => (counters::INFINIBAND, name),
            RawSource::Ethtool => return &UNKNOWN,
            // A representor's counter (INIT_VPORT_Q_COUNTER of mlx5).
            _ if self == Self::Mlx5 => (self.table().counters, name.strip_prefix("vport_").unwrap_or(name)),
            _ => (self.table().counters, name),
        };
        let named = |name: &str| table.iter().find(|entry| entry.is_named(name));
        let numbered = || without_number(name).filter(|_| self == Self::Hfi1);
        named(name).or_else(|| named(&numbered()?)).unwrap_or(&UNKNOWN)
    }

    /// Whether its packets are those of InfiniBand and RoCE, and its counters of packets and of bytes count
    /// the same ones. Those of EFA and Omni-Path may be larger.
    pub(super) fn has_ib_packets(self) -> bool {
        matches!(self, Self::Rxe | Self::Mlx5 | Self::Mlx4)
    }

    /// Its counters of which one moves whenever a packet of a connection is sent, or comes, a second time:
    /// those that each of its devices has, and more that some have.
    pub(super) fn sent_again(self) -> [&'static str; 2] {
        const BY_RXE: &str = "completer_retry_err send_rnr_err rcvd_rnr_err duplicate_request out_of_seq_request \
                              rcvd_seq_err";
        const BY_MLX5: &str = "out_of_buffer out_of_sequence duplicate_request rnr_nak_retry_err packet_seq_err \
                               implied_nak_seq_err local_ack_timeout_err";
        match self {
            Self::Rxe => [BY_RXE, ""],
            Self::Mlx5 => [BY_MLX5, "roce_adp_retrans"],
            _ => ["", ""],
        }
    }

    /// Whether the bytes that it counts of a packet may have those of its Ethernet headers among them. rxe
    /// counts from the IP header on.
    pub(super) fn counts_ethernet(self) -> bool {
        self != Self::Rxe
    }

    /// Whether its byte counters count every byte of a queue pair.
    pub(super) fn counts_all_of_rdma(self) -> bool {
        self.table().carries != Carries::Unknown
    }

    /// Whether the byte counters of a port with this link layer count nothing but traffic of queue pairs.
    pub(super) fn counts_rdma_alone(self, link_layer: Option<&str>) -> bool {
        match self.table().carries {
            Carries::Rdma => true,
            Carries::RdmaOnEthernet => link_layer == Some("Ethernet"),
            Carries::More | Carries::Unknown => false,
        }
    }
}

/// The name that the table of hfi1 has for a counter of a lane or a context: without its number. Counters of
/// 32 bits have `,32` behind their names (init_cntrs, hw/hfi1/chip.c).
fn without_number(name: &str) -> Option<String> {
    let (name, bits) = name.strip_suffix(",32").map_or((name, ""), |name| (name, ",32"));
    let bare = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (bare != name).then(|| format!("{bare}{bits}"))
}
