//! Finds a toolchain for the bpf target and runs it. Only std is used: `rdmatop/build.rs` includes this file.
//!
//! The first usable one is taken: a rustup nightly with rust-src; Debian's rustc with the prebuilt bpf core
//! library; Debian's rustc with its rust-src. All need bpf-linker, whose LLVM must not be older than the
//! compiler's.

use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Rust's name of the target.
pub(crate) const TARGET: &str = "bpfel-unknown-none";
/// The file name of the finished object.
pub(crate) const OBJECT: &str = "rdmatop.bpf.o";

/// A way to compile for the bpf target.
#[derive(Clone, Debug)]
pub(crate) struct Toolchain {
    /// Its description for users.
    pub(crate) name: String,
    bin: PathBuf,
    build_std: bool,
    linker: PathBuf,
}

/// What is installed on this machine. Gathered separately from the choice, so that the choice can be tested.
#[derive(Clone, Debug, Default)]
struct Facts {
    linker: Option<PathBuf>,
    nightly: Option<PathBuf>,
    nightly_has_source: bool,
    debian: Option<PathBuf>,
    debian_has_core: bool,
    debian_has_source: bool,
}

/// A part that is missing: what it is, and what brings it outside of a clone of this repository.
type Part = (&'static str, &'static str);

/// Nearly all of bpf-linker is LLVM, of which a built one has its own. To build it takes the LLVM of the
/// compiler for the bpf target, which few machines have: cargo xtask setup sees to that.
const NO_LINKER: Part = (
    "no bpf-linker",
    "`cargo install cargo-binstall --locked && cargo binstall bpf-linker`",
);
const NO_COMPILER: Part = (
    "no Rust compiler for the bpf target",
    "`rustup toolchain install nightly --component rust-src`",
);
const NO_CORE: Part = (
    "Debian's rustc lacks the bpf core library",
    "`apt-get install libstd-rust-web-dev-bpf` (Debian) or `rustup toolchain install nightly --component rust-src`",
);

/// Says all that is missing, a colon, and what brings it, in one line. rdmatop splits it at the first colon.
/// It has the commands for who has no clone, too: `cargo install --git` leaves none to run xtask in.
fn remedy(missing: &[Part]) -> String {
    let each = |text: fn(&Part) -> &'static str| missing.iter().map(text).collect::<Vec<_>>();
    let (what, brings) = (each(|part| part.0), each(|part| part.1));
    format!(
        "{}: in a clone `cargo xtask setup --no-kernels` (Debian, Ubuntu), elsewhere {}",
        what.join(", and "),
        brings.join(", and ")
    )
}

/// Finds a toolchain, or says in one line what to install.
pub(crate) fn find() -> Result<Toolchain, String> {
    choose(&facts())
}

/// Returns the path of the compiler for the bpf target even without a linker; or what to install.
pub(crate) fn compiler() -> Result<PathBuf, String> {
    let facts = Facts {
        linker: Some(PathBuf::new()),
        ..facts()
    };
    choose(&facts).map(|found| found.bin)
}

fn choose(facts: &Facts) -> Result<Toolchain, String> {
    let compiler = match (&facts.nightly, &facts.debian) {
        (Some(bin), _) if facts.nightly_has_source => Ok(("rustup nightly with rust-src", bin, true)),
        (_, Some(bin)) if facts.debian_has_core => {
            Ok(("Debian's rustc with its bpf core library", bin, false))
        }
        (_, Some(bin)) if facts.debian_has_source => Ok(("Debian's rustc with rust-src", bin, true)),
        (_, Some(_)) => Err(NO_CORE),
        (_, None) => Err(NO_COMPILER),
    };
    // Who has to install several parts learns of all at once: each further one would cost another build.
    match (compiler, &facts.linker) {
        (Ok((name, bin, build_std)), Some(linker)) => Ok(Toolchain {
            name: name.to_owned(),
            bin: bin.clone(),
            build_std,
            linker: linker.clone(),
        }),
        (compiler, linker) => {
            let linker = linker.is_none().then_some(NO_LINKER);
            let missing: Vec<Part> = compiler.err().into_iter().chain(linker).collect();
            Err(remedy(&missing))
        }
    }
}

