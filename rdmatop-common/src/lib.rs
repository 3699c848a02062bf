//! The whole ABI between rdmatop's eBPF programs and its user space.
//!
//! Both sides compile this crate, so it defines each record, map key and counter slot once. What crosses the
//! kernel border is plain integers and byte arrays, never an `Option`, an enum or a reference. `zerocopy`
//! refuses to compile a type with padding, so no uninitialised kernel byte can leak.
#![no_std]
#![deny(unsafe_code)]

pub mod counters;
pub mod devx;
pub mod event;
pub mod ib;
pub mod names;
pub mod offsets;
pub mod provider;
pub mod verb;
pub mod wr;
