//! The key that probes the program of the selected row's process.

use super::super::state::{Probing, Row, State};
use super::{Control, Effect};
use rdmatop_model::input::EbpfState;
use rdmatop_model::snapshot::Snapshot;

/// Switches the probes on or off.
pub(super) fn switch(state: &mut State) -> Option<Effect> {
    let (message, wanted) = match asked(state) {
        Err(why) => (why, None),
        Ok(Some(pid)) => {
            state.probing = Probing::Process(pid);
            let message = format!("probes on process {pid}: the header says what they cost it; U ends them");
            (message, Some(Effect::Ask(Control::Probe(Some(pid)))))
        }
        Ok(None) => {
            state.probing = Probing::None;
            (
                "the probes are removed".to_owned(),
                Some(Effect::Ask(Control::Probe(None))),
            )
        }
    };
    state.message = Some(message);
    wanted
}

/// The process to probe, or `None` to end the probes; the error says why there is nothing to do.
fn asked(state: &State) -> Result<Option<u32>, String> {
    let snapshot = &state.snapshot;
    let pid = match state.row() {
        Some(Row::Process(row)) if !row.exited => row.pid,
        Some(Row::Qp(row)) if !row.exited => row.pid,
        _ => None,
    };
    let Some(pid) = pid else {
        return Err(
            "U probes the program of a process that lives: choose one in 1 Processes or 2 QPs".to_owned(),
        );
    };
    match state.probing {
        Probing::Option => return Err("--uprobes was given: it says what is probed".to_owned()),
        Probing::Process(probed) if probed == pid => return Ok(None),
        Probing::Process(_) | Probing::None => {}
    }
    if !matches!(snapshot.health.ebpf, EbpfState::On { .. }) {
        return Err("U takes eBPF, which is not on".to_owned());
    }
    if is_counted(snapshot, pid) {
        return Err(format!(
            "process {pid} needs no probes: the kernel sees its work requests"
        ));
    }
    Ok(Some(pid))
}

/// Whether all QPs of a process are on devices whose work requests are counted in the kernel.
fn is_counted(snapshot: &Snapshot, pid: u32) -> bool {
    let counted = |device: &str| {
        let mut devices = snapshot.devices.iter();
        devices.any(|row| &*row.name == device && row.datapath.is_some())
    };
    let mut qps = snapshot.qps.iter().filter(|qp| qp.pid == Some(pid)).peekable();
    qps.peek().is_some() && qps.all(|qp| counted(&qp.device))
}
