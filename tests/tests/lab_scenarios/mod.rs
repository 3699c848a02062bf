//! `rdmatop lab run`: each scenario runs, shows what it teaches, and leaves nothing behind, however it ends.

use std::{collections::BTreeSet, fs, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    child::Child,
    kernel,
    lab::{self, DEVICE, Lab},
    pty::OnTerminal,
    rdmatop::{self, END, Window},
    table::say,
    things::things,
    wait::PATIENCE,
};
use serde_json::Value;

mod disk;
mod killed;

/// The limit for making or removing some devices with translated instructions.
const LIMIT: Duration = PATIENCE;
const FILE: &str = "/run/rdmatop/lab.json";
const PROGRAMS: &str = env!("RDMATOP_EXAMPLES");

/// What a scenario must show.
enum Shows {
    /// This finding, about this command or device, after this many seconds.
    Finding(&'static str, &'static str, &'static str),
    /// Like [`Finding`], but another kernel test shows it with the same programs (`findings`), or the
    /// previous scenario does.
    Again(&'static str, &'static str, &'static str),
    /// No finding, or that of another scenario; a test below is for this scenario alone.
    Own,
}
use Shows::{Again, Finding, Own};

const SCENARIOS: &[(&str, Shows)] = &[
    ("pingpong", Own),
    ("ring-allreduce", Own),
    ("rnr", Finding("receiver-not-ready", "receiver", "9")),
    ("dead-peer", Finding("peer-gone", "stream", "13")),
    ("rails", Finding("hot-port", "lab0", "14")),
    // On a busy machine four senders are only sometimes even in each of ten seconds.
    ("funnel", Again("rx-funnel", "lab4", "30")),
    ("loss", Finding("loss", "lab0", "13")),
    ("reorder", Again("loss", "lab0", "13")),
    ("mtu", Own),
    ("churn", Again("mr-churn", "misuse", "14")),
    ("leak", Again("qp-leak", "misuse", "12")),
    ("memlock", Again("verb-fails", "misuse", "4")),
    ("gid", Finding("verb-fails", "misuse", "4")),
    ("storm", Own),
    ("tcp-fallback", Again("tcp-fallback", "tcp-fallback", "16")),
    ("nvme", Own),
];

/// A running scenario.
struct Run {
    child: Child,
}

impl Run {
    fn start(args: &[&str]) -> Result<Self> {
        let all = [&["lab", "run", "--programs", PROGRAMS], args].concat();
        Ok(Self {
            child: Child::spawn(&mut rdmatop::command(&all)?)?,
        })
    }

    fn up(name: &str) -> Result<Self> {
        let run = Self::start(&[name])?;
        let line = run
            .child
            .out
            .wait_for("line `running ...`", LIMIT, |line| line.starts_with("running"));
        line.with_context(|| run.child.err.text())?;
        Ok(run)
    }

    /// Waits for a line of its programs.
    fn says(&self, what: &str, wanted: impl Fn(&str) -> bool) -> Result<String> {
        let line = self.child.out.wait_for(what, LIMIT, wanted);
        line.with_context(|| self.child.err.text())
    }

    /// Ends it by a signal and returns its output.
    fn end(mut self, signal: i32) -> Result<String> {
        self.child.signal(signal)?;
        self.child.succeed(LIMIT)?;
        Ok(self.child.out.text())
    }
}

/// Runs `body`; afterwards everything must be as before.
fn leaves_nothing(body: impl FnOnce() -> Result<()>) -> Result<()> {
    let before = things()?;
    body()?;
    let after = things()?;
    ensure!(
        after == before,
        "left: {:?}, missing: {:?}",
        after.difference(&before),
        before.difference(&after)
    );
    ensure!(
        !fs::exists(FILE)?,
        "{FILE} is left: {}",
        fs::read_to_string(FILE)?
    );
    no_programs()
}

/// Fails if a traffic program runs.
fn no_programs() -> Result<()> {
    for entry in fs::read_dir("/proc")?.flatten() {
        let program = fs::read_link(entry.path().join("exe")).unwrap_or_default();
        ensure!(
            !program.starts_with(PROGRAMS),
            "{} runs: {}",
            entry.path().display(),
            program.display()
        );
    }
    Ok(())
}

fn json(args: &[&str]) -> Result<Value> {
    let mut child = Child::spawn(&mut rdmatop::command(args)?)?;
    child.wait(END * 3)?;
    let text = child.out.text();
    serde_json::from_str(&text).with_context(|| format!("{text}\n{}", child.err.text()))
}

#[test]
fn each_scenario_shows_the_finding_that_it_teaches() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("lab run: findings") else {
        return Ok(());
    };
    let _alone = Alone::make()?;
    for (name, shows) in SCENARIOS {
        if let Finding(id, about, seconds) = shows {
            shows_its_finding(name, id, about, seconds).context(*name)?;
        }
    }
    Ok(())
}

#[test]
fn scenarios_of_troubles_that_other_tests_make_show_their_findings() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("lab run: findings of other tests") else {
        return Ok(());
    };
    let _alone = Alone::make()?;
    for (name, shows) in SCENARIOS {
        if let Again(id, about, seconds) = shows {
            shows_its_finding(name, id, about, seconds).context(*name)?;
        }
    }
    Ok(())
}

