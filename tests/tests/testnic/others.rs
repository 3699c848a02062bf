//! What a card counts of a process by its queue pairs is taken off what the others on its port can have moved.

use std::process::Command;

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
/// Payload that the counted process and another one send, in packets of 4 KiB with 58 bytes of headers.
const COUNTED: u64 = 10_000_000_000;
const OTHER: u64 = 1_000_000_000;
/// More would say nothing: the window would be too long on this machine.
const TRIES: usize = 4;

fn on_wire(payload: u64) -> u64 {
    payload + payload / 4096 * 58
}

/// A card with a process whose queue pair is bound to a counter, and one whose is not.
struct Card {
    port: Port,
    qpn: u64,
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
        let qpn = counted.ready()?["qpns"][0].as_u64().context("no QP")?;
        bind(&port, "off", "")?;
        let other = start(&["--away"])?;
        Ok(Self {
            qpn,
            other: id(&other.ready()?, "pid")?,
            _held: [counted, other],
            port,
        })
    }

    /// Both send.
    fn moves(&self) -> Result<()> {
        let all = on_wire(COUNTED) + on_wire(OTHER);
        self.port.grow("port_xmit_data", all / 4)?;
        for (name, count) in [("bytes", on_wire(COUNTED)), ("packets", COUNTED / 4096)] {
            let order = format!("add {} rdma_tx_{name} {count}", self.qpn);
            std::fs::write("/sys/kernel/debug/rxe_counters/control", &order).with_context(|| order)?;
        }
        Ok(())
    }

    /// What the other process sent at most, as is shown.
    fn most(&self, sample: &Snapshot) -> Result<f64> {
        let rate = sample.port(&self.port.device, 1)?.rate("tx_bytes");
        let seconds = (on_wire(COUNTED) + on_wire(OTHER)) as f64 / rate.context("no rate")?;
        let shown = sample.process(self.other)?.field("tx_bytes");
        ensure!(shown["source"] == "port" && shown["rate"].is_null(), "{shown}");
        Ok(shown["at_most"]["rate"].as_f64().context("no bound")? * seconds)
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
    let (truth, all) = (on_wire(OTHER) as f64, (on_wire(COUNTED) + on_wire(OTHER)) as f64);
    let mut shown = Vec::new();
    for _ in 0..TRIES {
        let window = Window::open(&[])?;
        window.wait_looks(3)?;
        away.moves()?;
        stays.moves()?;
        let sample = window.close()?;
        let (most, whole) = (away.most(&sample)?, stays.most(&sample)?);
        say(&format!(
            "{test}: at most {most:.0} of {truth}, and {whole:.0} where it may stay"
        ));
        ensure!(most >= truth, "{most} of {truth}");
        ensure!((whole - all).abs() < all * 0.001, "{whole} of {all}");
        shown.push(most);
        if most < all / 2.0 {
            break;
        }
    }
    drop((away, stays));
    wait::until("the end of all counters", PATIENCE, || {
        output(Command::new("rdma").args(["-j", "statistic", "qp", "show"]))
            .is_ok_and(|text| !text.contains("cntn"))
    })?;
    ensure!(
        shown.last().is_some_and(|most| *most < all / 2.0),
        "nothing is taken off: {shown:?} of {all}"
    );
    Ok(())
}
