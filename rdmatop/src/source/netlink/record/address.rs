//! Addresses of connection-manager ids.
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use crate::source::netlink::wire::{Attr, WireError, WireResult};

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const AF_IB: u16 = 27;

/// An address of a CM_ID: `struct __kernel_sockaddr_storage` by its family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CmAddr {
    /// `AF_INET`, `AF_INET6`. Unspecified addresses and port 0 are real: a listener has them.
    Ip(SocketAddr),
    /// `AF_IB` (`struct sockaddr_ib`, include/rdma/ib.h).
    Ib {
        /// GID.
        gid: Ipv6Addr,
        /// Service id.
        service_id: u64,
    },
    /// A family this build does not know.
    Other {
        /// `sa_family`.
        family: u16,
    },
}

impl CmAddr {
    /// Reads a socket address; network byte order inside but for family and scope.
    pub fn decode(attr: &Attr<'_>) -> WireResult<Self> {
        let bytes = attr.payload;
        let short = |need| WireError::AttrSize {
            number: attr.number,
            need,
            have: bytes.len(),
        };
        let family = u16::from_ne_bytes(field(bytes, 0).ok_or(short(2))?);
        let ip_port = || field(bytes, 2).map(u16::from_be_bytes);
        Ok(match family {
            AF_INET => {
                let address: [u8; 4] = field(bytes, 4).ok_or(short(8))?;
                let port = ip_port().ok_or(short(8))?;
                Self::Ip(SocketAddrV4::new(Ipv4Addr::from(address), port).into())
            }
            AF_INET6 => {
                let scope = u32::from_ne_bytes(field(bytes, 24).ok_or(short(28))?);
                let address: [u8; 16] = field(bytes, 8).ok_or(short(28))?;
                let port = ip_port().ok_or(short(28))?;
                Self::Ip(SocketAddrV6::new(Ipv6Addr::from(address), port, 0, scope).into())
            }
            AF_IB => Self::Ib {
                gid: Ipv6Addr::from(field::<16>(bytes, 8).ok_or(short(32))?),
                service_id: u64::from_be_bytes(field(bytes, 24).ok_or(short(32))?),
            },
            family => Self::Other { family },
        })
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

impl fmt::Display for CmAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => write!(f, "{address}"),
            Self::Ib { gid, service_id } => write!(f, "[{gid}]:{service_id:#x}"),
            Self::Other { family } => write!(f, "address family {family}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(payload: &[u8]) -> WireResult<CmAddr> {
        CmAddr::decode(&Attr { number: 33, payload })
    }

    #[test]
    fn an_ipv4_socket_address_is_read_in_network_order() {
        let mut bytes = [0; 128];
        bytes[..2].copy_from_slice(&AF_INET.to_ne_bytes());
        bytes[2..8].copy_from_slice(&[0x1c, 0x23, 10, 77, 0, 1]);
        assert_eq!(decode(&bytes).unwrap().to_string(), "10.77.0.1:7203");
    }

    #[test]
    fn an_ipv6_socket_address_keeps_its_scope() {
        let mut bytes = [0; 128];
        bytes[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
        bytes[2..4].copy_from_slice(&80_u16.to_be_bytes());
        bytes[8..10].copy_from_slice(&[0xfe, 0x80]);
        bytes[24..28].copy_from_slice(&3_u32.to_ne_bytes());
        assert_eq!(decode(&bytes).unwrap().to_string(), "[fe80::%3]:80");
    }

    #[test]
    fn an_address_cut_short_is_an_error_at_every_length() {
        for (family, need) in [(AF_INET, 8), (AF_INET6, 28), (AF_IB, 32)] {
            let mut bytes = [0; 32];
            bytes[..2].copy_from_slice(&family.to_ne_bytes());
            for length in 0..need {
                assert!(
                    decode(&bytes[..length]).is_err(),
                    "family {family}, {length} bytes"
                );
            }
            assert!(decode(&bytes[..need]).is_ok());
        }
    }

    #[test]
    fn an_unknown_family_is_named_not_guessed() {
        assert_eq!(
            decode(&[99, 0]).unwrap(),
            CmAddr::Other {
                family: u16::from_ne_bytes([99, 0])
            }
        );
    }
}
