//! `--uprobes`: what probes on programs count equals what the kernel side counts and what perftest reports.
//!
//! Two rdmatops look at the same traffic: one counts in the kernel, the other counts nothing there
//! (`RDMATOP_DATAPATHS=0`) and probes the provider's functions.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::{fs::MetadataExt as _, process::ExitStatusExt as _},
    path::Path,
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    child::{Child, output},
    kernel::leaves_nothing,
    lab::{self, Lab},
    perftest::{Account, Perftest},
    rdmatop::{self, Window},
    snapshot::{Row, Snapshot},
    traffic::{self, Traffic, id, number},
    uprobes::{
        ARGS, ATTACHED, ENV, Overlays, identity, library, probed, probed_in, standing, total, with_a_copy,
        with_another_name,
    },
    wait::{self, PATIENCE, SOON},
};
use serde_json::Value;

/// Opens a window with probes and waits until this many functions of the provider are probed.
fn probing(functions: usize) -> Result<Window> {
    let window = Window::open_with(&ARGS, &ENV)?;
    wait::until("probes on functions of the provider", ATTACHED, || {
        probed(window.pid(), "librxe") >= functions
    })?;
    Ok(window)
}

/// Returns opcode, WRs and bytes of all posted opcodes.
fn opcodes(row: Row<'_>) -> Vec<(Value, Value, Value)> {
    let rows = row.field("by_opcode").as_array().cloned().unwrap_or_default();
    let of = |row: &Value| {
        (
            row["opcode"].clone(),
            row["wr"]["total"].clone(),
            row["bytes"]["total"].clone(),
        )
    };
    rows.iter().map(of).collect()
}

/// Compares the probes' counts of one side with those of the kernel side; returns the sums of sends, receives
/// and bytes.
fn is_equal(side: &Account, probed: &Snapshot, kernel: &Snapshot) -> Result<[u64; 3]> {
    let mut sums = [0; 3];
    for qpn in &side.qpns {
        let (ours, theirs) = (probed.qp(side.pid, *qpn)?, kernel.qp(side.pid, *qpn)?);
        ensure!(!ours.is("since_attach"), "it came after the probes: {ours:?}");
        ensure!(theirs.field("tx_wr_posted")["source"] == "ebpf", "{theirs:?}");
        // The target of RDMA WRITE and READ called none of these functions, so it is unknown whether it posts
        // in another way.
        let posted = ["tx_wr_posted", "rx_wr_posted"].map(|key| theirs.field(key)["total"].as_u64());
        let is_target = posted.iter().flatten().all(|total| *total == 0);
        if !is_target {
            ensure!(ours.field("tx_wr_posted")["source"] == "uprobe", "{ours:?}");
        }
        for (sum, key) in sums.iter_mut().zip(["tx_wr_posted", "rx_wr_posted", "tx_bytes"]) {
            if is_target || theirs.field(key).is_null() {
                ensure!(ours.field(key).is_null(), "{key}: {ours:?}");
                continue;
            }
            let (own, other) = (total(ours, key)?, total(theirs, key)?);
            ensure!(
                own == other,
                "{key} of QP {qpn}: {own} by probes, {other} in the kernel"
            );
            *sum += own;
        }
        let counted: Vec<_> = opcodes(theirs).into_iter().filter(|_| !is_target).collect();
        ensure!(opcodes(ours) == counted, "{ours:?} {theirs:?}");
        for unknown in [
            "completions",
            "rx_wr",
            "rx_bytes",
            "retransmits",
            "latency",
            "doorbells",
        ] {
            ensure!(
                ours.field(unknown).is_null(),
                "{unknown} cannot be known: {ours:?}"
            );
        }
    }
    Ok(sums)
}

