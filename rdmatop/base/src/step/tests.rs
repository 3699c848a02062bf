//! What a shell makes of steps: each name is one word of it, and nothing of a name runs.

mod commands;
mod remedies;
mod unquoted;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;

use self::commands::commands;
use super::{NextStep, ShellWord, quoted, step};

/// Names that mean something to a shell.
const HOSTILE: &[&str] = &[
    ";id>&2;",
    "$(reboot)",
    "`reboot`",
    "a\"b",
    "*",
    "~",
    "#x",
    "a&b",
    "a|b",
    "{a,b}",
    "<x",
    "$IFS",
    "=x",
    "日本",
];

/// A text that contains every hostile character.
fn hostile() -> String {
    HOSTILE.concat()
}

/// The words that a shell gives the programs of `command`, which are not run: each is a function that prints
/// its words.
fn words(command: &str) -> Result<Vec<String>, String> {
    const PROGRAMS: &[&str] = &[
        "awk", "capsh", "cat", "cut", "dcb", "docker", "echo", "ethtool", "free", "grep", "ibstat", "ip",
        "kill", "lspci", "mlxlink", "nerdctl", "ping", "podman", "printf", "prlimit", "ps", "rdma",
        "rdmatop", "sort", "ss", "sudo", "sysctl", "tail", "tc", "top", "ulimit", "uniq",
    ];
    let mut script =
        "exec 3>&1; words() { for word in \"$@\"; do command printf '%s\\0' \"$word\" >&3; done; }\n"
            .to_owned();
    for program in PROGRAMS {
        let _ = writeln!(script, "{program}() {{ words {program} \"$@\"; }}");
    }
    let ran = Command::new("/bin/sh")
        .args(["-c", &format!("{script}{command}")])
        .env_clear()
        .env("PATH", "/nowhere")
        .current_dir("/proc/self")
        .output()
        .map_err(|error| error.to_string())?;
    let error = String::from_utf8_lossy(&ran.stderr);
    if !error.is_empty() {
        return Err(error.into_owned());
    }
    let all = String::from_utf8_lossy(&ran.stdout).into_owned();
    Ok(all.split_terminator('\0').map(str::to_owned).collect())
}

/// The templates of all steps in a source file.
fn templates(text: &str) -> Vec<String> {
    let calls = text.split("step!(").skip(1);
    let literals = calls.filter_map(|call| {
        let call = call.trim_start();
        let inner = call.strip_prefix('"')?;
        let mut escaped = false;
        let end = inner.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        })?;
        let literal: syn::LitStr = syn::parse_str(&call[..end + 2]).ok()?;
        Some(literal.value())
    });
    literals.collect()
}

/// The directory of the program's crates.
pub(super) fn program() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Rust files below `dir`.
pub(super) fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Each command of this program that has a place for a name, in the words of its template.
fn all_commands() -> BTreeMap<String, PathBuf> {
    let program = program();
    let crates = fs::read_dir(&program).unwrap();
    let crates = crates.map(|entry| entry.unwrap().path().join("src"));
    let mut files = Vec::new();
    for src in crates.filter(|src| src.is_dir()).chain([program.join("src")]) {
        sources(&src, &mut files);
    }
    let own = program.join("base/src");
    files.retain(|path| !path.starts_with(own.join("step")) && *path != own.join("step.rs"));
    let mut out = BTreeMap::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let found = templates(&text);
        assert_eq!(found.len(), text.matches("step!(").count(), "{}", file.display());
        for template in found {
            for command in commands(&template)
                .into_iter()
                .filter(|command| command.contains("{}"))
            {
                out.insert(command.to_owned(), file.clone());
            }
        }
    }
    out
}

