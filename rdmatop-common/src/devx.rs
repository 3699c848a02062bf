//! Objects that a program makes on mlx5 past ib_core (DEVX), a queue pair for one: how a call names them.
//!
//! The numbers are uAPI: include/uapi/rdma/{mlx5_user_ioctl_cmds,rdma_user_ioctl_cmds,ib_user_ioctl_verbs}.h.
//! A command's opcode is its first 16 bits, in network order (`struct mlx5_ifc_general_obj_in_cmd_hdr_bits`,
//! include/linux/mlx5/mlx5_ifc.h). All are the same in Linux 6.1, 6.12 and 7.2.

use crate::{event::UNKNOWN_U32, verb};

/// Where the numbers of a driver begin (`UVERBS_ID_NS_SHIFT`).
const OWN: u16 = 1 << 12;

/// `MLX5_IB_METHOD_DEVX_OBJ_CREATE` of `MLX5_IB_OBJECT_DEVX_OBJ`.
pub const CREATE: u32 = verb::ioctl(OWN + 1, OWN);
/// `MLX5_IB_METHOD_DEVX_OBJ_DESTROY` of `MLX5_IB_OBJECT_DEVX_OBJ`.
pub const DESTROY: u32 = verb::ioctl(OWN + 1, OWN + 1);
/// `MLX5_IB_METHOD_DEVX_OBJ_MODIFY` of `MLX5_IB_OBJECT_DEVX_OBJ`. It changes queue pairs of ib_core, too,
/// past ib_core. Its return code does not say whether the device did it: the driver fails the call if it
/// cannot copy the device's answer to the program.
pub const MODIFY: u32 = verb::ioctl(OWN + 1, OWN + 2);
/// `RDMA_DRIVER_MLX5`, `enum rdma_driver_id`. Other drivers have methods with the same numbers.
pub const DRIVER: u32 = 1;

/// `MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE` and `MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE`.
pub const HANDLE: u16 = OWN;
/// `MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN`.
pub const CMD_IN: u16 = OWN + 1;

/// The head of a `struct ib_uverbs_attr` as a word: the attribute's id, and the length of its data.
pub const fn attribute(head: u64) -> (u16, u16) {
    let [id, id_high, len, len_high, ..] = head.to_le_bytes();
    (
        u16::from_le_bytes([id, id_high]),
        u16::from_le_bytes([len, len_high]),
    )
}

/// Whether data of this length stand in the attribute itself, in place of their address.
pub const fn is_inline(len: u16) -> bool {
    len as usize <= size_of::<u64>()
}

/// The opcode in the first two bytes of a command. No command has opcode 0: a program has used the memory for
/// the answer, too.
pub const fn opcode(first: u16) -> u32 {
    match u16::from_be(first) {
        0 => UNKNOWN_U32,
        opcode => opcode as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a `struct ib_uverbs_attr`, as words of this machine.
    fn words(bytes: [u8; 16]) -> [u64; 2] {
        let (head, data) = bytes.split_at(8);
        [head, data].map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
    }

    #[test]
    fn an_attribute_is_read_as_the_kernel_s_header_lays_it_out() {
        // __u16 attr_id, len, flags (UVERBS_ATTR_F_MANDATORY), attr_data; __aligned_u64 data.
        let [head, data] = words([
            0x01, 0x10, 0x10, 0x01, 1, 0, 0, 0, 0x00, 0x40, 0xc0, 0xff, 0xff, 0x7f, 0, 0,
        ]);
        assert_eq!(attribute(head), (CMD_IN, 0x110));
        assert!(!is_inline(0x110) && is_inline(8) && !is_inline(9));
        assert_eq!(data, 0x7fff_ffc0_4000);
        let [head, handle] = words([0x00, 0x10, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((attribute(head), handle), ((HANDLE, 0), 7));
        assert_eq!(CREATE, 0x1001_1000);
        assert_eq!(DESTROY, 0x1001_1001);
        assert_eq!(MODIFY, 0x1001_1002);
    }

    #[test]
    fn an_opcode_is_the_first_16_bits_in_network_order() {
        // struct mlx5_ifc_create_qp_in_bits: opcode[0x10], uid[0x10], reserved, op_mod[0x10].
        let create_qp = [0x05, 0x00, 0x00, 0x21, 0, 0, 0, 0];
        let first = |bytes: [u8; 8]| opcode(u16::from_ne_bytes([bytes[0], bytes[1]]));
        assert_eq!(first(create_qp), 0x500);
        // The same command inline: the kernel side has it as one word, and takes its first half-word.
        let (inline, _) = attribute(u64::from_le_bytes(create_qp));
        assert_eq!(opcode(inline), 0x500);
        assert_eq!(first([0x07, 0x10, 0, 0, 0, 0, 0, 0]), 0x710);
        assert_eq!(first([0; 8]), UNKNOWN_U32);
    }
}
