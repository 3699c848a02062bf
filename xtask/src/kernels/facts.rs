//! Turns a kernel's package into a directory of facts: what rdmatop's plan reads of a machine.
//!
//! The kernel's own BTF is in its image; the BTF and the function names of a module are in the module's file.
//! Functions of the kernel itself and of modules outside drivers/infiniband are left out, because rdmatop
//! hooks none of them. A function whose name also occurs in such a module is therefore not recognised as
//! ambiguous.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};

use crate::lab::{archive, image, initramfs};

/// Writes into `facts` what the package below `root` tells about the kernel `release`.
pub(super) fn write(root: &Path, release: &str, facts: &Path) -> Result<()> {
    let first_of = archive::first_of(root);
    let put = |place: &str, content: &[u8]| {
        let path = facts.join(place);
        let parent = path.parent().context("a file without a directory")?;
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
    };
    put("proc/sys/kernel/osrelease", format!("{release}\n").as_bytes())?;
    let config = first_of([
        format!("boot/config-{release}"),
        format!("usr/lib/modules/{release}/config"),
    ])?;
    let config = fs::read_to_string(&config).with_context(|| format!("cannot read {}", config.display()))?;
    let (version, mode) = preemption(&config);
    put("proc/sys/kernel/version", version.as_bytes())?;
    put("sys/kernel/debug/sched/preempt", mode.as_bytes())?;
    let image = first_of([
        format!("boot/vmlinuz-{release}"),
        format!("usr/lib/modules/{release}/vmlinuz"),
    ])?;
    let packed = fs::read(&image).with_context(|| format!("cannot read {}", image.display()))?;
    // A kernel built without BTF is accepted: the plan then says what that costs. If the kernel was built
    // with BTF but none is found here, the image could not be unpacked.
    match image::btf(&packed) {
        Some(btf) => put("sys/kernel/btf/vmlinux", &btf)?,
        None => ensure!(
            !is_set(&config, "CONFIG_DEBUG_INFO_BTF"),
            "{} was built with BTF, and none was found in it: xz, zstd, gzip and lz4 unpack images",
            image.display()
        ),
    }
    let modules = first_of([
        format!("lib/modules/{release}/kernel/drivers/infiniband"),
        format!("usr/lib/modules/{release}/kernel/drivers/infiniband"),
    ])?;
    let mut functions = String::new();
    for file in files_below(&modules)? {
        let Some(name) = module_name(&file) else { continue };
        let elf = initramfs::decompressed(&file)?;
        let parsed =
            object::File::parse(&*elf).with_context(|| format!("not a module: {}", file.display()))?;
        put(&format!("sys/module/{name}/initstate"), b"live\n")?;
        if let Some(btf) = parsed.section_by_name(".BTF") {
            put(&format!("sys/kernel/btf/{name}"), btf.data()?)?;
        }
        let symbols = parsed
            .symbols()
            .filter(|symbol| symbol.kind() == SymbolKind::Text);
        for symbol in symbols.filter(object::ObjectSymbol::is_definition) {
            writeln!(functions, "0000000000000000 t {}\t[{name}]", symbol.name()?)?;
        }
    }
    ensure!(!functions.is_empty(), "no module below {}", modules.display());
    put("proc/kallsyms", functions.as_bytes())
}

/// Whether a kernel configuration option is `y`.
fn is_set(config: &str, option: &str) -> bool {
    config.lines().any(|line| line.strip_suffix("=y") == Some(option))
}

/// Returns the kernel's version line and its preemption modes with the default in brackets, both as the
/// configuration decides them (`init/Makefile`, `kernel/sched/core.c`).
fn preemption(config: &str) -> (String, String) {
    let is = |option: &str| is_set(config, option);
    let word = if is("CONFIG_PREEMPT_RT") {
        "PREEMPT_RT"
    } else if is("CONFIG_PREEMPT_DYNAMIC") {
        "PREEMPT_DYNAMIC"
    } else if is("CONFIG_PREEMPT") {
        "PREEMPT"
    } else {
        ""
    };
    let modes = [
        ("CONFIG_PREEMPT_NONE", "none"),
        ("CONFIG_PREEMPT_VOLUNTARY", "voluntary"),
        ("CONFIG_PREEMPT", "full"),
        ("CONFIG_PREEMPT_LAZY", "lazy"),
    ];
    let mode = modes.into_iter().find(|(option, _)| is(option));
    let mode = mode.map_or_else(String::new, |(_, mode)| format!("({mode})"));
    (format!("#1 SMP {word}\n"), format!("{mode}\n"))
}

fn files_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut out = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(at) = left.pop() {
        for entry in fs::read_dir(&at).with_context(|| format!("cannot list {}", at.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                left.push(entry.path());
            } else {
                out.push(entry.path());
            }
        }
    }
    out.sort();
    Ok(out)
}

/// Returns the kernel's name for the module in a file; `None` if the file is no module.
fn module_name(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    // Debian packs modules by xz, Ubuntu by zstd.
    let unpacked = [".xz", ".zst"].iter().find_map(|end| name.strip_suffix(end));
    let name = unpacked.unwrap_or(name).strip_suffix(".ko")?;
    Some(name.replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_have_the_names_that_the_kernel_lists() {
        let name = |file: &str| module_name(Path::new(file));
        assert_eq!(name("/m/hw/ib_core.ko.xz").as_deref(), Some("ib_core"));
        assert_eq!(name("/m/rdma-rxe.ko").as_deref(), Some("rdma_rxe"));
        assert_eq!(name("/m/siw.ko.zst").as_deref(), Some("siw"));
        assert_eq!(name("/m/modules.dep"), None);
    }

    #[test]
    fn the_mode_of_preemption_is_the_configuration_s() {
        let of = |config| {
            let (version, mode) = preemption(config);
            (version.trim().to_owned(), mode.trim().to_owned())
        };
        let dynamic = "CONFIG_PREEMPT_LAZY=y\nCONFIG_PREEMPT_DYNAMIC=y\n# CONFIG_PREEMPT is not set\n";
        assert_eq!(of(dynamic), ("#1 SMP PREEMPT_DYNAMIC".into(), "(lazy)".into()));
        let voluntary = of("CONFIG_PREEMPT_VOLUNTARY=y\n");
        assert_eq!(voluntary, ("#1 SMP".into(), "(voluntary)".into()));
        let rt = of("CONFIG_PREEMPT=y\nCONFIG_PREEMPT_RT=y\n");
        assert_eq!(rt, ("#1 SMP PREEMPT_RT".into(), "(full)".into()));
    }
}
