//! `rdmatop nccl-log` beside running processes: which process wrote the log, its QPs and bytes, and where log
//! and processes differ.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    child::{Child, output},
    lab::Lab,
    rdmatop::{Window, command},
    traffic::{self, Traffic, id, number},
};
use serde_json::Value;

const SIZE: u64 = 16384;
/// Outstanding work requests of steady-posts.
const DEPTH: u64 = 16;

/// A log, removed with its directory.
struct Log(PathBuf);

impl Log {
    /// A log of one rank that has joined and sends over `network`.
    fn of(pid: u32, network: &str) -> Result<Self> {
        let host = fs::read_to_string("/proc/sys/kernel/hostname")?;
        let path = std::env::temp_dir().join(format!("nccl-log-{}-{pid}-{network}.log", std::process::id()));
        let who = format!("{}:{pid}:{pid} [0] NCCL INFO", host.trim());
        let mut file = fs::File::create(&path)?;
        if network == "IB" {
            writeln!(
                file,
                "{who} NET/IB : Using [0]rxe0:1/RoCE [RO]; OOB eth0:192.0.2.1<0>"
            )?;
        }
        write!(
            file,
            "{who} Using network {network}\n\
             {who} Channel 00/0 : 0[0] -> 1[0] [send] via NET/{network}/0\n\
             {who} comm 0x1 rank 0 nranks 2 cudaDev 0 busId 7000 commId 0x2 - Init COMPLETE\n\
             {who} Channel 01/0 : 0[0] -> 1[0] [send] via NET/{network}"
        )?;
        Ok(Self(path))
    }

    /// Returns the output of `rdmatop nccl-log` with these options.
    fn page(&self, options: &[&str]) -> Result<String> {
        output(command(&["nccl-log"])?.args(options).arg(&self.0))
    }

