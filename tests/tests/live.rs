//! The live view in a real terminal under real traffic: the screen shows what perftest did, and keys and
//! mouse work.

use std::{fs, process::Command, thread, time::Duration};

use anyhow::{Result, ensure};
use rdmatop_tests::{
    child::Child,
    kernel,
    lab::{self, DEVICE, Lab},
    perftest::Perftest,
    rdmatop::END,
    screen::{Screen, total},
    traffic::{self, Traffic},
    wait,
};

/// The time between keys, so that ESC and the next key are not read as one.
const APART: Duration = Duration::from_millis(700);

#[test]
fn the_screen_shows_what_perftest_did() -> Result<()> {
    const WRS: u64 = 3000;
    const SIZE: u64 = 4096;
    let Some(_lab) = Lab::enter_data_path("live view") else {
        return Ok(());
    };
    let _screen = Screen::open("traffic")?;
    Screen::once("the live view with its programs", END, |text| {
        text.contains("eBPF on")
    })?;
    Screen::keys(&["2"])?;
    let accounts = Perftest::new("ib_write_bw").iterations(WRS).size(SIZE).run()?;
    let pid = accounts.client.pid.to_string();
    // The row stays for some seconds after its QP; the next refresh has the final counts. Then it pauses.
    thread::sleep(Duration::from_millis(2500));
    Screen::keys(&["Space", "f"])?;
    Screen::keys(&[&format!("pid:{pid}"), "Enter", "Enter", "Enter"])?;
    let shown = Screen::once("the detail of the sender's QP", END, |text| {
        text.contains("send WRs finished")
    })?;
    ensure!(shown.contains(&format!("pid {pid}")), "{shown}");
    ensure!(total(&shown, "send WRs finished") == Some(WRS), "{shown}");
    ensure!(total(&shown, "send WRs posted") == Some(WRS), "{shown}");
    ensure!(total(&shown, "bytes of send WRs") == Some(WRS * SIZE), "{shown}");
    Screen::leave()
}

#[test]
fn w_shows_the_work_requests_of_a_qp_by_programs_of_that_time_alone() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("work requests in the live view") else {
        return Ok(());
    };
    let _screen = Screen::open("work")?;
    Screen::once("the live view with its programs", END, |text| {
        text.contains("eBPF on")
    })?;
    let posts = Traffic::start("steady-posts", &[])?;
    let qpn = traffic::number(&posts.ready()?, "qpn")?;
    let before = kernel::bpf_programs()?;
    Screen::keys(&["2", "f"])?;
    Screen::keys(&[&format!("qpn:{qpn}"), "Enter"])?;
    Screen::once("the row of the QP", END, |text| text.contains("steady-posts"))?;
    Screen::keys(&["w"])?;
    let title = format!("Work requests of QP {DEVICE}/{qpn} ");
    let shown = Screen::once("work requests as they go by", END, |text| {
        let ended = |line: &str| line.contains("rdma_write") && line.contains(" success");
        text.contains(&title) && text.lines().filter(|line| ended(line)).count() > 5
    })?;
    ensure!(shown.contains(" 1024 yes "), "bytes, and signaled:\n{shown}");
    // The program numbers requests in the order of posts; the newest is on top.
    let rows = shown.lines().filter(|line| line.contains(" rdma_write "));
    let ids = rows.map(|row| {
        row.split_whitespace()
            .nth(2)
            .and_then(|id| id.parse::<u64>().ok())
    });
    let ids: Vec<_> = ids.flatten().collect();
    let in_order = ids.windows(2).all(|pair| pair[0] == pair[1] + 1);
    ensure!(ids.len() > 5 && in_order, "{ids:?}:\n{shown}");
    let during = kernel::bpf_programs()?;
    ensure!(
        during.len() > before.len(),
        "no program more: {before:?}, {during:?}"
    );
    Screen::keys(&["Escape"])?;
    wait::until("the end of its programs", END, || {
        kernel::bpf_programs().is_ok_and(|now| now == before)
    })?;
    Screen::once("the table", END, |text| !text.contains(&title))?;
    // The QP ends while it is watched: the pane says so, and nothing stays attached.
    Screen::keys(&["w"])?;
    Screen::once("the work requests again", END, |text| {
        text.contains(&title) && text.contains(" rdma_write ")
    })?;
    posts.finish()?;
    Screen::once("the end of the QP", END, |text| text.contains("The QP is gone"))?;
    wait::until("the end of its programs", END, || {
        kernel::bpf_programs().is_ok_and(|now| now == before)
    })?;
    Screen::leave()
}

/// Returns the words under the heading that begins in `column` of `line`, down to the first empty line or the
/// line of keys, which follows immediately if there are more rows than room.
fn names(screen: &str, (column, line): (usize, usize)) -> Vec<String> {
    let keys = |row: &&str| row.starts_with("?:Help");
    let rows = screen.lines().skip(line + 1).take_while(|row| !keys(row));
    rows.map(|row| {
        let rest: String = row.chars().skip(column).collect();
        rest.split_whitespace().next().unwrap_or_default().to_owned()
    })
    .take_while(|name| !name.is_empty())
    .collect()
}

