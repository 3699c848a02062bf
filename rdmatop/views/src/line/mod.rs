//! Text for pipes, files and plain terminals: event lines for `--trace`, tables for `--once`.
pub mod check;
pub mod detail;
pub mod errno;
pub mod event;
pub mod once;
pub mod probes;
pub mod table;
pub mod units;