#[test]
fn probes_on_programs_count_what_the_kernel_and_perftest_count() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("uprobes equality") else {
        return Ok(());
    };
    let idle = standing()?;
    let probed = probing(2)?;
    let kernel = Window::open(&[])?;
    let run =
        |program, iterations, args: &[&str]| Perftest::new(program).iterations(iterations).args(args).run();
    let runs = [
        ("lists", run("ib_send_bw", 1000, &["-l", "4", "-q", "2"])?),
        ("writes", run("ib_write_bw", 1000, &[])?),
        ("reads", run("ib_read_bw", 500, &[])?),
        ("atomics", run("ib_atomic_bw", 500, &[])?),
        ("datagrams", run("ib_send_bw", 500, &["-c", "UD", "-s", "1024"])?),
        ("inline", run("ib_send_lat", 500, &["-I", "64", "-s", "64"])?),
        ("shared receives", run("ib_send_bw", 500, &["--use-srq"])?),
    ];
    let (probed, kernel) = (probed.close()?, kernel.close()?);
    idle.finish()?;
    println!("traffic: sends and bytes by probes, in the kernel, by perftest");
    for (name, accounts) in &runs {
        let [sends, _, bytes] = is_equal(&accounts.client, &probed, &kernel).context(*name)?;
        is_equal(&accounts.server, &probed, &kernel).context(*name)?;
        let (size, count) = (accounts.client.size, accounts.client.iterations);
        println!("{name}: {sends} {bytes}, {count} of {size} bytes");
        ensure!(sends == count && bytes == count * size, "{name}");
    }
    let uprobes = &probed.value()["health"]["uprobes"];
    println!("{uprobes}");
    ensure!(uprobes["off"].is_null() && uprobes["missed"] == 0, "{uprobes}");
    ensure!(uprobes["hit_ns"].as_u64().is_some_and(|ns| ns > 0), "{uprobes}");
    ensure!(kernel.value()["health"]["uprobes"].is_null());
    Ok(())
}

#[test]
fn a_limit_that_is_passed_removes_the_probes_and_counts_are_unknown() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("uprobes limit") else {
        return Ok(());
    };
    let idle = standing()?;
    let window = Window::open_with(&["--uprobes", "--uprobe-limit", "1"], &ENV)?;
    let pair = Perftest::new("ib_send_bw").iterations(60_000).run()?;
    let sample = window.close()?;
    idle.finish()?;
    let uprobes = &sample.value()["health"]["uprobes"];
    ensure!(uprobes["off"]["id"] == "too-costly", "{uprobes}");
    ensure!(
        uprobes["off"]["remedy"].to_string().contains("--uprobe-limit"),
        "{uprobes}"
    );
    let why = uprobes["off"]["why"].to_string();
    let pids = [pair.client.pid, pair.server.pid];
    let named = |pid: &u32| why.contains(&format!("% were those of process {pid}"));
    ensure!(pids.iter().any(named), "{pids:?}: {why}");
    for qpn in &pair.client.qpns {
        let row = sample.qp(pair.client.pid, *qpn)?;
        ensure!(row.field("tx_wr_posted").is_null(), "{row:?}");
    }
    let notes = sample.value()["health"]["notes"].to_string();
    ensure!(notes.contains("too-costly"), "{notes}");
    Ok(())
}

#[test]
fn the_newer_calls_count_what_the_kernel_and_the_program_count() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("uprobes ibv_wr") else {
        return Ok(());
    };
    // It waits for the probes before its first post.
    let posts = Traffic::start("extended-posts", &["--rounds", "100"])?;
    let ready = posts.ready()?;
    let (pid, qpn) = (id(&ready, "pid")?, id(&ready, "qpn")?);
    // post_send, post_recv, six opcodes, four ways to give data, complete and abort.
    let probed = probing(14)?;
    let kernel = Window::open(&[])?;
    let own = posts.finish()?;
    let (probed, kernel) = (probed.close()?, kernel.close()?);
    let (ours, theirs) = (probed.qp(pid, qpn)?, kernel.qp(pid, qpn)?);
    let uprobes = &probed.value()["health"]["uprobes"];
    println!("program {own}, probes {:?}, {uprobes}", opcodes(ours));
    ensure!(ours.field("tx_wr_posted")["source"] == "uprobe", "{ours:?}");
    for key in ["tx_wr_posted", "tx_bytes"] {
        ensure!(
            total(ours, key)? == total(theirs, key)?,
            "{key}: {ours:?} {theirs:?}"
        );
    }
    ensure!(opcodes(ours) == opcodes(theirs), "{ours:?} {theirs:?}");
    ensure!(
        total(ours, "tx_wr_posted")? == number(&own, "posted")?,
        "{own} {ours:?}"
    );
    ensure!(
        total(ours, "tx_bytes")? == number(&own, "bytes")?,
        "{own} {ours:?}"
    );
    let counts = |rows: &[(Value, Value, Value)]| -> Vec<(u64, u64)> {
        let of =
            |(_, wr, bytes): &(Value, Value, Value)| (wr.as_u64().unwrap_or(0), bytes.as_u64().unwrap_or(0));
        let mut counts: Vec<_> = rows.iter().map(of).collect();
        counts.sort_unstable();
        counts
    };
    let rows = own["opcodes"].as_array().cloned().unwrap_or_default();
    let rows: Vec<_> = rows
        .iter()
        .map(|row| (row[0].clone(), row[1].clone(), row[2].clone()))
        .collect();
    ensure!(counts(&rows) == counts(&opcodes(ours)), "{own} {ours:?}");
    ensure!(uprobes["rejected_sends"] == own["rejected"], "{own} {uprobes}");
    ensure!(
        uprobes["failures"].as_array().is_some_and(Vec::is_empty),
        "{uprobes}"
    );
    ensure!(uprobes["off"].is_null() && uprobes["missed"] == 0, "{uprobes}");
    Ok(())
}

