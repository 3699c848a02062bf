//! Shares of ports by PSN, against truths that are known to the byte: what each process was told to move,
//! with the headers that SoftRoCE counts since Linux 7.2. Each situation has a link of its own, and one
//! window without programs on the data path (`RDMATOP_DATAPATHS=0`) sees them all.

use std::{collections::BTreeMap, fmt::Write as _};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    lab::{self, Lab, skip},
    links::{Links, SIDES, device},
    rdmatop::Window,
    snapshot::Snapshot,
    table::{Table, documented, say},
    traffic::{Traffic, id},
    uprobes,
    wait::PATIENCE,
};
use serde_json::Value;

/// Headers of each packet: IPv6, UDP, BTH, ICRC; of a packet that says where it reads or writes; of an
/// answer; of a datagram.
const HEADERS: u64 = 40 + 8 + 12 + 4;
const RETH: u64 = 16;
const AETH: u64 = 4;
const DETH: u64 = 8;

const KIB: u64 = 1024;
const WAYS: [(&str, &str, &str); 2] = [
    ("sent", "tx_bytes", "sent_bytes"),
    ("received", "rx_bytes", "rcvd_bytes"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Write,
    Read,
    Send,
    Ud,
}
use Op::{Read, Send, Ud, Write};

/// Messages from one process to another, through a queue pair of its own.
#[derive(Clone, Copy, Debug)]
struct Flow {
    /// The processes at sides a and b, by number; the first posts unless `back`.
    between: [usize; 2],
    back: bool,
    op: Op,
    count: u64,
    size: u64,
    link: usize,
    mtu: u64,
}

/// `count` messages from process `from` of side a to process `to` of side b.
const fn flow(from: usize, to: usize, op: Op, count: u64, size: u64) -> Flow {
    Flow {
        between: [from, to],
        back: false,
        op,
        count,
        size,
        link: 0,
        mtu: 4096,
    }
}

const fn back(flow: Flow) -> Flow {
    Flow { back: true, ..flow }
}

const fn on_link(link: usize, flow: Flow) -> Flow {
    Flow { link, ..flow }
}

/// What happens while the window is open, to process 0 of side a.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Twist {
    Nothing,
    /// It starts in the window.
    Starts,
    /// It ends when it has moved its part.
    Ends,
    /// It has a child from the middle of its part on.
    Forks,
}

/// What is to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    /// The port's bytes: it is its only user.
    Whole,
    /// A share, at most 5 % wrong.
    Share,
    /// A bound.
    Bound,
    /// A share or a bound, whichever holds.
    Any,
}
use Want::{Any, Bound, Share, Whole};

