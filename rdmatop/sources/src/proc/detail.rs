//! The second tier: what a process has in its memory, and how it is mapped.
//!
//! For these files the kernel takes the lock of the process's address space. A system call of the process
//! that waits for a file system may hold that lock for ever. The root directory of a process may itself be on
//! a file system that does not answer. So [`Details`](super::Details) lets a helper read them.

use std::io::{BufReader, Read as _};

use serde::{Deserialize, Serialize};

use super::{basic::dir, environ::relevant, maps::mapped, nodes::verbs_files};
use crate::root::Root;
use rdmatop_base::text;

/// A command line longer than this is cut.
const COMMAND_LINE: usize = 4096;
/// An environment larger than this is read up to here.
const ENVIRONMENT: usize = 1 << 20;
/// Libraries are unknown where the list of mappings is longer. The usual limit of 65,530 mappings takes some
/// 7 MB.
const MAPS: u64 = 16 << 20;

/// Details of one process. Environment and libraries need the right to inspect the process
/// (`ptrace_may_access`): a part that is not readable, or was not asked for, is `None`. All text is safe to
/// print.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcDetail {
    /// Arguments joined by blanks; `None` for kernel threads and zombies, too.
    pub cmdline: Option<String>,
    /// Variables that steer RDMA stacks, by order of the environment.
    pub environ: Option<Vec<(String, String)>>,
    /// The variable HOSTNAME, which container runtimes set to the container's host name.
    pub hostname: Option<String>,
    /// Loaded libraries of interest, file names such as `libnccl.so.2`.
    pub libraries: Option<Vec<String>>,
    /// Mappings of memory, counted where the libraries are read; `None`, too, when that ended early.
    pub mappings: Option<u64>,
    /// Whether the process finds a file `/dev/infiniband/uverbs*`.
    pub verbs_files: Option<bool>,
    /// `CLOCK_MONOTONIC` when the reading began, ns: nothing of it is older.
    #[serde(skip)]
    pub read_ns: u64,
}

/// A part of the details, read from one file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Part {
    /// The command line.
    CommandLine,
    /// The environment.
    Environment,
    /// Libraries that it has loaded.
    Libraries,
    /// The device files that it finds.
    VerbsFiles,
}

impl Part {
    /// What the views show.
    pub const SHOWN: &[Self] = &[Self::CommandLine, Self::Environment, Self::Libraries];

    /// What it is called, and its file in /proc, if it is one.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::CommandLine => ("command line", "cmdline"),
            Self::Environment => ("environment", "environ"),
            Self::Libraries => ("libraries", "maps"),
            Self::VerbsFiles => ("device files", ""),
        }
    }

    /// What it is called.
    pub(super) fn words(self) -> &'static str {
        self.names().0
    }

    /// Why a reader of this part has to wait.
    pub(super) fn holder(self) -> &'static str {
        match self {
            Self::CommandLine | Self::Environment | Self::Libraries => {
                "a call of the process holds the lock of its memory, as while it waits for a file system"
            }
            Self::VerbsFiles => "its file system does not answer",
        }
    }

    /// Where it is read.
    pub(super) fn place(self, pid: u32) -> String {
        match self {
            Self::VerbsFiles => "its root directory".to_owned(),
            _ => format!("/proc/{pid}/{}", self.names().1),
        }
    }
}

/// What the helper process answers about one part of the details.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PartAnswer {
    /// A detail of which this part alone is set.
    pub(crate) detail: ProcDetail,
    /// It is too long to be read, and therefore unknown.
    pub(crate) too_long: bool,
}