#[test]
fn of_a_list_that_the_provider_rejects_midway_the_accepted_part_counts() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("uprobes of rejected lists") else {
        return Ok(());
    };
    let posts = Traffic::start("rejected-posts", &[])?;
    let ready = posts.ready()?;
    let (pid, qpn) = (id(&ready, "pid")?, id(&ready, "qpn")?);
    let probed = probing(2)?;
    let kernel = Window::open(&[])?;
    let own = posts.finish()?;
    let (probed, kernel) = (probed.close()?, kernel.close()?);
    let (ours, theirs) = (probed.qp(pid, qpn)?, kernel.qp(pid, qpn)?);
    let uprobes = &probed.value()["health"]["uprobes"];
    println!("program {own}, probes {:?}, {uprobes}", opcodes(ours));
    for (key, said) in [("tx_wr_posted", "posted"), ("tx_bytes", "bytes")] {
        let said = number(&own, said)?;
        ensure!(total(ours, key)? == said, "{key}: {own} {ours:?}");
        ensure!(total(theirs, key)? == said, "{key}: {own} {theirs:?}");
    }
    ensure!(opcodes(ours) == opcodes(theirs), "{ours:?} {theirs:?}");
    ensure!(
        total(ours, "rx_wr_posted")? == number(&own, "receives")?,
        "{own} {ours:?}"
    );
    ensure!(uprobes["rejected_sends"] == own["rejected"], "{own} {uprobes}");
    ensure!(
        uprobes["rejected_receives"] == own["rejected_receives"],
        "{own} {uprobes}"
    );
    ensure!(uprobes["off"].is_null() && uprobes["missed"] == 0, "{uprobes}");
    Ok(())
}

/// Starts a program that waits before its first post, in a mount namespace where the provider's library is a
/// separate file.
fn in_a_container(library: &Path, copy: &Path, count: u64) -> Result<Traffic> {
    with_a_copy(library, copy, "timed-posts", &format!("--count {count} --wait"))
}

/// Builds the example pingpong with libibverbs and the provider linked statically.
fn statically_linked(to: &Path) -> Result<()> {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let include = format!("-I{}", examples.join("common").display());
    let mut command = Command::new("cc");
    command
        .args([
            "-O1",
            "-std=gnu11",
            "-static",
            "-DRDMA_STATIC_PROVIDERS=rxe",
            &include,
        ])
        .args(["pingpong/pingpong.c", "common/rc.c"].map(|file| examples.join(file)))
        .args([
            "-Wl,--start-group",
            "-libverbs",
            "-lrxe-rdmav34",
            "-lnl-route-3",
            "-lnl-3",
        ])
        .args(["-lpthread", "-lm", "-Wl,--end-group", "-o"])
        .arg(to);
    output(&mut command).map(drop)
}

/// Returns the processes and QPs of a run of pingpong.
fn ping(program: &Path, seconds: &str) -> Result<Vec<(u32, u32)>> {
    let said = output(Command::new(program).args(["-t", seconds]))?;
    let side = |line: &str| {
        let after = |mark: &str| line.split(mark).nth(1)?.split(',').next()?.parse().ok();
        Some((after(": PID ")?, after(", QP ")?))
    };
    let sides: Vec<_> = said.lines().filter_map(side).collect();
    ensure!(sides.len() == 2, "{said}");
    Ok(sides)
}