struct Situation {
    name: &'static str,
    twist: Twist,
    /// Queue pairs beside, of each process of side a: PSNs of so many are not read twice in a second.
    idle: u32,
    flows: &'static [Flow],
    /// What each process of side a, and of side b, is shown to have sent and received; the last one is of all
    /// that follow.
    wants: [&'static [[Want; 2]]; 2],
}

/// The situations that say most. A sender receives acknowledgements, which have no PSN: a bound.
const TELLING: &[Situation] = &[
    Situation {
        name: "WRITE 1:3",
        twist: Twist::Nothing,
        idle: 60,
        flows: &[flow(0, 0, Write, 8, 256 * KIB), flow(1, 0, Write, 24, 256 * KIB)],
        wants: [&[[Share, Bound]], &[[Whole, Whole]]],
    },
    Situation {
        name: "WRITE, eight of one size",
        twist: Twist::Nothing,
        idle: 0,
        flows: &[
            flow(0, 0, Write, 4, 256 * KIB),
            flow(1, 0, Write, 4, 256 * KIB),
            flow(2, 0, Write, 4, 256 * KIB),
            flow(3, 0, Write, 4, 256 * KIB),
            flow(4, 0, Write, 4, 256 * KIB),
            flow(5, 0, Write, 4, 256 * KIB),
            flow(6, 0, Write, 4, 256 * KIB),
            flow(7, 0, Write, 4, 256 * KIB),
        ],
        wants: [&[[Share, Bound]], &[[Whole, Whole]]],
    },
    Situation {
        name: "SEND 1:3 to two",
        twist: Twist::Nothing,
        idle: 0,
        flows: &[flow(0, 0, Send, 8, 256 * KIB), flow(1, 1, Send, 24, 256 * KIB)],
        wants: [&[[Share, Bound]], &[[Bound, Share]]],
    },
    Situation {
        name: "READ 1:3",
        twist: Twist::Nothing,
        idle: 0,
        flows: &[flow(0, 0, Read, 8, 256 * KIB), flow(1, 0, Read, 24, 256 * KIB)],
        wants: [&[[Bound, Share]], &[[Whole, Whole]]],
    },
    Situation {
        name: "UD 1:3",
        twist: Twist::Nothing,
        idle: 0,
        flows: &[flow(0, 0, Ud, 500, 4096), flow(1, 1, Ud, 1500, 4096)],
        wants: [&[[Share, Any]], &[[Any, Bound]]],
    },
    Situation {
        name: "WRITE of 64 bytes beside 4 KiB",
        twist: Twist::Nothing,
        idle: 0,
        flows: &[flow(0, 0, Write, 1000, 64), flow(1, 0, Write, 1000, 4096)],
        wants: [&[[Bound, Bound]], &[[Whole, Whole]]],
    },
    Situation {
        name: "WRITE, one starts",
        twist: Twist::Starts,
        idle: 0,
        flows: &[flow(0, 0, Write, 8, 256 * KIB), flow(1, 0, Write, 8, 256 * KIB)],
        wants: [&[[Bound, Bound]], &[[Whole, Whole]]],
    },
    Situation {
        name: "WRITE, one forks",
        twist: Twist::Forks,
        idle: 0,
        flows: &[flow(0, 0, Write, 8, 256 * KIB), flow(1, 0, Write, 8, 256 * KIB)],
        wants: [&[[Share, Bound]], &[[Whole, Whole]]],
    },
    Situation {
        name: "WRITE on two devices",
        twist: Twist::Nothing,
        idle: 0,
        flows: &[
            flow(0, 0, Write, 8, 256 * KIB),
            flow(1, 0, Write, 8, 256 * KIB),
            on_link(1, flow(0, 0, Write, 8, 256 * KIB)),
            on_link(1, flow(2, 0, Write, 24, 256 * KIB)),
        ],
        wants: [&[[Share, Bound]], &[[Whole, Whole]]],
    },
];

/// More of them.
const OTHERS: &[Situation] = &[
    Situation {
        name: "WRITE both ways",
        twist: Twist::Nothing,
        idle: 0,
        flows: &[
            flow(0, 0, Write, 8, 256 * KIB),
            flow(1, 1, Write, 24, 256 * KIB),
            back(flow(0, 0, Write, 16, 256 * KIB)),
            back(flow(1, 1, Write, 16, 256 * KIB)),
        ],
        wants: [&[[Any, Any]], &[[Any, Any]]],
    },
    Situation {
        name: "WRITE beside READ",
        twist: Twist::Nothing,
        idle: 0,
        flows: &[flow(0, 0, Write, 16, 256 * KIB), flow(1, 1, Read, 16, 256 * KIB)],
        wants: [&[[Any, Any]], &[[Any, Any]]],
    },
    Situation {
        name: "WRITE, one ends",
        twist: Twist::Ends,
        idle: 0,
        flows: &[flow(0, 0, Write, 8, 256 * KIB), flow(1, 0, Write, 8, 256 * KIB)],
        wants: [&[[Bound, Bound]], &[[Whole, Whole]]],
    },
    Situation {
        name: "WRITE alone, forks",
        twist: Twist::Forks,
        idle: 0,
        flows: &[flow(0, 0, Write, 16, 256 * KIB)],
        wants: [&[[Whole, Whole]], &[[Whole, Whole]]],
    },
    Situation {
        name: "WRITE alone, ends",
        twist: Twist::Ends,
        idle: 0,
        flows: &[flow(0, 0, Write, 16, 256 * KIB)],
        wants: [&[[Whole, Whole]], &[[Whole, Whole]]],
    },
    Situation {
        name: "WRITE of 4 KiB 1:1",
        twist: Twist::Nothing,
        idle: 0,
        flows: &[flow(0, 0, Write, 1000, 4096), flow(1, 0, Write, 1000, 4096)],
        wants: [&[[Any, Bound]], &[[Whole, Whole]]],
    },
    Situation {
        name: "WRITE 1:50",
        twist: Twist::Nothing,
        idle: 0,
        flows: &[flow(0, 0, Write, 1, 256 * KIB), flow(1, 0, Write, 50, 256 * KIB)],
        wants: [&[[Bound, Bound], [Share, Bound]], &[[Whole, Whole]]],
    },
    Situation {
        name: "WRITE over a path of 1024 bytes",
        twist: Twist::Nothing,
        idle: 0,
        flows: &[
            flow(0, 0, Write, 4, 256 * KIB),
            Flow {
                mtu: 1024,
                ..flow(1, 0, Write, 4, 256 * KIB)
            },
        ],
        wants: [&[[Bound, Bound]], &[[Whole, Whole]]],
    },
];

/// Bytes at least and at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bytes {
    least: u64,
    most: u64,
}

