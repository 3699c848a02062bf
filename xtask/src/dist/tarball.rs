//! The tarball: equal trees make equal bytes.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::tree;

/// Packs the directory `dir` into `file`, each file with the time `epoch`, root's, in the order of names.
pub(super) fn pack(dir: &Path, file: &Path, epoch: u64) -> Result<()> {
    let (parent, name) = dir
        .parent()
        .zip(dir.file_name())
        .context("a directory without a name")?;
    let mut tar = Command::new("tar");
    tar.args([
        "--create",
        "--format=gnu",
        "--sort=name",
        "--owner=root:0",
        "--group=root:0",
        "--numeric-owner",
    ])
    .args(["--mode=u=rwX,go=rX", "--use-compress-program=gzip -9 --no-name"])
    .arg(format!("--mtime=@{epoch}"))
    .arg("--file")
    .arg(file)
    .arg("--directory")
    .arg(parent)
    .arg(name);
    tree::said_by(&mut tar).map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;
    use std::{env, process};

    use super::*;

    /// A tree whose files are made in the given order, and with other rights when `strict`.
    fn tree(name: &str, order: [&str; 3], strict: bool) -> PathBuf {
        let dir = env::temp_dir()
            .join(format!("xtask-tarball-{}-{name}", process::id()))
            .join("top");
        fs::create_dir_all(dir.join("bin")).unwrap();
        for file in order {
            fs::write(dir.join(file), file).unwrap();
            let mode = u32::from(file.starts_with("bin")) * 0o111 + if strict { 0o600 } else { 0o664 };
            fs::set_permissions(dir.join(file), fs::Permissions::from_mode(mode)).unwrap();
        }
        dir
    }

    #[test]
    fn equal_trees_make_equal_tarballs() {
        let one = tree("one", ["bin/x", "a", "b"], false);
        let other = tree("other", ["b", "bin/x", "a"], true);
        let packed = [one, other].map(|dir| {
            let file = dir.with_extension("tar.gz");
            pack(&dir, &file, 1_700_000_000).unwrap();
            let bytes = fs::read(&file).unwrap();
            fs::remove_dir_all(dir.parent().unwrap()).unwrap();
            bytes
        });
        assert!(packed[0] == packed[1] && !packed[0].is_empty());
    }
}
