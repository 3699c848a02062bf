//! The live views that are measured: ours with and without eBPF, and the peer's.

use std::{fs, process::Command, time::Duration};

use anyhow::Result;
use rdmatop_tests::{lab::DEVICE, pty::OnTerminal};

use crate::Bench;

/// A separate home directory, so that the user's settings do not change the measurement.
const HOME: &str = "/tmp/bench-home";
/// On a loaded host a start, with the verifier, takes seconds.
const START: Duration = Duration::from_mins(2);

/// One of the live views.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// rdmatop without options.
    Ours,
    /// rdmatop --no-ebpf.
    OursNoEbpf,
    /// rdmatop --attach kprobe.
    OursKprobe,
    /// rdmatop --attach fentry.
    OursFentry,
    /// rdmatop --attach kprobe --verb-times.
    OursVerbTimes,
    /// The tool that rdmatop is compared with.
    Peer,
}

impl View {
    /// Returns the view's word in the names of values.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ebpf",
            Self::OursNoEbpf => "noebpf",
            Self::OursKprobe => "kprobe",
            Self::OursFentry => "fentry",
            Self::OursVerbTimes => "verb_times",
            Self::Peer => "peer",
        }
    }

    /// Returns the command that starts it; `None` for the peer if none was given.
    pub(crate) fn command(self, bench: &Bench) -> Option<Command> {
        let (program, args): (_, &[&str]) = match self {
            Self::Ours => (&bench.ours, &[]),
            Self::OursNoEbpf => (&bench.ours, &["--no-ebpf"]),
            Self::OursKprobe => (&bench.ours, &["--attach", "kprobe"]),
            Self::OursFentry => (&bench.ours, &["--attach", "fentry"]),
            Self::OursVerbTimes => (&bench.ours, &["--attach", "kprobe", "--verb-times"]),
            Self::Peer => (bench.peer.as_ref()?, &[]),
        };
        let _ = fs::create_dir_all(HOME);
        let mut command = Command::new(program);
        command.args(args).env("HOME", HOME).env_remove("XDG_CONFIG_HOME");
        Some(command)
    }

    /// Returns [`View::command`] with room for `qps` QPs.
    pub(crate) fn command_for(self, bench: &Bench, qps: u32) -> Option<Command> {
        let mut command = self.command(bench)?;
        if qps >= 10_000 && matches!(self, Self::Ours) {
            // The device's own QPs need room too.
            command.args(["--max-qps", &(qps + 16).to_string()]);
        }
        Some(command)
    }

    /// Starts the view and waits for the first row; returns it and the time since the start. `None` as above.
    pub(crate) fn start(self, bench: &Bench) -> Result<Option<(OnTerminal, Duration)>> {
        self.start_for(bench, 0)
    }

    /// Starts the view like [`View::start`], with room for `qps` QPs.
    pub(crate) fn start_for(self, bench: &Bench, qps: u32) -> Result<Option<(OnTerminal, Duration)>> {
        let Some(mut command) = self.command_for(bench, qps) else {
            return Ok(None);
        };
        let view = OnTerminal::start(&mut command)?;
        let row = view.wait_for(&self.first_row()?, START)?;
        Ok(Some((view, row)))
    }

    /// Returns a text of the first row with data: the device's name, or in our views the number of devices,
    /// if the kernel's own QPs are on several.
    fn first_row(self) -> Result<String> {
        let devices = fs::read_dir("/sys/class/infiniband")?.count();
        Ok(if self == Self::Peer || devices == 1 {
            DEVICE.to_owned()
        } else {
            format!("{devices} NICs")
        })
    }
}
