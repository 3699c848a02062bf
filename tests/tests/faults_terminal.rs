//! Terminals and pipes that take no output, stops, clock steps and other tracers while programs are attached.

use std::{
    fs,
    io::{self, PipeReader, PipeWriter, Write as _},
    os::fd::AsRawFd as _,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    child::{Child, output},
    kernel::{self, leaves_nothing},
    lab::{DEVICE, Lab, skip},
    perftest::Perftest,
    pty::OnTerminal,
    rdmatop::{self, END, Trace, Window},
    snapshot::Snapshot,
    storm::Storm,
    traffic::{self, Traffic, id, number},
    wait::{self, SOON},
};

/// For how long rdmatop is stopped.
const STOPPED: Duration = Duration::from_secs(20);

/// Starts the live view on a terminal and waits until its programs are attached.
fn view(args: &[&str]) -> Result<OnTerminal> {
    let before = kernel::bpf_programs()?.len();
    let mut command = rdmatop::command(args)?;
    command.env("XDG_CONFIG_HOME", "/tmp/rdmatop-faults");
    let view = OnTerminal::start(&mut command)?;
    view.wait_for(DEVICE, END)?;
    kernel::await_programs(before)?;
    Ok(view)
}

/// Stops reading and makes the view draw more than the terminal holds.
fn fill(view: &mut OnTerminal) -> Result<()> {
    view.stall();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(4) {
        // Ctrl-L redraws a whole screen; help is another one.
        view.press(b"\x0c?")?;
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn ends_soon(view: &mut OnTerminal, begin: Instant, code: i32) -> Result<()> {
    let status = view.wait(END)?;
    let took = begin.elapsed();
    ensure!(status.code() == Some(code), "{status}");
    ensure!(took < SOON, "it took {took:?}");
    view.resume();
    view.drain(END)?;
    let output = view.output();
    let end = String::from_utf8_lossy(&output[output.len().saturating_sub(200)..]).into_owned();
    // A line that says why it ended may follow.
    let rest = end.rsplit_once("\x1b[?1049l\x1b[?25h").map(|(_, rest)| rest);
    ensure!(rest.is_some_and(|rest| !rest.contains('\x1b')), "{end:?}");
    Ok(())
}

#[test]
fn a_terminal_that_does_not_read_keeps_nothing_attached() -> Result<()> {
    let Some(_lab) = Lab::enter("stalled terminal") else {
        return Ok(());
    };
    for (signal, name, code) in [
        (libc::SIGTERM, "SIGTERM", 0),
        (libc::SIGINT, "SIGINT", 0),
        // The terminal is gone, so what the user wanted was not done.
        (libc::SIGHUP, "SIGHUP", 1),
    ] {
        leaves_nothing(|| {
            let mut view = view(&[])?;
            fill(&mut view)?;
            view.signal(signal)?;
            ends_soon(&mut view, Instant::now(), code)
        })
        .context(name)?;
    }
    leaves_nothing(|| {
        let mut view = view(&["--for", "20"])?;
        let begin = Instant::now();
        fill(&mut view)?;
        ends_soon(&mut view, begin + Duration::from_secs(20), 0)
    })
    .context("--for")
}

/// Makes a pipe that takes no further byte, so that who writes to it waits.
fn full_pipe() -> Result<(PipeReader, PipeWriter)> {
    let (read, mut write) = io::pipe()?;
    let fd = write.as_raw_fd();
    let nonblocking = |on| {
        // SAFETY: plain numbers, on a descriptor of ours.
        unsafe { libc::fcntl(fd, libc::F_SETFL, if on { libc::O_NONBLOCK } else { 0 }) }
    };
    ensure!(nonblocking(true) == 0, "{}", io::Error::last_os_error());
    let page = [b'\n'; 4096];
    while write.write(&page).is_ok() {}
    ensure!(nonblocking(false) == 0, "{}", io::Error::last_os_error());
    Ok((read, write))
}

fn wait_soon(child: &mut Child, code: i32) -> Result<()> {
    let begin = Instant::now();
    let status = child.wait(END)?;
    let took = begin.elapsed();
    ensure!(status.code() == Some(code), "{status}: {}", child.err.text());
    ensure!(took < SOON, "it took {took:?}");
    Ok(())
}

#[test]
fn a_pipe_that_nobody_reads_keeps_no_trace_attached_and_says_its_loss() -> Result<()> {
    let Some(_lab) = Lab::enter("stalled pipe") else {
        return Ok(());
    };
    leaves_nothing(|| {
        let (_read, write) = full_pipe()?;
        let mut trace = Child::spawn_into(&mut rdmatop::command(&["--trace"])?, write, Stdio::piped())?;
        rdmatop::wait_counting(&trace)?;
        let done = traffic::run("qp-churn", &["--count", "100"])?;
        let events = number(&done, "events")?;
        trace.signal(libc::SIGTERM)?;
        wait_soon(&mut trace, 0)?;
        let last = trace.err.all().pop().unwrap_or_default();
        ensure!(
            last.contains(" 0 printed") && last.contains("not printed because"),
            "of {events} events: {last}"
        );
        Ok(())
    })
    .context("SIGTERM")?;
    leaves_nothing(|| {
        let (_read, write) = full_pipe()?;
        let args = ["--trace", "--json", "--for", "5"];
        let mut trace = Child::spawn_into(&mut rdmatop::command(&args)?, write, Stdio::piped())?;
        rdmatop::wait_counting(&trace)?;
        traffic::run("qp-churn", &["--count", "20"])?;
        wait_soon(&mut trace, 0)
    })
    .context("--for")
}

#[test]
fn a_sample_into_a_full_pipe_ends_on_request_and_says_why() -> Result<()> {
    let Some(_lab) = Lab::enter("stalled sample") else {
        return Ok(());
    };
    leaves_nothing(|| {
        let (_read, write) = full_pipe()?;
        let args = ["--once", "--json", "--delay", "600"];
        let mut once = Child::spawn_into(&mut rdmatop::command(&args)?, write, Stdio::piped())?;
        rdmatop::wait_counting(&once)?;
        once.signal(libc::SIGTERM)?;
        wait_soon(&mut once, 1)?;
        let said = once.err.text();
        ensure!(said.contains("no process reads its stdout"), "{said}");
        Ok(())
    })
}

#[test]
fn a_stderr_that_nobody_reads_holds_up_no_trace() -> Result<()> {
    let Some(_lab) = Lab::enter("stalled stderr") else {
        return Ok(());
    };
    leaves_nothing(|| {
        let before = kernel::bpf_programs()?.len();
        let (_read, write) = full_pipe()?;
        let args = ["--trace", "--json"];
        let mut trace = Child::spawn_into(&mut rdmatop::command(&args)?, Stdio::piped(), write)?;
        kernel::await_programs(before)?;
        let done = traffic::run("qp-churn", &["--count", "5"])?;
        trace.signal(libc::SIGTERM)?;
        wait_soon(&mut trace, 0)?;
        let pid = format!("\"pid\":{}", id(&done, "pid")?);
        let made = |line: &String| line.contains("\"qp_create\"") && line.contains(&pid);
        let seen = trace.out.all().iter().filter(|line| made(line)).count();
        ensure!(seen == 5, "{seen} of 5:\n{}", trace.out.text());
        Ok(())
    })
}

#[test]
fn a_shell_can_stop_it_resume_it_at_another_size_and_end_it_stopped() -> Result<()> {
    let Some(_lab) = Lab::enter("job control") else {
        return Ok(());
    };
    let tmux = |args: &[&str]| output(Command::new("tmux").args(["-L", "rdmatop-jobs"]).args(args));
    tmux(&[
        "-f",
        "/dev/null",
        "new-session",
        "-d",
        "-s",
        "t",
        "-x",
        "120",
        "-y",
        "40",
        "bash --norc",
    ])?;
    let ended = leaves_nothing(|| {
        let screen = || tmux(&["capture-pane", "-p", "-t", "t"]);
        let shows = |what: &str, text: &str| {
            wait::until(what, END, || {
                sleep(Duration::from_millis(200));
                screen().is_ok_and(|screen| screen.contains(text))
            })
            .with_context(|| screen().unwrap_or_default())
        };
        let type_line = |line: &str| tmux(&["send-keys", "-t", "t", line, "Enter"]);
        type_line("PS1='prompt> '; clear; echo BEFORE-MARK")?;
        shows("the shell", "BEFORE-MARK")?;
        type_line(&rdmatop::program()?.display().to_string())?;
        shows("the live view", "6:Probes")?;
        tmux(&["send-keys", "-t", "t", "C-z"])?;
        shows("the shell, which stopped it", "Stopped")?;
        // The main screen is back, and typed text is visible.
        type_line("echo ST''OPPED-MARK")?;
        shows("the typed line", "STOPPED-MARK")?;
        tmux(&["resize-window", "-t", "t", "-x", "90", "-y", "20"])?;
        type_line("fg")?;
        shows("the live view again", "6:Probes")?;
        let text = screen()?;
        ensure!(text.lines().count() <= 20, "{text}");
        ensure!(text.contains("Quit") && !text.contains("STOPPED-MARK"), "{text}");
        // In the background it goes on and does not write over the shell, which ends it by a SIGTERM alone.
        tmux(&["send-keys", "-t", "t", "C-z"])?;
        shows("the shell, which stopped it again", "prompt>")?;
        type_line("clear; bg; sleep 2; echo BACK''GROUND-MARK")?;
        shows("the shell after bg", "BACKGROUND-MARK")?;
        ensure!(!screen()?.contains("6:Probes"), "{}", screen()?);
        type_line("kill %1; wait; echo EN''DED-MARK")?;
        shows("the shell after kill", "ENDED-MARK")
    });
    let _ = tmux(&["kill-server"]);
    ended
}

#[test]
fn five_at_once_count_the_same_and_end_clean() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("five at once") else {
        return Ok(());
    };
    leaves_nothing(|| {
        let windows: Result<Vec<_>> = (0..5).map(|_| Window::open(&[])).collect();
        let windows = windows?;
        let accounts = Perftest::new("ib_write_bw").iterations(500).run()?;
        let (pid, wanted) = (accounts.client.pid, accounts.client.iterations);
        for window in windows {
            let sample = window.close()?;
            let counted = sample.process(pid)?.total("tx_wr");
            ensure!(counted == Some(wanted), "{counted:?} for {wanted}");
            ensure!(sample.lost() == Some(0), "{:?} lost", sample.lost());
        }
        Ok(())
    })
}

/// Compares the finished requests with the rate, which must refer to the time that really passed.
fn honest(sample: &Snapshot, done: &serde_json::Value, least: Duration, most: Duration) -> Result<()> {
    let posted = number(done, "posted")?;
    let qp = sample.qp(id(done, "pid")?, id(done, "qpn")?)?;
    ensure!(qp.total("tx_wr") == Some(posted), "{qp:?} for {posted}");
    let interval = Duration::from_nanos(number(sample.value(), "interval_ns")?);
    ensure!(
        interval >= least && interval <= most,
        "{interval:?}, not {least:?} to {most:?}"
    );
    let rate = qp.field("tx_wr")["rate"].as_f64().context("no rate")?;
    #[expect(clippy::cast_precision_loss, reason = "some thousand requests")]
    let share = rate * interval.as_secs_f64() / posted as f64;
    ensure!(
        (0.9..1.1).contains(&share),
        "{rate}/s in {interval:?} for {posted}"
    );
    Ok(())
}

#[test]
fn a_stop_of_twenty_seconds_is_in_the_interval_of_the_rates() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("stopped for 20 s") else {
        return Ok(());
    };
    let begin = Instant::now();
    let window = Window::open(&[])?;
    let posts = Traffic::start("steady-posts", &[])?;
    posts.ready()?;
    window.signal(libc::SIGSTOP)?;
    sleep(Duration::from_secs(1));
    let done = posts.finish()?;
    sleep(STOPPED);
    window.signal(libc::SIGCONT)?;
    let sample = window.close()?;
    honest(&sample, &done, STOPPED, begin.elapsed())
}

