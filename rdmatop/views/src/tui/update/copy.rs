//! The key that copies what a finding says to do.

use super::super::state::{Row, State};
use super::Effect;

/// Copies the command or the sentence of the selected finding, without the possible results behind it.
pub(super) fn next_step(state: &mut State) -> Option<Effect> {
    let step = match state.row() {
        Some(Row::Finding(found)) => found.steps().next(),
        _ => None,
    };
    let step = step
        .map(|step| step.trim_end().to_owned())
        .filter(|step| !step.is_empty());
    state.message = Some(match &step {
        Some(step) => format!("copied, if the terminal takes OSC 52: {step}"),
        None => "y copies what a finding says to do: choose one in 7 Findings".to_owned(),
    });
    step.map(Effect::Copy)
}
