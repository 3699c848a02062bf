//! The owners of QPs in difficult cases: other users, namespaces, reused PIDs, processes that end at once,
//! hostile names. The counts of each process are compared with what it posted.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use rdmatop_tests::{
    child::{Child, output},
    lab::{DEVICE, Lab, netdev, skip},
    netns::{Exclusive, Namespace},
    rdmatop::{self, END, Trace, Window},
    rxe::Rxe,
    snapshot::{Row, Snapshot},
    traffic::{self, Traffic, id, number},
    wait::{self, PATIENCE},
};
use serde_json::Value;

/// A run that takes longer hangs.
const LIMIT: Duration = PATIENCE;

/// Copies traffic program `from` to `/tmp/NAME`, which every user may run.
fn copy_of(from: &str, name: &str) -> Result<PathBuf> {
    let to = Path::new("/tmp").join(name);
    fs::copy(traffic::path(from)?, &to)?;
    fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
    Ok(to)
}

/// Runs a command to its end; returns what its traffic program printed last.
fn run(command: &mut Command) -> Result<Value> {
    finish(Child::spawn(command)?)
}

/// Lets a program end; returns what it printed last.
fn finish(mut child: Child) -> Result<Value> {
    child.close_stdin();
    child.succeed(LIMIT)?;
    let last = child.out.all().pop().context("it printed nothing")?;
    Ok(serde_json::from_str(&last)?)
}

/// Returns the rows of processes with this PID.
fn processes(sample: &Snapshot, pid: u32) -> Vec<Row<'_>> {
    sample.processes().filter(|row| row.field("pid") == pid).collect()
}

/// Returns the only row of this PID, which must have exactly `posted` requests.
fn exact(sample: &Snapshot, pid: u32, posted: u64) -> Result<Row<'_>> {
    let rows = processes(sample, pid);
    let [row] = rows.as_slice() else {
        bail!("{} rows of pid {pid}: {rows:?}", rows.len());
    };
    // Before 5.11 there is no BTF of modules, so the count is unknown, not 0.
    let wanted = counts().then_some(posted);
    ensure!(row.total("tx_wr") == wanted, "{posted} posted: {row:?}");
    Ok(*row)
}

fn counts() -> bool {
    fs::exists("/sys/kernel/btf/rdma_rxe").unwrap_or(false)
}

/// A thread that is not the first creates the QP, so the kernel lists it under the thread's id; later a child
/// posts through the inherited file. Both must be shown as the process that created the QP.
#[test]
fn a_qp_that_a_thread_made_and_a_child_uses_stays_its_creator_s() -> Result<()> {
    let Some(_lab) = Lab::enter("a shared QP") else {
        return Ok(());
    };
    let window = Window::open(&[])?;
    let shared = Traffic::start("shared-qp", &["--count", "150"])?;
    let ready = shared.ready()?;
    let (pid, tid, qpn) = (id(&ready, "pid")?, id(&ready, "tid")?, id(&ready, "qpn")?);
    ensure!(pid != tid, "{ready}");
    // The view from netlink alone.
    let listed = rdmatop::once(&["--no-ebpf", "--delay", "0.5"])?;
    ensure!(listed.qp(pid, qpn)?.field("comm") == "shared-qp", "{listed:?}");
    let done = shared.finish()?;
    let sample = window.close()?;
    let posted = number(&done, "posted")?;
    exact(&sample, pid, posted)?;
    let qp = sample.qp(pid, qpn)?;
    if counts() {
        ensure!(qp.total("tx_wr") == Some(posted), "{qp:?}");
        ensure!(qp.total("tx_bytes") == Some(number(&done, "bytes")?), "{qp:?}");
    }
    for other in [tid, id(&done, "child")?] {
        let rows = sample.qps().filter(|row| *row.field("pid") == other).count();
        ensure!(rows == 0, "{rows} QPs of task {other}, which owns none");
    }
    Ok(())
}

