//! The capabilities of rdmatop while it runs: no more than it needs.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    child::{Child, output},
    faults::{Switch, behind, notes, sample},
    kmod::Module,
    lab::{DEVICE, Lab},
    rdmatop::{self, Trace, Window},
    snapshot::Snapshot,
    traffic::{self, LIMIT, Traffic},
};

const DAC_READ_SEARCH: u64 = 1 << 2;
const NET_ADMIN: u64 = 1 << 12;
const SYS_PTRACE: u64 = 1 << 19;
const SYS_ADMIN: u64 = 1 << 21;
const SYS_NICE: u64 = 1 << 23;
const SYS_RESOURCE: u64 = 1 << 24;
const PERFMON: u64 = 1 << 38;
const BPF: u64 = 1 << 39;

/// Capabilities that are always in effect.
const KEPT: u64 = BPF | SYS_PTRACE | DAC_READ_SEARCH;
/// Capabilities raised to attach, and (`SYS_NICE`) for the moment in which entries leave a map.
const PERMITTED: u64 = KEPT | PERFMON | SYS_ADMIN | SYS_RESOURCE | SYS_NICE;

/// Returns a hexadecimal line of /proc/PID/task/TID/status.
fn mask(status: &str, key: &str) -> Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let text = line.with_context(|| format!("no {key}"))?.trim();
    u64::from_str_radix(text, 16).with_context(|| format!("{key} {text}"))
}

#[test]
fn while_it_traces_no_thread_has_more_than_it_needs() -> Result<()> {
    let Some(_lab) = Lab::enter("privileges") else {
        return Ok(());
    };
    let own = fs::read_to_string("/proc/self/status")?;
    ensure!(
        mask(&own, "CapEff:")? & PERMITTED == PERMITTED,
        "the test itself has few"
    );
    let trace = Trace::start(&[])?;
    let threads = each_thread_has(trace.child.pid(), PERMITTED)?;
    ensure!(
        threads > 3,
        "{threads} threads: where is the reader, where the writer?"
    );
    trace.stop().map(drop)
}

/// The right to change how QPs are bound to counters stays permitted only if that was asked for, and is in
/// effect only while an order is given.
#[test]
fn the_right_to_change_counters_is_kept_where_it_was_asked_for() -> Result<()> {
    let Some(_lab) = Lab::enter("privileges of --hw-counters") else {
        return Ok(());
    };
    let window = Window::open(&["--no-ebpf", "--hw-counters"])?;
    each_thread_has(window.pid(), PERMITTED | NET_ADMIN)?;
    window.close().map(drop)
}

/// What docs/install.md ("Rights") says of each capability, at two levels of `kernel.perf_event_paranoid`.
/// What only the owner of a file in /proc may read takes two of them, and is known of a user's process with
/// all the others. CAP_SYS_NICE is missing in every case, and no note tells of it: without it a program may
/// be skipped on Linux 7, by chance, and such skips are counted.
#[test]
fn each_capability_that_is_taken_away_costs_what_the_page_says() -> Result<()> {
    const ALL: [&str; 6] = [
        "bpf",
        "perfmon",
        "sys_admin",
        "sys_ptrace",
        "dac_read_search",
        "syslog",
    ];
    const CASES: [(&str, &[&str], Option<&str>); 11] = [
        ("3", &[], None),
        ("3", &["bpf"], None),
        ("3", &["perfmon"], None),
        ("3", &["sys_admin"], Some("No eBPF")),
        ("3", &["sys_ptrace"], Some("No libraries")),
        ("3", &["dac_read_search"], None),
        ("3", &["syslog"], None),
        ("2", &["sys_admin"], None),
        ("2", &["perfmon"], None),
        ("2", &["sys_admin", "perfmon"], Some("No eBPF")),
        ("2", &["sys_admin", "bpf"], Some("No eBPF")),
    ];
    let Some(lab) = Lab::enter("privileges, one by one") else {
        return Ok(());
    };
    // Linux 6.15 lets CAP_PERFMON read the memory of processes, their environment among it (`may_access_mm`).
    let by_perfmon = lab.is_at_least((6, 15));
    let user = of_a_user()?;
    user.ready()?;
    for (level, without, told) in CASES {
        let _paranoid = Switch::set("/proc/sys/kernel/perf_event_paranoid", level)?;
        let left = ALL.iter().filter(|name| !without.contains(name));
        let left: String = left.flat_map(|name| [",+", *name]).collect();
        let sample = sample(&["setpriv", &format!("--bounding-set=-all{left}")])?;
        let notes = notes(&sample);
        let fits = match told {
            Some(begins) => notes.len() == 1 && notes[0].starts_with(begins),
            None => notes.is_empty(),
        };
        ensure!(fits, "level {level} without {without:?}: {notes:?}, not {told:?}");
        let on = sample.value()["health"]["ebpf"]["state"] == "on";
        ensure!(
            on == (told != Some("No eBPF")),
            "level {level} without {without:?}: {}",
            sample.value()["health"]["ebpf"]
        );
        let environ = sample.process(user.child.pid())?.field("environ").to_string();
        let may_read = by_perfmon && !without.contains(&"perfmon") || !without.contains(&"sys_ptrace");
        let wanted = if !may_read || without.contains(&"dac_read_search") {
            "null"
        } else {
            r#"[["NCCL_IB_GID_INDEX","3"]]"#
        };
        ensure!(environ == wanted, "level {level} without {without:?}: {environ}");
    }
    user.finish().map(drop)
}

