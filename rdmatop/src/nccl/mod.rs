//! What a log of NCCL says of the network: `rdmatop nccl-log`.
//!
//! NCCL, RCCL and the plugins that log through them print one line a fact when NCCL_DEBUG=INFO is set. [`mod@line`] takes a
//! line apart, [`fact`] reads what it says, [`report`] folds the facts of all processes into one picture, [`verdict`]
//! judges it, [`page`] prints it. No I/O here; a log may hold anything, so all text is made safe when a line is read.
pub mod fact;
pub mod line;
pub mod page;
pub mod perf;
pub mod report;
pub mod verdict;
pub mod warning;

#[cfg(test)]
mod tests;
