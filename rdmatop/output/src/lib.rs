//! What is written where a reader may not read: frames that are dropped, lines that wait up to a bound. And
//! the log for the maintainer.
pub mod journal;
pub mod outlet;
pub mod say;
