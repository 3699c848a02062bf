//! Whether a NIC can read and write GPU memory.

use crate::{facts::Facts, line::Lines, words::count};

/// First kernel in which drivers share memory with NICs by DMA-BUF.
const DMABUF: (u32, u32) = (5, 12);

pub(crate) fn direct(facts: &Facts, out: &mut Lines) {
    if facts.gpus.is_empty() || facts.hardware().next().is_none() {
        return;
    }
    let gpus = count(facts.gpus.len(), "GPU");
    let new_enough = facts.host.version.is_some_and(|version| version >= DMABUF);
    if facts.gpus.iter().all(|gpu| !gpu.nvidia) {
        return if new_enough || facts.gpu_memory.peermem {
            out.pass("", format!("{gpus}: NICs can reach their memory (DMA-BUF)"));
        } else {
            out.warn(
                "",
                "NICs cannot reach GPU memory: this kernel is older than 5.12",
                "Data then takes a copy through the host's memory.",
                "use Linux 5.12 or newer, or ROCm's driver",
            );
        };
    }
    let memory = &facts.gpu_memory;
    if memory.peermem {
        return out.pass(
            "",
            format!("{gpus}: NICs can reach their memory (peer memory module)"),
        );
    }
    match (memory.open_module.known(), memory.open_module.unreadable()) {
        (Some(true), _) if new_enough => out.pass(
            "",
            format!("{gpus}: NICs can reach their memory (DMA-BUF, open NVIDIA module)"),
        ),
        (None, Some(why)) => out.skip("whether NICs reach GPU memory (GPUDirect RDMA)", why, ""),
        (None, None) => out.warn(
            "",
            format!("{gpus}, and no NVIDIA kernel module is loaded"),
            "Without it neither jobs nor NICs can use the GPUs.",
            "sudo modprobe nvidia; nvidia-smi   # loads the driver until the next boot, and lists what it found",
        ),
        (Some(_), _) => out.warn(
            "",
            "NICs cannot reach GPU memory (no GPUDirect RDMA): nvidia_peermem is not loaded",
            "Data then takes a copy through the host's memory, at half the speed or less.",
            "sudo modprobe nvidia_peermem   # until the next boot; or use NVIDIA's open kernel module on Linux 5.12 or newer",
        ),
    }
}
