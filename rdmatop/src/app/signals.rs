//! Signals that end a mode. The live view handles its own, because it has a terminal to give back.

use crate::exit::{Exit, Stop};
use rdmatop_sources::signals::{Ending, Signals};

/// Takes over the signals; fails where the kernel refuses.
pub(super) fn take() -> Result<Signals, Stop> {
    Signals::take().map_err(|e| Stop::failure(format!("cannot handle signals: {e}")))
}

/// Returns the exit status of a mode that a signal ended.
pub(super) fn outcome(ending: Ending) -> Result<Exit, Stop> {
    match ending {
        Ending::Asked => Ok(Exit::Ok),
        Ending::TerminalGone => Err(Stop::failure(
            "the terminal went away (SIGHUP); use nohup to go on without it",
        )),
    }
}

/// Has nothing that this process writes to a terminal stop it. In the background, where the terminal has
/// `stty tostop`, a line would: with programs attached, and again after each SIGCONT before a SIGTERM is
/// seen.
pub(super) fn go_on_in_the_background() {
    // SAFETY: SIG_IGN is no function of ours.
    unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
}
