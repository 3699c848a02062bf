//! More than there is room for: more QPs than counter slots, more QPs than a person can read, more events
//! than the ring buffer holds, and equal QP numbers.

use std::{env, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    child::output,
    kernel,
    lab::{self, DEVICE, Lab, skip},
    maps,
    rdmatop::Window,
    snapshot::{Row, Snapshot},
    table::{Table, say},
    traffic::{self, LIMIT, Traffic, id, number},
};
use serde_json::Value;

/// Pairs that transfer data on order.
struct Pairs {
    traffic: Traffic,
    orders: usize,
}

impl Pairs {
    fn start(pairs: u32, more: &[&str]) -> Result<Self> {
        let pairs = pairs.to_string();
        let traffic = Traffic::start("paired-qps", &[&["--pairs", &pairs], more].concat())?;
        traffic.ready()?;
        Ok(Self { traffic, orders: 0 })
    }

    fn order(&mut self, line: &str) -> Result<()> {
        self.traffic.child.tell(line)?;
        self.orders += 1;
        let done = format!("{{\"done\":{}}}", self.orders);
        let answer = self.traffic.child.out.wait_for(line, LIMIT, |line| line == done);
        answer.map(drop).with_context(|| self.traffic.child.err.text())
    }

    fn pid(&self) -> u32 {
        self.traffic.child.pid()
    }

    fn finish(self) -> Result<Value> {
        self.traffic.finish()
    }
}

/// Returns a program's counts of its QPs.
fn accounts(done: &Value) -> Result<Vec<(u32, u64, u64, u64)>> {
    let qps = done["qps"].as_array().context("no qps")?;
    qps.iter()
        .map(|qp| {
            let size = number(qp, "size")?;
            Ok((id(qp, "qpn")?, number(qp, "tx")?, number(qp, "rx")?, size))
        })
        .collect()
}

/// Compares each QP of a program with what the program did.
fn compare(table: &mut Table, name: &str, sample: &Snapshot, done: &Value) -> Result<()> {
    let pid = id(done, "pid")?;
    let skipped = sample.skipped();
    for (qpn, tx, rx, size) in accounts(done)? {
        let row = sample.qp(pid, qpn)?;
        ensure!(!row.is("uncounted"), "{row:?}");
        table.equal(name, "tx_wr", tx, row.total("tx_wr"));
        table.equal(name, "tx_wr_posted", tx, row.total("tx_wr_posted"));
        table.equal(name, "tx_bytes", tx * size, row.total("tx_bytes"));
        table.equal(name, "doorbells", tx, row.total("doorbells"));
        table.equal_unless_skipped(name, "rx_wr", rx, row.total("rx_wr"), skipped);
        table.equal_unless_skipped(name, "rx_bytes", rx * size, row.total("rx_bytes"), skipped * size);
    }
    Ok(())
}

/// Returns how many QPs were not counted for lack of a slot.
fn without_slot(sample: &Snapshot) -> u64 {
    sample.lost_at("slot")
}

/// Returns the notes about QPs that are not counted.
fn notes(sample: &Snapshot) -> Vec<String> {
    let notes = sample.value()["health"]["notes"].as_array();
    let all = notes.into_iter().flatten().map(ToString::to_string);
    all.filter(|note| note.contains("Not counted")).collect()
}

/// Counters that are null for a QP that is not counted.
const COUNTERS: [&str; 6] = [
    "tx_wr",
    "tx_wr_posted",
    "tx_bytes",
    "rx_wr",
    "rx_bytes",
    "completions",
];

fn is_unknown(row: Row<'_>) -> bool {
    COUNTERS.iter().all(|counter| row.field(counter).is_null())
}

