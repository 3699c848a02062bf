//! The real binary on this machine. What needs a machine without RDMA says so and passes over one that has
//! it.

#![expect(clippy::print_stderr, reason = "a test that is passed over says why")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn rdmatop() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rdmatop"));
    command
        .env_remove("NO_COLOR")
        .env_remove("TERM")
        .stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    rdmatop().args(args).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// The only line on stderr.
fn line(output: &Output) -> &str {
    let stderr = text(&output.stderr);
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr.trim_end()
}

fn without_rdma() -> bool {
    let none = !Path::new("/sys/class/infiniband").exists();
    if !none {
        eprintln!("skipped: this machine has RDMA");
    }
    none
}

#[test]
fn the_help_is_stable() {
    let output = run(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    insta::assert_snapshot!(text(&output.stdout));
    let output = run(&["probes", "--help"]);
    insta::assert_snapshot!(text(&output.stdout));
    let output = run(&["doctor", "--help"]);
    insta::assert_snapshot!(text(&output.stdout));
}

/// A misspelt key elsewhere in the file must not end silently that a device is left alone.
#[test]
fn settings_that_cannot_be_used_are_named_by_every_command() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = home.path().join("rdmatop");
    fs::create_dir(&dir).expect("a directory");
    fs::write(
        dir.join("config.toml"),
        "exclude_device = [\"mlx5_*\"]\nthme = \"dark\"\n",
    )
    .expect("a file");
    let log = home.path().join("log");
    fs::write(&log, "").expect("a file");
    let log = log.to_str().expect("UTF-8");
    for args in [
        &["doctor"][..],
        &["nccl-log", "--for", "0", log],
        &["--once"],
        &["check", "--for", "1"],
    ] {
        let output = rdmatop().args(args).env("XDG_CONFIG_HOME", home.path()).output();
        let output = output.expect("the binary runs");
        let first = text(&output.stderr).lines().next().unwrap_or_default();
        assert!(
            first.contains("`thme`") && first.ends_with("no device is left alone"),
            "{args:?}: {first}"
        );
    }
}

#[test]
fn doctor_finds_no_rdma_a_problem_and_an_absent_process_neither() {
    if !without_rdma() {
        return;
    }
    let output = run(&["doctor"]);
    let page = text(&output.stdout);
    assert_eq!(output.status.code(), Some(2), "{page}");
    assert!(
        page.starts_with("doctor: ") && page.lines().all(|line| line.chars().count() <= 80),
        "{page}"
    );
    assert!(!page.contains('\x1b'), "{page}");
    let output = run(&["doctor", "--pid", "4194305"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(line(&output).contains("no process 4194305") && output.stdout.is_empty());
    let own = std::process::id().to_string();
    let json: serde_json::Value =
        serde_json::from_slice(&run(&["doctor", "--json", "--pid", &own]).stdout).unwrap();
    assert_eq!(
        (json["status"].as_str(), json["pid"].as_u64()),
        (Some("fail"), Some(std::process::id().into()))
    );
}

/// Values of a line of the log, by key.
fn pairs(line: &str) -> BTreeMap<&str, &str> {
    let mut pairs = BTreeMap::new();
    let mut rest = line;
    while let Some((key, value)) = rest.split_once('=') {
        let (value, after) = match value.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').expect("the other quote"),
            None => value.split_at(value.find(' ').unwrap_or(value.len())),
        };
        pairs.insert(key, value);
        rest = after.trim_start();
    }
    assert_eq!(rest, "", "{line}");
    pairs
}

#[test]
fn the_log_has_what_was_refused_and_no_line_of_it_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let logged = |value: &str| {
        let mut command = rdmatop();
        command.args(["--once", "--json", "--pid", "4194304"]);
        command
            .env("RDMATOP_LOG", value)
            .output()
            .expect("the binary runs")
    };
    let silent = run(&["--once", "--json", "--pid", "4194304"]);
    let output = logged(&format!("{}:debug", path.display()));
    assert_eq!(output.status.code(), silent.status.code());
    assert_eq!(
        text(&output.stderr),
        text(&silent.stderr),
        "nothing is on the screen"
    );
    assert!(!text(&output.stdout).contains("level=") && !text(&output.stderr).contains("level="));
    let facts = fs::metadata(&path).unwrap();
    assert_eq!(facts.permissions().mode() & 0o7777, 0o600);
    let log = fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = log.lines().map(pairs).collect();
    let messages: Vec<&str> = lines.iter().map(|line| line["msg"]).collect();
    assert_eq!(messages.first(), Some(&"start"), "{log}");
    assert_eq!(messages.last(), Some(&"end"), "{log}");
    for line in &lines {
        let seconds: f64 = line["time"].parse().unwrap();
        assert!(seconds > 1.6e9 && line.contains_key("from"), "{line:?}");
    }
    if without_rdma() {
        // Why it ends at once. The loader's thread may not have come to its line by then.
        let stopped = lines.iter().find(|line| line["msg"] == "stopped");
        assert!(stopped.is_some_and(|line| !line["why"].is_empty()), "{log}");
    }
    // A file that others can read is left as it is, and one line says why there is no log.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let output = logged(path.to_str().unwrap());
    assert_eq!(output.status.code(), silent.status.code());
    let stderr = text(&output.stderr);
    assert!(
        stderr.starts_with("rdmatop: no log is written: ")
            && stderr.contains("not a regular file of this user alone"),
        "{stderr}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), log);
}

#[test]
fn without_a_terminal_for_keys_the_view_says_that() {
    use std::os::fd::{FromRawFd, OwnedFd};
    use std::os::unix::process::CommandExt;
    let (mut ours, mut its) = (-1, -1);
    let none = std::ptr::null_mut();
    // SAFETY: the two numbers are written, and nothing else is given.
    let opened = unsafe { libc::openpty(&raw mut ours, &raw mut its, none, none.cast(), none.cast()) };
    assert_eq!(opened, 0);
    // SAFETY: both have just been opened, for us.
    let (_ours, its) = unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(its)) };
    let mut command = rdmatop();
    command.env("TERM", "xterm").stdout(its).stderr(Stdio::piped());
    // SAFETY: setsid(2) is all that happens between fork and exec.
    unsafe {
        command.pre_exec(|| {
            if libc::setsid() < 0 {
                Err(std::io::Error::last_os_error())
            } else {
                Ok(())
            }
        })
    };
    let output = command
        .spawn()
        .and_then(std::process::Child::wait_with_output)
        .expect("the binary runs");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.starts_with("rdmatop: no keys:") && stderr.lines().count() == 1,
        "{stderr}"
    );
}

