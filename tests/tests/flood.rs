//! 200 000 QP events at full speed. What this shows does not depend on the kernel: one kernel of a full run.

use anyhow::{Result, ensure};
use rdmatop_tests::{lab::Lab, rdmatop::Trace, storm::Storm, traffic};

/// QPs, with five events each.
const QPS: &str = "40000";

#[test]
fn a_ring_of_8_kib_under_200_000_events_loses_many_and_tells_of_each() -> Result<()> {
    let Some(lab) = Lab::enter("flood") else {
        return Ok(());
    };
    let trace = Trace::start_with(&[], &[("RDMATOP_RING_BYTES", "8192")])?;
    let done = traffic::run("qp-churn", &["--count", QPS, "--threads", "4"])?;
    let account = Storm::of(&trace.stop()?, &done)?;
    account.check(&format!("Linux {}, a ring of 8 KiB", lab.release))?;
    ensure!(
        account.lost > 0,
        "8 KiB were enough: nothing about loss was tested"
    );
    ensure!(account.printed > 0, "nothing was printed");
    Ok(())
}
