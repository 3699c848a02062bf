//! Compiles the library that acts as the RDMA device behind QEMU's NIC.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash as _, Hasher as _};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::lab::kernel;
use crate::step;

/// The number of [`FILES`], counted from the first, that are compiled; the others are headers.
const SOURCES: usize = 5;
/// Names and contents.
const FILES: [(&str, &str); 7] = [
    ("device.c", include_str!("loopback/device.c")),
    ("memory.c", include_str!("loopback/memory.c")),
    ("completion.c", include_str!("loopback/completion.c")),
    ("transfer.c", include_str!("loopback/transfer.c")),
    ("mux.c", include_str!("loopback/mux.c")),
    ("loopback.h", include_str!("loopback/loopback.h")),
    ("exports.map", include_str!("loopback/exports.map")),
];

/// Returns the library, compiled first if it is not in the cache.
pub(super) fn ensure() -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    FILES.hash(&mut hasher);
    let dir = kernel::cache().join("nic");
    let library = dir.join(format!("loopback-{:016x}.so", hasher.finish()));
    if library.is_file() {
        return Ok(library);
    }
    let work = dir.join(format!("loopback.{}", std::process::id()));
    fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
    let built = compile(&work).and_then(|built| Ok(fs::rename(built, &library)?));
    let _ = fs::remove_dir_all(&work);
    built?;
    Ok(library)
}

fn compile(work: &std::path::Path) -> Result<PathBuf> {
    for (name, text) in FILES {
        fs::write(work.join(name), text)?;
    }
    let sources = FILES[..SOURCES].iter().map(|(name, _)| name);
    let mut cc = Command::new("cc");
    cc.args([
        "-std=gnu11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fPIC",
        "-shared",
        "-pthread",
    ])
    .arg("-Wl,--version-script=exports.map")
    .args(["-o", "loopback.so"])
    .args(sources)
    .current_dir(work);
    step::run("lab: compile the RDMA device behind QEMU's pvrdma", &mut cc)
        .context("it needs a C compiler and libibverbs' headers: `cargo xtask setup`")?;
    Ok(work.join("loopback.so"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_compiles_and_exports_verbs_only() {
        let work = std::env::temp_dir().join(format!("rdmatop-loopback-{}", std::process::id()));
        fs::create_dir_all(&work).unwrap();
        let library = compile(&work);
        if let Err(error) = &library
            && !std::path::Path::new("/usr/include/infiniband/verbs.h").exists()
        {
            eprintln!("SKIPPED: no headers of libibverbs: {error:#}");
            return;
        }
        let output = Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(library.unwrap())
            .output()
            .unwrap();
        let names = String::from_utf8_lossy(&output.stdout).into_owned();
        fs::remove_dir_all(&work).unwrap();
        assert!(names.contains(" ibv_create_qp"), "{names}");
        assert!(names.lines().all(|line| line.contains(" ibv_")), "{names}");
    }
}
