//! 200 000 QP events at full speed. What this shows does not depend on the kernel: one kernel of a full run.

use anyhow::{Result, ensure};
use rdmatop_tests::{lab::Lab, rdmatop::Trace, storm::Storm, traffic};

#[test]
fn a_ring_of_8_kib_under_200_000_events_loses_many_and_tells_of_each() -> Result<()> {
    let Some(lab) = Lab::enter("flood") else {
        return Ok(());
    };
    let trace = Trace::start_with(&[], &[("RDMATOP_RING_BYTES", "8192")])?;
    // 2000 QPs with 101 events each: a create costs the emulated machine as much as fifty modifies. `cargo xtask
    // bench` has 40 000 QPs in a guest that does not mind.
    let args = ["--count", "2000", "--laps", "25", "--threads", "4"];
    let done = traffic::run("qp-churn", &args)?;
    let storm = Storm::of(&trace.stop()?, &done)?;
    storm.check(&format!("Linux {}, a ring of 8 KiB", lab.release))?;
    ensure!(storm.happened > 200_000, "{done}");
    ensure!(storm.lost > 0, "8 KiB were enough: nothing about loss was tested");
    ensure!(storm.printed > 0, "nothing was printed");
    Ok(())
}
