//! The real binary on a real terminal, on this machine: how it ends, what it leaves behind, and that nothing
//! holds it up.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rdmatop_tests::pty::OnTerminal;
use rdmatop_tests::wait::{PATIENCE, until};

/// What stands in the tab line of every screen.
const SHOWN: &str = "Processes";
/// What an end may take: nothing is attached here that would have to be detached, and this machine is not
/// emulated.
const SOON: Duration = Duration::from_secs(15);
/// The main screen, and the cursor: the last things that are written.
const BACK: &[u8] = b"\x1b[?1049l\x1b[?25h";

struct View {
    _home: tempfile::TempDir,
    on: OnTerminal,
    mode: [u32; 4],
}

/// The live view with settings of its own, once it is on the screen.
fn view(args: &[&str]) -> View {
    view_with(args, |_| {})
}

fn view_with(args: &[&str], more: impl FnOnce(&mut Command)) -> View {
    let home = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdmatop"));
    command
        .arg("--no-ebpf")
        .args(args)
        .env_remove("NO_COLOR")
        .env("LC_ALL", "C.UTF-8")
        .env("XDG_CONFIG_HOME", home.path());
    more(&mut command);
    let on = OnTerminal::start(&mut command).expect("a terminal");
    on.wait_for(SHOWN, PATIENCE).expect("the view");
    View {
        mode: before(),
        _home: home,
        on,
    }
}

/// The line mode of a terminal that nobody has touched.
fn before() -> [u32; 4] {
    let on = OnTerminal::start(Command::new("sleep").arg("60")).expect("a terminal");
    on.mode().expect("its line mode")
}

/// More than a terminal holds, so that the next frame finds no room.
fn fill(view: &mut View) {
    view.on.stall();
    // Each key is a frame; help and back is a whole screen twice.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(2) {
        view.on.press(b"\x0c?").expect("keys");
        sleep(Duration::from_millis(10));
    }
}

fn ends_with_the_terminal_given_back(view: &mut View, limit: Duration) -> std::process::ExitStatus {
    let begin = Instant::now();
    let status = view.on.wait(PATIENCE).expect("it ends");
    assert!(begin.elapsed() < limit, "it took {:?}", begin.elapsed());
    assert_eq!(view.on.mode().expect("a line mode"), view.mode, "the line mode");
    view.on.resume();
    view.on.drain(PATIENCE).expect("all of the output");
    let output = view.on.output();
    let text = String::from_utf8_lossy(&output);
    let end = text.rfind("\x1b[?1049l").map(|at| &text[at..]);
    assert!(
        end.is_some_and(|end| end.as_bytes().starts_with(BACK) && !end[BACK.len()..].contains('\x1b')),
        "{:?}",
        &text[text.len().saturating_sub(200)..]
    );
    status
}

#[test]
fn a_terminal_that_does_not_read_keeps_no_signal_from_ending_it() {
    for (signal, code) in [(libc::SIGTERM, 0), (libc::SIGINT, 0), (libc::SIGHUP, 1)] {
        let mut view = view(&["--delay", "0.1"]);
        fill(&mut view);
        view.on.signal(signal).expect("a signal");
        let status = ends_with_the_terminal_given_back(&mut view, SOON);
        assert_eq!(status.code(), Some(code), "signal {signal}: {status}");
    }
}

#[test]
fn a_terminal_that_does_not_read_does_not_outlast_the_duration() {
    let mut view = view(&["--delay", "0.1", "--for", "4"]);
    fill(&mut view);
    let status = ends_with_the_terminal_given_back(&mut view, SOON + Duration::from_secs(4));
    assert_eq!(status.code(), Some(0), "{status}");
}

