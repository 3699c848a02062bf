//! Views: they read snapshots and events, and write. They know nothing of sources.
pub mod tui;
