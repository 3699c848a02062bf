//! Bounded waits: no test hangs, and what was waited for is in the message.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// How long what must come may take, everywhere: a guest whose instructions are translated, on a machine that
/// builds and runs another guest beside it, takes a hundred times as long as a machine of its own. A wait
/// ends when what it waits for is there, so only what never comes takes this long.
pub const PATIENCE: Duration = Duration::from_mins(5);
/// What an end may take that waits for nobody, where that is tested: nobody would call it hanging. The
/// emulated kernel needs most of it to detach programs.
pub const SOON: Duration = Duration::from_mins(1);

const STEP: Duration = Duration::from_millis(20);

/// Calls `ready` until it gives something, at most for `limit`.
pub fn for_some<T>(what: &str, limit: Duration, mut ready: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = ready()? {
            return Ok(value);
        }
        if Instant::now() >= end {
            bail!("waited {} s for {what}", limit.as_secs());
        }
        thread::sleep(STEP);
    }
}

/// Calls `ready` until it is true, at most for `limit`.
pub fn until(what: &str, limit: Duration, mut ready: impl FnMut() -> bool) -> Result<()> {
    for_some(what, limit, || Ok(ready().then_some(())))
}
