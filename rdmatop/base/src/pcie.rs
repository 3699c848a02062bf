//! PCI Express in words: links, and how far functions are from each other in the terms of `nvidia-smi topo
//! -m`.

/// A link's generation and lanes, as `Gen5 x16`. The speed is that of a lane, in mega-transfers per second.
pub fn link_words(mega_transfers: u32, lanes: u32) -> String {
    let generation = match mega_transfers {
        2_500 => "Gen1",
        5_000 => "Gen2",
        8_000 => "Gen3",
        16_000 => "Gen4",
        32_000 => "Gen5",
        64_000 => "Gen6",
        _ => "PCIe",
    };
    format!("{generation} x{lanes}")
}

/// Where a PCI function is.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// From the host bridge (`pci0000:17`) through the root port to the function; empty where not known.
    pub path: &'a [String],
    /// NUMA node, where it is known.
    pub node: Option<u32>,
}

/// How far one function is from another, the nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// Behind the same switch: PIX, PXB.
    Switch,
    /// Both are on one host bridge: PHB.
    Bridge,
    /// On the same NUMA node, on a machine with one, or the node of one is not known: NODE.
    Node,
    /// They are on two NUMA nodes: SYS.
    System,
}

impl Distance {
    /// How far `a` is from `b`.
    pub fn between(a: Place<'_>, b: Place<'_>) -> Self {
        // A path begins with the host bridge; next is the root port.
        let same = |at: usize| a.path.get(at).is_some() && a.path.get(at) == b.path.get(at);
        if same(0) && same(1) {
            return Self::Switch;
        }
        if a.node.zip(b.node).is_some_and(|(a, b)| a != b) {
            return Self::System;
        }
        if same(0) { Self::Bridge } else { Self::Node }
    }

    /// Where the one is, seen from the other.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Switch => "behind the same PCIe switch",
            Self::Bridge => "on the same PCIe host bridge",
            Self::Node => "on the same NUMA node",
            Self::System => "on another NUMA node",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_and_the_node_say_how_far_two_functions_are() {
        let path = |parts: &str| parts.split('/').map(str::to_owned).collect::<Vec<_>>();
        let far = |a: &str, a_node: u32, b: &str, b_node: u32| {
            let (a, b) = (path(a), path(b));
            let place = |path, node| Place {
                path,
                node: Some(node),
            };
            Distance::between(place(&a, a_node), place(&b, b_node))
        };
        let gpu = "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0";
        assert_eq!(
            far(gpu, 0, "pci0000:10/0000:10:01.0/0000:13:00.0", 0),
            Distance::Switch
        );
        assert_eq!(
            far(gpu, 0, "pci0000:10/0000:10:02.0/0000:14:00.0", 0),
            Distance::Bridge
        );
        assert_eq!(
            far(gpu, 0, "pci0000:20/0000:20:01.0/0000:21:00.0", 0),
            Distance::Node
        );
        assert_eq!(
            far(gpu, 0, "pci0000:80/0000:80:01.0/0000:81:00.0", 1),
            Distance::System
        );
        // Two host bridges may have root ports with the same number.
        assert_eq!(far("pci0000:10/x", 0, "pci0000:80/x", 0), Distance::Node);
        let unknown = Place {
            path: &[],
            node: None,
        };
        assert_eq!(Distance::between(unknown, unknown), Distance::Node);
    }
}