/// Runs a scenario, which must show its finding and no other.
fn shows_its_finding(name: &str, id: &str, about: &str, seconds: &str) -> Result<()> {
    leaves_nothing(|| {
        let run = Run::up(name)?;
        let check = json(&["check", "--json", "--for", seconds])?;
        let said = run.end(libc::SIGINT)?;
        let findings = check["findings"].as_array().context("no findings")?;
        if id == "hot-port" && counts_bytes()? {
            // Then SoftRoCE's link rate is known too, of which one stream uses less than half.
            ensure!(findings.is_empty(), "{check:#}\nit said:\n{said}");
            return Ok(());
        }
        let found = findings.iter().find(|found| found["id"] == id);
        let found = found.with_context(|| format!("no {id}: {check:#}\nit said:\n{said}"))?;
        let verdict = found["verdict"].as_str().context("no verdict")?;
        ensure!(verdict.contains(about), "{about}: {found:#}");
        // The second process of this scenario makes and destroys QPs.
        let beside = if name == "churn" { "qp-churn" } else { id };
        let other = findings
            .iter()
            .filter(|other| other["id"] != id && other["id"] != beside);
        let other = other.count();
        ensure!(other == 0, "more than {id}: {check:#}");
        say(&format!("{name}: {verdict}"));
        Ok(())
    })
}

/// Whether the kernel counts the bytes of a SoftRoCE port, as Linux does since 7.
fn counts_bytes() -> Result<bool> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let major = release.split('.').next().context("no release")?;
    Ok(major.parse::<u32>()? >= 7)
}

#[test]
fn the_list_has_the_scenarios_that_are_tested_and_no_other() -> Result<()> {
    let Some(_lab) = Lab::enter("lab run --list") else {
        return Ok(());
    };
    let mut child = Child::spawn(&mut rdmatop::command(&["lab", "run", "--list"])?)?;
    child.succeed(LIMIT)?;
    let listed = child.out.all();
    let listed: Vec<&str> = listed
        .iter()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let tested: Vec<&str> = SCENARIOS.iter().map(|(name, _)| *name).collect();
    ensure!(listed == tested, "{listed:?}");
    Ok(())
}

/// Returns the packets that port 1 of a device sent.
fn sent(device: &str) -> Result<u64> {
    lab::hw_counter(device, "sent_pkts")?.context("no sent_pkts")
}

#[test]
fn a_ping_pong_crosses_the_wire_and_has_no_finding() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("lab run: pingpong") else {
        return Ok(());
    };
    leaves_nothing(|| {
        let run = Run::up("pingpong")?;
        run.says("round trips", |line| line.contains("round trips: mean"))?;
        // Traffic inside one device never reaches the interface.
        let wire = |netdev: &str| sent_by(netdev, "tx_packets");
        let (packets, frames) = (sent("lab0")?, wire("labnet0")?);
        thread::sleep(Duration::from_secs(1));
        let (packets, frames) = (sent("lab0")? - packets, wire("labnet0")? - frames);
        ensure!(
            packets > 20 && frames >= packets / 2,
            "{packets} packets, {frames} frames"
        );
        let check = json(&["check", "--json", "--for", "6"])?;
        ensure!(check["verdict"] == "ok", "{check:#}");
        let said = run.end(libc::SIGTERM)?;
        ensure!(
            said.contains("Look: Tab 1 (Processes)") && said.contains("removed lab1"),
            "{said}"
        );
        Ok(())
    })
}

