//! What rdmatop knows, without I/O, clocks or views.
//!
//! Sources send [`input::Input`]s; the engine folds them into its state and hands out immutable
//! [`snapshot::Snapshot`]s and enriched [`event::Event`]s. Times are arguments.
#![cfg_attr(test, expect(clippy::disallowed_methods, reason = "tests do I/O"))]

pub mod cause;
pub mod engine;
pub mod event;
pub mod fields;
pub mod filter;
pub mod findings;
pub mod input;
pub mod judgement;
pub mod peers;
pub mod snapshot;
pub mod value;
pub mod watched;

pub use rdmatop_base::ib;

#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
