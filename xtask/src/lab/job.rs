//! The files of the job share, which tell the guest what to run.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::kernel::Kernel;
use super::nic::Ready;

/// One job for a guest.
pub(crate) struct Job {
    /// The command and its arguments.
    pub(crate) command: Vec<OsString>,
    /// Environment variables of the job.
    pub(crate) env: Vec<(&'static str, OsString)>,
    /// Working directory.
    pub(crate) dir: PathBuf,
    /// A writable directory shared with the guest, at the same path there.
    pub(crate) out: PathBuf,
    /// Host directories that the guest must see even if they lie under /tmp or /run, or its root is another.
    pub(crate) keep: Vec<PathBuf>,
    /// Number of rxe devices.
    pub(crate) devices: u32,
    /// Whether the guest's root is not this machine's. It then sees only the directories of `keep`, which
    /// must be real paths.
    pub(crate) foreign: bool,
    /// An additional NIC.
    pub(super) nic: Option<Ready>,
    /// Whether to connect rxa and rxb.
    pub(crate) wire: bool,
    /// Rows and columns, if the job has a terminal.
    pub(crate) terminal: Option<(u16, u16)>,
    /// The text that ends each output stream.
    pub(crate) marker: String,
}

/// Quotes `word` for a POSIX shell.
pub(crate) fn quote(word: &OsStr) -> OsString {
    let mut quoted = vec![b'\''];
    for &byte in word.as_bytes() {
        if byte == b'\'' {
            quoted.extend_from_slice(b"'\\''");
        } else {
            quoted.push(byte);
        }
    }
    quoted.push(b'\'');
    OsString::from_vec(quoted)
}

impl Job {
    /// Writes the job share into `dir`.
    pub(crate) fn write(&self, dir: &Path, kernel: &Kernel) -> Result<()> {
        let write = |name: &str, data: &[u8]| {
            fs::write(dir.join(name), data)
                .with_context(|| format!("cannot write {name} in {}", dir.display()))
        };
        write("devices.sh", include_bytes!("devices.sh"))?;
        write("conf", self.conf(kernel).as_bytes())?;
        write("job.sh", self.script().as_bytes())?;
        let mut keep = Vec::new();
        for path in self.keep.iter().chain([&kernel.dir, &self.dir]) {
            keep.extend_from_slice(path.as_os_str().as_bytes());
            keep.push(b'\n');
        }
        write("keep", &keep)
    }

    /// Returns the shell variables for init and devices.sh.
    fn conf(&self, kernel: &Kernel) -> OsString {
        let (rows, cols) = self.terminal.unwrap_or((24, 80));
        let mut conf = OsString::new();
        for (name, value) in [
            ("LAB_DEVICES", OsString::from(self.devices.to_string())),
            (
                "LAB_NIC_DRIVER",
                self.nic
                    .as_ref()
                    .map(|nic| nic.driver.clone().into_os_string())
                    .unwrap_or_default(),
            ),
            ("LAB_FOREIGN", OsString::from(u8::from(self.foreign).to_string())),
            ("LAB_WIRE", OsString::from(u8::from(self.wire).to_string())),
            (
                "LAB_TTY",
                OsString::from(u8::from(self.terminal.is_some()).to_string()),
            ),
            ("LAB_ROWS", OsString::from(rows.to_string())),
            ("LAB_COLS", OsString::from(cols.to_string())),
            ("LAB_MARKER", OsString::from(&self.marker)),
            ("LAB_RELEASE", OsString::from(&kernel.release)),
            ("LAB_MODULES", kernel.modules().into_os_string()),
            ("LAB_OUT", self.out.clone().into_os_string()),
        ] {
            conf.push(name);
            conf.push("=");
            conf.push(quote(&value));
            conf.push("\n");
        }
        conf
    }

    fn script(&self) -> OsString {
        // The job gets a new environment, because the guest's init has none worth keeping.
        let mut script = OsString::from("cd ");
        script.push(quote(self.dir.as_os_str()));
        script.push(" || exit 125\nulimit -l unlimited\nulimit -c 0\nexec env -i");
        for (name, value) in &self.env {
            script.push(" ");
            script.push(name);
            script.push("=");
            script.push(quote(value));
        }
        for word in &self.command {
            script.push(" ");
            script.push(quote(word));
        }
        script.push("\n");
        script
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_shell() {
        let word = OsStr::new("a b'c$(x)\n\"\\");
        let mut line = OsString::from("printf %s ");
        line.push(quote(word));
        let output = std::process::Command::new("sh")
            .arg("-c")
            .arg(line)
            .output()
            .unwrap();
        assert_eq!(output.stdout, word.as_bytes());
    }

    #[test]
    fn the_job_script_runs_the_command_with_its_environment_only() {
        let job = Job {
            command: ["sh", "-c", "echo $GREETING $HOME-; exit 7"]
                .map(OsString::from)
                .to_vec(),
            env: vec![("GREETING", "it's".into()), ("PATH", "/usr/bin:/bin".into())],
            dir: "/".into(),
            out: "/out".into(),
            keep: Vec::new(),
            devices: 1,
            foreign: false,
            nic: None,
            wire: false,
            terminal: None,
            marker: "m".to_owned(),
        };
        let output = std::process::Command::new("bash")
            .arg("-c")
            .arg(job.script())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(7));
        assert_eq!(output.stdout, b"it's -\n");
    }
}
