//! Counts runs of a kernel function with the function tracer, which unlike a kprobe also sees a run that
//! interrupts a traced one.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

const TRACING: &str = "/sys/kernel/tracing";

/// Counts the runs of one function until it is dropped.
#[derive(Debug)]
pub struct Runs(());

impl Runs {
    /// Begins. Must be called before there is traffic, because the kernel patches the function.
    pub fn of(function: &str) -> Result<Self> {
        let runs = Self(());
        set("buffer_size_kb", "4096")?;
        set("set_ftrace_filter", function)?;
        set("current_tracer", "function")?;
        set("trace", "")?;
        Ok(runs)
    }

    /// Returns the runs so far.
    pub fn count(&self) -> Result<u64> {
        let mut sum = 0;
        for cpu in fs::read_dir(Path::new(TRACING).join("per_cpu"))? {
            let path = cpu?.path().join("stats");
            let text = fs::read_to_string(&path)?;
            let value = |name: &str| -> Result<u64> {
                let line = text.lines().find_map(|line| line.strip_prefix(name));
                let line = line.with_context(|| format!("{}: no {name} in {text}", path.display()))?;
                Ok(line.trim().parse()?)
            };
            ensure!(
                value("overrun:")? == 0,
                "the tracer's buffer is too small: {text}"
            );
            sum += value("entries:")?;
        }
        Ok(sum)
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        for (file, value) in [("current_tracer", "nop"), ("set_ftrace_filter", "")] {
            // Errors are ignored: the guest ends with the test.
            let _ = set(file, value);
        }
    }
}

fn set(file: &str, value: &str) -> Result<()> {
    let path = Path::new(TRACING).join(file);
    fs::write(&path, value).with_context(|| format!("write {value:?} to {}", path.display()))
}
