//! Logs in the formats of NCCL 2.4, 2.7, 2.18 and 2.27, of RCCL and of aws-ofi-nccl. The lines are ours,
//! addresses are of documentation networks.

mod cases;
mod compare;
mod time;

use super::{
    dictionary, json,
    page::{self, Links},
    report::Report,
    verdict::{self, VerdictKind},
    why,
};
use proptest::prelude::*;
use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

fn read(log: &str) -> Report {
    let mut report = Report::default();
    for line in log.lines() {
        report.line(line.as_bytes());
    }
    report.end();
    report
}

/// What a hostile or broken log can have many of. What is kept of it is bounded, and the time must not grow
/// with the square.
#[test]
fn many_hosts_nics_and_words_are_bounded_and_counted() {
    let mut report = Report::default();
    for number in 0..70_000_u32 {
        report.line(
            format!("h{number}:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0").as_bytes(),
        );
        report.line(
            format!("one:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/N{number}/{number}")
                .as_bytes(),
        );
    }
    report.end();
    assert_eq!((report.processes.len(), report.nics.len()), (65_536, 65_536));
    assert_eq!(report.left_out + 65_536, 140_000);
    let (begin, page) = (Instant::now(), page::text(&report, &Links::default(), None));
    assert!(page.contains("Left out: 74464 lines"), "{page}");
    assert!(begin.elapsed() < Duration::from_mins(1), "{:?}", begin.elapsed());
}

#[test]
fn text_that_is_kept_is_bounded_and_counted() {
    let mut report = Report::default();
    let value = "x".repeat(8000);
    for number in 0..40_000_u32 {
        let (host, name) = (number / 250, number % 250);
        let line = format!("h{host}:1:1 [0] NCCL INFO NCCL_X{name} set by environment to {value}.");
        report.line(line.as_bytes());
    }
    let kept: usize = report
        .processes
        .values()
        .flat_map(|process| process.variables.values())
        .map(String::len)
        .sum();
    assert!(kept <= 256 << 20, "{kept}");
    assert!(report.left_out > 0);
    // Messages of the dictionary are text, too.
    let left_out = report.left_out;
    report.line(b"late:1:1 [0] NCCL WARN NET/IB : Unable to open device mlx5_0");
    report.end();
    assert!(
        report
            .processes
            .values()
            .all(|process| process.messages.is_empty())
    );
    assert_eq!(report.left_out, left_out + 1);
}

#[test]
fn a_fault_is_found_behind_any_number_of_unknown_warnings() {
    let word = |mut number: u32| {
        let mut word = String::new();
        for _ in 0..3 {
            word.push(char::from(b'a' + (number % 26) as u8));
            number /= 26;
        }
        word
    };
    let mut log = String::new();
    for number in 0..100 {
        let _ = writeln!(log, "n:1:1 [0] x.cc:1 NCCL WARN {} is unheard of", word(number));
    }
    log += "n:1:1 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 198.51.100.2<4711> with status=12 \
            opcode=0 len=0 vendor err 129 (Recv) hca mlx5_6\n";
    let report = read(&log);
    assert!(report.warnings.worst().is_some());
    assert_eq!(report.warnings.left_out, 36);
    let json = json::document(&report, None).unwrap();
    assert!(json.contains("\"warnings_left_out\":36"), "{json}");
}

#[test]
fn nics_with_wide_names_stand_in_columns() {
    let log = "n:1:1 [0] NCCL INFO NET/IB : Using [0]計算機機:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:192.0.2.1<0>\n\
               n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n\
               n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/1\n";
    let page = page::text(&read(log), &Links::default(), None);
    let (_, table) = page.split_once("  HOST").unwrap();
    let columns = table.lines().take(3).map(|line| {
        let before = line.split_once("LINK").or_else(|| line.split_once("RoCE"));
        rdmatop_base::text::width(before.map_or("", |(before, _)| before))
    });
    let columns: Vec<usize> = columns.collect();
    assert_eq!(columns[1..], [columns[0] + "  HOST".len(); 2], "{page}");
}

fn line_of(log: &str) -> String {
    verdict::judge(&read(log)).line
}

