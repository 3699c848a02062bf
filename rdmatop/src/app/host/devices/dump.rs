//! The QPs of one device, complete.

use super::{known::Listed, owners::Owners};
use rdmatop_base::text;
use rdmatop_model::{
    ib::QpType,
    input::{QpReading, QpsSample},
};
use rdmatop_sources::{
    clock::timed,
    netlink::{
        client::Nldev,
        error::NetlinkError,
        record::{Owner, Qp},
        transport::Transport,
    },
};

/// The largest space reserved before a dump: other programs decide the count.
const MAX_ROOM: u64 = 1 << 16;
/// How often a dump is taken when it misses too many QPs to request each.
const ATTEMPTS: usize = 2;

/// The QPs of a device, of which it has `count`.
pub(super) fn dump<T: Transport>(
    nldev: &mut Nldev<T>,
    owners: &mut Owners,
    listed: &mut Listed,
    count: Option<u64>,
    before_ns: u64,
) -> Result<QpsSample, NetlinkError> {
    let mut out = QpsSample {
        mono_ns: before_ns,
        ..QpsSample::default()
    };
    let index = listed.device().index;
    if let Some(special) = listed.only_special(count) {
        out.complete.push(index);
        out.qps.extend_from_slice(special);
        return Ok(out);
    }
    out.qps
        .reserve(usize::try_from(count.unwrap_or(0).min(MAX_ROOM)).unwrap_or(0));
    let (read, span) = timed(|| whole(nldev, owners, listed, &mut out.qps));
    listed.dump_took(span);
    if read? {
        out.complete.push(index);
        listed.dumped(count, &out.qps);
    }
    Ok(out)
}

/// Adds the QPs of a device; true when none is missing.
///
/// Between two datagrams the kernel resumes a dump after as many objects as it has sent
/// (`res_get_common_dumpit`, drivers/infiniband/core/nldev.c): for each QP that is destroyed in between it
/// leaves out a living one without an error. So a QP that the last dump had and this one lacks is requested
/// by its number. When very many are missing, as after the end of a job, the dump is taken again: QPs that
/// both lack are gone.
fn whole<T: Transport>(
    nldev: &mut Nldev<T>,
    owners: &mut Owners,
    listed: &mut Listed,
    out: &mut Vec<QpReading>,
) -> Result<bool, NetlinkError> {
    let index = listed.device().index;
    for _ in 0..ATTEMPTS {
        let interrupted = nldev.each_qp(index, &mut |qp| match qp {
            Some(qp) => out.push(reading(owners, index, &qp)),
            None => out.clear(),
        })?;
        if interrupted {
            return Ok(false);
        }
        // Management QPs are left out: they last as long as their device, and exist once for each port. The
        // kernel sends the other numbers sorted.
        let mut now: Vec<u32> = out.iter().filter(|qp| !is_special(qp)).map(|qp| qp.qpn).collect();
        now.sort_unstable();
        let missing = missing(&listed.known.numbers, &now);
        let few = missing.len() <= 64 + now.len() / 16;
        listed.known.numbers = now;
        if few {
            for qpn in missing {
                if let Some(qp) = nldev.qp(index, qpn)? {
                    out.push(reading(owners, index, &qp));
                    listed.known.numbers.push(qpn);
                }
            }
            listed.known.numbers.sort_unstable();
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether it is QP 0 or QP 1, through which the kernel manages a port. An iWARP device has neither: the
/// first QPs of its users may have these numbers.
pub(super) fn is_special(qp: &QpReading) -> bool {
    // RC or UC.
    let connected = matches!(qp.qp_type, Some(QpType::RC | QpType::UC));
    qp.qpn <= 1 && qp.pid.is_none() && !connected
}

/// The elements of `before` that `now` lacks; both are sorted.
fn missing(before: &[u32], now: &[u32]) -> Vec<u32> {
    // A search for each of ten thousand, in each refresh, would cost more than to fold their readings in.
    if before == now {
        return Vec::new();
    }
    let lacks = |qpn: &&u32| now.binary_search(qpn).is_err();
    let mut out: Vec<u32> = before.iter().filter(lacks).copied().collect();
    out.dedup();
    out
}

fn reading(owners: &mut Owners, device_index: u32, qp: &Qp) -> QpReading {
    QpReading {
        device_index,
        port: qp.port,
        qpn: qp.lqpn,
        qp_type: qp.qp_type,
        state: qp.state,
        // 0 until RTR: no peer yet.
        remote_qpn: qp.rqpn.filter(|qpn| *qpn != 0),
        sq_psn: qp.sq_psn,
        rq_psn: qp.rq_psn,
        pid: qp
            .owner
            .as_ref()
            .and_then(Owner::pid)
            .map(|tid| owners.process(tid)),
        kern_name: match &qp.owner {
            Some(Owner::Kernel(name)) => Some(text::sanitize(name.as_bytes())),
            _ => None,
        },
    }
}
