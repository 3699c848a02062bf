//! Each command of docs/remedies.md is one that its program understands. The programs of the lab get the
//! commands as they are pasted; those that would change something get them in a form that changes nothing,
//! or on objects of the test's own.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{lab::Lab, rdmatop, rxe::Rxe, table::say};

#[path = "../../rdmatop/base/src/step/tests/commands.rs"]
mod commands;

const DEVICE: &str = "step0";
const NETDEV: &str = "extra7";

/// What a shell reads before each command.
const SAFELY: &str = r#"
sudo() { "$@"; }
apt() { command apt --simulate -o Dir::State::lists=/nowhere "$@"; }
capsh() { command capsh "$@" >&2; }
chmod() { command chmod "$1" "$(mktemp)"; }
mkdir() { command mkdir "$1" "$(mktemp -d)"; }
modprobe() { command modprobe --dry-run "$@"; }
mount() { command mount --fake "$@"; }
rdmatop() { "$PROGRAM" "$@" --help; }
setpci() { command setpci -D "$@"; }
sysctl() { for word; do case $word in -w) ;; *) command sysctl "${word%%=*}" ;; esac; done; }
tee() { command tee /dev/null; }
top() { command top -b -n 1 "$@"; }
udevadm() { command udevadm "$@" --dry-run; }
"#;

/// Programs that are in no small package of Debian.
const MAY_BE_ABSENT: [&str; 14] = [
    "dnf",
    "docker",
    "ibdiagnet",
    "mlnx_qos",
    "mlxconfig",
    "mlxfwmanager",
    "mlxlink",
    "nvidia-smi",
    "py-spy",
    "rdma_topo",
    "scontrol",
    "set_irq_affinity.sh",
    "set_irq_affinity_bynode.sh",
    "virsh",
];

/// What programs print when they do not understand their words.
const COMPLAINTS: [&str; 18] = [
    "not understood",
    "invalid value",
    "usage",
    "invalid option",
    "invalid signal",
    "unrecognized",
    "unknown",
    "unexpected",
    "illegal option",
    "bad command",
    "command line is not complete",
    "what is \"",
    "is a garbage",
    "syntax error",
    "option requires",
    "option is required",
    "is not a valid",
    "bad unit",
];

/// Commands that are wrong, one for each way in which a program complains: so a complaint is seen.
const WRONG: [&str; 34] = [
    "apt --no-such-option",
    "capsh --no-such-option",
    "dcb pfc shew dev lo",
    "dmesg --no-such-option",
    "ethtool --no-such-option lo",
    "free --no-such-option",
    "fuser --no-such-option",
    "grep --no-such-option",
    "ibdiagnet_is_no_such_program",
    "iblinkinfo --no-such-option",
    "ibstat --no-such-option",
    "ibv_devinfo --no-such-option",
    "ip lynk",
    "ip link show dev lo nothing",
    "ip link set dev lo mtuu 9000",
    "kill -NOSUCH 1",
    "lspci --no-such-option",
    "modprobe --no-such-option",
    "mount --no-such-option",
    "nft list rulesets",
    "nsenter --no-such-option",
    "ping --no-such-option",
    "prlimit --memlok",
    "ps -o nosuch",
    "rdma resource show qq",
    "rdma dev set step0 netnss x",
    "rdmatop --event qp_modify,qp_destroyed",
    "rdmatop chek",
    "setpci --no-such-option",
    "sminfo --no-such-option",
    "ss --no-such-option",
    "systemctl restrat x",
    "tc -s qdisk show",
    "udevadm trigger --no-such-option",
];