/// The kernel names no process for a QP whose creating thread has ended. The process lives on, so the QP is
/// no orphan.
#[test]
fn a_qp_whose_creating_thread_has_ended_is_its_process_s_and_no_orphan() -> Result<()> {
    let Some(_lab) = Lab::enter("an ended thread") else {
        return Ok(());
    };
    let window = Window::open(&[])?;
    let shared = Traffic::start("shared-qp", &["--count", "150", "--thread-ends"])?;
    let ready = shared.ready()?;
    let (pid, qpn) = (id(&ready, "pid")?, id(&ready, "qpn")?);
    // An rdmatop that starts now, and one that has only netlink.
    let later = rdmatop::once(&["--delay", "0.5"])?;
    let listed = rdmatop::once(&["--no-ebpf", "--delay", "0.5"])?;
    let done = shared.finish()?;
    let sample = window.close()?;
    exact(&sample, pid, number(&done, "posted")?)?;
    // Before 5.11 no program finds the owners of QPs that are older than the program.
    let owned = [Some(&sample), counts().then_some(&later)];
    for sample in owned.into_iter().flatten() {
        let row = sample.qp(pid, qpn)?;
        ensure!(*row.field("orphan") == false, "{row:?}");
        ensure!(row.field("comm") == "shared-qp", "{row:?}");
    }
    let row = listed.qps().find(|row| *row.field("qpn") == qpn);
    let row = row.context("netlink lists no such QP")?;
    ensure!(
        row.field("pid").is_null() && *row.field("orphan") == true,
        "{row:?}"
    );
    Ok(())
}

#[test]
fn traffic_of_another_user_has_its_owner_and_its_counts() -> Result<()> {
    let Some(_lab) = Lab::enter("another user") else {
        return Ok(());
    };
    let program = copy_of("timed-posts", "others-posts")?;
    let window = Window::open(&[])?;
    let child = Child::spawn(
        Command::new("prlimit")
            .args(["--memlock=unlimited:unlimited", "setpriv"])
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
            .arg(&program)
            .args(["--count", "123", "--wait"])
            .current_dir("/"),
    )?;
    child
        .out
        .wait_for("ready", LIMIT, |line| line.contains("ready"))
        .with_context(|| child.err.text())?;
    // Whoever lives for a second is looked up (some kernels' records are read once a second): 15 looks.
    window.wait_looks(15)?;
    let done = finish(child)?;
    let sample = window.close()?;
    let row = exact(&sample, id(&done, "pid")?, 123)?;
    ensure!(row.field("comm") == "others-posts", "{row:?}");
    ensure!(row.field("user") == "nobody", "{row:?}");
    Ok(())
}

/// Returns the PID on this host of the only process named `comm`.
fn host_pid(comm: &str) -> Result<u32> {
    wait::for_some("the process in its namespace", END, || {
        let found = output(Command::new("pgrep").args(["-x", comm]));
        Ok(found.ok().and_then(|text| text.trim().parse().ok()))
    })
}

#[test]
fn a_process_in_namespaces_has_its_host_s_pid_name_and_container() -> Result<()> {
    let Some(_lab) = Lab::enter("namespaces") else {
        return Ok(());
    };
    // The name that containerd gives a pod's cgroup under systemd.
    let container = "5f1c0e4a9d2b7763".repeat(4);
    let pod = "8d2f5e10_7a55_4c1b_9d0e_1f2a3b4c5d6e";
    let cgroup = format!(
        "/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod}.slice/cri-containerd-{container}.scope"
    );
    fs::create_dir_all(&cgroup)?;
    let program = copy_of("timed-posts", "in-a-pod")?;
    let network = Namespace::new("rdmatop-pod")?;
    let window = Window::open(&[])?;
    let script = format!(
        "echo $$ >{cgroup}/cgroup.procs && exec ip netns exec {} unshare --pid --fork --mount-proc --uts --ipc {} --count 321 --wait",
        network.name(),
        program.display()
    );
    let mut child = Child::spawn(Command::new("sh").args(["-c", &script]))?;
    let line = child.out.wait_for("ready", LIMIT, |line| line.contains("ready"));
    let ready: Value = serde_json::from_str(&line.with_context(|| child.err.text())?)?;
    let inside = id(&ready, "pid")?;
    let pid = host_pid("in-a-pod")?;
    ensure!(
        inside != pid,
        "the process has no PID namespace of its own: {pid}"
    );
    // A sample while the process lives, like one of the live view.
    let seen = rdmatop::once(&["--delay", "0.2"])?;
    // As if the pod's directory were one of many that a user may have made.
    let top = "/sys/fs/cgroup/kubepods.slice";
    chown(top, Some(65534), None)?;
    let handed_over = rdmatop::once(&["--delay", "0.2"]);
    chown(top, Some(0), None)?;
    let claim = handed_over?;
    let row = claim.process(pid)?;
    ensure!(
        row.is("workload_claimed") && row.field("workload").to_string().ends_with("?\""),
        "{row:?}"
    );
    child.close_stdin();
    child.succeed(LIMIT)?;
    let sample = window.close()?;
    for (sample, posted) in [(&seen, None), (&sample, Some(321))] {
        let row = match posted {
            Some(posted) => exact(sample, pid, posted)?,
            None => sample.process(pid)?,
        };
        ensure!(row.field("comm") == "in-a-pod", "{row:?}");
        let workload = row.field("workload").as_str().unwrap_or_default();
        ensure!(
            workload == format!("pod {}", pod.replace('_', "-")) && !row.is("workload_claimed"),
            "the pod is not named: {row:?}"
        );
        let cgroup = row.field("cgroup").as_str().unwrap_or_default();
        ensure!(cgroup.contains(&container), "the container is not named: {row:?}");
        ensure!(
            processes(sample, inside)
                .iter()
                .all(|row| row.field("comm") != "in-a-pod")
        );
    }
    fs::remove_dir(&cgroup)?;
    Ok(())
}

