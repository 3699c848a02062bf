//! Findings on a real kernel: each trouble that the lab can cause is found and named, and nothing else;
//! healthy traffic has no findings.

use std::{fs, path::Path, process::Command, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    check::{Check, Looking},
    child::{Child, output},
    device::Device,
    lab::{self, DEVICE, Lab, skip},
    perftest::{Pair, Perftest},
    rdmatop::{END, Window},
    traffic::Traffic,
    wait,
    wire::{self, Wire},
};
use serde_json::Value;

/// More messages than perftest can send during the check.
const ENDLESS: u64 = 2_000_000;

/// Starts a pair that moves data until it is dropped.
fn moving(program: &'static str, args: &[&str]) -> Result<Pair> {
    let packets = || lab::hw_counter(DEVICE, "rcvd_pkts")?.context("no rcvd_pkts");
    let before = packets()?;
    let pair = Perftest::new(program).iterations(ENDLESS).size(4096).args(args);
    let pair = pair.start()?;
    pair.wait_connected()?;
    wait::for_some("packets of the pair", END, || {
        Ok((packets()? >= before + 500).then_some(()))
    })?;
    pair.server.step_back()?;
    pair.client.step_back()?;
    Ok(pair)
}

#[test]
fn healthy_traffic_has_no_findings() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("findings: healthy") else {
        return Ok(());
    };
    // In parallel: several QPs, a latency test, READs, and a program that keeps its queue full but posts only
    // when there is room.
    let mut pairs = Vec::new();
    for (program, args) in [
        ("ib_send_bw", &["-q", "2", "-t", "128"][..]),
        ("ib_write_lat", &[]),
        ("ib_read_bw", &[]),
    ] {
        pairs.push(moving(program, args)?);
    }
    let check = Check::of("12")?;
    ensure!(
        check.findings()?.is_empty() && check.code == Some(0),
        "{:#}",
        check.document
    );
    ensure!(check.document["verdict"] == "ok", "{:#}", check.document);
    for pair in &mut pairs {
        ensure!(
            pair.client.ended()?.is_none(),
            "a pair had ended before the check"
        );
    }
    Ok(())
}

#[test]
fn a_receiver_that_is_stopped_is_named_and_not_its_sender() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("findings: stopped receiver") else {
        return Ok(());
    };
    let pair = moving("ib_send_bw", &[])?;
    pair.server.signal(libc::SIGSTOP)?;
    let check = Check::of("8")?;
    pair.server.signal(libc::SIGCONT)?;
    let found = check.is_only("receiver-not-ready", 2, Some(pair.server.pid()))?;
    ensure!(found["device"] == DEVICE, "{found:#}");
    let victims = found["victims"].as_array().context("no victims")?;
    ensure!(victims.len() == 1, "{found:#}");
    let sender = format!("PID {}", pair.client.pid());
    ensure!(
        found["verdict"]
            .as_str()
            .is_some_and(|line| line.contains(&sender)),
        "{found:#}"
    );
    Ok(())
}

#[test]
fn a_peer_that_was_killed_is_missed_by_its_sender() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("findings: dead peer") else {
        return Ok(());
    };
    let pair = moving("ib_write_bw", &[])?;
    pair.server.signal(libc::SIGKILL)?;
    // rxe takes 7 retries, perftest's default, as endless, so the sender waits for ever.
    let check = Check::of("10")?;
    let found = check.is_only("peer-gone", 2, Some(pair.client.pid()))?;
    // The address of the peer, which the driver alone knows by now, is one of this host.
    let verdict = found["verdict"].as_str().unwrap_or_default();
    let named = format!("of {DEVICE} on this host, was destroyed");
    ensure!(verdict.contains(&named), "{found:#}");
    Ok(())
}

#[test]
fn qps_that_nobody_connects_are_found_by_state_alone() -> Result<()> {
    let Some(_lab) = Lab::enter("findings: INIT") else {
        return Ok(());
    };
    let idle = Traffic::start("idle-qps", &["--qps", "3", "--state", "init"])?;
    let pid = pid_of(&idle.ready()?["pids"][0])?;
    Check::of("8")?.is_only("qp-setup", 1, Some(pid))?;
    idle.finish()?;
    Ok(())
}

