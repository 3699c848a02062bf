//! Embeds the list of crates in the program, for tools that look for known vulnerabilities: `cargo audit
//! bin`, trivy, syft. The form is that of cargo-auditable: JSON, compressed by zlib, in section `.dep-v0`.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use flate2::{Compression, read::ZlibDecoder, write::ZlibEncoder};
use object::{Object as _, ObjectSection as _};
use serde_json::{Value, json};

use super::crates::Crate;
use super::tree::{said_by, write};

/// The section's name.
const SECTION: &str = ".dep-v0";

/// Makes an object file with the list in `dir`, with the C compiler `cc`, and returns its path.
pub(super) fn object(crates: &[Crate], cc: &Path, dir: &Path) -> Result<PathBuf> {
    let [source, object] = ["crates.s", "crates.o"].map(|name| dir.join(name));
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::best());
    zlib.write_all(list(crates).to_string().as_bytes())?;
    // The section is not loaded, as the program does not use it. Flag R: the linker keeps it without any
    // reference. Without the GNU-stack note the stack would be executable. The bytes are not included from a
    // file, because zig reuses the object of an equal source even if an included file has changed.
    let mut text = format!("\t.section {SECTION},\"R\",%progbits\n");
    for byte in zlib.finish()? {
        let _ = writeln!(text, "\t.byte {byte}");
    }
    text.push_str("\t.section .note.GNU-stack,\"\",%progbits\n");
    write(&source, text.as_bytes())?;
    said_by(
        Command::new(cc)
            .args(["-c", "crates.s", "-o", "crates.o"])
            .current_dir(dir),
    )?;
    Ok(object)
}

fn list(crates: &[Crate]) -> Value {
    let package = |one: &Crate| {
        let mut package = json!({
            "name": one.name,
            "version": one.version,
            "source": if one.ours { "local" } else { "crates.io" },
        });
        if !one.linked {
            package["kind"] = "build".into();
        }
        if !one.needs.is_empty() {
            package["dependencies"] = one.needs.clone().into();
        }
        if one.name == "rdmatop" {
            package["root"] = true.into();
        }
        package
    };
    json!({"packages": crates.iter().map(package).collect::<Vec<_>>()})
}

/// Checks that a program has this list; returns the number of crates in it.
pub(super) fn check(program: &Path, crates: &[Crate]) -> Result<usize> {
    let bytes = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let file = object::File::parse(&*bytes)?;
    let section = file
        .section_by_name(SECTION)
        .with_context(|| format!("{} has no section {SECTION}", program.display()))?;
    let mut text = String::new();
    ZlibDecoder::new(section.data()?).read_to_string(&mut text)?;
    ensure!(
        serde_json::from_str::<Value>(&text)? == list(crates),
        "{} has another list of crates than cargo",
        program.display()
    );
    Ok(crates.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, linked: bool, needs: &[usize]) -> Crate {
        Crate {
            name: name.to_owned(),
            version: "1.2.3".to_owned(),
            licence: String::new(),
            dir: PathBuf::new(),
            ours: name == "rdmatop",
            linked,
            needs: needs.to_vec(),
        }
    }

    #[test]
    fn a_program_that_was_linked_with_the_list_has_it() {
        let dir = std::env::temp_dir().join(format!("xtask-audit-{}", std::process::id()));
        let crates = [one("cc", false, &[]), one("rdmatop", true, &[0])];
        fs::create_dir_all(&dir).unwrap();
        let object = object(&crates, Path::new("cc"), &dir).unwrap();
        fs::write(dir.join("main.c"), "int main(void) { return 0; }").unwrap();
        let link = |extra: &[&Path]| {
            let mut cc = Command::new("cc");
            said_by(
                cc.args(["-Wl,--gc-sections", "-s", "-o", "program", "main.c"])
                    .args(extra)
                    .current_dir(&dir),
            )
            .unwrap();
            dir.join("program")
        };
        assert_eq!(check(&link(&[&object]), &crates).unwrap(), 2);
        let other = [one("cc", true, &[]), one("rdmatop", true, &[0])];
        assert!(check(&dir.join("program"), &other).is_err());
        assert!(check(&link(&[]), &crates).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_list_has_the_form_of_cargo_auditable() {
        let text = list(&[one("cc", false, &[]), one("rdmatop", true, &[0])]).to_string();
        let wanted = concat!(
            r#"{"packages":[{"kind":"build","name":"cc","source":"crates.io","version":"1.2.3"},"#,
            r#"{"dependencies":[0],"name":"rdmatop","root":true,"source":"local","version":"1.2.3"}]}"#
        );
        assert_eq!(text, wanted);
    }
}
