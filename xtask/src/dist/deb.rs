//! Makes the Debian package with dpkg-deb.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::linker::GLIBC;
use super::tree::{PACKAGE, SYSTEMD, compress, said_by, write};
use crate::arch::Arch;

/// The maintainer field of the package. A packager puts his own name here.
pub(super) const MAINTAINER: &str = "rdmatop maintainers <rdmatop@localhost>";

/// Our licences as separate files; Debian wants them in one file.
const LICENCES: [&str; 3] = ["LICENSE", "LICENSE-MIT", "LICENSE-APACHE"];

/// Returns the file name that Debian's tools expect.
pub(super) fn file_name(version: &str, arch: Arch) -> String {
    format!("{PACKAGE}_{version}-1_{}.deb", arch.debian())
}

/// Packs the tree below `prefix` as /usr into `file`.
pub(super) fn make(prefix: &Path, arch: Arch, version: &str, epoch: u64, file: &Path) -> Result<()> {
    let root = prefix.with_file_name(format!("{PACKAGE}-{version}-{}.deb.d", arch.debian()));
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
    let usr = root.join("usr");
    said_by(Command::new("cp").arg("--recursive").arg(prefix).arg(&usr))?;
    // Debian's zsh looks in this directory for the completions of packages.
    let zsh = usr.join("share/zsh");
    fs::rename(zsh.join("site-functions"), zsh.join("vendor-completions")).context("completions for zsh")?;
    documents(&usr.join("share/doc").join(PACKAGE), version, epoch)?;
    said_by(Command::new("chmod").args(["-R", "u=rwX,go=rX"]).arg(&root))?;
    // The sizes of files alone: the size of a directory depends on its file system.
    let sizes = said_by(
        Command::new("find")
            .arg(&usr)
            .args(["-type", "f", "-printf", "%s\n"]),
    )?;
    let sizes = String::from_utf8_lossy(&sizes);
    let bytes: u64 = sizes.lines().filter_map(|line| line.parse::<u64>().ok()).sum();
    let sums = said_by(
        Command::new("sh")
            .args([
                "-c",
                "find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum",
            ])
            .current_dir(&root),
    )?;
    write(&root.join("DEBIAN/md5sums"), &sums)?;
    write(
        &root.join("DEBIAN/control"),
        control(version, arch, bytes.div_ceil(1024)).as_bytes(),
    )?;
    for (name, text) in scripts() {
        let script = root.join("DEBIAN").join(name);
        write(&script, text.as_bytes())?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    }
    // xz, as Debian 11 cannot read the default of newer tools. File times after the epoch are set to it.
    said_by(
        Command::new("dpkg-deb")
            .args(["--root-owner-group", "-Zxz", "--build"])
            .arg(&root)
            .arg(file)
            .env("SOURCE_DATE_EPOCH", epoch.to_string()),
    )
    .map(drop)
}

fn control(version: &str, arch: Arch, size: u64) -> String {
    format!(
        "\
Package: {PACKAGE}
Version: {version}-1
Architecture: {}
Maintainer: {MAINTAINER}
Installed-Size: {size}
Depends: libc6 (>= {GLIBC})
Recommends: ibverbs-providers, libibverbs1, rdma-core
Conflicts: rdmatop
Section: net
Priority: optional
Description: live view of RDMA devices, processes and queue pairs
 Shows which RDMA device, process and queue pair moves data, how much, and what
 happened to each queue pair. Counters come from RDMA netlink and sysfs, and,
 with the rights for it, from eBPF programs.
 .
 This is not the netlink-only program of the same name.
",
        arch.debian()
    )
}

/// Returns the scripts that dpkg runs when the package goes. Nothing runs when it is installed.
fn scripts() -> [(&'static str, String); 2] {
    let units = SYSTEMD.join(" ");
    [
        (
            "prerm",
            format!(
                "\
#!/bin/sh
set -e
# Before their program goes: rdmatop-lab.service takes its devices away when it is stopped.
if [ \"$1\" = remove ] && [ -d /run/systemd/system ]; then
    deb-systemd-invoke stop {units} >/dev/null || :
fi
"
            ),
        ),
        (
            "postrm",
            format!(
                "\
#!/bin/sh
set -e
if [ \"$1\" = remove ] && [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload >/dev/null || :
fi
# What `systemctl enable` made. dpkg does not know these links, and deb-systemd-helper only its own.
if [ \"$1\" = purge ]; then
    for unit in {units}; do
        for link in /etc/systemd/system/*.wants/$unit; do
            [ -h \"$link\" ] || continue
            rm -f \"$link\"
            # As systemctl does, if it was the only one.
            rmdir \"$(dirname \"$link\")\" 2>/dev/null || :
        done
    done
fi
"
            ),
        ),
    ]
}

/// Makes the documents that Debian wants from those in `doc`.
fn documents(doc: &Path, version: &str, epoch: u64) -> Result<()> {
    let mut copyright = String::new();
    for name in LICENCES {
        let file = doc.join(name);
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        // Debian has the long text of this licence itself.
        if name != "LICENSE-APACHE" {
            let _ = writeln!(copyright, "{text}");
        }
        fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
    }
    copyright.push_str(
        "On Debian systems the Apache License is in /usr/share/common-licenses/Apache-2.0.\n\
         Licences of the crates in the program: THIRD-PARTY.gz in this directory.\n",
    );
    write(&doc.join("copyright"), copyright.as_bytes())?;
    let date = said_by(
        Command::new("date")
            .args(["--utc", "--rfc-email", &format!("--date=@{epoch}")])
            .env("LC_ALL", "C"),
    )?;
    let date = String::from_utf8_lossy(&date);
    let changelog = format!(
        "{PACKAGE} ({version}-1) unstable; urgency=medium\n\n  * Version {version}: changelog.gz says what is new.\n\n \
         -- {MAINTAINER}  {}\n",
        date.trim()
    );
    write(&doc.join("changelog.Debian"), changelog.as_bytes())?;
    fs::rename(doc.join("CHANGELOG.md"), doc.join("changelog")).context("the changelog")?;
    for name in ["changelog", "changelog.Debian", "THIRD-PARTY"] {
        compress(&doc.join(name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_stop_each_unit_and_are_shell() {
        for (name, text) in scripts() {
            for unit in SYSTEMD {
                assert!(text.contains(unit), "{unit} in {name}");
            }
            said_by(Command::new("sh").args(["-n", "-c", &text])).unwrap();
        }
    }

    #[test]
    fn the_package_has_a_name_of_its_own_and_excludes_the_other_program() {
        let text = control("1.2.3", Arch::Aarch64, 42);
        for line in [
            "Package: rdmatop-bpf",
            "Version: 1.2.3-1",
            "Architecture: arm64",
            "Conflicts: rdmatop",
            "Depends: libc6 (>= 2.28)",
            "Installed-Size: 42",
        ] {
            assert!(text.lines().any(|there| there == line), "{line} in\n{text}");
        }
        assert_eq!(file_name("1.2.3", Arch::X86_64), "rdmatop-bpf_1.2.3-1_amd64.deb");
    }
}
