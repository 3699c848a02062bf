//! Waits with limits, so that no test hangs; the message says what was waited for.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// The limit for anything that must happen: a guest with translated instructions, on a machine that also
/// builds and runs another guest, is a hundred times slower than real hardware. A wait ends when its
/// condition holds, so only what never happens takes this long.
pub const PATIENCE: Duration = Duration::from_mins(5);
/// The limit for a program's end that waits for nobody, where that is tested. The emulated kernel needs most
/// of this time to detach programs.
pub const SOON: Duration = Duration::from_mins(1);

const STEP: Duration = Duration::from_millis(20);

/// Calls `ready` until it returns a value, at most for `limit`.
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
