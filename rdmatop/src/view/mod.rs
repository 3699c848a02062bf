//! Views: they get snapshots and events and write. They never look into a source.
