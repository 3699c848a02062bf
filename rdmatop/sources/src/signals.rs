//! Signals that end a command which has no screen to give back.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{proc::Status, root::Root};

/// SIGINT, SIGTERM and SIGHUP. SIGPIPE is ignored by the Rust runtime: writes fail with EPIPE instead.
#[derive(Debug)]
pub struct Signals {
    int: Signal,
    term: Signal,
    /// `None` under nohup(1): it makes the signal ignored, which the user asked for.
    hup: Option<Signal>,
}

/// Why a command ends: the signal that it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// SIGINT or SIGTERM: the user wants to end.
    Asked,
    /// SIGHUP.
    TerminalGone,
}

impl Signals {
    /// Takes over the signals, in the context of a runtime.
    pub fn take() -> io::Result<Self> {
        let hup = (!hup_ignored(&Root::default())).then(|| signal(SignalKind::hangup()));
        Ok(Self {
            int: signal(SignalKind::interrupt())?,
            term: signal(SignalKind::terminate())?,
            hup: hup.transpose()?,
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> Ending {
        let hup = async {
            match &mut self.hup {
                Some(hup) => hup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.int.recv() => Ending::Asked,
            _ = self.term.recv() => Ending::Asked,
            _ = hup => Ending::TerminalGone,
        }
    }
}

/// Whether SIGHUP was ignored when we were started: bit 0 of `SigIgn` in /proc/self/status, proc(5).
fn hup_ignored(root: &Root) -> bool {
    let status = Status::read(root, &root.proc("self"));
    let ignored = status.and_then(|status| status.ignored);
    ignored.is_some_and(|signals| signals & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn nohup_is_seen_in_the_mask() {
        let fake = Fake::new();
        assert!(!hup_ignored(&fake.root()));
        fake.proc("self/status", "Name:\tx\nSigIgn:\t0000000000001001\n");
        assert!(hup_ignored(&fake.root()));
        fake.proc("self/status", "SigIgn:\t0000000000001000\n");
        assert!(!hup_ignored(&fake.root()));
    }
}
