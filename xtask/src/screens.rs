//! `cargo xtask screens`: the pictures of the documentation, taken from real runs in the lab.

use std::{env, fs, process::Command};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{paths, setup, step};

/// `cargo xtask screens`
#[derive(Args, Clone, Default)]
pub(crate) struct ScreensArgs {
    /// Kernel of the lab
    #[arg(long, default_value = "6.12")]
    kernel: String,
}

/// Two pairs of perftest, and the live view in tmux: one capture a tab and size.
const SCRIPT: &str = r#"
out=$RDMATOP_LAB_OUT
pair() {
    tool=$1; port=$2; shift 2
    timeout 150 "$tool" -d rxe0 -x 1 -p "$port" -D 120 "$@" >/dev/null 2>&1 &
    sleep 2
    timeout 150 "$tool" -d rxe0 -x 1 -p "$port" -D 120 "$@" 10.77.0.1 >/dev/null 2>&1 &
}
view() { tmux -f /dev/null new-session -d -s v -x "$1" -y "$2" "$RDMATOP"; }
shot() { sleep 3; tmux capture-pane -p -t v > "$out/$1.txt"; }
view 120 30
sleep 15
pair ib_send_bw 18515 -s 4096 -q 2
pair ib_write_bw 18516 -s 65536
sleep 20
shot processes
tmux send-keys -t v 2; shot qps
tmux send-keys -t v Enter Enter; shot qp
tmux send-keys -t v Escape 3; shot devices
tmux send-keys -t v 4; shot verbs
tmux send-keys -t v 5; shot trace
tmux send-keys -t v 6; shot probes
tmux send-keys -t v 1; tmux resize-window -t v -x 80 -y 24; shot processes-80x24
tmux send-keys -t v q
"#;

/// Names of the captures.
const SHOTS: [&str; 8] = [
    "processes",
    "qps",
    "qp",
    "devices",
    "verbs",
    "trace",
    "probes",
    "processes-80x24",
];

/// Takes the screens and puts them under docs/screens.
pub(crate) fn main(args: &ScreensArgs) -> Result<u8> {
    setup::ensure(
        setup::SetupArgs {
            no_kernels: true,
            ..setup::SetupArgs::default()
        },
        true,
    )?;
    let mut build = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build
        .args(["build", "--quiet", "--release", "--package", "rdmatop"])
        .current_dir(paths::repo());
    step::run("build rdmatop", &mut build)?;
    let out = paths::target().join("screens");
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let mut lab = Command::new(env::current_exe().context("cannot tell what program this is")?);
    lab.args([
        "lab",
        "run",
        "--kernel",
        &args.kernel,
        "--timeout",
        "240",
        "--",
        "sh",
        "-c",
        SCRIPT,
    ]);
    lab.env("RDMATOP_LAB_OUT", &out);
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
    println!("docs/screens: {}", SHOTS.join(", "));
    Ok(0)
}
