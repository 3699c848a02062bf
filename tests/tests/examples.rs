//! Checks what examples/ and deploy/ promise: each installed program runs beside rdmatop, and the numbers in
//! its README hold.

use std::{env, fs, process::Command};

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    case::two_sided,
    child::{Child, output},
    faults::{Switch, notes, sample},
    lab::{self, DEVICE, Lab},
    perftest::{Perftest, listens_tcp},
    rdmatop::Window,
    snapshot::{Row, Snapshot},
    table::Table,
    wait::{self, PATIENCE},
};

/// The ports where ucx_perftest and fi_pingpong wait for their client.
const UCX_PORT: u16 = 13_337;
const FI_PORT: u16 = 47_592;
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Enters the lab for a test of these programs; if one is not installed, prints that and returns `None`.
fn enter(name: &str, programs: &[&str], package: &str) -> Option<Lab> {
    let lab = Lab::enter(name)?;
    let path = env::var_os("PATH").unwrap_or_default();
    let missing = |program: &&&str| !env::split_paths(&path).any(|dir| dir.join(program).is_file());
    if let Some(program) = programs.iter().find(missing) {
        lab::skip(
            name,
            &format!("{program} is not installed (Debian: apt install {package})"),
        );
        return None;
    }
    Some(lab)
}

/// The two ended processes of a program; the client has succeeded.
struct Ends {
    server: Child,
    client: Child,
}

/// Starts `server`, and `client` when `ready`.
fn run(server: &mut Command, client: &mut Command, ready: impl Fn() -> Result<bool>) -> Result<Ends> {
    let mut server = Child::spawn(server)?;
    wait::for_some("a server that listens", PATIENCE, || Ok(ready()?.then_some(())))?;
    let mut client = Child::spawn(client)?;
    client.succeed(PATIENCE)?;
    server.wait(PATIENCE)?;
    Ok(Ends { server, client })
}

