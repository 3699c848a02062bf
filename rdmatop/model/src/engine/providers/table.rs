//! What a table of counters consists of: data that the engine and the detail of a port read.

use super::super::meter::Width;

/// A meaning that several providers share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Role {
    TxBytes,
    RxBytes,
    TxPackets,
    RxPackets,
    /// Packets that were dropped, but for those without a receive buffer.
    Drops,
    /// Packets that found no receive buffer.
    OutOfBuffer,
    /// Packets that were sent again.
    Retransmits,
    /// Times that a sender started again, each with any number of packets.
    Retries,
    /// Packets received with a mark of congestion (ECN).
    EcnMarked,
    /// Notifications of congestion (CNP) received, which slow a sender down.
    CnpHandled,
    /// Notifications of congestion sent.
    CnpSent,
    /// RNR NAKs received: a peer had no receive buffer.
    RnrNaks,
    /// RNR NAKs sent: a receive queue here had no buffer.
    RnrNaksSent,
}

impl Role {
    /// The key of a port's JSON object that its counters are a part of.
    #[cfg(test)]
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::TxBytes => "tx_bytes",
            Self::RxBytes => "rx_bytes",
            Self::TxPackets => "tx_packets",
            Self::RxPackets => "rx_packets",
            Self::Drops => "drops",
            Self::OutOfBuffer => "out_of_buffer",
            Self::Retransmits => "retransmits",
            Self::Retries => "retries",
            Self::EcnMarked => "ecn_marked",
            Self::CnpHandled => "cnp_handled",
            Self::CnpSent => "cnp_sent",
            Self::RnrNaks | Self::RnrNaksSent => "rnr_naks",
        }
    }
}

/// What one count of a counter stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Bytes,
    /// 4 bytes: the InfiniBand specification counts data in words, and RoCE drivers divide by four to comply.
    Words,
    Packets,
    /// Requests, commands, calls.
    Requests,
    /// Times that something happened.
    Events,
    /// Ticks of a clock of the port.
    Ticks,
    /// No counter: a number that goes up and down.
    Gauge,
}

impl Unit {
    #[cfg(test)]
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Words => "words of 4 bytes",
            Self::Packets => "packets",
            Self::Requests => "requests",
            Self::Events => "events",
            Self::Ticks => "ticks",
            Self::Gauge => "gauge",
        }
    }
}

/// A counter.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Entry {
    /// The driver's own.
    pub(super) name: &'static str,
    /// Its name in other releases of the driver: no device has both.
    pub(super) also: Option<&'static str>,
    pub(super) unit: Unit,
    /// What it means, a sentence without its full stop.
    pub(super) help: &'static str,
    pub(super) role: Option<Role>,
    /// Counters of one role and one way are added up. Of several ways the first is taken of which any counter
    /// exists.
    pub(super) way: u8,
    pub(in crate::engine) width: Width,
}

/// A counter of 64 bits.
pub(super) const fn counter(name: &'static str, unit: Unit, help: &'static str) -> Entry {
    Entry {
        name,
        also: None,
        unit,
        help,
        role: None,
        way: 0,
        width: Width::Bits64,
    }
}

impl Entry {
    /// What it means; `None` where no table has it.
    pub(in crate::engine) fn meaning(&self) -> Option<&'static str> {
        Some(self.help).filter(|help| !help.is_empty())
    }

    /// Whether its value may fall: it counts nothing, and has no total and no rate.
    pub(in crate::engine) fn is_gauge(&self) -> bool {
        self.unit == Unit::Gauge
    }

    /// Bytes that one count stands for, where it is not one.
    pub(in crate::engine) fn unit_bytes(&self) -> Option<u64> {
        (self.unit == Unit::Words).then_some(4)
    }

    /// Whether the driver calls it so.
    pub(super) fn is_named(&self, name: &str) -> bool {
        self.name == name || self.also == Some(name)
    }

    /// Other releases of the driver call it so.
    pub(super) const fn also(mut self, name: &'static str) -> Self {
        self.also = Some(name);
        self
    }

    pub(super) const fn is(mut self, role: Role) -> Self {
        self.role = Some(role);
        self
    }

    /// Of a role that a better way may have.
    pub(super) const fn else_is(mut self, role: Role) -> Self {
        self.way = 1;
        self.is(role)
    }

    /// It goes on at 0 after 2^32 - 1.
    pub(super) const fn wraps(mut self) -> Self {
        self.width = Width::Bits32;
        self
    }

    /// It has so many bits and stays at its largest value.
    pub(super) const fn stops(mut self, bits: u32) -> Self {
        self.width = Width::StopsAt((1 << bits) - 1);
        self
    }
}

/// What bytes the byte counters of a provider count. docs/counters.md says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carries {
    /// RDMA alone.
    Rdma,
    /// RDMA alone where the link is Ethernet; on InfiniBand IP too.
    RdmaOnEthernet,
    /// All of RDMA, and other traffic.
    More,
    /// It is not known which traffic the byte counters count.
    Unknown,
}

/// The counters of one provider.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) carries: Carries,
    /// It has `ports/N/counters` of the InfiniBand specification, which mean something.
    pub(super) pma: bool,
    pub(super) counters: &'static [Entry],
}
