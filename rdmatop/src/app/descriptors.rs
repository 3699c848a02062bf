//! Space in the table of file descriptors.

use std::os::fd::AsFd;

/// More than any mode opens: programs, maps and perf events are some 90.
const MANY: i32 = 255;

/// Makes the kernel enlarge our table of descriptors, before there are threads.
///
/// With threads, each enlargement waits for a grace period of RCU (`expand_fdtable`, fs/file.c): 9 ms in the
/// middle of attaching.
pub(super) fn make_room() {
    // A low RLIMIT_NOFILE refuses this; then the table grows when needed. It keeps its size when this
    // descriptor is closed.
    let _ = rustix::io::fcntl_dupfd_cloexec(std::io::stderr().as_fd(), MANY);
}
