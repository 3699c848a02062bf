//! Holds connected QPs, one per port that is named, of devices for which rdma-core has no library, and leaves
//! them idle; and other such devices open without a QP.
//!
//! `raw-qps [--gid 0] [--mtu 4096] [--away] [--type 2] --devices mlx5_0,mlx5_1/2 [--open mlx5_2]`
//! `[--regions 3] [--dmabuf]`: registers so many pages on the first device, and a DMA-BUF.
//! Prints `{"ready":true,"pid":N,"qpns":[..]}` when all QPs exist; ends when stdin is closed or by a signal.

use std::os::fd::OwnedFd;

use anyhow::Result;
use rdmatop_tests::{
    args::{Args, report, wait_for_stdin_end},
    verbs::raw::{RawQp, context, dmabuf},
};
use serde_json::json;

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let gid: u32 = args.value("--gid", 0)?;
    let mtu: u32 = args.value("--mtu", 4096)?;
    let away = args.flag("--away");
    // RC. The types that a driver has of its own are 255.
    let kind: u32 = args.value("--type", 2)?;
    let devices: String = args.value("--devices", String::new())?;
    let regions: usize = args.value("--regions", 0)?;
    let with_dmabuf = args.flag("--dmabuf");
    let open: String = args.value("--open", String::new())?;
    args.finish()?;
    let opened = names(&open).map(context);
    let _opened: Vec<OwnedFd> = opened.collect::<Result<_>>()?;
    let qps = names(&devices).map(|device| RawQp::connected(device, kind, gid, mtu, away));
    let qps: Vec<RawQp> = qps.collect::<Result<_>>()?;
    if let Some(first) = qps.first() {
        (0..regions).try_for_each(|_| first.register(None))?;
        if with_dmabuf {
            first.register(Some(&dmabuf()?))?;
        }
    }
    let qpns: Vec<u32> = qps.iter().map(|qp| qp.qpn).collect();
    report(&json!({"ready": true, "pid": std::process::id(), "qpns": qpns}))?;
    wait_for_stdin_end()
}

fn names(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').filter(|name| !name.is_empty())
}
