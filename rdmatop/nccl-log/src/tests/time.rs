//! Time is linear in what a log, and the machine that it is compared with, can have many of.

use super::super::{
    json,
    line::Writer,
    now::{IdentifiedProcess, Now},
    page::{self, Links},
    report::Report,
};
use super::{
    compare::{found, port, rank, snapshot},
    read,
};
use std::fmt::Write as _;

/// Time of this thread on a CPU, ns: what other programs of the machine do does not count.
fn on_cpu() -> u64 {
    let read = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    read.split(' ').next().unwrap().parse().unwrap()
}

/// The lines of one rank, which has its connections on a NIC of its own if `nic` is not 0.
fn lines(log: &mut String, rank: u32, ranks: u32, host: u32, nic: u32) {
    let (pid, gpu, next) = (1000 + rank, rank % 8, (rank + 1) % ranks);
    let writer = format!("h{host}:{pid}:{pid} [{gpu}] NCCL INFO");
    let _ = write!(
        log,
        "{writer} NET/IB : Using [{nic}]mlx5_{nic}:1/RoCE [RO]; OOB eth0:192.0.2.1<0>\n\
         {writer} comm 0x1 rank {rank} nranks {ranks} cudaDev {gpu} nvmlDev {gpu} busId 7000 commId 0x2 - Init START\n\
         {writer} Channel 00/0 : {rank}[{gpu}] -> {next}[{gpu}] [send] via NET/IB/{nic}/GDRDMA\n\
         {writer} comm 0x1 rank {rank} nranks {ranks} cudaDev {gpu} nvmlDev {gpu} busId 7000 commId 0x2 - Init COMPLETE\n\
         h{host}:{pid}:{pid} [{gpu}] ib.cc:1 NCCL WARN NET/IB : Got completion from peer 192.0.2.{gpu}<{pid}> with status=12 \
         opcode=0 len=0 vendor err 129 (Recv) hca mlx5_{nic}\n"
    );
}

/// The processes of a host, and what the machine has of them.
fn here(report: &Report, host: &str) -> (Vec<IdentifiedProcess>, rdmatop_model::snapshot::Snapshot) {
    let pids = report
        .processes
        .keys()
        .filter(|writer| writer.host == host)
        .map(|writer| writer.pid);
    let pids: Vec<u32> = pids.collect();
    let one = |pid: &u32| IdentifiedProcess {
        writer: Writer {
            host: host.to_owned(),
            pid: *pid,
        },
        ..found(*pid, Some(*pid))
    };
    let nics = report.nics.keys().filter(|nic| nic.host == host);
    let names: Vec<String> = nics.map(|nic| format!("mlx5_{}", nic.device)).collect();
    let device = |at: usize| {
        names
            .get(at % names.len().max(1))
            .map_or("mlx5_0", String::as_str)
    };
    let rows = pids.iter().enumerate().map(|(at, pid)| rank(*pid, &[device(at)]));
    let ports = names.iter().map(|name| port(name, 20e9));
    (
        pids.iter().map(one).collect(),
        snapshot(rows.collect(), ports.collect()),
    )
}

/// The kernel counts a thread's time at its ticks, 4 ms or 10 ms.
const TICKS: u64 = 60_000_000;

/// The least time of some runs, for a log of `many` and for one of twice as many, run by turns.
fn least(run: impl Fn(usize)) -> [u64; 2] {
    let mut best = [u64::MAX; 2];
    for _ in 0..2 {
        for (at, best) in best.iter_mut().enumerate() {
            let (begun, mut runs, mut took) = (on_cpu(), 0, 0);
            while took < TICKS {
                run(at);
                (runs, took) = (runs + 1, on_cpu() - begun);
            }
            *best = (*best).min(took / runs);
        }
    }
    best
}

#[test]
fn twice_the_hosts_nics_ranks_or_bytes_take_twice_the_time() {
    type Make = fn(&mut String, u32, u32);
    let kinds: [(&str, Make); 4] = [
        ("hosts", |log, at, many| lines(log, at, many, at, 0)),
        ("NICs of one host", |log, at, many| lines(log, at, many, 0, at)),
        ("ranks of one host", |log, at, many| lines(log, at, many, 0, 0)),
        ("bytes of one rank", |log, _, _| lines(log, 0, 1, 0, 0)),
    ];
    let mut slow = String::new();
    for (kind, make) in kinds {
        let logs = [400, 800].map(|many| {
            let mut log = String::new();
            (0..many).for_each(|at| make(&mut log, at, many));
            log
        });
        let reports = logs.each_ref().map(|log| read(log));
        let machines = reports.each_ref().map(|report| here(report, "h0"));
        let now = |at: usize| Now::of(&reports[at], &machines[at].0, &machines[at].1, 3.0);
        let nows = [now(0), now(1)];
        let runs: [(&str, &dyn Fn(usize) -> usize); 5] = [
            ("read", &|at| read(&logs[at]).processes.len()),
            ("page", &|at| {
                page::text(&reports[at], &Links::default(), None).len()
            }),
            ("JSON", &|at| json::document(&reports[at], None).unwrap().len()),
            ("compare", &|at| now(at).comparisons.len()),
            ("page of it", &|at| {
                page::text(&reports[at], &Links::default(), Some(&nows[at])).len()
            }),
        ];
        for (phase, run) in runs {
            let [few, many] = least(|at| assert!(run(at) > 0, "{kind} {phase}"));
            // With the square it would be four times as long.
            if many >= 3 * few {
                let _ = writeln!(slow, "{kind}, {phase}: {few} ns, then {many} ns");
            }
        }
    }
    assert!(slow.is_empty(), "{slow}");
}