#[test]
fn with_more_qps_than_slots_those_that_move_are_counted_to_the_last() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("more QPs than slots") else {
        return Ok(());
    };
    let slots = [("RDMATOP_SLOTS", "64")];
    let mut table = Table::default();
    // The idle QPs are made before and after rdmatop starts: in both cases 300 of them would take all slots.
    for before in [true, false] {
        let name = if before { "older than rdmatop" } else { "younger" };
        let window = (!before).then(|| Window::open_with(&[], &slots)).transpose()?;
        let mut first = Pairs::start(1, &[])?;
        let rest = Traffic::start("idle-qps", &["--qps", "300"])?;
        rest.ready()?;
        let mut last = Pairs::start(8, &["--size", "512"])?;
        let window = window.map_or_else(|| Window::open_with(&[], &slots), Ok)?;
        first.order("post 0 1 40")?;
        last.order("post 0 8 3")?;
        last.order("post 7 1 20")?;
        // New QPs get the slots of the old ones after these were read.
        last.order("renew 2 4")?;
        last.order("post 0 8 5")?;
        let idle = rest.child.pid();
        let done = [first.finish()?, last.finish()?];
        let sample = window.close()?;
        for (which, done) in ["first", "last"].iter().zip(&done) {
            compare(&mut table, &format!("{which}, {name}"), &sample, done)?;
        }
        table.equal(
            name,
            "QPs not counted",
            0,
            Some(without_slot(&sample) + sample.lost_at("place")),
        );
        table.equal(name, "notes", 0, Some(notes(&sample).len() as u64));
        let at_rest: Vec<_> = sample.qps().filter(|row| *row.field("pid") == idle).collect();
        table.equal(name, "QPs at rest", 300, Some(at_rest.len() as u64));
        for counter in COUNTERS {
            let zero = at_rest.iter().filter(|row| row.total(counter) == Some(0)).count();
            table.equal(
                name,
                &format!("QPs at rest with {counter} 0"),
                300,
                Some(zero as u64),
            );
        }
        rest.finish()?;
    }
    table.check(&lab, "More QPs than slots");
    Ok(())
}

/// Makes as many QPs as RDMATOP_MANY_QPS says. 70,000 need 8 GB of memory and over a minute, so this must be
/// requested: `RDMATOP_MANY_QPS=70000 cargo xtask lab run --memory 8192 ...`.
#[test]
fn beside_very_many_qps_at_rest_a_pair_is_counted_and_none_is_missing() -> Result<()> {
    const ENDS: u64 = 2;
    let what = "tens of thousands of QPs";
    let Some(lab) = Lab::enter_data_path(what) else {
        return Ok(());
    };
    let Some(many) = env::var("RDMATOP_MANY_QPS").ok() else {
        skip(what, "RDMATOP_MANY_QPS does not say how many");
        return Ok(());
    };
    let wanted: u64 = many.parse()?;
    let window = Window::open(&[])?;
    let rest = Traffic::start("idle-qps", &["--qps", &many, "--processes", "8"])?;
    rest.ready()?;
    let mut pair = Pairs::start(1, &[])?;
    pair.order("post 0 1 500")?;
    let sample = window.close()?;
    let done = pair.finish()?;
    let mut table = Table::default();
    compare(&mut table, "a pair beside them", &sample, &done)?;
    let listed = sample.living_qps().len() as u64;
    table.equal("all", "QPs", wanted + ENDS, Some(listed));
    let at_rest = sample.qps().filter(|row| row.field("comm") == "idle-qps");
    let zero = at_rest.filter(|row| COUNTERS.iter().all(|counter| row.total(counter) == Some(0)));
    table.equal(
        "at rest",
        "QPs whose counters are 0",
        wanted,
        Some(zero.count() as u64),
    );
    table.equal("all", "lost_events", 0, sample.lost());
    eprintln!(
        "losses {}, skipped {:?}",
        sample.losses(),
        sample.skipped_programs()
    );
    rest.finish()?;
    table.check(&lab, "Tens of thousands of QPs");
    Ok(())
}

