//! Errors that the kernel logs while rdmatop runs, from `/dev/kmsg`: by level, and by what is known of a line
//! (`driver_log`).
//!
//! Each read(2) returns one record (Documentation/ABI/testing/dev-kmsg):
//! `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;TEXT`, then lines ` KEY=VALUE`, of which ` DEVICE=+pci:0000:3b:00.0`
//! names the device that a driver logged the message for.

use rustix::{
    fd::OwnedFd,
    fs::{Mode, OFlags, SeekFrom, fstat, major, minor, open, seek},
    io::{Errno, read},
    process::geteuid,
};

use rdmatop_base::{
    driver_log::{self, Weight},
    text,
};
use rdmatop_model::{
    cause::{Cause, CauseId, Concerns},
    input::LoggedError,
};

/// The file, and the numbers of the device behind it: a container may have a terminal under that name.
const FILE: &str = "/dev/kmsg";
const NUMBERS: (u32, u32) = (1, 11);
/// Longest record, `PRINTK_MESSAGE_MAX`; 8192 (`CONSOLE_EXT_LOG_MAX`) before Linux 6.4.
const RECORD: usize = 8192;
/// Records that one look reads, in a few milliseconds; the next look reads the rest.
const AT_A_TIME: usize = if cfg!(test) { 8 } else { 4096 };
/// Bytes of a message that are kept.
const TEXT: usize = 240;
/// `KERN_CRIT` and `KERN_ERR`: messages of this level and of more urgent ones.
const CRIT: u32 = 2;
const ERR: u32 = 3;
/// Priorities above this one are what programs have written.
const KERNEL: u32 = 7;

/// What the kernel has logged since this was opened, or why its log cannot be read.
#[derive(Debug)]
pub struct KernelLog {
    file: Result<OwnedFd, Cause>,
    is_behind: bool,
}

impl KernelLog {
    /// Opens the log behind its last record. With the sysctl kernel.dmesg_restrict this needs CAP_SYSLOG; a
    /// later read does not: the kernel checks only the open.
    pub fn open() -> Self {
        let opened = open_at_end().map_err(Some).and_then(|file| file.ok_or(None));
        Self::of(opened.map_err(|errno| unreadable(errno, geteuid().is_root())))
    }

    /// Reads `file`, which does not wait and returns a record each time; or nothing, and says why.
    pub fn of(file: Result<OwnedFd, Cause>) -> Self {
        Self {
            file,
            is_behind: false,
        }
    }

    /// Whether the last look did not come to the end.
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Errors since the last look, or why the log cannot be read.
    pub fn errors(&mut self) -> Result<Vec<LoggedError>, &Cause> {
        let Ok(file) = &self.file else {
            // The cause. A `match` would keep it borrowed where another is written below.
            return self.file.as_ref().map(|_| Vec::new());
        };
        self.is_behind = false;
        let (mut errors, mut record) = (Vec::new(), [0; RECORD]);
        for _ in 0..AT_A_TIME {
            match read(file, &mut record) {
                Ok(0) | Err(Errno::AGAIN) => return Ok(errors),
                Ok(len) => errors.extend(parse(&record[..len])),
                // Records were overwritten before they were read: the next read returns the oldest that is
                // left.
                Err(Errno::PIPE | Errno::INTR) => {}
                Err(errno) => {
                    self.file = Err(unreadable(Some(errno), geteuid().is_root()));
                    return Ok(errors);
                }
            }
        }
        self.is_behind = true;
        Ok(errors)
    }
}

/// Why the log cannot be read; `None`: something else has its name.
fn unreadable(errno: Option<Errno>, root: bool) -> Cause {
    const OF_HOST: &str = "run on the host, or start the container with --device /dev/kmsg --cap-add SYSLOG";
    let (why, remedy) = match errno {
        Some(Errno::NOENT) => (format!("there is no {FILE}, as in most containers"), OF_HOST),
        None => (format!("{FILE} is not the kernel's log here"), OF_HOST),
        // The kernel, or the device rules of a container, do not permit it.
        Some(Errno::PERM | Errno::ACCESS) if root => {
            (format!("root may not read {FILE} in this container"), OF_HOST)
        }
        Some(Errno::PERM | Errno::ACCESS) => (
            format!("{FILE} needs CAP_SYSLOG (sysctl kernel.dmesg_restrict)"),
            "run with sudo",
        ),
        Some(errno) => (
            format!("{FILE}: {}", std::io::Error::from(errno)),
            if root {
                "look at them by dmesg"
            } else {
                "look at them with `sudo dmesg --level=emerg,alert,crit,err`"
            },
        ),
    };
    Cause {
        id: CauseId::NoKernelLog,
        concerns: Concerns::Host,
        what: "Errors that NIC drivers log are not watched".into(),
        why,
        remedy: remedy.into(),
    }
}

#[expect(clippy::disallowed_methods, reason = "the kernel alone makes that file")]
fn open_at_end() -> rustix::io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = open(FILE, flags, Mode::empty())?;
    let device = fstat(&file)?.st_rdev;
    if (major(device), minor(device)) != NUMBERS {
        return Ok(None);
    }
    seek(&file, SeekFrom::End(0))?;
    Ok(Some(file))
}

