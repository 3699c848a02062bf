//! Views: they get snapshots and events and write. They never look into a source.
pub mod json;
pub mod line;

#[cfg(test)]
pub(crate) mod fixture;
