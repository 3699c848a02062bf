//! What a card counts of a process by its queue pairs is taken off what the others on its port moved at most.

use std::{
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    child::output,
    kmod::Module,
    lab::Lab,
    rdmatop::Window,
    snapshot::Snapshot,
    table::say,
    testnic::{MLX5, Port, TestNic, Wish},
    traffic::{Traffic, id},
    wait::{self, PATIENCE},
};

/// What a card counts of queue pairs that are bound to a counter: as mlx5's from Linux 6.15 on.
const BOUND: [&str; 4] = [
    "rdma_tx_bytes",
    "rdma_tx_packets",
    "rdma_rx_bytes",
    "rdma_rx_packets",
];
/// Packets of 4 KiB that the counted process and another one send in a millisecond: together 4.8 Gb/s.
const COUNTED: u64 = 128;
const OTHER: u64 = 16;
/// Bytes of such a packet.
const PACKET: u64 = 4096 + 58;
const STEP: Duration = Duration::from_millis(20);
/// What a step may make up for, ms: much more at once no link carries in the time of a reading.
const MOST: u64 = 40;
/// Less than the longest interval of which something is concluded.
const LOOK: Duration = Duration::from_millis(2500);
/// More would say nothing: the windows would be too long on this machine.
const TRIES: usize = 4;

/// A card with a process whose queue pair is bound to a counter, and one whose is not.
struct Card {
    port: Port,
    qpn: u64,
    counted: u32,
    other: u32,
    _held: [Traffic; 2],
}

impl Card {
    /// `args`: where the counted queue pair sends to.
    fn add(nic: &TestNic, number: u32, args: &[&str]) -> Result<Self> {
        let counters = [MLX5, &BOUND].concat();
        // RDMA_DRIVER_MLX5: its firmware says where a queue pair from before rdmatop sends to.
        let wish = Wish::mlx5(&format!("mlx5_{number}"));
        let wish = wish.hw(&counters).set("uverbs", "1").set("driver_id", "1");
        let address = format!("10.5{number}.0.1");
        let port = nic.add(&wish.net(&format!("rail{number}"), &address, 9000, &[]))?;
        port.gbit(25)?;
        let gid = port
            .gid("RoCE v2", &format!("0a3{}:0001", 2 + number))?
            .to_string();
        let start = |more: &[&str]| {
            let args = [&["--gid", &gid, "--devices", &port.device], more].concat();
            Traffic::start("raw-qps", &args)
        };
        bind(&port, "pid", "on")?;
        let counted = start(args)?;
        let said = counted.ready()?;
        let qpn = said["qpns"][0].as_u64().context("no QP")?;
        bind(&port, "off", "")?;
        let other = start(&["--away"])?;
        Ok(Self {
            qpn,
            counted: id(&said, "pid")?,
            other: id(&other.ready()?, "pid")?,
            _held: [counted, other],
            port,
        })
    }

    /// Both send for so many milliseconds.
    fn moves(&self, ms: u64) -> Result<()> {
        self.port
            .grow("port_xmit_data", (COUNTED + OTHER) * ms * PACKET / 4)?;
        let counted = COUNTED * ms;
        for (name, count) in [("bytes", counted * PACKET), ("packets", counted)] {
            // Each card has a queue pair of this number.
            let order = format!("add {} {} rdma_tx_{name} {count}", self.port.device, self.qpn);
            std::fs::write("/sys/kernel/debug/rxe_counters/control", &order).with_context(|| order)?;
        }
        Ok(())
    }

    /// What the other process sent at most, as is shown, as a part of what the port did.
    fn most(&self, sample: &Snapshot) -> Result<f64> {
        let rate = sample.port(&self.port.device, 1)?.rate("tx_bytes");
        let shown = sample.process(self.other)?.field("tx_bytes");
        ensure!(shown["source"] == "port" && shown["rate"].is_null(), "{shown}");
        let most = shown["at_most"]["rate"].as_f64().context("no bound")?;
        Ok(most / rate.context("no rate")?)
    }
}

fn bind(port: &Port, mode: &str, on: &str) -> Result<()> {
    let link = format!("{}/1", port.device);
    let args = ["statistic", "qp", "set", "link", &link, "auto", mode, on];
    let args = args.into_iter().filter(|arg| !arg.is_empty());
    output(Command::new("rdma").args(args)).map(drop)
}

#[test]
fn what_a_card_counts_of_a_process_is_no_other_s() -> Result<()> {
    let test = "what others moved";
    let Some(_lab) = Lab::enter(test) else {
        return Ok(());
    };
    let Some(_counters) = Module::load(test, "rxe_counters", &["source=none"])? else {
        return Ok(());
    };
    let Some(nic) = TestNic::load(test)? else {
        return Ok(());
    };
    let away = Card::add(&nic, 0, &["--away"])?;
    // What it sends to the card itself the port may not have counted.
    let stays = Card::add(&nic, 1, &[])?;
    let truth = OTHER as f64 / (COUNTED + OTHER) as f64;
    let over = AtomicBool::new(false);
    let shown = thread::scope(|scope| {
        let steps = scope.spawn(|| -> Result<()> {
            let mut before = Instant::now();
            while !over.load(Ordering::Relaxed) {
                thread::sleep(STEP);
                let ms = u64::try_from(before.elapsed().as_millis())?;
                before += Duration::from_millis(ms);
                away.moves(ms.min(MOST))?;
                stays.moves(ms.min(MOST))?;
            }
            Ok(())
        });
        let shown = look(test, &away, &stays);
        over.store(true, Ordering::Relaxed);
        steps.join().map_err(|_| anyhow::anyhow!("the steps ended"))??;
        shown
    })?;
    drop((away, stays));
    wait::until("the end of all counters", PATIENCE, || {
        output(Command::new("rdma").args(["-j", "statistic", "qp", "show"]))
            .is_ok_and(|text| !text.contains("cntn"))
    })?;
    for [most, whole] in &shown {
        ensure!(*most >= truth * 0.99, "{most} of {truth}");
        ensure!(
            (whole - 1.0).abs() < 1e-9,
            "it may have stayed in the card: {whole}"
        );
    }
    ensure!(
        shown.iter().any(|[most, _]| *most < 0.5),
        "nothing is taken off: {shown:?} of which {truth} is true"
    );
    Ok(())
}

/// What is shown of both cards until something is taken off.
fn look(test: &str, away: &Card, stays: &Card) -> Result<Vec<[f64; 2]>> {
    let mut shown = Vec::new();
    for _ in 0..TRIES {
        let window = Window::open(&[])?;
        thread::sleep(LOOK);
        let sample = window.close()?;
        let most = [away.most(&sample)?, stays.most(&sample)?];
        say(&format!(
            "{test}: at most {:.3} of the port, and {:.3} where it may stay",
            most[0], most[1]
        ));
        shown.push(most);
        if most[0] < 0.5 {
            break;
        }
        let port = sample.port(&away.port.device, 1)?.rate("tx_bytes");
        let counted = sample.process(away.counted)?.field("tx_bytes");
        say(&format!("{test}: counted {counted}, by the port {port:?}"));
    }
    Ok(shown)
}