/// What stands in the place of each `{}`, by the text before it; elsewhere a number.
fn filled(command: &str) -> String {
    let pid = std::process::id().to_string();
    let values = [
        ("pid ", &*pid),
        ("-p ", &pid),
        ("pid=", &pid),
        ("-CONT ", &pid),
        ("-t ", &pid),
        ("/proc/", &pid),
        ("dev ", NETDEV),
        ("ethtool ", NETDEV),
        ("-S ", NETDEV),
        ("-m ", NETDEV),
        ("-i ", NETDEV),
        ("/net/", NETDEV),
        ("link ", DEVICE),
        ("resource show ", "qp"),
        ("-w ", DEVICE),
        ("ibstat ", DEVICE),
        ("-C ", DEVICE),
        ("-d ", DEVICE),
        ("mtu ", "1500"),
        ("--max-qps=", "1024"),
        ("-s ", "00:00.0"),
        ("ping -c 3 ", "127.0.0.1"),
    ];
    let mut parts = command.split("{}");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let value = values.iter().find(|(before, _)| out.ends_with(before));
        out.push_str(value.map_or("1", |(_, value)| value));
        out.push_str(part);
    }
    for (word, value) in [
        ("NETDEV", NETDEV),
        ("INTERFACE", NETDEV),
        ("DEVICE", DEVICE),
        ("/PORT", "/1"),
        ("ADDRESS/PREFIX", "192.0.2.1/24"),
    ] {
        out = out.replace(word, value);
    }
    out
}

/// The commands of the page's table.
fn of_page() -> Result<BTreeSet<String>> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/remedies.md");
    let page = fs::read_to_string(page)?;
    let (_, rows) = page.split_once("<!-- remedies -->").context("no table")?;
    let (rows, _) = rows.split_once("<!-- end of remedies -->").context("no end")?;
    let remedies = rows.lines().filter_map(|row| {
        let cell = row.strip_prefix("| ")?.rsplitn(3, " | ").last()?;
        let cell = cell
            .strip_prefix("`` ")
            .and_then(|cell| cell.strip_suffix(" ``"))
            .unwrap_or(cell.trim_matches('`'));
        Some(cell.replace("\\|", "|"))
    });
    let all = remedies.flat_map(|remedy| {
        commands::commands(&remedy)
            .into_iter()
            .map(filled)
            .collect::<Vec<_>>()
    });
    Ok(all.collect())
}

/// What the programs of a command complain about.
fn complaint(command: &str) -> Result<Option<String>> {
    let ran = Command::new("/bin/sh")
        .args(["-c", &format!("{SAFELY}{command}")])
        .env("PROGRAM", rdmatop::program()?)
        .env("LC_ALL", "C")
        // The guest's root is not the one that it booted with, so programs of systemd would do nothing.
        .env("SYSTEMD_IGNORE_CHROOT", "1")
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    let lower = said.to_lowercase();
    let complains = lower.contains(": not found") || COMPLAINTS.iter().any(|word| lower.contains(word));
    Ok(complains.then_some(said))
}

#[test]
fn each_command_of_a_remedy_is_understood_by_its_program() -> Result<()> {
    let Some(_lab) = Lab::enter("commands of remedies") else {
        return Ok(());
    };
    let _rxe = Rxe::up(DEVICE, 7)?;
    let mut silent = Vec::new();
    for wrong in WRONG {
        if complaint(wrong)?.is_none() {
            silent.push(wrong);
        }
    }
    ensure!(silent.is_empty(), "nothing complains about {silent:#?}");
    let all = of_page()?;
    ensure!(all.len() > 100, "{all:#?}");
    let mut absent: BTreeMap<&str, usize> = BTreeMap::new();
    let mut refused = Vec::new();
    for command in &all {
        let Some(said) = complaint(command)? else { continue };
        let lacks = |program: &&&str| said.contains(&format!(" {program}: not found"));
        match MAY_BE_ABSENT.iter().find(lacks) {
            Some(program) => *absent.entry(program).or_default() += 1,
            None => refused.push(format!("{command}: {said}")),
        }
    }
    for (program, number) in absent {
        say(&format!(
            "skipped: {number} commands of {program}, which is not installed"
        ));
    }
    ensure!(refused.is_empty(), "{}", refused.join("\n"));
    Ok(())
}
