//! What rdmatop knows, without I/O, clocks or views.
//!
//! Sources send [`input::Input`]s. The engine folds them into its state and makes facts of it, which are
//! judged ([`judgement`]) and searched for troubles ([`findings`]). It hands out all three as an immutable
//! [`snapshot::Snapshot`], and enriched [`event::Event`]s. Times are arguments.
#![cfg_attr(test, expect(clippy::disallowed_methods, reason = "tests do I/O"))]

pub mod cause;
pub mod engine;
pub mod event;
mod facts;
pub mod fields;
pub mod filter;
pub mod findings;
pub mod input;
pub mod judgement;
pub mod snapshot;
pub mod value;
pub mod watched;

pub use rdmatop_base::ib;

#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
