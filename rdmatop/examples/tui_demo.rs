//! Shows the live view with made-up data, for a look without RDMA: `cargo run --example tui_demo`.
//!
//! `tui_demo empty|one|busy|troubled|degraded|hostile|many|full` chooses the data.

use std::sync::Arc;
use std::time::Duration;

use rdmatop_model::testkit;
use rdmatop_views::tui::{TuiOptions, run};
use tokio::sync::{mpsc, watch};

fn made(kind: &str) -> rdmatop_model::snapshot::Snapshot {
    match kind {
        "empty" => testkit::empty(),
        "one" => testkit::one_row(),
        "troubled" => testkit::troubled(),
        "degraded" => testkit::degraded(),
        "hostile" => testkit::hostile(),
        "many" => testkit::many(),
        "full" => testkit::full::snapshot(),
        _ => testkit::busy(),
    }
}

fn move_on(s: &mut rdmatop_model::snapshot::Snapshot, tick: u32) {
    let swing = 1.0 + 0.2 * f64::from(tick).sin();
    s.mono_ns += 1_000_000_000 * u64::from(tick);
    for p in &mut s.processes {
        for c in [
            &mut p.traffic.tx_wr,
            &mut p.traffic.tx_bytes,
            &mut p.traffic.rx_bytes,
        ]
        .into_iter()
        .flatten()
        {
            c.rate = c.rate.map(|r| r * swing);
        }
    }
    for p in &mut s.ports {
        for c in [&mut p.tx_bytes, &mut p.rx_bytes].into_iter().flatten() {
            c.rate = c.rate.map(|r| r * swing.min(1.0));
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let kind = std::env::args().nth(1).unwrap_or_default();
    let (to_view, snapshots) = watch::channel(Arc::new(made(&kind).judged(None)));
    let (to_trace, events) = mpsc::channel(64);
    let (control, mut wishes) = mpsc::channel(8);
    tokio::spawn(async move {
        let mut delay = Duration::from_secs(1);
        for tick in 1.. {
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                wish = wishes.recv() => match wish {
                    Some(rdmatop_views::tui::Control::Refresh(new)) => delay = new,
                    _ => return,
                },
            }
            let mut next = made(&kind);
            move_on(&mut next, tick);
            if to_view.send(Arc::new(next.judged(None))).is_err() {
                return;
            }
            let made = if kind == "full" {
                testkit::full::events()
            } else {
                testkit::events()
            };
            for event in made {
                let _ = to_trace.try_send(event);
            }
        }
    });
    let outcome = run(TuiOptions::load(), snapshots, events, control).await;
    outcome.map(drop).map_err(Into::into)
}