/// A job of two hosts on four NICs as NCCL 2.18 logs it; GPUDirect on all but the last NIC of the second
/// host.
fn two_hosts() -> String {
    let mut log = String::from("NCCL version 2.18.5+cuda12.0\n");
    for (host, first) in [("gpu-a", 0), ("gpu-b", 2)] {
        for gpu in 0..2 {
            let rank = first + gpu;
            let other = (rank + 2) % 4;
            let pid = 100 + rank;
            let writer = format!("{host}:{pid}:{pid} [{gpu}] NCCL INFO");
            let direct = if host == "gpu-b" && gpu == 1 {
                ""
            } else {
                "/GDRDMA"
            };
            let _ = write!(
                log,
                "{writer} NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared object file\n\
                 {writer} NET/Plugin : No plugin found, using internal implementation\n\
                 {writer} NCCL_IB_GID_INDEX set by environment to 3.\n\
                 {writer} NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:192.0.2.1<0>\n\
                 {writer} Using network IB\n\
                 {writer} comm 0x1 rank {rank} nranks 4 cudaDev {gpu} nvmlDev {gpu} busId 7000 commId 0x2 - Init START\n\
                 {writer} Channel 00/02 :    0   1   2   3\n\
                 {writer} Channel 00/0 : {rank}[{gpu}] -> {other}[{gpu}] [send] via NET/IB/{gpu}{direct}\n\
                 {writer} Channel 01/0 : {rank}[{gpu}] -> {other}[{gpu}] [send] via NET/IB/{gpu}{direct}\n\
                 {writer} Channel 00/0 : {other}[{gpu}] -> {rank}[{gpu}] [receive] via NET/IB/{gpu}{direct}\n\
                 {writer} Channel 01/0 : {other}[{gpu}] -> {rank}[{gpu}] [receive] via NET/IB/{gpu}{direct}\n\
                 {writer} Channel 00/0 : 0[0] -> 1[1] via P2P/IPC/read\n\
                 {writer} comm 0x1 rank {rank} nranks 4 cudaDev {gpu} nvmlDev {gpu} busId 7000 commId 0x2 - Init COMPLETE\n"
            );
        }
    }
    log
}

#[test]
fn a_job_on_rdma_is_recognised_with_its_nics_and_gpudirect() {
    let report = read(&two_hosts());
    let verdict = verdict::judge(&report);
    assert_eq!(verdict.kind, VerdictKind::Rdma);
    assert_eq!(verdict.line, "RDMA: yes, 4 NICs, GPUDirect on 3 of 4");
    let jobs = report.jobs();
    assert_eq!(jobs.len(), 1);
    assert_eq!(
        (jobs[0].ranks_joined, jobs[0].ranks_seen, jobs[0].ranks),
        (4, 4, 4)
    );
    assert_eq!(
        verdict.without_gpu_direct.keys().collect::<Vec<_>>(),
        ["gpu-b mlx5_1"]
    );
}

#[test]
fn the_page_of_a_job_on_rdma_reads_well() {
    let mut log = two_hosts();
    log += "gpu-b:102:110 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 1 'mlx5_1' (no module)\n\
            gpu-a:100:120 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 192.0.2.2<4711> with status=12 opcode=1 len=0 vendor err 129 (Send) localGid ::ffff:192.0.2.1 remoteGids::ffff:192.0.2.2 hca mlx5_0\n\
            #  size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n\
            1073741824 268435456 float sum -1 22341 48.10 72.20 0 22388 48.00 72.00 0\n\
            # Avg bus bandwidth    : 41.8558\n";
    let mut links = Links::default();
    for name in ["mlx5_0", "mlx5_1"] {
        links.insert(name.to_owned(), 400_000_000_000);
    }
    let text = page::text(&read(&log), &links, None);
    insta::assert_snapshot!(text);
}