/// Reads one part, which may wait for ever: from a live /proc only the helper does it.
pub(crate) fn read_part(root: &Root, pid: u32, part: Part) -> PartAnswer {
    let mut told = PartAnswer::default();
    let detail = &mut told.detail;
    let file = dir(root, pid).join(part.names().1);
    match part {
        Part::CommandLine => {
            detail.cmdline = root.bytes(&file, COMMAND_LINE).and_then(|raw| joined(&raw));
        }
        Part::Environment => {
            let raw = root.bytes(&file, ENVIRONMENT);
            detail.environ = raw.as_deref().map(relevant);
            detail.hostname = raw.as_deref().and_then(hostname);
        }
        Part::Libraries => {
            if let Some(maps) = root.open(&file) {
                let mut maps = BufReader::new(maps.take(MAPS));
                let found = mapped(&mut maps);
                told.too_long = maps.get_ref().limit() == 0;
                if let Ok(found) = found
                    && !told.too_long
                {
                    (detail.libraries, detail.mappings) = (Some(found.libraries), found.count);
                }
            }
        }
        Part::VerbsFiles => detail.verbs_files = verbs_files(root, pid),
    }
    told
}

impl ProcDetail {
    /// Adds what another part says.
    pub(super) fn add(&mut self, other: Self) {
        self.cmdline = self.cmdline.take().or(other.cmdline);
        self.environ = self.environ.take().or(other.environ);
        self.hostname = self.hostname.take().or(other.hostname);
        self.libraries = self.libraries.take().or(other.libraries);
        self.mappings = self.mappings.or(other.mappings);
        self.verbs_files = self.verbs_files.or(other.verbs_files);
    }
}

fn joined(raw: &[u8]) -> Option<String> {
    let end = raw.iter().rposition(|b| *b != 0)? + 1;
    let spaced: Vec<u8> = raw[..end]
        .iter()
        .map(|b| if *b == 0 { b' ' } else { *b })
        .collect();
    Some(text::sanitize_bounded(&spaced, COMMAND_LINE))
}

fn hostname(environ: &[u8]) -> Option<String> {
    const LONGEST: usize = 256;
    let value = environ
        .split(|byte| *byte == 0)
        .find_map(|one| one.strip_prefix(b"HOSTNAME="))?;
    Some(text::sanitize_bounded(value, LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    fn all(fake: &Fake, pid: u32) -> ProcDetail {
        let mut detail = ProcDetail::default();
        for part in Part::SHOWN {
            detail.add(read_part(&fake.root(), pid, *part).detail);
        }
        detail
    }

    #[test]
    fn every_part_is_read() {
        let fake = Fake::new();
        fake.proc("7/cmdline", b"ib_send_bw\0-d\0rx\x1be0\0");
        fake.proc("7/environ", b"HOSTNAME=a\x1bpod\0NCCL_IB_GID_INDEX=3\0");
        fake.proc("7/maps", "1-2 r-xp 0 08:01 3 /usr/lib/libnccl.so.2\n");
        let d = all(&fake, 7);
        assert_eq!(d.cmdline.as_deref(), Some("ib_send_bw -d rx\\x1be0"));
        assert_eq!(d.environ, Some(vec![("NCCL_IB_GID_INDEX".into(), "3".into())]));
        assert_eq!(d.hostname.as_deref(), Some("a\\x1bpod"));
        assert_eq!(d.libraries, Some(vec!["libnccl.so.2".into()]));
        assert_eq!(d.mappings, Some(1));
    }

    #[test]
    fn what_may_not_be_read_is_unknown_and_not_empty() {
        let fake = Fake::new();
        fake.proc("7/cmdline", "");
        assert_eq!(all(&fake, 7), ProcDetail::default());
    }

    #[test]
    fn of_mappings_that_are_too_many_no_library_is_known() {
        let fake = Fake::new();
        let line = format!("1-2 r-xp 0 08:01 3 /{}/libnccl.so.2\n", "x".repeat(4000));
        fake.proc("7/maps", line.repeat(1000));
        let told = read_part(&fake.root(), 7, Part::Libraries);
        assert_eq!(
            (told.too_long, told.detail.libraries.map(|all| all.len())),
            (false, Some(1))
        );
        assert_eq!(told.detail.mappings, Some(1000));
        fake.proc("7/maps", line.repeat(5000));
        let told = read_part(&fake.root(), 7, Part::Libraries);
        assert_eq!((told.too_long, told.detail.libraries), (true, None));
        assert_eq!(told.detail.mappings, None);
    }
}
