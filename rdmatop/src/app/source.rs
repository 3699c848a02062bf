//! The seam to the sources, under the name that the modes use.
pub use rdmatop_sources::seam::*;