impl Bytes {
    fn add(&mut self, least: u64, most: u64) {
        self.least += least;
        self.most += most;
    }
}

impl Flow {
    fn packets(&self) -> u64 {
        self.count * self.size.div_ceil(self.mtu)
    }

    /// What the side that posts has sent, and received.
    fn moves(&self) -> [Bytes; 2] {
        let (count, packets) = (self.count, self.packets());
        let data = count * self.size + packets * HEADERS;
        let whole = |bytes| Bytes {
            least: bytes,
            most: bytes,
        };
        // The driver decides how many packets are acknowledged together.
        let acknowledged = Bytes {
            least: HEADERS + AETH,
            most: packets * (HEADERS + AETH),
        };
        match self.op {
            Write => [whole(data + count * RETH), acknowledged],
            Send => [whole(data), acknowledged],
            Ud => [whole(data + count * DETH), whole(0)],
            // The first and the last packet of an answer say that it is one.
            Read => {
                let answers = data + count * AETH * (packets / count).min(2);
                [whole(count * (HEADERS + RETH)), whole(answers)]
            }
        }
    }

    fn poster(&self) -> usize {
        usize::from(self.back)
    }
}

/// Processes by side and number.
type Of<T> = BTreeMap<(usize, usize), T>;

impl Situation {
    fn links(&self) -> usize {
        1 + self.flows.iter().map(|flow| flow.link).max().unwrap_or(0)
    }

    /// What each process has sent and received.
    fn truth(&self) -> Of<[Bytes; 2]> {
        let mut all = Of::<[Bytes; 2]>::new();
        for flow in self.flows {
            let [sent, received] = flow.moves();
            for side in [0, 1] {
                let moved = all.entry((side, flow.between[side])).or_default();
                let ways = if side == flow.poster() {
                    [sent, received]
                } else {
                    [received, sent]
                };
                for (sum, way) in moved.iter_mut().zip(ways) {
                    sum.add(way.least, way.most);
                }
            }
        }
        all
    }

    fn want(&self, (side, number): (usize, usize)) -> [Want; 2] {
        let wants = self.wants[side];
        wants[number.min(wants.len() - 1)]
    }
}

/// A situation on its links.
struct Stage {
    of: &'static Situation,
    /// The numbers of its links.
    links: Vec<usize>,
    parties: Of<Party>,
    before: Counted,
}

struct Party {
    traffic: Option<Traffic>,
    pid: u32,
    ends: Vec<Value>,
    orders: u64,
}

