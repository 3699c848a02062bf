//! Makes the tarball; equal trees make equal bytes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::tree;

/// The script in the tarball that installs its other files.
const INSTALL: &str = include_str!("install.sh");

/// Packs the tree `dir` and the script into `file`.
pub(super) fn make(dir: &Path, file: &Path, epoch: u64) -> Result<()> {
    // The script is added to a copy, because the packages are made from the unchanged tree.
    let name = dir.file_name().context("a directory without a name")?;
    let copy = dir.with_extension("tar.d").join(name);
    fs::create_dir_all(&copy).with_context(|| format!("cannot create {}", copy.display()))?;
    tree::said_by(
        Command::new("cp")
            .args(["--recursive", "--no-target-directory"])
            .arg(dir)
            .arg(&copy),
    )?;
    let script = copy.join("install.sh");
    tree::write(&script, INSTALL.as_bytes())?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    pack(&copy, file, epoch)
}

/// Packs the directory `dir` into `file`, sorted by name, each file owned by root and with the time `epoch`.
fn pack(dir: &Path, file: &Path, epoch: u64) -> Result<()> {
    let (parent, name) = dir
        .parent()
        .zip(dir.file_name())
        .context("a directory without a name")?;
    let mut tar = tar(file, epoch, parent);
    tar.arg("--use-compress-program=gzip -9 --no-name").arg(name);
    tree::said_by(&mut tar).map(drop)
}

/// Packs the content of `dir` like [`pack`], with names relative to `dir` and without compression.
pub(super) fn archive(dir: &Path, file: &Path, epoch: u64) -> Result<()> {
    let names = tree::files(dir)?;
    let mut tar = tar(file, epoch, dir);
    tar.args(names.iter().filter_map(|path| path.file_name()));
    tree::said_by(&mut tar).map(drop)
}