#[test]
fn each_rank_of_a_ring_takes_twice_n_minus_1_steps_and_the_sum_is_right() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("lab run: ring-allreduce") else {
        return Ok(());
    };
    leaves_nothing(|| {
        let run = Run::up("ring-allreduce")?;
        run.says("a second round", |line| line.starts_with("round 2:"))?;
        let check = json(&["check", "--json", "--for", "6"])?;
        let said = run.end(libc::SIGHUP)?;
        ensure!(check["verdict"] == "ok", "{check:#}\n{said}");
        ensure!(!said.contains("WRONG"), "{said}");
        let rounds: Vec<&str> = said.lines().filter(|line| line.starts_with("round ")).collect();
        ensure!(
            rounds.iter().all(|line| line.ends_with("all sums are right")),
            "{said}"
        );
        // In the first round each step of each rank is printed.
        for rank in 0..4 {
            let steps = said
                .lines()
                .filter(|line| line.trim_start().starts_with(&format!("rank {rank}: chunk")));
            let chunks: Vec<&str> = steps.filter_map(|line| line.split_whitespace().nth(3)).collect();
            ensure!(chunks.len() == 6, "rank {rank}: {chunks:?}\n{said}");
            ensure!(
                chunks.iter().collect::<BTreeSet<_>>().len() == 4,
                "rank {rank}: {chunks:?}"
            );
        }
        Ok(())
    })
}

#[test]
fn rdmatop_counts_six_sends_of_each_rank_in_each_round() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("lab run: counts of ring-allreduce") else {
        return Ok(());
    };
    leaves_nothing(|| {
        let window = Window::open(&[])?;
        let run = Run::up("ring-allreduce")?;
        run.says("a third round", |line| line.starts_with("round 3:"))?;
        let said = run.end(libc::SIGINT)?;
        let seen = window.close()?;
        let rounds = said.lines().filter(|line| line.starts_with("round ")).count() as u64;
        let mut ranks = 0;
        for row in seen.processes().filter(|row| {
            row.field("comm")
                .as_str()
                .is_some_and(|comm| comm.starts_with("rank-"))
        }) {
            ranks += 1;
            let sends = row.total("tx_wr").with_context(|| format!("{row:?}"))?;
            // The round that the end interrupted is not printed.
            ensure!(
                (6 * rounds..=6 * (rounds + 1)).contains(&sends),
                "{sends} sends in {rounds} rounds: {row:?}\n{said}"
            );
        }
        ensure!(ranks == 4, "{ranks} ranks: {:#}", seen.value());
        Ok(())
    })
}

#[test]
fn an_mtu_of_1500_makes_packets_of_1024_bytes() -> Result<()> {
    // RoCE v2 puts 78 bytes around a payload (Ethernet, IPv6, UDP, BTH, ICRC), and 16 more around the first
    // one of a message (RETH). The rest is a margin for the time between the two reads.
    const LONGEST: u64 = 1200;
    let Some(_lab) = Lab::enter("lab run: mtu") else {
        return Ok(());
    };
    leaves_nothing(|| {
        let run = Run::up("mtu")?;
        run.says("messages", |line| line.contains("messages/s"))?;
        let netdev = lab::netdev("lab0")?;
        let bytes = sent_by(&netdev, "tx_bytes")?;
        let packets = sent_by(&netdev, "tx_packets")?;
        let said = run.end(libc::SIGINT)?;
        // The mean of all frames, whether or not some are retransmissions. Frames of 4096 bytes would be four
        // times as long; acknowledgements go the other way.
        let mean = bytes / packets.max(1);
        ensure!(
            packets > 64 && (1000..=LONGEST).contains(&mean),
            "{packets} frames of {mean} bytes\n{said}"
        );
        Ok(())
    })
}

/// Returns a counter of an interface.
fn sent_by(netdev: &str, counter: &str) -> Result<u64> {
    let text = fs::read_to_string(format!("/sys/class/net/{netdev}/statistics/{counter}"))?;
    Ok(text.trim().parse()?)
}

