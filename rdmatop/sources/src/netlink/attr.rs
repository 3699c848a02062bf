//! Numbers of the RDMA netlink ABI. Origin of every constant: include/uapi/rdma/rdma_netlink.h
//! (`RDMA_NL_*`, `enum rdma_nldev_command`, `enum rdma_nldev_attr`) and include/uapi/linux/netlink.h
//! (`NLM_F_*`, `NLMSG_*`, `NLMSGERR_ATTR_*`). The order is ABI: numbers never move, new ones are appended.

/// `RDMA_NL_NLDEV`: the client that answers for devices. The message type is `client << 10 | command`.
pub const CLIENT_NLDEV: u16 = 5;

/// The `nlmsg_type` of a nldev command (`RDMA_NL_GET_TYPE`).
pub const fn message_type(command: u16) -> u16 {
    (CLIENT_NLDEV << 10) + command
}

/// Commands of `enum rdma_nldev_command`.
pub mod cmd {
    /// `RDMA_NLDEV_CMD_GET`: device records, can dump.
    pub const GET: u16 = 1;
    /// `RDMA_NLDEV_CMD_NEWLINK`: make a software device; needs `CAP_NET_ADMIN`.
    pub const NEWLINK: u16 = 3;
    /// `RDMA_NLDEV_CMD_DELLINK`: remove a software device; needs `CAP_NET_ADMIN`.
    pub const DELLINK: u16 = 4;
    /// `RDMA_NLDEV_CMD_PORT_GET`: port records, can dump.
    pub const PORT_GET: u16 = 5;
    /// `RDMA_NLDEV_CMD_SYS_GET`: settings of the whole subsystem.
    pub const SYS_GET: u16 = 6;
    /// `RDMA_NLDEV_CMD_RES_GET`: counts of resources per device, can dump.
    pub const RES_GET: u16 = 9;
    /// `RDMA_NLDEV_CMD_RES_QP_GET`: queue pairs, can dump.
    pub const RES_QP_GET: u16 = 10;
    /// `RDMA_NLDEV_CMD_RES_CM_ID_GET`: connection-manager ids, can dump.
    pub const RES_CM_ID_GET: u16 = 11;
    /// `RDMA_NLDEV_CMD_RES_MR_GET`: memory regions, can dump.
    pub const RES_MR_GET: u16 = 13;
    /// `RDMA_NLDEV_CMD_RES_PD_GET`: protection domains, can dump.
    pub const RES_PD_GET: u16 = 14;
    /// `RDMA_NLDEV_CMD_STAT_SET`: how QPs of a port are bound to counters, and which optional counters count;
    /// needs `CAP_NET_ADMIN`.
    pub const STAT_SET: u16 = 16;
    /// `RDMA_NLDEV_CMD_STAT_GET`: hardware counters of a port; as a dump, counters that QPs are bound to.
    pub const STAT_GET: u16 = 17;
    /// `RDMA_NLDEV_CMD_STAT_DEL`: unbind a QP from its counter; needs `CAP_NET_ADMIN`.
    pub const STAT_DEL: u16 = 18;
    /// `RDMA_NLDEV_CMD_RES_QP_GET_RAW`: what the driver's firmware has of a queue pair; needs `CAP_NET_ADMIN`
    /// (Linux 5.9).
    pub const RES_QP_GET_RAW: u16 = 19;
    /// `RDMA_NLDEV_CMD_RES_CTX_GET`: user contexts, can dump.
    pub const RES_CTX_GET: u16 = 22;
    /// `RDMA_NLDEV_CMD_STAT_GET_STATUS`: which counters a port has, and which of the optional ones count
    /// (Linux 5.16).
    pub const STAT_GET_STATUS: u16 = 24;
}

macro_rules! attributes {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        $($(#[$doc])* pub const $name: u16 = $value;)*
        /// The kernel's name of an attribute without its `RDMA_NLDEV_` prefix, for messages.
        pub const fn attribute_name(number: u16) -> &'static str {
            match number {
                $($value => stringify!($name),)*
                _ => "unknown",
            }
        }
    };
}

