//! How busy GPUs are.

use rdmatop_model::input::Input;
use rdmatop_sources::seam::{Polled, Wants};
use rdmatop_sources::{gpu::Gpus, root::Root};

/// Asks the GPUs that the driver lists under `root` now, where counters are wanted.
pub fn gpus(root: &Root) -> impl Polled + use<> {
    let mut listed = Gpus::of(root);
    let poll = move |wants: &Wants, out: &mut dyn FnMut(Input)| {
        if wants.only_processes || !wants.counters {
            return;
        }
        let mut send = |sample| out(Input::Gpus(Box::new(sample)));
        if let Some(gpus) = listed.as_mut().filter(|_| wants.last) {
            return gpus.finish().into_iter().for_each(send);
        }
        match listed.as_mut().map(Gpus::poll) {
            Some(Ok(Some(sample))) => send(sample),
            Some(Err(_)) => listed = None,
            Some(Ok(None)) | None => {}
        }
    };
    ("GPUs", poll)
}