/// Programs in a container, with a replaced library, killed while posting, and a child of fork(2).
#[test]
fn programs_with_a_library_of_their_own_are_counted() -> Result<()> {
    const POSTS: [u64; 2] = [300, 200];
    let Some(_lab) = Lab::enter_data_path("uprobes of other libraries") else {
        return Ok(());
    };
    let idle = standing()?;
    let library = library(idle.child.pid())?;
    let files = ["librxe-container.so", "librxe-replaced.so"];
    let [container, replaced] = files.map(|name| std::env::temp_dir().join(name));
    let own = [
        in_a_container(&library, &container, POSTS[0])?,
        in_a_container(&library, &replaced, POSTS[1])?,
    ];
    let shared = Traffic::start("shared-qp", &["--count", "100"])?;
    let forked = shared.ready()?;
    let ready = own.iter().map(Traffic::ready).collect::<Result<Vec<_>>>()?;
    fs::remove_file(&replaced)?;
    // Two functions in each of three files.
    let probed = probing(6)?;
    let kernel = Window::open(&[])?;
    for program in own {
        program.finish()?;
    }
    shared.finish()?;
    let mut killed = Traffic::start("steady-posts", &[])?;
    let posting = killed.ready()?;
    killed.child.signal(libc::SIGKILL)?;
    killed.child.wait(PATIENCE)?;
    let (probed, kernel) = (probed.close()?, kernel.close()?);
    idle.finish()?;
    fs::remove_file(container)?;
    for (ready, count) in ready.iter().zip(POSTS) {
        let (pid, qpn) = (id(ready, "pid")?, id(ready, "qpn")?);
        let row = probed.qp(pid, qpn)?;
        ensure!(row.field("tx_wr_posted")["source"] == "uprobe", "{row:?}");
        ensure!(total(row, "tx_wr_posted")? == count, "{count} posts: {row:?}");
        ensure!(posted(&kernel, pid, qpn)? == count);
    }
    // The child's write belongs to nobody.
    let (pid, qpn) = (id(&forked, "pid")?, id(&forked, "qpn")?);
    ensure!(posted(&probed, pid, qpn)? == 100, "{:?}", probed.qp(pid, qpn)?);
    let (pid, qpn) = (id(&posting, "pid")?, id(&posting, "qpn")?);
    let (ours, theirs) = (posted(&probed, pid, qpn)?, posted(&kernel, pid, qpn)?);
    println!("killed: {ours} posts by probes, {theirs} in the kernel");
    // The last call may not have returned.
    ensure!(ours <= theirs && theirs - ours <= 1, "{ours} of {theirs}");
    let uprobes = &probed.value()["health"]["uprobes"];
    println!("{uprobes}");
    ensure!(uprobes["unmatched"].as_u64() >= Some(1), "{uprobes}");
    ensure!(uprobes["off"].is_null() && uprobes["missed"] == 0, "{uprobes}");
    ensure!(
        uprobes["failures"].as_array().is_some_and(Vec::is_empty),
        "{uprobes}"
    );
    Ok(())
}

/// rdmatop attaches probes to such a program for each process, and only once it has seen the process.
#[test]
fn posts_of_a_statically_linked_program_are_counted() -> Result<()> {
    const NAME: &str = "uprobes of a statically linked program";
    let Some(_lab) = Lab::enter_data_path(NAME) else {
        return Ok(());
    };
    if !lab::has_compiler(NAME) {
        return Ok(());
    }
    let idle = standing()?;
    let program = std::env::temp_dir().join("librxe-static");
    statically_linked(&program)?;
    let probed = probing(2)?;
    let kernel = Window::open(&[])?;
    let sides = ping(&program, "3")?;
    let (probed, kernel) = (probed.close()?, kernel.close()?);
    idle.finish()?;
    fs::remove_file(program)?;
    for (pid, qpn) in sides {
        let row = probed.qp(pid, qpn)?;
        ensure!(row.is("since_attach"), "{row:?}");
        let (ours, theirs) = (total(row, "tx_wr_posted")?, posted(&kernel, pid, qpn)?);
        println!("{ours} posts by probes, {theirs} in the kernel");
        ensure!(ours <= theirs && ours > 0, "{ours} of {theirs}");
    }
    let uprobes = &probed.value()["health"]["uprobes"];
    ensure!(uprobes["off"].is_null() && uprobes["missed"] == 0, "{uprobes}");
    ensure!(
        uprobes["failures"].as_array().is_some_and(Vec::is_empty),
        "{uprobes}"
    );
    Ok(())
}

/// Returns how many work requests of a queue pair a sample has.
fn posted(sample: &Snapshot, pid: u32, qpn: u32) -> Result<u64> {
    total(sample.qp(pid, qpn)?, "tx_wr_posted")
}

/// Starts a user's program that claims to post with other functions than it does.
fn liar(says: &str, behind: &str) -> Result<Traffic> {
    // A copy that another user can run.
    let program = std::env::temp_dir().join("idle-qps-says");
    if !program.exists() {
        fs::copy(traffic::path("idle-qps")?, &program)?;
    }
    let mut command = Command::new("prlimit");
    command
        .args([
            "--memlock=unlimited:unlimited",
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
        ])
        .arg(&program)
        .args(["--qps", "1", "--says", says, "--behind", behind]);
    Ok(Traffic {
        child: Child::spawn(&mut command)?,
    })
}

