//! Numbers of verb calls.
//!
//! A program calls a verb by `ioctl(RDMA_VERBS_IOCTL)` with an object and a method, by `write()` with a
//! command, or by an ioctl that wraps a write command (`UVERBS_METHOD_INVOKE_WRITE`). Current rdma-core sends
//! `modify_qp` and `reg_mr` only the third way, so one numbering covers all three: `object << 16 | method`
//! for the first, [`WRITE`] plus the command for the other two. Commands of the connection manager come by
//! `write()` to a file of its own: [`CM`] plus the command. The numbers are uAPI:
//! include/uapi/rdma/ib_user_verbs.h, ib_user_ioctl_cmds.h, rdma_user_cm.h.

/// Marks a write command.
pub const WRITE: u32 = 0x8000_0000;
/// Marks an extended write command (`IB_USER_VERBS_CMD_FLAG_EXTENDED`); or-ed with [`WRITE`].
pub const EXTENDED: u32 = 0x4000_0000;

/// Marks a command of rdma_cm (`enum` of `RDMA_USER_CM_CMD_*`).
pub const CM: u32 = 0x2000_0000;
/// Or-ed with the number of a bind whose address is of family `AF_IB`.
pub const AF_IB: u32 = 0x100;

/// The highest object id that exists: two name spaces (`UVERBS_ID_NS_SHIFT`) of 12 bits. The kernel refuses
/// higher ids, but a program may send them.
const LAST_OBJECT: u16 = 0x1fff;

/// Stands for all calls of one process whose method or command the kernel does not define. Otherwise a
/// program could fill the tables, because it may send any of 2^29 numbers.
pub const UNKNOWN: u32 = ioctl(u16::MAX, u16::MAX);

/// Whether a call fails by design: it makes no event, and is no fault.
///
/// libibverbs asks for the size of a reply with a buffer that is too small, once for each open device:
/// `query_device` then fails with ENOSPC (`has_ioctl_write`). librdmacm binds to an InfiniBand address, once
/// for each process: ENODEV where there is none (`ucma_set_af_ib_support`). A wait for an event ends without
/// one where the file does not block or a signal arrives; a program that polls would fill the ring buffer
/// with them. A library that reads a GID table entry by entry, as perftest and UCX do, gets ENODATA for each
/// empty one (`rdma_get_gid_attr`): a thousand of them on SoftRoCE.
pub const fn is_probe(verb: u32, errno: u32) -> bool {
    const EAGAIN: u32 = 11;
    const ENODEV: u32 = 19;
    const ENOSPC: u32 = 28;
    const ENODATA: u32 = 61;
    // include/linux/errno.h: a signal interrupted the call. The kernel restarts it or returns EINTR.
    const ERESTARTSYS: u32 = 512;
    match errno {
        ENOSPC => verb & !EXTENDED == QUERY_DEVICE,
        ENODEV => verb == CM_BIND | AF_IB,
        ENODATA => verb == QUERY_GID_ENTRY,
        EAGAIN | ERESTARTSYS => verb == CM_GET_EVENT,
        _ => false,
    }
}

/// The number of an ioctl method.
pub const fn ioctl(object: u16, method: u16) -> u32 {
    let object = if object < LAST_OBJECT { object } else { LAST_OBJECT };
    (object as u32) << 16 | method as u32
}

/// The number of an rdma_cm command.
pub const fn cm(command: u32) -> u32 {
    CM | if command < 0xff { command } else { 0xff }
}

/// `RDMA_USER_CM_CMD_GET_EVENT`, which waits.
pub const CM_GET_EVENT: u32 = cm(12);
/// `RDMA_USER_CM_CMD_BIND`.
pub const CM_BIND: u32 = cm(20);

/// The number of a write command.
pub const fn write(command: u32) -> u32 {
    WRITE | (command & 0xff)
}

/// `IB_USER_VERBS_CMD_POST_SEND`, which the libraries of software providers call to ring the doorbell.
pub const POST_SEND: u32 = write(28);
/// `IB_USER_VERBS_CMD_QUERY_DEVICE`.
pub const QUERY_DEVICE: u32 = write(1);
/// `UVERBS_METHOD_QUERY_GID_ENTRY`.
pub const QUERY_GID_ENTRY: u32 = ioctl(0, 6);
/// The two ways to register memory that a program names by its address: `IB_USER_VERBS_CMD_REG_MR` and
/// `UVERBS_METHOD_REG_MR`, which takes DMA-BUFs too.
pub const REG_MR: [u32; 2] = [write(9), ioctl(7, 5)];

