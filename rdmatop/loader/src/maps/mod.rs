//! Reads the maps of a session: counters of QPs, processes and verbs, and what was lost.
mod callers;
mod carried;
#[cfg(test)]
mod keys_tests;
pub mod mapped;
pub(crate) mod rxe_seen;
pub mod skipped;
pub mod slots;
pub mod sweep;
pub(crate) mod unpreempted;
mod verb_table;