/// What the driver counted, by link, side and direction.
type Counted = BTreeMap<(usize, usize, usize), u64>;

fn counted(links: &[usize]) -> Result<Counted> {
    let mut all = Counted::new();
    for link in links {
        for side in [0, 1] {
            for (way, (_, _, name)) in WAYS.into_iter().enumerate() {
                let count = lab::hw_counter(&device(*link, side), name)?.context(name)?;
                all.insert((*link, side, way), count);
            }
        }
    }
    Ok(all)
}

impl Party {
    fn start(devices: &[String], ud: bool, idle: u32) -> Result<Self> {
        let devices = devices.join(",");
        let (size, idle) = ((256 * KIB).to_string(), idle.to_string());
        let mut args = vec!["--devices", &devices, "--size", &size, "--idle", &idle];
        if ud {
            args.push("--ud");
        }
        let traffic = Traffic::start("port-user", &args)?;
        let said = traffic.ready()?;
        Ok(Self {
            pid: id(&said, "pid")?,
            ends: said["ends"].as_array().context("no ends")?.clone(),
            traffic: Some(traffic),
            orders: 0,
        })
    }

    fn order(&mut self, line: &str) -> Result<()> {
        let traffic = self.traffic.as_mut().context("it has ended")?;
        traffic.child.tell(line)?;
        self.orders += 1;
        let done = format!("{{\"done\":{}}}", self.orders);
        let said = traffic.child.out.wait_for(line, PATIENCE, |said| said == done);
        said.with_context(|| traffic.child.err.text()).map(drop)
    }
}

impl Stage {
    fn new(of: &'static Situation, links: Vec<usize>) -> Result<Self> {
        let before = counted(&links)?;
        let mut stage = Self {
            of,
            links,
            parties: Of::new(),
            before,
        };
        if of.twist != Twist::Starts {
            stage.start((0, 0))?;
        }
        let others: Vec<_> = of.truth().into_keys().filter(|who| *who != (0, 0)).collect();
        others.into_iter().try_for_each(|who| stage.start(who))?;
        for at in 0..of.flows.len() {
            if of.twist != Twist::Starts || of.flows[at].between[0] != 0 {
                stage.connect(at)?;
            }
        }
        Ok(stage)
    }

    fn start(&mut self, (side, number): (usize, usize)) -> Result<()> {
        let own = self.of.flows.iter().filter(|flow| flow.between[side] == number);
        let devices: Vec<_> = own.map(|flow| device(self.links[flow.link], side)).collect();
        let ud = self.of.flows[0].op == Ud;
        let idle = if side == 0 { self.of.idle } else { 0 };
        self.parties
            .insert((side, number), Party::start(&devices, ud, idle)?);
        Ok(())
    }

    /// The number of a flow's queue pair among those of its process.
    fn place(&self, at: usize, side: usize) -> usize {
        let number = self.of.flows[at].between[side];
        let before = &self.of.flows[..at];
        before.iter().filter(|flow| flow.between[side] == number).count()
    }

    fn connect(&mut self, at: usize) -> Result<()> {
        let flow = &self.of.flows[at];
        let mtu = flow.mtu.ilog2() - 7;
        for side in [0, 1] {
            let peer = &self.parties[&(1 - side, flow.between[1 - side])];
            let end = &peer.ends[self.place(at, 1 - side)];
            let mut line = format!("connect {} {mtu}", self.place(at, side));
            for value in end.as_array().context("an end")? {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let _ = write!(line, " {value}");
            }
            self.party(side, flow)?.order(&line)?;
        }
        Ok(())
    }

    fn party(&mut self, side: usize, flow: &Flow) -> Result<&mut Party> {
        let party = self.parties.get_mut(&(side, flow.between[side]));
        party.context("no such process")
    }

