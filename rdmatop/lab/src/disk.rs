//! The disk of the scenario `nvme`: an NVMe target of the kernel (nvmet_rdma) on a file, and the kernel's
//! host (nvme_rdma) connected to it through one RDMA device.
//!
//! All of its parts have one name, which is made up for this run: everything with that name is ours. The disk
//! outlives this process when that is killed; then `lab down` or the next `lab run` removes it.
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::{fs, io, time::Duration};

use super::{LabError, cannot};
use super::{state::MadeDisk, work::wait};

/// Where the kernel's target is set up (configfs).
const TARGET: &str = "/sys/kernel/config/nvmet";
const CONTROLLERS: &str = "/sys/class/nvme";
/// The port of NVMe over RDMA that IANA assigned.
const SERVICE: &str = "4420";
const BYTES: u64 = 16 << 20;
/// In dependency order. Those that a kernel does not have are skipped, but for the last two.
#[rustfmt::skip] // names, as many as a line has room for
pub(super) const MODULES: [&str; 7] = [
    "nvme_keyring", "nvme_auth", "nvme_core", "nvme_fabrics", "nvmet", "nvme_rdma", "nvmet_rdma",
];
/// What modprobe is asked for; these bring the others.
pub(super) const WANTED: [&str; 2] = ["nvme_rdma", "nvmet_rdma"];

const LIMIT: Duration = Duration::from_secs(20);

fn file(disk: &MadeDisk) -> PathBuf {
    Path::new("/run/rdmatop").join(&disk.name)
}

fn subsystem(disk: &MadeDisk) -> PathBuf {
    Path::new(TARGET).join("subsystems").join(&disk.name)
}

fn port(disk: &MadeDisk) -> PathBuf {
    Path::new(TARGET).join("ports").join(disk.port.to_string())
}

fn setting(path: &Path) -> impl FnOnce(io::Error) -> LabError {
    move |error| cannot(format!("write {}", path.display()), &error)
}

fn set(dir: &Path, name: &str, value: &str) -> Result<(), LabError> {
    let path = dir.join(name);
    fs::write(&path, value).map_err(setting(&path))
}

fn make_dir(path: &Path) -> Result<(), LabError> {
    fs::create_dir(path).map_err(setting(path))
}

/// Makes the disk on an address that belongs to the interface `netdev`. Returns its block device.
pub(super) fn make(disk: &MadeDisk, netdev: &str, address: &str) -> Result<PathBuf, LabError> {
    if !Path::new(TARGET).exists() {
        return Err(LabError::NoConfigfs);
    }
    let file = file(disk);
    let made = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&file);
    made.and_then(|made| made.set_len(BYTES))
        .map_err(setting(&file))?;
    let subsystem = subsystem(disk);
    make_dir(&subsystem)?;
    set(&subsystem, "attr_allow_any_host", "1")?;
    let namespace = subsystem.join("namespaces/1");
    make_dir(&namespace)?;
    // /run is a tmpfs, which takes no O_DIRECT before Linux 6.6.
    set(&namespace, "buffered_io", "1")?;
    set(&namespace, "device_path", &file.display().to_string())?;
    set(&namespace, "enable", "1")?;
    let port = port(disk);
    make_dir(&port)?;
    let address = format!("{address}%{netdev}");
    for (name, value) in [
        ("addr_trtype", "rdma"),
        ("addr_adrfam", "ipv6"),
        ("addr_traddr", &address),
        ("addr_trsvcid", SERVICE),
    ] {
        set(&port, name, value)?;
    }
    // Now it listens.
    let link = port.join("subsystems").join(&disk.name);
    symlink(&subsystem, &link).map_err(setting(&link))?;
    let connect = Path::new("/dev/nvme-fabrics");
    let options = format!(
        "nqn={},transport=rdma,traddr={address},trsvcid={SERVICE},nr_io_queues=1,queue_size=16",
        disk.name
    );
    // One write: the kernel takes each write as a whole request to connect.
    fs::write(connect, options).map_err(setting(connect))?;
    wait(LIMIT, || block_device(disk)).ok_or(LabError::NoDisk)
}

fn is_of(disk: &MadeDisk, dir: &Path) -> bool {
    fs::read_to_string(dir.join("subsysnqn")).is_ok_and(|name| name.trim() == disk.name)
}

fn entries(dir: &str) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// The disk's block device. With multipath each path has one, too, but that is hidden.
fn block_device(disk: &MadeDisk) -> Option<PathBuf> {
    let mut blocks = entries("/sys/block").filter(|dir| is_of(disk, &dir.join("device")));
    let seen =
        blocks.find(|dir| fs::read_to_string(dir.join("hidden")).is_ok_and(|text| text.trim() == "0"))?;
    let path = Path::new("/dev").join(seen.file_name()?);
    path.exists().then_some(path)
}

/// Removes what there is of the disk; true if there was something.
pub(super) fn remove(disk: &MadeDisk) -> Result<bool, LabError> {
    let mut was = false;
    for controller in entries(CONTROLLERS).filter(|dir| is_of(disk, dir)) {
        was = true;
        let path = controller.join("delete_controller");
        match fs::write(&path, "1") {
            // Somebody else was faster.
            Err(error) if controller.exists() => return Err(setting(&path)(error)),
            _ => {}
        }
    }
    let port = port(disk);
    let subsystem = subsystem(disk);
    gone(
        &port.join("subsystems").join(&disk.name),
        fs::remove_file,
        &mut was,
    )?;
    if is_our_port(disk, &port) {
        gone(&port, fs::remove_dir, &mut was)?;
    }
    // The kernel disables a namespace that is removed.
    gone(&subsystem.join("namespaces/1"), fs::remove_dir, &mut was)?;
    gone(&subsystem, fs::remove_dir, &mut was)?;
    gone(&file(disk), fs::remove_file, &mut was)?;
    Ok(was)
}

/// Whether the port is the one that was made for this disk. One with another address, or with a subsystem, is
/// somebody else's.
fn is_our_port(disk: &MadeDisk, port: &Path) -> bool {
    let address = fs::read_to_string(port.join("addr_traddr")).unwrap_or_default();
    let free = fs::read_dir(port.join("subsystems")).is_ok_and(|mut linked| linked.next().is_none());
    let own = format!("%{}", disk.netdev);
    free && (address.trim().is_empty() || address.trim().ends_with(&own))
}

fn gone(path: &Path, remove: fn(PathBuf) -> io::Result<()>, was: &mut bool) -> Result<(), LabError> {
    match remove(path.to_path_buf()) {
        Ok(()) => *was = true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(setting(path)(error)),
    }
    Ok(())
}

/// Whether a controller needs nvme_rdma: when unloaded, that deletes all its controllers, whoever made them.
pub(super) fn has_others() -> bool {
    entries(CONTROLLERS)
        .any(|dir| fs::read_to_string(dir.join("transport")).is_ok_and(|text| text.trim() == "rdma"))
}
