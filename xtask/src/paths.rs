//! Paths of the repository, cargo's target directory and the cache.

use std::env;
use std::path::{Path, PathBuf};

/// The repository root.
pub(crate) fn repo() -> PathBuf {
    // cargo sets it at run time. The compiled-in path is for a binary that was started by hand.
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map(PathBuf::from)
        .filter(|dir| dir.ends_with("xtask"))
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    manifest.parent().map_or(manifest.clone(), Path::to_path_buf)
}

/// Returns cargo's target directory: from the environment, or else the one this binary was built into.
pub(crate) fn target() -> PathBuf {
    if let Some(dir) = env::var_os("CARGO_TARGET_DIR") {
        return repo().join(dir);
    }
    let built_into = env::current_exe().ok().and_then(|exe| {
        let profile = exe.parent()?;
        let known = profile.ends_with("debug") || profile.ends_with("release");
        known.then(|| profile.parent().map(Path::to_path_buf))?
    });
    built_into.unwrap_or_else(|| repo().join("target"))
}

/// Returns the cache: `$RDMATOP_CACHE`, or else `.cache` in the repository.
pub(crate) fn cache() -> PathBuf {
    env::var_os("RDMATOP_CACHE").map_or_else(|| repo().join(".cache"), |dir| repo().join(dir))
}

/// Returns the first of `names` that is an executable file in `$PATH` or a system directory.
///
/// The sbin directories are searched too, because Debian leaves them out of an ordinary user's `$PATH`.
pub(crate) fn find_tool(names: &[&str]) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<PathBuf> = env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .collect();
    names
        .iter()
        .find_map(|name| dirs.iter().map(|dir| dir.join(name)).find(|file| file.is_file()))
}
