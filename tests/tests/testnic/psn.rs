//! Shares of ports by PSN on cards whose driver moves PSNs and counters as a test says: the counters of mlx5,
//! on kernels whose SoftRoCE counts no bytes. Each situation has a card of its own.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    lab::Lab,
    rdmatop::Window,
    table::{documented, say},
    testnic::{Port, TestNic, Wish},
    traffic::{Traffic, id},
};
use serde_json::Value;

/// Headers of a packet as this card counts them: Ethernet, IPv4, UDP, BTH and ICRC.
const HEADERS: u64 = 14 + 20 + 8 + 12 + 4;
const MTU: u64 = 4096;
const LARGE: u64 = 1 << 20;

/// What a queue pair does, or its peer on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Writes,
    Reads,
    IsWritten,
    IsRead,
}
use Work::{IsRead, IsWritten, Reads, Writes};

/// A queue pair of process `user`, with the number of its messages and their size.
type Pair = (usize, Work, u64, u64);

/// What is to be shown of what each process sent, and received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    Share,
    Bound,
    /// Whichever of both holds.
    Any,
}
use Want::{Any, Bound, Share};

struct Situation {
    name: &'static str,
    pairs: Vec<Pair>,
    /// Packets that the first process sent again.
    again: u64,
    /// The driver moves no PSN.
    still: bool,
    wants: [Want; 2],
}

/// Packets and bytes that a process sent, and received.
type Moved = [[u64; 2]; 2];

fn situations() -> Vec<Situation> {
    let each = |count: usize, work, messages| (0..count).map(move |user| (user, work, messages, LARGE));
    let of = |name, pairs, wants| Situation {
        name,
        pairs,
        again: 0,
        still: false,
        wants,
    };
    let both: Vec<Pair> = each(4, Writes, 80).chain(each(4, IsWritten, 80)).collect();
    vec![
        of(
            "WRITE 1:3",
            vec![(0, Writes, 100, LARGE), (1, Writes, 300, LARGE)],
            [Share, Bound],
        ),
        of(
            "written 1:3",
            vec![(0, IsWritten, 100, LARGE), (1, IsWritten, 300, LARGE)],
            [Bound, Share],
        ),
        // A card counts no READs of its own, so what it receives may be answers.
        of("WRITE both ways, four of one size", both.clone(), [Share, Any]),
        Situation {
            again: 800,
            ..of("the same with packets that are sent again", both, [Bound, Any])
        },
        Situation {
            still: true,
            ..of(
                "WRITE of PSNs that stand still",
                vec![(0, Writes, 100, LARGE), (1, Writes, 300, LARGE)],
                [Bound, Bound],
            )
        },
        // Their paths were set before the window: 48 bytes of each packet may be headers or not, which is a
        // tenth of an eighth of all.
        of(
            "WRITE, eight of one size",
            each(8, Writes, 40).collect(),
            [Bound, Bound],
        ),
        of(
            "READ beside WRITE",
            vec![(0, Reads, 100, LARGE), (1, IsWritten, 100, LARGE)],
            [Any, Any],
        ),
        of(
            "one reads and one is read",
            vec![(0, Reads, 100, LARGE), (1, IsRead, 100, LARGE)],
            [Any, Any],
        ),
        of(
            "64 bytes beside 4 KiB",
            vec![(0, Writes, 9000, 64), (1, Writes, 9000, 4096)],
            [Bound, Bound],
        ),
    ]
}

impl Situation {
    fn users(&self) -> usize {
        1 + self.pairs.iter().map(|pair| pair.0).max().unwrap_or(0)
    }

    /// What each process moved, and by how much the PSNs of each queue pair did.
    fn truth(&self) -> (BTreeMap<usize, Moved>, Vec<[u64; 2]>) {
        let mut all = BTreeMap::<usize, Moved>::new();
        let mut psns = Vec::new();
        for (user, work, messages, size) in &self.pairs {
            let packets = messages * size.div_ceil(MTU);
            let moved = all.entry(*user).or_default();
            let mut add = |way: usize, packets: u64, payload: u64| {
                moved[way][0] += packets;
                moved[way][1] += payload + packets * HEADERS;
            };
            let data = usize::from(matches!(work, Reads | IsWritten));
            add(data, packets, messages * size);
            // A request each of READs, an acknowledgement for 64 packets of WRITEs.
            let small = if matches!(work, Reads | IsRead) {
                *messages
            } else {
                packets / 64
            };
            add(1 - data, small, 4);
            let mut by = [0; 2];
            by[usize::from(matches!(work, IsWritten | IsRead))] = packets;
            psns.push(by);
        }
        let first = all.entry(0).or_default();
        first[0][0] += self.again;
        first[0][1] += self.again * (MTU + HEADERS);
        (all, psns)
    }

