//! Why maps or a program could not be made.

use std::io;

use aya::maps::MapError;

/// The step that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("cannot link the object: {0}")]
    Link(String),
    /// A map could not be made.
    #[error(transparent)]
    Map(#[from] MapError),
    #[error("the object has no program {0}")]
    NoProgram(String),
    #[error("{what}")]
    Refused {
        /// Step.
        what: &'static str,
        /// The kernel's answer.
        #[source]
        error: io::Error,
    },
}
