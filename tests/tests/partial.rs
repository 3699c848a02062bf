//! A data path with one program that cannot be attached: what only that program counts is unknown, not 0.

use anyhow::{Result, ensure};
use rdmatop_tests::{
    lab::{self, Lab},
    perftest::Perftest,
    rdmatop::Window,
};

/// Since this version the kernel itself rejects an unknown function name, so rdmatop does not read
/// /proc/kallsyms.
const ASKS_NOBODY: (u32, u32) = (6, 7);

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split('.').map(|part| part.parse::<u32>().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Opens a window of an rdmatop for which the kernel lacks the function of this name.
fn without(function: &str, test: &str, lab: &Lab) -> Result<Option<Window>> {
    if version(&lab.release).is_none_or(|version| version >= ASKS_NOBODY) {
        let reason = format!(
            "Linux {} has the function, and no list that could hide it is asked",
            lab.release
        );
        lab::skip(test, &reason);
        return Ok(None);
    }
    let script = format!(
        "mount -t tmpfs none /mnt && grep -vw {function} /proc/kallsyms >/mnt/kallsyms && \
         mount --bind /mnt/kallsyms /proc/kallsyms && exec \"$0\" \"$@\""
    );
    Window::open_under(&["unshare", "-m", "sh", "-c", &script]).map(Some)
}

#[test]
fn without_the_program_that_sees_completions_they_are_unknown() -> Result<()> {
    let name = "without rxe_cq_post";
    let Some(lab) = Lab::enter_data_path(name) else {
        return Ok(());
    };
    let Some(window) = without("rxe_cq_post", name, &lab)? else {
        return Ok(());
    };
    let accounts = Perftest::new("ib_send_bw").iterations(500).run()?;
    let sample = window.close()?;
    let (client, server) = (&accounts.client, &accounts.server);
    let rows = [
        sample.qp(client.pid, client.qpns[0])?,
        sample.qp(server.pid, server.qpns[0])?,
        sample.process(server.pid)?,
    ];
    for row in rows {
        for key in [
            "completions",
            "completion_errors",
            "flushes",
            "rx_wr",
            "rx_bytes",
            "cq_overflows",
            "latency",
        ] {
            ensure!(row.field(key).is_null(), "{key} is {} of {row:?}", row.field(key));
        }
        ensure!(row.field("retransmits").is_object(), "{row:?}");
    }
    ensure!(rows[0].total("tx_wr") == Some(500), "{:?}", rows[0]);
    Ok(())
}

#[test]
fn without_the_program_that_sees_packets_retransmissions_are_unknown() -> Result<()> {
    let name = "without rxe_xmit_packet";
    let Some(lab) = Lab::enter_data_path(name) else {
        return Ok(());
    };
    let Some(window) = without("rxe_xmit_packet", name, &lab)? else {
        return Ok(());
    };
    let accounts = Perftest::new("ib_send_bw").iterations(500).run()?;
    let sample = window.close()?;
    let row = sample.qp(accounts.server.pid, accounts.server.qpns[0])?;
    ensure!(row.field("retransmits").is_null(), "{row:?}");
    ensure!(row.total("rx_wr") == Some(500), "{row:?}");
    Ok(())
}