fn pid_of(value: &Value) -> Result<u32> {
    let pid = value.as_u64().context("no pid")?;
    Ok(u32::try_from(pid)?)
}

#[test]
fn what_a_process_does_wrong_is_named() -> Result<()> {
    let Some(_lab) = Lab::enter("findings: misuse") else {
        return Ok(());
    };
    let mut wrong = Vec::new();
    for (what, id, severity) in [
        ("mr-churn", "mr-churn", "warning"),
        ("qp-churn", "qp-churn", "warning"),
        ("qp-leak", "qp-leak", "warning"),
        ("memlock", "verb-fails", "critical"),
    ] {
        let misuse = Traffic::start("misuse", &["--what", what])?;
        let pid = pid_of(&misuse.ready()?["pid"])?;
        wrong.push((misuse, pid, id, severity));
    }
    // In parallel, and each must be found once. They keep the CPU busy, so the leaking one gets its share
    // late.
    let check = Check::of("24")?;
    let findings = check.findings()?;
    ensure!(
        findings.len() == wrong.len() && check.code == Some(2),
        "{:#}",
        check.document
    );
    for (misuse, pid, id, severity) in wrong {
        misuse.finish()?;
        let found = findings.iter().find(|found| found["pid"] == pid);
        let found = found.with_context(|| format!("{id}, PID {pid}: {:#}", check.document))?;
        ensure!(
            found["id"] == id && found["severity"] == severity,
            "{id}, {severity}: {found:#}"
        );
        let verdict = found["verdict"].as_str().context("no verdict")?;
        ensure!(verdict.contains(&format!("PID {pid}")), "{verdict}");
        ensure!(
            id != "verb-fails"
                || verdict.starts_with("reg_mr of misuse")
                    && verdict
                        .ends_with("fails with ENOMEM: its locked-memory limit is 8 KiB (0 bytes in use)"),
            "{verdict}"
        );
    }
    Ok(())
}

#[test]
fn a_program_that_posts_to_a_queue_without_room_is_named() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("findings: full queue") else {
        return Ok(());
    };
    let wire = Wire::up()?;
    // Work requests must take a while: before Linux 6.4 SoftRoCE would finish each before its post returns.
    let slow = wire.delay("10ms")?;
    let args = ["--device", wire::CLIENT, "--peer", wire::SERVER];
    let misuse = Traffic::start("misuse", &[&["--what", "full-queue"], &args[..]].concat())?;
    let pid = pid_of(&misuse.ready()?["pid"])?;
    let found = Check::of("12")?;
    let done = misuse.finish()?;
    ensure!(done["failed"].as_u64() > done["done"].as_u64(), "{done}");
    found.is_only("send-queue-full", 1, Some(pid))?;
    drop(slow);
    Ok(())
}

#[test]
fn a_process_with_one_qp_beside_one_with_sixteen_is_named() -> Result<()> {
    let name = "findings: one QP beside sixteen";
    let Some(lab) = Lab::enter_data_path(name) else {
        return Ok(());
    };
    if !lab.is_at_least((6, 12)) {
        // Measured: 31 MiB/s each.
        let release = &lab.release;
        skip(
            name,
            &format!("on Linux {release} SoftRoCE gives one QP as much as sixteen of another process"),
        );
        return Ok(());
    }
    // The kernel's work for a message is much more than the program's, so that QPs, not programs, share the
    // CPU.
    let qps = |qps| {
        let pair = Perftest::new("ib_write_bw").iterations(ENDLESS).size(65_536);
        // Behind two thousand others a packet is answered late: four seconds avoid a retransmission.
        let pair = pair.args(&["-q", qps, "-u", "20"]).start()?;
        pair.wait_connected()?;
        pair.server.step_back()?;
        pair.client.step_back()?;
        anyhow::Ok(pair)
    };
    let (many, few) = (qps("16")?, qps("1")?);
    let check = Check::of("24")?;
    let found = check.is_only("port-contention", 0, None)?;
    ensure!(
        found["device"] == DEVICE && found["severity"] == "info",
        "{found:#}"
    );
    let verdict = found["verdict"].as_str().context("no verdict")?;
    for (pair, sends) in [(&few, "with 1 QP "), (&many, "with 16:")] {
        let pid = format!("PID {}", pair.client.pid());
        ensure!(verdict.contains(&pid) && verdict.contains(sends), "{verdict}");
    }
    Ok(())
}

