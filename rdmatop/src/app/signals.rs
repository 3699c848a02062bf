//! Signals that end a mode. The live view handles its own, because it has a terminal to give back.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{Exit, Stop};
use rdmatop_sources::{proc::Status, root::Root};

/// SIGINT, SIGTERM and SIGHUP. SIGPIPE is ignored by the Rust runtime: writes fail with EPIPE instead.
#[derive(Debug)]
pub(super) struct Signals {
    int: Signal,
    term: Signal,
    /// `None` under nohup(1): it makes the signal ignored, which the user asked for.
    hup: Option<Signal>,
}

/// Which signal came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// SIGINT or SIGTERM: the user wants to end.
    Asked,
    TerminalGone,
}

impl Signals {
    /// Takes over the signals.
    pub(super) fn take() -> Result<Self, Stop> {
        let ignored = hup_ignored(&Root::default());
        let open = || -> io::Result<Self> {
            Ok(Self {
                int: signal(SignalKind::interrupt())?,
                term: signal(SignalKind::terminate())?,
                hup: if ignored {
                    None
                } else {
                    Some(signal(SignalKind::hangup())?)
                },
            })
        };
        open().map_err(|e| Stop::failure(format!("cannot handle signals: {e}")))
    }

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) -> Ending {
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

impl Ending {
    pub(super) fn outcome(self) -> Result<Exit, Stop> {
        match self {
            Self::Asked => Ok(Exit::Ok),
            Self::TerminalGone => Err(Stop::failure(
                "the terminal went away (SIGHUP); use nohup to go on without it",
            )),
        }
    }
}

/// Has nothing that this process writes to a terminal stop it. In the background, where the terminal has
/// `stty tostop`, a line would: with programs attached, and again after each SIGCONT before a SIGTERM is
/// seen.
pub(super) fn go_on_in_the_background() {
    // SAFETY: SIG_IGN is no function of ours.
    unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
}

/// Whether SIGHUP was ignored when we were started: bit 0 of `SigIgn` in /proc/self/status, proc(5).
fn hup_ignored(root: &Root) -> bool {
    let Some(raw) = root.bytes(&root.proc("self/status"), Status::LIMIT) else {
        return false;
    };
    String::from_utf8_lossy(&raw)
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_sources::fake::Fake;

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
