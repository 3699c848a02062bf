//! Sessions beside the one that counts, from the user's request until the user ends them.
pub(crate) mod prober;
pub(crate) mod watcher;

use std::{thread, time::Duration};

use crate::{
    maps::unpreempted::Unpreempted,
    session::{Session, armed::why_unarmed},
};
use rdmatop_model::cause::Obstacle;
use rdmatop_sources::root::Root;

/// How often to check whether programs can be detached.
const AGAIN: Duration = Duration::from_secs(1);

/// Switches the programs on or off, without making the session that counts miss anything.
fn switch(session: &mut Session, on: bool) -> Result<(), Obstacle> {
    let _unpreempted = Unpreempted::begin();
    session.set_enabled(on)
}

/// Detaches the programs, but not while kprobes are off: that would disable ftrace until the next boot.
fn detach(mut session: Session) {
    let _ = switch(&mut session, false);
    while why_unarmed(&Root::default()).is_some() {
        thread::sleep(AGAIN);
    }
}
