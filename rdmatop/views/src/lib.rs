//! Views: they get snapshots and events and write them. They never use a source.
pub mod json;
pub mod line;
pub mod tui;
