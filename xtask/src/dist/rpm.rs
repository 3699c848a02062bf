//! Makes the RPM package with rpmbuild, which finds by itself the libraries and symbol versions that the
//! program needs.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::deb::MAINTAINER;
use super::tree::{self, PACKAGE, SYSTEMD, said_by};
use crate::arch::Arch;

/// Settings of rpmbuild: files stay unchanged, equal trees make equal bytes, and RHEL 8 can unpack them.
const SETTINGS: [&str; 10] = [
    "source_date_epoch_from_changelog 0",
    // Only the traffic programs need libibverbs.
    "__requires_exclude ^libibverbs",
    "_buildhost localhost",
    "_binary_payload w9.xzdio",
    "_build_id_links none",
    "__os_install_post %{nil}",
    "debug_package %{nil}",
    "use_source_date_epoch_as_buildtime 1",
    "clamp_mtime_to_source_date_epoch 1",
    "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
];

/// The directories that a machine may lack. Without an owner each would stay when the package is removed.
const DIRECTORIES: [&str; 8] = [
    "/usr/lib/systemd",
    "/usr/lib/systemd/system",
    "/usr/share/bash-completion",
    "/usr/share/bash-completion/completions",
    "/usr/share/fish",
    "/usr/share/fish/vendor_completions.d",
    "/usr/share/zsh",
    "/usr/share/zsh/site-functions",
];

/// Returns the name of the file that [`make`] writes.
pub(super) fn file_name(version: &str, arch: Arch) -> String {
    format!("{PACKAGE}-{version}-1.{}.rpm", arch.name())
}

/// Packs the tree below `prefix` as /usr into a package in `out`.
pub(super) fn make(prefix: &Path, arch: Arch, version: &str, epoch: u64, out: &Path) -> Result<()> {
    let top = prefix.with_file_name(format!("{PACKAGE}-{version}-{}.rpm.d", arch.name()));
    let _ = fs::remove_dir_all(&top);
    let file = top.join("package.spec");
    let day = said_by(
        Command::new("date")
            .args(["--utc", "+%a %b %d %Y", &format!("--date=@{epoch}")])
            .env("LC_ALL", "C"),
    )?;
    let day = String::from_utf8_lossy(&day);
    tree::write(&file, spec(prefix, version, day.trim()).as_bytes())?;
    let mut rpmbuild = Command::new("rpmbuild");
    for setting in SETTINGS {
        rpmbuild.args(["--define", setting]);
    }
    rpmbuild
        .arg("--define")
        .arg(format!("_topdir {}", top.display()))
        .arg("--define")
        .arg(format!("_rpmdir {}", out.display()))
        .args(["-bb", "--quiet", "--target", &format!("{}-linux", arch.name())])
        .arg(&file)
        .env("SOURCE_DATE_EPOCH", epoch.to_string());
    said_by(&mut rpmbuild)
        .map(drop)
        .context("Debian: apt-get install rpm")
}

fn spec(prefix: &Path, version: &str, day: &str) -> String {
    format!(
        "\
Name: {PACKAGE}
Version: {version}
Release: 1
Summary: Live view of RDMA devices, processes and queue pairs
License: MIT OR Apache-2.0
Group: System/Monitoring
Packager: {MAINTAINER}
Recommends: libibverbs.so.1()(64bit)
Conflicts: rdmatop

%description
Shows which RDMA device, process and queue pair moves data, how much, and what
happened to each queue pair. Counters come from RDMA netlink and sysfs, and,
with the rights for it, from eBPF programs.

This is not the netlink-only program of the same name.

%install
mkdir -p '%{{buildroot}}'
cp -r '{prefix}' '%{{buildroot}}/usr'
chmod -R u=rwX,go=rX '%{{buildroot}}'

%files
%defattr(-,root,root)
/usr/bin/rdmatop
/usr/lib/rdmatop
/usr/lib/systemd/system/rdmatop-*
/usr/share/man/man1/rdmatop*.1.gz
/usr/share/bash-completion/completions/rdmatop
/usr/share/zsh/site-functions/_rdmatop
/usr/share/fish/vendor_completions.d/rdmatop.fish
%dir {directories}
%dir /usr/share/doc/{PACKAGE}
%doc /usr/share/doc/{PACKAGE}/*.md
%license /usr/share/doc/{PACKAGE}/LICENSE*
%license /usr/share/doc/{PACKAGE}/THIRD-PARTY

# Only when the package goes, not when a newer one takes its place. Where no systemd runs `disable --now` would
# fail before it disables.
%preun
if [ \"$1\" = 0 ] && command -v systemctl >/dev/null; then
    [ ! -d /run/systemd/system ] || systemctl --quiet stop {units} || :
    systemctl --no-reload --quiet disable {units} || :
fi

%changelog
* {day} {MAINTAINER} - {version}-1
- Version {version}: CHANGELOG.md says what is new.
",
        prefix = prefix.display(),
        units = SYSTEMD.join(" "),
        directories = DIRECTORIES.join("\n%dir "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spec_lists_files_and_excludes_the_other_program() {
        let text = spec(Path::new("/a b/tree"), "1.2.3", "Tue Nov 14 2023");
        for line in [
            "Name: rdmatop-bpf",
            "Version: 1.2.3",
            "Conflicts: rdmatop",
            "%dir /usr/share/doc/rdmatop-bpf",
            "%dir /usr/share/zsh",
            "    systemctl --no-reload --quiet disable rdmatop-check.service rdmatop-check.timer rdmatop-lab.service || :",
            "%dir /usr/share/zsh/site-functions",
            "* Tue Nov 14 2023 rdmatop maintainers <rdmatop@localhost> - 1.2.3-1",
        ] {
            assert!(text.lines().any(|there| there == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn the_tree_is_copied_where_a_directory_has_a_blank_in_its_name() {
        let dir = std::env::temp_dir().join(format!("xtask rpm {}", std::process::id()));
        let (tree, root) = (dir.join("tree"), dir.join("build root"));
        tree::write(&tree.join("bin/rdmatop"), b"program").unwrap();
        let text = spec(&tree, "1.2.3", "Tue Nov 14 2023");
        let (_, install) = text.split_once("%install\n").unwrap();
        let (install, _) = install.split_once("%files").unwrap();
        let script = install.replace("%{buildroot}", root.to_str().unwrap());
        said_by(Command::new("sh").args(["-ec", &script])).unwrap();
        assert_eq!(fs::read(root.join("usr/bin/rdmatop")).unwrap(), b"program");
        fs::remove_dir_all(&dir).unwrap();
    }
}