#[test]
fn what_a_stopped_trace_had_no_room_for_is_counted_as_lost() -> Result<()> {
    let Some(lab) = Lab::enter("stopped trace") else {
        return Ok(());
    };
    let trace = Trace::start_with(&[], &[("RDMATOP_RING_BYTES", "8192")])?;
    trace.child.signal(libc::SIGSTOP)?;
    let done = traffic::run("qp-churn", &["--count", "100"])?;
    trace.child.signal(libc::SIGCONT)?;
    let storm = Storm::of(&trace.stop()?, &done)?;
    storm.check(&format!("Linux {}, stopped, a ring of 8 KiB", lab.release))?;
    ensure!(storm.lost > 0, "8 KiB were enough: nothing about loss was tested");
    Ok(())
}

#[test]
fn a_step_of_the_clock_changes_no_rate() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("clock step") else {
        return Ok(());
    };
    let step = |by: &str| output(Command::new("date").args(["-s", by])).map(drop);
    let begin = Instant::now();
    let window = Window::open(&[])?;
    let posts = Traffic::start("steady-posts", &[])?;
    posts.ready()?;
    step("+1 hour")?;
    sleep(Duration::from_secs(1));
    let measured = posts.finish().and_then(|done| {
        step("-2 hours")?;
        Ok((window.close()?, done))
    });
    step("+1 hour")?;
    let (sample, done) = measured?;
    // The steps of an hour forward or two back must not be in it.
    honest(&sample, &done, Duration::from_secs(1), begin.elapsed())
}

