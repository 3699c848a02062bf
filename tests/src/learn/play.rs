//! Runs the commands of a block as in two terminals.

use std::{
    env, fs,
    os::unix::{
        fs::{PermissionsExt as _, symlink},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process,
};

use anyhow::{Context as _, Result, bail};

use super::page::{Block, Command};
use crate::{child::Child, rdmatop, wait::PATIENCE};

/// How a command in the first terminal reports that it has begun; then the second terminal has its turn.
const BEGUN: [&str; 4] = ["rdmatop: tracing", "rdmatop: measuring", "running", "ping: PID"];
/// Options with which a command ends by itself; other commands in the first terminal are ended by Ctrl-C.
const ENDS: [&str; 2] = ["--delay", "--for"];
/// The exit codes of `rdmatop check` with findings, which it must have wherever the page calls it.
const FOUND: [i32; 2] = [1, 2];

/// The directory in which the commands are typed: it has what a clone has after `make -C examples`, and
/// rdmatop is in $PATH.
#[derive(Debug)]
pub struct Stage {
    dir: PathBuf,
}

impl Stage {
    /// Makes the directory; `examples` has the built programs.
    pub fn make(examples: &Path) -> Result<Self> {
        let dir = env::temp_dir().join(format!("rdmatop-learn-{}", process::id()));
        let stage = Self { dir };
        let (bin, lib) = (stage.dir.join("bin"), stage.dir.join("lib/rdmatop"));
        for made in [&bin, &lib, &stage.dir.join("examples")] {
            fs::create_dir_all(made)?;
        }
        // The page installs both in this layout, in which `lab run` finds its programs.
        fs::copy(rdmatop::program()?, bin.join("rdmatop")).context("copy rdmatop")?;
        for program in fs::read_dir(examples).context("no example programs")? {
            let program = program?;
            fs::copy(program.path(), lib.join(program.file_name()))?;
        }
        symlink(examples, stage.dir.join("examples/build"))?;
        // The guest has no other user than root and may lack sudo(8).
        let sudo = bin.join("sudo");
        fs::write(&sudo, "#!/bin/sh\nexec \"$@\"\n")?;
        fs::set_permissions(&sudo, fs::Permissions::from_mode(0o755))?;
        Ok(stage)
    }

    /// Runs all commands of a block; returns the block with their current output.
    pub fn play(&self, block: &Block) -> Result<Block> {
        let outputs = match &block.commands[..] {
            [first, second] if first.prompt == "1$" => self.two(first, second),
            commands => commands.iter().map(|command| self.one(command)).collect(),
        };
        let mut block = block.clone();
        let outputs: Vec<Vec<String>> = outputs.with_context(|| block.name.clone())?;
        for (command, output) in block.commands.iter_mut().zip(outputs) {
            command.output = output;
        }
        Ok(block)
    }

    fn two(&self, first: &Command, second: &Command) -> Result<Vec<Vec<String>>> {
        let mut running = self.start(first)?;
        let begun = |line: &str| BEGUN.iter().any(|words| line.starts_with(words));
        running.out.wait_for(&first.line, PATIENCE, begun)?;
        let second = self.one(second)?;
        if !ENDS.iter().any(|option| first.line.contains(option)) {
            interrupt(&running)?;
        }
        end(first, &mut running)?;
        Ok(vec![running.out.all(), second])
    }

    fn one(&self, command: &Command) -> Result<Vec<String>> {
        let mut child = self.start(command)?;
        end(command, &mut child)?;
        Ok(child.out.all())
    }

    fn start(&self, command: &Command) -> Result<Child> {
        let path = env::var("PATH").unwrap_or_default();
        let mut shell = process::Command::new("bash");
        // A terminal shows both outputs. With pipefail a pipeline does not hide that its first program
        // failed.
        shell
            .args(["-o", "pipefail", "-c"])
            .arg(format!("exec 2>&1; {}", command.line));
        shell.current_dir(&self.dir).env("NO_COLOR", "1");
        shell.env("PATH", format!("{}:{path}", self.dir.join("bin").display()));
        // A process group, because Ctrl-C reaches all programs of a terminal.
        shell.process_group(0);
        Child::spawn(&mut shell)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn interrupt(shell: &Child) -> Result<()> {
    let group = i32::try_from(shell.pid())?;
    // SAFETY: the group of our own child, which was not waited for yet.
    if unsafe { libc::kill(-group, libc::SIGINT) } != 0 {
        return Err(std::io::Error::last_os_error()).context("Ctrl-C");
    }
    Ok(())
}

fn end(command: &Command, child: &mut Child) -> Result<()> {
    let status = child.wait(PATIENCE)?;
    let found = command.line.contains("rdmatop check");
    let code = status.code();
    let as_wanted = if found {
        code.is_some_and(|code| FOUND.contains(&code))
    } else {
        code == Some(0)
    };
    if as_wanted {
        return Ok(());
    }
    let printed = child.out.text();
    bail!("`{}` ended with {status}:\n{printed}", command.line)
}
