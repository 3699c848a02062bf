//! Makes a known number of calls of each verb and prints them:
//! `{"pid":..,"calls":{VERB:N,..},"by_write":{..}}`.
//!
//! `verb-calls [--device rxe0]` counts the calls that rdma-core makes by ioctl separately from those that a
//! program may make by `write()`.

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    args::{Args, report},
    verbs::{Context, Cq, Mr, Opcode, Pd, Qp, connect, unlimit_memlock},
};
use serde_json::json;

const CQS: u64 = 4;
const MRS: u64 = 5;
const NOTIFIED: u64 = 17;
const JOINED: u64 = 6;
const WRITTEN: u64 = 9;
const POSTED: u64 = 30;

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    args.finish()?;
    unlimit_memlock()?;
    let context = Context::open(&device).with_context(|| format!("open {device}"))?;
    let pd = Pd::new(&context)?;
    let cqs = (0..CQS)
        .map(|_| Cq::new(&context, 64))
        .collect::<Result<Vec<_>, _>>()?;
    let mrs = (0..MRS)
        .map(|_| Mr::new(&pd, 4096))
        .collect::<Result<Vec<_>, _>>()?;
    for _ in 0..NOTIFIED {
        cqs[0].req_notify()?;
    }
    for _ in 0..WRITTEN {
        cqs[0].req_notify_by_write(false)?;
    }
    let wrong = cqs[0].req_notify_by_write(true);
    ensure!(wrong.is_err(), "a CQ that is not there");
    let group = Qp::unconnected(&pd, &cqs[1])?;
    for _ in 0..JOINED {
        group.attach_mcast()?;
        group.detach_mcast()?;
    }
    let left = group.detach_mcast();
    ensure!(left.is_err(), "left a group twice");
    let (a, b) = (Qp::new(&pd, &cqs[2], 64)?, Qp::new(&pd, &cqs[3], 64)?);
    connect(&a, &b)?;
    for wr in 0..POSTED {
        a.post_send(wr, Opcode::RdmaWrite, 64, &mrs[0], &mrs[1])?;
    }
    for _ in 0..POSTED {
        while cqs[2].poll()?.is_none() {
            std::thread::yield_now();
        }
    }
    drop((a, b, group, cqs, mrs, pd));
    let errno = |result: std::io::Result<()>| result.err().and_then(|error| error.raw_os_error());
    report(&json!({
        "pid": std::process::id(),
        "calls": {
            "alloc_pd": 1, "dealloc_pd": 1, "create_cq": CQS, "destroy_cq": CQS, "reg_mr": MRS, "dereg_mr": MRS,
            "create_qp": 3, "destroy_qp": 3, "modify_qp": 6, "req_notify_cq": NOTIFIED,
            "attach_mcast": JOINED, "detach_mcast": JOINED + 1,
        },
        "failed": {"detach_mcast": errno(left)},
        "by_write": {"post_send": POSTED, "req_notify_cq": WRITTEN + 1},
        "failed_by_write": {"req_notify_cq": errno(wrong)},
    }))
}