/// ftrace's function tracer on `functions`; drop turns it off.
struct Ftrace;

impl Ftrace {
    const AT: &str = "/sys/kernel/tracing";

    fn start(functions: &str) -> Result<Self> {
        let this = Self;
        fs::write(format!("{}/set_ftrace_filter", Self::AT), functions)?;
        fs::write(format!("{}/current_tracer", Self::AT), "function")?;
        Ok(this)
    }

    fn hits(function: &str, comm: &str) -> Result<u64> {
        let text = fs::read_to_string(format!("{}/trace", Self::AT))?;
        let hit = |line: &&str| line.contains(&format!(": {function} <-")) && line.contains(comm);
        Ok(text.lines().filter(hit).count() as u64)
    }
}

impl Drop for Ftrace {
    fn drop(&mut self) {
        for (file, text) in [
            ("current_tracer", "nop"),
            ("set_ftrace_filter", ""),
            ("trace", ""),
        ] {
            let _ = fs::write(format!("{}/{file}", Self::AT), text);
        }
    }
}

/// Runs a pair in a window beside another tracer; everything posted must be counted.
fn counts_beside(another: &str, wrs: u64) -> Result<()> {
    let window = Window::open(&[])?;
    let accounts = Perftest::new("ib_write_bw").iterations(wrs).run()?;
    let sample = window.close()?;
    let counted = sample.process(accounts.client.pid)?.total("tx_wr");
    ensure!(counted == Some(wrs), "beside {another}: {counted:?} for {wrs}");
    ensure!(
        sample.lost() == Some(0),
        "beside {another}: {:?} lost",
        sample.lost()
    );
    Ok(())
}