attributes! {
    /// `u32`: index of the device; a re-added device gets a new one.
    DEV_INDEX = 1;
    /// String: name of the device, any byte but NUL.
    DEV_NAME = 2;
    /// `u32`: in a device record the number of ports, else the port, from 1.
    PORT_INDEX = 3;
    /// String: firmware version.
    FW_VERSION = 5;
    /// `u64`, host byte order: node GUID.
    NODE_GUID = 6;
    /// `u8`: `enum ib_port_state`.
    PORT_STATE = 12;
    /// `u8`: `enum ib_port_phys_state`.
    PORT_PHYS_STATE = 13;
    /// Nest: table of resource counts.
    RES_SUMMARY = 15;
    /// Nest: one resource count.
    RES_SUMMARY_ENTRY = 16;
    /// String: what is counted: `pd`, `cq`, `qp`, `cm_id`, `mr`, `ctx`, `srq`, and any later kind.
    RES_SUMMARY_ENTRY_NAME = 17;
    /// `u64`: how many there are.
    RES_SUMMARY_ENTRY_CURR = 18;
    /// Nest: table of QPs.
    RES_QP = 19;
    /// Nest: one QP.
    RES_QP_ENTRY = 20;
    /// `u32`: local QP number.
    RES_LQPN = 21;
    /// `u32`: remote QP number, RC and UC only.
    RES_RQPN = 22;
    /// `u32`: receive PSN, RC and UC only.
    RES_RQ_PSN = 23;
    /// `u32`: send PSN.
    RES_SQ_PSN = 24;
    /// `u8`: `enum ib_qp_type`.
    RES_TYPE = 26;
    /// `u8`: `enum ib_qp_state`.
    RES_STATE = 27;
    /// `u32`: process that created the object, in the reader's PID namespace.
    RES_PID = 28;
    /// String: kernel module that created the object.
    RES_KERN_NAME = 29;
    /// Nest: table of CM_IDs.
    RES_CM_ID = 30;
    /// Nest: one CM_ID.
    RES_CM_ID_ENTRY = 31;
    /// Nest: table of MRs.
    RES_MR = 40;
    /// Nest: one MR.
    RES_MR_ENTRY = 41;
    /// `u64`: bytes of an MR.
    RES_MRLEN = 45;
    /// Nest: table of PDs.
    RES_PD = 46;
    /// Nest: one PD.
    RES_PD_ENTRY = 47;
    /// `u32`: netdev of a port.
    NDEV_INDEX = 50;
    /// String: netdev of a port.
    NDEV_NAME = 51;
    /// `u32`: id of a PD.
    RES_PDN = 60;
    /// `u32`: id of an MR.
    RES_MRN = 62;
    /// `u32`: id of a CM_ID.
    RES_CM_IDN = 63;
    /// `u32`: id of a user context.
    RES_CTXN = 64;
    /// String: kind of software device for NEWLINK: `rxe`, `siw`.
    LINK_TYPE = 65;
    /// `u8`: network-namespace mode of the subsystem, 1 shared, 0 exclusive.
    SYS_NETNS_MODE = 66;
    /// String: protocol of a device: `ib`, `roce`, `iw`, `opa`, `usnic`.
    DEV_PROTOCOL = 67;
    /// `u32`: how QPs are bound to counters, `enum rdma_nl_counter_mode`.
    STAT_MODE = 74;
    /// `u32`: the objects that counters belong to: the number of [`RES_QP`].
    STAT_RES = 75;
    /// `u32`: by what the kernel puts QPs together, `enum rdma_nl_counter_mask`.
    STAT_AUTO_MODE_MASK = 76;
    /// Nest: table of counters that QPs are bound to.
    STAT_COUNTER = 77;
    /// Nest: one such counter.
    STAT_COUNTER_ENTRY = 78;
    /// `u32`: number of such a counter.
    STAT_COUNTER_ID = 79;
    /// Nest: table of hardware counters.
    STAT_HWCOUNTERS = 80;
    /// Nest: one hardware counter.
    STAT_HWCOUNTER_ENTRY = 81;
    /// String: the driver's name of a counter.
    STAT_HWCOUNTER_ENTRY_NAME = 82;
    /// `u64`: value of a counter.
    STAT_HWCOUNTER_ENTRY_VALUE = 83;
    /// Bytes in a format of the driver's own.
    RES_RAW = 85;
    /// Nest: table of user contexts.
    RES_CTX = 86;
    /// Nest: one user context.
    RES_CTX_ENTRY = 87;
    /// `u32`: place of a counter in the driver's table.
    STAT_HWCOUNTER_INDEX = 94;
    /// `u8`: whether an optional counter counts; the kernel sends it for no other counter.
    STAT_HWCOUNTER_DYNAMIC = 95;
    /// `u8`: 1 asks for queue pairs of a driver's own types too: SRD of EFA, DCI of mlx5. From Linux 6.10 on
    /// they are left out else (`RESTRACK_DD`), and always from the counts of all devices in one dump.
    DRIVER_DETAILS = 97;
    /// `u8`: QPs are bound to the optional counters too (Linux 6.15).
    STAT_OPCOUNTER_ENABLED = 104;
}
