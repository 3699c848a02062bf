//! The traffic programs of a scenario: examples/ of the source.
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{fs, io, os::unix::fs::MetadataExt as _, os::unix::process::CommandExt, time::Duration};

use rustix::process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal};

use super::scenario::{DISK, Scenario};
use crate::work::wait;
use crate::{LabError, cannot};

/// How long programs may take to end when they are asked to.
const GRACE: Duration = Duration::from_secs(3);

/// Programs that run; killed when this is dropped.
#[derive(Debug)]
pub(super) struct Traffic {
    programs: Vec<(&'static str, Child)>,
}

/// Where the programs of a scenario are, in its order.
pub(super) fn find_all(scenario: &Scenario, dir: Option<&Path>) -> Result<Vec<PathBuf>, LabError> {
    let own = std::env::current_exe().unwrap_or_default();
    let owner = fs::metadata(&own).map_or(0, |meta| meta.uid());
    let beside = beside(&own);
    let find = |(program, _): (&'static str, _)| {
        let found = match dir {
            Some(dir) => Some(dir.join(program)).filter(|path| path.is_file()),
            None => beside.iter().find_map(|(above, below)| {
                let below = below.join(program);
                belongs(above, &below, owner).then(|| above.join(below))
            }),
        };
        found.ok_or_else(|| {
            let paths = beside.iter().map(|(above, below)| above.join(below));
            let looked = dir.map_or_else(|| paths.collect(), |dir| vec![dir.to_path_buf()]);
            let looked: Vec<String> = looked.iter().map(|dir| dir.display().to_string()).collect();
            LabError::NoProgram(program, looked.join(", "))
        })
    };
    scenario.programs().map(find).collect()
}

/// Where programs lie beside rdmatop's own: a directory above that, and the way down from there.
fn beside(own: &Path) -> Vec<(PathBuf, &'static Path)> {
    let above = |levels: usize| own.ancestors().nth(levels).map(Path::to_path_buf);
    [
        // SOURCE/target/release/rdmatop
        above(3).map(|source| (source, Path::new("examples/build"))),
        // PREFIX/bin/rdmatop
        above(2).map(|prefix| (prefix, Path::new("lib/rdmatop"))),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Whether root may run the file `below` the directory `above`: it and each directory in between belong to
/// root or to the `owner` of rdmatop's program, none is a link, and none may be written to by everybody.
/// Where rdmatop was unpacked below /tmp, `above` may be /tmp itself.
fn belongs(above: &Path, below: &Path, owner: u32) -> bool {
    const EVERYBODY: u32 = 0o002;
    let mut path = above.to_path_buf();
    let is_trusted = |step: &Path| {
        path.push(step);
        fs::symlink_metadata(&path).is_ok_and(|meta| {
            let is_last = path == above.join(below);
            let kind = if is_last { meta.is_file() } else { meta.is_dir() };
            kind && (meta.uid() == 0 || meta.uid() == owner) && meta.mode() & EVERYBODY == 0
        })
    };
    below.iter().map(Path::new).all(is_trusted)
}

impl Traffic {
    /// Starts all of them. They get no signal of the terminal, and end with this process whatever ends that.
    pub(super) fn start(
        scenario: &Scenario,
        paths: &[PathBuf],
        disk: Option<&Path>,
        quiet: bool,
    ) -> Result<Self, LabError> {
        let mut traffic = Self { programs: Vec::new() };
        for ((program, args), path) in scenario.programs().zip(paths) {
            let mut command = Command::new(path);
            for arg in args {
                match disk {
                    Some(disk) if arg == DISK => command.arg(disk),
                    _ => command.arg(arg),
                };
            }
            command.stdin(Stdio::null()).process_group(0);
            if quiet {
                command.stdout(Stdio::null()).stderr(Stdio::null());
            }
            end_with_parent(&mut command, Signal::KILL);
            let child = command.spawn();
            let child = child.map_err(|error| cannot(format!("start {}", path.display()), &error))?;
            traffic.programs.push((program, child));
        }
        Ok(traffic)
    }

    /// A program that has ended by itself, which none should.
    pub(super) fn ended(&mut self) -> Option<LabError> {
        self.programs.iter_mut().find_map(|(program, child)| {
            let how = match child.try_wait() {
                Ok(None) => return None,
                Ok(Some(status)) => status.to_string(),
                Err(error) => error.to_string(),
            };
            Some(LabError::Ended(program, how))
        })
    }

    /// Asks all to end, and waits for it.
    pub(super) fn end(mut self) {
        for (_, child) in &mut self.programs {
            if matches!(child.try_wait(), Ok(None)) {
                signal(child, Signal::TERM);
            }
        }
        let mut all_ended = || {
            let mut children = self.programs.iter_mut().map(|(_, child)| child.try_wait());
            children.all(|ended| matches!(ended, Ok(Some(_)))).then_some(())
        };
        wait(GRACE, &mut all_ended);
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        for (_, child) in &mut self.programs {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Signals a child that was not waited for.
pub(super) fn signal(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let _ = pid.map(|pid| kill_process(pid, signal));
}

/// Lets the kernel signal the child when this thread, the first of the process, ends.
pub(super) fn end_with_parent(command: &mut Command, signal: Signal) {
    let parent = getpid();
    let arrange = move || -> io::Result<()> {
        set_parent_process_death_signal(Some(signal))?;
        // The parent may have ended before this call.
        if getppid() == Some(parent) {
            Ok(())
        } else {
            Err(io::Error::other("the parent has ended"))
        }
    };
    // SAFETY: between fork and exec only two system calls are made and nothing is allocated, but for a parent
    // that is dead.
    unsafe { command.pre_exec(arrange) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_for_beside_the_own_one_and_nowhere_else() {
        let looked = |own: &str| -> Vec<PathBuf> {
            let all = beside(Path::new(own)).into_iter();
            all.map(|(above, below)| above.join(below)).collect()
        };
        assert_eq!(
            looked("/src/rdmatop/target/release/rdmatop"),
            [
                Path::new("/src/rdmatop/examples/build"),
                Path::new("/src/rdmatop/target/lib/rdmatop")
            ]
        );
        assert_eq!(looked("/usr/bin/rdmatop")[1], Path::new("/usr/lib/rdmatop"));
        let none = tempfile::tempdir().unwrap();
        let scenario = &super::super::scenario::ALL[0];
        let error = find_all(scenario, Some(none.path())).unwrap_err().to_string();
        assert!(
            error.contains("make -C examples") && error.contains("pingpong"),
            "{error}"
        );
        assert!(!error.contains('\n'), "{error}");
        std::fs::write(none.path().join("pingpong"), "").unwrap();
        assert_eq!(
            find_all(scenario, Some(none.path())).unwrap(),
            [none.path().join("pingpong")]
        );
    }
    #[test]
    fn a_program_that_another_user_could_have_put_there_is_not_run() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let above = tempfile::tempdir().unwrap();
        let above = above.path();
        let owner = fs::metadata(above).unwrap().uid();
        let below = Path::new("examples/build/pingpong");
        let place = above.join(below);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::write(&place, "").unwrap();
        let permit = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let all = [
            above.join("examples"),
            above.join("examples/build"),
            place.clone(),
        ];
        for path in &all {
            permit(path, 0o755);
        }
        assert!(belongs(above, below, owner));
        for path in &all {
            permit(path, 0o777);
            assert!(!belongs(above, below, owner), "{path:?}");
            permit(path, 0o755);
        }
        assert!(owner == 0 || !belongs(above, below, owner + 1));
        if owner == 0 {
            for path in &all {
                std::os::unix::fs::chown(path, Some(65534), None).unwrap();
                assert!(!belongs(above, below, owner), "{path:?}");
                assert!(belongs(above, below, 65534), "{path:?}");
                std::os::unix::fs::chown(path, Some(0), None).unwrap();
            }
        }
        fs::rename(above.join("examples"), above.join("elsewhere")).unwrap();
        symlink(above.join("elsewhere"), above.join("examples")).unwrap();
        assert!(!belongs(above, below, owner), "a link");
    }
}