/// More than three intervals of ten seconds: on a busy guest looks, and with them intervals, take longer.
const FAST: Duration = Duration::from_secs(80);
/// At least two intervals. If the path were slow for longer than it was fast, slow would count as usual.
const SLOW: Duration = Duration::from_mins(1);

#[test]
fn work_requests_on_a_path_that_becomes_slow_are_named() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("findings: slow path") else {
        return Ok(());
    };
    let wire = Wire::up()?;
    let delay = wire.delay("3ms")?;
    let sent = || lab::hw_counter(wire::CLIENT, "sent_pkts")?.context("no sent_pkts");
    let before = sent()?;
    let pair = Perftest::new("ib_write_bw")
        .iterations(ENDLESS)
        .size(1024)
        // The retransmission timeout is four seconds, so that a slow path causes no retransmissions.
        .args(&["-t", "24", "-u", "20"])
        .devices(wire::SERVER, wire::CLIENT)
        .start()?;
    pair.wait_connected()?;
    wait::for_some("packets of the pair", END, || {
        Ok((sent()? >= before + 500).then_some(()))
    })?;
    let looking = Looking::begin_attached("900")?;
    thread::sleep(FAST);
    // In both directions. The guest has one CPU, on which perftest polls: on a busy host the fast path too
    // has times of a quarter of a second, and 100 ms would make the slow times only four times as long.
    delay.change_delay("600ms")?;
    thread::sleep(SLOW);
    let check = looking.interrupt()?;
    drop(delay);
    check.is_only("latency-rises", 1, Some(pair.client.pid()))?;
    drop(pair);
    Ok(())
}

#[test]
fn a_port_that_goes_down_three_times_flaps() -> Result<()> {
    let Some(_lab) = Lab::enter("findings: flaps") else {
        return Ok(());
    };
    let device = Device::add("rxe-find", 77)?;
    let netdev = lab::netdev("rxe-find")?;
    let looking = Looking::begin("45")?;
    thread::sleep(Duration::from_secs(10));
    for _ in 0..3 {
        output(Command::new("ip").args(["link", "set", &netdev, "down"]))?;
        thread::sleep(Duration::from_secs(1));
        output(Command::new("ip").args(["link", "set", &netdev, "up"]))?;
        thread::sleep(Duration::from_secs(1));
    }
    let check = looking.end()?;
    let found = check
        .findings()?
        .iter()
        .find(|found| found["id"] == "link-flaps")
        .with_context(|| format!("{:#}", check.document))?;
    ensure!(found["device"] == "rxe-find" && found["port"] == 1, "{found:#}");
    let verdict = found["verdict"].as_str().context("no verdict")?;
    ensure!(
        verdict.starts_with("The link of rxe-find/1 flaps: it went down 3 times within "),
        "{verdict}"
    );
    drop(device);
    Ok(())
}

#[test]
fn completions_without_room_and_work_requests_that_fail_are_named() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("findings: completions") else {
        return Ok(());
    };
    let misuse = Traffic::start("misuse", &["--what", "no-poll"])?;
    let pid = pid_of(&misuse.ready()?["pid"])?;
    let check = Check::of("8")?;
    misuse.finish()?;
    check.is_only("cq-overflow", 2, Some(pid))?;

    let misuse = Traffic::start("misuse", &["--what", "wrong-key"])?;
    let pid = pid_of(&misuse.ready()?["pid"])?;
    let check = Check::of("12")?;
    misuse.finish()?;
    let mut found: Vec<_> = check
        .findings()?
        .iter()
        .map(|found| (found["id"].as_str(), found["pid"].as_u64()))
        .collect();
    found.sort_unstable();
    let pid = Some(u64::from(pid));
    ensure!(
        found == [(Some("completion-error"), pid), (Some("qp-error"), pid)],
        "{:#}",
        check.document
    );
    ensure!(
        check.findings()?.iter().any(|found| found["verdict"]
            .as_str()
            .is_some_and(|line| line.contains("the peer refused access to its memory"))),
        "{:#}",
        check.document
    );
    Ok(())
}

