//! What ends a scenario: a signal, its time, or its programs.
use std::fs;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::traffic::Traffic;
use crate::{LabError, cannot};

/// How often programs are looked at.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// The signals that end a scenario, noted from the moment this is made, and its time.
#[derive(Debug)]
pub(super) struct Ending {
    runtime: Runtime,
    signals: Vec<Signal>,
    seconds: Option<Duration>,
}

impl Ending {
    pub(super) fn new(seconds: Option<Duration>) -> Result<Self, LabError> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| cannot("handle signals", &error))?;
        let mut kinds = vec![SignalKind::interrupt(), SignalKind::terminate()];
        // Under nohup(1) SIGHUP is ignored, and that is what the user asked for.
        if !is_ignored(
            &fs::read_to_string("/proc/self/status").unwrap_or_default(),
            libc::SIGHUP,
        ) {
            kinds.push(SignalKind::hangup());
        }
        let context = runtime.enter();
        let signals: Result<Vec<Signal>, _> = kinds.into_iter().map(signal).collect();
        drop(context);
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
        let signals = &mut self.signals;
        let next = async {
            let received = std::future::poll_fn(|context| {
                let mut ready = signals
                    .iter_mut()
                    .map(|signal| signal.poll_recv(context).is_ready());
                if ready.any(|ready| ready) {
                    std::task::Poll::Ready(())
                } else {
                    std::task::Poll::Pending
                }
            });
            tokio::time::timeout(BETWEEN_LOOKS, received).await.is_ok()
        };
        self.runtime.block_on(next)
    }
}

/// Whether the mask `SigIgn` of proc_pid_status(5) has the signal.
fn is_ignored(status: &str, number: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (number - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::is_ignored;

    #[test]
    fn nohup_is_seen() {
        let status = "Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n";
        assert!(is_ignored(status, libc::SIGHUP) && is_ignored(status, libc::SIGPIPE));
        assert!(!is_ignored(status, libc::SIGINT) && !is_ignored("", libc::SIGHUP));
    }
}