#[test]
fn a_job_on_tcp_names_the_interface_and_the_reason() {
    let socket = "n:1:1 [0] NCCL INFO NET/Socket : Using [0]eth0:192.0.2.1<0>\n\
                  n:1:1 [0] NCCL INFO Using network Socket\n\
                  n:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n";
    for (reason, wanted) in [
        (
            "n:1:1 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n",
            "NCCL_IB_DISABLE is 1",
        ),
        (
            "n:1:1 [0] NCCL INFO NCCL_NET set by environment to Socket.\n",
            "NCCL_NET is Socket",
        ),
        (
            "\nn:1:1 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]\n",
            "libibverbs could not be opened: it is missing in the image (install libibverbs1 and ibverbs-providers)",
        ),
        (
            "n:1:1 [0] NCCL INFO NET/IB : No device found.\n",
            "NCCL found no usable RDMA device",
        ),
        (
            "n:1:1 [0] NCCL INFO NCCL_IB_HCA set to mlx5_9\nn:1:1 [0] NCCL INFO NET/IB : No device found.\n",
            "NCCL found no usable RDMA device (NCCL_IB_HCA is mlx5_9)",
        ),
        (
            "n:1:1 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 0.\n",
            "",
        ),
    ] {
        let wanted = match wanted {
            "" => "TCP: NET/Socket on eth0, and the log does not say why".to_owned(),
            wanted => format!("TCP: NET/Socket on eth0, because {wanted}"),
        };
        assert_eq!(line_of(&format!("{reason}{socket}")), wanted);
    }
}

#[test]
fn logs_of_2_4_and_2_7_are_read_too() {
    let old = "m:22:295 [2] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so).\n\
               m:22:295 [2] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB ; OOB ib0:192.0.2.1<0>\n\
               NCCL version 2.4.7+cuda10.0\n\
               m:22:301 [2] NCCL INFO NET/IB : GPU Direct RDMA Enabled for GPU 7000 / HCA 0 (distance 1 < 3), read 0\n\
               m:22:301 [2] NCCL INFO Ring 00 : 15[41000] -> 0[1b000] [receive] via NET/IB/0/GDRDMA\n\
               m:22:301 [2] NCCL INFO Ring 00 : 0[1b000] -> 1[1c000] via direct shared memory\n\
               m:22:301 [2] NCCL INFO comm 0x7f rank 0 nranks 16 cudaDev 2 nvmlDev 2 - Init COMPLETE\n";
    assert_eq!(line_of(old), "RDMA: yes, 1 NIC, GPUDirect on all");
    let report = read(old);
    assert_eq!(report.versions(), ["NCCL 2.4.7+cuda10.0"]);
    assert_eq!(report.other_connections.local, 1);
}

#[test]
fn plugins_and_the_spelling_of_2_27_are_read() {
    let log = "a:1:1 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so\n\
               a:1:1 [0] NCCL INFO Initialized NET plugin IB\n\
               a:1:1 [0] NCCL INFO Assigned NET plugin IB to comm\n\
               a:1:1 [0] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 2 'mlx5_0+mlx5_1'\n\
               a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/2(3)/GDRDMA(PCI)/Shared\n\
               a:1:1 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IBext_v8/2/GDRDMA\n";
    let report = read(log);
    assert_eq!(
        verdict::judge(&report).line,
        "RDMA: yes, 2 NICs, GPUDirect on all"
    );
    let names: Vec<_> = report
        .nics
        .keys()
        .map(|nic| verdict::nic_name(&report, nic))
        .collect();
    assert_eq!(names, ["mlx5_0+mlx5_1", "mlx5_0+mlx5_1"]);
}

