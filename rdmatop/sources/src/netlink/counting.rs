//! Requests about counters that QPs are bound to, one method each. Those that change something need
//! `CAP_NET_ADMIN`.
//!
//! The requests that change something are byte for byte those of rdma(8) from iproute2 (`rdma statistic qp
//! set`, `unbind`, `rdma statistic set`): tests compare them with what rdma(8) was seen to send.
use super::attr::{
    DEV_INDEX, PORT_INDEX, RES_LQPN, RES_QP, STAT_AUTO_MODE_MASK, STAT_COUNTER_ID, STAT_HWCOUNTER_INDEX,
    STAT_HWCOUNTERS, STAT_MODE, STAT_OPCOUNTER_ENABLED, STAT_RES, cmd,
};
use super::record::{
    Binding, CounterSet, Entry as _, Mask, Mode, OptionalCounter, decode_binding, decode_optional,
};
use super::request::{Reply, Request};
use super::{client::Nldev, error::NetlinkError, sample::Dump, transport::Transport};

/// The objects that counters are bound to.
const OF_QPS: u32 = RES_QP as u32;

/// Has the kernel bind the QPs of a port to counters by `mask`; an empty mask ends that.
///
/// `optional`: bind them to the optional counters too. Kernels before Linux 6.15 do not know the attribute,
/// so it is left out for false.
pub fn set_auto(device: u32, port: u32, mask: Mask, optional: bool) -> Request {
    Request::nldev(cmd::STAT_SET, Reply::Ack).with(|writer| {
        let writer = writer
            .u32(DEV_INDEX, device)
            .u32(PORT_INDEX, port)
            .u32(STAT_RES, OF_QPS)
            .u32(STAT_MODE, Mode::Auto.number())
            .u32(STAT_AUTO_MODE_MASK, mask.0);
        if optional {
            writer.u8(STAT_OPCOUNTER_ENABLED, 1)
        } else {
            writer
        }
    })
}

/// Unbinds a QP from its counter.
pub fn unbind(device: u32, port: u32, counter: u32, qp: u32) -> Request {
    Request::nldev(cmd::STAT_DEL, Reply::Ack).with(|writer| {
        writer
            .u32(STAT_MODE, Mode::Manual.number())
            .u32(STAT_RES, OF_QPS)
            .u32(DEV_INDEX, device)
            .u32(PORT_INDEX, port)
            .u32(STAT_COUNTER_ID, counter)
            .u32(RES_LQPN, qp)
    })
}

/// Of the optional counters of a port, those of `indexes` count from now on and the others do not.
pub fn set_optional(device: u32, port: u32, indexes: &[u32]) -> Request {
    Request::nldev(cmd::STAT_SET, Reply::Ack).with(|writer| {
        writer
            .u32(DEV_INDEX, device)
            .u32(PORT_INDEX, port)
            .nest(STAT_HWCOUNTERS, |table| {
                indexes
                    .iter()
                    .fold(table, |table, index| table.u32(STAT_HWCOUNTER_INDEX, *index))
            })
    })
}

impl<T: Transport> Nldev<T> {
    /// Counters that QPs of a device are bound to. For the values of each the kernel asks the driver, and the
    /// driver of a NIC its firmware; where no QP is bound the kernel asks nobody.
    pub fn counter_sets(&mut self, device: u32) -> Result<Dump<CounterSet>, NetlinkError> {
        let request = Request::nldev(CounterSet::COMMAND, Reply::Dump)
            .device(device)
            .with(|writer| writer.u32(STAT_RES, OF_QPS));
        self.entries(&request)
    }

    /// How the QPs of a port are bound.
    pub fn binding(&mut self, device: u32, port: u32) -> Result<Binding, NetlinkError> {
        let request = Request::nldev(cmd::STAT_GET, Reply::One)
            .device(device)
            .port(port)
            .with(|writer| {
                // STAT_MODE asks for the mode by being there; its value does not matter.
                writer.u32(STAT_MODE, Mode::Manual.number()).u32(STAT_RES, OF_QPS)
            });
        self.one(&request, decode_binding)
    }

    /// The optional counters of a port. Before Linux 5.16 the kernel does not know the command.
    pub fn optional_counters(
        &mut self,
        device: u32,
        port: u32,
    ) -> Result<Vec<OptionalCounter>, NetlinkError> {
        let request = Request::nldev(cmd::STAT_GET_STATUS, Reply::One)
            .device(device)
            .port(port);
        self.one(&request, decode_optional)
    }

    /// Sends a request that changes something; the kernel acknowledges it.
    pub fn order(&mut self, order: &Request) -> Result<(), NetlinkError> {
        self.run(order, &mut |_| Ok(())).map(|_| ())
    }
}
