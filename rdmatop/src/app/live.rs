//! The live view: the pump here, the screen on a thread of its own.

use super::plan::Plan;
use crate::exit::{Exit, Stop};

pub(super) async fn run(plan: &Plan) -> Result<Exit, Stop> {
    let _ = plan;
    Err(Stop::failure(
        "the live view is not in this build; use rdmatop --once or rdmatop --trace | cat",
    ))
}