#[test]
fn qps_without_a_slot_are_unknown_and_named_and_get_the_next_free_one() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("no slot left") else {
        return Ok(());
    };
    let mut table = Table::default();
    let mut pairs = Pairs::start(8, &[])?;
    let pid = pairs.pid();
    // Eight slots, of which one or two are for the device's own QPs 0 and 1.
    let window = Window::open_with(&[], &[("RDMATOP_SLOTS", "8")])?;
    pairs.order("post 0 8 2")?;
    // Longer than the kernel side waits before another try, and than the reader needs to notice.
    std::thread::sleep(Duration::from_secs(2));
    let sample = window.close()?;
    let own: Vec<_> = sample.qps().filter(|row| *row.field("pid") == pid).collect();
    let lost = without_slot(&sample);
    let unknown = own.iter().filter(|row| row.is("uncounted")).count() as u64;
    table.rule("8 slots", "slot losses", ">= 8", Some(lost), lost >= 8);
    table.equal("8 slots", "rows that say so", lost, Some(unknown));
    let [mut right, mut null] = [0; 2];
    for row in &own {
        if row.is("uncounted") {
            null += u64::from(is_unknown(*row));
        } else {
            let [tx, rx] = ["tx_wr", "rx_wr"].map(|counter| row.total(counter));
            right += u64::from((tx, rx) == (Some(2), Some(0)) || (tx, rx) == (Some(0), Some(2)));
        }
    }
    table.equal("8 slots", "unknown, not 0", unknown, Some(null));
    table.equal("8 slots", "others exact", 16 - unknown, Some(right));
    let notes = notes(&sample);
    ensure!(
        notes.len() == 1
            && notes[0].contains("all 8 counter slots")
            && notes[0].contains("--max-qps=16")
            && notes[0].contains("rxe0/"),
        "{notes:?}"
    );
    // A sum that lacks a part is unknown.
    ensure!(
        sample.process(pid)?.field("tx_wr").is_null(),
        "{:?}",
        sample.process(pid)?
    );
    drop(pairs);

    // Released slots go to QPs that had none.
    let mut early = Pairs::start(4, &[])?;
    let mut late = Pairs::start(1, &[])?;
    let window = Window::open_with(&[], &[("RDMATOP_SLOTS", "8")])?;
    early.order("post 0 4 3")?;
    late.order("post 0 1 3")?;
    early.finish()?;
    std::thread::sleep(Duration::from_secs(3));
    late.order("post 0 1 1")?;
    std::thread::sleep(Duration::from_secs(1));
    late.order("post 0 1 7")?;
    let done = late.finish()?;
    let sample = window.close()?;
    for (qpn, tx, rx, _) in accounts(&done)? {
        let row = sample.qp(id(&done, "pid")?, qpn)?;
        ensure!(row.is("since_attach") && !row.is("uncounted"), "{row:?}");
        let (counter, all) = if tx > 0 { ("tx_wr", tx) } else { ("rx_wr", rx) };
        let got = row.total(counter);
        let ok = got.is_some_and(|got| (7..=8).contains(&got));
        table.rule("a slot came free", counter, &format!("7 or 8 of {all}"), got, ok);
    }
    table.check(&lab, "No slot left");
    Ok(())
}

#[test]
fn the_maps_are_small_and_with_max_qps_hold_as_many_as_asked_for() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("size of the maps") else {
        return Ok(());
    };
    let mut table = Table::default();
    let mut first = Pairs::start(2, &[])?;
    let window = Window::open(&[])?;
    let few = Traffic::start("idle-qps", &["--qps", "96"])?;
    few.ready()?;
    first.order("post 0 2 5")?;
    std::thread::sleep(Duration::from_secs(1));
    let small = maps::bytes()?;
    if lab.is_at_least((6, 4)) {
        table.rule(
            "100 QPs",
            "bytes of all maps",
            "< 4 MiB",
            Some(small),
            small < 4 << 20,
        );
    } else {
        say(
            "before Linux 6.4 the kernel counts as many entries of a table as it may ever have: not compared",
        );
    }
    window.close()?;
    let window = Window::open(&["--max-qps", "1500"])?;
    // Traffic goes on while other QPs are created.
    let many = Traffic::start("idle-qps", &["--qps", "1200"])?;
    for _ in 0..20 {
        first.order("post 0 2 10")?;
    }
    many.ready()?;
    let mut last = Pairs::start(8, &["--size", "512"])?;
    last.order("post 0 8 3")?;
    first.order("post 0 2 10")?;
    let sample = window.close()?;
    compare(&mut table, "1300 QPs", &sample, &last.finish()?)?;
    let done = first.finish()?;
    for (qpn, tx, rx, _) in accounts(&done)? {
        let row = sample.qp(id(&done, "pid")?, qpn)?;
        // Five of them happened before this window.
        let (counter, all) = if tx > 0 { ("tx_wr", tx) } else { ("rx_wr", rx) };
        table.equal("older than rdmatop", counter, all - 5, row.total(counter));
    }
    table.equal("1300 QPs", "QPs without a slot", 0, Some(without_slot(&sample)));
    table.equal(
        "1300 QPs",
        "QPs without a place",
        0,
        Some(sample.lost_at("place")),
    );
    few.finish()?;
    many.finish()?;
    table.check(&lab, "Size of the maps");
    Ok(())
}

