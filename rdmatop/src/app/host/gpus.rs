//! How busy GPUs are.

use crate::app::source::{Polled, Wants};
use rdmatop_model::input::Input;
use rdmatop_sources::{gpu::Gpus, root::Root};

/// Asks the GPUs where counters are wanted.
pub struct GpuSource(Option<Gpus>);

impl GpuSource {
    /// The GPUs that the driver lists under `root` now.
    pub fn new(root: &Root) -> Self {
        Self(Gpus::of(root))
    }
}

impl Polled for GpuSource {
    fn name(&self) -> &'static str {
        "GPUs"
    }

    fn poll(&mut self, wants: &Wants, out: &mut dyn FnMut(Input)) {
        if wants.only_processes || !wants.counters {
            return;
        }
        if let Some(gpus) = self.0.as_mut().filter(|_| wants.last) {
            let sample = gpus.finish();
            return sample
                .into_iter()
                .for_each(|sample| out(Input::Gpus(Box::new(sample))));
        }
        match self.0.as_mut().map(Gpus::poll) {
            Some(Ok(Some(sample))) => out(Input::Gpus(Box::new(sample))),
            Some(Err(_)) => self.0 = None,
            Some(Ok(None)) | None => {}
        }
    }
}