fn facts() -> Facts {
    let nightly = nightly_sysroot();
    let usr = Path::new("/usr");
    let debian = usr.join("bin/rustc").is_file() && usr.join("bin/cargo").is_file();
    Facts {
        linker: find_in_path("bpf-linker"),
        nightly_has_source: nightly.as_deref().is_some_and(has_source),
        nightly: nightly.map(|sysroot| sysroot.join("bin")),
        debian: debian.then(|| usr.join("bin")),
        debian_has_core: has_core(&usr.join("lib/rustlib").join(TARGET).join("lib")),
        debian_has_source: has_source(usr),
    }
}

fn has_source(sysroot: &Path) -> bool {
    sysroot.join("lib/rustlib/src/rust/library/Cargo.lock").is_file()
}

fn has_core(dir: &Path) -> bool {
    let Ok(entries) = fs::read_dir(dir) else {
        return false;
    };
    entries
        .flatten()
        .any(|entry| entry.file_name().to_string_lossy().starts_with("libcore-"))
}

fn nightly_sysroot() -> Option<PathBuf> {
    // Not `rustup which`, nor the proxies: since 1.28 they install a toolchain that they are asked about.
    let output = Command::new("rustup")
        .args(["toolchain", "list", "--verbose"])
        .stderr(Stdio::null())
        .output()
        .ok()?;
    nightly_of(&String::from_utf8(output.stdout).ok()?).filter(|sysroot| sysroot.join("bin/rustc").is_file())
}

/// Finds the directory of `nightly` in rustup's list, whose lines have the name, perhaps remarks, and the
/// directory. A dated nightly does not count, because it was installed for another purpose.
fn nightly_of(list: &str) -> Option<PathBuf> {
    list.lines().find_map(|line| {
        let name = line.split_whitespace().next()?;
        let host = name.strip_prefix("nightly")?;
        let host = if host.is_empty() {
            host
        } else {
            host.strip_prefix('-')?
        };
        let dir = &line[line.find('/')?..];
        let dated = host.starts_with(|char: char| char.is_ascii_digit());
        (!dated).then(|| PathBuf::from(dir.trim_end()))
    })
}

/// Finds a program in `$PATH` or where `cargo install` puts it.
pub(crate) fn find_in_path(name: &str) -> Option<PathBuf> {
    programs()
        .into_iter()
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// The directories in which programs are looked for.
fn programs() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    // The directory of `cargo install` may be missing in $PATH.
    let installed = cargo_home().map(|home| home.join("bin"));
    env::split_paths(&path).chain(installed).collect()
}

/// Files and directories that change when a part of a toolchain is installed: by hand, by Debian, by rustup.
/// Whether there is one yet decides nothing.
#[allow(dead_code, reason = "a build script uses it, and a test")]
pub(crate) fn installs() -> Vec<PathBuf> {
    let mut places = programs();
    places.push("/var/lib/dpkg/status".into());
    let home = env::var_os("HOME").map(|home| PathBuf::from(home).join(".rustup"));
    let rustup = env::var_os("RUSTUP_HOME").map(PathBuf::from).or(home);
    // Not all files of a toolchain, of which there are ten thousands.
    places.extend(rustup.map(|rustup| rustup.join("update-hashes")));
    places.extend(nightly_sysroot().map(|sysroot| sysroot.join("lib/rustlib/components")));
    places
}

/// The directory where cargo keeps crate sources and installed programs.
pub(crate) fn cargo_home() -> Option<PathBuf> {
    env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")))
}

/// Whether a variable of the outer cargo must be hidden from the inner one.
fn leaks(name: &str) -> bool {
    const KEPT: [&str; 6] = [
        "CARGO_HOME",
        "CARGO_NET_",
        "CARGO_HTTP_",
        "CARGO_REGISTR",
        "CARGO_SOURCE_",
        "CARGO_TERM_",
    ];
    const DROPPED: [&str; 12] = [
        "TARGET",
        "HOST",
        "OUT_DIR",
        "PROFILE",
        "DEBUG",
        "OPT_LEVEL",
        "NUM_JOBS",
        "MAKEFLAGS",
        "MFLAGS",
        "LD_LIBRARY_PATH",
        "RUSTFLAGS",
        "CLIPPY_ARGS",
    ];
    // RUSTUP_HOME tells where toolchains are; every other RUST* variable changes what a compiler does.
    (name.starts_with("CARGO") && !KEPT.iter().any(|kept| name.starts_with(kept)))
        || (name.starts_with("RUST") && name != "RUSTUP_HOME" && name != "RUST_BACKTRACE")
        || DROPPED.contains(&name)
}

