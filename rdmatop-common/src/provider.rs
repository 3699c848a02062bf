//! The providers whose work requests the programs count in the kernel: software devices, whose drivers do the
//! work of a NIC.

use crate::counters::slot_flag::provider;

/// What must be known of such a provider outside its own programs.
#[derive(Debug)]
pub struct Counted {
    /// The module of its driver.
    pub driver: &'static str,
    /// Its name for users.
    pub name: &'static str,
    /// First word of the names of the driver's functions.
    pub prefix: &'static str,
    /// What netlink names as protocol of its devices, which have no link to a driver.
    pub protocol: &'static str,
    /// Its devices name their network device in sysfs (`parent`).
    pub has_parent: bool,
    /// Stands for it in the flags of slots: one of `slot_flag::provider`.
    pub flag: u32,
    /// The offset by which the programs recognise its QPs. If it is not known, they count none.
    pub sign: &'static str,
    /// Programs also make records of its work requests (`--event wr`).
    pub has_records: bool,
}

/// SoftRoCE.
pub static RXE: Counted = Counted {
    driver: "rdma_rxe",
    name: "SoftRoCE",
    prefix: "rxe",
    protocol: "roce",
    has_parent: true,
    flag: provider::RXE,
    sign: "OFF_RXE_QP_IBQP",
    has_records: true,
};

/// Soft iWARP.
pub static SIW: Counted = Counted {
    driver: "siw",
    name: "soft iWARP",
    prefix: "siw",
    protocol: "iw",
    has_parent: false,
    flag: provider::SIW,
    sign: "OFF_SIW_QP_BASE",
    has_records: false,
};

/// How many they are.
pub const COUNT: usize = 2;
/// All of them.
pub static ALL: [&Counted; COUNT] = [&RXE, &SIW];

impl Counted {
    /// The provider with this driver.
    pub fn of_driver(driver: &str) -> Option<&'static Self> {
        ALL.into_iter().find(|counted| counted.driver == driver)
    }

    /// The provider of a software device: of those, no other driver has the same protocol.
    pub fn of_software(protocol: Option<&str>, has_parent: bool) -> Option<&'static Self> {
        let mut all = ALL.into_iter();
        all.find(|counted| Some(counted.protocol) == protocol && (has_parent || !counted.has_parent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a provider is recognised by is its own.
    #[test]
    fn no_two_providers_share_what_tells_them_apart() {
        for (at, one) in ALL.iter().enumerate() {
            assert_ne!(one.flag, provider::USER);
            for other in &ALL[at + 1..] {
                assert_ne!(one.driver, other.driver);
                assert_ne!(one.protocol, other.protocol);
                assert_ne!(one.sign, other.sign);
                assert_ne!(one.flag, other.flag);
            }
        }
    }
}
