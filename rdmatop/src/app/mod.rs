//! What ties the sources, the engine and the views together: one mode, one set of sources, one channel.
pub mod host;
pub mod source;
pub mod time;
