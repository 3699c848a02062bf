//! Numbers in the kernel's records, under the names that verbs use. An unknown number is kept (`Other`),
//! never guessed.
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
    fn every_number_comes_back_unchanged() {
        for number in 0..=u8::MAX {
            assert_eq!(QpType::from(number).number(), number);
            assert_eq!(QpState::from(number).number(), number);
            assert_eq!(PortState::from(number).number(), number);
            assert_eq!(PhysState::from(number).number(), number);
        }
    }

    #[test]
    fn an_unknown_number_says_so() {
        assert_eq!(QpType::from(7), QpType::Other(7));
        assert_eq!(QpType::from(7).to_string(), "?7");
        assert_eq!(QpType::from(2).to_string(), "RC");
    }
}
