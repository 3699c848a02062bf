//! `cargo xtask screens`: makes the screens in the documentation from real runs in the lab.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{lab, paths, setup, step, test};

/// `cargo xtask screens`
#[derive(Args, Clone, Default)]
pub(crate) struct ScreensArgs {
    /// Kernel of the lab
    #[arg(long, default_value = "6.12")]
    kernel: String,
    /// Use this rdmatop instead of building one
    #[arg(long)]
    rdmatop: Option<PathBuf>,
}

/// Runs the live view in tmux under perftest: first `ib_write_bw` alone, then a second pair. Keys after
/// Escape are delayed, because a terminal reads both together as Alt.
const SCRIPT: &str = r#"
out=$RDMATOP_LAB_OUT
export XDG_CONFIG_HOME=/tmp/rdmatop-screens LC_ALL=C.UTF-8
pair() {
    tool=$1; port=$2; shift 2
    timeout 900 "$tool" -d rxe0 -x 1 -p "$port" -D 900 "$@" >/dev/null 2>&1 &
    ends="$ends $!"
    sleep 2
    timeout 900 "$tool" -d rxe0 -x 1 -p "$port" -D 900 "$@" 10.77.0.1 >/dev/null 2>&1 &
    ends="$! $ends"
}
key() { for k; do tmux send-keys -t v "$k"; sleep 1; done; }
size() { tmux resize-window -t v -x "$1" -y "$2"; sleep 1; }
shot() { sleep 2; tmux capture-pane -p -t v > "$out/$1.txt"; tmux capture-pane -e -p -t v > "$out/$1.ansi"; }
tmux -f /dev/null new-session -d -s v -x 80 -y 24 "$RDMATOP"
sleep 15
pair ib_write_bw 18516 -s 65536
sleep 15
shot processes-80x24
key 2; shot qps-80x24
pair ib_send_bw 18515 -s 4096 -q 2
sleep 15
size 120 30
key 1; shot processes
key Enter Enter; shot process
key Escape 2; shot qps
key j Enter Enter; shot qp
key Escape 3; shot devices
key Enter Enter; shot port
key Escape 4; shot verbs
key 5; shot trace
key 6; shot probes
key '?'; shot help
key Escape 1; size 200 50; shot processes-200x50
size 40 12; shot processes-40x12
# Senders first, each alone: the guest must not go down under traffic.
for end in $ends; do kill "$end"; sleep 2; done
key q
"#;

/// Names of the captures.
const SHOTS: [&str; 14] = [
    "processes-80x24",
    "qps-80x24",
    "processes",
    "process",
    "qps",
    "qp",
    "devices",
    "port",
    "verbs",
    "trace",
    "probes",
    "help",
    "processes-200x50",
    "processes-40x12",
];

/// The capture shown in README.md, and the marks around it.
const README_SHOT: &str = "processes-80x24";
const MARKS: [&str; 2] = ["<!-- screen -->", "<!-- end of screen -->"];

/// Captures the screens and writes them to docs/screens.
pub(crate) fn main(args: &ScreensArgs) -> Result<u8> {
    setup::without_kernels()?;
    let rdmatop = match &args.rdmatop {
        Some(built) => built.clone(),
        None => test::program(test::Profile::Lab)?,
    };
    let out = paths::target().join("screens");
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let mut lab = lab::command(lab::kernel::find(&args.kernel)?, 420, &["--", "sh", "-c", SCRIPT])?;
    lab.env("RDMATOP_LAB_OUT", &out).env("RDMATOP", &rdmatop);
    step::run("screens from the lab", &mut lab)?;
    let docs = paths::repo().join("docs/screens");
    fs::create_dir_all(&docs).with_context(|| format!("cannot make {}", docs.display()))?;
    for name in SHOTS {
        let text = fs::read_to_string(out.join(format!("{name}.txt")))
            .with_context(|| format!("no screen {name}"))?;
        if text.trim().is_empty() {
            bail!("the screen {name} is empty");
        }
        let mut text = text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
        text.push('\n');
        fs::write(docs.join(format!("{name}.txt")), text)?;
    }
    into_readme(&docs.join(format!("{README_SHOT}.txt")))?;
    println!("README.md; docs/screens: {}", SHOTS.join(", "));
    Ok(0)
}

/// Puts a capture between its marks in README.md, without empty lines.
fn into_readme(shot: &Path) -> Result<()> {
    let path = paths::repo().join("README.md");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let shot = fs::read_to_string(shot).with_context(|| format!("cannot read {}", shot.display()))?;
    let text = between_marks(&text, &shot).context("README.md has no place for the screen")?;
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns `text` with the non-empty lines of `shot` between the marks.
fn between_marks(text: &str, shot: &str) -> Option<String> {
    let (before, rest) = text.split_once(MARKS[0])?;
    let (_, after) = rest.split_once(MARKS[1])?;
    let lines: Vec<&str> = shot.lines().filter(|line| !line.is_empty()).collect();
    Some(format!(
        "{before}{}\n```\n{}\n```\n{}{after}",
        MARKS[0],
        lines.join("\n"),
        MARKS[1]
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_goes_between_its_marks_and_nothing_else_changes() {
        let text = format!("a\n{}\nold\n{}\nb\n", MARKS[0], MARKS[1]);
        let new = between_marks(&text, "1\n\n2\n").unwrap();
        assert_eq!(new, format!("a\n{}\n```\n1\n2\n```\n{}\nb\n", MARKS[0], MARKS[1]));
        assert_eq!(between_marks(&new, "1\n\n2\n").unwrap(), new);
        assert_eq!(between_marks("no marks", "1"), None);
    }
}
