//! `--uprobes` on a NIC to which programs post without entering the kernel (`cargo xtask lab --nic pvrdma`): what probes
//! count is what the programs say they did.

use std::time::Duration;

use anyhow::{Result, ensure};
use rdmatop_tests::{
    lab::{self, Lab},
    perftest::{Account, Perftest},
    rdmatop::Window,
    snapshot::Row,
};

const DEVICE: &str = "vmw_pvrdma0";

fn total(row: Row<'_>, key: &str) -> Option<u64> {
    row.field(key)["total"].as_u64()
}

#[test]
fn posts_that_bypass_the_kernel_are_counted_as_the_program_counts_them() -> Result<()> {
    const NAME: &str = "uprobes on pvrdma";
    let Some(_lab) = Lab::enter(NAME) else {
        return Ok(());
    };
    if !lab::devices().is_ok_and(|devices| devices == [DEVICE]) {
        lab::skip(
            NAME,
            "no pvrdma in this guest: `cargo xtask lab run --nic pvrdma`",
        );
        return Ok(());
    }
    let window = Window::open(&["--uprobes", "--uprobe-limit", "100000"])?;
    // -Q 1: this device completes what asks for no completion, which perftest would count.
    let pair = Perftest::new("ib_send_bw")
        .devices(DEVICE, DEVICE)
        .args(&["-x", "0", "-Q", "1"]);
    // Its library is found with the first of these; the probes stand before the second one posts.
    let first = pair.start()?;
    std::thread::sleep(Duration::from_secs(10));
    let early = first.finish()?;
    let accounts = pair.clone().iterations(1500).run()?;
    let lists = pair.args(&["-l", "4", "-q", "2"]).run()?;
    let sample = window.close()?;
    let sums = |side: &Account| -> Result<[u64; 3]> {
        let mut sums = [0; 3];
        for qpn in &side.qpns {
            let row = sample.qp(side.pid, *qpn)?;
            ensure!(!row.is("since_attach") && !row.is("uncounted"), "{row:?}");
            for (sum, key) in sums.iter_mut().zip(["tx_wr_posted", "tx_bytes", "rx_wr_posted"]) {
                ensure!(row.field(key)["source"] == "uprobe", "{key}: {row:?}");
                *sum += total(row, key).unwrap_or(0);
            }
        }
        Ok(sums)
    };
    for (name, run) in [("one by one", &accounts), ("lists", &lists)] {
        let (client, server) = (sums(&run.client)?, sums(&run.server)?);
        let count = run.client.iterations;
        println!(
            "{name}: client {client:?}, server {server:?}, perftest {count} of {} bytes",
            run.client.size
        );
        ensure!(
            client[0] == count && client[1] == count * run.client.size,
            "{name}"
        );
        // A receiver posts one for each message, those that fill its queue among them.
        ensure!(server == [0, 0, count], "{name}");
    }
    for side in [&early.client, &early.server] {
        for qpn in &side.qpns {
            let row = sample.qp(side.pid, *qpn)?;
            // Gone before its library was known, or counted from then on, or from its first post on; never a part for all.
            let sent = total(row, "tx_wr_posted");
            let whole = side != &early.client || sent == Some(side.iterations);
            ensure!(sent.is_none() || row.is("since_attach") || whole, "{row:?}");
        }
    }
    println!("{}", sample.value()["health"]["uprobes"]);
    Ok(())
}