const SHARED: &str = "rxe_post_send rxe_completer rxe_cq_post ib_destroy_qp_user ib_uverbs_write";

#[test]
fn ftrace_on_the_same_functions_counts_beside_us() -> Result<()> {
    const WRS: u64 = 500;
    let Some(_lab) = Lab::enter_data_path("ftrace beside") else {
        return Ok(());
    };
    leaves_nothing(|| {
        let ftrace = Ftrace::start(SHARED)?;
        counts_beside("ftrace", WRS)?;
        let hits = Ftrace::hits("rxe_post_send", "ib_write_bw")?;
        ensure!(hits == WRS, "ftrace has {hits} for {WRS}");
        drop(ftrace);
        counts_beside("nobody", WRS)
    })
}

#[test]
fn bpftrace_on_the_same_functions_counts_beside_us() -> Result<()> {
    const WRS: u64 = 500;
    let Some(_lab) = Lab::enter_data_path("bpftrace beside") else {
        return Ok(());
    };
    if Command::new("bpftrace").arg("--version").output().is_err() {
        skip(
            "bpftrace beside",
            "bpftrace is not installed: apt-get install bpftrace",
        );
        return Ok(());
    }
    leaves_nothing(|| {
        let probes = SHARED.split(' ').map(|name| format!("kprobe:{name}"));
        let script = format!(
            "BEGIN {{ printf(\"ready\\n\"); }} {} {{ @[func, comm] = count(); }}",
            probes.collect::<Vec<_>>().join(",")
        );
        let mut other = Child::spawn(Command::new("bpftrace").args(["-e", &script]))?;
        other
            .out
            .wait_for("bpftrace's start", END, |line| line.contains("ready"))
            .with_context(|| other.err.text())?;
        counts_beside("bpftrace", WRS)?;
        other.signal(libc::SIGINT)?;
        other.wait(END)?;
        let counted = format!("@[rxe_post_send, ib_write_bw]: {WRS}");
        ensure!(other.out.text().contains(&counted), "{}", other.out.text());
        Ok(())
    })
}
