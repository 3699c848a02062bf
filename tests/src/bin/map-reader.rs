//! Reads a large BPF map again and again on one CPU, like a tool that inspects its maps with bpf(2).
//!
//! `map-reader [--cpu 0]`. The kernel runs no kprobe program on a CPU inside such a call. Prints
//! `{"ready":true}`, reads until stdin is closed, and prints `{"reads":..}`.

use std::{
    io,
    mem::size_of_val,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Context as _, Result};
use rdmatop_tests::args::{Args, report, wait_for_stdin_end};
use serde_json::json;

/// `BPF_MAP_CREATE` and `BPF_MAP_LOOKUP_ELEM`, include/uapi/linux/bpf.h.
const CREATE: libc::c_long = 0;
const LOOKUP: libc::c_long = 1;
/// `BPF_MAP_TYPE_ARRAY`.
const ARRAY: u32 = 2;
/// Bytes of the one value: copying it, with programs off, is most of the call.
const VALUE: u32 = 4 << 20;

static ENDED: AtomicBool = AtomicBool::new(false);

/// `union bpf_attr` of a look-up.
#[repr(C)]
struct Lookup {
    map: u64,
    key: u64,
    value: u64,
    flags: u64,
}

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let cpu: usize = args.value("--cpu", 0)?;
    args.finish()?;
    // SAFETY: the set is valid when zeroed, a CPU is added, and the kernel reads as many bytes as it is told.
    let pinned = unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut cpus);
        libc::sched_setaffinity(0, size_of_val(&cpus), &raw const cpus)
    };
    anyhow::ensure!(pinned == 0, "CPU {cpu}: {}", io::Error::last_os_error());
    // map_type, key_size, value_size, max_entries, map_flags.
    let mut create = [ARRAY, 4, VALUE, 1, 0];
    let map = bpf(CREATE, &mut create).context("make a map")?;
    let mut value = vec![0u8; VALUE as usize];
    let key = 0u32;
    thread::spawn(|| {
        let _ = wait_for_stdin_end();
        ENDED.store(true, Ordering::Relaxed);
    });
    report(&json!({"ready": true}))?;
    let mut reads = 0u64;
    while !ENDED.load(Ordering::Relaxed) {
        let mut lookup = Lookup {
            map: u64::from(map.cast_unsigned()),
            key: &raw const key as u64,
            value: value.as_mut_ptr() as u64,
            flags: 0,
        };
        bpf(LOOKUP, &mut lookup).context("read the map")?;
        reads += 1;
    }
    report(&json!({"reads": reads}))
}

fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<i32> {
    // SAFETY: the kernel is told the length of the attributes that it reads; the value behind a pointer in
    // them is as long as the map says.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attr),
            size_of_val(attr),
        )
    };
    match i32::try_from(rc) {
        Ok(rc) if rc >= 0 => Ok(rc),
        _ => Err(io::Error::last_os_error()),
    }
}
