//! Builds kernel modules from source against a lab kernel's headers, and keeps them by kernel and source.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};

use super::kernel::{self, Kernel, Series};
use super::{headers, module_btf};
use crate::step;

/// A directory with a Kbuild file or a makefile in the kernel's style.
#[derive(Clone, Debug)]
pub(super) struct DriverSource {
    /// The common name of the modules.
    name: &'static str,
    /// Additional words for make, such as a `CONFIG_` variable that the makefile needs.
    options: &'static [&'static str],
    /// Paths relative to the directory, and contents.
    files: Vec<(PathBuf, Vec<u8>)>,
    /// Whether the modules get BTF.
    btf: bool,
}

/// A compiler option used by kernels that were built with gcc 14 or newer.
const ALIGNMENT: &str = "-fmin-function-alignment";

/// A script between make and a compiler that does not know [`ALIGNMENT`]. The older option aligns cold code
/// less, which matters only to live patching. The attributes are ones that this compiler ignores, with a
/// warning for each header.
const OLDER_COMPILER: &str = "#!/bin/sh
for word do
    shift
    case $word in
    -fmin-function-alignment=*) word=-falign-functions=${word#*=} ;;
    esac
    set -- \"$@\" \"$word\"
done
exec gcc -Wno-attributes \"$@\"
";

/// The version of the build recipe: to be raised when a change of it changes the result.
const RECIPE: u32 = 1;

impl DriverSource {
    /// Reads the directory `dir`.
    pub(super) fn read(name: &'static str, options: &'static [&'static str], dir: &Path) -> Result<Self> {
        let mut files = Vec::new();
        collect(dir, Path::new(""), &mut files)?;
        files.sort();
        Ok(Self {
            name,
            options,
            files,
            btf: false,
        })
    }

    /// The same source, for modules with BTF.
    pub(super) fn with_btf(self) -> Self {
        Self { btf: true, ..self }
    }

    /// The directory of the modules built for `kernel`.
    fn place(&self, kernel: &Kernel) -> PathBuf {
        let mut hasher = DefaultHasher::new();
        (RECIPE, self.options, &self.files).hash(&mut hasher);
        if self.btf {
            self.btf.hash(&mut hasher);
        }
        kernel::cache()
            .join("modules")
            .join(&kernel.release)
            .join(format!("{}-{:016x}", self.name, hasher.finish()))
    }

    /// Returns the directory of the built modules if it exists.
    pub(super) fn built(&self, kernel: &Kernel) -> Option<PathBuf> {
        let place = self.place(kernel);
        place.is_dir().then_some(place)
    }

    /// Returns the directory of the modules, which are built if it does not exist.
    pub(super) fn ensure(&self, series: Series, kernel: &Kernel) -> Result<PathBuf> {
        if let Some(place) = self.built(kernel) {
            return Ok(place);
        }
        let headers = headers::ensure(series, kernel)?;
        let place = self.place(kernel);
        // Another process may build the same: each builds in its own directory, and the first rename wins.
        let work = place.with_extension(std::process::id().to_string());
        let _ = fs::remove_dir_all(&work);
        let built = self.build(kernel, &headers.tree, &work);
        if let Ok(modules) = &built {
            // The rename fails if another process was faster; its modules are used then.
            let _ = fs::rename(modules, &place);
        }
        let _ = fs::remove_dir_all(&work);
        built?;
        ensure!(place.is_dir(), "cannot make {}", place.display());
        Ok(place)
    }

    /// Builds in `work`; returns a directory below it that has only the modules.
    fn build(&self, kernel: &Kernel, tree: &Path, work: &Path) -> Result<PathBuf> {
        let source = work.join("source");
        let modules = work.join("modules");
        fs::create_dir_all(&modules).with_context(|| format!("cannot create {}", modules.display()))?;
        for (path, data) in &self.files {
            let path = source.join(path);
            fs::create_dir_all(path.parent().unwrap_or(&source))?;
            fs::write(&path, data).with_context(|| format!("cannot write {}", path.display()))?;
        }
        self.make(kernel, tree, &source, work)?;
        let mut built = Vec::new();
        for entry in fs::read_dir(&source)?.flatten() {
            if entry.path().extension().is_some_and(|ext| ext == "ko") {
                let module = modules.join(entry.file_name());
                fs::rename(entry.path(), &module)?;
                built.push(module);
            }
        }
        ensure!(!built.is_empty(), "{}: make built no module", self.name);
        if self.btf {
            module_btf::add(kernel, &built, work)?;
        }
        Ok(modules)
    }

    fn make(&self, kernel: &Kernel, tree: &Path, source: &Path, work: &Path) -> Result<()> {
        let mut make = make_in(tree);
        make.arg(format!("M={}", source.display()));
        make.arg(format!("CC={}", compiler(work)?));
        // The makefiles would read the kernel's own debug information, which only a huge package has: see
        // `module_btf`.
        make.arg("CONFIG_DEBUG_INFO_BTF_MODULES=");
        make.args(self.options).arg("modules");
        let label = format!("lab: build {} for Linux {}", self.name, kernel.release);
        step::run(&label, &mut make).map(drop)
    }
}

/// Returns make on a kernel's tree, which keeps all CPUs busy. Variables of a caller's make or cargo do not
/// affect it.
pub(super) fn make_in(tree: &Path) -> Command {
    let mut make = Command::new("make");
    make.arg("-C").arg(tree);
    make.arg(format!(
        "-j{}",
        thread::available_parallelism().map_or(2, std::num::NonZero::get)
    ));
    for name in [
        "MAKEFLAGS",
        "MFLAGS",
        "MAKELEVEL",
        "ARCH",
        "CROSS_COMPILE",
        "KBUILD_OUTPUT",
    ] {
        make.env_remove(name);
    }
    make
}

/// Returns the compiler for make: the machine's gcc, or a script around it if it is older than the kernel's
/// gcc.
fn compiler(work: &Path) -> Result<String> {
    let knows = Command::new("gcc")
        .args([
            &format!("{ALIGNMENT}=16"),
            "-E",
            "-x",
            "c",
            "/dev/null",
            "-o",
            "/dev/null",
        ])
        .output()
        .context("no gcc: `cargo xtask setup`, or `apt-get install gcc make`")?;
    if knows.status.success() {
        return Ok("gcc".to_owned());
    }
    let script = work.join("cc");
    fs::write(&script, OLDER_COMPILER)?;
    Ok(format!("sh {}", script.display()))
}

fn collect(root: &Path, below: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) -> Result<()> {
    let dir = root.join(below);
    for entry in fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            collect(root, &path, files)?;
        } else {
            let data = fs::read(entry.path())?;
            files.push((path, data));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> DriverSource {
        DriverSource {
            name: "x",
            options: &[],
            files: vec![("x.c".into(), text.into())],
            btf: false,
        }
    }

    #[test]
    fn modules_are_kept_by_kernel_and_by_what_is_in_the_source() {
        let kernel = |release: &str| Kernel {
            arch: crate::arch::Arch::X86_64,
            release: release.to_owned(),
            dir: "/k".into(),
        };
        let one = source("a").place(&kernel("6.1"));
        assert_eq!(one, source("a").place(&kernel("6.1")));
        assert_ne!(one, source("b").place(&kernel("6.1")));
        assert_ne!(one, source("a").place(&kernel("7.2")));
    }

    #[test]
    fn an_older_compiler_gets_the_older_option_and_all_else_as_it_is() {
        let words = ["-fmin-function-alignment=16", "-DA=\"b c\"", "x.c"];
        let script = OLDER_COMPILER.replace("exec gcc", "printf '%s|'");
        let output = Command::new("sh")
            .args(["-c", &script, "cc"])
            .args(words)
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "-Wno-attributes|-falign-functions=16|-DA=\"b c\"|x.c|"
        );
    }
}
