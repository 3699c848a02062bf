//! Records what this kernel says over RDMA netlink, as test input or to report a wrong reading.
//!
//! `record_netlink FILE [COMMENT]` reads every device twice, and records the answers to requests about a
//! device that does not exist. The file holds device names, process ids, addresses of connections and, as
//! root, keys of memory regions: look before you share it. Format: `rdmatop_sources::fake::recording`.
use std::process::ExitCode;

use anyhow::{Context, Result};
use rdmatop_sources::fake::recording::Recorder;
use rdmatop_sources::netlink::client::Nldev;
use rdmatop_sources::netlink::sampler::{self, Want};
use rdmatop_sources::netlink::socket::Socket;

/// No kernel has given out this index.
const ABSENT: u32 = 4_000_000;

fn record(file: &str, comment: &str) -> Result<String> {
    let mut nldev = Nldev::new(Recorder::new(Socket::rdma()?));
    let mut seen = Vec::new();
    for _ in 0..2 {
        for device in nldev.devices()?.items {
            let index = device.index;
            let sample = sampler::sample(
                &mut nldev,
                device,
                Want {
                    ports: true,
                    mrs: true,
                },
                None,
            );
            let objects = (
                nldev.qps(index),
                nldev.cm_ids(index),
                nldev.pds(index),
                nldev.ctxs(index),
            );
            let mut counters = Vec::new();
            for port in 1..=sample.device.port_count {
                let read = nldev.each_counter(index, port, &mut |name, value| {
                    counters.push((name.to_vec(), value));
                });
                read?;
            }
            seen.push((sample, counters, objects, nldev.ports(index)?));
        }
    }
    let absent = [
        nldev.qps(ABSENT).map(|_| ()),
        nldev.summary(ABSENT).map(|_| ()),
        nldev.each_counter(ABSENT, 1, &mut |_, _| {}),
        nldev.del_link(ABSENT),
    ];
    let mut recording = nldev.into_transport().recording;
    comment.clone_into(&mut recording.comment);
    std::fs::write(file, recording.encode()).with_context(|| format!("cannot write {file}"))?;
    Ok(format!("{seen:#?}\nabsent device: {absent:?}"))
}

#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example's output is its result"
)]
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (file, comment) = match args.as_slice() {
        [file] => (file, String::new()),
        [file, comment] => (file, comment.clone()),
        _ => {
            eprintln!("usage: record_netlink FILE [COMMENT]");
            return ExitCode::from(2);
        }
    };
    match record(file, &comment) {
        Ok(seen) => {
            println!("{seen}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("record_netlink: {error:#}");
            ExitCode::FAILURE
        }
    }
}
