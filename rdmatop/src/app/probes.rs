//! `rdmatop probes`: attaches, reports the verdicts, detaches.

use std::time::Duration;

use tokio::time::timeout;

use super::pump::{Pump, Settings};
use super::{patience::stretched, plan::Plan};
use super::{print, ready};
use crate::exit::{Exit, Stop};
use rdmatop_model::input::EbpfState;
use rdmatop_views::{json, line};

/// The verifier decides how long loading takes.
const START_LIMIT: Duration = Duration::from_mins(1);

pub(super) async fn run(plan: &Plan) -> Result<Exit, Stop> {
    let sources = ready::sources(plan);
    let (subsystem, no_rdma) = (sources.subsystem, sources.no_rdma.clone());
    let limit = stretched(START_LIMIT);
    let (mut pump, ebpf) = Pump::start(sources, Settings::default())?;
    if let Some(mut ebpf) = ebpf
        && pump.wait(timeout(limit, ebpf.started())).await.is_err()
    {
        let line = format!(
            "the programs were not attached within {} s; see dmesg",
            limit.as_secs()
        );
        return Err(Stop::failure(line));
    }
    pump.sample().await?;
    let health = &pump.latest().health;
    let text = if plan.json {
        json::probes(health)
    } else {
        line::probes::table(health)
    };
    print(&text)?;
    match &health.ebpf {
        EbpfState::On { .. } => Ok(Exit::Ok),
        _ if !subsystem => Err(Stop::nothing(
            no_rdma.map(|cause| cause.line()).unwrap_or_default(),
        )),
        EbpfState::Unavailable(no) => Err(Stop::failure(format!("no eBPF: {}", no.why()))),
        EbpfState::Starting | EbpfState::Disabled => Err(Stop::failure("no eBPF: it did not start")),
    }
}