/// Returns the architecture that will run the programs; aya-ebpf needs its registers. A build script passes
/// its `target`, which may differ from this machine.
fn architecture(target: Option<String>) -> String {
    target.unwrap_or_else(|| env::consts::ARCH.to_owned())
}

impl Toolchain {
    fn command(&self, program: &str, repo: &Path, target_dir: &Path) -> Command {
        let mut command = Command::new(self.bin.join(program));
        for (name, _) in env::vars_os() {
            if name.to_str().is_some_and(leaks) {
                command.env_remove(name);
            }
        }
        let arch = architecture(env::var("CARGO_CFG_TARGET_ARCH").ok());
        let arch = format!("--cfg=bpf_target_arch=\"{arch}\"");
        let linker = format!("-Clinker={}", self.linker.display());
        let mut flags = vec![linker, "-Clink-arg=--btf".into(), "-Cpanic=abort".into(), arch];
        // BTF names source files. Without this mapping, objects built in two directories would differ.
        let sysroot = self.bin.parent().map(Path::to_path_buf);
        let places = [
            (sysroot, "/rustc"),
            (cargo_home(), "/cargo"),
            (Some(repo.to_owned()), "/rdmatop"),
        ];
        for (place, name) in places {
            flags.extend(place.map(|place| format!("--remap-path-prefix={}={name}", place.display())));
        }
        command
            .env("CARGO", self.bin.join("cargo"))
            .env("RUSTC", self.bin.join("rustc"))
            // Debian's compiler is stable, but aya-ebpf needs asm for bpf (E0554 otherwise).
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
            .env("CARGO_TARGET_DIR", target_dir)
            // The release profile of the workspace is for the host program. Here bpf-linker does the
            // whole-program optimisation, and it needs debug info to make BTF.
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_STRIP", "none")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "2")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1")
            .env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "false");
        command
    }

    fn add_common(&self, command: &mut Command) {
        command.args([
            "--package",
            "rdmatop-ebpf",
            "--features",
            "bpf",
            "--target",
            TARGET,
            "--release",
        ]);
        if self.build_std {
            command.args(["-Z", "build-std=core"]);
        }
    }

    /// Returns the command that compiles the object.
    pub(crate) fn build_command(&self, repo: &Path, target_dir: &Path) -> Command {
        let mut command = self.command("cargo", repo, target_dir);
        command.arg("build").current_dir(repo);
        self.add_common(&mut command);
        command
    }

    /// Returns the path of the compiler.
    pub(crate) fn rustc(&self) -> PathBuf {
        self.bin.join("rustc")
    }

    /// Returns the command that lints the eBPF crate, where warnings `fail` if wanted; or what to install.
    pub(crate) fn clippy_command(
        &self,
        repo: &Path,
        target_dir: &Path,
        fail: bool,
    ) -> Result<Command, String> {
        // Called by its path: `cargo clippy` would first find rustup's, which is for another compiler.
        if !self.bin.join("cargo-clippy").is_file() || !self.bin.join("clippy-driver").is_file() {
            return Err(format!(
                "no clippy beside {}: `cargo xtask setup` (Debian: apt-get install rust-web-clippy)",
                self.rustc().display()
            ));
        }
        let mut command = self.command("cargo-clippy", repo, target_dir);
        command.arg("clippy").current_dir(repo);
        self.add_common(&mut command);
        if fail {
            command.args(["--", "-D", "warnings"]);
        }
        Ok(command)
    }
}

/// Locks `target_dir` until the returned file is dropped: builds of two profiles may run at the same time.
pub(crate) fn alone(target_dir: &Path) -> io::Result<File> {
    fs::create_dir_all(target_dir)?;
    let file = File::create(target_dir.join("object.lock"))?;
    file.lock()?;
    Ok(file)
}

