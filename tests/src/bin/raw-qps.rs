//! Holds connected QPs, one per device, of devices for which rdma-core has no library, and leaves them idle.
//!
//! `raw-qps [--gid 0] [--mtu 4096] --devices mlx5_0,mlx5_1`
//! Prints `{"ready":true,"pid":N,"qpns":[..]}` when all QPs exist; ends when stdin is closed or by a signal.

use anyhow::Result;
use rdmatop_tests::{
    args::{Args, report, wait_for_stdin_end},
    verbs::raw::RawQp,
};
use serde_json::json;

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let gid: u32 = args.value("--gid", 0)?;
    let mtu: u32 = args.value("--mtu", 4096)?;
    let devices: String = args.value("--devices", String::new())?;
    args.finish()?;
    let qps = devices
        .split(',')
        .map(|device| RawQp::connected(device, gid, mtu));
    let qps: Vec<RawQp> = qps.collect::<Result<_>>()?;
    let qpns: Vec<u32> = qps.iter().map(|qp| qp.qpn).collect();
    report(&json!({"ready": true, "pid": std::process::id(), "qpns": qpns}))?;
    wait_for_stdin_end()
}