/// A provider's function is probed for all programs, and the first one that has it says which one it is.
#[test]
fn a_program_that_says_the_wrong_function_changes_no_count_of_others() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("uprobes of exchanged functions") else {
        return Ok(());
    };
    let liar = liar("exchanged", "0")?;
    liar.ready()?;
    // Its QP is judged after that of the program above.
    let idle = standing()?;
    let probed = probing(4)?;
    let kernel = Window::open(&[])?;
    let pair = Perftest::new("ib_send_bw")
        .iterations(1000)
        .args(&["-l", "4"])
        .run()?;
    let (probed, kernel) = (probed.close()?, kernel.close()?);
    idle.finish()?;
    liar.finish()?;
    let [sends, _, bytes] = is_equal(&pair.client, &probed, &kernel)?;
    let [_, receives, _] = is_equal(&pair.server, &probed, &kernel)?;
    let uprobes = &probed.value()["health"]["uprobes"];
    println!("{sends} sends, {receives} receives, {bytes} bytes, {uprobes}");
    ensure!(sends == pair.client.iterations && receives > 0);
    ensure!(uprobes["off"].is_null() && uprobes["missed"] == 0, "{uprobes}");
    ensure!(
        uprobes["failures"].as_array().is_some_and(Vec::is_empty),
        "{uprobes}"
    );
    Ok(())
}

/// A user's programs that claim to post with code that is no provider's function.
#[test]
fn what_a_program_says_is_probed_only_where_a_provider_s_function_begins() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("uprobes of what is no provider's function") else {
        return Ok(());
    };
    let idle = standing()?;
    // A function of another library, an address inside it, and one inside the provider's own function.
    let liars = [liar("write", "0")?, liar("write", "5")?, liar("own", "5")?];
    let ready = liars.iter().map(Traffic::ready).collect::<Result<Vec<_>>>()?;
    let window = probing(2)?;
    window.wait_looks(3)?;
    ensure!(probed(window.pid(), "libc") == 0, "a probe on the C library");
    ensure!(
        probed(window.pid(), "librxe") == 2,
        "only where the honest program's functions begin"
    );
    let sample = window.close()?;
    let said = sample.value()["health"]["uprobes"]["failures"].to_string();
    println!("{said}");
    for line in &ready {
        let pid = format!("process {}\"", line["pids"][0]);
        ensure!(said.contains(&pid), "{pid}: {said}");
    }
    ensure!(said.matches("no provider of verbs").count() == 2, "{said}");
    ensure!(
        said.matches("no function of its library begins").count() == 1,
        "{said}"
    );
    for liar in liars {
        liar.finish()?;
    }
    idle.finish()?;
    Ok(())
}

/// Returns the killed children of a process that wait where no signal ends them.
fn left_behind(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let of = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        let pending = |name| u64::from_str_radix(&value(name), 16).unwrap_or(0);
        let pending = pending("SigPnd:") | pending("ShdPnd:");
        value("PPid:") == parent.to_string()
            && value("State:").starts_with('D')
            && pending & 1 << (libc::SIGKILL - 1) != 0
    };
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(of).collect()
}

/// A program's page that never answers blocks its reader, and no signal ends that.
#[test]
fn sigkill_ends_it_whole_while_the_page_of_a_program_does_not_answer() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("SIGKILL while a page does not answer") else {
        return Ok(());
    };
    output(Command::new("modprobe").arg("fuse"))?;
    leaves_nothing(|| {
        let silent = Traffic::start("stuck-memory", &["--page"])?;
        let pid = id(&silent.ready()?, "pid")?;
        silent
            .child
            .out
            .wait_for("covered", PATIENCE, |line| line == "covered")?;
        let mut command = rdmatop::command(&["--once", "--json", "--delay", "600"])?;
        let mut rdmatop = Child::spawn(command.args(ARGS).envs(ENV))?;
        let ended = (|| {
            rdmatop::wait_counting(&rdmatop)?;
            let reader = wait::for_some("a reader that is left behind", PATIENCE, || {
                Ok(left_behind(rdmatop.pid()).first().copied())
            })?;
            // Others are probed meanwhile.
            let honest = standing()?;
            wait::until("probes on functions of the provider", ATTACHED, || {
                probed(rdmatop.pid(), "librxe") >= 2
            })?;
            // The files are opened before the probes are attached, and the signal must not overtake a thread
            // that waits for a lock meanwhile.
            thread::sleep(Duration::from_secs(5));
            rdmatop.signal(libc::SIGKILL)?;
            let status = rdmatop.wait(SOON)?;
            honest.finish()?;
            ensure!(status.signal() == Some(libc::SIGKILL), "{status}");
            ensure!(
                Path::new(&format!("/proc/{pid}")).exists(),
                "the program has ended"
            );
            Ok(reader)
        })();
        // First, because the end of the blocked reader must not depend on anything here.
        drop(silent);
        let reader = ended?;
        wait::until("the end of the reader", PATIENCE, || {
            !Path::new(&format!("/proc/{reader}")).exists()
        })
    })
}

