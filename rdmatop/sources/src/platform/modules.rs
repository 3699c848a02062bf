//! Kernel modules of the RDMA stack.
use std::collections::HashSet;

use crate::root::Root;

/// The modules that matter for tracing and for advice, but [`NICS`].
#[rustfmt::skip] // names, as many as a line has room for
const STACK: [&str; 7] = [
    "ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm", "rdma_rxe", "siw", "nvidia_peermem",
];

/// The drivers of NICs: each of drivers/infiniband/hw that Linux 6.1 to 7.2 has, and i40iw of 5.10.
#[rustfmt::skip] // names, as many as a line has room for
pub const NICS: [&str; 19] = [
    "mlx5_ib", "mlx4_ib", "bnxt_re", "bng_re", "irdma", "i40iw", "efa", "erdma", "mana_ib", "hns_roce_hw_v2",
    "ionic_rdma", "iw_cxgb4", "qedr", "ocrdma", "hfi1", "ib_qib", "ib_mthca", "usnic_verbs", "vmw_pvrdma",
];

/// One module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleFacts {
    /// Name with underscores.
    pub name: String,
    /// Loaded and live, or built into the kernel as far as sysfs shows.
    pub loaded: bool,
    /// `Some(true)`: built outside the kernel tree (OFED), so that vmlinux's BTF does not describe its
    /// structures. `None`: not loaded, or built in.
    pub out_of_tree: Option<bool>,
    /// The kernel has BTF for the module.
    pub btf: bool,
}

impl ModuleFacts {
    /// The driver of a NIC, loaded as a module. One that is built in says nothing about the machine's
    /// hardware.
    pub fn is_loaded_for_hardware(&self) -> bool {
        self.loaded && self.out_of_tree.is_some() && NICS.contains(&self.name.as_str())
    }
}

pub(super) fn read(root: &Root) -> Vec<ModuleFacts> {
    const LIMIT: usize = 1 << 20;
    let raw = root.bytes(&root.proc("modules"), LIMIT).unwrap_or_default();
    let live: HashSet<&[u8]> = live_modules(&raw).collect();
    let one = |name: &str| {
        let dir = root.sys("module").join(name);
        let in_list = live.contains(name.as_bytes());
        // A module that is being loaded or unloaded has a directory too, but with `initstate`; built-in code
        // has none.
        let built_in = dir.is_dir() && !dir.join("initstate").exists() && !dir.join("taint").exists();
        let taint = root.bytes(&dir.join("taint"), 64);
        ModuleFacts {
            name: name.to_owned(),
            loaded: in_list || built_in,
            out_of_tree: taint.map(|flags| flags.contains(&b'O')),
            btf: root.sys("kernel/btf").join(name).exists(),
        }
    };
    STACK.into_iter().chain(NICS).map(one).collect()
}

/// Names of the live modules in /proc/modules: "name size users dependencies state address taints".
fn live_modules(raw: &[u8]) -> impl Iterator<Item = &[u8]> {
    raw.split(|b| *b == b'\n').filter_map(|line| {
        let mut fields = line.split(|b| *b == b' ');
        let name = fields.next()?;
        (fields.nth(3)? == b"Live").then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use proptest::prelude::*;

    fn get(fake: &Fake, name: &str) -> ModuleFacts {
        read(&fake.root())
            .into_iter()
            .find(|m| m.name == name)
            .expect("a known name")
    }

    #[test]
    fn only_live_modules_are_loaded() {
        let fake = Fake::new();
        fake.proc("modules", "rdma_rxe 1 0 - Unloading 0x0\nib_uverbs 1 2 rdma_ucm,mlx5_ib, Live 0x0\nib_core_x 1 0 - Live 0x0\n");
        fake.sys("module/rdma_rxe/initstate", "going\n")
            .sys("module/rdma_rxe/taint", "\n");
        assert!(!get(&fake, "rdma_rxe").loaded);
        assert!(get(&fake, "ib_uverbs").loaded);
        assert!(!get(&fake, "ib_core").loaded);
    }

    #[test]
    fn built_in_code_is_loaded_and_in_tree_is_not_claimed() {
        let fake = Fake::new();
        fake.sys("module/ib_core/parameters/recv_queue_size", "512\n");
        let core = get(&fake, "ib_core");
        assert_eq!((core.loaded, core.out_of_tree), (true, None));
    }

    #[test]
    fn the_out_of_tree_flag_is_read_from_the_taint() {
        let fake = Fake::new();
        for (flags, want) in [("OE\n", true), ("E\n", false), ("\n", false)] {
            fake.sys("module/mlx5_ib/taint", flags);
            assert_eq!(get(&fake, "mlx5_ib").out_of_tree, Some(want), "{flags:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(raw: Vec<u8>) {
            let _ = live_modules(&raw).count();
        }
    }
}