/// Returns the path of the object that `build_command` makes.
pub(crate) fn built_object(target_dir: &Path) -> PathBuf {
    target_dir.join(TARGET).join("release/rdmatop-ebpf")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Facts {
        Facts {
            linker: Some("/l".into()),
            nightly: Some("/n".into()),
            nightly_has_source: true,
            debian: Some("/usr/bin".into()),
            debian_has_core: true,
            debian_has_source: true,
        }
    }

    #[test]
    fn programs_are_for_the_machine_that_rdmatop_is_built_for() {
        assert_eq!(architecture(Some("aarch64".into())), "aarch64");
        assert_eq!(architecture(None), env::consts::ARCH);
    }

    #[test]
    fn the_ladder_is_climbed_from_the_top() {
        let mut facts = machine();
        let top = choose(&facts).unwrap();
        assert!(top.name.contains("nightly") && top.build_std);
        facts.nightly_has_source = false;
        let second = choose(&facts).unwrap();
        assert!(second.name.contains("bpf core library") && !second.build_std);
        facts.debian_has_core = false;
        assert!(choose(&facts).unwrap().build_std);
        facts.debian_has_source = false;
        assert!(choose(&facts).is_err());
    }

    #[test]
    fn all_parts_that_are_missing_are_said_at_once_with_what_brings_them() {
        const CLONE: &str = "in a clone `cargo xtask setup --no-kernels` (Debian, Ubuntu), elsewhere";
        const NIGHTLY: &str = "`rustup toolchain install nightly --component rust-src`";
        const CORE: &str = "`apt-get install libstd-rust-web-dev-bpf` (Debian) or `rustup toolchain install nightly \
                            --component rust-src`";
        const LINKER: &str = "`cargo install cargo-binstall --locked && cargo binstall bpf-linker`";
        let compiler = "no Rust compiler for the bpf target";
        let core = "Debian's rustc lacks the bpf core library";
        let linker = "no bpf-linker";
        let debian = || Some(PathBuf::from("/usr/bin"));
        for (debian, linked, wanted) in [
            (None, true, format!("{compiler}: {CLONE} {NIGHTLY}")),
            (debian(), true, format!("{core}: {CLONE} {CORE}")),
            // With rustup's stable toolchain alone.
            (
                None,
                false,
                format!("{compiler}, and {linker}: {CLONE} {NIGHTLY}, and {LINKER}"),
            ),
            (
                debian(),
                false,
                format!("{core}, and {linker}: {CLONE} {CORE}, and {LINKER}"),
            ),
        ] {
            let facts = Facts {
                linker: linked.then(|| "/l".into()),
                debian,
                ..Facts::default()
            };
            assert_eq!(choose(&facts).unwrap_err(), wanted);
        }
        let facts = Facts {
            linker: None,
            ..machine()
        };
        assert_eq!(choose(&facts).unwrap_err(), format!("{linker}: {CLONE} {LINKER}"));
    }

    #[test]
    fn rustups_nightly_is_found_in_its_list_and_a_dated_one_is_not() {
        let list = |nightly: &str| {
            format!(
                "stable-x86_64-unknown-linux-gnu (active, default) /h/toolchains/stable-x86_64-unknown-linux-gnu\n{nightly}\n"
            )
        };
        for line in [
            "nightly-x86_64-unknown-linux-gnu /h a/n",
            "nightly-x86_64-unknown-linux-gnu (default)\t/h a/n",
            "nightly /h a/n",
        ] {
            assert_eq!(nightly_of(&list(line)), Some("/h a/n".into()), "{line}");
        }
        for line in [
            "nightly-2026-10-30-x86_64-unknown-linux-gnu /h/n",
            "nightlyish /h/n",
            "",
        ] {
            assert_eq!(nightly_of(&list(line)), None, "{line}");
        }
    }

    #[test]
    fn a_build_without_programs_waits_for_each_place_that_is_searched() {
        let watched = installs();
        for place in programs() {
            assert!(watched.contains(&place), "{}", place.display());
        }
        let own = cargo_home().unwrap().join("bin");
        assert!(watched.contains(&own), "not in everybody's PATH");
        for end in ["dpkg/status", "update-hashes"] {
            assert!(watched.iter().any(|place| place.ends_with(end)), "{end}");
        }
    }

    #[test]
    fn what_is_missing_is_one_line_with_its_remedy() {
        for text in [NO_LINKER, NO_COMPILER, NO_CORE].map(|part| remedy(&[part])) {
            assert!(
                !text.contains('\n') && text.split_once(": ").unwrap().1.contains("cargo xtask setup"),
                "{text}"
            );
        }
    }

    #[test]
    fn the_outer_cargos_settings_do_not_leak_in() {
        for name in [
            "RUSTUP_TOOLCHAIN",
            "CARGO",
            "CARGO_MANIFEST_DIR",
            "RUSTC_WORKSPACE_WRAPPER",
            "TARGET",
        ] {
            assert!(leaks(name), "{name}");
        }
        for name in [
            "CARGO_HOME",
            "CARGO_REGISTRIES_X_INDEX",
            "RUSTUP_HOME",
            "PATH",
            "HOME",
        ] {
            assert!(!leaks(name), "{name}");
        }
    }
}
