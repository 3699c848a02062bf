//! Room for file descriptors.

use std::os::fd::AsFd;

/// More than any mode opens: programs, maps and perf events are some 90.
const MANY: i32 = 255;

/// Has the kernel make its table of our descriptors large enough, before there are threads.
///
/// With threads each time that it grows waits for a grace period of RCU (`expand_fdtable`, fs/file.c), which is 9 ms in the
/// middle of attaching.
pub(super) fn make_room() {
    // A low RLIMIT_NOFILE refuses it; then the table grows as it has to. It keeps its size when this is closed again.
    let _ = rustix::io::fcntl_dupfd_cloexec(std::io::stderr().as_fd(), MANY);
}