/// A cgroup whose processes may have only a few RDMA objects of the lab's device.
struct RdmaCgroup;

impl RdmaCgroup {
    const DIR: &str = "/sys/fs/cgroup/rdmatop-limit";

    fn with(objects: u32) -> Result<Self> {
        fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+rdma")?;
        fs::create_dir_all(Self::DIR)?;
        let limit = format!("{DEVICE} hca_object={objects}");
        fs::write(format!("{}/rdma.max", Self::DIR), limit)?;
        Ok(Self)
    }
}

impl Drop for RdmaCgroup {
    fn drop(&mut self) {
        // If a cgroup is removed with a limit but without objects, its freed limit stays in the device's
        // list, and the kernel crashes when the device is removed (rdmacg_css_offline, seen on 6.12). So the
        // limit is lifted first.
        let _ = fs::write(
            format!("{}/rdma.max", Self::DIR),
            format!("{DEVICE} hca_object=max"),
        );
        let _ = fs::remove_dir(Self::DIR);
    }
}

#[test]
fn a_cgroup_that_may_have_no_more_objects_is_named_with_its_limit() -> Result<()> {
    let Some(_lab) = Lab::enter("findings: RDMA cgroup") else {
        return Ok(());
    };
    let cgroup = RdmaCgroup::with(5)?;
    let misuse = Traffic::start("misuse", &["--what", "cgroup", "--cgroup", RdmaCgroup::DIR])?;
    let pid = pid_of(&misuse.ready()?["pid"])?;
    let check = Check::of("8")?;
    let found = check.is_only("cgroup-limit", 2, Some(pid))?;
    let verdict = found["verdict"].as_str().context("no verdict")?;
    ensure!(
        verdict.starts_with("create_qp of misuse")
            && verdict.ends_with("its cgroup /rdmatop-limit has all 5 RDMA objects of rxe0 that it may have"),
        "{verdict}"
    );
    let done = misuse.finish()?;
    // The other two objects are a PD and a CQ.
    ensure!(done["done"] == 3 && done["failed"].as_u64() > Some(0), "{done}");
    drop(cgroup);
    Ok(())
}

/// A SoftRoCE device whose peers, 10.80.0.129 and up, have their addresses resolved after 600 ms: less than
/// the second after which the kernel gives up.
struct SlowPeers;

impl SlowPeers {
    const DEVICE: &str = "rxe-slow";

    fn up() -> Result<Self> {
        let peers = Self;
        shell(
            "set -e
            modprobe veth
            modprobe sch_netem
            ip netns add slow-peers
            ip link add slow-a type veth peer name slow-b netns slow-peers
            ip -n slow-peers link set lo up
            ip -n slow-peers link set slow-b up
            ip -n slow-peers address add 10.80.0.2/24 dev slow-b
            ip -n slow-peers route add local 10.80.0.128/25 dev lo
            ip netns exec slow-peers tc qdisc add dev slow-b root netem delay 600ms
            ip address add 10.80.0.1/24 dev slow-a
            ip link set slow-a up
            rdma link add rxe-slow type rxe netdev slow-a",
        )?;
        lab::await_gid(Self::DEVICE)?;
        Ok(peers)
    }
}

impl Drop for SlowPeers {
    fn drop(&mut self) {
        let _ = shell("rdma link delete rxe-slow; ip link delete slow-a; ip netns delete slow-peers");
    }
}

fn shell(script: &str) -> Result<String> {
    output(Command::new("sh").arg("-c").arg(script))
}

