//! Addresses as the rdma_cma tracepoints carry them: the first 28 bytes of a `struct sockaddr`.

use std::net::{SocketAddr, SocketAddrV6};

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// The address, `None` for AF_IB (27), for none (0) and for what this version does not know.
///
/// Layouts: include/uapi/linux/in.h, in6.h. The family is in host order, the port in network order.
pub(super) fn socket(raw: &[u8; 28]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes([raw[2], raw[3]]);
    match u16::from_ne_bytes([raw[0], raw[1]]) {
        AF_INET => Some(([raw[4], raw[5], raw[6], raw[7]], port).into()),
        AF_INET6 => {
            let address: [u8; 16] = raw[8..24].try_into().ok()?;
            let scope = u32::from_ne_bytes([raw[24], raw[25], raw[26], raw[27]]);
            Some(SocketAddrV6::new(address.into(), port, 0, scope).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(family: u16, rest: &[u8]) -> [u8; 28] {
        let mut bytes = [0; 28];
        bytes[..2].copy_from_slice(&family.to_ne_bytes());
        bytes[2..2 + rest.len()].copy_from_slice(rest);
        bytes
    }

    #[test]
    fn both_ip_families_are_read_and_ib_addresses_are_unknown() {
        let v4 = raw(AF_INET, &[0x11, 0x5c, 10, 77, 0, 1]);
        assert_eq!(socket(&v4).unwrap().to_string(), "10.77.0.1:4444");
        let mut v6 = raw(AF_INET6, &[0x11, 0x5c]);
        v6[8] = 0xfe;
        v6[9] = 0x80;
        v6[23] = 1;
        v6[24..].copy_from_slice(&3u32.to_ne_bytes());
        assert_eq!(socket(&v6).unwrap().to_string(), "[fe80::1%3]:4444");
        assert_eq!(socket(&raw(27, &[1, 2, 3])), None);
        assert_eq!(socket(&[0; 28]), None);
    }
}
