//! What tests of several crates share.

pub mod fake;
pub mod fuzz;
