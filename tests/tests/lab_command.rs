//! `rdmatop lab`: whatever ends or hinders it, it knows what it made, and `lab down` removes that and nothing
//! else.

use std::{
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    child::{Child, output},
    kernel,
    lab::{self, DEVICE, Lab},
    rdmatop,
    things::{Things, things},
    traffic::Traffic,
    wait::{self, PATIENCE},
};

/// The limit for making or removing some devices with translated instructions.
const LIMIT: Duration = PATIENCE;
const FILE: &str = "/run/rdmatop/lab.json";

fn spawn(args: &[&str]) -> Result<Child> {
    Child::spawn(&mut rdmatop::command(&[&["lab"], args].concat())?)
}

/// Runs `rdmatop lab ...`, which must succeed; returns its output.
fn run(args: &[&str]) -> Result<String> {
    let mut child = spawn(args)?;
    child.succeed(LIMIT)?;
    Ok(child.out.text())
}

/// Runs `rdmatop lab ...`, which must fail; returns its one line on stderr.
fn fail(args: &[&str]) -> Result<String> {
    let mut child = spawn(args)?;
    let status = child.wait(LIMIT)?;
    let err = child.err.all();
    ensure!(status.code() == Some(1) && err.len() == 1, "{status}: {err:?}");
    Ok(err.concat())
}

/// Runs `body` and `lab down`; afterwards everything must be as before.
fn leaves_nothing(body: impl FnOnce(&Things) -> Result<()>) -> Result<()> {
    let before = things()?;
    body(&before)?;
    let said = run(&["down"])?;
    let after = things()?;
    ensure!(
        after == before,
        "left: {:?}, missing: {:?}; `lab down` said: {said}",
        after.difference(&before),
        before.difference(&after)
    );
    ensure!(!fs::exists(FILE)?, "{FILE} is left");
    Ok(())
}

#[test]
fn lab_up_killed_at_ten_moments_leaves_only_what_lab_down_removes() -> Result<()> {
    let Some(_lab) = Lab::enter("lab up, SIGKILL") else {
        return Ok(());
    };
    // rxe0 belongs to the lab, so three devices and their interfaces are made.
    let up = ["up", "--devices", "4"];
    let mut whole = Duration::ZERO;
    leaves_nothing(|_| {
        let begin = Instant::now();
        run(&up)?;
        whole = begin.elapsed();
        Ok(())
    })?;
    // Killed after some time, and as soon as this many things exist.
    for moment in 0..4 {
        killed(&up, |_| {
            thread::sleep(whole * (2 * moment + 1) / 8);
            Ok(())
        })
        .with_context(|| format!("killed after {moment}/4 of {whole:?}"))?;
    }
    for count in 1..=6 {
        killed(&up, |before| {
            let things = || things().is_ok_and(|now| now.len() >= before.len() + count);
            wait::until("things that `lab up` made", LIMIT, things)
        })
        .with_context(|| format!("killed at thing {count}"))?;
    }
    Ok(())
}

/// Kills `rdmatop lab up` when `wait` returns; then `lab down` must leave nothing.
fn killed(up: &[&str], wait: impl FnOnce(&Things) -> Result<()>) -> Result<()> {
    leaves_nothing(|before| {
        let child = spawn(up)?;
        wait(before)?;
        child.signal(libc::SIGKILL)?;
        // Waits only for its end, not for its output, which a surviving modprobe may hold open.
        drop(child);
        Ok(())
    })
}

#[test]
fn lab_up_makes_all_and_lists_all_where_nobody_takes_what_it_says() -> Result<()> {
    let Some(_lab) = Lab::enter("lab up, no reader") else {
        return Ok(());
    };
    let program = rdmatop::program()?;
    for (shell, code) in [(">/dev/full", 1), ("| true", 0), (">&-", 0)] {
        leaves_nothing(|before| {
            let line = format!("'{}' lab up --devices 3 {shell}", program.display());
            let mut child = Child::spawn(Command::new("bash").args(["-o", "pipefail", "-c", &line]))?;
            let status = child.wait(LIMIT)?;
            ensure!(
                status.code() == Some(code),
                "{shell}: {status}: {}",
                child.err.text()
            );
            // rxe0 belongs to the lab, so two devices and their interfaces are made.
            ensure!(things()?.len() == before.len() + 4, "{shell}: {:?}", things()?);
            Ok(())
        })
        .context(shell)?;
    }
    Ok(())
}

