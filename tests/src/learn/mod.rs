//! docs/learn.md as a play: its commands are run in the lab, and what they print is what the page shows.
//!
//! The commands come from the page itself, so there is no command in it that is not run. `cargo xtask learn`
//! lets the test write the page anew; otherwise the test compares the shape of what is printed: words,
//! columns, events and their number, without the numbers that differ from run to run.

pub mod page;
pub mod play;
pub mod shape;
