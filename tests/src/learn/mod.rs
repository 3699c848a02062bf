//! Runs the commands of docs/learn.md in the lab and compares their output with the page.
//!
//! The commands come from the page itself, so each of them is run. With `cargo xtask learn` the test rewrites
//! the page; otherwise it compares the shape of the output: words, columns, events and their number, without
//! the numbers that differ from run to run.

pub mod page;
pub mod play;
pub mod shape;
