//! What the eBPF side is doing, shared between who attaches and who reports health.

use std::sync::{Arc, Mutex, PoisonError};

use crate::model::input::{EbpfState, Note, ProbeVerdict};

/// State, verdicts and notes.
#[derive(Clone, Debug, Default)]
pub struct EbpfStatus {
    /// On, off, or why not.
    pub state: EbpfState,
    /// One a program, in the plan's order.
    pub probes: Vec<ProbeVerdict>,
    /// What is missing.
    pub notes: Vec<Note>,
    /// Grows with each change, so that a reader can tell.
    pub version: u64,
}

/// A status that several threads hold.
#[derive(Clone, Debug, Default)]
pub struct SharedStatus(Arc<Mutex<EbpfStatus>>);

impl SharedStatus {
    /// A copy of the present status.
    pub fn get(&self) -> EbpfStatus {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A copy of the present status, unless it is still the one of `version`.
    pub fn newer(&self, version: Option<u64>) -> Option<EbpfStatus> {
        let status = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (Some(status.version) != version).then(|| status.clone())
    }

    /// Changes it.
    pub fn update(&self, change: impl FnOnce(&mut EbpfStatus)) {
        let mut status = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut status);
        status.version += 1;
    }
}
