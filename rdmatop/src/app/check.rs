//! `rdmatop check`: looks for a while, says what is wrong, and ends with a code for scripts.

use std::process::ExitCode;

use super::once::{self, print_text};
use super::plan::{Mode, Plan};
use super::ready;
use super::signals::Signals;
use crate::exit::{Exit, Stop};
use crate::model::findings::Severity;
use crate::view::line::check;

/// 0: nothing is wrong, 1: warnings, 2: something does not work, 3: it could not be looked at.
pub(super) async fn run(plan: &Plan) -> Result<ExitCode, Stop> {
    let outcome = look(plan).await;
    outcome.map(ExitCode::from).map_err(|stop| Stop {
        exit: Exit::NothingToShow,
        ..stop
    })
}

async fn look(plan: &Plan) -> Result<u8, Stop> {
    let sources = ready::sources(plan);
    let mut signals = Signals::take()?;
    let (snapshot, no_rdma, ending) = once::measure(plan, sources, &mut signals).await?;
    let json = plan.mode == (Mode::Check { json: true });
    if let Some(line) = no_rdma {
        return Err(Stop::nothing(line));
    }
    let text = if json {
        check::json(&snapshot).map_err(|e| Stop::failure(format!("cannot make JSON: {e}")))?
    } else {
        check::text(&snapshot)
    };
    print_text(text.into_bytes(), &mut signals, ending).await?;
    Ok(match check::worst(&snapshot) {
        None => 0,
        Some(Severity::Warning) => 1,
        Some(Severity::Critical) => 2,
    })
}