    /// Returns `now` from its JSON.
    fn now(&self, options: &[&str]) -> Result<Value> {
        let text = self.page(&[options, &["--json"]].concat())?;
        let all: Value = serde_json::from_str(&text)?;
        Ok(all["now"].clone())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn rate(counter: &Value) -> Result<f64> {
    counter["rate"]
        .as_f64()
        .with_context(|| format!("no rate: {counter}"))
}

/// A sample that keeps the window open is taken between the first sample and the process's own account: each
/// of the three values is at least the previous one, and the first is positive.
#[test]
fn a_rank_on_rdma_has_its_qps_and_the_bytes_that_a_sample_counts() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("nccl-log: RDMA") else {
        return Ok(());
    };
    let size = SIZE.to_string();
    let job = Traffic::start("steady-posts", &["--size", &size, "--nccl", "1"])?;
    let pid = id(&job.ready()?, "pid")?;
    let log = Log::of(pid, "IB")?;
    let window = Window::open(&[])?;
    let now = log.now(&["--for", "3"])?;
    // The job goes on, so what it moves until the window ends only adds.
    let held = window.close()?;
    let page = log.page(&[])?;
    // Where nothing is counted, missing rights are not the reason: root has all of them.
    let mut uncounted = command(&["nccl-log", "--json", "--for", "1"])?;
    let uncounted = output(uncounted.env("RDMATOP_DATAPATHS", "0").arg(&log.0))?;
    let uncounted: Value = serde_json::from_str(&uncounted)?;
    let missing = uncounted["now"]["missing"].to_string();
    println!("without counts: {missing}");
    ensure!(!missing.contains("CAP_"), "{missing}");
    let account = job.finish()?;
    let [process] = now["processes"].as_array().context("no processes")?.as_slice() else {
        anyhow::bail!("{now:#}");
    };
    ensure!(process["pid"] == pid && process["log_pid"] == pid, "{process:#}");
    ensure!(
        process["proof"] == "library" && process["comm"] == "steady-posts",
        "{process:#}"
    );
    ensure!(process["devices"] == serde_json::json!(["rxe0"]), "{process:#}");
    ensure!(process["qps"] == 2 && process["qps_in_error"] == 0, "{process:#}");
    ensure!(process["ranks"] == serde_json::json!([0]), "{process:#}");
    ensure!(process["tx_bytes"]["source"] == "ebpf", "{process:#}");
    let seconds = now["seconds"].as_f64().context("no seconds")?;
    ensure!((2.9..60.0).contains(&seconds), "{seconds}");
    let bytes = number(&process["tx_bytes"], "total")?;
    let work = number(&process["tx_wr"], "total")?;
    ensure!(work >= 20 * DEPTH, "{work} work requests in {seconds} s");
    // The kernel side counts while the two numbers are read, so all outstanding requests may end in between.
    ensure!(
        bytes % SIZE == 0 && (bytes / SIZE).abs_diff(work) <= DEPTH,
        "{bytes} bytes of {work} work requests of {SIZE}"
    );
    let row = held.process(pid)?;
    let by_once = number(row.field("tx_bytes"), "total")?;
    let all = number(&account, "posted")? * SIZE;
    ensure!(bytes <= by_once && by_once <= all, "{bytes} {by_once} {all}");
    let moved = rate(&process["tx_bytes"])? * seconds;
    // Both numbers are read at different times, and requests are posted in between.
    ensure!(moved > 0.0 && moved <= bytes as f64 * 1.02, "{moved} of {bytes}");
    let [port] = now["ports"].as_array().context("no ports")?.as_slice() else {
        anyhow::bail!("{now:#}");
    };
    ensure!(port["device"] == "rxe0" && port["in_log"] == true, "{port:#}");
    // If the driver counts no bytes, these are the bytes of work requests, and the port may move more.
    let port_bytes = &port["tx_bytes"];
    let of_work_requests = port_bytes["source"] == "ebpf";
    ensure!(of_work_requests == port_bytes["at_least"].is_object(), "{port:#}");
    let counted = if of_work_requests {
        &port_bytes["at_least"]
    } else {
        port_bytes
    };
    let of_port = rate(counted)?;
    let of_process = rate(&process["tx_bytes"])?;
    ensure!(
        (of_port / of_process - 1.0).abs() < 0.2,
        "the port moves {of_port}, its only process {of_process}"
    );
    let said = &now["said"][0];
    ensure!(said["kind"] == "agrees" && said["id"] == "rdma", "{now:#}");
    ensure!(
        page.contains("As the log says, RDMA: ") && page.contains(&format!(" {pid} steady-posts    2 ")),
        "{page}"
    );
    dead(&log, pid)
}

/// Checks that the process of a log has ended, or that its PID belongs to another process.
fn dead(log: &Log, pid: u32) -> Result<()> {
    let page = log.page(&[])?;
    ensure!(
        page.contains(&format!("\nNow\n  PID {pid} of the log: it has ended\n")),
        "{page}"
    );
    let now = log.now(&[])?;
    ensure!(
        now["processes"] == serde_json::json!([]) && now["absent"][0]["ended"] == true,
        "{now:#}"
    );
    let init = Log::of(1, "IB")?.now(&[])?;
    let why = init["absent"][0]["why"].as_str().unwrap_or_default();
    ensure!(
        why.contains("its number belongs to") && why.contains("neither libnccl nor libcuda"),
        "{init:#}"
    );
    ensure!(log.now(&["--for", "0"])?.is_null());
    Ok(())
}

#[test]
fn a_rank_whose_data_goes_by_tcp_is_held_against_its_log() -> Result<()> {
    let Some(_lab) = Lab::enter("nccl-log: TCP") else {
        return Ok(());
    };
    let mut job = Traffic::start("tcp-job", &[])?;
    let pid = id(&job.ready()?, "pid")?;
    job.child.tell("go")?;
    let log = Log::of(pid, "IB")?;
    let now = log.now(&["--for", "3"])?;
    let socket = Log::of(pid, "Socket")?;
    let agrees = socket.now(&["--for", "3"])?;
    // As a user who may not inspect the process.
    let mut plain = Command::new("setpriv");
    let rdmatop = command(&["nccl-log", "--json", "--for", "1"])?;
    plain.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    plain
        .arg(rdmatop.get_program())
        .args(rdmatop.get_args())
        .arg(&log.0);
    let plain: Value = serde_json::from_str(&output(&mut plain)?)?;
    let account = job.finish()?;

    let said = &now["said"][0];
    ensure!(
        said["kind"] == "differs" && said["id"] == "tcp-instead",
        "{now:#}"
    );
    let line = said["line"].as_str().unwrap_or_default();
    ensure!(
        line.starts_with(&format!(
            "The log says NET/IB, and tcp-job (PID {pid}) has no QP: it moves "
        )) && line.ends_with(" by TCP instead"),
        "{line}"
    );
    let process = &now["processes"][0];
    ensure!(
        process["qps"] == 0 && process["tcp"]["tx_bytes"]["source"] == "sock_diag",
        "{now:#}"
    );
    let sent = number(&process["tcp"]["tx_bytes"], "total")?;
    let all = number(&account, "sent")?;
    ensure!(sent > 1_000_000 && sent <= all, "{sent} of {all}");
    ensure!(rate(&process["tcp"]["tx_bytes"])? > 1e6, "{process:#}");
    let said = &agrees["said"][0];
    ensure!(said["kind"] == "agrees" && said["id"] == "tcp", "{agrees:#}");

    let process = &plain["now"]["processes"][0];
    ensure!(process["pid"] == pid && process["proof"] == "unread", "{plain:#}");
    ensure!(
        process["tcp"].is_null() && process["tx_bytes"].is_null(),
        "{plain:#}"
    );
    let missing = plain["now"]["missing"].to_string();
    ensure!(missing.contains("run it as root"), "{plain:#}");
    Ok(())
}

/// In a PID namespace the job is process 1, as init is outside.
#[test]
fn a_rank_in_a_pid_namespace_is_found_by_the_number_that_it_knows() -> Result<()> {
    let Some(_lab) = Lab::enter("nccl-log: PID namespace") else {
        return Ok(());
    };
    let path = traffic::path("tcp-job")?;
    let child = Child::spawn(Command::new("unshare").args([Path::new("--pid"), Path::new("--fork"), &path]))?;
    let mut job = Traffic { child };
    let own = id(&job.ready()?, "pid")?;
    ensure!(own == 1, "{own}");
    job.child.tell("go")?;
    let now = Log::of(own, "Socket")?.now(&["--for", "2"])?;
    let process = &now["processes"][0];
    let here = id(process, "pid")?;
    let status = fs::read_to_string(format!("/proc/{here}/status"))?;
    job.finish()?;
    ensure!(process["log_pid"] == 1 && process["comm"] == "tcp-job", "{now:#}");
    ensure!(
        here != 1
            && status
                .lines()
                .any(|line| line.starts_with("NSpid:") && line.ends_with("\t1")),
        "{status}"
    );
    ensure!(now["said"][0]["id"] == "tcp", "{now:#}");
    Ok(())
}