/// Starts a user's process with one QP and a variable of NCCL.
fn of_a_user() -> Result<Traffic> {
    // A copy that another user can run.
    let program = Path::new("/tmp/idle-qps-of-a-user");
    fs::copy(traffic::path("idle-qps")?, program)?;
    let mut command = Command::new("prlimit");
    command
        .arg("--memlock=unlimited:unlimited")
        .args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(program)
        .args(["--qps", "1"])
        .env_clear()
        .env("NCCL_IB_GID_INDEX", "3");
    Ok(Traffic {
        child: Child::spawn(&mut command)?,
    })
}

#[test]
fn without_the_right_to_administer_the_network_no_counter_is_bound() -> Result<()> {
    let Some(_lab) = Lab::enter("without CAP_NET_ADMIN") else {
        return Ok(());
    };
    let Some(_module) = Module::load("without CAP_NET_ADMIN", "rxe_counters", &[])? else {
        return Ok(());
    };
    let args = ["--once", "--json", "--delay", "0.2", "--no-ebpf", "--hw-counters"];
    for (rights, set, why) in [
        (
            "-net_admin",
            false,
            Some("the kernel lets nobody change it without CAP_NET_ADMIN"),
        ),
        ("+net_admin", true, None),
    ] {
        let (code, child) = behind(&["setpriv", &format!("--bounding-set={rights}")], &args)?;
        ensure!(code == Some(0), "{rights}: {code:?}: {}", child.err.text());
        let sample = Snapshot::parse(&child.out.text())?;
        let port = &sample.value()["health"]["hw_counters"]["ports"][0];
        ensure!(
            port["device"] == DEVICE && port["set"] == set && port["why"]["why"].as_str() == why,
            "{rights}: {port}"
        );
    }
    Ok(())
}

