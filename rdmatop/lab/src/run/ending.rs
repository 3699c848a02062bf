//! What ends a scenario: a signal, its time, or its programs.
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::traffic::Traffic;
use crate::{LabError, cannot};
use rdmatop_sources::signals::Signals;

/// How often programs are looked at.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// The signals that end a scenario, noted from the moment this is made, and its time.
#[derive(Debug)]
pub(super) struct Ending {
    runtime: Runtime,
    signals: Signals,
    seconds: Option<Duration>,
}

impl Ending {
    pub(super) fn new(seconds: Option<Duration>) -> Result<Self, LabError> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| cannot("handle signals", &error))?;
        let signals = runtime.block_on(async { Signals::take() });
        Ok(Self {
            runtime,
            signals: signals.map_err(|error| cannot("handle signals", &error))?,
            seconds,
        })
    }

    /// Waits for the end; an error if programs ended by themselves.
    pub(super) fn wait(&mut self, traffic: &mut Traffic) -> Result<(), LabError> {
        let end = self.seconds.map(|seconds| Instant::now() + seconds);
        while end.is_none_or(|end| Instant::now() < end) {
            if self.came() {
                return Ok(());
            }
            if let Some(error) = traffic.ended() {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits a moment for a signal.
    pub(super) fn came(&mut self) -> bool {
        let next = async { timeout(BETWEEN_LOOKS, self.signals.next()).await };
        self.runtime.block_on(next).is_ok()
    }
}