/// No call but what a call leads to: a driver has a DMA-BUF, which is how the memory of a GPU is registered,
/// mapped for a process (`ib_umem_dmabuf_map_pages`). No call has this number.
pub const DMABUF: u32 = EXTENDED;

/// The verb's name as rdma-core spells it, `None` for a number this version does not know.
pub const fn name(verb: u32) -> Option<&'static str> {
    if verb == UNKNOWN {
        return Some("unknown_method");
    }
    if verb & WRITE == 0 && verb & CM != 0 {
        return cm_name(verb);
    }
    let name = if verb & WRITE != 0 {
        match (verb & EXTENDED != 0, verb & 0xff) {
            (true, 1) => "query_device_ex",
            (true, 18) => "create_cq_ex",
            (true, 24) => "create_qp_ex",
            (true, 26) => "modify_qp_ex",
            (true, 50) => "create_flow",
            (true, 51) => "destroy_flow",
            (true, 52) => "create_wq",
            (true, 53) => "modify_wq",
            (true, 54) => "destroy_wq",
            (true, 55) => "create_rwq_ind_table",
            (true, 56) => "destroy_rwq_ind_table",
            (true, 57) => "modify_cq",
            (false, 0) => "get_context",
            (false, 1) => "query_device",
            (false, 2) => "query_port",
            (false, 3) => "alloc_pd",
            (false, 4) => "dealloc_pd",
            (false, 5) => "create_ah",
            (false, 8) => "destroy_ah",
            (false, 9) => "reg_mr",
            (false, 11) => "rereg_mr",
            (false, 13) => "dereg_mr",
            (false, 14) => "alloc_mw",
            (false, 16) => "dealloc_mw",
            (false, 17) => "create_comp_channel",
            (false, 18) => "create_cq",
            (false, 19) => "resize_cq",
            (false, 20) => "destroy_cq",
            (false, 21) => "poll_cq",
            (false, 23) => "req_notify_cq",
            (false, 24) => "create_qp",
            (false, 25) => "query_qp",
            (false, 26) => "modify_qp",
            (false, 27) => "destroy_qp",
            (false, 28) => "post_send",
            (false, 29) => "post_recv",
            (false, 30) => "attach_mcast",
            (false, 31) => "detach_mcast",
            (false, 32) => "create_srq",
            (false, 33) => "modify_srq",
            (false, 34) => "query_srq",
            (false, 35) => "destroy_srq",
            (false, 36) => "post_srq_recv",
            (false, 37) => "open_xrcd",
            (false, 38) => "close_xrcd",
            (false, 39) => "create_xsrq",
            (false, 40) => "open_qp",
            _ => return None,
        }
    } else {
        match (verb >> 16, verb & 0xffff) {
            (0, 1) => "info_handles",
            (0, 2) => "query_port",
            (0, 3) => "get_context",
            (0, 4) => "query_context",
            (0, 5) => "query_gid_table",
            (0, 6) => "query_gid_entry",
            (1, 0) => "dealloc_pd",
            (2, 0) => "destroy_comp_channel",
            (3, 0) => "create_cq",
            (3, 1) => "destroy_cq",
            (4, 0) => "create_qp",
            (4, 1) => "destroy_qp",
            (5, 0) => "create_srq",
            (5, 1) => "destroy_srq",
            (6, 0) => "destroy_ah",
            (7, 0) => "dm_mr_reg",
            (7, 1) => "dereg_mr",
            (7, 2) => "advise_mr",
            (7, 3) => "query_mr",
            (7, 4) => "reg_dmabuf_mr",
            (7, 5) => "reg_mr",
            (8, 0) => "dealloc_mw",
            (9, 0) => "destroy_flow",
            (10, 0) => "close_xrcd",
            (11, 0) => "destroy_rwq_ind_table",
            (12, 0) => "create_wq",
            (12, 1) => "destroy_wq",
            (14, 0) => "alloc_dm",
            (14, 1) => "free_dm",
            (15, 0) => "create_counters",
            (15, 1) => "destroy_counters",
            (15, 2) => "read_counters",
            (16, 0) => "alloc_async_fd",
            _ => return None,
        }
    };
    Some(name)
}

