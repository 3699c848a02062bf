//! Numbers the kernel puts into records, as the names of this field. A number this build does not know is
//! kept (`Other`), never guessed.
use std::fmt;

macro_rules! kernel_enum {
    ($(#[$doc:meta])* $name:ident($repr:ty) { $($(#[$vdoc:meta])* $variant:ident = $value:literal, $label:literal;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$vdoc])* #[doc = concat!("`", $label, "`")] $variant,)*
            /// A number unknown to this build.
            Other($repr),
        }

        impl $name {
            /// Every value this build knows.
            pub const KNOWN: &'static [Self] = &[$(Self::$variant,)*];

            /// The kernel's number.
            pub const fn number(self) -> $repr {
                match self {
                    $(Self::$variant => $value,)*
                    Self::Other(number) => number,
                }
            }
        }

        impl From<$repr> for $name {
            fn from(number: $repr) -> Self {
                match number {
                    $($value => Self::$variant,)*
                    other => Self::Other(other),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant => f.pad($label),)*
                    Self::Other(number) => f.pad(&format!("?{number}")),
                }
            }
        }
    };
}

kernel_enum! {
    /// `enum rdma_node_type` (include/uapi/rdma/rdma_netlink.h).
    NodeType(u8) {
        Ca = 1, "CA";
        Switch = 2, "switch";
        Router = 3, "router";
        Rnic = 4, "RNIC";
        Usnic = 5, "usNIC";
        UsnicUdp = 6, "usNIC UDP";
        Unspecified = 7, "unspecified";
    }
}

kernel_enum! {
    /// `enum ib_port_state` (include/rdma/ib_verbs.h).
    PortState(u8) {
        Nop = 0, "NOP";
        Down = 1, "DOWN";
        Init = 2, "INIT";
        Armed = 3, "ARMED";
        Active = 4, "ACTIVE";
        ActiveDefer = 5, "ACTIVE_DEFER";
    }
}

kernel_enum! {
    /// `enum ib_port_phys_state` (include/rdma/ib_verbs.h).
    PhysState(u8) {
        Sleep = 1, "SLEEP";
        Polling = 2, "POLLING";
        Disabled = 3, "DISABLED";
        Training = 4, "PORT_CONFIGURATION_TRAINING";
        LinkUp = 5, "LINK_UP";
        LinkErrorRecovery = 6, "LINK_ERROR_RECOVERY";
        PhyTest = 7, "PHY_TEST";
    }
}

kernel_enum! {
    /// `enum ib_qp_type` (include/rdma/ib_verbs.h).
    QpType(u8) {
        Smi = 0, "SMI";
        Gsi = 1, "GSI";
        Rc = 2, "RC";
        Uc = 3, "UC";
        Ud = 4, "UD";
        RawIpv6 = 5, "RAW_IPV6";
        RawEthertype = 6, "RAW_ETHERTYPE";
        RawPacket = 8, "RAW_PACKET";
        XrcIni = 9, "XRC_INI";
        XrcTgt = 10, "XRC_TGT";
        Driver = 255, "DRIVER";
    }
}

kernel_enum! {
    /// `enum ib_qp_state` (include/rdma/ib_verbs.h).
    QpState(u8) {
        Reset = 0, "RESET";
        Init = 1, "INIT";
        Rtr = 2, "RTR";
        Rts = 3, "RTS";
        Sqd = 4, "SQD";
        Sqe = 5, "SQE";
        Err = 6, "ERR";
    }
}

kernel_enum! {
    /// `enum ib_mig_state` (include/rdma/ib_verbs.h).
    MigState(u8) {
        Migrated = 0, "MIGRATED";
        Rearm = 1, "REARM";
        Armed = 2, "ARMED";
    }
}

kernel_enum! {
    /// `enum rdma_cm_state` (drivers/infiniband/core/cma_priv.h).
    CmState(u8) {
        Idle = 0, "IDLE";
        AddrQuery = 1, "ADDR_QUERY";
        AddrResolved = 2, "ADDR_RESOLVED";
        RouteQuery = 3, "ROUTE_QUERY";
        RouteResolved = 4, "ROUTE_RESOLVED";
        Connect = 5, "CONNECT";
        Disconnect = 6, "DISCONNECT";
        AddrBound = 7, "ADDR_BOUND";
        Listen = 8, "LISTEN";
        DeviceRemoval = 9, "DEVICE_REMOVAL";
        Destroying = 10, "DESTROYING";
        AddrinfoQuery = 11, "ADDRINFO_QUERY";
        AddrinfoResolved = 12, "ADDRINFO_RESOLVED";
    }
}

kernel_enum! {
    /// `enum rdma_ucm_port_space` (include/uapi/rdma/rdma_user_cm.h).
    PortSpace(u32) {
        Ipoib = 0x0002, "IPOIB";
        Ib = 0x013f, "IB";
        Tcp = 0x0106, "TCP";
        Udp = 0x0111, "UDP";
    }
}

kernel_enum! {
    /// `enum ib_poll_context` (include/rdma/ib_verbs.h): how a kernel CQ is polled.
    PollContext(u8) {
        Direct = 0, "DIRECT";
        Softirq = 1, "SOFTIRQ";
        Workqueue = 2, "WORKQUEUE";
        UnboundWorkqueue = 3, "UNBOUND_WORKQUEUE";
    }
}

kernel_enum! {
    /// `enum ib_srq_type` (include/rdma/ib_verbs.h).
    SrqType(u8) {
        Basic = 0, "BASIC";
        Xrc = 1, "XRC";
        Tm = 2, "TM";
    }
}

kernel_enum! {
    /// `enum rdma_nl_counter_mode` (include/uapi/rdma/rdma_netlink.h): how QPs get to a counter set.
    CounterMode(u32) {
        None = 0, "NONE";
        Auto = 1, "AUTO";
        Manual = 2, "MANUAL";
    }
}

kernel_enum! {
    /// Network-namespace mode of the RDMA subsystem (`ib_devices_shared_netns`,
    /// drivers/infiniband/core/device.c).
    NetnsMode(u8) {
        Exclusive = 0, "exclusive";
        Shared = 1, "shared";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_survives_the_way_there_and_back() {
        for number in 0..=u8::MAX {
            assert_eq!(QpType::from(number).number(), number);
            assert_eq!(QpState::from(number).number(), number);
            assert_eq!(PortState::from(number).number(), number);
            assert_eq!(PhysState::from(number).number(), number);
            assert_eq!(CmState::from(number).number(), number);
            assert_eq!(NodeType::from(number).number(), number);
        }
    }

    #[test]
    fn an_unknown_number_says_so() {
        assert_eq!(QpType::from(7), QpType::Other(7));
        assert_eq!(QpType::from(7).to_string(), "?7");
        assert_eq!(QpType::from(2).to_string(), "RC");
    }
}