    /// Has the card count it.
    fn happens(&self, port: &Port, qpns: &[u64]) -> Result<BTreeMap<usize, Moved>> {
        let (truth, psns) = self.truth();
        let mut orders = Vec::new();
        for (qpn, [sent, received]) in qpns.iter().zip(psns).filter(|_| !self.still) {
            orders.push(format!("psn {qpn} {sent} {received}"));
        }
        let sum = |way: usize, what: usize| -> u64 { truth.values().map(|moved| moved[way][what]).sum() };
        for (way, name) in ["xmit", "rcv"].into_iter().enumerate() {
            // Words of four bytes.
            orders.push(format!("add {} port_{name}_data", sum(way, 1) / 4));
            orders.push(format!("add {} port_{name}_packets", sum(way, 0)));
        }
        if self.pairs.iter().any(|pair| pair.1 == IsRead) {
            orders.push("add 100 rx_read_requests".into());
        }
        if self.again > 0 {
            orders.push("add 1 packet_seq_err".into());
        }
        port.order(&orders.join("\n"))?;
        Ok(truth)
    }
}

/// What is wrong with what is shown, and the error of a share.
fn judge(shown: &Value, truth: u64, want: Want, seconds: f64) -> (String, Option<f64>) {
    let truth = truth as f64;
    let rate = |counter: &Value| counter["rate"].as_f64().map(|rate| rate * seconds);
    if shown["at_least"]["total"].as_f64() > Some(truth) {
        return (format!("more than the truth {truth}: {shown}"), None);
    }
    let (is, wrong, error) = match (rate(shown), rate(&shown["at_most"])) {
        (Some(share), None) if shown["source"] == "psn" => {
            let error = (share - truth).abs() / truth;
            (
                Share,
                Some(error) > documented("psn", "testnic::psn"),
                Some(error),
            )
        }
        (None, Some(most)) => (Bound, most < truth * 0.999, None),
        _ => (Any, true, None),
    };
    let bad = wrong || (want != Any && is != want);
    let text = if bad {
        format!("{want:?} of {truth}: {shown}")
    } else {
        String::new()
    };
    (text, error)
}

#[test]
fn shares_by_psn_hold_where_a_card_moves_them() -> Result<()> {
    let test = "shares by PSN of cards";
    let Some(_lab) = Lab::enter(test) else {
        return Ok(());
    };
    let Some(nic) = TestNic::load(test)? else {
        return Ok(());
    };
    let mut cards = Vec::new();
    for (number, situation) in (0..).zip(situations()) {
        let wish = Wish::mlx5(&format!("mlx5_{number}")).set("uverbs", "1");
        let address = format!("10.5{number}.0.1");
        let port = nic.add(&wish.net(&format!("rail{number}"), &address, 9000, &[]))?;
        let gid = port.gid("RoCE v2", &format!("0a{:02x}:0001", 50 + number))?;
        let mut holders = Vec::new();
        let mut qpns = vec![0; situation.pairs.len()];
        for user in 0..situation.users() {
            let own: Vec<usize> = (0..qpns.len())
                .filter(|at| situation.pairs[*at].0 == user)
                .collect();
            let devices = vec![port.device.as_str(); own.len()].join(",");
            let traffic = Traffic::start("raw-qps", &["--gid", &gid.to_string(), "--devices", &devices])?;
            let said = traffic.ready()?;
            for (at, qpn) in own.into_iter().zip(said["qpns"].as_array().context("no QPs")?) {
                qpns[at] = qpn.as_u64().context("a number")?;
            }
            holders.push((id(&said, "pid")?, traffic));
        }
        cards.push((situation, port, qpns, holders));
    }
    let window = Window::open(&[])?;
    window.wait_looks(20)?;
    let mut truths = Vec::new();
    for (situation, port, qpns, _) in &cards {
        truths.push(situation.happens(port, qpns).with_context(|| situation.name)?);
    }
    window.wait_looks(20)?;
    let sample = window.close()?;
    let (mut wrong, mut worst) = (Vec::new(), 0.0_f64);
    for ((situation, port, _, holders), truth) in cards.iter().zip(truths) {
        let row = sample.port(&port.device, 1)?;
        for (way, key) in ["tx_bytes", "rx_bytes"].into_iter().enumerate() {
            let all: u64 = truth.values().map(|moved| moved[way][1]).sum();
            let seconds = all as f64 / row.rate(key).context("no rate")?;
            for (user, (pid, _)) in holders.iter().enumerate() {
                let shown = sample.process(*pid)?.field(key);
                let (text, error) = judge(shown, truth[&user][way][1], situation.wants[way], seconds);
                worst = worst.max(error.unwrap_or(0.0));
                if !text.is_empty() {
                    wrong.push(format!("{}: process {user} {key}: {text}", situation.name));
                }
            }
        }
    }
    say(&format!("{test}: the worst share is {:.2} % off", worst * 100.0));
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
