//! `lab run --view`: the scenario as a quiet child, the live view as another that has the terminal.
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::{thread, time::Duration};

use rustix::process::Signal;

use super::traffic::{end_with_parent, signal};
use super::{RUNS, ending::Ending};
use crate::work::wait;
use crate::{LabError, RunArgs, cannot};

/// How long a child may take to end: the scenario takes its devices down, the view detaches its programs.
const GRACE: Duration = Duration::from_secs(30);

/// Runs both until one of them ends.
pub(crate) fn view(args: &RunArgs) -> Result<ExitCode, LabError> {
    let mut ending = Ending::new(None)?;
    let own = std::env::current_exe().map_err(|error| failed(&error))?;
    let mut scenario = Command::new(&own);
    scenario.args(["lab", "run", "--quiet"]).args(&args.scenario);
    if let Some(seconds) = args.seconds {
        scenario.arg(format!("--for={seconds}"));
    }
    if args.force {
        scenario.arg("--force");
    }
    if let Some(dir) = &args.programs {
        scenario.arg("--programs").arg(dir);
    }
    end_with_parent(&mut scenario, Signal::TERM);
    // Why it failed goes to our stderr: the view is not there yet.
    let mut scenario = scenario
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(&error))?;
    if !runs(&mut scenario) {
        let _ = scenario.wait();
        return Ok(ExitCode::FAILURE);
    }
    let shown = Command::new(&own).spawn().map_err(|error| failed(&error));
    let code = match shown {
        Ok(mut shown) => {
            while alive(&mut scenario) && alive(&mut shown) && !ending.came() {}
            end(&mut shown);
            // The view has said itself why it failed, for example without a terminal.
            let seen = shown.wait().is_ok_and(|status| status.success());
            Ok(if seen {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        Err(error) => Err(error),
    };
    end(&mut scenario);
    code
}

fn failed(error: &std::io::Error) -> LabError {
    cannot("start rdmatop", error)
}

/// Waits for the line that says that the scenario runs; the rest of its output is dropped.
fn runs(scenario: &mut Child) -> bool {
    let Some(out) = scenario.stdout.take() else {
        return false;
    };
    let mut lines = BufReader::new(out).lines().map_while(Result::ok);
    let found = lines.any(|line| line.starts_with(RUNS));
    thread::spawn(move || lines.for_each(drop));
    found
}

fn alive(child: &mut Child) -> bool {
    matches!(child.try_wait(), Ok(None))
}

/// Asks a child to end, and kills it if it does not.
fn end(child: &mut Child) {
    if alive(child) {
        signal(child, Signal::TERM);
    }
    wait(GRACE, || (!alive(child)).then_some(()));
    let _ = child.kill();
    let _ = child.wait();
}
