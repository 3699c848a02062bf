//! Bounded waits: no test hangs, and what was waited for is in the message.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

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
