//! The traffic programs of `rdmatop lab run`: examples/ of the source, built for the same old glibc.

use std::env;
use std::fs;
use std::iter;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{checks, linker, tree};
use crate::{paths, step};

/// The functions of libibverbs that the programs call. All have the symbol version `IBVERBS_1.1`, which every
/// rdma-core has.
const VERBS: [&str; 17] = [
    "ibv_alloc_pd",
    "ibv_close_device",
    "ibv_create_cq",
    "ibv_create_qp",
    "ibv_dealloc_pd",
    "ibv_dereg_mr",
    "ibv_destroy_cq",
    "ibv_destroy_qp",
    "ibv_free_device_list",
    "ibv_get_device_list",
    "ibv_get_device_name",
    "ibv_modify_qp",
    "ibv_open_device",
    "ibv_query_gid",
    "ibv_query_port",
    "ibv_reg_mr",
    "ibv_wc_status_str",
];

/// Builds all of them in a subdirectory of `work` with the compiler `cc`, and returns that directory.
pub(super) fn build(cc: &Path, own: &[PathBuf], work: &Path) -> Result<PathBuf> {
    let (source, include) = (work.join("examples"), work.join("include"));
    fs::create_dir_all(&include).with_context(|| format!("cannot create {}", include.display()))?;
    // Not all of /usr/include, because zig has the headers of the wanted glibc version.
    symlink("/usr/include/infiniband", include.join("infiniband")).context("cannot link headers")?;
    library(cc, work)?;
    // make handles no paths with blanks. In a copy below `work` all paths can be relative.
    let mut copy = Command::new("cp");
    copy.args(["--recursive", "--no-target-directory"])
        .arg(paths::repo().join("examples"))
        .arg(&source);
    tree::said_by(&mut copy)?;
    let (dir, name) = cc
        .parent()
        .zip(cc.file_name())
        .context("a linker without a directory")?;
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths(iter::once(dir.to_owned()).chain(env::split_paths(&path)))
        .context("a directory with a colon in its name")?;
    let mut make = Command::new("make");
    make.args(["--silent", "OUT=../traffic"])
        .arg(format!("CC={}", name.display()))
        .env("CFLAGS", "-O2 -g0 -s -fPIE -pie -I../include -L../stub")
        .env("PATH", path)
        .current_dir(&source);
    let out = work.join("traffic");
    step::run("dist: build the traffic programs", &mut make)
        .context("Debian: apt-get install make libibverbs-dev")?;
    for file in tree::files(&out)? {
        checks::program(&file, linker::GLIBC, own)?;
    }
    Ok(out)
}

/// Makes an empty library with the name and symbols of libibverbs: this machine has none for another
/// architecture, and the dependencies of its own one need not be searched.
fn library(cc: &Path, work: &Path) -> Result<PathBuf> {
    let dir = work.join("stub");
    let source = format!(
        "void {}(void) {{}}
",
        VERBS.join(
            "(void) {}
void "
        )
    );
    tree::write(&dir.join("verbs.c"), source.as_bytes())?;
    let versions = format!("IBVERBS_1.1 {{ global: {}; local: *; }};\n", VERBS.join("; "));
    tree::write(&dir.join("verbs.map"), versions.as_bytes())?;
    let mut link = Command::new(cc);
    link.args([
        "-shared",
        "-fPIC",
        "-nostdlib",
        "-g0",
        "-Wl,-soname,libibverbs.so.1",
    ])
    .args(["-Wl,--version-script=verbs.map", "-o", "libibverbs.so", "verbs.c"])
    .current_dir(&dir);
    tree::said_by(&mut link)?;
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_traffic_programs_are_linked_without_libibverbs_and_need_it() {
        if !Path::new("/usr/include/infiniband/verbs.h").is_file() {
            eprintln!("SKIPPED: no headers of libibverbs");
            return;
        }
        let work = std::env::temp_dir().join(format!("xtask-traffic-{}", std::process::id()));
        let _ = fs::remove_dir_all(&work);
        fs::create_dir_all(&work).unwrap();
        let library = library(Path::new("cc"), &work).unwrap();
        let source =
            "#include <infiniband/verbs.h>\nint main(void) { return ibv_get_device_list(0) == 0; }\n";
        fs::write(work.join("main.c"), source).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-o", "main", "main.c", "-libverbs"])
            .arg(format!("-L{}", library.display()));
        tree::said_by(cc.current_dir(&work)).unwrap();
        let program = fs::read(work.join("main")).unwrap();
        let has = |text: &str| {
            program
                .windows(text.len())
                .any(|window| window == text.as_bytes())
        };
        assert!(has("libibverbs.so.1") && has("IBVERBS_1.1"));
        fs::remove_dir_all(&work).unwrap();
    }
}