/// The command's name as the kernel spells it, with `cm_` for `RDMA_USER_CM_CMD_`.
const fn cm_name(verb: u32) -> Option<&'static str> {
    #[rustfmt::skip] // names, as many as a line has room for
    const NAMES: [&str; 25] = [
        "cm_create_id", "cm_destroy_id", "cm_bind_ip", "cm_resolve_ip", "cm_resolve_route", "cm_query_route",
        "cm_connect", "cm_listen", "cm_accept", "cm_reject", "cm_disconnect", "cm_init_qp_attr",
        "cm_get_event", "cm_get_option", "cm_set_option", "cm_notify", "cm_join_ip_mcast", "cm_leave_mcast",
        "cm_migrate_id", "cm_query", "cm_bind", "cm_resolve_addr", "cm_join_mcast", "cm_resolve_ib_service",
        "cm_write_cm_event",
    ];
    if verb == CM_BIND | AF_IB {
        return Some("cm_bind_af_ib");
    }
    let command = (verb & !CM) as usize;
    if command < NAMES.len() {
        Some(NAMES[command])
    } else {
        None
    }
}

/// Whether [`name`] knows the verb. The kernel side calls this, so it uses no strings. Object 0 with method 0
/// counts as known: it stands for a wrapped command that could not be read.
pub const fn is_named(verb: u32) -> bool {
    /// One bit for each named command among the first 64.
    const fn commands(space: u32) -> u64 {
        let (mut bits, mut command) = (0, 0);
        while command < 64 {
            if name(space | command).is_some() {
                bits |= 1 << command;
            }
            command += 1;
        }
        bits
    }
    /// Three bits for each object: how many methods it has.
    const fn methods() -> u64 {
        let (mut bits, mut object) = (0, 0);
        while object < OBJECTS {
            let mut method = 8;
            while method > 0 && name(ioctl(object, method - 1)).is_none() {
                method -= 1;
            }
            bits |= (method as u64) << (3 * object);
            object += 1;
        }
        bits
    }
    const OBJECTS: u16 = 21;
    const WRITES: u64 = commands(WRITE);
    const EXTENDED_WRITES: u64 = commands(WRITE | EXTENDED);
    const CM_COMMANDS: u64 = commands(CM);
    const METHODS: u64 = methods();
    if verb == UNKNOWN || verb == CM_BIND | AF_IB {
        return true;
    }
    if verb & (WRITE | CM) != 0 {
        let commands = if verb & WRITE == 0 {
            CM_COMMANDS
        } else if verb & EXTENDED == 0 {
            WRITES
        } else {
            EXTENDED_WRITES
        };
        let command = verb & !(WRITE | EXTENDED | CM);
        return command < 64 && commands >> command & 1 != 0;
    }
    let (object, method) = (verb >> 16, verb & 0xffff);
    object < OBJECTS as u32 && (method as u64) < METHODS >> (3 * object) & 7
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_roads_to_reg_mr_have_one_name() {
        assert_eq!(name(write(9)), Some("reg_mr"));
        assert_eq!(name(ioctl(7, 5)), Some("reg_mr"));
        assert_eq!(name(POST_SEND), Some("post_send"));
        assert_eq!(name(ioctl(999, 1)), None);
    }

    #[test]
    fn the_three_number_spaces_do_not_meet() {
        assert_eq!(name(CM_GET_EVENT), Some("cm_get_event"));
        assert_eq!((name(cm(24)), name(cm(25))), (Some("cm_write_cm_event"), None));
        assert_eq!(cm(0x1_0000), cm(0xff));
        assert_eq!(name(CM_BIND | AF_IB), Some("cm_bind_af_ib"));
        for object in [0, 7, 0x1000, 0x1fff, 0x2000, 0x8001, u16::MAX] {
            assert_eq!(ioctl(object, 1) & (WRITE | EXTENDED | CM), 0, "{object:#x}");
        }
        assert_eq!(name(ioctl(0x8000, 0)), None);
        assert_eq!(name(DMABUF), None);
        assert_eq!(DMABUF & (WRITE | CM), 0);
        assert!(ioctl(u16::MAX, u16::MAX) < DMABUF);
    }

    #[test]
    fn what_has_a_name_is_what_the_kernel_side_takes_for_known() {
        let commands =
            (0..=0x1ff).flat_map(|command| [write(command), write(command) | EXTENDED, CM | command]);
        let methods = (0..=0x1100).flat_map(|object| (0..=0x110).map(move |method| ioctl(object, method)));
        let mut known = 0;
        for verb in commands.chain(methods).chain([UNKNOWN]) {
            let named = name(verb).is_some() || verb == ioctl(0, 0);
            assert_eq!(is_named(verb), named, "{verb:#x}");
            known += usize::from(named);
        }
        // The loop meets each write command twice. A process takes at most this many entries of the table of
        // verbs, and one for each method of a driver that it calls.
        assert!(known < 200, "{known}");
    }
}
