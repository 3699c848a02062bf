//! CPU time of other processes in nanoseconds, which equal instructions in this guest.

use std::{
    collections::BTreeMap,
    fs, io,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

/// The interval between two looks at a process.
const LOOK: Duration = Duration::from_millis(20);
/// A refresh is over when the process used no CPU for this long.
const QUIET: Duration = Duration::from_millis(100);
/// A process that is never quiet is measured between two moments after this time.
const GIVE_UP: Duration = Duration::from_secs(3);

fn read(clock: libc::clockid_t) -> io::Result<u64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a whole structure that the kernel fills.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let part = |value: i64| u64::try_from(value).unwrap_or_default();
    Ok(part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec))
}

/// Returns the CPU time of process `pid`: of all threads, also ended ones, user and kernel.
///
/// Read from the process CPU clock, because /proc/PID/schedstat is only the main thread's and adds a running
/// stretch only when the thread leaves the CPU.
pub(crate) fn process(pid: u32) -> Result<u64> {
    let mut clock = 0;
    let id = libc::pid_t::try_from(pid)?;
    // SAFETY: the kernel writes the identifier into `clock`.
    let rc = unsafe { libc::clock_getcpuclockid(id, &raw mut clock) };
    ensure!(rc == 0, "no CPU clock of process {pid}: errno {rc}");
    read(clock).with_context(|| format!("CPU clock of process {pid}"))
}

/// Returns the CPU time of the threads of process `pid` that are off the CPU now, summed by name.
pub(crate) fn threads(pid: u32) -> Result<BTreeMap<String, u64>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let dir = entry?.path();
        let name = fs::read_to_string(dir.join("comm"))?;
        let stat = fs::read_to_string(dir.join("schedstat"))?;
        let time = stat.split(' ').next().and_then(|word| word.parse::<u64>().ok());
        let time = time.with_context(|| format!("{}: {stat:?}", dir.display()))?;
        *all.entry(name.trim().to_owned()).or_default() += time;
    }
    Ok(all)
}

/// Returns the CPU time of the calling thread.
pub(crate) fn own_thread() -> Result<u64> {
    read(libc::CLOCK_THREAD_CPUTIME_ID).context("CPU clock of this thread")
}

/// Returns the least CPU time of this thread for `work`, of `times` runs.
pub(crate) fn least_of(times: u32, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut least = u64::MAX;
    for _ in 0..times {
        let before = own_thread()?;
        work()?;
        least = least.min(own_thread()? - before);
    }
    Ok(least as f64)
}

/// Returns the CPU time of children that were waited for, in whole microseconds (getrusage(2)).
fn children() -> Result<u64> {
    // SAFETY: all-zero is a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a whole structure that the kernel fills.
    let rc = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    ensure!(rc == 0, "getrusage: {}", io::Error::last_os_error());
    let nanos = |time: libc::timeval| {
        u64::try_from(time.tv_sec).unwrap_or_default() * 1_000_000_000
            + u64::try_from(time.tv_usec).unwrap_or_default() * 1000
    };
    Ok(nanos(usage.ru_utime) + nanos(usage.ru_stime))
}

/// Returns the CPU time of the children that `work` starts and waits for. No other child may end meanwhile.
pub(crate) fn of_children(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let before = children()?;
    work()?;
    Ok((children()? - before) as f64)
}

/// Returns the CPU time of a whole run of `command`, which must succeed.
pub(crate) fn of_run(command: &mut Command) -> Result<f64> {
    of_children(|| rdmatop_tests::child::output(command).map(drop))
}

/// Waits until `pid` has worked and is quiet again; returns that moment and its CPU time then.
fn rest(pid: u32) -> Result<(Instant, u64)> {
    let end = Instant::now() + GIVE_UP;
    let mut last = process(pid)?;
    let mut worked = false;
    let mut since = Instant::now();
    loop {
        thread::sleep(LOOK);
        let now = process(pid)?;
        if now != last {
            worked = true;
            last = now;
            since = Instant::now();
        } else if worked && since.elapsed() >= QUIET {
            return Ok((since, now));
        }
        if Instant::now() >= end {
            return Ok((Instant::now(), now));
        }
    }
}

/// Returns the CPU time per second of `pid` over about `window`, from the quiet time after one refresh to
/// that after another: a window that cut a refresh would be wrong by a tenth.
pub(crate) fn per_second(pid: u32, window: Duration) -> Result<f64> {
    let (start, before) = rest(pid)?;
    thread::sleep(window);
    let (end, after) = rest(pid)?;
    Ok((after - before) as f64 / (end - start).as_secs_f64())
}

/// Returns the bytes of eBPF maps, with the ring buffer, that are mapped and present in process `pid`; they
/// are a part of `VmRSS`.
pub(crate) fn mapped(pid: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    Ok(mapped_in(&text) * 1024.0)
}

/// Returns the memory of [`mapped`] in kB, from the text of proc_pid_smaps(5).
fn mapped_in(smaps: &str) -> f64 {
    let mut kilobytes = 0.0;
    let mut map = false;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Rss:") if map => kilobytes += words.next().and_then(|kb| kb.parse().ok()).unwrap_or(0.0),
            Some(word) if word.ends_with(':') => {}
            // The first line of a mapping: its range, its permissions, and finally what is mapped.
            _ => map = line.ends_with("anon_inode:bpf-map"),
        }
    }
    kilobytes
}

/// Returns a line of /proc/PID/status in bytes, for example `VmRSS`. `RssAnon` is the process's own memory;
/// the rest of `VmRSS` is mapped files and eBPF maps.
pub(crate) fn memory(pid: u32, name: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .with_context(|| format!("no {name}"))?;
    let kilobytes: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mapped_maps_are_summed() {
        let smaps = "55d0c0000000-55d0c0100000 r-xp 00000000 00:1f 9   /usr/bin/rdmatop\n\
                     Size:               1024 kB\nRss:                 800 kB\n\
                     7f0000000000-7f0000400000 rw-s 00000000 00:0f 12   anon_inode:bpf-map\n\
                     Size:               4096 kB\nRss:                 100 kB\nVmFlags: rd wr sh\n\
                     7f0000400000-7f0000401000 rw-s 00000000 00:0f 12   anon_inode:bpf-map\n\
                     Rss:                   4 kB\n\
                     7f0000500000-7f0000501000 rw-p 00000000 00:00 0\nRss:                   4 kB\n";
        assert!((mapped_in(smaps) - 104.0).abs() < 0.5);
    }
}
