//! Kernel tests: see `cargo xtask test`.