#[test]
fn under_another_name_it_says_the_same() {
    use std::os::unix::process::CommandExt;
    for (args, wanted) in [
        (
            &["lab"][..],
            "rdmatop: lab needs a command: up, down, status, run; see rdmatop lab --help",
        ),
        (
            &["--pid", "-1"],
            "rdmatop: invalid value '-1' for '--pid <PID>': a process id, a number from 1, is accepted; --comm takes a \
             name; see rdmatop --help",
        ),
    ] {
        let output = rdmatop()
            .arg0("/opt/rdmatop-0.1")
            .args(args)
            .output()
            .expect("the binary runs");
        assert_eq!((output.status.code(), line(&output)), (Some(2), wanted));
    }
}

#[test]
fn the_version_names_the_program() {
    let output = run(&["--version"]);
    assert_eq!(
        text(&output.stdout),
        concat!("rdmatop ", env!("CARGO_PKG_VERSION"), " (rdmatop-bpf)\n")
    );
}

#[test]
fn a_usage_error_is_one_line_and_exit_code_2() {
    let cases: [&[&str]; 18] = [
        &["--nonsense"],
        &["--trace", "--evnt", "qp"],
        &["nonsense"],
        &["--delay", "0"],
        &["--delay", "-1"],
        &["--delay", "NaN"],
        &["--delay", "3601"],
        &["--delay"],
        &["--pid", "0"],
        &["--pid", "x"],
        &["--comm", ""],
        &["--once", "--trace"],
        &["--trace", "--event", "qp_creat"],
        &["--trace", "--no-ebpf"],
        &["--once", "--for", "1"],
        &["--json"],
        &["--no-ebpf", "--attach", "kprobe"],
        &["lab"],
    ];
    let mut lines = String::new();
    for args in cases {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
        lines.extend([
            args.join(" "),
            "\n  ".to_owned(),
            line(&output).to_owned(),
            "\n".to_owned(),
        ]);
    }
    insta::assert_snapshot!(lines);
}

#[test]
fn a_live_view_without_a_terminal_says_what_to_use_instead() {
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(line(&output).contains("--once") && line(&output).contains("--trace"));
}