/// Number of processes that get the same PID one after another.
const ROUNDS: u64 = 8;

/// Starts the program as PID `wanted`, unless another process gets that number first.
fn start_as(wanted: u32, program: &Path, count: u64) -> Result<Option<Value>> {
    // One shell sets the number and forks, with nothing of its own in between.
    let script = format!(
        "echo {} >/proc/sys/kernel/ns_last_pid; {} --count {count} & wait $!",
        wanted - 1,
        program.display()
    );
    let done = run(Command::new("sh").args(["-c", &script]))?;
    Ok((id(&done, "pid")? == wanted).then_some(done))
}

#[test]
fn a_pid_that_is_reused_under_traffic_is_another_process() -> Result<()> {
    let Some(_lab) = Lab::enter("reused pid") else {
        return Ok(());
    };
    if !fs::exists("/proc/sys/kernel/ns_last_pid")? {
        skip("reused pid", "this kernel has no ns_last_pid");
        return Ok(());
    }
    let program = copy_of("timed-posts", "same-pid")?;
    let window = Window::open(&[])?;
    let wanted = 29_000;
    let mut posted = Vec::new();
    for round in 0..ROUNDS * 4 {
        if let Some(done) = start_as(wanted, &program, 50 + round)? {
            posted.push(number(&done, "count")?);
        }
        if posted.len() as u64 == ROUNDS {
            break;
        }
    }
    let sample = window.close()?;
    ensure!(
        posted.len() as u64 == ROUNDS,
        "only {} processes got pid {wanted}",
        posted.len()
    );
    // The shell has this PID too before it becomes the program.
    let mut rows = processes(&sample, wanted);
    rows.retain(|row| row.field("comm") == "same-pid");
    ensure!(
        rows.len() as u64 == ROUNDS,
        "{ROUNDS} processes, {} rows: {rows:?}",
        rows.len()
    );
    if counts() {
        let mut counted: Vec<_> = rows.iter().filter_map(|row| row.total("tx_wr")).collect();
        counted.sort_unstable();
        posted.sort_unstable();
        assert_eq!(counted, posted, "{rows:?}");
    }
    Ok(())
}

#[test]
fn a_process_that_ends_at_once_keeps_its_name_and_its_counts() -> Result<()> {
    let Some(_lab) = Lab::enter("short lives") else {
        return Ok(());
    };
    let window = Window::open(&[])?;
    let mut done = Vec::new();
    for round in 0..20 {
        done.push(traffic::run(
            "timed-posts",
            &["--count", &(round + 1).to_string()],
        )?);
    }
    let sample = window.close()?;
    for done in done {
        let row = exact(&sample, id(&done, "pid")?, number(&done, "count")?)?;
        ensure!(row.field("comm") == "timed-posts", "{row:?}");
        ensure!(row.is("exited"), "{row:?}");
    }
    Ok(())
}