/// As docs/install.md and SECURITY.md say: the program with file capabilities, for one group. Its members see
/// all that root sees; nobody else may run it.
#[test]
fn file_capabilities_serve_a_group_and_nobody_without_the_right_to_run_it() -> Result<()> {
    const GROUP: u32 = 12_345;
    let Some(_lab) = Lab::enter("file capabilities") else {
        return Ok(());
    };
    let user = of_a_user()?;
    user.ready()?;
    let _paranoid = Switch::set("/proc/sys/kernel/perf_event_paranoid", "3")?;
    let program = Path::new("/run/rdmatop-of-a-group");
    fs::copy(rdmatop::program()?, program)?;
    chown(program, None, Some(GROUP))?;
    fs::set_permissions(program, fs::Permissions::from_mode(0o750))?;
    let rights = "cap_bpf,cap_perfmon,cap_sys_admin,cap_sys_ptrace,cap_dac_read_search,cap_syslog+ep";
    output(Command::new("setcap").arg(rights).arg(program))?;
    // setpriv would start the program with the rights that root has to execute any file.
    let run = |groups: &str| -> Result<(Option<i32>, Child)> {
        let mut command = Command::new("chroot");
        command
            .args(["--userspec=65534:65534", groups, "/"])
            .arg(program)
            .args(["--once", "--json", "--delay", "0.2"])
            // Root's directory of settings is closed to this user, which a note would say.
            .envs([("HOME", "/"), ("NO_COLOR", "1")]);
        let mut child = Child::spawn(&mut command)?;
        Ok((child.wait(LIMIT)?.code(), child))
    };
    let (code, member) = run(&format!("--groups={GROUP}"))?;
    ensure!(code == Some(0), "{code:?}: {}", member.err.text());
    let sample = Snapshot::parse(&member.out.text())?;
    ensure!(notes(&sample).is_empty(), "{:?}", notes(&sample));
    let state = &sample.value()["health"]["ebpf"]["state"];
    ensure!(*state == "on", "{state}");
    let row = sample.process(user.child.pid())?;
    ensure!(row.field("environ")[0][1] == "3", "{row:?}");
    // chroot's own status where it may not execute a program.
    let (code, other) = run("--groups=")?;
    ensure!(
        code == Some(126) && other.err.text().contains("Permission denied"),
        "{code:?}: {}",
        other.err.text()
    );
    fs::remove_file(program)?;
    user.finish().map(drop)
}

/// A user who is not root, with the rights of rdmatop-check.service. A unit test of rdmatop-sources compares
/// the unit's line with what rdmatop keeps.
#[test]
fn the_service_that_checks_needs_no_root() -> Result<()> {
    let Some(_lab) = Lab::enter("privileges of rdmatop-check.service") else {
        return Ok(());
    };
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../deploy/systemd/rdmatop-check.service"
    );
    let unit = fs::read_to_string(path).context(path)?;
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("AmbientCapabilities="));
    let names = line.context("no AmbientCapabilities=")?.split_whitespace();
    let granted: String = names.flat_map(|name| [",+", &name["CAP_".len()..]]).collect();
    let granted = granted.to_lowercase();
    let _paranoid = Switch::set("/proc/sys/kernel/perf_event_paranoid", "3")?;
    let words = [
        "setpriv".to_owned(),
        "--reuid=65534".to_owned(),
        "--regid=65534".to_owned(),
        "--clear-groups".to_owned(),
        "--no-new-privs".to_owned(),
        format!("--bounding-set=-all{granted}"),
        format!("--inh-caps=-all{granted}"),
        format!("--ambient-caps=-all{granted}"),
    ];
    let sample = sample(&words.each_ref().map(String::as_str))?;
    ensure!(notes(&sample).is_empty(), "{:?}", notes(&sample));
    let state = &sample.value()["health"]["ebpf"]["state"];
    ensure!(*state == "on", "{state}");
    let (code, child) = behind(
        &words.each_ref().map(String::as_str),
        &["check", "--no-gpus", "--json"],
    )?;
    ensure!(code == Some(0), "{code:?}: {}", child.err.text());
    Ok(())
}

/// Checks that each thread of a process has exactly these rights. Returns the number of threads.
fn each_thread_has(pid: u32, permitted: u64) -> Result<usize> {
    let mut threads = 0;
    for task in fs::read_dir(Path::new("/proc").join(pid.to_string()).join("task"))? {
        let status = match fs::read_to_string(task?.path().join("status")) {
            // The thread has ended since it was listed: ENOENT at open(2), ESRCH at read(2).
            Err(gone) if matches!(gone.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => continue,
            status => status?,
        };
        let name = status.lines().next().unwrap_or_default();
        // Exactly: with less, a tracer could not attach again after a module is reloaded.
        for (key, wanted) in [
            ("CapEff:", KEPT),
            ("CapPrm:", permitted),
            ("CapInh:", 0),
            ("CapAmb:", 0),
        ] {
            let found = mask(&status, key)?;
            ensure!(found == wanted, "{name}: {key} {found:#x}, wanted {wanted:#x}");
        }
        ensure!(
            mask(&status, "NoNewPrivs:")? == 1,
            "{name} may gain privileges by exec"
        );
        threads += 1;
    }
    Ok(threads)
}