impl Ends {
    /// Fails unless the server has succeeded too.
    fn ok(&mut self) -> Result<()> {
        self.server
            .succeed(PATIENCE)
            .with_context(|| self.server.err.text())
    }
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

/// Returns the types of the QPs by which a process moved something, each once: libraries create many more QPs
/// to learn what a device can do.
fn busy_types(sample: &Snapshot, pid: u32) -> Vec<String> {
    let moved = |row: &Row<'_>| row.total("tx_wr").max(row.total("rx_wr")) > Some(0);
    let own = sample.qps().filter(|row| row.field("pid") == pid).filter(moved);
    let mut types: Vec<String> = own
        .filter_map(|row| row.field("qp_type").as_str().map(str::to_owned))
        .collect();
    types.sort();
    types.dedup();
    types
}

fn wrs(row: Row<'_>, opcode: &str) -> Option<u64> {
    row.opcode(opcode).map(|(wr, _)| wr)
}

/// Fails if the sample has losses or findings.
fn healthy(table: &mut Table, sample: &Snapshot) -> Result<()> {
    table.equal("all", "lost_events", 0, sample.lost());
    let findings = sample.value()["findings"]
        .as_array()
        .context("no list of findings")?;
    ensure!(findings.is_empty(), "{findings:?}");
    Ok(())
}

#[test]
fn rping_reads_writes_and_sends_as_its_example_says() -> Result<()> {
    const PINGS: u64 = 20;
    let Some(lab) = enter("examples: rping", &["rping"], "rdmacm-utils") else {
        return Ok(());
    };
    let address = lab::address(DEVICE)?;
    let side = |side| {
        command(&[
            "rping",
            side,
            "-a",
            &address,
            "-C",
            &PINGS.to_string(),
            "-S",
            "100",
        ])
    };
    let window = Window::open(&[])?;
    let ends = run(&mut side("-s"), &mut side("-c"), || {
        let ids = output(Command::new("rdma").args(["resource", "show", "cm_id"]))?;
        Ok(ids.contains("LISTEN"))
    })?;
    let sample = window.close()?;
    let mut table = Table::default();
    let (server, client) = (
        sample.process(ends.server.pid())?,
        sample.process(ends.client.pid())?,
    );
    for (opcode, count, bytes) in [
        ("rdma_read", PINGS, PINGS * 100),
        ("rdma_write", PINGS, PINGS * 100),
        ("send", 2 * PINGS, 2 * PINGS * 16),
    ] {
        let (wr, seen) = server.opcode(opcode).unzip();
        table.equal("rping server", opcode, count, wr);
        table.equal("rping server", &format!("{opcode} bytes"), bytes, seen);
    }
    table.equal("rping client", "send", 2 * PINGS, wrs(client, "send"));
    table.equal("rping client", "opcodes", 1, client.opcodes());
    table.equal("rping client", "rx_wr", 2 * PINGS, client.total("rx_wr"));
    table.equal("rping server", "rx_wr", 2 * PINGS, server.total("rx_wr"));
    ensure!(busy_types(&sample, ends.client.pid()) == ["RC"]);
    healthy(&mut table, &sample)?;
    table.check(&lab, "Example rping");
    Ok(())
}

/// fi_pingpong sends the number of messages of `-I`, and first one message of 4 bytes.
#[test]
fn libfabric_s_endpoints_are_rc_and_ud_and_counted_as_its_example_says() -> Result<()> {
    const TIMES: u64 = 100;
    const SIZE: u64 = 1024;
    let Some(lab) = enter("examples: fi_pingpong", &["fi_pingpong"], "libfabric-bin") else {
        return Ok(());
    };
    let address = lab::address(DEVICE)?;
    let window = Window::open(&[])?;
    let mut all = Vec::new();
    // A UD receive counts the 40 bytes of GRH.
    for (endpoint, qp_type, grh) in [("msg", "RC", 0), ("dgram", "UD", 40)] {
        let options = format!("fi_pingpong -p verbs -e {endpoint} -I {TIMES} -S {SIZE}");
        let side = || command(&options.split(' ').collect::<Vec<_>>());
        let mut ends = run(&mut side(), side().arg(&address), || Ok(listens_tcp(FI_PORT)))?;
        ends.ok()?;
        all.push((endpoint, qp_type, grh, ends));
    }
    let sample = window.close()?;
    let mut table = Table::default();
    for (endpoint, qp_type, grh, ends) in all {
        for (side, pid) in [("server", ends.server.pid()), ("client", ends.client.pid())] {
            let row = sample.process(pid)?;
            let side = format!("fi_pingpong {endpoint} {side}");
            let bytes = TIMES * SIZE + 4;
            table.equal(&side, "send", TIMES + 1, wrs(row, "send"));
            table.equal(&side, "opcodes", 1, row.opcodes());
            table.equal(&side, "tx_bytes", bytes, row.total("tx_bytes"));
            table.equal(&side, "rx_wr", TIMES + 1, row.total("rx_wr"));
            table.equal(
                &side,
                "rx_bytes",
                bytes + (TIMES + 1) * grh,
                row.total("rx_bytes"),
            );
            ensure!(busy_types(&sample, pid) == [qp_type]);
        }
    }
    healthy(&mut table, &sample)?;
    table.check(&lab, "Example libfabric");
    Ok(())
}

#[test]
fn ucx_puts_and_tagged_messages_are_what_its_example_says() -> Result<()> {
    const TIMES: u64 = 200;
    const HEADER: u64 = 8;
    let Some(lab) = enter("examples: ucx_perftest", &["ucx_perftest"], "ucx-utils") else {
        return Ok(());
    };
    let address = lab::address(DEVICE)?;
    let ucx = |options: &str, client: bool| {
        let mut command = command(&["ucx_perftest"]);
        command.args(client.then_some(&address)).args(options.split(' '));
        // GID 0, because with the IPv4 GID UCX accepts no datagram that arrives on this device, and aborts.
        command.envs([("UCX_TLS", "rc"), ("UCX_IB_GID_INDEX", "0")]);
        command.env("UCX_NET_DEVICES", format!("{DEVICE}:1"));
        command
    };
    let both = |options: &str| -> Result<Ends> {
        let listens = || Ok(listens_tcp(UCX_PORT));
        let mut ends = run(&mut ucx(options, false), &mut ucx(options, true), listens)?;
        ends.ok()?;
        Ok(ends)
    };
    let window = Window::open(&[])?;
    let put = both(&format!(
        "-d {DEVICE}:1 -x rc_verbs -t put_bw -D zcopy -s 4096 -n {TIMES} -w 0"
    ))?;
    let tag = both(&format!("-t tag_lat -s 64 -n {TIMES} -w 10"))?;
    let sample = window.close()?;
    let mut table = Table::default();
    let client = sample.process(put.client.pid())?;
    let (wr, bytes) = client.opcode("rdma_write").unzip();
    let fits = wr.is_some_and(|wr| (TIMES..=TIMES + 3).contains(&wr));
    table.rule(
        "ucx put client",
        "rdma_write",
        &format!("{TIMES} to 3 more"),
        wr,
        fits,
    );
    table.equal(
        "ucx put client",
        "rdma_write bytes",
        wr.unwrap_or(0) * 4096,
        bytes,
    );
    table.equal("ucx put client", "opcodes", 1, client.opcodes());
    let server = sample.process(put.server.pid())?;
    for counter in ["tx_wr", "rx_wr"] {
        table.equal("ucx put server", counter, 0, server.total(counter));
    }
    ensure!(busy_types(&sample, put.client.pid()) == ["RC"]);
    for (side, pid) in [("server", tag.server.pid()), ("client", tag.client.pid())] {
        let side = format!("ucx tag {side}");
        let (wr, bytes) = sample.process(pid)?.opcode("send").unzip();
        let fits = wr.is_some_and(|wr| (TIMES..TIMES + 50).contains(&wr));
        table.rule(&side, "send", &format!("{TIMES} to 49 more"), wr, fits);
        let least = TIMES * (64 + HEADER);
        let enough = bytes.is_some_and(|bytes| bytes >= least);
        table.rule(&side, "send bytes", &format!(">= {least}"), bytes, enough);
        ensure!(busy_types(&sample, pid) == ["RC", "UD"]);
    }
    healthy(&mut table, &sample)?;
    table.check(&lab, "Example UCX");
    Ok(())
}

/// In each sum each of two ranks sends its whole vector: half of it twice, or all of it once.
#[test]
fn open_mpi_sends_what_an_all_reduce_has_to_over_ucx_and_over_libfabric() -> Result<()> {
    const SUMS: u64 = 20;
    const NUMBERS: u64 = 4096;
    let name = "examples: Open MPI";
    let Some(lab) = enter(name, &["mpirun"], "openmpi-bin python3-mpi4py") else {
        return Ok(());
    };
    if !fs::exists("/usr/lib/python3/dist-packages/mpi4py")? {
        lab::skip(
            name,
            "mpi4py is not installed (Debian: apt install python3-mpi4py)",
        );
        return Ok(());
    }
    let ways = [
        "--mca pml ucx -x UCX_TLS=rc,self -x UCX_IB_GID_INDEX=0",
        // libfabric makes CQs for this many peers; with its default, 256, one exceeds SoftRoCE's maximum.
        "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm -x FI_UNIVERSE_SIZE=16",
    ];
    let window = Window::open(&[])?;
    for way in ways {
        let mut mpirun = command(&["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]);
        mpirun.args(way.split(' ')).arg("/usr/bin/python3");
        mpirun.arg(format!("{ROOT}/examples/openmpi/allreduce.py"));
        mpirun.args([SUMS, NUMBERS].map(|number| number.to_string()));
        let mut job = Child::spawn(&mut mpirun)?;
        job.succeed(PATIENCE)?;
        ensure!(job.out.text().contains("all right"), "{}", job.out.text());
    }
    let sample = window.close()?;
    let mut table = Table::default();
    let ranks = sample.processes().filter(|row| row.field("comm") == "python3");
    let ranks: Vec<_> = ranks.filter(|row| row.total("tx_wr") > Some(0)).collect();
    table.equal("Open MPI", "ranks that sent", 4, Some(ranks.len() as u64));
    for rank in ranks {
        let least = SUMS * NUMBERS * 8;
        let bytes = rank.total("tx_bytes");
        // At most a tenth more, for headers, the barrier and the start.
        let fits = bytes.is_some_and(|bytes| (least..least + least / 10).contains(&bytes));
        table.rule(
            "Open MPI",
            "tx_bytes",
            &format!("{least} to 10 % more"),
            bytes,
            fits,
        );
    }
    healthy(&mut table, &sample)?;
    table.check(&lab, "Example Open MPI");
    Ok(())
}

/// Returns the words of a list in the DaemonSet, such as `add: ["BPF"]`.
fn listed(key: &str) -> Result<Vec<String>> {
    let path = format!("{ROOT}/deploy/kubernetes/rdmatop.yaml");
    let text = fs::read_to_string(&path).context(path)?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix(key));
    let words = line
        .with_context(|| format!("no {key}"))?
        .split('"')
        .skip(1)
        .step_by(2);
    Ok(words.map(str::to_lowercase).collect())
}

/// Returns the words before a program that runs it as in the DaemonSet's container: with its capabilities,
/// and of the mounts below /sys only tracefs.
fn as_in_the_pod(capabilities: &[String]) -> [String; 7] {
    let sys = "umount -l /sys/kernel/debug /sys/kernel/security";
    let added: Vec<String> = capabilities.iter().map(|name| format!(",+{name}")).collect();
    let bounding = added.concat();
    let script = format!("{sys} && exec setpriv --bounding-set=-all{bounding} \"$0\" \"$@\"");
    [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        &script,
    ]
    .map(str::to_owned)
}

#[test]
fn what_the_daemon_set_gives_its_pod_is_enough_and_less_is_told() -> Result<()> {
    let Some(lab) = Lab::enter("examples: DaemonSet") else {
        return Ok(());
    };
    let all = listed("add:")?;
    ensure!(listed("drop:")? == ["all"], "{:?}", listed("drop:")?);
    // Debian's default, with which kprobes need CAP_SYS_ADMIN.
    let _paranoid = Switch::set("/proc/sys/kernel/perf_event_paranoid", "3")?;
    let case = two_sided("DaemonSet", Perftest::new("ib_send_bw"), 500, 4096);
    let window = Window::open_under(&as_in_the_pod(&all).each_ref().map(String::as_str))?;
    let accounts = case.pair.run()?;
    let own = window.close()?;
    let mut table = Table::default();
    case.compare(&mut table, &own, &accounts, 0)?;
    ensure!(notes(&own).is_empty(), "{:?}", notes(&own));
    healthy(&mut table, &own)?;
    for (name, what) in [("sys_admin", "No eBPF"), ("sys_ptrace", "No libraries")] {
        let less: Vec<String> = all.iter().filter(|own| *own != name).cloned().collect();
        ensure!(less.len() + 1 == all.len(), "{name} is not in {all:?}");
        let told = notes(&sample(&as_in_the_pod(&less).each_ref().map(String::as_str))?);
        let ok = told.len() == 1 && told[0].starts_with(what);
        table.rule(
            "DaemonSet",
            &format!("notes without {name}"),
            what,
            Some(told.len() as u64),
            ok,
        );
    }
    table.check(&lab, "The DaemonSet's capabilities and mounts");
    Ok(())
}