#[test]
fn a_storm_of_qps_is_counted_to_the_last_and_found_as_churn() -> Result<()> {
    let Some(_lab) = Lab::enter("lab run: storm") else {
        return Ok(());
    };
    leaves_nothing(|| {
        let window = Window::open(&[])?;
        let run = Run::up("storm")?;
        let check = json(&["check", "--json", "--for", "14"])?;
        let said = run.end(libc::SIGINT)?;
        let seen = window.close()?;
        let findings = check["findings"].as_array().context("no findings")?;
        let is_churn = |found: &Value| found["id"] == "qp-churn" && found["comm"] == "misuse";
        ensure!(
            !findings.is_empty() && findings.iter().all(is_churn),
            "{check:#}\n{said}"
        );
        // Each call makes 32 QPs; a process that is told to end finishes its current call.
        let calls: u64 = said
            .lines()
            .filter_map(|line| {
                line.strip_prefix("done: ")?
                    .split(' ')
                    .next()?
                    .parse::<u64>()
                    .ok()
            })
            .sum();
        let storms: BTreeSet<u64> = seen
            .processes()
            .filter(|row| row.field("comm") == "misuse")
            .filter_map(|row| row.field("pid").as_u64())
            .collect();
        let made: u64 = seen
            .verbs()
            .filter(|row| row.field("verb") == "create_qp")
            .filter(|row| row.field("pid").as_u64().is_some_and(|pid| storms.contains(&pid)))
            .filter_map(|row| row.total("calls"))
            .sum();
        // One more QP for each process before it begins. The kernel reported the missing ones as skipped.
        let made_by_all = 32 * calls + 4;
        let programs = seen.skipped_programs().unwrap_or_default();
        let skipped: u64 = programs.values().sum();
        ensure!(
            calls > 4 && made <= made_by_all && made + skipped >= made_by_all,
            "{made} QPs in {calls} calls; skipped: {programs:?}\n{said}"
        );
        Ok(())
    })
}

#[test]
fn a_scenario_ends_by_its_time_and_fails_without_its_programs() -> Result<()> {
    let Some(_lab) = Lab::enter("lab run --for") else {
        return Ok(());
    };
    leaves_nothing(|| {
        let mut run = Run::start(&["pingpong", "--for", "2"])?;
        run.child.succeed(LIMIT)?;
        ensure!(
            run.child.out.text().contains("running for 2 s"),
            "{}",
            run.child.out.text()
        );
        let mut none = Child::spawn(&mut rdmatop::command(&[
            "lab",
            "run",
            "rnr",
            "--programs",
            "/nowhere",
        ])?)?;
        let status = none.wait(LIMIT)?;
        let err = none.err.all();
        ensure!(
            status.code() == Some(1) && err.len() == 1 && err[0].contains("make -C examples"),
            "{status}: {err:?}"
        );
        Ok(())
    })
}

#[test]
fn the_view_runs_beside_a_scenario_and_ends_it() -> Result<()> {
    let Some(_lab) = Lab::enter("lab run --view") else {
        return Ok(());
    };
    leaves_nothing(|| {
        let args = ["lab", "run", "pingpong", "--view", "--programs", PROGRAMS];
        let mut view = OnTerminal::start(&mut rdmatop::command(&args)?)?;
        view.wait_for("pong", LIMIT)?;
        ensure!(
            things()?.iter().any(|(_, name, _)| name == "lab1"),
            "no lab1 beside the view"
        );
        view.press(b"q")?;
        let status = view.wait(LIMIT)?;
        ensure!(status.success(), "{status}");
        Ok(())
    })?;
    // However it ends, both children end and the devices disappear.
    leaves_nothing(|| {
        let args = ["lab", "run", "pingpong", "--view", "--programs", PROGRAMS];
        let mut view = OnTerminal::start(&mut rdmatop::command(&args)?)?;
        view.wait_for("pong", LIMIT)?;
        view.signal(libc::SIGTERM)?;
        view.wait(LIMIT)?;
        Ok(())
    })
}

/// Removes the lab's own device, for tests that look at all devices of a driver; drop makes it again.
struct Alone {
    netdev: String,
}

impl Alone {
    fn make() -> Result<Self> {
        let netdev = lab::netdev(DEVICE)?;
        kernel::delete_link(DEVICE)?;
        Ok(Self { netdev })
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let again = kernel::add_link(DEVICE, &self.netdev);
        if let Err(error) = again {
            say(&format!("{DEVICE} is not there again: {error:#}"));
        }
    }
}