#[test]
fn one_sample_without_rdma_is_one_line_and_exit_code_3() {
    if !without_rdma() {
        return;
    }
    let begin = Instant::now();
    let output = run(&["--once", "--delay", "60"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(output.stdout.is_empty());
    assert!(line(&output).starts_with("rdmatop: No RDMA"), "{}", line(&output));
    assert!(
        begin.elapsed() < Duration::from_secs(30),
        "it does not wait for what cannot come"
    );
}

#[test]
fn json_without_rdma_is_a_snapshot_with_empty_lists() {
    if !without_rdma() {
        return;
    }
    let output = run(&["--once", "--json"]);
    assert_eq!(output.status.code(), Some(3));
    line(&output);
    assert_eq!(text(&output.stdout).lines().count(), 1);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(value["schema"], 1);
    for list in ["devices", "ports", "processes", "qps", "verbs"] {
        assert_eq!(value[list].as_array().map(Vec::len), Some(0), "{list}");
    }
    // That there is no RDMA is a note, and no read that failed.
    assert_eq!(value["health"]["errors"], serde_json::json!([]));
    assert!(
        value["time"]
            .as_u64()
            .is_some_and(|time| time > 1_700_000_000_000_000_000)
    );
}

#[test]
fn a_check_without_rdma_is_unknown_in_json() {
    if !without_rdma() {
        return;
    }
    for args in [&["check", "--json"][..], &["check", "--json", "--no-ebpf"]] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(3));
        line(&output);
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(value["verdict"], "unknown");
        assert_eq!(value["findings"], serde_json::json!([]));
    }
}

#[test]
fn a_trace_without_rdma_is_one_line_and_exit_code_3() {
    if !without_rdma() {
        return;
    }
    for args in [&["--trace"][..], &["--trace", "--json"]] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(3));
        assert!(output.stdout.is_empty());
        line(&output);
    }
}

#[test]
fn probes_without_rdma_say_why() {
    if !without_rdma() {
        return;
    }
    let output = run(&["probes"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        text(&output.stdout).starts_with("eBPF: unavailable: "),
        "{}",
        text(&output.stdout)
    );
    let output = run(&["probes", "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(value["ebpf"]["state"], "unavailable");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = rdmatop()
        .args(["completions", "zsh"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn a_full_disk_is_a_failure_in_one_line() {
    let full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .expect("/dev/full");
    let output = rdmatop()
        .args(["man"])
        .stdout(full)
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(line(&output).contains("No space left"), "{}", line(&output));
}

#[test]
fn man_and_completions_write_their_files_and_are_in_the_help() {
    let output = run(&["man"]);
    assert!(text(&output.stdout).contains(".TH rdmatop 1"));
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output.stdout).contains("no-ebpf"), "{shell}");
    }
    let help = run(&["--help"]);
    let shown = |name: &str| {
        text(&help.stdout)
            .lines()
            .any(|line| line.split_whitespace().next() == Some(name))
    };
    assert!(shown("probes") && shown("man") && shown("completions"));
}

#[test]
fn help_into_a_closed_pipe_is_quiet() {
    let mut child = rdmatop()
        .arg("--help")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("runs");
    let mut first = String::new();
    let mut stdout = BufReader::new(child.stdout.take().expect("stdout"));
    stdout.read_line(&mut first).expect("a line");
    drop(stdout);
    let mut stderr = String::new();
    child
        .stderr
        .take()
        .expect("stderr")
        .read_to_string(&mut stderr)
        .expect("stderr");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert_eq!(stderr, "");
}

/// The commands of docs/learn.md, in its blocks and in its text, without what else stands on their lines.
fn commands_of_the_walk() -> Vec<Vec<&'static str>> {
    let page = include_str!("../../docs/learn.md");
    let blocks = page
        .lines()
        .filter_map(|line| line.split_once("$ sudo rdmatop ").map(|(_, command)| command));
    // A span of code may go on in the next line.
    let text = page.split('`').filter(|span| !span.contains("$ "));
    let spans = text.filter_map(|span| span.trim_start_matches("sudo ").strip_prefix("rdmatop "));
    let words = |command: &'static str| {
        let command = command.split(" | ").next().unwrap_or_default();
        command.split_whitespace().collect()
    };
    blocks.chain(spans).map(words).collect()
}

#[test]
fn the_walk_types_commands_that_there_are() {
    let commands = commands_of_the_walk();
    assert!(commands.len() > 10, "{commands:?}");
    for command in commands {
        // What is before it is parsed, and an option or a scenario that is not known is an error.
        let with_help = [command.as_slice(), &["--help"]].concat();
        let output = run(&with_help);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{command:?}: {}",
            text(&output.stderr)
        );
        assert!(output.stderr.is_empty(), "{command:?}: {}", text(&output.stderr));
    }
    let unknown = run(&["lab", "run", "no-such-scenario", "--help"]);
    assert_eq!(unknown.status.code(), Some(2), "--help hides what is not known");
}
