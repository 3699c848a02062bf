//! Runs the commands of docs/learn.md, which must print what the page shows.
//!
//! With `RDMATOP_WRITE_DOCS=1` nothing is compared. The page with the current output is always written to the
//! directory for results, from which `cargo xtask learn` takes it.

use std::{env, fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    child::output,
    kernel,
    lab::{self, DEVICE, Lab},
    learn::{
        page::{Block, Page},
        play::Stage,
        shape::{Shape, adds_up},
    },
    rdmatop,
    table::say,
};

const PAGE: &str = include_str!("../../docs/learn.md");
const PROGRAMS: &str = env!("RDMATOP_EXAMPLES");
/// A plain cloud instance has an interface with the default route, usually under this name.
const INTERFACE: &str = "eth0";
/// PIDs of the guest begin at some hundred. On a machine that has run for a while they are longer, and
/// columns of tables are wider.
const LAST_PID: &str = "20000";

#[test]
fn the_commands_of_the_page_print_what_it_shows() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("docs/learn.md") else {
        return Ok(());
    };
    let page = Page::parse(PAGE)?;
    let instance = PlainInstance::make()?;
    let stage = Stage::make(Path::new(PROGRAMS))?;
    let mut played = Vec::new();
    for block in page.blocks() {
        say(&format!("{} ...", block.name));
        played.push(stage.play(block)?);
        // A person types more slowly than the kernel fills the GID table.
        if lab::devices()?.contains(&DEVICE.to_owned()) {
            lab::await_gid(DEVICE)?;
        }
    }
    drop(instance);
    let out = env::var_os("RDMATOP_LAB_OUT").context("no RDMATOP_LAB_OUT")?;
    fs::write(Path::new(&out).join("learn.md"), page.with(&played))?;
    if env::var_os("RDMATOP_WRITE_DOCS").is_some_and(|value| value == "1") {
        return Ok(());
    }
    let differ: Vec<String> = page.blocks().zip(&played).flat_map(differences).collect();
    ensure!(
        differ.is_empty(),
        "docs/learn.md shows what is no longer printed; `cargo xtask learn` writes it anew:\n{}",
        differ.join("\n")
    );
    Ok(())
}

/// Returns the lines of a block that are only printed or only shown.
fn differences((shown, played): (&Block, &Block)) -> Vec<String> {
    let commands = shown.commands.iter().zip(&played.commands);
    let each = commands.flat_map(|(then, now)| {
        let was = Shape::of(&then.line, &then.output);
        let is = Shape::of(&now.line, &played.shown(now));
        let wrong = now.output.iter().filter(|line| adds_up(line) == Some(false));
        let wrong = wrong.map(|line| format!("the numbers do not add up: {line}"));
        let lines: Vec<String> = was.differences(&is).into_iter().chain(wrong).collect();
        lines
            .into_iter()
            .map(move |line| format!("{}, `{}`: {line}", shown.name, then.line))
    });
    each.collect()
}

/// Makes the guest like a newly started machine: an interface, no RDMA device, rdma_rxe not loaded. Drop
/// restores it.
struct PlainInstance {
    links: Vec<(String, String)>,
}

impl PlainInstance {
    fn make() -> Result<Self> {
        let links: Result<Vec<_>> = lab::devices()?
            .into_iter()
            .map(|device| Ok((lab::netdev(&device)?, device)))
            .collect();
        let instance = Self { links: links? };
        fs::write("/proc/sys/kernel/ns_last_pid", LAST_PID)?;
        for (_, device) in &instance.links {
            kernel::delete_link(device)?;
        }
        output(Command::new("rmmod").arg("rdma_rxe"))?;
        ip(&format!("link add {INTERFACE} type dummy"))?;
        ip(&format!("address add 172.31.0.10/20 dev {INTERFACE}"))?;
        ip(&format!("link set {INTERFACE} up"))?;
        ip(&format!("route add default via 172.31.0.1 dev {INTERFACE}"))?;
        Ok(instance)
    }
}

fn ip(words: &str) -> Result<String> {
    output(Command::new("ip").args(words.split(' ')))
}

impl Drop for PlainInstance {
    fn drop(&mut self) {
        // This removes nothing unless a command of the page failed.
        let mut again = rdmatop::command(&["lab", "down", "--force"])
            .and_then(|mut down| output(&mut down))
            .map(drop);
        again = again.and(ip(&format!("link delete {INTERFACE}")).map(drop));
        again = again.and(output(Command::new("modprobe").arg("rdma_rxe")).map(drop));
        for (netdev, device) in &self.links {
            again = again.and(kernel::add_link(device, netdev));
        }
        if let Err(error) = again {
            say(&format!("the lab's devices are not there again: {error:#}"));
        }
    }
}
