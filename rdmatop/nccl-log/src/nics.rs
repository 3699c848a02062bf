//! The NICs and interfaces that a transport lists, and which of them have GPUDirect.

use super::{fact::Fact, process::GpuDirect};

/// A NIC of the list `NET/IB : Using`: a port, or several merged into one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hca {
    /// The NIC's number in `NET/IB/N`.
    pub index: u32,
    /// The NIC's ports.
    pub ports: Vec<Port>,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The name of the RDMA device.
    pub device: String,
    /// The number of the port on that device.
    pub port: u32,
    /// `IB` or `RoCE`; EFA has `UNSPECIFIED`.
    pub link: String,
}

impl Hca {
    /// `mlx5_0`, `mlx5_0+mlx5_1`.
    pub fn name(&self) -> String {
        let names: Vec<&str> = self.ports.iter().map(|port| port.device.as_str()).collect();
        names.join("+")
    }
}

/// Reads `NET/IB : Using ...` and other lines of a network's transport.
pub(super) fn read(text: &str) -> Option<Fact> {
    // 2.3 has a line for each interface that sockets can use, whatever is chosen then.
    if let Some(list) = text.strip_prefix("NET : Using interface ") {
        let (name, _) = list.split_once(':').filter(|(name, _)| is_name(name))?;
        let (network, names) = (String::new(), vec![name.to_owned()]);
        return Some(Fact::Interfaces { network, names });
    }
    let rest = text.strip_prefix("NET/")?;
    let (transport, what) = rest.split_once(':')?;
    let (transport, what) = (transport.trim(), what.trim());
    if let Some(rest) = what.strip_prefix("Made virtual device [") {
        let (index, rest) = rest.split_once(']')?;
        let name = rest.trim().strip_prefix("name=")?.split(' ').next()?;
        let index = index.parse().ok()?;
        return (is_name(name) && !name.is_empty()).then(|| Fact::Virtual(index, name.to_owned()));
    }
    let list = what.strip_prefix("Using ")?;
    // A list of the transport IB, or of a plugin that is made from it.
    let hcas = hcas(list.split(';').next()?);
    if !hcas.is_empty() {
        return Some(Fact::Hcas(hcas));
    }
    if transport == "IB" {
        return None;
    }
    let interfaces = interfaces(list);
    (!interfaces.is_empty()).then(|| Fact::Interfaces {
        network: transport.to_owned(),
        names: interfaces,
    })
}

/// Letters, digits, and the signs that names of devices have.
fn is_name(name: &str) -> bool {
    name.chars().all(|c| c.is_alphanumeric() || "_-.+".contains(c))
}

/// Reads `[0]mlx5_0:1/RoCE [1]mlx5_1:1/IB/SHARP [RO]`; in NCCL 2.20 to 2.23 also `[0]={[0] mlx5_2:1/RoCE, [1]
/// mlx5_3:1/RoCE}`.
fn hcas(list: &str) -> Vec<Hca> {
    let mut out: Vec<Hca> = Vec::new();
    let mut merged = false;
    for word in list.split(' ') {
        let (index, rest) = match word.strip_prefix('[').and_then(|word| word.split_once(']')) {
            Some((index, rest)) => (index.parse().ok(), rest),
            None => (None, word),
        };
        let rest = match rest.strip_prefix("={") {
            Some(rest) => {
                merged = true;
                out.extend(index.map(|index| Hca {
                    index,
                    ports: Vec::new(),
                }));
                // What follows is the port's number in the list of ports, not that of the NIC.
                rest.split_once(']').map_or(rest, |(_, rest)| rest)
            }
            None => rest,
        };
        if let Some(port) = port(rest.trim_end_matches([',', '}'])) {
            if !merged {
                out.extend(index.map(|index| Hca {
                    index,
                    ports: vec![port],
                }));
            } else if let Some(last) = out.last_mut() {
                last.ports.push(port);
            }
        }
        merged &= !rest.ends_with('}');
    }
    out.retain(|hca| !hca.ports.is_empty());
    out
}

/// Reads `mlx5_0:1/IB/SHARP`; since 2.30 also with rail and plane, `mlx5_0:1:0:0/IB`.
fn port(item: &str) -> Option<Port> {
    let (port, link) = item.split_once('/')?;
    let mut parts = port.split(':');
    let device = parts
        .next()
        .filter(|device| !device.is_empty() && is_name(device))?;
    let number = parts.next()?.parse().ok()?;
    let link = link.split('/').next()?;
    matches!(link, "IB" | "RoCE" | "UNSPECIFIED").then(|| Port {
        device: device.to_owned(),
        port: number,
        link: link.to_owned(),
    })
}