#[test]
fn a_terminal_that_reads_again_gets_the_newest_screen_and_its_misses() {
    let mut view = view(&["--delay", "0.1"]);
    // A key takes the message away. On a machine that is busy the view may not have read all keys when the
    // terminal reads again.
    let told = (1..=5).any(|turn| {
        fill(&mut view);
        // The last key: the help is open or closed; this opens the filter's prompt on either.
        view.on.press(b"\x1b").expect("a key");
        sleep(Duration::from_secs(turn));
        view.on.forget();
        view.on.resume();
        view.on.wait_for("frames were not drawn", SOON).is_ok()
    });
    assert!(
        told,
        "the count of dropped frames: {}",
        String::from_utf8_lossy(&view.on.output())
    );
    view.on.signal(libc::SIGTERM).expect("a signal");
    ends_with_the_terminal_given_back(&mut view, SOON);
}

#[test]
fn each_signal_that_ends_a_process_gives_the_terminal_back_first() {
    let ending = [
        libc::SIGQUIT,
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGABRT,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGUSR1,
        libc::SIGSEGV,
        libc::SIGUSR2,
        libc::SIGALRM,
        libc::SIGSTKFLT,
        libc::SIGXCPU,
        libc::SIGXFSZ,
        libc::SIGVTALRM,
        libc::SIGPROF,
        libc::SIGIO,
        libc::SIGPWR,
        libc::SIGSYS,
        libc::SIGRTMIN(),
        libc::SIGRTMAX(),
    ];
    for signal in ending {
        let mut view = view(&[]);
        view.on.signal(signal).expect("a signal");
        let status = ends_with_the_terminal_given_back(&mut view, SOON);
        assert_eq!(status.signal(), Some(signal), "{status}");
    }
}

#[test]
fn a_signal_gives_back_a_terminal_that_does_not_read_too() {
    let mut view = view(&["--delay", "0.1"]);
    fill(&mut view);
    view.on.signal(libc::SIGUSR1).expect("a signal");
    let status = ends_with_the_terminal_given_back(&mut view, SOON);
    assert_eq!(status.signal(), Some(libc::SIGUSR1), "{status}");
}

#[test]
fn a_broken_pipe_signal_is_ignored() {
    let mut view = view(&[]);
    view.on.signal(libc::SIGPIPE).expect("a signal");
    sleep(Duration::from_millis(300));
    view.on.alive().expect("it goes on");
}

/// The letter of the state in /proc/PID/stat.
fn state(view: &View) -> char {
    let stat = fs::read_to_string(format!("/proc/{}/stat", view.on.pid())).unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    after.trim().chars().next().unwrap_or('-')
}

