//! `rdmatop check`: looks for a while, says what is wrong, and ends with a code for scripts.

use std::process::ExitCode;

use super::once::{self, print_text};
use super::{plan::Plan, ready, signals};
use crate::exit::{Exit, Stop};
use rdmatop_model::findings::Severity;
use rdmatop_views::line::check;

/// 0: it found nothing wrong, 1: warnings, 2: something does not work, 3: it could not look, could not look
/// for as long as asked, or looked without eBPF although that was wanted.
pub(super) async fn run(plan: &Plan) -> Result<ExitCode, Stop> {
    let outcome = look(plan).await;
    outcome.map(ExitCode::from).map_err(|stop| Stop {
        exit: Exit::NothingToShow,
        ..stop
    })
}

async fn look(plan: &Plan) -> Result<u8, Stop> {
    let sources = ready::sources(plan);
    let mut signals = signals::take()?;
    let (snapshot, no_rdma, ending) = once::measure(plan, sources, &mut signals).await?;
    if let Some(line) = no_rdma {
        if plan.json {
            print_text(check::json(&snapshot), &mut signals, ending).await?;
        }
        return Err(Stop::nothing(line));
    }
    let worst = check::worst(&snapshot);
    // What was found holds. Without a finding it is unknown whether there is one.
    if let (Some(_), None) = (ending, worst) {
        return Err(Stop::nothing(format!(
            "a signal ended the look of {:.0} s, and nothing was found until then",
            plan.delay.as_secs_f64() * plan.looks as f64
        )));
    }
    let text = if plan.json {
        check::json(&snapshot)
    } else {
        check::text(&snapshot)
    };
    print_text(text, &mut signals, ending).await?;
    Ok(match worst {
        _ if check::is_unknown(&snapshot) => 3,
        None | Some(Severity::Info) => 0,
        Some(Severity::Warning) => 1,
        Some(Severity::Critical) => 2,
    })
}
