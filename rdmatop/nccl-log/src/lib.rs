//! What a log of NCCL says about the network: `rdmatop nccl-log`.
//!
//! With NCCL_DEBUG=INFO, NCCL, RCCL and the plugins that log through them print one line for each fact.
//! [`mod@line`] splits a line, [`wrapped`] mends lines that a tool broke, [`fact`], [`channel`] and [`nics`]
//! read the text, `exception` what frameworks print of an error, [`dictionary`] explains what went wrong,
//! [`ras`] reads answers of the RAS service, [`report`] combines all [`process`]es, [`jobs`] finds which
//! ranks belong together, [`verdict`] judges, [`page`] and [`json`] print the result. [`identity`] decides
//! which processes of this machine wrote the log; [`now`] and `compare` set these beside a snapshot. There is
//! no I/O here. A log may contain anything, so all text is sanitized when a line is read.
#![cfg_attr(test, expect(clippy::disallowed_methods, reason = "tests do I/O"))]
#![cfg_attr(test, expect(clippy::disallowed_types, reason = "tests do I/O"))]

pub mod channel;
mod compare;
pub mod dictionary;
mod exception;
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
pub mod ras;
pub mod report;
pub mod verdict;
pub mod warning;
mod why;
pub mod wrapped;

#[cfg(test)]
mod tests;
