//! What rdmatop leaves in the kernel; kernel modules.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    process::Command,
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::{
    child::output,
    lab,
    traffic::id,
    wait::{self, PATIENCE},
};

/// Runs `body` and fails unless the kernel is afterwards as it was before.
pub fn leaves_nothing(body: impl FnOnce() -> Result<()>) -> Result<()> {
    let probes = probes()?;
    let programs = bpf_programs()?;
    body()?;
    wait::until("the end of all probes", PATIENCE, || {
        // What an earlier test left may still be going away, so only new probes count.
        self::probes().is_ok_and(|now| now.iter().all(|probe| probes.contains(probe)))
    })
    .with_context(|| format!("now: {:#?}", self::probes()))?;
    wait::until("the end of all BPF programs", PATIENCE, || {
        bpf_programs().is_ok_and(|now| now.iter().all(|id| programs.contains(id)))
    })
}

/// Waits until more programs than `before` are attached and their number no longer changes.
pub fn await_programs(before: usize) -> Result<()> {
    let mut last = (before, 0);
    wait::until("attached programs", PATIENCE, || {
        let now = bpf_programs().map_or(before, |ids| ids.len());
        last = if now == last.0 {
            (now, last.1 + 1)
        } else {
            (now, 0)
        };
        // For more than a second: `wait` looks every 20 ms.
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

/// Returns the ids of the BPF programs loaded now.
pub fn bpf_programs() -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    let mut at = 0;
    while let Some(next) = next_program(at)? {
        ids.push(next);
        at = next;
    }
    Ok(ids)
}

/// Returns how often the kernel skipped each program of process `pid`, by name, from the process's open files
/// in /proc; 0 for a program that was not skipped.
pub fn skipped_programs(pid: u32) -> Result<BTreeMap<String, u64>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        // The file may have been closed meanwhile.
        let Ok(text) = fs::read_to_string(entry?.path()) else {
            continue;
        };
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let (Some(id), Some(misses)) = (value("prog_id:"), value("recursion_misses:")) else {
            continue;
        };
        found.insert(program_name(id.trim().parse()?)?, misses.trim().parse()?);
    }
    Ok(found)
}

/// `BPF_PROG_GET_FD_BY_ID` and `BPF_OBJ_GET_INFO_BY_FD` (bpf(2)).
fn program_name(id: u32) -> Result<String> {
    const GET_FD_BY_ID: libc::c_long = 13;
    const GET_INFO: libc::c_long = 15;
    // `bpf_prog_info.name`, include/uapi/linux/bpf.h.
    const NAME: usize = 64;
    let mut by_id = [id, 0, 0];
    // SAFETY: the kernel reads the 12 bytes that it is told; the result is a new descriptor or -1.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            GET_FD_BY_ID,
            by_id.as_mut_ptr(),
            size_of_val(&by_id),
        )
    };
    let fd = i32::try_from(fd)?;
    if fd < 0 {
        return Err(std::io::Error::last_os_error()).with_context(|| format!("program {id}"));
    }
    // SAFETY: the kernel has just made this descriptor for us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut info = [0u8; NAME + 16];
    // bpf_fd and info_len share the first word.
    let head = u64::from(fd.as_raw_fd().cast_unsigned()) | (info.len() as u64) << 32;
    let mut attr = [head, info.as_mut_ptr() as u64];
    // SAFETY: the kernel writes as many bytes into `info` as it is told; zeroes there request none of the
    // arrays.
    let rc = unsafe { libc::syscall(libc::SYS_bpf, GET_INFO, attr.as_mut_ptr(), size_of_val(&attr)) };
    if rc < 0 {
        return Err(std::io::Error::last_os_error()).with_context(|| format!("info of program {id}"));
    }
    let name = info[NAME..].split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// The kernel's preemption mode, restored on drop.
#[derive(Debug)]
pub struct Preemption {
    before: String,
}

const PREEMPT: &str = "/sys/kernel/debug/sched/preempt";

impl Preemption {
    /// Makes the kernel preempt tasks inside system calls. Returns `None` and prints that `test` is skipped
    /// where its mode is that of its build, as on Debian's arm64 kernels.
    pub fn full(test: &str) -> Result<Option<Self>> {
        let version = fs::read_to_string("/proc/version").context("/proc/version")?;
        if !version.contains("PREEMPT_DYNAMIC") {
            lab::skip(test, "this kernel's preemption mode cannot be changed");
            return Ok(None);
        }
        let modes = fs::read_to_string(PREEMPT).context(PREEMPT)?;
        let before = modes.split(['(', ')']).nth(1);
        let before = before.with_context(|| modes.clone())?.to_owned();
        fs::write(PREEMPT, "full").context(PREEMPT)?;
        Ok(Some(Self { before }))
    }
}

impl Drop for Preemption {
    fn drop(&mut self) {
        // Errors are ignored: the guest ends with the test.
        let _ = fs::write(PREEMPT, &self.before);
    }
}

/// `BPF_PROG_GET_NEXT_ID` (bpf(2)).
fn next_program(after: u32) -> Result<Option<u32>> {
    const BPF_PROG_GET_NEXT_ID: libc::c_long = 11;
    // The beginning of `union bpf_attr` for this command: start_id, next_id, open_flags.
    let mut attr = [after, 0, 0];
    // SAFETY: the kernel reads and writes the 12 bytes that it is told.
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

/// Returns process and number of each user QP that the kernel lists.
pub fn user_qps() -> Result<BTreeSet<(u32, u32)>> {
    let text = output(Command::new("rdma").args(["-j", "resource", "show", "qp"]))?;
    let qps: Value = serde_json::from_str(&text)?;
    let user = qps
        .as_array()
        .into_iter()
        .flatten()
        .filter(|qp| qp["pid"].is_u64());
    user.map(|qp| Ok((id(qp, "pid")?, id(qp, "lqpn")?))).collect()
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
