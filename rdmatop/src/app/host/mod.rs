//! This machine's sources behind the seam: readings become inputs of the model here, and nowhere else.
mod advice;
mod devices;
mod health;
mod maps;
mod processes;

pub use advice::Advice;
pub use devices::DeviceSource;
pub use health::HealthSource;
pub use maps::MapSource;
pub use processes::ProcessSource;

use crate::{model::input::Note, source::platform::Remedy};

/// A remedy as the model holds it.
pub fn note(remedy: &Remedy) -> Note {
    Note {
        what: remedy.what.clone(),
        why: remedy.why.clone(),
        remedy: remedy.remedy.clone(),
    }
}
