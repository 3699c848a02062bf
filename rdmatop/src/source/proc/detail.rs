//! The second tier: read once for a process, and possibly large.
use std::io::BufReader;

use super::basic::{ProcKey, dir, read_stat};
use super::environ::relevant;
use super::maps::libraries;
use crate::source::root::Root;

/// An environment larger than this is read up to here.
const ENVIRON_LIMIT: usize = 1 << 20;

/// Details of one process. Each part needs the right to inspect the process (`ptrace_may_access`): a part that is not
/// readable is `None`. All text is safe to print.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcDetail {
    /// Variables that steer RDMA stacks, by order of the environment.
    pub environ: Option<Vec<(String, String)>>,
    /// Loaded libraries of interest, file names such as `libnccl.so.2`.
    pub libraries: Option<Vec<String>>,
}

/// Reads the details of exactly this process; `None` when it ended, even if its number is in use again.
pub fn read_detail(root: &Root, key: ProcKey) -> Option<ProcDetail> {
    let dir = dir(root, key.pid);
    let detail = ProcDetail {
        environ: root
            .bytes(&dir.join("environ"), ENVIRON_LIMIT)
            .map(|raw| relevant(&raw)),
        libraries: root
            .open(&dir.join("maps"))
            .map(|maps| libraries(BufReader::new(maps))),
    };
    // As in read_basic: facts of two processes are not mixed. This also detects a number that was reused before the
    // first read.
    let is_alive = read_stat(root, &dir).is_some_and(|stat| stat.start == key.start);
    is_alive.then_some(detail)
}

#[cfg(test)]
mod tests {
    use super::super::stat::line;
    use super::*;
    use crate::source::fake::Fake;

    const KEY: ProcKey = ProcKey { pid: 7, start: 100 };

    fn fake() -> Fake {
        let fake = Fake::new();
        fake.proc("7/stat", line(7, b"python3", 100));
        fake
    }

    #[test]
    fn every_part_is_read() {
        let fake = fake();
        fake.proc("7/environ", b"HOME=/x\0NCCL_IB_GID_INDEX=3\0");
        fake.proc("7/maps", "1-2 r-xp 0 08:01 3 /usr/lib/libnccl.so.2\n");
        let d = read_detail(&fake.root(), KEY).unwrap();
        assert_eq!(d.environ, Some(vec![("NCCL_IB_GID_INDEX".into(), "3".into())]));
        assert_eq!(d.libraries, Some(vec!["libnccl.so.2".into()]));
    }

    #[test]
    fn what_may_not_be_read_is_unknown_and_not_empty() {
        let d = read_detail(&fake().root(), KEY).unwrap();
        assert_eq!((d.environ, d.libraries), (None, None));
    }

    #[test]
    fn a_reused_number_is_not_the_process_that_was_asked_for() {
        assert_eq!(read_detail(&fake().root(), ProcKey { start: 99, ..KEY }), None);
        assert_eq!(read_detail(&fake().root(), ProcKey { pid: 8, start: 1 }), None);
    }
}
