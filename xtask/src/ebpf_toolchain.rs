//! Building the eBPF object: which toolchain, and how. std only, because rdmatop's build.rs compiles this file too.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The target; rdmatop runs on little-endian machines only.
pub const TARGET: &str = "bpfel-unknown-none";
/// Where the object is put, below the target directory.
pub const OBJECT: &str = "ebpf/rdmatop.bpf.o";

/// A way to compile for the bpf target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Toolchain {
    /// A rustup nightly with rust-src: builds core itself.
    RustupNightly,
    /// Debian's rustc-web with the prebuilt core of libstd-rust-web-dev-bpf.
    DebianPrebuilt,
    /// Debian's rustc-web with the sources of rust-web-src: builds core itself.
    DebianSource,
}

impl Toolchain {
    /// For people.
    pub fn describe(&self) -> &'static str {
        match self {
            Self::RustupNightly => "rustup nightly with rust-src",
            Self::DebianPrebuilt => "Debian's rustc with the prebuilt bpf core library",
            Self::DebianSource => "Debian's rustc with rust-web-src",
        }
    }
}

/// What is on this machine.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// `bpf-linker`.
    pub linker: Option<PathBuf>,
    /// A rustup nightly has rust-src.
    pub nightly_source: bool,
    /// `/usr/bin/cargo` and `/usr/bin/rustc`.
    pub debian: bool,
    /// Its core library for the bpf target.
    pub debian_core: bool,
    /// Its library sources.
    pub debian_source: bool,
}

fn in_path(name: &str) -> Option<PathBuf> {
    let home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(home.map(|home| home.join("bin")))
        .map(|dir| dir.join(name))
        .find(|p| p.is_file())
}

impl Found {
    /// Looks.
    pub fn look() -> Self {
        let sysroot = Command::new("rustup")
            .args(["run", "nightly", "rustc", "--print", "sysroot"])
            .output();
        let nightly_source = sysroot.is_ok_and(|out| {
            let root = PathBuf::from(String::from_utf8_lossy(&out.stdout).trim());
            out.status.success() && root.join("lib/rustlib/src/rust/library/Cargo.lock").is_file()
        });
        let rustlib = Path::new("/usr/lib/rustlib");
        Self {
            linker: in_path("bpf-linker"),
            nightly_source,
            debian: Path::new("/usr/bin/cargo").is_file() && Path::new("/usr/bin/rustc").is_file(),
            debian_core: rustlib.join(TARGET).join("lib").is_dir(),
            debian_source: rustlib.join("src/rust/library/Cargo.lock").exists(),
        }
    }

    /// The first rung of the ladder that holds, or the one line that says what to install.
    pub fn choose(&self) -> Result<Toolchain, String> {
        let toolchain = if self.nightly_source {
            Toolchain::RustupNightly
        } else if self.debian && self.debian_core {
            Toolchain::DebianPrebuilt
        } else if self.debian && self.debian_source {
            Toolchain::DebianSource
        } else {
            return Err("no Rust toolchain for the bpf target: run `cargo xtask setup`, or install Debian's rustc-web, \
                        cargo-web and libstd-rust-web-dev-bpf, or `rustup component add rust-src --toolchain nightly`"
                .to_owned());
        };
        if self.linker.is_none() {
            return Err(
                "bpf-linker is missing: run `cargo xtask setup`, or `cargo install bpf-linker`".to_owned(),
            );
        }
        Ok(toolchain)
    }
}

/// A cargo command for rdmatop-ebpf, free of what an outer cargo or rustup left in the environment.
pub fn cargo(
    found: &Found,
    toolchain: &Toolchain,
    workspace: &Path,
    target_dir: &Path,
    verb: &str,
) -> Command {
    let mut command = if *toolchain == Toolchain::RustupNightly {
        let mut command = Command::new("rustup");
        command.args(["run", "nightly", "cargo"]);
        command
    } else {
        Command::new("/usr/bin/cargo")
    };
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let ours = text.starts_with("CARGO_") && !matches!(&*text, "CARGO_HOME" | "CARGO_NET_OFFLINE");
        let rust = matches!(
            &*text,
            "CARGO" | "RUSTC" | "RUSTDOC" | "RUSTFLAGS" | "RUSTUP_TOOLCHAIN" | "RUSTC_WRAPPER"
        );
        if ours || rust || text.starts_with("RUSTC_WORKSPACE") {
            command.env_remove(&name);
        }
    }
    let mut path: Vec<PathBuf> = Vec::new();
    if *toolchain != Toolchain::RustupNightly {
        // rustup's proxies stand first in most PATHs and would answer for Debian's compiler.
        path.push("/usr/bin".into());
        command.env("RUSTC", "/usr/bin/rustc");
        // aya-ebpf uses inline assembly of the bpf target, which is not stable yet.
        command.env("RUSTC_BOOTSTRAP", "1");
    }
    path.extend(
        found
            .linker
            .as_deref()
            .and_then(Path::parent)
            .map(Path::to_path_buf),
    );
    path.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    command.env(
        "PATH",
        env::join_paths(path).unwrap_or_else(|_| OsString::from("/usr/bin:/bin")),
    );
    let flags = ["-Clinker=bpf-linker", "-Clink-arg=--btf", "-Cdebuginfo=2"];
    command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    command.current_dir(workspace);
    command.args([
        verb,
        "--package",
        "rdmatop-ebpf",
        "--release",
        "--target",
        TARGET,
        "--target-dir",
    ]);
    command.arg(target_dir.join("ebpf"));
    if *toolchain != Toolchain::DebianPrebuilt {
        command.args(["-Z", "build-std=core"]);
    }
    command
}

/// Builds the object and returns its path. `quiet` holds cargo's progress back.
pub fn build(workspace: &Path, target_dir: &Path, quiet: bool) -> Result<(PathBuf, Toolchain), String> {
    let found = Found::look();
    let toolchain = found.choose()?;
    let mut command = cargo(&found, &toolchain, workspace, target_dir, "build");
    if quiet {
        command.arg("--quiet");
    }
    let status = command
        .status()
        .map_err(|error| format!("cannot run {}: {error}", command.get_program().display()))?;
    if !status.success() {
        return Err(format!(
            "building rdmatop-ebpf with {} failed",
            toolchain.describe()
        ));
    }
    let built = target_dir.join("ebpf").join(TARGET).join("release/rdmatop-ebpf");
    let object = target_dir.join(OBJECT);
    let bytes = fs::read(&built).map_err(|error| format!("no {}: {error}", built.display()))?;
    // Written only when it differs: its time is what rdmatop's build script looks at.
    if fs::read(&object).ok().as_deref() != Some(&bytes) {
        fs::write(&object, bytes).map_err(|error| format!("cannot write {}: {error}", object.display()))?;
    }
    Ok((object, toolchain))
}
