//! Embeds the eBPF object: the one in the directory that `RDMATOP_EBPF_OBJECTS` names, else one that it
//! builds from source.
//!
//! Without a toolchain for the bpf target rdmatop still builds: `cfg(ebpf_object)` is off and it works from
//! netlink alone. `RDMATOP_EBPF_SKIP=1` asks for that.

use std::env;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

#[path = "../../xtask/src/ebpf_toolchain.rs"]
#[expect(dead_code, reason = "xtask uses the rest")]
mod ebpf_toolchain;

#[path = "../../xtask/src/ebpf_strip.rs"]
mod ebpf_strip;

use ebpf_toolchain::OBJECT;

fn main() -> ExitCode {
    println!("cargo::rustc-check-cfg=cfg(ebpf_object)");
    for name in ["RDMATOP_EBPF_OBJECTS", "RDMATOP_EBPF_SKIP"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let (Some(manifest), Some(out)) = (env::var_os("CARGO_MANIFEST_DIR"), env::var_os("OUT_DIR")) else {
        println!("cargo::error=build.rs runs under cargo only");
        return ExitCode::FAILURE;
    };
    let (manifest, out) = (PathBuf::from(manifest), PathBuf::from(out));
    let repo = manifest.ancestors().nth(2).unwrap_or(&manifest);
    for path in [
        "rdmatop-ebpf/src",
        "rdmatop-ebpf/Cargo.toml",
        "rdmatop-common/src",
        "rdmatop-common/Cargo.toml",
        "xtask/src/ebpf_toolchain.rs",
        "xtask/src/ebpf_strip.rs",
    ] {
        println!("cargo::rerun-if-changed={}", repo.join(path).display());
    }
    match object(repo, &out) {
        Ok(None) => {
            println!("cargo::rustc-cfg=ebpf_object");
            println!(
                "cargo::rustc-env=RDMATOP_EBPF_OBJECT={}",
                out.join(OBJECT).display()
            );
            ExitCode::SUCCESS
        }
        Ok(Some(missing)) => {
            println!("cargo::warning=this rdmatop has no eBPF programs: {missing}");
            // Not everybody who runs the program has seen it built, so that it says so, too.
            println!("cargo::rustc-env=RDMATOP_EBPF_MISSING={missing}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            for line in error.lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Has cargo run this again once something is installed, which may be what was missing.
///
/// It names only files that exist, because an absent one would make cargo run this at every build.
fn watch_installs() {
    println!("cargo::rerun-if-env-changed=PATH");
    for place in ebpf_toolchain::installs()
        .into_iter()
        .filter(|place| place.exists())
    {
        println!("cargo::rerun-if-changed={}", place.display());
    }
}

/// Writes the object to `out`. If there is to be none, returns what is missing, a colon, and the remedy.
fn object(repo: &Path, out: &Path) -> Result<Option<String>, String> {
    if let Some(given) = env::var_os("RDMATOP_EBPF_OBJECTS").filter(|given| !given.is_empty()) {
        let given = repo.join(given);
        let file = given.join(OBJECT);
        println!("cargo::rerun-if-changed={}", file.display());
        if !file.is_file() {
            return Err(format!(
                "RDMATOP_EBPF_OBJECTS names {}, where no {OBJECT} is",
                given.display()
            ));
        }
        embed(&file, &out.join(OBJECT))?;
        return Ok(None);
    }
    if env::var_os("RDMATOP_EBPF_SKIP").is_some_and(|skip| skip == "1") {
        return Ok(Some(
            "RDMATOP_EBPF_SKIP was 1: build it without that variable".to_owned(),
        ));
    }
    let toolchain = match ebpf_toolchain::find() {
        Ok(toolchain) => toolchain,
        Err(missing) => {
            watch_installs();
            return Ok(Some(format!("{missing}; then build it again")));
        }
    };
    // `cargo xtask build-ebpf` builds into the same directory, so that neither builds again what the other
    // has built. It is not the directory of the outer cargo, whose lock is held while this runs.
    let build = out.ancestors().find(|dir| dir.ends_with("build"));
    let above = build.and_then(Path::parent).and_then(Path::parent).unwrap_or(out);
    let target = above.join("ebpf");
    let triple = env::var_os("TARGET").unwrap_or_default();
    if above.file_name() == Some(&triple)
        && let Some(shared) = above.parent()
    {
        share_host_part(&shared.join("ebpf"), &target);
    }
    let _alone = ebpf_toolchain::alone(&target)
        .map_err(|error| format!("cannot lock {}: {error}", target.display()))?;
    let output = toolchain
        .build_command(repo, &target)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot start {}: {error}", toolchain.name))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "the eBPF programs do not compile (RDMATOP_EBPF_SKIP=1 leaves them out):\n{text}"
        ));
    }
    // Copy the object, because the next build of another profile overwrites what cargo has built.
    embed(&ebpf_toolchain::built_object(&target), &out.join(OBJECT))?;
    Ok(None)
}

/// Lets `target`, which is for one triple, have what runs on this machine from `shared`: macros and build
/// scripts are two thirds of the build, and the same for all machines that the programs are for.
fn share_host_part(shared: &Path, target: &Path) {
    const PART: &str = "release";
    let place = target.join(PART);
    let made = fs::create_dir_all(shared.join(PART)).and_then(|()| fs::create_dir_all(target));
    if made.is_ok() && fs::symlink_metadata(&place).is_err() {
        // Without the link they are built once more.
        let _ = symlink(Path::new("../../ebpf").join(PART), &place);
    }
}

/// Writes the embedded form of a built object: its length without debug information, in eight bytes, then
/// that much of it deflated, which takes a fifth.
fn embed(built: &Path, object: &Path) -> Result<(), String> {
    let bytes = fs::read(built).map_err(|error| format!("cannot read {}: {error}", built.display()))?;
    let bytes = ebpf_strip::without_debug(&bytes).map_err(|error| format!("{}: {error}", built.display()))?;
    let length = (bytes.len() as u64).to_le_bytes().to_vec();
    let mut deflater = flate2::write::DeflateEncoder::new(length, flate2::Compression::best());
    let embedded = deflater.write_all(&bytes).and_then(|()| deflater.finish());
    embedded
        .and_then(|embedded| fs::write(object, embedded))
        .map_err(|error| format!("cannot write {}: {error}", object.display()))
}