#[test]
fn peers_that_answer_late_make_connections_slow() -> Result<()> {
    let Some(_lab) = Lab::enter("findings: slow setup") else {
        return Ok(());
    };
    let peers = SlowPeers::up()?;
    let misuse = Traffic::start("misuse", &["--what", "slow-peers", "--device", SlowPeers::DEVICE])?;
    let pid = pid_of(&misuse.ready()?["pid"])?;
    let check = Check::of("8")?;
    let found = check.is_only("setup-slow", 1, Some(pid))?;
    let verdict = found["verdict"].as_str().context("no verdict")?;
    ensure!(
        verdict.contains("on rxe-slow") && verdict.contains("to bring a QP to RTR"),
        "{verdict}"
    );
    misuse.finish()?;
    drop(peers);
    Ok(())
}

#[test]
fn a_job_on_tcp_is_named_and_what_it_moves_is_counted_to_the_byte() -> Result<()> {
    const BYTES: u64 = 30_000_001;
    let Some(_lab) = Lab::enter("findings: TCP") else {
        return Ok(());
    };
    // One job could use the device; the other's container has none.
    let mut jobs = Vec::new();
    for args in [&[][..], &["--devices", "0"]] {
        let job = Traffic::start("tcp-job", args)?;
        let pid = pid_of(&job.ready()?["pid"])?;
        jobs.push((job, pid));
    }
    for (job, _) in &mut jobs {
        job.child.tell("go")?;
    }
    let check = Check::of("12")?;
    ensure!(
        check.findings()?.len() == 2 && check.code == Some(1),
        "{:#}",
        check.document
    );
    let of = |pid: u32| {
        let found = check.findings()?.iter().find(|found| found["pid"] == pid);
        let found = found.with_context(|| format!("PID {pid}: {:#}", check.document))?;
        ensure!(found["id"] == "tcp-fallback", "{found:#}");
        Ok((found["verdict"].as_str().unwrap_or_default(), found))
    };
    let (verdict, found) = of(jobs[0].1)?;
    ensure!(
        verdict.contains("by TCP instead of RDMA (it has no QP)"),
        "{found:#}"
    );
    let evidence = found["evidence"].to_string();
    ensure!(
        evidence.contains("it has loaded") && evidence.contains("libnccl.so.2"),
        "{found:#}"
    );
    let (verdict, found) = of(jobs[1].1)?;
    ensure!(
        verdict.ends_with(": it finds no device in /dev/infiniband"),
        "{found:#}"
    );
    for (job, _) in jobs {
        job.finish()?;
    }
    let bytes = BYTES.to_string();
    let mut job = Traffic::start("tcp-job", &["--bytes", &bytes])?;
    let pid = pid_of(&job.ready()?["pid"])?;
    let window = Window::open(&[])?;
    job.child.tell("go")?;
    job.child
        .out
        .wait_for("all bytes", END * 3, |line| line.contains("\"sent\""))?;
    let snapshot = window.close()?;
    let process = snapshot.process(pid)?;
    let row = process.field("tcp");
    // One end sends and the other receives, both in this process.
    for way in ["tx_bytes", "rx_bytes"] {
        ensure!(row[way]["total"] == BYTES, "{way}: {row:#}");
        ensure!(row[way]["source"] == "sock_diag", "{way}: {row:#}");
    }
    job.finish()?;
    Ok(())
}

#[test]
fn a_port_that_goes_down_under_qps_and_a_removal_that_waits() -> Result<()> {
    let Some(_lab) = Lab::enter("findings: port down") else {
        return Ok(());
    };
    let device = Device::add("rxe-find", 77)?;
    let idle = Traffic::start("idle-qps", &["--qps", "2", "--device", "rxe-find"])?;
    let pid = pid_of(&idle.ready()?["pids"][0])?;
    let netdev = lab::netdev("rxe-find")?;
    output(Command::new("ip").args(["link", "set", &netdev, "down"]))?;
    let check = Check::of("5")?;
    let found = check.is_only("port-down", 2, Some(pid))?;
    ensure!(found["device"] == "rxe-find" && found["port"] == 1, "{found:#}");
    let verdict = found["verdict"].as_str().unwrap_or_default();
    ensure!(
        verdict.contains(&format!("DOWN ({netdev} is switched off)")),
        "{found:#}"
    );
    output(Command::new("ip").args(["link", "set", &netdev, "up"]))?;
    let removal = Child::spawn(Command::new("rdma").args(["link", "delete", "rxe-find"]))?;
    thread::sleep(Duration::from_secs(1));
    let check = Check::of("6")?;
    idle.finish()?;
    drop(removal);
    let found = check.is_only("removal-waits", 1, None)?;
    let verdict = found["verdict"].as_str().context("no verdict")?;
    ensure!(verdict.contains(&pid.to_string()), "{pid}: {verdict}");
    drop(device);
    Ok(())
}