#[test]
fn qps_that_the_tables_do_not_hold_are_unknown_until_there_is_room() -> Result<()> {
    /// Longer than rdmatop needs to see that there is room and to list some QPs.
    const LISTED: Duration = Duration::from_secs(4);
    let Some(lab) = Lab::enter_data_path("no room in the tables of QPs") else {
        return Ok(());
    };
    let mut table = Table::default();
    // Room for 64 QPs, which the idle QPs take.
    let window = Window::open_with(&[], &[("RDMATOP_QPS", "64")])?;
    let rest = Traffic::start("idle-qps", &["--qps", "100"])?;
    rest.ready()?;
    let mut pairs = Pairs::start(4, &[])?;
    pairs.order("post 0 4 3")?;
    // Now there is room. Only rdmatop can list the QPs: those that only receive do nothing that reveals their
    // address.
    rest.finish()?;
    std::thread::sleep(LISTED);
    pairs.order("post 0 4 7")?;
    let sample = window.close()?;
    let done = pairs.finish()?;
    let lost = sample.lost_at("place");
    table.rule("64 places", "QPs not counted", ">= 8", Some(lost), lost >= 8);
    table.equal("64 places", "QPs without a slot", 0, Some(without_slot(&sample)));
    for (qpn, tx, rx, _) in accounts(&done)? {
        let row = sample.qp(id(&done, "pid")?, qpn)?;
        ensure!(row.is("since_attach") && !row.is("uncounted"), "{row:?}");
        // What was done before is not counted.
        let (counter, all) = if tx > 0 { ("tx_wr", tx) } else { ("rx_wr", rx) };
        table.equal("room came", &format!("{counter} of {all}"), 7, row.total(counter));
    }
    let notes_then = notes(&sample);
    ensure!(
        notes_then.len() == 1
            && notes_then[0].contains("Not counted for a time")
            && !notes_then[0].contains("--max-qps"),
        "{notes_then:?}"
    );
    table.check(&lab, "No room in the tables of QPs");

    // While there is no room.
    let window = Window::open_with(&[], &[("RDMATOP_QPS", "64")])?;
    let rest = Traffic::start("idle-qps", &["--qps", "100"])?;
    rest.ready()?;
    let mut pairs = Pairs::start(4, &[])?;
    pairs.order("post 0 4 3")?;
    std::thread::sleep(Duration::from_secs(2));
    let sample = window.close()?;
    let done = pairs.finish()?;
    let pid = id(&done, "pid")?;
    for (qpn, ..) in accounts(&done)? {
        let row = sample.qp(pid, qpn)?;
        ensure!(row.is("uncounted") && is_unknown(row), "{row:?}");
    }
    ensure!(
        sample.process(pid)?.field("tx_wr").is_null(),
        "a sum that lacks a part"
    );
    let idle = rest.child.pid();
    let said = sample.qps().filter(|row| *row.field("pid") == idle);
    let (zero, unknown): (Vec<_>, Vec<_>) = said.partition(|row| row.total("tx_wr") == Some(0));
    ensure!(unknown.iter().all(|row| is_unknown(*row)), "{unknown:?}");
    ensure!(
        unknown.len() >= 36 && zero.len() + unknown.len() == 100,
        "{} {}",
        zero.len(),
        unknown.len()
    );
    let notes = notes(&sample);
    ensure!(
        notes.len() == 1 && notes[0].contains("as soon as there is room") && notes[0].contains("--max-qps"),
        "{notes:?}"
    );
    rest.finish()?;
    Ok(())
}

