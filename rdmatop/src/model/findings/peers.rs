//! Which QPs of this host talk to each other.

use std::collections::HashMap;

use crate::model::snapshot::{QpRow, Snapshot};

/// Pairs of QPs on this host, found by their numbers: each names the other as its remote QP.
pub(super) struct Peers<'a> {
    by_numbers: HashMap<(u32, u32), Vec<&'a QpRow>>,
}

impl<'a> Peers<'a> {
    /// Of all live QPs that have a peer.
    pub(super) fn of(snapshot: &'a Snapshot) -> Self {
        let mut by_numbers: HashMap<_, Vec<_>> = HashMap::new();
        for qp in snapshot.qps.iter().filter(|qp| !qp.exited) {
            if let Some(remote) = qp.remote_qpn {
                by_numbers.entry((qp.qpn, remote)).or_default().push(&**qp);
            }
        }
        Self { by_numbers }
    }

    /// The peer of `qp`. `None` when it is on another host, or when several QPs have these numbers: numbers are given
    /// by each device on its own.
    pub(super) fn peer(&self, qp: &QpRow) -> Option<&'a QpRow> {
        let remote = qp.remote_qpn?;
        let mut found = self.by_numbers.get(&(remote, qp.qpn))?.iter();
        let first = found.find(|peer| peer.uid != qp.uid)?;
        found.all(|other| other.uid == qp.uid).then_some(*first)
    }
}
