//! The guest's initramfs: busybox, the init script, and the modules needed to mount the 9p shares.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::cpio::Archive;
use super::kernel::Kernel;
use crate::paths;

const INIT: &str = include_str!("init.sh");

/// The modules that the guest needs before it can mount the host's root.
const MODULES: [&str; 5] = ["virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"];

// The kernel starts modprobe in the initramfs; this script runs the modprobe of the guest's root instead.
const MODPROBE: &str = "#!/bin/busybox sh\nexec /bin/busybox chroot /new /sbin/modprobe \"$@\"\n";

/// Returns the initramfs of `kernel`, built if it is not in the cache. `root` is the guest's root directory
/// if that is not this machine's.
pub(crate) fn ensure(kernel: &Kernel, root: Option<&Path>) -> Result<PathBuf> {
    let busybox = match root {
        Some(root) => root.join("usr/bin/busybox"),
        None => paths::find_tool(&["busybox"]).unwrap_or_else(|| "/bin/busybox".into()),
    };
    let busybox_bytes = fs::read(&busybox)
        .with_context(|| format!("no {}: `apt-get install busybox-static`", busybox.display()))?;
    ensure!(
        !needs_libc(&busybox_bytes),
        "{} is dynamically linked and cannot boot alone: `apt-get install busybox-static`",
        busybox.display()
    );
    let mut hasher = DefaultHasher::new();
    (INIT, MODPROBE, MODULES, busybox_bytes.len(), &kernel.release).hash(&mut hasher);
    let path = kernel
        .dir
        .join(format!("initramfs-{:016x}.cpio", hasher.finish()));
    if path.exists() {
        return Ok(path);
    }
    let tree = kernel.modules();
    let read = |name: &str| {
        fs::read_to_string(tree.join(name))
            .with_context(|| format!("cannot read {name} of {}", kernel.release))
    };
    let order = load_order(&MODULES, &read("modules.dep")?, &read("modules.builtin")?)?;
    let mut archive = Archive::default();
    for dir in ["bin", "sbin", "dev", "modules"] {
        archive.dir(dir);
    }
    archive.char_device("dev/console", 5, 1);
    archive.char_device("dev/null", 1, 3);
    archive.file("bin/busybox", 0o755, &busybox_bytes);
    archive.file("init", 0o755, INIT.as_bytes());
    archive.file("sbin/modprobe", 0o755, MODPROBE.as_bytes());
    let mut list = String::new();
    for module in &order {
        let name = plain_name(module);
        archive.file(
            &format!("modules/{name}"),
            0o644,
            &decompressed(&tree.join(module))?,
        );
        list.push_str(&name);
        list.push('\n');
    }
    archive.file("modules.list", 0o644, list.as_bytes());
    // Another process may build the same: each writes its own file, and the last rename wins.
    let new = kernel.dir.join(format!("initramfs.{}", std::process::id()));
    fs::write(&new, archive.finish()).with_context(|| format!("cannot write {}", new.display()))?;
    fs::rename(&new, &path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Whether an ELF file names a dynamic loader.
fn needs_libc(elf: &[u8]) -> bool {
    elf[..elf.len().min(4096)]
        .windows(7)
        .any(|window| window == b"/ld-lin" || window == b"ld-linu")
}

/// Returns `9pnet.ko` for `kernel/net/9p/9pnet.ko.xz`.
fn plain_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split_once(".ko")
        .map_or_else(|| file.to_owned(), |(stem, _)| format!("{stem}.ko"))
}

fn is_module(path: &str, name: &str) -> bool {
    let stem = plain_name(path);
    stem.strip_suffix(".ko")
        .is_some_and(|stem| stem.replace('-', "_") == name.replace('-', "_"))
}

/// Returns the files to load for `wanted`, each after its dependencies, from depmod's `modules.dep`.
fn load_order(wanted: &[&str], dep: &str, builtin: &str) -> Result<Vec<String>> {
    let mut order: Vec<String> = Vec::new();
    for name in wanted {
        let line = dep
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(path, _)| is_module(path, name));
        let Some((path, needs)) = line else {
            if builtin.lines().any(|path| is_module(path, name)) {
                continue;
            }
            bail!("this kernel has no module {name}");
        };
        // depmod lists the nearest dependency first, but the farthest must be loaded first.
        for file in needs.split_whitespace().rev().chain([path]) {
            if !order.iter().any(|loaded| loaded == file) {
                order.push(file.to_owned());
            }
        }
    }
    Ok(order)
}

/// Returns the content of a kernel module, uncompressed.
pub(crate) fn decompressed(path: &Path) -> Result<Vec<u8>> {
    let program = match path.extension().and_then(|ext| ext.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return fs::read(path).with_context(|| format!("cannot read {}", path.display())),
    };
    let output = Command::new(program)
        .arg("-dc")
        .arg(path)
        .output()
        .with_context(|| format!("cannot start {program}, which unpacks kernel modules"))?;
    ensure!(
        output.status.success(),
        "{program} cannot unpack {}",
        path.display()
    );
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "\
kernel/net/9p/9pnet.ko.xz:
kernel/net/9p/9pnet_virtio.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/drivers/virtio/virtio_ring.ko.xz kernel/drivers/virtio/virtio.ko.xz
kernel/fs/9p/9p.ko.xz: kernel/fs/netfs/netfs.ko.xz kernel/net/9p/9pnet.ko.xz
kernel/fs/overlayfs/overlay.ko.xz:
";

    #[test]
    fn dependencies_are_loaded_first_and_once() {
        let order = load_order(&["9pnet_virtio", "9p"], DEP, "").unwrap();
        let names: Vec<String> = order.iter().map(|path| plain_name(path)).collect();
        assert_eq!(
            names,
            [
                "virtio.ko",
                "virtio_ring.ko",
                "9pnet.ko",
                "9pnet_virtio.ko",
                "netfs.ko",
                "9p.ko"
            ]
        );
    }

    #[test]
    fn a_builtin_module_is_skipped_and_an_absent_one_is_an_error() {
        let order = load_order(
            &["virtio_pci", "overlay"],
            DEP,
            "kernel/drivers/virtio/virtio-pci.ko\n",
        )
        .unwrap();
        assert_eq!(order, ["kernel/fs/overlayfs/overlay.ko.xz"]);
        assert!(
            load_order(&["rdma_rxe"], DEP, "")
                .unwrap_err()
                .to_string()
                .contains("rdma_rxe")
        );
    }

    #[test]
    fn a_dynamic_busybox_is_recognised() {
        assert!(needs_libc(b"\x7fELF....../lib64/ld-linux-x86-64.so.2..."));
        assert!(!needs_libc(b"\x7fELF......static"));
    }
}