#[test]
fn one_device_of_four_that_carries_all_is_hot() -> Result<()> {
    let Some(_lab) = Lab::enter("findings: hot port") else {
        return Ok(());
    };
    let others = [
        Device::add("rxe-b", 71)?,
        Device::add("rxe-c", 72)?,
        Device::add("rxe-d", 73)?,
    ];
    let pair = moving("ib_write_bw", &[])?;
    let check = Check::of("14")?;
    let found = check.is_only("hot-port", 0, None)?;
    ensure!(found["device"] == DEVICE, "{found:#}");
    // The process chose it with option -d.
    let verdict = found["verdict"].as_str().unwrap_or_default();
    ensure!(
        verdict.contains(&format!(", which its command line (-d {DEVICE}) chose: ")),
        "{found:#}"
    );
    drop((pair, others));
    Ok(())
}

/// A cgroup like those that Slurm makes for the tasks of a job.
struct JobCgroup;

impl JobCgroup {
    const DIR: &str = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7341/step_0/user/task_0";

    fn with(processes: impl Iterator<Item = u32>) -> Result<Self> {
        fs::create_dir_all(Self::DIR)?;
        for pid in processes {
            fs::write(format!("{}/cgroup.procs", Self::DIR), pid.to_string())?;
        }
        Ok(Self)
    }
}

impl Drop for JobCgroup {
    fn drop(&mut self) {
        for dir in Path::new(Self::DIR).ancestors().take(6) {
            let _ = fs::remove_dir(dir);
        }
    }
}

#[test]
fn a_bond_of_which_one_link_has_all_and_one_that_lost_a_link() -> Result<()> {
    const HOME: &str = "/tmp/rdmatop-bond";
    let Some(_lab) = Lab::enter("findings: bond") else {
        return Ok(());
    };
    let _wire = Wire::bonded()?;
    let pair = Perftest::new("ib_write_bw").iterations(ENDLESS).size(65_536);
    // With perftest's own timeout of 67 ms the pair gives up on a slow host before the bond has another link.
    let pair = pair.args(&["-u", "20"]);
    let mut pair = pair.devices(wire::SERVER, wire::CLIENT).start()?;
    pair.wait_connected()?;
    pair.server.step_back()?;
    pair.client.step_back()?;
    // The links claim 10 Gb/s, of which a translated CPU sends only little.
    let settings = Path::new(HOME).join("rdmatop");
    fs::create_dir_all(&settings)?;
    fs::write(settings.join("config.toml"), "[findings]\nlag_load = 0.0005\n")?;
    let check = Looking::begin_with("20", &[("XDG_CONFIG_HOME", HOME)])?.end()?;
    let findings = check.findings()?;
    // Far from full, so it may be intended, as may the device that perftest's option names.
    let known = |found: &Value| found["id"] == "lag-imbalance" || found["id"] == "hot-port";
    ensure!(findings.iter().all(known), "{:#}", check.document);
    for (device, way) in [(wire::CLIENT, "sends"), (wire::SERVER, "receives")] {
        let place = format!("{device}/1 {way} ");
        let is_it = |found: &&Value| {
            found["verdict"]
                .as_str()
                .is_some_and(|line| line.starts_with(&place))
        };
        let found = findings.iter().find(is_it);
        let found = found.with_context(|| format!("no {place}: {:#}", check.document))?;
        ensure!(found["severity"] == "info", "{found:#}");
    }
    // The port of a bond that lost a link stays ACTIVE.
    output(Command::new("ip").args(["link", "set", "dev", "va1", "down"]))?;
    let check = Check::of("14")?;
    let findings = check.findings()?;
    let lost = findings.iter().filter(|found| found["id"] == "lag-degraded");
    ensure!(
        pair.client.ended()?.is_none(),
        "the pair has ended: {}",
        pair.client.err.text()
    );
    // Both ends of the pair of interfaces then have no link.
    let lost: Vec<&Value> = lost.collect();
    ensure!(lost.len() == 2, "{:#}", check.document);
    let verdicts: Vec<&str> = lost
        .iter()
        .filter_map(|found| found["verdict"].as_str())
        .collect();
    ensure!(
        verdicts.iter().any(|line| line.contains("va1")) && verdicts.iter().any(|line| line.contains("vb1")),
        "{verdicts:?}"
    );
    Ok(())
}

