//! Embeds the eBPF object: the one named by RDMATOP_EBPF_OBJECT, else one built here when the bpf toolchain is there,
//! else none. Without it everything else builds and runs, and says what is missing.

use std::{
    env,
    path::{Path, PathBuf},
};

#[path = "../xtask/src/ebpf_toolchain.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "xtask shares this file and uses the rest of it"
)]
mod ebpf_toolchain;

fn object() -> Result<PathBuf, String> {
    if let Some(path) = env::var_os("RDMATOP_EBPF_OBJECT") {
        return Ok(path.into());
    }
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map(PathBuf::from)
        .unwrap_or_default();
    let workspace = manifest.parent().ok_or("no workspace")?;
    // OUT_DIR is target/PROFILE/build/rdmatop-HASH/out: the target directory without guessing its name.
    let out = env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default();
    let target = out
        .ancestors()
        .find(|dir| dir.join(".rustc_info.json").is_file() || dir.join("CACHEDIR.TAG").is_file());
    let target = target.map_or_else(|| workspace.join("target"), Path::to_path_buf);
    ebpf_toolchain::build(workspace, &target, true).map(|(object, _)| object)
}

fn main() {
    println!("cargo::rustc-check-cfg=cfg(ebpf_object)");
    println!("cargo::rerun-if-env-changed=RDMATOP_EBPF_OBJECT");
    for path in [
        "../rdmatop-ebpf",
        "../rdmatop-common",
        "../xtask/src/ebpf_toolchain.rs",
        "../Cargo.lock",
    ] {
        println!("cargo::rerun-if-changed={path}");
    }
    // A toolchain that comes or goes changes what can be embedded.
    println!("cargo::rerun-if-changed=/usr/lib/rustlib/bpfel-unknown-none/lib");
    match object() {
        Ok(path) => {
            println!("cargo::rerun-if-changed={}", path.display());
            println!("cargo::rustc-env=RDMATOP_EBPF_OBJECT={}", path.display());
            println!("cargo::rustc-cfg=ebpf_object");
        }
        Err(why) => println!("cargo::warning=building without eBPF: {why}"),
    }
}
