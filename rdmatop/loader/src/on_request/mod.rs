//! Sessions beside the one that counts, from the user's request until the user ends them.
pub(crate) mod prober;
pub(crate) mod watcher;