fn wait_stopped(view: &View) {
    let begin = Instant::now();
    while state(view) != 'T' {
        assert!(begin.elapsed() < PATIENCE, "it does not stop: {}", state(view));
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_stop_gives_the_terminal_back_and_going_on_draws_at_the_new_size() {
    let mut view = view(&[]);
    view.on.signal(libc::SIGTSTP).expect("a signal");
    wait_stopped(&view);
    assert_eq!(view.on.mode().expect("a line mode"), view.mode, "the line mode");
    until("the screen given back", PATIENCE, || {
        view.on.output().ends_with(BACK)
    })
    .expect("the terminal");
    view.on.resize((76, 12)).expect("a new size");
    view.on.forget();
    view.on.signal(libc::SIGCONT).expect("a signal");
    view.on
        .wait_for("\x1b[?1049h", PATIENCE)
        .expect("the other screen");
    view.on.wait_for(SHOWN, PATIENCE).expect("the view");
    let text = String::from_utf8_lossy(&view.on.output()).into_owned();
    // Where the cursor is put: ESC [ row ; column H.
    let rows = text.split("\x1b[").filter_map(|part| {
        let (place, _) = part.split_once('H')?;
        let (row, column) = place.split_once(';')?;
        column.parse::<u16>().ok()?;
        row.parse::<u16>().ok()
    });
    assert_eq!(rows.max(), Some(12), "{text:?}");
    view.on.signal(libc::SIGTERM).expect("a signal");
    ends_with_the_terminal_given_back(&mut view, SOON);
}

#[test]
fn a_stop_that_it_cannot_see_is_followed_by_a_whole_screen() {
    let mut view = view(&[]);
    view.on.signal(libc::SIGSTOP).expect("a signal");
    wait_stopped(&view);
    view.on.forget();
    view.on.signal(libc::SIGCONT).expect("a signal");
    view.on.wait_for(SHOWN, PATIENCE).expect("the view");
    view.on.signal(libc::SIGTERM).expect("a signal");
    ends_with_the_terminal_given_back(&mut view, SOON);
}

#[test]
fn who_ends_a_stopped_view_need_not_bring_it_back_first() {
    let mut view = view(&[]);
    view.on.signal(libc::SIGTSTP).expect("a signal");
    wait_stopped(&view);
    // As the kill of a shell does with a stopped job.
    view.on.signal(libc::SIGTERM).expect("a signal");
    view.on.signal(libc::SIGCONT).expect("a signal");
    let status = ends_with_the_terminal_given_back(&mut view, SOON);
    assert_eq!(status.code(), Some(0), "{status}");
}

#[test]
fn who_ends_it_on_its_way_to_a_stop_need_not_bring_it_back() {
    let mut view = view(&["--delay", "0.1"]);
    fill(&mut view);
    // Keys come before signals: until they are taken. Giving such a terminal back takes 0.3 s.
    sleep(Duration::from_secs(5));
    view.on.signal(libc::SIGTSTP).expect("a signal");
    sleep(Duration::from_millis(150));
    view.on.signal(libc::SIGTERM).expect("a signal");
    view.on.signal(libc::SIGCONT).expect("a signal");
    let status = ends_with_the_terminal_given_back(&mut view, SOON);
    assert_eq!(status.code(), Some(0), "{status}");
}

#[test]
fn the_key_that_stops_it_does_not_where_no_shell_could_bring_it_back() {
    // The terminal's first process has no shell, as the command of ssh, or in a container.
    let mut view = view(&[]);
    view.on.forget();
    view.on.press(b"\x1a").expect("a key");
    view.on
        .wait_for("\x1b[?1049h", PATIENCE)
        .expect("the screen again");
    view.on.wait_for(SHOWN, PATIENCE).expect("the view");
    view.on.press(b"q").expect("a key");
    let status = ends_with_the_terminal_given_back(&mut view, SOON);
    assert_eq!(status.code(), Some(0), "{status}");
}

#[test]
fn a_window_that_is_closed_ends_it() {
    let mut view = view(&[]);
    view.on.hang_up();
    let status = view.on.wait(SOON).expect("it ends");
    assert_eq!(status.code(), Some(1), "{status}");
}

#[test]
fn it_draws_at_any_size() {
    let mut view = view(&[]);
    for size in [(1, 1), (20, 5), (400, 100), (1, 100), (400, 1), (80, 24)] {
        view.on.forget();
        view.on.resize(size).expect("a size");
        view.on.wait_for("\x1b[", PATIENCE).expect("a frame");
        for key in [&b"2"[..], b"?", b"\x1b", b"\r", b"\x1b", b"1"] {
            view.on.press(key).expect("a key");
            sleep(Duration::from_millis(30));
        }
        view.on.alive().expect("it goes on");
    }
    view.on.signal(libc::SIGTERM).expect("a signal");
    ends_with_the_terminal_given_back(&mut view, SOON);
}

#[test]
fn without_colours_and_without_utf8_there_are_neither() {
    let mut view = view_with(&[], |command| {
        command.env("NO_COLOR", "1").env("LC_ALL", "C");
    });
    view.on.signal(libc::SIGTERM).expect("a signal");
    ends_with_the_terminal_given_back(&mut view, SOON);
    let output = view.on.output();
    assert!(output.is_ascii(), "{:?}", String::from_utf8_lossy(&output));
    let text = String::from_utf8_lossy(&output);
    for colour in ["\x1b[38;", "\x1b[48;", "\x1b[31m", "\x1b[32m"] {
        assert!(!text.contains(colour), "{colour:?}");
    }
}

#[test]
fn what_the_settings_hold_reaches_no_terminal_raw() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().join("rdmatop");
    fs::create_dir(&dir).expect("a directory");
    fs::write(dir.join("config.toml"), "theme = \"\\u001b]0;owned\\u0007\"\n").expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdmatop"));
    command.arg("--no-ebpf").env("XDG_CONFIG_HOME", home.path());
    let mut on = OnTerminal::start(&mut command).expect("a terminal");
    on.wait_for(SHOWN, PATIENCE).expect("the view");
    on.wait_for("line 1", PATIENCE).expect("the reason");
    // A change, which is not kept: that is said on stderr at the end.
    on.press(b"t").expect("a key");
    sleep(Duration::from_millis(300));
    on.press(b"q").expect("a key");
    on.wait(PATIENCE).expect("it ends");
    on.drain(PATIENCE).expect("all of the output");
    let output = on.output();
    assert!(!output.contains(&7) && !String::from_utf8_lossy(&output).contains("\x1b]"));
    assert!(String::from_utf8_lossy(&output).contains("is not kept"));
}

#[test]
fn hostile_arguments_are_shown_and_not_obeyed() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let hostile = OsStr::from_bytes(b"--\x1b]0;owned\x07\x9b31m\xe2\x80\xae\xff");
    for args in [
        vec![hostile],
        vec![OsStr::new("--pid"), hostile],
        vec![OsStr::new("--event"), OsStr::from_bytes(b"\x1b[31m")],
        vec![OsStr::new("--sort"), OsStr::from_bytes(b"\x1b[31m")],
        vec![OsStr::new("lab"), OsStr::from_bytes(b"\x1b[31m")],
        vec![
            OsStr::new("--once"),
            OsStr::new("--device"),
            OsStr::from_bytes(b"\x1b[31m"),
        ],
        vec![OsStr::from_bytes(b"\x1b[31m")],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_rdmatop"))
            .args(&args)
            .stdin(Stdio::null())
            .output()
            .expect("the binary runs");
        let mut said = output.stderr.clone();
        assert_eq!(said.pop(), Some(b'\n'), "{args:?}");
        let said = String::from_utf8(said).expect("UTF-8");
        assert!(
            !said.chars().any(|c| c.is_control() || c == '\u{202e}'),
            "{said:?}"
        );
    }
}