#[test]
fn two_of_four_devices_that_carry_a_job_leave_the_others_idle() -> Result<()> {
    let Some(_lab) = Lab::enter("findings: idle rails") else {
        return Ok(());
    };
    let others = [
        Device::add("rxe-b", 71)?,
        Device::add("rxe-c", 72)?,
        Device::add("rxe-d", 73)?,
    ];
    // All ranks pause alike, so that no port has much more than another.
    let mut ranks = Vec::new();
    for device in [DEVICE, DEVICE, "rxe-b", "rxe-b"] {
        let rank = Traffic::start("steady-posts", &["--device", device])?;
        rank.ready()?;
        ranks.push(rank);
    }
    let job = JobCgroup::with(ranks.iter().map(|rank| rank.child.pid()))?;
    let check = Check::of("16")?;
    let found = check.is_only("rails-idle", 1, None)?;
    let verdict = found["verdict"].as_str().context("no verdict")?;
    ensure!(
        verdict
            == "2 of 4 ports are idle (rxe-c and rxe-d): 4 processes of slurm 7341.0 share the others, which are full",
        "{verdict}"
    );
    drop((ranks, job, others));
    Ok(())
}

#[test]
fn a_process_that_only_registers_memory_is_named() -> Result<()> {
    const HOME: &str = "/tmp/rdmatop-growth";
    let Some(_lab) = Lab::enter("findings: growing memory") else {
        return Ok(());
    };
    // The default of half an hour is too long for a test.
    let settings = Path::new(HOME).join("rdmatop");
    fs::create_dir_all(&settings)?;
    fs::write(
        settings.join("config.toml"),
        "[findings]\nmr_growth_window_s = 60\nmr_growth_bytes = 1000000\n",
    )?;
    let misuse = Traffic::start("misuse", &["--what", "mr-growth"])?;
    let pid = pid_of(&misuse.ready()?["pid"])?;
    let check = Looking::begin_with("100", &[("XDG_CONFIG_HOME", HOME)])?.end()?;
    check.is_only("mr-growth", 0, Some(pid))?;
    misuse.finish()?;
    Ok(())
}

#[test]
fn a_process_that_has_nearly_all_mappings_that_it_may_is_named() -> Result<()> {
    const LIMIT: &str = "/proc/sys/vm/max_map_count";
    let Some(_lab) = Lab::enter("findings: mappings") else {
        return Ok(());
    };
    // A list of 65,530 takes a translated CPU seconds to write.
    let before = fs::read_to_string(LIMIT)?;
    fs::write(LIMIT, "8000")?;
    let found = mappings_are_named();
    fs::write(LIMIT, before.trim())?;
    found
}

fn mappings_are_named() -> Result<()> {
    let misuse = Traffic::start("misuse", &["--what", "map-count"])?;
    let pid = pid_of(&misuse.ready()?["pid"])?;
    let check = Check::of("12")?;
    // As many lines as the kernel lists, but for the page of x86-64 that is nobody's mapping.
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let mappings = maps.lines().filter(|line| !line.ends_with("[vsyscall]")).count();
    let found = check.is_only("map-count", 1, Some(pid))?;
    let verdict = found["verdict"].as_str().context("no verdict")?;
    let numbers = format!(" had {mappings} of the 8000 mappings of memory ");
    ensure!(verdict.contains(&numbers), "{numbers}: {verdict}");
    misuse.finish()?;
    Ok(())
}