/// A job on a vanished file server looks like this. Whoever reads its memory through /proc waits until the
/// job is killed.
#[test]
fn a_process_that_cannot_be_read_is_named_and_blinds_nobody() -> Result<()> {
    let Some(_lab) = Lab::enter("memory that cannot be read") else {
        return Ok(());
    };
    output(Command::new("modprobe").arg("fuse"))?;
    let stuck = Traffic::start("stuck-memory", &[])?;
    let ready = stuck.ready()?;
    let (pid, qpn) = (id(&ready, "pid")?, id(&ready, "qpn")?);
    wait::for_some("the lock to be held", PATIENCE, || {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        Ok(status.contains("State:\tD").then_some(()))
    })?;
    let window = Window::open(&[])?;
    let other = Traffic::start("timed-posts", &["--count", "120", "--wait"])?;
    other.ready()?;
    // It is read while the other process still blocks its reader, or while rdmatop rests.
    window.wait_looks(10)?;
    let done = other.finish()?;
    let sample = window.close()?;
    let row = exact(&sample, id(&done, "pid")?, number(&done, "count")?)?;
    let command = row.field("cmdline").as_str().unwrap_or_default();
    ensure!(command.ends_with("timed-posts --count 120 --wait"), "{row:?}");
    let row = exact(&sample, pid, 0)?;
    ensure!(
        row.field("comm") == "stuck-memory" && row.field("user") == "root",
        "{row:?}"
    );
    for unknown in ["cmdline", "environ", "libraries"] {
        ensure!(row.field(unknown).is_null(), "{unknown}: {row:?}");
    }
    sample.qp(pid, qpn)?;
    let notes = &sample.value()["health"]["notes"];
    let note = notes
        .as_array()
        .into_iter()
        .flatten()
        .find(|note| note["id"] == "slow-process");
    let note = note.with_context(|| format!("no note: {notes}"))?;
    let (what, why) = (note["what"].as_str(), note["why"].as_str());
    ensure!(
        what == Some(&format!(
            "Unknown of stuck-memory ({pid}): command line, environment, libraries"
        )),
        "{note}"
    );
    ensure!(
        why.is_some_and(|why| why.starts_with(&format!("/proc/{pid}/cmdline did not answer for 2 s: "))),
        "{note}"
    );
    Ok(())
}

/// Another process holds its verbs file and destroys the remaining objects.
#[test]
fn a_process_that_has_ended_has_one_row_while_its_file_is_held() -> Result<()> {
    let Some(_lab) = Lab::enter("one row of a process whose file is held") else {
        return Ok(());
    };
    for args in [&[][..], &["--thread"]] {
        let window = Window::open(&[])?;
        let held = Traffic::start("hold-fd", args)?;
        let ready = held.ready()?;
        let (owner, qpn) = (id(&ready, "owner")?, id(&ready, "qpn")?);
        // New processes take the memory that the kernel kept of the owner's tasks.
        output(Command::new("sh").args(["-c", "for i in $(seq 300); do (:); done; sleep 1"]))?;
        let listed = rdmatop::once(&["--delay", "2"])?;
        held.finish()?;
        let sample = window.close()?;
        let rows = processes(&sample, owner);
        let [row] = rows.as_slice() else {
            bail!("{args:?}: {} rows of {owner}: {rows:?}", rows.len());
        };
        ensure!(row.field("comm") == "hold-fd", "{row:?}");
        sample.qp(owner, qpn)?;
        ensure!(processes(&listed, owner).len() <= 1, "{args:?}: {listed:?}");
    }
    Ok(())
}

/// Returns a character that a terminal obeys: a control, or a mark that changes the text direction.
fn dangerous(text: &str) -> Option<char> {
    let turns =
        |c: char| matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().find(|c| (c.is_control() && *c != '\n') || turns(*c))
}