#[test]
fn libfabric_is_rdma_by_its_provider() {
    let log = |provider: &str| {
        format!(
            "[1,0]<stdout>:ip-1:9:9 [0] NCCL INFO NET/Plugin: Loaded net plugin AWS Libfabric (v8)\n\
             [1,0]<stdout>:ip-1:9:9 [0] NCCL INFO NET/OFI Selected provider is {provider}, fabric is x (found 4 nics)\n\
             [1,0]<stdout>:ip-1:9:9 [0] NCCL INFO NET/OFI Using transport protocol RDMA (platform set)\n\
             [1,0]<stdout>:ip-1:9:9 [0] NCCL INFO Using network AWS Libfabric\n\
             [1,0]<stdout>:ip-1:9:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/0/GDRDMA\n"
        )
    };
    assert_eq!(line_of(&log("efa")), "RDMA: yes, 1 NIC, GPUDirect on all");
    assert_eq!(
        line_of(&log("tcp;ofi_rxm")),
        "TCP: NET/AWS Libfabric, because libfabric's provider is tcp;ofi_rxm"
    );
    for provider in ["cxi", "psm2", "opx"] {
        assert_eq!(
            line_of(&log(provider)),
            "RDMA: yes, 1 NIC, GPUDirect on all",
            "{provider}"
        );
        let without = log(provider).replace("/GDRDMA", "");
        assert_eq!(line_of(&without), "RDMA: yes, 1 NIC, no GPUDirect", "{provider}");
    }
    // PSM3 can use sockets (PSM3_HAL), so its name alone does not tell.
    for provider in ["psm3", "psm3;ofi_rxd"] {
        assert_eq!(
            line_of(&log(provider)),
            "RDMA: yes, 1 NIC, GPUDirect on all",
            "{provider}"
        );
        let without = log(provider).replace("/GDRDMA", "");
        assert_eq!(
            line_of(&without),
            "unknown: the network is AWS Libfabric, and its name does not say whether that is RDMA",
            "{provider}"
        );
    }
    let old = "h:1:1 [0] NCCL INFO NET/OFI Selected Provider is efa (found 1 nics)\n\
               h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/0/GDRDMA\n";
    assert_eq!(line_of(old), "RDMA: yes, 1 NIC, GPUDirect on all");
}

#[test]
fn networks_are_known_by_their_names() {
    for (network, rdma) in [
        ("IBext_v10", Some(true)),
        ("gIB", Some(true)),
        ("EFA", Some(true)),
        ("ofi-cxi", Some(true)),
        ("PSM2", Some(true)),
        ("PSM3", None),
        ("OPX", Some(true)),
        ("RCCL-ANP", Some(true)),
        ("SPCX", Some(true)),
        ("Spectrum-X", Some(true)),
        ("FastSocket", Some(false)),
        ("GPUDirectTCPX_v7", Some(false)),
        ("default", None),
        ("planpath", None),
        ("gibbon", None),
        ("cxina", None),
        ("loopx", None),
        ("spcxy", None),
        ("UCX", None),
    ] {
        assert_eq!(verdict::is_rdma(network, None), rdma, "{network}");
    }
}

/// Each order in which logs may be given. A job's logs mostly come in the order of its ranks.
fn in_each_order(a: &str, b: &str) -> [String; 2] {
    [[a, b], [b, a]].map(|logs| {
        let mut report = Report::default();
        for (number, log) in (0..).zip(logs) {
            report.begin(number);
            log.lines().for_each(|line| report.line(line.as_bytes()));
        }
        report.end();
        verdict::judge(&report).fault.unwrap_or_default()
    })
}

#[test]
fn the_cause_is_the_first_fault_in_whatever_order_the_logs_are_given() {
    let no_answer = "a:1:1 [0] net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 192.0.2.2<4711> with status=12 opcode=0 len=0 \
                     vendor err 129 (Send) hca mlx5_0\n";
    let refused = "a:1:1 [0] misc/socket.cc:1 NCCL WARN socketStartConnect: Connect to 192.0.2.2<4711> failed : Connection refused\n";
    let remote = "a:1:1 [0] net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 192.0.2.2<4711> with status=10 opcode=0 len=0\n";
    let port = "b:1:1 [0] net_ib.cc:1 NCCL WARN NET/IB : mlx5_3:1 Got async event : port error\n";
    let memlock =
        "b:1:1 [0] ibvwrap.cc:1 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n";
    let gpu =
        "b:1:1 [0] init.cc:1 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60\n";
    for (echo, cause, wanted) in [
        (
            no_answer,
            port,
            "b mlx5_3: the port went down (and 1 other fault below)",
        ),
        (
            refused,
            memlock,
            "b: memory could not be pinned: the limit of locked memory is too small (and 1 other fault below)",
        ),
        (
            remote,
            gpu,
            "b: two ranks use the same GPU (and 1 other fault below)",
        ),
    ] {
        assert_eq!(in_each_order(echo, cause), [wanted, wanted]);
    }
}