#[test]
fn the_mouse_chooses_a_tab_a_row_and_an_order_and_what_was_chosen_is_kept() -> Result<()> {
    let Some(_lab) = Lab::enter("mouse") else {
        return Ok(());
    };
    let screen = Screen::open("mouse")?;
    let shown = Screen::once("the live view with its programs", END, |text| {
        text.contains("eBPF on")
    })?;
    // Choose a tab.
    Screen::mouse(0, Screen::find(&shown, "6:Probes")?)?;
    let shown = Screen::once("the table of programs", END, |text| text.contains("PROGRAM"))?;
    // Choose a heading, and again: the order, and the reverse order.
    let heading = Screen::find(&shown, "PROGRAM")?;
    let sorted = |down: bool| {
        move |text: &str| {
            let mut wanted = names(text, heading);
            wanted.sort();
            if down {
                wanted.reverse();
            }
            wanted.len() > 10 && names(text, heading) == wanted
        }
    };
    Screen::mouse(0, heading)?;
    Screen::once("the programs by name", END, sorted(false))?;
    Screen::mouse(0, heading)?;
    let shown = Screen::once("the programs by name, the last first", END, sorted(true))?;
    // Choose a row, and again: its detail.
    let rows = names(&shown, heading);
    let row = |at: usize| (heading.0, heading.1 + 1 + at);
    let title = |at: usize| format!(" {} ", rows[at]);
    Screen::mouse(0, row(5))?;
    thread::sleep(APART);
    Screen::mouse(0, row(5))?;
    Screen::once("the detail of the row", END, |text| {
        text.lines()
            .any(|line| line.contains("──") && line.contains(&title(5)))
    })?;
    Screen::keys(&["Escape"])?;
    // A kernel that hides something also has a rule above its notes.
    Screen::once("the table alone", END, |text| {
        !text
            .lines()
            .any(|line| line.contains("──") && line.contains(&title(5)))
    })?;
    // The wheel moves three rows a step: down twice and up once.
    for button in [65, 65, 64] {
        Screen::mouse(button, row(2))?;
    }
    thread::sleep(APART);
    Screen::keys(&["Enter"])?;
    Screen::once("the detail three rows further down", END, |text| {
        text.lines()
            .any(|line| line.contains("──") && line.contains(&title(8)))
    })?;
    Screen::leave()?;
    let kept = fs::read_to_string(screen.home.join("rdmatop/config.toml"))?;
    ensure!(
        kept.contains("[sort.probes]") && kept.contains("by = \"program\"") && kept.contains("down = true"),
        "{kept}"
    );
    Ok(())
}

#[test]
fn the_banner_and_the_rows_are_of_now_when_a_device_comes_and_goes() -> Result<()> {
    let Some(_lab) = Lab::enter("a device that comes and goes") else {
        return Ok(());
    };
    let netdev = lab::netdev(DEVICE)?;
    let row = format!("{DEVICE}/1");
    kernel::delete_link(DEVICE)?;
    // Whatever happens, the device must exist for the following tests.
    let outcome = (|| {
        let _screen = Screen::open("presence")?;
        Screen::once("the view of a machine without a device", END, |text| {
            text.contains("No RDMA device") && text.contains("eBPF on")
        })?;
        kernel::add_link(DEVICE, &netdev)?;
        Screen::keys(&["3"])?;
        Screen::once("the device, and no banner that denies it", END, |text| {
            text.contains(&row) && !text.contains("No RDMA")
        })?;
        // Dropped after its holder, for which the removal waits.
        let removal;
        let holder = Traffic::start("idle-qps", &["--qps", "1"])?;
        holder.ready()?;
        removal = Child::spawn(Command::new("rdma").args(["link", "delete", DEVICE]))?;
        let pid = holder.child.pid().to_string();
        Screen::once("the removal and who holds it up", END, |text| {
            text.contains("REMOVING") && text.contains("is being removed") && text.contains(&pid)
        })?;
        holder.finish()?;
        Screen::once("the end of the removal", END, |text| {
            text.contains("No RDMA device") && !text.contains("is being removed") && !text.contains(&row)
        })?;
        drop(removal);
        Screen::leave()
    })();
    let again = kernel::add_link(DEVICE, &netdev);
    outcome.and(again)
}

#[test]
fn names_end_where_the_rows_do() {
    let screen = "x  NAME\na  b\nc  d\n?:Help  q:Quit\n";
    assert_eq!(names(screen, (3, 0)), ["b", "d"]);
    assert_eq!(names("x  NAME\na  b\n\nc  d\n", (3, 0)), ["b"]);
}

#[test]
fn a_total_is_read_from_its_line() {
    let screen = "x\nsend WRs finished              15.0k        1,350,000  ebpf\n";
    assert_eq!(total(screen, "send WRs finished"), Some(1_350_000));
    assert_eq!(total(screen, "send WRs posted"), None);
}