#[test]
fn names_that_would_command_a_terminal_are_harmless_everywhere() -> Result<()> {
    let Some(_lab) = Lab::enter("hostile names") else {
        return Ok(());
    };
    // The kernel keeps fifteen bytes, which execve(2) takes from the file name.
    let comm = "e\u{1b}[7m\n\u{202e}\"x";
    let program = copy_of("timed-posts", comm)?;
    let rxe = Rxe::up("rxetame", 7)?;
    let hostile = "foo/b\u{1b}[5m\nr";
    output(Command::new("rdma").args(["dev", "set", "rxetame", "name", hostile]))?;
    let trace = Trace::start(&[])?;
    let mut lines = Child::spawn(&mut rdmatop::command(&["--trace"])?)?;
    rdmatop::wait_counting(&lines)?;
    let window = Window::open(&[])?;
    let mut text = Child::spawn(&mut rdmatop::command(&["--once", "--delay", "600"])?)?;
    rdmatop::wait_counting(&text)?;
    let done = run(Command::new(&program).args(["--count", "40"]))?;
    let pid = id(&done, "pid")?;
    let sample = window.close()?;
    for child in [&mut lines, &mut text] {
        child.signal(libc::SIGINT)?;
        child.succeed(END)?;
    }
    let traced = trace.stop()?;
    for (what, text) in [("--once", text.out.text()), ("--trace", lines.out.text())] {
        ensure!(
            dangerous(&text).is_none(),
            "{what}: {:?} in {text:?}",
            dangerous(&text)
        );
        // The name is there with its escape spelled out.
        ensure!(text.contains("[7m"), "{what} lost the name: {text}");
    }
    let row = exact(&sample, pid, 40)?;
    let name = row.field("comm").as_str().unwrap_or_default();
    ensure!(name.contains("[7m") && dangerous(name).is_none(), "{name:?}");
    let event = traced.events.pid(pid);
    ensure!(
        event.all().iter().all(|event| event["comm"] == name),
        "{:?}",
        event.all()
    );
    // sysfs replaces a slash by an exclamation mark; the port's state and counters are below that name.
    let device = sample.value()["devices"].as_array().into_iter().flatten();
    let device = device
        .filter(|device| device["index"] == rxe.index())
        .collect::<Vec<_>>();
    let [device] = device.as_slice() else {
        bail!(
            "no device of index {}: {}",
            rxe.index(),
            sample.value()["devices"]
        );
    };
    let shown = device["name"].as_str().unwrap_or_default();
    ensure!(
        shown.starts_with("foo/b") && dangerous(shown).is_none(),
        "{shown:?}"
    );
    let ports = sample.value()["ports"].as_array().into_iter().flatten();
    let port = ports
        .filter(|port| port["device_uid"] == device["uid"])
        .collect::<Vec<_>>();
    ensure!(
        port.len() == 1 && port[0]["state"] == "ACTIVE" && port[0]["tx_packets"]["total"] == 0,
        "{port:?}"
    );
    fs::remove_file(program)?;
    Ok(())
}

#[test]
fn a_network_namespace_without_devices_is_named_as_such() -> Result<()> {
    let Some(_lab) = Lab::enter("exclusive network namespaces") else {
        return Ok(());
    };
    // In shared mode a device of another namespace is shown, without the network device, which is not in this
    // namespace: one of the same name is another one, which says nothing of the port.
    let namespace = Namespace::new("rdmatop-other")?;
    let netdev = netdev(DEVICE)?;
    let words = [
        "-n",
        namespace.name(),
        "link",
        "add",
        &netdev,
        "mtu",
        "777",
        "type",
        "dummy",
    ];
    output(Command::new("ip").args(words))?;
    let inside = |words: &[&str]| -> Result<(Option<i32>, Child)> {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", namespace.name()])
            .arg(rdmatop::program()?)
            .args(words);
        let mut child = Child::spawn(command.env("NO_COLOR", "1"))?;
        let status = child.wait(END)?;
        Ok((status.code(), child))
    };
    let json = ["--once", "--json", "--delay", "0.2"];
    let (code, child) = inside(&json)?;
    ensure!(code == Some(0), "{code:?}: {}", child.err.text());
    let shared = Snapshot::parse(&child.out.text())?;
    let names: Vec<_> = shared.value()["devices"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|device| &device["name"])
        .collect();
    ensure!(names.iter().any(|name| *name == DEVICE), "{names:?}");
    let ports = shared.value()["ports"].as_array().into_iter().flatten();
    let port = ports
        .clone()
        .find(|port| port["device"] == DEVICE)
        .context("no port")?;
    ensure!(
        port["netdev"].is_null() && port["netdev_mtu"].is_null(),
        "{port:#}"
    );
    let (_, child) = inside(&["doctor", "--json"])?;
    ensure!(!child.out.text().contains("777"), "{}", child.out.text());
    drop(namespace);
    // The kernel changes this mode only while there is no other namespace.
    let exclusive = Exclusive::on()?;
    let namespace = Namespace::new("rdmatop-none")?;
    // Without the processes of others, as in a container: there the devices cannot be looked for.
    let mut command = Command::new("ip");
    command
        .args(["netns", "exec", namespace.name()])
        .args(["unshare", "--pid", "--fork", "--mount-proc"])
        .arg(rdmatop::program()?)
        .args(["--once", "--delay", "0.2"]);
    let mut child = Child::spawn(command.env("NO_COLOR", "1"))?;
    let code = child.wait(END)?.code();
    let said = child.err.text();
    ensure!(code == Some(3), "{code:?}: {said}");
    ensure!(
        said.contains("network namespace"),
        "it does not say where it looked: {said}"
    );
    drop(namespace);
    drop(exclusive);
    Ok(())
}
