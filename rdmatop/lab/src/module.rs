//! Is a kernel module there, loaded, loadable?
use std::path::{Path, PathBuf};
use std::{fs, process::Command};

use super::packages::advice;
use super::{LabError, cannot};

/// Where a module stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Presence {
    /// In the kernel now, loaded or built in.
    Loaded,
    /// The module is on disk and can be loaded.
    Loadable,
    /// This kernel does not have the module.
    Absent,
    /// There is no list of this kernel's modules: a container, or a kernel from elsewhere.
    Unknown,
}

/// `root` is `/`, or a made-up tree in tests; `kernel` is the release.
pub(super) fn presence(root: &Path, kernel: &str, module: &str) -> Presence {
    if root.join("sys/module").join(module).exists() {
        return Presence::Loaded;
    }
    let dir = root.join("lib/modules").join(kernel);
    let lists = |file: &str| -> Option<bool> {
        let text = fs::read_to_string(dir.join(file)).ok()?;
        Some(
            text.lines()
                .filter_map(stem)
                .any(|found| found.replace('-', "_") == module),
        )
    };
    match (lists("modules.builtin"), lists("modules.dep")) {
        (Some(true), _) => Presence::Loaded,
        (_, Some(true)) => Presence::Loadable,
        (_, Some(false)) => Presence::Absent,
        (_, None) => Presence::Unknown,
    }
}

/// The module a line of modules.dep (`path: dependencies`) or modules.builtin (`path`) is about. File names
/// may have `-` where the module's name has `_`.
fn stem(line: &str) -> Option<&str> {
    let path = line.split(':').next()?;
    path.rsplit('/').next()?.split_once(".ko").map(|(stem, _)| stem)
}

/// What to do about a kernel without a module.
pub(super) fn no_module(root: &Path, kernel: &str, module: &'static str) -> LabError {
    // os-release(5): /etc first, /usr/lib where that is missing.
    let files = ["etc/os-release", "usr/lib/os-release"].map(|file| -> PathBuf { root.join(file) });
    let text = files
        .iter()
        .find_map(|file| fs::read(file).ok())
        .unwrap_or_default();
    LabError::NoModule(module, kernel.into(), advice(&text, kernel, module))
}

/// Runs `modprobe`, and reports what it says on stderr.
pub(super) fn modprobe(module: &'static str, options: &[&str]) -> Result<(), LabError> {
    run("modprobe", module, options)
}

/// Runs `rmmod`: that module alone. `modprobe -r` would take along what it needs, which others loaded.
pub(super) fn rmmod(module: &'static str) -> Result<(), LabError> {
    run("rmmod", module, &[])
}

fn run(command: &'static str, module: &'static str, options: &[&str]) -> Result<(), LabError> {
    let failed = |reason: &dyn ToString| cannot(format!("run `{command} {module}`"), reason);
    let output = Command::new(command).arg(module).args(options).output();
    let output = output.map_err(|error| failed(&error))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = rdmatop_sources::netlink::name::Name::from(output.stderr.trim_ascii());
    Err(failed(&format!("{} ({})", stderr, output.status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn a_module_on_disk_is_loadable_whatever_its_compression() {
        for suffix in ["", ".xz", ".zst"] {
            let dep = format!("kernel/a/rdma_rxe.ko{suffix}: kernel/b/ib_core.ko{suffix}\n");
            let root = tree(&[("lib/modules/6.1/modules.dep", &dep)]);
            assert_eq!(presence(root.path(), "6.1", "rdma_rxe"), Presence::Loadable);
            assert_eq!(
                presence(root.path(), "6.1", "ib_core"),
                Presence::Absent,
                "a dependency is not an entry"
            );
            assert_eq!(presence(root.path(), "6.2", "rdma_rxe"), Presence::Unknown);
        }
    }

    #[test]
    fn a_loaded_or_built_in_module_needs_nothing() {
        let root = tree(&[
            ("sys/module/rdma_rxe/refcnt", "0"),
            ("lib/modules/6.1/modules.builtin", "kernel/x/dummy.ko\n"),
        ]);
        assert_eq!(presence(root.path(), "6.1", "rdma_rxe"), Presence::Loaded);
        assert_eq!(presence(root.path(), "6.1", "dummy"), Presence::Loaded);
    }

    #[test]
    fn a_cloud_kernel_without_the_module_is_told_what_to_install() {
        let root = tree(&[
            (
                "lib/modules/6.1.0-44-cloud-amd64/modules.dep",
                "kernel/a/ib_core.ko:\n",
            ),
            ("etc/os-release", "ID=debian\n"),
        ]);
        assert_eq!(
            presence(root.path(), "6.1.0-44-cloud-amd64", "rdma_rxe"),
            Presence::Absent
        );
        let error = no_module(root.path(), "6.1.0-44-cloud-amd64", "rdma_rxe").to_string();
        assert!(
            error.starts_with("kernel 6.1.0-44-cloud-amd64 has no module rdma_rxe: Debian's cloud kernel"),
            "{error}"
        );
        assert!(error.contains("linux-image-amd64"), "{error}");
    }
}
