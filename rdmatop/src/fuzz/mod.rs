//! What fuzzing may call: each reader of foreign bytes, with properties that hold for any input.
//!
//! Not part of the library: `tests/fuzz/main.rs` runs these for seconds, libFuzzer for hours
//! (docs/fuzzing.md). A violated property panics.
mod binary;
mod files;

/// A reader and its properties.
pub type Target = fn(&[u8]);

/// By name; the corpus of each is in a directory with that name.
pub const TARGETS: &[(&str, Target)] = &[
    ("btf", binary::btf),
    ("cgroup", files::cgroup),
    ("counters", files::counters),
    ("dcb", rdmatop_sources::fuzz::dcb),
    ("doctor", crate::app::doctor::fuzz::doctor),
    ("environ", files::environ),
    ("ethtool", rdmatop_sources::fuzz::ethtool),
    ("event", binary::event),
    ("filter", files::filter),
    ("hw_counters", files::hw_counters),
    ("kernel_log", files::kernel_log),
    ("lab_state", rdmatop_lab::fuzz::state),
    ("maps", files::maps),
    ("nccl_log", files::nccl_log),
    ("netlink", binary::netlink),
    ("proc", files::proc),
    ("sanitize", files::sanitize),
    ("settings", files::settings),
    ("sock_diag", rdmatop_sources::fuzz::sock_diag),
];

/// Asserts that a view may print the text: one line, nothing that controls a terminal.
fn assert_safe(text: &str) {
    assert_eq!(
        rdmatop_base::text::sanitize(text.as_bytes()),
        text,
        "not safe to print"
    );
}

/// Asserts that the text is no longer than an escape of each of its bytes.
fn assert_bounded(text: &str, raw: &[u8]) {
    assert!(
        text.len() <= 8 * raw.len(),
        "{} bytes of {}",
        text.len(),
        raw.len()
    );
}