/// Reads `[0]eth0:192.0.2.1<0>`.
fn interfaces(list: &str) -> Vec<String> {
    let one = |item: &str| {
        let (index, rest) = item.strip_prefix('[')?.split_once(']')?;
        let (name, address) = rest.split_once(':')?;
        let fits = index.parse::<u32>().is_ok() && !name.is_empty() && is_name(name) && address.contains('<');
        fits.then(|| name.to_owned())
    };
    list.split_whitespace().filter_map(one).collect()
}

/// Reads `GPU Direct RDMA Enabled for HCA 0 'mlx5_0'`, of HPC-X's plugin (src/ib_plugin.c) `GPU Direct RDMA
/// (DMABUF) enabled for HCA 0 'mlx5_0`.
pub(super) fn gpu_direct(text: &str) -> Option<Fact> {
    let (_, rest) = text.split_once("GPU Direct RDMA ")?;
    let rest = match rest.strip_prefix('(').and_then(|rest| rest.split_once(") ")) {
        Some((_, rest)) => rest,
        None => rest,
    };
    let (on, rest) = match rest.split_once(' ')? {
        ("Enabled" | "enabled", rest) => (true, rest),
        ("Disabled", rest) => (false, rest),
        _ => return None,
    };
    // `for HCA 0 'mlx5_0' (no module)`; lines about a GPU: `for GPU 7000 / HCA 0 (distance 8 > 4), read 0`.
    let (_, hca) = rest.split_once("HCA ")?;
    let device = hca.split([' ', ',']).next()?.parse().ok()?;
    let name = hca
        .split('\'')
        .nth(1)
        .filter(|name| is_name(name))
        .map(str::to_owned);
    let why = hca
        .split_once('(')
        .and_then(|(_, why)| Some(why.split_once(')')?.0.to_owned()));
    let why = why.filter(|_| !on);
    Some(Fact::GpuDirect(device, GpuDirect { on, name, why }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str) -> Vec<(u32, String, String)> {
        let each = |hca: &Hca| (hca.index, hca.name(), hca.ports[0].link.clone());
        hcas(list).iter().map(each).collect()
    }

    #[test]
    fn lists_of_all_versions_and_plugins_are_read() {
        let wanted = |link: &str| {
            vec![
                (0, "mlx5_0".to_owned(), link.to_owned()),
                (1, "mlx5_1".to_owned(), link.to_owned()),
            ]
        };
        assert_eq!(names("[0]mlx5_0:1/IB [1]mlx5_1:1/IB "), wanted("IB"));
        assert_eq!(names("[0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]"), wanted("RoCE"));
        assert_eq!(
            names("[0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO]"),
            wanted("IB")
        );
        assert_eq!(names("[0]mlx5_0:1:0:1/IB [1]mlx5_1:1::1/IB [RO]"), wanted("IB"));
        assert_eq!(
            names("[0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE} [1]={[2] mlx5_0:1/RoCE} [2]mlx5_9:1/IB [RO]"),
            [
                (0, "mlx5_2+mlx5_3".to_owned(), "RoCE".to_owned()),
                (1, "mlx5_0".to_owned(), "RoCE".to_owned()),
                (2, "mlx5_9".to_owned(), "IB".to_owned()),
            ]
        );
        for torn in [
            "[RO]",
            "[0]mlx5_0:1/I",
            "[0]mlx5_0",
            "[x]mlx5_0:1/IB",
            "[0]:1/IB",
            "[0]={[0] mlx5",
            "={x",
        ] {
            assert!(names(torn).is_empty(), "{torn}");
        }
    }

    #[test]
    fn virtual_devices_and_interfaces_of_plugins_are_read() {
        let made = "NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=200000 ndevs=2";
        assert_eq!(read(made), Some(Fact::Virtual(2, "mlx5_0+mlx5_1".to_owned())));
        let plugin = "NET/FastSocket : Using [0]enp6s0f0:192.0.2.4<0> [1]enp7s0f0:192.0.2.5<0>";
        assert_eq!(
            read(plugin),
            Some(Fact::Interfaces {
                network: "FastSocket".to_owned(),
                names: vec!["enp6s0f0".to_owned(), "enp7s0f0".to_owned()]
            })
        );
        assert_eq!(read("NET/Socket: Using 2 threads and 8 sockets per thread"), None);
        assert_eq!(read("NET/IB : Using [RO]; OOB eth0:192.0.2.2<0>"), None);
    }
}