/// A record of the kernel's own that is known to be bad, or that is of level err or worse and not known to be
/// harmless; `None` for any other.
pub fn parse(record: &[u8]) -> Option<LoggedError> {
    let (head, body) = split(record, b';')?;
    let (priority, _) = split(head, b',')?;
    // The upper bits are the facility: 0 is the kernel, any other is a program that wrote to the log.
    let priority: u32 = std::str::from_utf8(priority).ok()?.parse().ok()?;
    if priority > KERNEL {
        return None;
    }
    let mut lines = body.split(|byte| *byte == b'\n');
    let said = lines.next().filter(|said| !said.is_empty())?;
    let said = text::sanitize_bounded(said, TEXT);
    let weight = match driver_log::of(&said) {
        Some(known) => known.weight,
        None if priority <= CRIT => Weight::Critical,
        None if priority <= ERR => Weight::Warning,
        None => Weight::Harmless,
    };
    if weight == Weight::Harmless {
        return None;
    }
    let device = lines.find_map(|line| line.strip_prefix(b" DEVICE="));
    Some(LoggedError {
        text: said,
        device: device.map(|device| text::sanitize_bounded(device, TEXT)),
        critical: weight == Weight::Critical,
        ours: false,
    })
}

fn split(bytes: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let place = bytes.iter().position(|byte| *byte == at)?;
    Some((&bytes[..place], &bytes[place + 1..]))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_error_of_the_kernel_has_its_text_and_its_device() {
        let record = b"3,1021,5140900,-;mlx5_core 0000:3b:00.0: cmd_work_handler: failed\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n";
        assert_eq!(
            parse(record),
            Some(LoggedError {
                text: "mlx5_core 0000:3b:00.0: cmd_work_handler: failed".into(),
                device: Some("+pci:0000:3b:00.0".into()),
                critical: false,
                ours: false,
            })
        );
        // The worst line of mlx5 is a warning.
        let worst = b"4,7,9,-;mlx5_core 0000:3b:00.0: wait_func:1186:(pid 4): ACCESS_REG(0x805) timeout. Will cause a leak of a command resource\n";
        assert!(parse(worst).is_some_and(|error| error.critical));
        let bare = parse(b"0,1,2,-,caller=T1;panic\x1b[2J").unwrap();
        assert_eq!((bare.text.as_str(), bare.device), ("panic\\x1b[2J", None));
        assert!(bare.critical, "its level says so");
    }

    #[test]
    fn warnings_and_what_programs_wrote_are_no_errors_of_the_kernel() {
        for record in [
            "4,1,2,-;a warning",
            "12,1,2,-;mlx5_core 0000:3b:00.0: timeout. Will cause a leak of a command resource",
            "3,1,2,-;mlx5_core 0000:3b:00.0: Detected insufficient power on the PCIe slot (27W).",
            "6,1,2,-;for information",
            "11,1,2,-;infiniband rxe0: a program wrote this as an error",
            "3,1,2,-;",
            "3,1,2,-",
            "x,1,2,-;text",
            "",
        ] {
            assert_eq!(parse(record.as_bytes()), None, "{record}");
        }
    }

    #[test]
    fn a_log_that_cannot_be_read_says_why_and_what_to_do_here() {
        let said = |errno, root| {
            let cause = unreadable(errno, root);
            assert_eq!(cause.id, CauseId::NoKernelLog);
            format!("{}; {}", cause.why, cause.remedy)
        };
        let user = said(Some(Errno::PERM), false);
        assert_eq!(
            user,
            "/dev/kmsg needs CAP_SYSLOG (sysctl kernel.dmesg_restrict); run with sudo"
        );
        // root gains nothing from sudo.
        let all = [Errno::PERM, Errno::ACCESS, Errno::NOENT, Errno::IO, Errno::INVAL].map(Some);
        for errno in all.into_iter().chain([None]) {
            assert!(!said(errno, true).contains("sudo"), "{errno:?}");
        }
        assert!(said(Some(Errno::NOENT), true).contains("--device /dev/kmsg"));
    }

    #[test]
    fn a_look_that_does_not_come_to_the_end_says_so_and_loses_nothing() {
        let (kernel, file) = UnixDatagram::pair().unwrap();
        file.set_nonblocking(true).unwrap();
        let mut log = KernelLog::of(Ok(file.into()));
        // Harmless ones are records, too.
        for level in (0..=AT_A_TIME).map(|at| 3 + at % 2) {
            let record = format!("{level},1,2,-;infiniband rxe0: failed");
            kernel.send(record.as_bytes()).unwrap();
        }
        let mut look = || (log.errors().unwrap().len(), log.is_behind());
        assert_eq!(
            [look(), look(), look()],
            [(AT_A_TIME / 2, true), (1, false), (0, false)]
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_text_is_bounded(record: Vec<u8>) {
            let with_head = [b"3,1,2,-;".as_slice(), &record].concat();
            for record in [&record, &with_head] {
                if let Some(error) = parse(record) {
                    prop_assert!(error.text.len() <= TEXT);
                    prop_assert_eq!(text::sanitize(error.text.as_bytes()), error.text);
                }
            }
        }
    }
}
