//! Whether a NIC can read and write GPU memory.

use crate::{
    facts::{Facts, Gpu},
    line::Lines,
    words::{count, distinct, names},
};

/// First kernel in which drivers share memory with NICs by DMA-BUF.
const DMABUF: (u32, u32) = (5, 12);

/// Whether the driver of this kernel surely registers such memory (`reg_user_mr_dmabuf`): mlx5 does from that
/// kernel on, also for scalable functions (`mlx5_core.sf`), efa from 5.16 on, bnxt_re (whose function bnxt_en
/// drives) from 6.6 on. Of others some do in newer kernels, and hns does in none.
fn has_dmabuf(driver: &str, kernel: (u32, u32)) -> bool {
    driver.starts_with("mlx5_core") && kernel >= DMABUF
        || driver == "efa" && kernel >= (5, 16)
        || driver == "bnxt_en" && kernel >= (6, 6)
}

const WHAT: &str = "whether NICs reach GPU memory (GPUDirect RDMA)";

/// Whether it is the GPU of DGX Spark (GB10), which has the memory of the CPU. The IDs are those that
/// NVIDIA's kernel takes for it (NV-Kernels #396).
pub(super) fn is_gb10(gpu: &Gpu) -> bool {
    let id = gpu.pci.ids.split(':').nth(1);
    let id = id.and_then(|id| u32::from_str_radix(id.strip_prefix("0x")?, 16).ok());
    gpu.nvidia && id.is_some_and(|id| (0x2e00..=0x2e3f).contains(&id))
}

pub(crate) fn direct(facts: &Facts, out: &mut Lines) {
    if facts.gpus.is_empty() || facts.hardware().next().is_none() {
        return;
    }
    if facts.gpus.iter().all(is_gb10) {
        let why = "GPU and CPU share memory here (GB10): NVIDIA has no GPUDirect RDMA for it";
        return out.skip(WHAT, why, "");
    }
    let gpus = count(facts.gpus.len(), "GPU");
    let version = facts.host.version.unwrap_or_default();
    // Red Hat's 4.18 has parts of later kernels.
    let is_el8 = facts
        .host
        .kernel
        .as_ref()
        .is_some_and(|kernel| kernel.contains(".el8"));
    let new_enough = version >= DMABUF || is_el8;
    let drivers = distinct(facts.hardware().filter_map(|device| device.driver.as_deref()));
    let (register, others): (Vec<&str>, Vec<&str>) = drivers
        .iter()
        .copied()
        .partition(|driver| has_dmabuf(driver, version));
    let memory = &facts.gpu_memory;
    let nvidia = facts.gpus.iter().any(|gpu| gpu.nvidia);
    let way = if memory.peermem {
        Some("peer memory module")
    } else {
        let has_own = facts.hardware().any(|device| device.p2p);
        has_own.then_some("by the driver of the NICs")
    };
    // AMD's module is open, and always shares memory by DMA-BUF.
    let open = if nvidia {
        memory.open_module.known()
    } else {
        Some(&true)
    };
    if let Some(way) = way {
        return out.pass("", format!("{gpus}: NICs can reach their memory ({way})"));
    }
    if open == Some(&true) && !register.is_empty() {
        let register = names(&register);
        out.pass(
            "",
            format!("{gpus}: NICs of {register} can reach their memory (DMA-BUF)"),
        );
        if others.is_empty() {
            return;
        }
    }
    match (open, memory.open_module.unreadable()) {
        (Some(true), _) if new_enough => {
            let drivers = names(&others);
            let why = format!("whether the driver of the NICs ({drivers}) registers DMA-BUF memory is not known");
            out.unknown("", WHAT, why);
        }
        (Some(_), _) if !nvidia => out.warn(
            "",
            "NICs cannot reach GPU memory: this kernel is older than 5.12",
            "Data then takes a copy through the host's memory.",
            "use Linux 5.12 or newer, or ROCm's driver",
        ),
        (None, Some(why)) => out.unknown("", WHAT, why),
        (None, None) => out.warn(
            "",
            format!("{gpus}, and no NVIDIA kernel module is loaded"),
            "Without it neither jobs nor NICs can use the GPUs.",
            "sudo modprobe nvidia; nvidia-smi   # loads the driver until the next boot, and lists what it found",
        ),
        (Some(open), _) => {
            // Amazon's efa reaches the memory of the closed module by itself, that of the open one by
            // efa_nv_peermem, which loads with no other. The kernel's efa uses neither.
            let kind = (drivers == ["efa"], *open);
            let why = match kind {
                (true, false) => "this driver efa has no way to it",
                (true, true) => "efa_nv_peermem is not loaded",
                (false, _) => "nvidia_peermem is not loaded",
            };
            out.warn(
                "",
                format!("NICs cannot reach GPU memory (no GPUDirect RDMA): {why}"),
                "Data then takes a copy through the host's memory, at half the speed or less.",
                match kind {
                    (true, false) => {
                        "install Amazon's EFA driver (aws-efa-installer); or use NVIDIA's open kernel module on Linux 5.16 or newer"
                    }
                    (true, true) => {
                        "install Amazon's EFA driver (aws-efa-installer); then sudo modprobe efa_nv_peermem   # until the next boot"
                    }
                    (false, _) => {
                        "sudo modprobe nvidia_peermem   # until the next boot; or use NVIDIA's open kernel module on Linux 5.12 or newer"
                    }
                },
            );
        }
    }
}