/// NCCL prints these while a job is torn down, too.
#[test]
fn what_the_end_of_a_job_brings_with_it_is_not_its_cause() {
    let no_answer = |clock: &str| {
        format!(
            "{clock}a:1:1 [0] net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 192.0.2.2<4711> with status=12 \
             opcode=0 len=0 vendor err 129 (Send) hca mlx5_0\n"
        )
    };
    let later = |clock: &str, text: &str| format!("{clock}b:1:1 [0] x.cc:1 NCCL WARN {text}\n");
    let is_no_answer = |fault: String| fault.starts_with("a mlx5_0: the peer did not answer");
    let ending = later("", "Cuda failure 'driver shutting down'");
    assert_eq!(
        in_each_order(&no_answer(""), &ending).map(is_no_answer),
        [true; 2]
    );
    let (first, second) = ("[2026-11-26 14:04:42] ", "[2026-11-26 14:04:45] ");
    for text in [
        "Cuda failure 'unknown error'",
        "comm 0x55ec10690820 has already been destroyed",
        "Error: corrupted comm object detected",
    ] {
        let is_first = in_each_order(&no_answer(first), &later(second, text)).map(is_no_answer);
        assert_eq!(is_first, [true; 2], "{text}");
        let is_first = in_each_order(&no_answer(second), &later(first, text)).map(is_no_answer);
        assert_eq!(is_first, [false; 2], "{text}");
    }
}

/// The lines of one attempt of a job of two hosts.
fn attempt(pids: u32, commid: u32, ends: &[&str]) -> String {
    let mut log = String::new();
    for end in ends {
        for (rank, host) in [(0, "a"), (1, "b")] {
            let pid = pids + rank;
            let _ = writeln!(
                log,
                "{host}:{pid}:{pid} [0] NCCL INFO ncclCommInitRank comm 0x{pids:x} rank {rank} nranks 2 cudaDev 0 nvmlDev 0 \
                 busId 1 commId 0x{commid:x} - Init {end}"
            );
        }
    }
    log
}

#[test]
fn an_attempt_before_the_last_start_of_a_job_is_not_waited_for() {
    let net = "a:20:20 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA\n\
               b:21:21 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0/GDRDMA\n";
    let killed = attempt(10, 5, &["START"]);
    let whole = attempt(20, 6, &["START", "COMPLETE"]) + net;
    let fine = "RDMA: yes, 2 NICs, GPUDirect on all";
    assert_eq!(line_of(&(killed.clone() + &whole)), fine);
    // A part of a job that was killed after it had joined.
    let part = "a:10:10 [0] NCCL INFO ncclCommSplit comm 0x9 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 1 parent 0xa \
                splitCount 1 color 0 key 0- Init START\n";
    let joined = attempt(10, 5, &["START", "COMPLETE"]) + part;
    assert_eq!(line_of(&(joined + &whole)), fine);
    // The same processes, after an abort.
    assert_eq!(line_of(&(attempt(20, 5, &["START"]) + &whole)), fine);
    // An attempt that begins after the one that is complete, and one beside it, are waited for.
    let waits = "0 of 2 ranks of one of 2 jobs have joined";
    assert!(line_of(&(whole.clone() + &killed)).contains(waits));
    let beside = attempt(20, 6, &["START"]) + &killed + &attempt(20, 6, &["COMPLETE"]) + net;
    assert!(line_of(&beside).contains(waits));
    // So is a job of other hosts, and one of another log.
    let elsewhere = killed.replace("a:", "c:").replace("b:", "d:");
    assert!(line_of(&(elsewhere + &whole)).contains(waits));
    let mut report = Report::default();
    for (input, log) in [(0, &killed), (1, &whole)] {
        report.begin(input);
        log.lines().for_each(|line| report.line(line.as_bytes()));
    }
    report.end();
    assert!(verdict::judge(&report).line.contains(waits));
}

