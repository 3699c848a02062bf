//! Kernel lockdown. It cannot be lifted before the next boot: this is the last test of its guest
//! (`xtask/src/test/places.rs`).

use std::{fs, path::Path};

use anyhow::{Result, ensure};
use rdmatop_tests::{
    faults::{behind, notes, sample, sample_after},
    lab::{self, Lab},
    snapshot::Snapshot,
    traffic::Traffic,
};

const LOCKDOWN: &str = "/sys/kernel/security/lockdown";

fn state(sample: &Snapshot) -> &str {
    sample.value()["health"]["ebpf"]["state"]
        .as_str()
        .unwrap_or_default()
}

#[test]
fn integrity_costs_nothing_and_confidentiality_forbids_ebpf_by_name() -> Result<()> {
    let Some(lab) = Lab::enter("lockdown") else {
        return Ok(());
    };
    if !Path::new(LOCKDOWN).exists() {
        lab::skip("lockdown", &format!("Linux {} has no lockdown", lab.release));
        return Ok(());
    }
    let before = notes(&sample(&["env"])?);
    fs::write(LOCKDOWN, "integrity")?;
    let kept = sample(&["env"])?;
    ensure!(
        state(&kept) == "on" && notes(&kept) == before,
        "{:?}",
        notes(&kept)
    );

    fs::write(LOCKDOWN, "confidentiality")?;
    let idle = Traffic::start("idle-qps", &["--qps", "2"])?;
    idle.ready()?;
    // Without securityfs, as in a container, the switch cannot be read; then the verifier's error tells.
    for sample in [sample(&["env"])?, sample_after("umount /sys/kernel/security")?] {
        let notes = notes(&sample);
        ensure!(
            state(&sample) == "unavailable",
            "{}: {notes:?}",
            sample.value()["health"]["ebpf"]
        );
        ensure!(notes.len() == 1 && notes[0].starts_with("No eBPF"), "{notes:?}");
        ensure!(
            notes[0].contains("lockdown")
                && !notes[0].contains("bpf_probe_read")
                && !notes[0].contains("--cap-add"),
            "{notes:?}"
        );
        let pid = i64::from(idle.child.pid());
        let rows = sample.qps().filter(|row| *row.field("pid") == pid).count();
        ensure!(rows == 2, "netlink has two QPs of {pid}, the sample {rows}");
    }
    let (code, trace) = behind(&["env"], &["--trace", "--for", "0.3"])?;
    let said = trace.err.all();
    ensure!(
        code == Some(1) && said.len() == 1 && said[0].contains("lockdown"),
        "{code:?}: {said:?}"
    );
    Ok(())
}
