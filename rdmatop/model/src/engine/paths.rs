//! Whom queue pairs send to that were connected before rdmatop came, or unseen: the firmware of mlx5 is
//! asked.
//!
//! Records have the address of whatever is connected while rdmatop runs, and SoftRoCE's slots that of older
//! ones.

use rdmatop_base::order::{Gather as _, Ordered as _};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{machine::Machine, psn_batches::Credit, qp::Key};
use crate::{
    ib::{QpState, QpType},
    input::PathReading,
    snapshot::{DeviceRow, QpRow},
    value::Source,
};

/// What the path of one queue pair takes of the requests of a second: ten are asked for at most, and fewer
/// where PSNs are asked for.
const COST: u64 = 20;

/// Which queue pairs are asked for, and which were.
#[derive(Debug, Default)]
pub(super) struct Paths {
    /// The peer for which each was asked for, by its uid: once for each connection.
    asked: HashMap<u64, u32>,
    /// Numbers of the queue pairs to ask for, by the index of their device.
    pub(super) plan: Arc<BTreeMap<u32, Vec<u32>>>,
}

/// The peer's number of a queue pair with a connection that nobody saw being made.
fn unseen(row: &QpRow) -> Option<u32> {
    let connected = matches!(row.qp_type, Some(QpType::RC | QpType::UC)) && is_connected(row.state?);
    row.remote_qpn
        .filter(|_| connected && !row.exited && row.remote_gid.is_none())
}

/// From RTR on it has a peer, and it keeps it in an error.
fn is_connected(state: QpState) -> bool {
    (QpState::RTR.0..=QpState::ERR.0).contains(&state.0)
}

impl Paths {
    /// Decides which queue pairs are asked for next. Processes take turns: one with thousands of queue pairs
    /// keeps nobody waiting.
    pub(super) fn plan(&mut self, devices: &[DeviceRow], qps: &[Arc<QpRow>], credit: &mut Credit) {
        let of_mlx5 = |row: &DeviceRow| Some((row.uid, row.index.filter(|_| row.is_of_mlx5())?));
        let devices: BTreeMap<u64, u32> = devices.iter().filter_map(of_mlx5).gather();
        self.plan = Arc::default();
        if devices.is_empty() {
            return self.asked.clear();
        }
        let mut asked = HashMap::with_capacity(self.asked.len());
        let mut turns: HashMap<(u32, Option<u64>), usize> = HashMap::new();
        let mut wanted = Vec::new();
        for row in qps {
            let index = row.device_uid.and_then(|uid| devices.get(&uid).copied());
            let Some((peer, index)) = unseen(row).zip(index) else {
                continue;
            };
            if self.asked.get(&row.uid) == Some(&peer) {
                asked.insert(row.uid, peer);
                continue;
            }
            let turn = turns.entry((index, row.process_uid)).or_default();
            *turn += 1;
            wanted.push((*turn, index, row.qpn));
        }
        self.asked = asked;
        wanted.order_by_key(|one| *one);
        let mut plan: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (_, index, qpn) in wanted {
            if !credit.take(COST) {
                break;
            }
            plan.entry(index).or_default().push(qpn);
        }
        self.plan = plan.into();
    }

    /// Takes over what the firmware says. What was modified since then is known better.
    pub(super) fn read(&mut self, read: &[PathReading], machine: &mut Machine) {
        self.plan = Arc::default();
        for path in read {
            let device = machine.devices.resolve(path.device_index, None, path.at_ns);
            let key = Key::new(device, path.qpn, None);
            let Some(qp) = machine.qps.live_mut(key) else {
                continue;
            };
            let Some(peer) = unseen(qp.row()).filter(|_| qp.event_ns < path.at_ns) else {
                continue;
            };
            self.asked.insert(qp.uid(), peer);
            if let Some((_, gid, index)) = path.path.filter(|(to, ..)| *to == peer) {
                let row = qp.edit();
                (row.remote_gid, row.remote_gid_source) = (Some(gid), Some(Source::Netlink));
                row.sgid_index = Some(index);
            }
        }
    }
}
