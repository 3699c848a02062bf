//! Properties of the readers of what drivers and the kernel write, that hold for any input.

use super::{pci, process, read};
use rdmatop_base::text;

/// A value is a part of what was read, a list of CPUs is bounded, names of the rdma cgroup's files are safe
/// to print, and reading a configuration space ends whatever chain of capabilities it has.
pub(crate) fn doctor(raw: &[u8]) {
    let value = read::value(raw);
    assert!(value.is_empty() || raw.windows(value.len()).any(|part| part == value));
    if let Some(all) = std::str::from_utf8(value).ok().and_then(read::cpus) {
        assert!(
            all.iter().all(|cpu| *cpu < 8192) && all.len() <= 8192,
            "{} CPUs",
            all.len()
        );
    }
    for (device, resource, _) in process::entries(raw) {
        for name in [device, resource] {
            assert_eq!(text::sanitize(name.as_bytes()), name);
        }
    }
    if pci::acs_redirects(raw) {
        assert!(raw.len() > 0x100);
    }
}