/// To probe, the kernel locks each process that has the library, and each fork(2) waits meanwhile.
#[test]
fn while_a_program_holds_its_lock_nothing_is_probed_and_fork_works() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("uprobes while the lock of a process is held") else {
        return Ok(());
    };
    output(Command::new("modprobe").arg("fuse"))?;
    let stuck = Traffic::start("stuck-memory", &[])?;
    let pid = id(&stuck.ready()?, "pid")?;
    // When it waits for a page of its program it looks the same, but not for a second.
    let waits = || {
        thread::sleep(Duration::from_millis(100));
        fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| status.contains("State:\tD"))
    };
    wait::until("the lock to be held", PATIENCE, || (0..10).all(|_| waits()))?;
    // Only owners of known QPs are asked for their lock. The kernel lists QPs in the order of their creation:
    // the owner of the lock is known before there is a QP whose functions can be probed.
    let honest = standing()?;
    // Only now, because a program that takes its lock while a function is being probed makes that wait.
    let window = Window::open_with(&ARGS, &ENV)?;
    let held = (|| {
        // Longer than the two seconds that the first check takes.
        window.wait_looks(25)?;
        let probed = probed(window.pid(), "librxe");
        ensure!(probed == 0, "{probed} functions are probed");
        // The child of the shell: the shell itself is started without a copy of memory.
        Child::spawn(Command::new("sh").args(["-c", "(exit 7); [ $? = 7 ]"]))?.succeed(SOON)?;
        // Like fork(2), the end of rdmatop does not wait for the lock.
        let sample = window.close()?;
        let failures = sample.value()["health"]["uprobes"]["failures"].to_string();
        let named = format!("a call of process {pid} holds the lock of its memory");
        ensure!(failures.contains(&named), "{failures}");
        Ok(())
    })();
    // First, because its end releases what waits for it.
    drop(stuck);
    held?;
    let window = Window::open_with(&ARGS, &ENV)?;
    wait::until("probes on functions of the provider", ATTACHED, || {
        probed(window.pid(), "librxe") >= 2
    })?;
    window.close()?;
    honest.finish().map(drop)
}