/// A shell with job control.
///
/// Without `set -b`: a bash that tells of jobs at once prints in its signal handler, and was seen to die of
/// that ("malloc assertion failure"). What became of a job is asked of the kernel ([`STOPPED`]) or of `wait`.
fn shell(home: &tempfile::TempDir) -> OnTerminal {
    let mut bash = Command::new("bash");
    bash.args(["--norc", "--noprofile", "-i"])
        .env("XDG_CONFIG_HOME", home.path())
        .env("LC_ALL", "C.UTF-8");
    let mut on = OnTerminal::start(&mut bash).expect("a shell");
    // What is typed is echoed: the marks are spelt so that only their output has them whole.
    on.press(b"PS1='REA''DY> '\n").expect("a line");
    on.wait_for("READY> ", PATIENCE).expect("the shell");
    on.forget();
    on
}

/// Waits until the last job of the background is stopped (state T of /proc/PID/stat).
const STOPPED: &str = "until [[ $(</proc/$!/stat) == *') T '* ]]; do sleep 0.1; done; echo HAL''TED\n";

/// Ends the stopped job, and waits until it is gone. Its status is not asked for: bash may take a late report
/// that the job is stopped for the answer.
const END_IT: &str = "P=$!; kill %1; while [[ -e /proc/$P ]]; do sleep 0.1; done; echo GO''NE\n";

fn types(on: &mut OnTerminal, line: &str, wanted: &str) {
    on.press(line.as_bytes()).expect("a line");
    on.wait_for(wanted, PATIENCE).expect(line);
    on.forget();
}