#[test]
fn a_job_that_waits_is_told_behind_one_whose_beginning_the_log_lacks() {
    let log = attempt(20, 6, &["START"])
        + "c:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA\n\
           c:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 4 nNodes 2 localRanks 1 localRank 0 MNNVL 0\n";
    let line = line_of(&log);
    assert!(
        line.contains("0 of 2 ranks of one of 2 jobs have joined"),
        "{line}"
    );
}

#[test]
fn of_two_causes_the_older_is_first_where_clocks_can_be_compared() {
    let log =
        |clock: &str, host: &str, text: &str| format!("{clock}{host}:1:1 [0] x.cc:1 NCCL WARN {text}\n");
    let port = |clock| log(clock, "b", "NET/IB : mlx5_3:1 Got async event : port error");
    let gpu = |clock| log(clock, "a", "Cuda failure 'uncorrectable NVLink error detected'");
    let faults = |a: &str, b: &str| in_each_order(a, b).map(|fault| fault.starts_with("b mlx5_3: the port"));
    let (early, late) = ("[2026-11-26 14:04:42] ", "[2026-11-26 14:05:01] ");
    assert_eq!(faults(&gpu(late), &port(early)), [true, true]);
    assert_eq!(faults(&gpu(early), &port(late)), [false, false]);
    // The same warning once more, later or earlier.
    assert_eq!(faults(&gpu(late), &(port(late) + &port(early))), [true, true]);
    // Without clocks, and with those of two zones, the order of the logs is all there is.
    assert_eq!(faults(&gpu(""), &port("")), [false, true]);
    assert_eq!(faults(&gpu("2026-11-26T14:05:01Z "), &port(early)), [false, true]);
    assert_eq!(faults(&gpu("14:05:01 "), &port(early)), [false, true]);
    let utc = "[2026-11-26 14:05:01 +0000] ";
    assert_eq!(faults(&gpu(utc), &port(early)), [false, true]);
    // Whole seconds say nothing within one.
    let within = "[2026-11-26 14:04:42.5] ";
    assert_eq!(faults(&gpu(within), &port(early)), [false, true]);
    assert_eq!(faults(&gpu(late), &port(within)), [true, true]);
}

#[test]
fn on_a_terminal_the_verdict_is_wrapped_and_elsewhere_one_line() {
    let log = two_hosts()
        + "gpu-a:100:120 [0] net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 192.0.2.2<4711> with status=12 opcode=1 len=0\n";
    let page = page::text(&read(&log), &Links::default(), None);
    let (first, rest) = page.split_once('\n').unwrap();
    let shown = page::for_terminal(&page);
    let wide = shown.lines().find(|line| rdmatop_base::text::width(line) > 80);
    assert_eq!(wide, None, "{shown}");
    let verdict = shown.strip_suffix(rest).unwrap();
    assert!(first.len() > 80 && verdict.lines().skip(1).all(|line| line.starts_with("  ")));
    assert_eq!(verdict.split_whitespace().collect::<Vec<_>>().join(" "), first);
}

#[test]
fn rccl_writes_the_same_lines() {
    let log = "RCCL version 2.18.3+hip6.0 HEAD:1234567+\n\
               r:5:5 [0] NCCL INFO NET/IB : Using [0]bnxt_re0:1/RoCE [RO]; OOB eth0:192.0.2.9<0>\n\
               r:5:5 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA comm 0x55 nRanks 16\n";
    let report = read(log);
    assert_eq!(verdict::judge(&report).line, "RDMA: yes, 1 NIC, GPUDirect on all");
    assert_eq!(report.versions(), ["RCCL 2.18.3+hip6.0"]);
}

#[test]
fn a_host_on_tcp_among_hosts_on_rdma_is_named() {
    let log = two_hosts()
        + "gpu-c:7:7 [0] NCCL INFO NET/IB : No device found.\n\
           gpu-c:7:7 [0] NCCL INFO Channel 00/0 : 4[0] -> 0[0] [send] via NET/Socket/0\n";
    let verdict = verdict::judge(&read(&log));
    assert_eq!(verdict.kind, VerdictKind::Mixed);
    assert_eq!(
        verdict.line,
        "MIXED: RDMA on 4 NICs (GPUDirect on 3 of 4), but gpu-c on TCP, because NCCL found no usable RDMA device"
    );
}

