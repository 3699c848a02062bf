//! Builds the C shim over libibverbs with the system's compiler and headers, and the programs under
//! examples/.
//!
//! `ibv_post_send`, `ibv_poll_cq` and their structures are inline C. With the machine's headers their layout
//! is always right, which hand-written Rust structures cannot guarantee.
use std::{env, path::PathBuf, process::Command};

/// Sources and objects.
const SHIM: [(&str, &str); 2] = [("src/verbs/shim.c", "shim.o"), ("src/verbs/raw.c", "raw.o")];
const EXAMPLES: &str = "../examples";
const PLUGIN: &str = "src/verbs/plugin.c";

fn main() {
    for (source, _) in SHIM {
        println!("cargo::rerun-if-changed={source}");
    }
    println!("cargo::rerun-if-changed={EXAMPLES}");
    println!("cargo::rerun-if-changed={PLUGIN}");
    for name in ["CC", "AR"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    if let Err(reason) = build().and_then(|()| examples()).and_then(|()| plugin()) {
        println!(
            "cargo::error=the traffic programs need a C compiler, make and the headers of libibverbs: {reason}; \
             on Debian: apt install gcc make libibverbs-dev"
        );
    }
}

fn build() -> Result<(), String> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let archive = out.join("librdmatop_verbs_shim.a");
    let cc = env::var("CC").unwrap_or_else(|_| "cc".into());
    for (source, object) in SHIM {
        run(Command::new(&cc)
            .args([
                "-std=gnu11",
                "-O2",
                "-fPIC",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-c",
                source,
                "-o",
            ])
            .arg(out.join(object)))?;
    }
    // `ar` adds to an existing archive, in which an old member would take precedence.
    let _ = std::fs::remove_file(&archive);
    let ar = env::var("AR").unwrap_or_else(|_| "ar".into());
    run(Command::new(ar)
        .arg("crs")
        .arg(&archive)
        .args(SHIM.map(|(_, object)| out.join(object))))?;
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=static=rdmatop_verbs_shim");
    println!("cargo::rustc-link-lib=dylib=ibverbs");
    Ok(())
}

/// Builds the examples with the makefile that users call, into a directory of this build.
fn examples() -> Result<(), String> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?).join("examples");
    run(Command::new("make")
        .args(["--silent", "-C", EXAMPLES])
        .arg(format!("OUT={}", out.display())))?;
    println!("cargo::rustc-env=RDMATOP_EXAMPLES={}", out.display());
    Ok(())
}

/// Builds the library that `reloaded-verbs` loads.
fn plugin() -> Result<(), String> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?).join("libplugin.so");
    let cc = env::var("CC").unwrap_or_else(|_| "cc".into());
    let common = format!("{EXAMPLES}/common");
    run(Command::new(cc)
        .args([
            "-std=gnu11",
            "-O2",
            "-fPIC",
            "-shared",
            "-Wall",
            "-Wextra",
            "-Werror",
        ])
        .args([format!("-I{common}"), PLUGIN.to_owned(), format!("{common}/rc.c")])
        .arg("-o")
        .arg(&out)
        .arg("-libverbs"))?;
    println!("cargo::rustc-env=RDMATOP_PLUGIN={}", out.display());
    Ok(())
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "{command:?}: {}",
        stderr.lines().next().unwrap_or("failed")
    ))
}