/// Ends the last job of the background as a shell ends one that it takes for a running one: by a SIGTERM
/// without a SIGCONT.
const END_RUNNING: &str = "P=$!; env kill $P; while [[ -e /proc/$P ]]; do sleep 0.1; done; echo GO''NE\n";

#[test]
fn in_the_background_it_draws_nothing_comes_back_and_can_be_ended() {
    let home = tempfile::tempdir().expect("a directory");
    // What is changed cannot be kept, which a last line says.
    fs::create_dir(home.path().join("rdmatop")).expect("a directory");
    fs::write(home.path().join("rdmatop/config.toml"), "no = such").expect("a file");
    let mut on = shell(&home);
    let top = env!("CARGO_BIN_EXE_rdmatop");
    types(&mut on, &format!("{top} --no-ebpf --delay 0.1\n"), SHOWN);
    on.press(b"t").expect("a key");
    let to_the_background = |on: &mut OnTerminal| {
        types(on, "\x1a", "Stopped");
        types(on, "bg\n", "READY> ");
        // Longer than it takes to see that it goes on, and than several frames.
        types(on, "sleep 1; echo TY''PED\n", "TYPED");
        sleep(Duration::from_secs(1));
        let drawn = String::from_utf8_lossy(&on.output()).into_owned();
        assert!(
            !drawn.contains("\x1b[?1049h") && !drawn.contains(SHOWN),
            "{drawn:?}"
        );
    };
    to_the_background(&mut on);
    types(&mut on, "fg\n", SHOWN);
    to_the_background(&mut on);
    // The last line would stop it in such a terminal.
    types(&mut on, "stty tostop; echo S''ET\n", "SET");
    types(&mut on, END_RUNNING, "GONE");
    types(&mut on, "exit\n", "exit");
}

#[test]
fn what_it_prints_in_the_background_keeps_no_signal_from_ending_it() {
    let home = tempfile::tempdir().expect("a directory");
    let mut on = shell(&home);
    let top = env!("CARGO_BIN_EXE_rdmatop");
    types(&mut on, "stty tostop; echo S''ET\n", "SET");
    types(
        &mut on,
        &format!("{top} --no-ebpf --trace & sleep 2; echo SL''EPT\n"),
        "SLEPT",
    );
    types(&mut on, END_RUNNING, "GONE");
    types(&mut on, "exit\n", "exit");
}

#[test]
fn a_shell_stops_it_brings_it_back_and_ends_it_while_it_is_stopped() {
    let home = tempfile::tempdir().expect("a directory");
    let mut on = shell(&home);
    let top = env!("CARGO_BIN_EXE_rdmatop");
    types(&mut on, &format!("{top} --no-ebpf\n"), SHOWN);
    types(&mut on, "\x1a", "Stopped");
    types(&mut on, "echo TY''PED\n", "TYPED");
    types(&mut on, "fg\n", SHOWN);
    types(&mut on, "\x1a", "Stopped");
    types(
        &mut on,
        "P=$(jobs -p); kill %1; while [[ -e /proc/$P ]]; do sleep 0.1; done; echo GO''NE\n",
        "GONE",
    );
    types(&mut on, "exit\n", "exit");
}

#[test]
fn who_starts_it_in_the_background_can_end_it_there() {
    let home = tempfile::tempdir().expect("a directory");
    let mut on = shell(&home);
    let top = env!("CARGO_BIN_EXE_rdmatop");
    types(&mut on, &format!("{top} --no-ebpf &\n"), "READY> ");
    types(&mut on, STOPPED, "HALTED");
    types(&mut on, END_IT, "GONE");
    types(&mut on, &format!("{top} --no-ebpf &\n"), "READY> ");
    types(&mut on, STOPPED, "HALTED");
    types(&mut on, "fg\n", SHOWN);
    types(&mut on, "q", "READY> ");
    types(&mut on, "echo EN''DED $?\n", "ENDED 0");
    types(&mut on, "exit\n", "exit");
}