/// More functions, in one program after another, than can be probed at once. They are not in system
/// libraries, so nothing stays attached after a program has become another one, whether its library was
/// deleted or not.
#[test]
fn probes_that_nobody_can_hit_make_room_for_others() -> Result<()> {
    /// Each program has 14 functions; 128 can be probed.
    const PROGRAMS: usize = 12;
    const EACH: usize = 14;
    let Some(_lab) = Lab::enter_data_path("uprobes of many libraries") else {
        return Ok(());
    };
    let idle = standing()?;
    let library = library(idle.child.pid())?;
    idle.finish()?;
    let window = Window::open_with(&ARGS, &ENV)?;
    let mut counted = Vec::new();
    for turn in 0..PROGRAMS {
        let copy = std::env::temp_dir().join(format!("librxe-copy-{turn}.so"));
        let args = "--rounds 3 --then-exec";
        let mut posts = with_a_copy(&library, &copy, "extended-posts", args)?;
        let ready = posts.ready()?;
        let file = fs::metadata(&copy)?;
        let file = (file.dev(), file.ino());
        let deleted = turn % 6 == 5;
        if deleted {
            fs::remove_file(&copy)?;
        }
        let all = || probed_in(window.pid(), file) == EACH;
        if let Err(error) = wait::until("probes on a program's library", ATTACHED, all) {
            let now = probed_in(window.pid(), file);
            let sample = window.close()?;
            let uprobes = &sample.value()["health"]["uprobes"];
            return Err(error.context(format!("program {turn}, {now} functions: {uprobes}")));
        }
        // The probes of the QP are complete once the last one is attached.
        thread::sleep(Duration::from_millis(500));
        posts.child.tell("go")?;
        let own = posts
            .child
            .out
            .wait_for("its own counts", PATIENCE, |line| line.contains("posted"))?;
        counted.push((ready, serde_json::from_str::<Value>(&own)?));
        // The process is now `cat`, and its QP is gone.
        let none = || probed_in(window.pid(), file) == 0;
        wait::until("the end of the probes on its library", PATIENCE, none)?;
        ensure!(posts.child.ended()?.is_none(), "the process itself lives");
        posts.child.close_stdin();
        posts.child.succeed(PATIENCE)?;
        if !deleted {
            fs::remove_file(&copy)?;
        }
    }
    let sample = window.close()?;
    let mut rejected = 0;
    for (ready, own) in &counted {
        let row = sample.qp(id(ready, "pid")?, id(ready, "qpn")?)?;
        for (key, said) in [("tx_wr_posted", "posted"), ("tx_bytes", "bytes")] {
            ensure!(total(row, key)? == number(own, said)?, "{key}: {own} {row:?}");
        }
        rejected += number(own, "rejected")?;
    }
    let uprobes = &sample.value()["health"]["uprobes"];
    println!(
        "{} programs of {} posts each: {uprobes}",
        counted.len(),
        counted[0].1["posted"]
    );
    ensure!(uprobes["rejected_sends"] == rejected, "{rejected} {uprobes}");
    ensure!(uprobes["off"].is_null() && uprobes["missed"] == 0, "{uprobes}");
    ensure!(
        uprobes["failures"].as_array().is_some_and(Vec::is_empty),
        "{uprobes}"
    );
    Ok(())
}

/// The kernel puts probes into the file. If the program's name for it were another place than the system's,
/// each call would be counted twice.
#[test]
fn a_file_that_a_program_has_under_another_name_is_probed_once() -> Result<()> {
    /// post_send, post_recv, six opcodes, four ways to give data, complete and abort.
    const FUNCTIONS: usize = 14;
    let Some(_lab) = Lab::enter_data_path("uprobes of a file with two names") else {
        return Ok(());
    };
    let idle = standing()?;
    let library = library(idle.child.pid())?;
    idle.finish()?;
    let overlays = Overlays::over(library.parent().context("a directory")?)?;
    let beside = overlays.beside().join(library.file_name().context("a name")?);
    ensure!(
        identity(&beside)? != identity(&library)?,
        "overlays have numbers of their own"
    );
    let directory = std::env::temp_dir();
    let log = directory.join("two-names.log");
    let said = |word: &str| fs::read_to_string(&log).map_or(0, |log| log.matches(word).count());
    for (bound, other_first) in [(&library, true), (&beside, false), (&beside, true)] {
        let files = BTreeSet::from([identity(&library)?, identity(bound)?]);
        let probed = |rdmatop| files.iter().map(|file| probed_in(rdmatop, *file)).sum::<usize>();
        let name = directory.join("librxe-other");
        let other = || with_another_name(bound, &name, "extended-posts", "--rounds 20");
        let own = || Traffic::start("extended-posts", &["--rounds", "20"]);
        let first = if other_first { other()? } else { own()? };
        let before = first.ready()?;
        let log_to = log.display().to_string();
        let window = Window::open_with(&ARGS, &[ENV[0], ("RDMATOP_LOG", &log_to)])?;
        wait::until("probes for the first program", ATTACHED, || {
            probed(window.pid()) == FUNCTIONS
        })?;
        let second = if other_first { own()? } else { other()? };
        let after = second.ready()?;
        if other_first {
            wait::until("probes for all in the place of those for one", ATTACHED, || {
                said("msg=replaced") == FUNCTIONS && said("msg=attached point") == 2 * FUNCTIONS
            })?;
        }
        // Whatever else would be probed, and the first program's QP looked at anew.
        thread::sleep(Duration::from_secs(5));
        let now = probed(window.pid());
        ensure!(
            now == FUNCTIONS,
            "{now} functions are probed: {}",
            said("msg=attached")
        );
        let (first, second) = (first.finish()?, second.finish()?);
        let sample = window.close()?;
        for (ready, own) in [(before, first), (after, second)] {
            let row = sample.qp(id(&ready, "pid")?, id(&ready, "qpn")?)?;
            println!(
                "{}, other name first: {other_first}, program {own}, probes {:?}",
                bound.display(),
                opcodes(row)
            );
            for (key, said) in [("tx_wr_posted", "posted"), ("tx_bytes", "bytes")] {
                ensure!(total(row, key)? == number(&own, said)?, "{key}: {own} {row:?}");
            }
        }
        let uprobes = &sample.value()["health"]["uprobes"];
        println!("{uprobes}");
        ensure!(uprobes["off"].is_null() && uprobes["missed"] == 0, "{uprobes}");
        fs::remove_file(&log)?;
        fs::remove_file(format!("{}-rdmav34.so", name.display()))?;
    }
    Ok(())
}

