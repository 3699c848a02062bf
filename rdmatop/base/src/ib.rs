//! Enumerations of InfiniBand verbs, spelled as rdma-core and the kernel spell them.
//!
//! Values are from include/rdma/ib_verbs.h and include/uapi/rdma/ib_user_verbs.h; an unknown value keeps its
//! number, so that a newer kernel shows a number instead of a wrong name.

use std::fmt;

use serde::{Serialize, Serializer};

macro_rules! spelled {
    ($(#[$doc:meta])* $name:ident { $($value:literal => $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u8);

        impl $name {
            /// The name, `None` for a value this version does not know.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 { $($value => Some($text),)* _ => None }
            }

            /// Every known value, in numeric order.
            pub const ALL: &'static [$name] = &[$($name($value)),*];
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.pad(name),
                    None => f.pad(&format!("?{}", self.0)),
                }
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}

spelled! {
    /// `enum ib_qp_state`.
    QpState {
        0 => "RESET", 1 => "INIT", 2 => "RTR", 3 => "RTS", 4 => "SQD", 5 => "SQE", 6 => "ERR",
    }
}

spelled! {
    /// `enum ib_qp_type`.
    QpType {
        0 => "SMI", 1 => "GSI", 2 => "RC", 3 => "UC", 4 => "UD", 5 => "RAW_IPV6", 6 => "RAW_ETHERTYPE",
        8 => "RAW_PACKET", 9 => "XRC_INI", 10 => "XRC_TGT", 255 => "DRIVER",
    }
}

impl QpState {
    /// Receives may be posted, and the peer is not known yet.
    pub const INIT: Self = Self(1);
    /// The QP knows its peer and receives.
    pub const RTR: Self = Self(2);
    /// The QP sends and receives.
    pub const RTS: Self = Self(3);
    /// The send queue drains.
    pub const SQD: Self = Self(4);
    /// The send queue stopped at an error.
    pub const SQE: Self = Self(5);
    /// The kernel flushes both queues.
    pub const ERR: Self = Self(6);
}

impl QpType {
    /// Subnet management, QP 0.
    pub const SMI: Self = Self(0);
    /// General services, QP 1.
    pub const GSI: Self = Self(1);
    /// Reliable connection.
    pub const RC: Self = Self(2);
    /// Unreliable connection.
    pub const UC: Self = Self(3);
    /// Packets as they are on the wire.
    pub const RAW_PACKET: Self = Self(8);
    /// What a driver defines: DCT and DCI of mlx5, SRD of EFA.
    pub const DRIVER: Self = Self(255);
}

spelled! {
    /// `enum ib_port_state`.
    PortState { 0 => "NOP", 1 => "DOWN", 2 => "INIT", 3 => "ARMED", 4 => "ACTIVE", 5 => "ACTIVE_DEFER" }
}

impl PortState {
    /// It has no link.
    pub const DOWN: Self = Self(1);
    /// It has a signal, and waits for its subnet manager.
    pub const INIT: Self = Self(2);
    /// The subnet manager has configured it, and has not made it ACTIVE yet.
    pub const ARMED: Self = Self(3);

    /// Whether packets pass the port: ACTIVE, also while the port hides a link error that may be short
    /// (ACTIVE_DEFER).
    pub const fn is_active(self) -> bool {
        matches!(self.0, 4 | 5)
    }

    /// Whether a port of InfiniBand has a signal and waits for its subnet manager.
    pub fn waits(self) -> bool {
        matches!(self, Self::INIT | Self::ARMED)
    }
}

impl PhysState {
    /// It looks for a signal.
    pub const POLLING: Self = Self(2);
    /// It is switched off.
    pub const DISABLED: Self = Self(3);
    /// The cable has a signal.
    pub const LINK_UP: Self = Self(5);
}

spelled! {
    /// `enum ib_port_phys_state`.
    PhysState {
        1 => "SLEEP", 2 => "POLLING", 3 => "DISABLED", 4 => "PORT_CONFIGURATION_TRAINING",
        5 => "LINK_UP", 6 => "LINK_ERROR_RECOVERY", 7 => "PHY_TEST",
    }
}

spelled! {
    /// `enum ib_event_type`.
    AsyncEvent {
        0 => "CQ_ERR", 1 => "QP_FATAL", 2 => "QP_REQ_ERR", 3 => "QP_ACCESS_ERR", 4 => "COMM_EST",
        5 => "SQ_DRAINED", 6 => "PATH_MIG", 7 => "PATH_MIG_ERR", 8 => "DEVICE_FATAL", 9 => "PORT_ACTIVE",
        10 => "PORT_ERR", 11 => "LID_CHANGE", 12 => "PKEY_CHANGE", 13 => "SM_CHANGE", 14 => "SRQ_ERR",
        15 => "SRQ_LIMIT_REACHED", 16 => "QP_LAST_WQE_REACHED", 17 => "CLIENT_REREGISTER", 18 => "GID_CHANGE",
        19 => "WQ_FATAL",
    }
}

spelled! {
    /// `enum rdma_cm_event_type`.
    CmEvent {
        0 => "ADDR_RESOLVED", 1 => "ADDR_ERROR", 2 => "ROUTE_RESOLVED", 3 => "ROUTE_ERROR",
        4 => "CONNECT_REQUEST", 5 => "CONNECT_RESPONSE", 6 => "CONNECT_ERROR", 7 => "UNREACHABLE",
        8 => "REJECTED", 9 => "ESTABLISHED", 10 => "DISCONNECTED", 11 => "DEVICE_REMOVAL",
        12 => "MULTICAST_JOIN", 13 => "MULTICAST_ERROR", 14 => "ADDR_CHANGE", 15 => "TIMEWAIT_EXIT",
        16 => "ADDRINFO_RESOLVED", 17 => "ADDRINFO_ERROR", 18 => "USER",
    }
}

spelled! {
    /// `enum ib_wr_opcode`, the work requests of the send queue (include/uapi/rdma/ib_user_verbs.h). The last
    /// is any other, those of the kernel alone (`IB_WR_REG_MR`) among them.
    WrOpcode {
        0 => "rdma_write", 1 => "rdma_write_imm", 2 => "send", 3 => "send_imm", 4 => "rdma_read",
        5 => "atomic_cmp_swp", 6 => "atomic_fetch_add", 7 => "local_inv", 8 => "bind_mw", 9 => "send_inv",
        10 => "tso", 11 => "rdma_read_inv", 12 => "masked_cmp_swp", 13 => "masked_fetch_add", 14 => "flush",
        15 => "other",
    }
}

spelled! {
    /// What a single work request asks for: `enum ib_uverbs_wr_opcode`; a receive from 128 on, as `enum
    /// ib_uverbs_wc_opcode` has it.
    WrRequest {
        0 => "rdma_write", 1 => "rdma_write_imm", 2 => "send", 3 => "send_imm", 4 => "rdma_read",
        5 => "atomic_cmp_swp", 6 => "atomic_fetch_add", 7 => "local_inv", 8 => "bind_mw", 9 => "send_inv",
        10 => "tso", 11 => "rdma_read_inv", 12 => "masked_cmp_swp", 13 => "masked_fetch_add", 14 => "flush",
        15 => "atomic_write", 32 => "reg_mr", 33 => "reg_mr_integrity", 128 => "recv", 129 => "recv_rdma_imm",
    }
}

spelled! {
    /// `enum ib_wc_status`.
    WcStatus {
        0 => "success", 1 => "loc_len_err", 2 => "loc_qp_op_err", 3 => "loc_eec_op_err", 4 => "loc_prot_err",
        5 => "wr_flush_err", 6 => "mw_bind_err", 7 => "bad_resp_err", 8 => "loc_access_err",
        9 => "rem_inv_req_err", 10 => "rem_access_err", 11 => "rem_op_err", 12 => "retry_exc_err",
        13 => "rnr_retry_exc_err", 14 => "loc_rdd_viol_err", 15 => "rem_inv_rd_req_err", 16 => "rem_abort_err",
        17 => "inv_eecn_err", 18 => "inv_eec_state_err", 19 => "fatal_err", 20 => "resp_timeout_err",
        21 => "general_err", 22 => "tm_err", 23 => "other",
    }
}

/// Bytes of an `enum ib_mtu` value (1 = 256 ... 5 = 4096), `None` outside of it.
pub fn mtu_bytes(value: u8) -> Option<u16> {
    matches!(value, 1..=5).then(|| 128 << value)
}

/// A GID: 16 bytes, most significant first (`union ib_gid`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IPv4 address of a GID that maps one (`::ffff:a.b.c.d`): RoCE v2 and iWARP.
    pub fn ipv4(self) -> Option<std::net::Ipv4Addr> {
        std::net::Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    /// fe80::/64, which routers do not forward.
    pub fn is_link_local(self) -> bool {
        self.0.starts_with(&[0xfe, 0x80])
    }

    /// A GID that was set: an all-zero GID belongs to no port.
    pub fn known(bytes: [u8; 16]) -> Option<Self> {
        (bytes != [0; 16]).then_some(Self(bytes))
    }

    /// Its last four bytes: in a RoCE v2 GID, the IPv4 address.
    pub fn host(self) -> u32 {
        let [.., a, b, c, d] = self.0;
        u32::from_be_bytes([a, b, c, d])
    }
}

/// Eight groups of four digits, as in `/sys/class/infiniband/*/ports/*/gids` (`%pI6`).
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, group) in self.0.as_chunks::<2>().0.iter().enumerate() {
            if i > 0 {
                f.write_str(":")?;
            }
            for byte in group {
                write!(f, "{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl Serialize for Gid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_value_keeps_its_number() {
        assert_eq!(QpState(3).to_string(), "RTS");
        assert_eq!(QpState(9).to_string(), "?9");
        assert_eq!(serde_json::to_string(&QpType(2)).unwrap(), "\"RC\"");
    }

    #[test]
    fn the_numbers_of_states_match_their_names() {
        let states = [
            QpState::INIT,
            QpState::RTR,
            QpState::RTS,
            QpState::SQD,
            QpState::SQE,
            QpState::ERR,
        ];
        assert_eq!(
            states.map(|state| state.name().unwrap()),
            ["INIT", "RTR", "RTS", "SQD", "SQE", "ERR"]
        );
        let ports = [PortState::DOWN, PortState::INIT, PortState::ARMED];
        assert_eq!(
            ports.map(|state| state.name().unwrap()),
            ["DOWN", "INIT", "ARMED"]
        );
        let links = [PhysState::POLLING, PhysState::DISABLED, PhysState::LINK_UP];
        assert_eq!(
            links.map(|state| state.name().unwrap()),
            ["POLLING", "DISABLED", "LINK_UP"]
        );
    }

    #[test]
    fn a_port_is_active_while_it_hides_a_link_error() {
        let active: Vec<_> = PortState::ALL.iter().filter(|state| state.is_active()).collect();
        assert_eq!(active, [&PortState(4), &PortState(5)]);
    }

    #[test]
    fn only_a_mapped_address_is_an_ipv4_address() {
        let mut gid = [0; 16];
        (gid[10], gid[11], gid[12], gid[15]) = (0xff, 0xff, 10, 2);
        assert_eq!(Gid(gid).ipv4().unwrap().to_string(), "10.0.0.2");
        gid[0] = 0xfe;
        assert_eq!(Gid(gid).ipv4(), None);
    }

    #[test]
    fn path_mtu_is_in_bytes() {
        assert_eq!(mtu_bytes(1), Some(256));
        assert_eq!(mtu_bytes(5), Some(4096));
        assert_eq!(mtu_bytes(0), None);
        assert_eq!(mtu_bytes(6), None);
    }

    #[test]
    fn a_gid_is_spelled_as_in_sysfs() {
        let gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
        assert_eq!(gid.to_string(), "0000:0000:0000:0000:0000:ffff:0a00:0001");
        assert_eq!(gid.host(), 0x0a00_0001);
        assert_eq!(Gid::known([0; 16]), None);
    }
}
