//! Maps a file named like NCCL's library into a process, by which rdmatop recognises jobs.

use std::{
    fs::{self, File},
    io,
    os::fd::AsRawFd as _,
};

use anyhow::{Result, ensure};

/// Maps the file for the rest of this process's life.
pub fn map_nccl() -> Result<()> {
    let dir = std::env::temp_dir().join(format!(
        "nccl-{}-{}",
        std::process::id(),
        fs::read_link("/proc/self")?.display()
    ));
    fs::create_dir_all(&dir)?;
    let path = dir.join("libnccl.so.2");
    fs::write(&path, [0; 4096])?;
    let file = File::open(&path)?;
    // SAFETY: the kernel chooses the address; nothing else uses the mapping, which stays until the process
    // ends.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            0,
        )
    };
    ensure!(
        address != libc::MAP_FAILED,
        "mmap: {}",
        io::Error::last_os_error()
    );
    fs::remove_dir_all(&dir)?;
    Ok(())
}