/// Returns a tar command that makes equal bytes from equal trees.
fn tar(file: &Path, epoch: u64, directory: &Path) -> Command {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--format=gnu", "--sort=name", "--numeric-owner"])
        .args(["--owner=root:0", "--group=root:0", "--mode=u=rwX,go=rX"])
        .arg(format!("--mtime=@{epoch}"))
        .arg("--file")
        .arg(file)
        .arg("--directory")
        .arg(directory);
    tar
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;
    use std::path::PathBuf;
    use std::{env, process};

    use super::*;
    use crate::paths;

    /// Makes a tree whose files are created in the given order, with other permissions when `strict`.
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

    /// An unpacked tarball and a directory to install it into.
    struct Unpacked(PathBuf);

    impl Unpacked {
        fn new(name: &str, files: &[&str]) -> Self {
            let top = env::temp_dir().join(format!("xtask-install-{}-{name}", process::id()));
            let _ = fs::remove_dir_all(&top);
            for file in files {
                tree::write(&top.join("unpacked").join(file), file.as_bytes()).unwrap();
            }
            tree::write(&top.join("unpacked/install.sh"), INSTALL.as_bytes()).unwrap();
            fs::create_dir_all(top.join("a root")).unwrap();
            Self(top)
        }

        fn root(&self) -> PathBuf {
            self.0.join("a root")
        }

        /// Whether the script succeeded, and its output.
        fn run(&self, prefix: &Path, args: &[&str]) -> (bool, String) {
            let output = self.script(prefix).args(args).output().unwrap();
            let said = [output.stdout, output.stderr].concat();
            (output.status.success(), String::from_utf8(said).unwrap())
        }

        fn script(&self, prefix: &Path) -> Command {
            let mut script = Command::new("sh");
            script
                .arg(self.0.join("unpacked/install.sh"))
                .arg("--prefix")
                .arg(prefix);
            script
        }

        /// Runs the script until it has called `tool` so many times, when it gets the signal.
        fn interrupted(&self, prefix: &Path, tool: &str, calls: usize, signal: &str) {
            let tools = self.0.join("tools");
            let real = paths::find_tool(&[tool]).unwrap();
            let text = format!(
                "#!/bin/sh\n{} \"$@\"\necho >>'{1}/calls'\n[ $(wc -l <'{1}/calls') != {calls} ] || kill -{signal} $PPID\n",
                real.display(),
                tools.display()
            );
            let _ = fs::remove_dir_all(&tools);
            tree::write(&tools.join(tool), text.as_bytes()).unwrap();
            fs::set_permissions(tools.join(tool), fs::Permissions::from_mode(0o755)).unwrap();
            let path = env::var("PATH").unwrap();
            let path = format!("{}:{path}", tools.display());
            let output = self.script(prefix).env("PATH", path).output().unwrap();
            assert!(!output.status.success(), "{tool} {calls}");
            let called = fs::read_to_string(tools.join("calls")).unwrap();
            assert_eq!(called.lines().count(), calls, "{tool}");
        }

        /// Returns all paths below the root.
        fn there(&self) -> Vec<String> {
            let mut find = Command::new("find");
            find.arg(".").current_dir(self.root());
            let found = String::from_utf8(tree::said_by(&mut find).unwrap()).unwrap();
            let mut found: Vec<String> = found.lines().skip(1).map(str::to_owned).collect();
            found.sort();
            found
        }
    }

    impl Drop for Unpacked {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const FILES: [&str; 3] = ["bin/rdmatop", "lib/rdmatop/stream", "share/man/man1/rdmatop.1.gz"];

    #[test]
    fn what_was_installed_goes_again_and_what_was_there_stays() {
        let unpacked = Unpacked::new("undo", &FILES);
        let root = unpacked.root();
        tree::write(&root.join("lib/other"), b"").unwrap();
        fs::create_dir_all(root.join("bin")).unwrap();
        let before = unpacked.there();
        let (_, listed) = unpacked.run(&root, &["--list"]);
        assert_eq!(unpacked.there(), before, "--list changes nothing");
        assert!(unpacked.run(&root, &[]).0);
        assert!(
            FILES
                .iter()
                .all(|file| fs::read_to_string(root.join(file)).unwrap() == *file)
        );
        let installed = unpacked
            .there()
            .into_iter()
            .filter(|name| !before.contains(name) && root.join(name).is_file());
        let mut named: Vec<String> = listed
            .lines()
            .map(|line| line.replace(&format!("{}/", root.display()), "./"))
            .collect();
        named.sort();
        assert_eq!(installed.collect::<Vec<_>>(), named, "it says what it touches");
        tree::write(&root.join("share/mine"), b"").unwrap();
        assert!(unpacked.run(&root, &["--uninstall"]).0);
        let mut after = before;
        after.extend(["./share", "./share/mine"].map(str::to_owned));
        assert_eq!(unpacked.there(), after);
        let (well, said) = unpacked.run(&root, &["--uninstall"]);
        assert!(!well && said.contains("installed nothing there"), "{said}");
    }

    #[test]
    fn root_writes_into_no_directory_of_another_user() {
        if !crate::setup::is_root() {
            eprintln!("SKIPPED: only root can give a directory to another user");
            return;
        }
        let unpacked = Unpacked::new("foreign", &FILES);
        let root = unpacked.root();
        assert!(unpacked.run(&root, &[]).0);
        let before = unpacked.there();
        let note = root.join("share/doc/rdmatop-bpf");
        let refused = || {
            for args in [&[][..], &["--uninstall"]] {
                let (well, said) = unpacked.run(&root, args);
                assert!(!well && said.contains("is not root's alone"), "{said}");
            }
            assert_eq!(unpacked.there(), before);
        };
        for directory in [&root, &root.join("bin"), &note] {
            std::os::unix::fs::chown(directory, Some(65_534), None).unwrap();
            refused();
            std::os::unix::fs::chown(directory, Some(0), None).unwrap();
        }
        fs::set_permissions(&note, fs::Permissions::from_mode(0o1777)).unwrap();
        refused();
        fs::set_permissions(&note, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(unpacked.run(&root, &["--uninstall"]).0);
    }

    #[test]
    fn a_newer_tarball_takes_the_place_of_an_older_one() {
        let unpacked = Unpacked::new("newer", &FILES);
        let prefix = unpacked.root().join("new");
        assert!(unpacked.run(&prefix, &[]).0);
        fs::remove_file(unpacked.0.join("unpacked/lib/rdmatop/stream")).unwrap();
        fs::write(unpacked.0.join("unpacked/bin/rdmatop"), "newer").unwrap();
        assert!(unpacked.run(&prefix, &[]).0);
        assert_eq!(fs::read_to_string(prefix.join("bin/rdmatop")).unwrap(), "newer");
        assert!(!prefix.join("lib/rdmatop/stream").exists());
        assert!(unpacked.run(&prefix, &["--uninstall"]).0);
        assert_eq!(
            unpacked.there(),
            [""; 0],
            "also directories that the older one made"
        );
    }

    #[test]
    fn what_an_interrupted_run_left_can_be_removed_and_installed_over() {
        let unpacked = Unpacked::new("interrupted", &FILES);
        let prefix = unpacked.root().join("new");
        for tool in ["cp", "mv"] {
            for calls in 1..=FILES.len() {
                unpacked.interrupted(&prefix, tool, calls, "KILL");
                assert_ne!(unpacked.there(), [""; 0]);
                let (well, said) = unpacked.run(&prefix, &["--uninstall"]);
                assert!(well, "{said}");
                assert_eq!(unpacked.there(), [""; 0], "{tool} {calls}");
            }
        }
        // Before there is a note to tell what was written, the run takes it away itself.
        unpacked.interrupted(&prefix, "mkdir", 2, "TERM");
        assert_eq!(unpacked.there(), [""; 0]);

        unpacked.interrupted(&prefix, "cp", 2, "KILL");
        fs::set_permissions(
            unpacked.0.join("unpacked/lib/rdmatop/stream"),
            fs::Permissions::from_mode(0o755),
        )
        .unwrap();
        assert!(
            unpacked.run(&prefix, &[]).0,
            "its own files are not those of others"
        );
        let mode = fs::metadata(prefix.join("lib/rdmatop/stream")).unwrap().mode();
        assert_eq!(mode & 0o777, 0o755, "not that of what the first run left");
        let names = unpacked.there().join(" ");
        assert!(!names.contains(".new") && !names.contains(".part"), "{names}");
        assert!(unpacked.run(&prefix, &["--uninstall"]).0);
        assert_eq!(unpacked.there(), [""; 0]);
    }

    #[test]
    fn a_file_of_others_is_neither_overwritten_nor_removed() {
        let unpacked = Unpacked::new("theirs", &FILES);
        let root = unpacked.root();
        for file in FILES {
            for is_link in [false, true] {
                let theirs = root.join(file);
                fs::create_dir_all(theirs.parent().unwrap()).unwrap();
                if is_link {
                    std::os::unix::fs::symlink("nowhere", &theirs).unwrap();
                } else {
                    fs::write(&theirs, "theirs").unwrap();
                }
                let before = unpacked.there();
                let (well, said) = unpacked.run(&root, &[]);
                assert!(
                    !well && said.contains(file) && said.contains("not from this script"),
                    "{said}"
                );
                assert_eq!(unpacked.there(), before, "nothing was written");
                assert!(is_link || fs::read_to_string(&theirs).unwrap() == "theirs");
                fs::remove_file(theirs).unwrap();
            }
        }
        // One that a newer tarball would bring, while an older one is installed.
        let newer = unpacked.0.join("unpacked/lib/rdmatop/newer");
        assert!(unpacked.run(&root, &[]).0);
        fs::write(&newer, "newer").unwrap();
        fs::write(root.join("lib/rdmatop/newer"), "theirs").unwrap();
        let before = unpacked.there();
        assert!(!unpacked.run(&root, &[]).0);
        assert_eq!(unpacked.there(), before);
        assert!(unpacked.run(&root, &["--uninstall"]).0);
        assert_eq!(
            fs::read_to_string(root.join("lib/rdmatop/newer")).unwrap(),
            "theirs"
        );
    }

    #[test]
    fn a_program_of_others_and_a_prefix_in_nowhere_are_left_alone() {
        let unpacked = Unpacked::new("others", &FILES);
        let root = unpacked.root();
        tree::write(&root.join("bin/rdmatop"), b"theirs").unwrap();
        let (well, said) = unpacked.run(&root, &[]);
        assert!(!well && said.contains("not from this script"), "{said}");
        assert_eq!(unpacked.there(), ["./bin", "./bin/rdmatop"]);
        assert!(!unpacked.run(&root.join("a/b"), &[]).0);
        assert!(!unpacked.run(Path::new("here"), &[]).0);
        assert_eq!(unpacked.there().len(), 2);
    }
}
