//! What is reported about a session.

use super::Session;
use crate::{
    attach::pinned,
    plan::{self, Outcome},
};
use rdmatop_model::{
    cause::{Cause, CauseId, Concerns, Obstacle},
    input::{EbpfReport, EbpfState, Input},
};

/// The report that nothing counts.
pub fn not_started(obstacle: Obstacle) -> Input {
    Input::Ebpf(Box::new(EbpfReport {
        state: EbpfState::unavailable(obstacle),
        ..EbpfReport::default()
    }))
}

impl Session {
    /// The report of a session that counts; with `anew`, in the place of another one.
    pub(crate) fn report(&self, anew: bool) -> Input {
        let pinned = pinned(&self.programs);
        let mut notes = self.unseen.clone();
        notes.extend(pins(&pinned));
        notes.extend(anew.then(gap));
        let probes: Vec<_> = self.outcomes.iter().map(Outcome::shown).collect();
        Input::Ebpf(Box::new(EbpfReport {
            state: EbpfState::On {
                datapaths: self.datapaths.clone(),
            },
            probes: probes.into(),
            notes,
            programs: self.attached(),
            pinned: pinned.into_iter().map(str::to_owned).collect(),
            follows_qps: plan::follows_qps(&self.outcomes),
            anew,
        }))
    }
}

/// The note that fentry pins modules; `None` if no module is pinned.
fn pins(modules: &[&str]) -> Option<Cause> {
    (!modules.is_empty()).then(|| Cause {
        id: CauseId::Pinned,
        concerns: Concerns::Host,
        what: format!("unloading of {}", modules.join(", ")),
        why: "--attach fentry keeps these modules loaded while rdmatop runs".into(),
        remedy: "End this program before you unload them, or start it with --attach kprobe.".into(),
    })
}

fn gap() -> Cause {
    Cause {
        id: CauseId::AttachedAnew,
        concerns: Concerns::Host,
        what: "events around the last change of modules or of kprobes".into(),
        why: "an RDMA module was loaded or unloaded, and the programs had to be attached anew, or kprobes were off".into(),
        remedy: "Nothing to do: an event at the very moment of the change may be missing, and so may those in the \
                 changed module, or while kprobes were off."
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_modules_are_named_with_the_way_to_release_them() {
        assert_eq!(pins(&[]), None);
        let note = pins(&["ib_core", "rdma_rxe"]).unwrap().to_string();
        assert!(note.starts_with("unloading of ib_core, rdma_rxe: "), "{note}");
        assert!(note.contains("--attach kprobe"), "{note}");
    }
}