/// A process that makes 100 QPs, before its provider is probed and after that. It makes them while rdmatop
/// may look at them, and while it may not (`--fifo`, on the guest's only CPU): then each is gone before a
/// look.
#[test]
fn a_sum_of_qps_that_live_shorter_than_a_look_is_exact_or_a_bound() -> Result<()> {
    const POSTED: u64 = 342;
    let Some(_lab) = Lab::enter_data_path("uprobes of short lives") else {
        return Ok(());
    };
    for fifo in [false, true] {
        let mut args = vec!["--count", "100", "--receives", "7"];
        args.extend(fifo.then_some("--fifo"));
        let window = Window::open_with(&ARGS, &ENV)?;
        let before = traffic::run("qp-churn", &args)?;
        let idle = standing()?;
        wait::until("probes on functions of the provider", ATTACHED, || {
            probed(window.pid(), "librxe") >= 2
        })?;
        let after = traffic::run("qp-churn", &args)?;
        let sample = window.close()?;
        idle.finish()?;
        for (when, own) in [("before", before), ("after", after)] {
            let posts = own["receives"].as_array().cloned().unwrap_or_default();
            let posted: u64 = posts.iter().filter_map(|one| one[1].as_u64()).sum();
            ensure!(posts.len() == 100 && posted == POSTED, "{own}");
            let each = Duration::from_nanos(number(&own, "elapsed_ns")? / number(&own, "created")?);
            let row = sample.process(id(&own, "pid")?)?;
            let shown = row.field("rx_wr_posted");
            println!(
                "{when} the probes, alone on its CPU {fifo}: {each:?} for each QP, {posted} posts, {shown}"
            );
            let (exact, bound) = (&shown["total"], &shown["at_least"]["total"]);
            let is_bound = exact.is_null() && bound.as_u64().is_none_or(|least| least <= posted);
            ensure!(*exact == posted || is_bound, "{when}, {fifo}: {row:?}");
            // Nothing need be known of them before the probes. After that all is counted.
            let known = exact.as_u64().or(bound.as_u64());
            ensure!(
                when == "before" || known == Some(posted),
                "{when}, {fifo}: {row:?}"
            );
        }
    }
    Ok(())
}

/// The page of a program that does not answer at first, and does later.
#[test]
fn a_program_whose_memory_answers_late_is_asked_again_and_probed() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("uprobes of a page that answers late") else {
        return Ok(());
    };
    output(Command::new("modprobe").arg("fuse"))?;
    let mut silent = Traffic::start("stuck-memory", &["--page", "--until-line"])?;
    let pid = id(&silent.ready()?, "pid")?;
    silent
        .child
        .out
        .wait_for("covered", PATIENCE, |line| line == "covered")?;
    let log = std::env::temp_dir().join("late-answer.log");
    let log_to = log.display().to_string();
    let window = Window::open_with(&ARGS, &[ENV[0], ("RDMATOP_LOG", &log_to)])?;
    let says = |words: &str| fs::read_to_string(&log).is_ok_and(|log| log.contains(words));
    wait::until("a line about the program", PATIENCE, || {
        says("its memory does not answer")
    })?;
    ensure!(probed(window.pid(), "librxe") == 0, "who could say where?");
    silent.child.tell("answer")?;
    wait::until("probes on functions of the provider", ATTACHED, || {
        probed(window.pid(), "librxe") == 2
    })?;
    // The QP is ready once both are attached.
    thread::sleep(Duration::from_secs(2));
    let sample = window.close()?;
    silent.child.signal(libc::SIGKILL)?;
    silent.child.wait(PATIENCE)?;
    fs::remove_file(&log)?;
    let uprobes = &sample.value()["health"]["uprobes"];
    println!("process {pid}: {uprobes}");
    ensure!(uprobes["qps"] == 1, "{uprobes}");
    ensure!(
        uprobes["failures"].as_array().is_some_and(Vec::is_empty),
        "what was said of it is true no more: {uprobes}"
    );
    Ok(())
}
