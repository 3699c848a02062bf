//! Flow control of a network interface by dcb netlink (net/dcb/dcbnl.c). Layouts: include/uapi/linux/dcbnl.h.

use crate::netlink::{
    client::Nldev,
    error::NetlinkError,
    request::{Reply, Request},
    socket::Socket,
    wire::{Attrs, WireResult},
};

const RTM_GETDCB: u16 = 78;
const CMD_IEEE_GET: u8 = 21;
const IFNAME: u16 = 1;
const IEEE: u16 = 13;
const IEEE_PFC: u16 = 2;
const IEEE_APP_TABLE: u16 = 3;
/// `IEEE_8021QAZ_APP_SEL_DSCP`.
const SELECTOR_DSCP: u8 = 5;
/// `struct dcbmsg`.
const HEADER: usize = 4;

/// What the kernel answers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Dcb {
    /// Priorities with flow control.
    pub pfc: Option<Vec<u8>>,
    /// Priorities are chosen by DSCP.
    pub dscp: bool,
}

/// Asks for an interface; `None` where its driver has no DCB.
pub fn of(interface: &str) -> Result<Option<Dcb>, NetlinkError> {
    match ask(interface) {
        Ok(dcb) => Ok(Some(dcb)),
        // No such operation, no CONFIG_DCB, no such interface.
        Err(error)
            if matches!(
                error.errno(),
                Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENODEV)
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn ask(interface: &str) -> Result<Dcb, NetlinkError> {
    let request = Request::new(RTM_GETDCB, Reply::One, 0).with(|writer| {
        writer
            .raw(&[0, CMD_IEEE_GET, 0, 0])
            .string(IFNAME, interface.as_bytes())
    });
    let mut dcb = Dcb::default();
    Nldev::new(Socket::route()?).run(&request, &mut |record| {
        dcb = decode(record.bytes().get(HEADER..).unwrap_or_default())?;
        Ok(())
    })?;
    Ok(dcb)
}

pub(crate) fn decode(attributes: &[u8]) -> WireResult<Dcb> {
    let ieee = Attrs::new(attributes).nested(IEEE)?;
    // struct ieee_pfc: capability, then a bit for each priority that is on.
    let on = ieee
        .get(IEEE_PFC, |pfc| Ok(pfc.payload.get(1).copied()))?
        .flatten();
    let pfc = on.map(|on| (0..8).filter(|priority| on >> priority & 1 == 1).collect());
    let mut dscp = false;
    // A table of struct dcb_app: selector, priority, protocol.
    for app in ieee.nested(IEEE_APP_TABLE)? {
        dscp |= app?.payload.first() == Some(&SELECTOR_DSCP);
    }
    Ok(Dcb { pfc, dscp })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::wire::MessageWriter;
    use proptest::prelude::*;

    #[test]
    fn flow_control_and_trust_are_decoded() {
        let message = MessageWriter::new(RTM_GETDCB, 0, 1)
            .string(IFNAME, b"eth0")
            .nest(IEEE, |ieee| {
                let mut pfc = vec![8, 0b1000, 0, 0];
                pfc.resize(136, 0);
                ieee.bytes(IEEE_PFC, &pfc)
                    .nest(IEEE_APP_TABLE, |table| table.bytes(1, &[SELECTOR_DSCP, 3, 26, 0]))
            })
            .finish();
        let dcb = decode(&message[16..]).unwrap();
        assert_eq!(
            dcb,
            Dcb {
                pfc: Some(vec![3]),
                dscp: true
            }
        );
        assert_eq!(decode(&[]).unwrap(), Dcb::default());
    }

    #[test]
    fn an_interface_without_dcb_is_absent_and_no_error() {
        assert_eq!(of("lo").unwrap(), None);
        assert_eq!(of("none-such").unwrap(), None);
    }

    proptest! {
        #[test]
        fn no_answer_panics(bytes: Vec<u8>) {
            let _ = decode(&bytes);
        }
    }
}