#[test]
fn two_lab_ups_at_once_make_what_one_makes() -> Result<()> {
    let Some(_lab) = Lab::enter("two lab ups") else {
        return Ok(());
    };
    leaves_nothing(|before| {
        let (mut one, mut other) = (
            spawn(&["up", "--devices", "4"])?,
            spawn(&["up", "--devices", "4"])?,
        );
        one.succeed(LIMIT)?;
        other.succeed(LIMIT)?;
        ensure!(things()?.len() == before.len() + 6, "{:?}", things()?);
        let said = format!("{}\n{}", one.out.text(), other.out.text());
        for name in ["rxe1", "rxe2", "rxe3"] {
            ensure!(said.matches(&format!("made {name} on")).count() == 1, "{said}");
        }
        Ok(())
    })
}

#[test]
fn what_was_renamed_is_removed_and_what_has_its_name_is_not() -> Result<()> {
    let Some(_lab) = Lab::enter("lab, renamed") else {
        return Ok(());
    };
    leaves_nothing(|_| {
        run(&["up", "--devices", "2"])?;
        output(Command::new("rdma").args(["dev", "set", "rxe1", "name", "mine/1"]))?;
        output(Command::new("ip").args(["link", "set", "rdmatop1", "down"]))?;
        output(Command::new("ip").args(["link", "set", "rdmatop1", "name", "lan1"]))?;
        let status = run(&["status"])?;
        ensure!(status.contains("made by rdmatop as rxe1"), "{status}");
        ensure!(
            run(&["up", "--devices", "2"])?.contains("called mine/1 by now"),
            "made again"
        );
        Ok(())
    })?;
    // Another device of that name on the same interface: only the interface is ours.
    run(&["up", "--devices", "2"])?;
    kernel::delete_link("rxe1")?;
    let netdev = lab::netdev(DEVICE)?;
    kernel::delete_link(DEVICE)?;
    kernel::add_link("rxe1", &netdev)?;
    let said = run(&["down"]);
    kernel::delete_link("rxe1")?;
    kernel::add_link(DEVICE, &netdev)?;
    let said = said?;
    ensure!(said.contains("rxe1 is another device of that name now"), "{said}");
    ensure!(said.contains("removed rdmatop1"), "{said}");
    Ok(())
}

/// Checks the messages while a device of `lab up` is being removed but held by a process, and that the list
/// stays whole.
fn hangs(before: &Things, listed: &[u8], made: &Things, held: &str) -> Result<()> {
    let status = run(&["status"])?;
    let line = status.lines().find(|line| line.starts_with("rxe1: "));
    ensure!(
        line.is_some_and(|line| line.contains("being removed, made by rdmatop") && line.contains(held)),
        "{status}"
    );
    ensure!(
        status
            .lines()
            .any(|line| line == "rdmatop1: dummy interface made by rdmatop"),
        "{status}"
    );
    ensure!(fs::read(FILE)? == listed, "the list is another one");
    // The device and its interface stay in sysfs until the removal ends.
    let now = things()?;
    ensure!(
        now == *made && now.len() == before.len() + 2,
        "{made:?} became {now:?}"
    );
    Ok(())
}

/// Waits until the kernel no longer lists rxe1: the removal has begun.
fn await_removal() -> Result<()> {
    wait::until("the removal of rxe1", LIMIT, || {
        output(Command::new("rdma").arg("dev")).is_ok_and(|list| !list.contains("rxe1"))
    })
}

#[test]
fn while_a_removal_hangs_its_holder_is_named_and_down_completes_later() -> Result<()> {
    let Some(_lab) = Lab::enter("lab, a removal that hangs") else {
        return Ok(());
    };
    leaves_nothing(|before| {
        run(&["up", "--devices", "2"])?;
        let (listed, made) = (fs::read(FILE)?, things()?);
        // Dropped after its holder, for which the removal waits.
        let mut removal;
        let holder = Traffic::start("idle-qps", &["--device", "rxe1", "--qps", "1"])?;
        holder.ready()?;
        let held = format!("{} (idle-qps)", holder.child.pid());
        // Without --force nothing is removed.
        let error = fail(&["down"])?;
        ensure!(error.contains("rxe1") && error.contains(&held), "{error}");
        ensure!(lab::devices()?.contains(&"rxe1".to_owned()), "it was removed");
        removal = Child::spawn(Command::new("rdma").args(["link", "delete", "rxe1"]))?;
        await_removal()?;
        for args in [&["down"][..], &["down", "--force"], &["up", "--devices", "2"]] {
            let error = fail(args)?;
            ensure!(
                error.contains("rxe1 is still being removed") && error.contains(&held),
                "{args:?}: {error}"
            );
            hangs(before, &listed, &made, &held).with_context(|| format!("{args:?}"))?;
        }
        holder.finish()?;
        removal.succeed(LIMIT)?;
        let said = run(&["down"])?;
        ensure!(
            said.contains("rxe1 is gone already") && said.contains("removed rdmatop1"),
            "{said}"
        );
        Ok(())
    })
}