#[test]
fn a_log_that_is_still_being_written_says_how_far_it_is() {
    let log = two_hosts();
    let early = |line: &&str| !line.contains("via NET") && !line.contains("COMPLETE");
    let cut: Vec<&str> = log.lines().filter(early).collect();
    let line = line_of(&cut.join("\n"));
    assert_eq!(
        line,
        "RDMA was chosen (network IB); 0 of 4 ranks have joined: the job is starting, or waits for a rank"
    );
    // The log ends in the middle of a line.
    let half = &log[..log.len() / 2 + 7];
    assert!(!line_of(half).is_empty());
}

#[test]
fn what_is_no_log_of_nccl_says_what_to_set() {
    assert_eq!(
        line_of("hello\nworld\n"),
        "unknown: no line of NCCL in this log. Run the job with NCCL_DEBUG=INFO"
    );
    let local = "n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n\
                 n:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 1 cudaDev 0 busId 1 - Init COMPLETE\n";
    assert_eq!(verdict::judge(&read(local)).kind, VerdictKind::Local);
}

#[test]
fn a_funnel_and_idle_nics_are_pointed_out() {
    let mut log = String::from(
        "f:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_2:1/IB [3]mlx5_3:1/IB ; OOB e:192.0.2.1<0>\n",
    );
    for channel in 0..8 {
        let _ = writeln!(
            log,
            "f:1:1 [0] NCCL INFO Channel {channel:02}/0 : 1[0] -> 0[0] [receive] via NET/IB/0"
        );
        let _ = writeln!(
            log,
            "f:1:1 [0] NCCL INFO Channel {channel:02}/0 : 0[0] -> 1[0] [send] via NET/IB/{}",
            channel % 2
        );
    }
    let text = page::text(&read(&log), &Links::default(), None);
    assert!(
        text.contains("8 of 8 receiving connections are on mlx5_0: a funnel."),
        "{text}"
    );
    assert!(
        text.contains("2 of 4 NICs that NCCL listed have no connection."),
        "{text}"
    );
}

#[test]
fn what_other_libraries_print_is_not_said_to_be_nccl_s() {
    let others = [
        "Cray MPICH ",
        "JAX ",
        "MPICH ",
        "NIXL ",
        "NVSHMEM ",
        "PyTorch ",
        "Slurm ",
        "UCX ",
        "libfabric ",
    ];
    for entry in dictionary::entries() {
        let mut report = Report::default();
        report.warnings.add("n", "its words", Some(entry), None);
        let text = page::text(&report, &Links::default(), None);
        let is_other = others.iter().any(|name| entry.versions.starts_with(name));
        let is_nccl = entry.versions.starts_with("NCCL ") || entry.versions.starts_with("RCCL");
        assert!(text.contains("    NCCL: ") || !is_nccl, "{entry:?}");
        assert!(text.contains("    line: ") || !is_other, "{entry:?}");
    }
}

#[test]
fn each_cause_of_tcp_is_a_choice_or_a_fault_of_the_dictionary() {
    for id in why::CAUSES {
        let mut kinds = dictionary::entries()
            .filter(|entry| entry.id == id)
            .map(|entry| entry.kind);
        assert!(kinds.any(|kind| kind != dictionary::Kind::Note), "{id}");
    }
}

#[test]
fn hostile_text_reaches_neither_page_nor_json_raw() {
    let log = "e\u{1b}]0;x\u{7}:1:1 [0] NCCL WARN \u{1b}[2Jgone \u{202e}evil\n\
               n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/a\u{1b}[31m/0\n";
    let report = read(log);
    for text in [
        page::text(&report, &Links::default(), None),
        json::document(&report, None).unwrap(),
    ] {
        let bad = text
            .chars()
            .find(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}');
        assert_eq!(bad, None, "{text:?}");
    }
}

