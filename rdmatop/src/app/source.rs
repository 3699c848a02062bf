//! The seam to the sources, under the name by which the modes know it.
pub use crate::source::seam::*;
