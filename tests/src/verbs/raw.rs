//! A connected QP of a device for which rdma-core has no library.

use std::{
    ffi::{CStr, CString, c_char, c_int},
    fs, io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    path::Path,
};

use anyhow::{Context as _, Result, bail, ensure};

unsafe extern "C" {
    fn raw_context(file: *const c_char, step: *mut *const c_char) -> c_int;
    safe fn raw_dmabuf() -> c_int;
    safe fn raw_register(fd: c_int, dmabuf: c_int) -> c_int;
    safe fn raw_devx_create(fd: c_int, opcode: u16) -> c_int;
    safe fn raw_devx_modify(fd: c_int, handle: c_int) -> c_int;
    safe fn raw_devx_destroy(fd: c_int, handle: c_int) -> c_int;
    fn raw_connected_qp(
        file: *const c_char,
        kind: u32,
        port: u32,
        gid: *const u8,
        sgid_index: u32,
        path_mtu: u32,
        qpn: *mut u32,
        step: *mut *const c_char,
    ) -> c_int;
}

/// The QP lives as long as the file is open.
#[derive(Debug)]
pub struct RawQp {
    file: OwnedFd,
    /// The QP's number.
    pub qpn: u32,
}

impl RawQp {
    /// Makes a QP of type `kind` (`enum ib_uverbs_qp_type`) in RTS of a port, `DEVICE` (its port 1) or
    /// `DEVICE/PORT`, which sends to itself from the GID at `sgid_index` with packets of `mtu` bytes; `away`:
    /// to its number at an address that is not the device's.
    pub fn connected(port: &str, kind: u32, sgid_index: u32, mtu: u32, away: bool) -> Result<Self> {
        let (device, port) = port.split_once('/').unwrap_or((port, "1"));
        let port: u32 = port.parse().with_context(|| format!("{device}/{port}"))?;
        let file = CString::new(uverbs_file(device)?)?;
        let mut gid = gid(device, port, sgid_index)?;
        gid[15] ^= u8::from(away) << 7;
        // enum ibv_mtu: 256 bytes are 1.
        let path_mtu = mtu.ilog2() - 7;
        let (mut qpn, mut step) = (0, c"".as_ptr());
        // SAFETY: the file's name ends with 0 and the GID has 16 bytes; the call writes only the number and
        // the step, which outlive it.
        let fd = unsafe {
            raw_connected_qp(
                file.as_ptr(),
                kind,
                port,
                gid.as_ptr(),
                sgid_index,
                path_mtu,
                &raw mut qpn,
                &raw mut step,
            )
        };
        let file = opened(device, fd, step)?;
        Ok(Self { file, qpn })
    }

    /// Registers a page of this process's memory, or a DMA-BUF.
    pub fn register(&self, dmabuf: Option<&OwnedFd>) -> Result<()> {
        let rc = raw_register(self.file.as_raw_fd(), dmabuf.map_or(-1, OwnedFd::as_raw_fd));
        ensure!(rc == 0, "register: {}", io::Error::from_raw_os_error(-rc));
        Ok(())
    }
}

/// A DMA-BUF of the kernel's `udmabuf`, in the place of a GPU's.
pub fn dmabuf() -> Result<OwnedFd> {
    let fd = raw_dmabuf();
    ensure!(fd >= 0, "make a DMA-BUF: {}", io::Error::from_raw_os_error(-fd));
    // SAFETY: the call opened it for this caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens `device`, without a QP, until the file is closed.
pub fn context(device: &str) -> Result<OwnedFd> {
    let file = CString::new(uverbs_file(device)?)?;
    let mut step = c"".as_ptr();
    // SAFETY: the file's name ends with 0; the call writes only the step, which outlives it.
    let fd = unsafe { raw_context(file.as_ptr(), &raw mut step) };
    opened(device, fd, step)
}

/// Has the device of `file` make an object past ib_core, as mlx5's libraries do, by a command with this
/// opcode. Returns its handle.
pub fn devx_create(file: &OwnedFd, opcode: u16) -> Result<i32> {
    let handle = raw_devx_create(file.as_raw_fd(), opcode);
    ensure!(
        handle >= 0,
        "make by {opcode:#x}: {}",
        io::Error::from_raw_os_error(-handle)
    );
    Ok(handle)
}

/// Has it change one, by a call that fails after the change.
pub fn devx_modify(file: &OwnedFd, handle: i32) -> Result<()> {
    let error = io::Error::from_raw_os_error(-raw_devx_modify(file.as_raw_fd(), handle));
    ensure!(
        error.raw_os_error() == Some(libc::EFAULT),
        "change {handle}: {error}"
    );
    Ok(())
}

/// Has it destroy one.
pub fn devx_destroy(file: &OwnedFd, handle: i32) -> Result<()> {
    let rc = raw_devx_destroy(file.as_raw_fd(), handle);
    ensure!(rc == 0, "destroy {handle}: {}", io::Error::from_raw_os_error(-rc));
    Ok(())
}

/// The file that a call opened for this caller, or why it opened none: `step` is static text.
fn opened(device: &str, fd: c_int, step: *const c_char) -> Result<OwnedFd> {
    if fd < 0 {
        let error = io::Error::from_raw_os_error(-fd);
        // SAFETY: it is static text that ends with 0.
        let step = unsafe { CStr::from_ptr(step) };
        bail!("{device}: {}: {error}", step.to_string_lossy());
    }
    // SAFETY: the call opened it for this caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The device's file below /dev.
pub fn uverbs_file(device: &str) -> Result<String> {
    let classes = fs::read_dir("/sys/class/infiniband_verbs")?.flatten();
    let is_it = |path: &Path| fs::read_to_string(path.join("ibdev")).is_ok_and(|name| name.trim() == device);
    let class = classes.map(|entry| entry.path()).find(|path| is_it(path));
    let class = class.with_context(|| format!("{device} has no verbs file"))?;
    let name = class.file_name().context("a name")?.to_string_lossy();
    Ok(format!("/dev/infiniband/{name}"))
}

fn gid(device: &str, port: u32, index: u32) -> Result<[u8; 16]> {
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/gids/{index}");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    let digits = text.trim().replace(':', "");
    let number = u128::from_str_radix(&digits, 16).with_context(|| format!("{path}: {text}"))?;
    Ok(number.to_be_bytes())
}