    fn plays(&mut self) -> Result<()> {
        if self.of.twist == Twist::Starts {
            self.start((0, 0))?;
        }
        for (at, flow) in self.of.flows.iter().enumerate() {
            let twist = Some(self.of.twist).filter(|_| flow.between[0] == 0);
            if twist == Some(Twist::Starts) {
                self.connect(at)?;
            }
            let side = flow.poster();
            let (own, peer) = (self.place(at, side), self.place(at, 1 - side));
            let half = if twist == Some(Twist::Forks) { 2 } else { 1 };
            for part in 0..half {
                let count = flow.count / half;
                let what = match flow.op {
                    Write => "write",
                    Read => "read",
                    Send | Ud => "send",
                };
                if flow.op == Send {
                    let line = format!("receive {peer} {count} {}", flow.size);
                    self.party(1 - side, flow)?.order(&line)?;
                }
                let line = format!("{what} {own} {count} {}", flow.size);
                self.party(side, flow)?.order(&line)?;
                if half == 2 && part == 0 {
                    self.party(0, flow)?.order("fork")?;
                }
            }
            if twist == Some(Twist::Ends) {
                let party = self.party(0, flow)?;
                party.traffic.take().context("it has ended")?.finish()?;
            }
        }
        Ok(())
    }
}

/// What was found, in words.
struct Found {
    lines: Vec<String>,
    wrong: Vec<String>,
    /// The largest error of a share.
    worst: f64,
}

impl Found {
    /// Compares what is shown of a direction of a process with the truth. A second of the window is this part
    /// of it: the port's own bytes say so.
    fn compare(&mut self, what: &str, shown: &Value, truth: Bytes, want: Want, seconds: f64) {
        let (least, most) = (truth.least as f64, truth.most as f64);
        let of = |counter: &Value| counter["rate"].as_f64().map(|rate| rate * seconds);
        let total = shown["total"].as_u64();
        let mut wrong = Vec::new();
        let at_least = shown["at_least"]["total"].as_u64();
        if at_least.is_some_and(|total| total > truth.most) {
            wrong.push(format!("at least {at_least:?}"));
        }
        let (is, text) = match (shown["source"].as_str(), of(shown), of(&shown["at_most"])) {
            (Some("port"), Some(_), None) => {
                let total = total.or(at_least);
                if !total.is_some_and(|total| (truth.least..=truth.most).contains(&total)) {
                    wrong.push("not the port's".into());
                }
                (Whole, format!("= {total:?}"))
            }
            (Some("psn"), Some(rate), None) => {
                let off = (least - rate).max(rate - most).max(0.0) / most;
                self.worst = self.worst.max(off);
                if Some(off) > documented("psn", "port_shares") {
                    wrong.push("too far off".into());
                }
                (Share, format!("~ {rate:.0} ({:.2} %)", off * 100.0))
            }
            (source, None, Some(most)) => {
                if most < least * 0.999 {
                    wrong.push("below the truth".into());
                }
                (Bound, format!("≤ {most:.0} by {}", source.unwrap_or("nothing")))
            }
            _ => {
                wrong.push("something else".into());
                (Any, shown.to_string())
            }
        };
        if want != Any && is != want {
            wrong.push(format!("{want:?} was expected"));
        }
        let line = format!(
            "{what}: {}..={}: {text} {}",
            truth.least,
            truth.most,
            wrong.join(", ")
        );
        if !wrong.is_empty() {
            self.wrong.push(line.clone());
        }
        self.lines.push(line);
    }
}

