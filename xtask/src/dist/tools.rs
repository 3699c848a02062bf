//! Writes down what made the artefacts: two builds of one commit are equal byte for byte only where all of
//! this is the same.

use std::env;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::linker;
use super::tree::{said_by, write};
use crate::{arch::Arch, ebpf_toolchain};

/// The name of the file beside the artefacts.
pub(super) const FILE: &str = "BUILT-WITH";

/// Tools of the build that pack or compress, in which another version may make other bytes.
const PACKERS: [&str; 4] = ["tar", "gzip", "dpkg-deb", "rpmbuild"];

/// Debian's packages of which a part gets into the artefacts, or which compress inside a tool.
const PACKAGES: [&str; 2] = ["libibverbs-dev", "liblzma5"];

/// Writes `file`. `images` says of each machine's image which packages are in it.
pub(super) fn make(images: &[(Arch, String)], file: &Path) -> Result<()> {
    let text = text(images)?;
    print!("{text}");
    write(file, text.as_bytes())
}

/// Returns a line for each tool and image.
fn text(images: &[(Arch, String)]) -> Result<String> {
    let bpf = ebpf_toolchain::find().map_err(anyhow::Error::msg)?;
    let linker = ebpf_toolchain::find_in_path("bpf-linker").context("no bpf-linker")?;
    let mut text = format!("builder: {}\n", env::consts::ARCH);
    let mut line = |name: &str, said: &str| {
        let _ = writeln!(text, "{name}: {said}");
    };
    line("rustc", &compiler(Path::new("rustc"))?);
    line("rustc for bpf", &compiler(&bpf.rustc())?);
    line("bpf-linker", &first(Command::new(linker).arg("--version"))?);
    line("zig", &first(Command::new(linker::zig()?).arg("version"))?);
    for name in PACKERS {
        line(name, &first(Command::new(name).arg("--version"))?);
    }
    for name in PACKAGES {
        let mut query = Command::new("dpkg-query");
        line(
            name,
            &first(query.args(["--show", "--showformat=${Version}\\n", name]))?,
        );
    }
    for (arch, packages) in images {
        line(&format!("image for {}", arch.name()), packages);
    }
    Ok(text)
}

/// Returns a compiler's version and that of its LLVM.
fn compiler(rustc: &Path) -> Result<String> {
    let said = said_by(Command::new(rustc).arg("-vV"))?;
    let said = String::from_utf8_lossy(&said);
    let llvm = said.lines().find(|line| line.starts_with("LLVM version"));
    let version = said.lines().next().unwrap_or_default();
    Ok(format!("{version}, {}", llvm.unwrap_or("LLVM unknown")))
}

/// Returns the first line that a command prints, in English.
fn first(command: &mut Command) -> Result<String> {
    let said = said_by(command.env("LC_ALL", "C"))?;
    let said = String::from_utf8_lossy(&said);
    let line = said.lines().next().filter(|line| !line.is_empty());
    Ok(line
        .with_context(|| format!("{command:?} says nothing"))?
        .to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::paths;

    #[test]
    fn the_first_line_alone_is_told_and_silence_is_an_error() {
        let says = |text: &str| first(Command::new("printf").arg(text));
        assert_eq!(says("one 1\\ntwo").unwrap(), "one 1");
        assert!(says("").unwrap_err().to_string().contains("says nothing"));
        assert!(first(&mut Command::new("false")).is_err());
    }

    #[test]
    fn a_compiler_is_told_with_its_llvm() {
        let said = compiler(Path::new("rustc")).unwrap();
        assert!(
            said.starts_with("rustc ") && said.contains(", LLVM version: "),
            "{said}"
        );
    }

    #[test]
    fn the_page_names_each_tool_that_decides_about_the_bytes() {
        let page = fs::read_to_string(paths::repo().join("docs/install.md")).unwrap();
        let place = page
            .split("\n* ")
            .find(|part| part.starts_with("**The same bytes") && part.contains(FILE))
            .unwrap();
        for name in ["rustc", "bpf-linker", "zig"]
            .iter()
            .chain(&PACKERS)
            .chain(&PACKAGES)
        {
            assert!(place.contains(name), "{name}");
        }
    }
}
