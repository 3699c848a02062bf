//! Whom queue pairs send to that were connected before rdmatop came: mlx5's firmware has the address.
//!
//! Each answer costs commands of the firmware, and is in no format of the kernel's. So it has to prove
//! itself: it counts only where all that netlink has too is the same, and the queue pair's own address is one
//! of its port's.

use super::known::{Listed, Rest};
use rdmatop_model::{ib::Gid, input::PathReading};
use rdmatop_sources::{
    clock::{now, timed},
    netlink::{
        client::Nldev,
        error::NetlinkError,
        record::{Qp, QpContext},
        transport::Transport,
    },
};

/// So many answers in a row that do not hold end the asking of a device, and so does a refusal.
const MOST_FLAWS: u8 = 3;
/// No further queue pair is asked for in a round after so long, ns.
const LONG_NS: u64 = 50_000_000;

/// How the firmware of a device answered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Paths {
    rest: Rest,
    /// Answers that did not hold since the last that did.
    flaws: u8,
}

/// The peer's number and address, and the index of the own address.
type Path = (u32, Gid, u8);

/// Asks for the paths of these queue pairs: what they are by `nldev`, and their contexts by `admin`, a
/// connection that may. One that is left out is asked for later.
pub(super) fn read<T: Transport>(
    (nldev, admin): (&mut Nldev<T>, &mut Nldev<T>),
    listed: &mut Listed,
    numbers: &[u32],
) -> Vec<PathReading> {
    let mut out = Vec::with_capacity(numbers.len());
    let began_ns = now().mono_ns;
    let mut paths = listed.known.paths;
    let device = listed.device();
    let ((), span) = timed(|| {
        for &qpn in numbers {
            let at_ns = now().mono_ns;
            let found = if paths.flaws >= MOST_FLAWS {
                Ok(Ok(None))
            } else if at_ns.saturating_sub(began_ns) >= LONG_NS {
                break;
            } else {
                ask(nldev, admin, listed, qpn)
            };
            let path = match found {
                Ok(Ok(path)) => path,
                Ok(Err(why)) => {
                    log::info!(device:% = device.name, qpn = qpn, why = why; "the firmware's path is not used");
                    paths.flaws += 1;
                    None
                }
                Err(error) => {
                    log::info!(device:% = device.name, qpn = qpn, why:% = error; "the firmware is not asked for paths");
                    paths.flaws = MOST_FLAWS;
                    None
                }
            };
            if path.is_some() {
                paths.flaws = 0;
            }
            out.push(PathReading {
                device_index: device.index,
                qpn,
                path,
                at_ns,
            });
        }
    });
    paths.rest.begin(span);
    listed.known.paths = paths;
    out
}

/// Whether the device may be asked now.
pub(super) fn may_ask(listed: &Listed, now_ns: u64) -> bool {
    listed.known.paths.rest.is_over(now_ns)
}

/// The path of a queue pair, if it has one; an inner error is what speaks against the firmware.
fn ask<T: Transport>(
    nldev: &mut Nldev<T>,
    admin: &mut Nldev<T>,
    listed: &Listed,
    qpn: u32,
) -> Result<Result<Option<Path>, &'static str>, NetlinkError> {
    let index = listed.device().index;
    let Ok(Some(qp @ Qp { port: Some(port), .. })) = nldev.qp(index, qpn) else {
        return Ok(Ok(None));
    };
    let raw = match admin.raw_qp(index, port, qpn) {
        // It is gone, or has another port now (`res_get_common_doit`).
        Err(NetlinkError::Kernel {
            errno: libc::ENOENT | libc::EAGAIN,
            ..
        }) => return Ok(Ok(None)),
        raw => raw,
    };
    // Its owner may make rings that are too large for the driver's buffer.
    if raw.as_ref().is_ok_and(Vec::is_empty) {
        return Ok(Ok(None));
    }
    let path = raw.map(|raw| QpContext::decode(&raw).and_then(|context| path(&context, &qp, listed)));
    // And he may modify or destroy it at any time.
    let is_same = |now: Qp| (now.state, now.rqpn, now.port) == (qp.state, qp.rqpn, qp.port);
    if !matches!(path, Ok(Ok(_))) && !nldev.qp(index, qpn).ok().flatten().is_some_and(is_same) {
        return Ok(Ok(None));
    }
    path
}

/// The path of a context that agrees with what netlink has of the queue pair. `None`: it goes by LID, or by
/// addresses that its owner chose and the port has not, or no more; that says nothing against the firmware.
fn path(context: &QpContext, qp: &Qp, listed: &Listed) -> Result<Option<Path>, &'static str> {
    let own = (context.qpn, Some(context.qp_type), Some(context.state));
    let peer = (Some(context.remote_qpn), Some(context.port));
    if (own, peer) != ((qp.lqpn, qp.qp_type, qp.state), (qp.rqpn, qp.port)) {
        return Err("netlink has other numbers");
    }
    let port = listed.port_facts(context.port).ok_or("no such port")?;
    // As `to_rdma_ah_attr` of mlx5.
    if !context.grh && port.link_layer.as_deref() != Some("Ethernet") {
        return Ok(None);
    }
    let mut own = port.gids.iter().flatten();
    if !own.any(|own| own.index == u16::from(context.sgid_index)) {
        return Ok(None);
    }
    let gid = Gid::known(context.remote_gid.0);
    Ok(gid.map(|gid| (context.remote_qpn, gid, context.sgid_index)))
}