#[test]
fn a_lab_down_that_hangs_is_named_to_the_next_and_completes_later() -> Result<()> {
    let Some(_lab) = Lab::enter("lab, a `lab down` that hangs") else {
        return Ok(());
    };
    leaves_nothing(|before| {
        run(&["up", "--devices", "2"])?;
        let (listed, made) = (fs::read(FILE)?, things()?);
        // Dropped after the holder, for which it waits.
        let mut down;
        let holder = Traffic::start("idle-qps", &["--device", "rxe1", "--qps", "1"])?;
        holder.ready()?;
        let held = format!("{} (idle-qps)", holder.child.pid());
        down = spawn(&["down", "--force"])?;
        down.out
            .wait_for("who holds it", LIMIT, |line| line.contains(&held))?;
        await_removal()?;
        hangs(before, &listed, &made, &held)?;
        // It locks the list until it ends.
        let error = fail(&["down"])?;
        ensure!(error.contains(&down.pid().to_string()), "{error}");
        hangs(before, &listed, &made, &held)?;
        holder.finish()?;
        down.succeed(LIMIT)?;
        let said = down.out.text();
        ensure!(
            said.contains("removed rxe1") && said.contains("removed rdmatop1"),
            "{said}"
        );
        Ok(())
    })
}

#[test]
fn a_broken_file_is_told_with_its_remedy_which_helps() -> Result<()> {
    let Some(_lab) = Lab::enter("lab, broken file") else {
        return Ok(());
    };
    leaves_nothing(|_| {
        run(&["up", "--devices", "2"])?;
        let whole = fs::read(FILE)?;
        for broken in ["", "{", "[]", "{\"\\u001b]0;x\\u0007\":1}"] {
            fs::write(FILE, broken)?;
            for command in ["up", "down", "status"] {
                let error = fail(&[command])?;
                ensure!(error.contains("sudo rm /run/rdmatop/lab.json"), "{error}");
                ensure!(!error.contains('\u{1b}'), "{error:?}");
            }
        }
        fs::remove_file(FILE)?;
        ensure!(run(&["down"])?.contains("nothing to remove"), "it is not known");
        fs::write(FILE, whole)?;
        Ok(())
    })
}

#[test]
fn a_module_that_lab_up_loaded_is_unloaded_unless_somebody_needs_it() -> Result<()> {
    let Some(_lab) = Lab::enter("lab, module") else {
        return Ok(());
    };
    let loaded = || fs::exists("/sys/module/rdma_rxe").unwrap_or(true);
    let links: Result<Vec<_>> = lab::devices()?
        .into_iter()
        .map(|name| Ok((lab::netdev(&name)?, name)))
        .collect();
    let links = links?;
    for (_, name) in &links {
        kernel::delete_link(name)?;
    }
    output(Command::new("rmmod").arg("rdma_rxe"))?;
    let tried = (|| {
        ensure!(run(&["up"])?.contains("loaded rdma_rxe"), "it does not say so");
        let alone = run(&["down"])?;
        ensure!(alone.contains("unloaded rdma_rxe") && !loaded(), "{alone}");
        run(&["up", "--devices", "2"])?;
        kernel::add_link("mine0", &links.first().context("no device")?.0)?;
        let needed = run(&["down"])?;
        ensure!(
            needed.contains("rdma_rxe stays loaded: mine0 may need it"),
            "{needed}"
        );
        ensure!(lab::devices()? == ["mine0"], "{:?}", lab::devices()?);
        kernel::delete_link("mine0")
    })();
    output(Command::new("modprobe").arg("rdma_rxe"))?;
    for (netdev, name) in &links {
        kernel::add_link(name, netdev)?;
    }
    tried
}