/// Compares each process of a situation with what is shown of it.
fn judge(stage: &Stage, sample: &Snapshot, found: &mut Found) -> Result<()> {
    let situation = stage.of;
    let after = counted(&stage.links)?;
    let moved = |link: usize, side: usize, way: usize| {
        let key = (stage.links[link], side, way);
        after[&key] - stage.before[&key]
    };
    for (who, truth) in situation.truth() {
        let row = sample.process(stage.parties[&who].pid)?;
        let side = who.0;
        for (way, (direction, key, _)) in WAYS.into_iter().enumerate() {
            let what = format!(
                "{}: process {} of {} {direction}",
                situation.name, who.1, SIDES[side]
            );
            let port = sample.port(&device(stage.links[0], side), 1)?;
            let rate = port.rate(key).context("the port has no rate")?;
            let seconds = moved(0, side, way) as f64 / rate.max(f64::MIN_POSITIVE);
            let want = situation.want(who)[way];
            let mut truth = truth[way];
            if want == Whole {
                // To the byte, whatever the truth leaves open.
                let all = (0..situation.links()).map(|link| moved(link, side, way)).sum();
                if !(truth.least..=truth.most).contains(&all) {
                    found.wrong.push(format!("{what}: {all} of {truth:?}"));
                }
                truth = Bytes {
                    least: all,
                    most: all,
                };
            }
            found.compare(&what, row.field(key), truth, want, seconds);
        }
    }
    // All that a port counted is somebody's.
    for side in [0, 1] {
        for way in [0, 1] {
            let all: u64 = (0..situation.links()).map(|link| moved(link, side, way)).sum();
            let mut sum = Bytes::default();
            for (_, truth) in situation.truth().into_iter().filter(|(who, _)| who.0 == side) {
                sum.add(truth[way].least, truth[way].most);
            }
            if !(sum.least..=sum.most).contains(&all) {
                let what = format!("{} side {} {}", situation.name, SIDES[side], WAYS[way].0);
                found.wrong.push(format!("{what}: {all} of {sum:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn what_is_shown_of_users_of_one_port_is_true() -> Result<()> {
    hold("shares of ports", TELLING)
}

#[test]
fn what_is_shown_of_users_of_one_port_is_true_in_more_situations() -> Result<()> {
    hold("shares of ports in more situations", OTHERS)
}

fn hold(test: &str, asked: &'static [Situation]) -> Result<()> {
    let Some(lab) = Lab::enter(test) else {
        return Ok(());
    };
    if lab::hw_counter(lab::DEVICE, "sent_bytes")?.is_none() {
        skip(
            test,
            &format!("SoftRoCE of Linux {} counts no bytes", lab.release),
        );
        return Ok(());
    }
    let _links = Links::up(asked.iter().map(Situation::links).sum())?;
    let mut next = 0;
    let mut stages = Vec::new();
    for situation in asked {
        let links = (next..next + situation.links()).collect();
        next += situation.links();
        stages.push(Stage::new(situation, links).with_context(|| situation.name)?);
    }
    let by_psn = Window::open_with(&[], &uprobes::ENV)?;
    let by_kernel = Window::open(&[])?;
    by_psn.wait_looks(10)?;
    for stage in &mut stages {
        let name = stage.of.name;
        stage.plays().with_context(|| name)?;
    }
    by_psn.wait_looks(10)?;
    let (by_psn, by_kernel) = (by_psn.close()?, by_kernel.close()?);
    let mut found = Found {
        lines: Vec::new(),
        wrong: Vec::new(),
        worst: 0.0,
    };
    let mut table = Table::default();
    for stage in &stages {
        judge(stage, &by_psn, &mut found).with_context(|| stage.of.name)?;
        // What the kernel's own data path counts at the same time is the payload.
        for (who, party) in &stage.parties {
            let own = stage.of.flows.iter().filter(|flow| {
                let side = flow.poster();
                (side, flow.between[side]) == *who && flow.op != Read
            });
            let payload: u64 = own.map(|flow| flow.count * flow.size).sum();
            if payload > 0 {
                let total = by_kernel.process(party.pid)?.total("tx_bytes");
                table.equal(stage.of.name, "tx_bytes", payload, total);
            }
        }
    }
    for line in &found.lines {
        say(line);
    }
    say(&format!(
        "{test}: the worst share is {:.2} % off",
        found.worst * 100.0
    ));
    table.check(&lab, test);
    ensure!(found.wrong.is_empty(), "{}", found.wrong.join("\n"));
    Ok(())
}
