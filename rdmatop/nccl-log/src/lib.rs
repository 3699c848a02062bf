//! What a log of NCCL says about the network: `rdmatop nccl-log`.
//!
//! With NCCL_DEBUG=INFO, NCCL, RCCL and the plugins that log through them print one line for each fact.
//! [`mod@line`] splits a line, [`wrapped`] mends those that somebody's tool broke, [`fact`], [`channel`] and
//! [`nics`] read the text, [`dictionary`] knows what went wrong, [`report`] combines all [`process`]es,
//! [`jobs`] finds which ranks belong together, [`verdict`] judges, [`page`] and [`json`] print the result. Of
//! processes that are alive on this machine [`identity`] says which they are, and [`now`] and `beside` set a
//! snapshot of rdmatop's beside the log. No I/O here; a log may contain anything, so all text is sanitized
//! when a line is read.
mod beside;
pub mod channel;
pub mod dictionary;
pub mod fact;
pub mod identity;
pub mod jobs;
pub mod json;
pub mod line;
pub mod nics;
pub mod now;
mod now_page;
pub mod page;
pub mod perf;
pub mod process;
pub mod report;
pub mod verdict;
pub mod warning;
mod why;
pub mod wrapped;

#[cfg(test)]
mod tests;
