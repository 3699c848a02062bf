//! The whole ABI between rdmatop's eBPF programs and its user space.
//!
//! Both sides compile this crate, so a record, a map key or a counter slot is described once. Everything here
//! is plain integers and byte arrays: no `Option`, no enum and no pointer crosses the kernel border. `zerocopy`
//! refuses to compile a type with padding, so no uninitialised kernel byte can leak either way.
#![no_std]
#![deny(unsafe_code)]

pub mod counters;
pub mod event;
pub mod names;
pub mod offsets;
pub mod verb;
