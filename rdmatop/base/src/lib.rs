//! What all parts of rdmatop share: texts, next steps, and what names and numbers of the kernel mean. No I/O,
//! no clock.
#![cfg_attr(test, expect(clippy::disallowed_methods, reason = "tests do I/O"))]
#![cfg_attr(test, expect(clippy::disallowed_types, reason = "tests do I/O"))]

pub mod driver_log;
pub mod errno;
pub mod exclude;
pub mod fabric;
pub mod ib;
pub mod locked;
pub mod order;
pub mod pause;
pub mod pcie;
pub mod roce;
pub mod step;
pub mod text;
pub mod turns;
pub mod variables;
pub mod wire_bytes;
pub mod wire_errors;
pub mod workload;
