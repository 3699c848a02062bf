//! libFuzzer over the target that `RDMATOP_FUZZ_TARGET` names.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use rdmatop::fuzz::{TARGETS, Target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("RDMATOP_FUZZ_TARGET").unwrap_or_default();
    match TARGETS.iter().find(|(known, _)| *known == name) {
        Some((_, target)) => *target,
        None => panic!("RDMATOP_FUZZ_TARGET={name}: see rdmatop/src/fuzz/mod.rs for the names"),
    }
});

fuzz_target!(|data: &[u8]| TARGET(data));
