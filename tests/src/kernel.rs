//! What rdmatop leaves in the kernel, and modules.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context, Result};

use crate::{child::output, lab, wait};

/// The kernel frees programs after an RCU grace period.
const SETTLE: Duration = Duration::from_mins(1);

/// Runs `body` and wants the kernel to be afterwards as it was before.
pub fn leaves_nothing(body: impl FnOnce() -> Result<()>) -> Result<()> {
    let probes = probes()?;
    let programs = bpf_programs()?;
    body()?;
    wait::until("the end of all probes", SETTLE, || {
        // What a test before this one left may still be on its way out: only what is new counts.
        self::probes().is_ok_and(|now| now.iter().all(|probe| probes.contains(probe)))
    })
    .with_context(|| format!("now: {:#?}", self::probes()))?;
    wait::until("the end of all BPF programs", SETTLE, || {
        bpf_programs().is_ok_and(|now| now.iter().all(|id| programs.contains(id)))
    })
}

/// Waits until somebody has attached programs since there were `before` of them, and attaches no more.
pub fn await_programs(before: usize) -> Result<()> {
    let mut last = (before, 0);
    wait::until("attached programs", SETTLE * 2, || {
        let now = bpf_programs().map_or(before, |ids| ids.len());
        last = if now == last.0 {
            (now, last.1 + 1)
        } else {
            (now, 0)
        };
        // Of a second and more: `wait` looks each 20 ms.
        now > before && last.1 > 75
    })
}

/// Probes registered now: lines of tracefs' `kprobe_events` and of debugfs' `kprobes/list`.
pub fn probes() -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for path in [
        "/sys/kernel/tracing/kprobe_events",
        "/sys/kernel/debug/kprobes/list",
    ] {
        lines.extend(
            fs::read_to_string(path)?
                .lines()
                .map(|line| format!("{path}: {line}")),
        );
    }
    Ok(lines)
}

/// Ids of the BPF programs loaded now.
pub fn bpf_programs() -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    let mut at = 0;
    while let Some(next) = next_program(at)? {
        ids.push(next);
        at = next;
    }
    Ok(ids)
}

/// `BPF_PROG_GET_NEXT_ID` (bpf(2)).
fn next_program(after: u32) -> Result<Option<u32>> {
    const BPF_PROG_GET_NEXT_ID: libc::c_long = 11;
    // The head of `union bpf_attr` for this command: start_id, next_id, open_flags.
    let mut attr = [after, 0, 0];
    // SAFETY: the kernel reads and writes the 12 bytes that it is told of.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_GET_NEXT_ID,
            attr.as_mut_ptr(),
            size_of_val(&attr),
        )
    };
    if rc == 0 {
        return Ok(Some(attr[1]));
    }
    let error = std::io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENOENT) {
        Ok(None)
    } else {
        Err(error.into())
    }
}

/// Unloads and loads rdma_rxe and makes its devices again.
pub fn reload_rxe() -> Result<()> {
    let names = lab::devices()?;
    let links: Result<Vec<_>> = names.iter().map(|name| Ok((name, lab::netdev(name)?))).collect();
    let links = links?;
    output(Command::new("rmmod").arg("rdma_rxe"))?;
    output(Command::new("modprobe").arg("rdma_rxe"))?;
    links.iter().try_for_each(|(name, netdev)| add_link(name, netdev))
}

/// `rdma link add DEVICE type rxe netdev NETDEV`; returns when traffic can start.
pub fn add_link(device: &str, netdev: &str) -> Result<()> {
    output(Command::new("rdma").args(["link", "add", device, "type", "rxe", "netdev", netdev]))?;
    lab::await_gid(device)
}

/// `rdma link delete DEVICE`.
pub fn delete_link(device: &str) -> Result<()> {
    output(Command::new("rdma").args(["link", "delete", device])).map(drop)
}
