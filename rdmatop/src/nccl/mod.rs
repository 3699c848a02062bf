//! What a log of NCCL says about the network: `rdmatop nccl-log`.
//!
//! With NCCL_DEBUG=INFO, NCCL, RCCL and the plugins that log through them print one line for each fact. [`mod@line`]
//! splits a line, [`fact`] reads its text, [`report`] combines the facts of all processes, [`verdict`] judges them,
//! [`page`] prints the result. Of processes that are alive on this machine [`identity`] says which they are, and [`now`] and
//! `beside` set a snapshot of rdmatop's beside the log. No I/O here; a log may contain anything, so all text is sanitized when a line is read.
mod beside;
pub mod fact;
pub mod identity;
pub mod line;
pub mod now;
mod now_page;
pub mod page;
pub mod perf;
pub mod report;
pub mod verdict;
pub mod warning;

#[cfg(test)]
mod tests;