#[test]
fn in_each_command_a_hostile_name_is_part_of_one_word() {
    let all = all_commands();
    assert!(all.len() > 30, "{all:#?}");
    let name = ShellWord::new(&hostile(), "NAME").to_string();
    for (command, file) in all {
        let filled = command.replace("{}", &name);
        let got = words(&filled).unwrap_or_else(|error| panic!("{}: {filled}: {error}", file.display()));
        let is_whole: usize = got.iter().map(|word| word.matches(&hostile()).count()).sum();
        assert_eq!(
            is_whole,
            command.matches("{}").count(),
            "{}: {filled}: {got:?}",
            file.display()
        );
        // Nothing of the name became a word of its own.
        let plain = words(&command.replace("{}", "x")).unwrap();
        assert_eq!(got.len(), plain.len(), "{filled}: {got:?}");
    }
}

#[test]
fn a_name_is_one_word_as_it_is() {
    for name in HOSTILE.iter().copied().chain([
        "mlx5_0",
        "eth0.100",
        "user@1000.service",
        r"a\x2db",
        "0000:3b:00.0",
    ]) {
        let command = step!("sudo ip link set dev {} up", ShellWord::netdev(name));
        assert_eq!(
            words(&command).unwrap(),
            ["sudo", "ip", "link", "set", "dev", name, "up"]
        );
    }
    for plain in ["mlx5_0", "eth0.100", "a@b:c", "/a/b-c"] {
        assert_eq!(ShellWord::netdev(plain).to_string(), plain);
    }
    assert_eq!(ShellWord::netdev("a;b").to_string(), "'a;b'");
    assert_eq!(ShellWord::said("slurm 7.0").to_string(), "slurm 7.0");
    assert_eq!(ShellWord::said("my prog;").to_string(), "'my prog;'");
    assert_eq!(ShellWord::said("it's").to_string(), r"'it'\''s'");
}

#[test]
fn a_name_that_cannot_be_pasted_is_left_out_and_the_step_says_so() {
    for name in [
        "",
        "-x",
        "--all",
        "a b",
        "a\tb",
        "a\nb",
        "\u{a0}",
        "\x1b[31m",
        r"\x1b[31m",
        r"a\u{202e}b",
        "a\u{202e}b",
        r"\xff",
        // What fish and csh take out of single quotes.
        "a'b",
        r"x\';id;#",
        r"a\b",
        r"a\",
        r"a\\x2d",
        "!x",
    ] {
        assert_eq!(
            step!(
                "ip link show dev {}; ip link show dev {}",
                ShellWord::netdev(name),
                ShellWord::netdev(name)
            ),
            "ip link show dev NETDEV; ip link show dev NETDEV   # NETDEV stands for the real name, which is not safe to paste",
            "{name:?}"
        );
    }
    assert_eq!(
        step!("cat /sys/fs/cgroup{}/rdma.max", ShellWord::cgroup("/a b")),
        "cat /sys/fs/cgroup/CGROUP/rdma.max   # CGROUP stands for the real name, which is not safe to paste"
    );
    assert_eq!(
        step!("ethtool {}", ShellWord::or(None, "NETDEV")),
        "ethtool NETDEV",
        "none is known"
    );
}

#[test]
fn a_step_is_its_template_with_the_parts_in_their_places() {
    let inner: NextStep = step!("{} of {}", 1_u32, "all");
    assert_eq!(
        step!("a {print $2} {}, {}.", inner, 7_u64),
        "a {print $2} 1 of all, 7."
    );
    assert_eq!(serde_json::to_string(&step!("x {}", 1_u32)).unwrap(), "\"x 1\"");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_name_is_one_word_or_none(name in "[ -~]{1,12}|\\PC{1,12}|[\\x00-\u{2ff}]{1,12}") {
        if let Some(word) = quoted(&name) {
            prop_assert_eq!(words(&format!("sudo {word}")).unwrap(), ["sudo", &*name]);
            prop_assert!(!word.starts_with('-') && !word.contains(char::is_whitespace));
        }
    }
}

#[test]
fn a_step_stands_behind_a_sentence_as_its_first_letter_asks() {
    let after = |step: &'static str| NextStep::from(step).after("no driver is loaded");
    assert_eq!(after("modprobe ib_core"), "no driver is loaded; modprobe ib_core");
    assert_eq!(after("Nothing to do"), "no driver is loaded. Nothing to do");
    assert_eq!(after(""), "no driver is loaded.");
}
