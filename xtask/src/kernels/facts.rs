//! A kernel's package as a directory of facts: what rdmatop's plan reads of a machine, without the machine.
//!
//! The kernel's own BTF is in its image, that of a module and the names of its functions are in the module's
//! file. Functions of the kernel itself and of modules outside drivers/infiniband are left out: rdmatop hooks
//! none of them. So a function whose name a foreign module has too is not seen to be ambiguous.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};

use crate::lab::image;

/// Writes into `facts` what the package below `root` tells about the kernel `release`.
pub(super) fn write(root: &Path, release: &str, facts: &Path) -> Result<()> {
    let first = |candidates: [String; 2]| {
        let found = candidates
            .iter()
            .map(|path| root.join(path))
            .find(|path| path.exists());
        found.with_context(|| format!("the package has neither {} nor {}", candidates[0], candidates[1]))
    };
    let put = |place: &str, content: &[u8]| {
        let path = facts.join(place);
        let parent = path.parent().context("a file without a directory")?;
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
    };
    put("proc/sys/kernel/osrelease", format!("{release}\n").as_bytes())?;
    let config = first([
        format!("boot/config-{release}"),
        format!("usr/lib/modules/{release}/config"),
    ])?;
    let config = fs::read_to_string(&config).with_context(|| format!("cannot read {}", config.display()))?;
    let (version, mode) = preemption(&config);
    put("proc/sys/kernel/version", version.as_bytes())?;
    put("sys/kernel/debug/sched/preempt", mode.as_bytes())?;
    let image = first([
        format!("boot/vmlinuz-{release}"),
        format!("usr/lib/modules/{release}/vmlinuz"),
    ])?;
    let packed = fs::read(&image).with_context(|| format!("cannot read {}", image.display()))?;
    // A kernel without BTF is one too: then the plan says what that costs. One that was built with BTF and
    // shows none here was not unpacked.
    match image::btf(&packed) {
        Some(btf) => put("sys/kernel/btf/vmlinux", &btf)?,
        None => ensure!(
            !is_set(&config, "CONFIG_DEBUG_INFO_BTF"),
            "{} was built with BTF, and none was found in it: xz, zstd, gzip and lz4 unpack images",
            image.display()
        ),
    }
    let modules = first([
        format!("lib/modules/{release}/kernel/drivers/infiniband"),
        format!("usr/lib/modules/{release}/kernel/drivers/infiniband"),
    ])?;
    let mut functions = String::new();
    for file in files_below(&modules)? {
        let Some(name) = module_name(&file) else { continue };
        let elf = module(&file)?;
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

/// Whether an option of the kernel's configuration is on.
fn is_set(config: &str, option: &str) -> bool {
    config.lines().any(|line| line.strip_suffix("=y") == Some(option))
}

/// The kernel's version line and its modes of preemption with the default in brackets, of both the words that
/// decide (`init/Makefile`, `kernel/sched/core.c`).
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

/// Ends of the names of packed modules, and what unpacks them: Debian has the first, Ubuntu the second.
const PACKED: [(&str, &[&str]); 2] = [(".xz", &["xz", "-dc"]), (".zst", &["zstd", "-dc"])];

/// The name under which the kernel lists the module of a file; `None` for another file.
fn module_name(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    let unpacked = PACKED.iter().find_map(|(end, _)| name.strip_suffix(end));
    let name = unpacked.unwrap_or(name).strip_suffix(".ko")?;
    Some(name.replace('-', "_"))
}

/// The module, unpacked.
fn module(file: &Path) -> Result<Vec<u8>> {
    let data = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let name = file.to_string_lossy();
    let Some((_, tool)) = PACKED.iter().find(|(end, _)| name.ends_with(end)) else {
        return Ok(data);
    };
    let unpacked = image::piped(tool, &data).filter(|elf| !elf.is_empty());
    unpacked.with_context(|| format!("{} cannot unpack {}", tool[0], file.display()))
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