/// An additional device and its interface.
const SECOND: (&str, &str) = ("rxe7", "dummy7");

#[test]
fn the_same_qp_numbers_on_two_devices_at_once_are_two_qps_each() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("same QPNs on two devices") else {
        return Ok(());
    };
    let ip = |words: &str| output(Command::new("ip").args(words.split(' ')));
    ip(&format!("link add {} type dummy", SECOND.1))?;
    let ended = (|| -> Result<()> {
        ip(&format!("addr add 10.77.7.1/24 dev {}", SECOND.1))?;
        ip(&format!("link set {} up", SECOND.1))?;
        let netdev = lab::netdev(DEVICE)?;
        // Each new device begins with the same number.
        kernel::delete_link(DEVICE)?;
        kernel::add_link(DEVICE, &netdev)?;
        kernel::add_link(SECOND.0, SECOND.1)?;
        let devices = [DEVICE, SECOND.0];
        let window = Window::open(&[])?;
        let mut both = [
            Pairs::start(2, &["--device", devices[0]])?,
            Pairs::start(2, &["--device", devices[1], "--size", "256"])?,
        ];
        for times in 1..=5 {
            for (number, pairs) in (1..).zip(&mut both) {
                pairs.order(&format!("post 0 2 {}", times * number))?;
                if times == 3 {
                    pairs.order("renew 0 1")?;
                }
            }
        }
        let [first, second] = both.map(Pairs::finish);
        let (first, second) = (first?, second?);
        let sample = window.close()?;
        let numbers = |done: &Value| -> Result<Vec<u32>> {
            Ok(accounts(done)?.into_iter().map(|(qpn, ..)| qpn).collect())
        };
        assert_eq!(numbers(&first)?, numbers(&second)?, "nothing was tested");
        let mut table = Table::default();
        for (device, done) in devices.into_iter().zip([&first, &second]) {
            compare(&mut table, device, &sample, done)?;
            let pid = id(done, "pid")?;
            let mut own = sample.qps().filter(|row| *row.field("pid") == pid);
            ensure!(own.all(|row| row.field("device") == device), "{device}");
            let sum: u64 = accounts(done)?.iter().map(|(_, tx, ..)| tx).sum();
            table.equal(
                device,
                "tx_wr of the process",
                sum,
                sample.process(pid)?.total("tx_wr"),
            );
        }
        table.check(&lab, "Same QP numbers on two devices");
        Ok(())
    })();
    if lab::devices()?.iter().any(|name| name == SECOND.0) {
        kernel::delete_link(SECOND.0)?;
    }
    ip(&format!("link delete {}", SECOND.1))?;
    ended
}

#[test]
fn churn_that_overruns_the_ring_buffer_is_told_and_repaired_by_netlink() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("churn over a tiny ring buffer") else {
        return Ok(());
    };
    let window = Window::open_with(&[], &[("RDMATOP_RING_BYTES", "4096"), ("RDMATOP_SLOTS", "64")])?;
    let rest = Traffic::start("idle-qps", &["--qps", "20"])?;
    rest.ready()?;
    let mut pairs = Pairs::start(2, &[])?;
    let done = traffic::run("qp-churn", &["--count", "400", "--laps", "3", "--threads", "4"])?;
    ensure!(number(&done, "created")? == 400, "{done}");
    pairs.order("post 0 2 25")?;
    let there = kernel::user_qps()?;
    let sample = window.close()?;
    let mut table = Table::default();
    let lost = sample.lost().unwrap_or(0);
    table.rule("churn", "lost_events", "> 0", Some(lost), lost > 0);
    let shown = sample.living_qps();
    table.equal(
        "churn",
        "rows of QPs that live",
        there.len() as u64,
        Some(shown.len() as u64),
    );
    assert_eq!(shown, there, "the table is not the kernel's");
    // Counts are not records, so none is missing.
    compare(&mut table, "a pair beside it", &sample, &pairs.finish()?)?;
    let uncounted = without_slot(&sample) + sample.lost_at("place");
    table.equal("churn", "QPs not counted", 0, Some(uncounted));
    rest.finish()?;
    table.check(&lab, "Churn over a ring buffer of 4 KiB");
    Ok(())
}