#[test]
fn json_says_the_same() {
    let json: serde_json::Value =
        serde_json::from_str(&json::document(&read(&two_hosts()), None).unwrap()).unwrap();
    assert_eq!(json["verdict"]["kind"], "rdma");
    assert_eq!(json["verdict"]["nics"], 4);
    assert_eq!(json["verdict"]["gpu_direct"], 3);
    assert_eq!(json["nics"][0]["name"], "mlx5_0");
    assert_eq!(json["nics"][0]["sends"], 2);
    assert_eq!(json["ranks_joined"], 4);
    assert_eq!(json["jobs"][0]["unfinished"], serde_json::json!([]));
    let split = "gpu-a:101:101 [1] NCCL INFO ncclCommSplit comm 0x9 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 7000 parent 0x1 splitCount 1 \
                 color 0 key 1- Init START\n";
    let json: serde_json::Value =
        serde_json::from_str(&json::document(&read(&(two_hosts() + split)), None).unwrap()).unwrap();
    assert_eq!(
        json["jobs"][0]["unfinished"],
        serde_json::json!([{"ranks": 2, "began": [1]}])
    );
}

proptest! {
    /// Lines that are cut, doubled, shuffled and mixed with anything: there is never a panic, always a
    /// verdict, and nothing unsafe is printed.
    #[test]
    fn no_log_panics(picks in proptest::collection::vec((0usize..60, 0usize..200, "\\PC{0,30}"), 0..80)) {
        let log = two_hosts();
        let lines: Vec<&str> = log.lines().collect();
        let mut report = Report::default();
        for (at, cut, junk) in picks {
            let line = lines[at % lines.len()];
            let cut: String = line.chars().take(cut).collect();
            report.line(format!("{cut}{junk}").as_bytes());
        }
        report.end();
        let text = page::text(&report, &Links::default(), None);
        prop_assert!(!text.lines().next().unwrap_or_default().is_empty());
        prop_assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
        prop_assert!(json::document(&report, None).is_ok());
    }
}

/// Lines of eight ranks on two hosts, half of them cut at any place, as where ranks write to one file.
fn torn(mut seed: u64) -> String {
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(seed >> 33).unwrap() % below
    };
    let of_rank = |rank: usize| {
        let before = format!(
            "gpu-a1{}:{}:{} [{}] NCCL INFO",
            rank / 4,
            4100 + rank,
            4200 + rank,
            rank % 4
        );
        let next = (rank + 1) % 8;
        [
            "Bootstrap: Using eth0:192.0.2.1<0>".to_owned(),
            "NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:192.0.2.1<0>".to_owned(),
            "Using network IB".to_owned(),
            format!("ncclCommInitRank comm 0x55{rank} rank {rank} nranks 8 cudaDev 0 nvmlDev 0 busId 18000 commId 0x2b - Init START"),
            "P2P Chunksize set to 131072".to_owned(),
            format!("Channel 00/0 : {rank}[0] -> {next}[1] [send] via NET/IB/0/GDRDMA"),
            format!("Channel 01/0 : {rank}[0] -> {next}[1] [send] via NET/IB/0/GDRDMA"),
            "Connected all rings".to_owned(),
            "Connected all trees".to_owned(),
            format!("ncclCommInitRank comm 0x55{rank} rank {rank} nranks 8 cudaDev 0 nvmlDev 0 busId 18000 commId 0x2b - Init COMPLETE"),
        ]
        .map(|text| format!("{before} {text}\n"))
        .concat()
    };
    let mut ranks: Vec<String> = (0..8).map(of_rank).collect();
    let mut out = String::new();
    while !ranks.is_empty() {
        let at = random(ranks.len());
        let line = ranks[at].find('\n').unwrap() + 1;
        let end = if random(2) == 0 { line } else { 1 + random(line) };
        out.extend(ranks[at].drain(..end));
        ranks.retain(|rank| !rank.is_empty());
    }
    out
}

#[test]
fn the_rests_of_torn_lines_make_no_host() {
    for seed in 0..40 {
        let log = torn(seed);
        let report = read(&log);
        let hosts = report.hosts();
        assert!(
            hosts.iter().all(|host| ["gpu-a10", "gpu-a11"].contains(host)),
            "{seed} {hosts:?}\n{log}"
        );
    }
}
