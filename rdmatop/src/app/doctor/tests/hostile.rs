//! Processes whose users do not want to be looked at: what is not known is said, and is never a good result.

use std::{fs, os::unix::fs::PermissionsExt as _};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::{
    super::{Subject, kernel, silent},
    collect, trees,
};
use rdmatop_doctor::{Facts, Reading, Status, examine, facts::Process, page};
use rdmatop_sources::fake::Fake;

const CONF: &str = "its /etc/nccl.conf";

fn fifo(fake: &Fake, pid: u32) {
    fake.dir(format!("proc/{pid}/root/etc"));
    let path = fake.root().proc(format!("{pid}/root/etc/nccl.conf"));
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
}

#[test]
fn many_processes_with_odd_files_hide_no_other_ones_failure() {
    let fake = trees::gpu_node();
    for pid in 5000..5032 {
        trees::job(&fake, pid, &["NCCL_DEBUG=INFO"]);
        fifo(&fake, pid);
    }
    assert_eq!(examine(&collect(&fake.root(), None)).code(), 3);
    trees::job(&fake, 6000, &["NCCL_IB_HCA=mlx5_9"]);
    let report = examine(&collect(&fake.root(), None));
    let of = |status| report.lines.iter().filter(move |line| line.status == status);
    assert!(
        of(Status::Fail).any(|line| line.text.contains("PID 6000")),
        "{report:?}"
    );
    let unknown: Vec<_> = of(Status::Unknown).collect();
    // One line for all of them, whose subject names each.
    assert_eq!(unknown.len(), 1);
    assert_eq!(unknown[0].subject.split(", ").count(), 32);
    assert!(
        unknown
            .iter()
            .all(|line| line.text.contains(CONF) && line.why.contains("FIFO"))
    );
    assert_eq!(report.code(), 2);
}

#[test]
fn a_link_shows_nothing_that_is_not_the_processs_own() {
    let fake = trees::gpu_node();
    trees::job(&fake, 5000, &["NCCL_DEBUG=INFO"]);
    fake.proc("secret", "NCCL_SECRET=outside\n")
        .proc("5000/root/hidden", "NCCL_SECRET=mode\n")
        .proc("5000/status", "Uid:\t77777\t77777\t77777\t77777\n");
    fs::set_permissions(
        fake.root().proc("5000/root/hidden"),
        fs::Permissions::from_mode(0o600),
    )
    .unwrap();
    let outside = fake.root().proc("secret");
    for target in [
        outside.to_str().unwrap(),
        "../../../secret",
        "/hidden",
        "/dev/null",
    ] {
        fake.link("proc/5000/root/etc/nccl.conf", target);
        let facts = collect(&fake.root(), Some(5000));
        assert!(!format!("{facts:?}").contains("NCCL_SECRET"), "{target}");
    }
    fake.link("proc/5000/root/etc/nccl.conf", "/hidden");
    let report = examine(&collect(&fake.root(), Some(5000)));
    assert!(
        report
            .lines
            .iter()
            .any(|line| line.status == Status::Unknown && line.text.contains(CONF))
    );
}

#[test]
fn whatever_is_not_known_is_no_success() {
    type Change = fn(&mut Facts);
    let changes: [(&str, Change); 15] = [
        ("device.search", |facts| {
            facts.unfinished.push(("processes", "late"));
        }),
        ("device.removal", |facts| {
            facts.leaving = Reading::Unknown("late".into());
        }),
        ("limit.devices", |facts| {
            facts.view.nodes = Reading::Unknown("late".into());
        }),
        ("limit.devices", |facts| {
            facts.view.sees = Reading::Unknown("late".into());
        }),
        ("limit.devices", |facts| {
            if let Reading::Known(nodes) = &mut facts.view.nodes {
                for (_, may_open) in nodes {
                    *may_open = None;
                }
            }
        }),
        ("limit.cgroup", |facts| {
            facts.view.rdma_limits = Reading::Unknown("late".into());
        }),
        ("limit.memlock", |facts| {
            facts.processes[0].memlock = Reading::Unknown("late".into());
        }),
        ("job.hidden", |facts| {
            facts.processes[0].conf = Reading::Unknown("late".into());
        }),
        ("job.hidden", |facts| facts.left_out = 2),
        // Without the right to read it, or where the kernel does not say it.
        ("device.removal", |facts| {
            facts.leaving = Reading::Unreadable("root only".into());
        }),
        ("limit.devices", |facts| {
            facts.view.nodes = Reading::Unreadable("root only".into());
        }),
        ("limit.memlock", |facts| {
            facts.processes[0].memlock = Reading::Unreadable("root only".into());
        }),
        ("pcie.acs", |facts| {
            facts.gpus[0].pci.acs = Reading::Unreadable("root only".into());
        }),
        ("gpu.direct", |facts| facts.gpu_memory.peermem = false),
        ("job.hidden", |facts| facts.hidden_processes = 3),
    ];
    let healthy = collect(&trees::gpu_node().root(), None);
    for (id, change) in changes {
        let mut facts = healthy.clone();
        change(&mut facts);
        let report = examine(&facts);
        let of_check: Vec<Status> = report
            .lines
            .iter()
            .filter(|line| line.id == id)
            .map(|line| line.status)
            .collect();
        assert_eq!(of_check, [Status::Unknown], "{id}");
        assert_eq!(report.code(), 3, "{id}");
        assert!(
            report.verdict().starts_with("doctor: 1 check not made:"),
            "{}",
            report.verdict()
        );
        let page = page::text(&facts, &report, false, false);
        assert!(page.contains("????"), "{page}");
        let json: serde_json::Value = serde_json::from_str(&page::json(&facts, &report).unwrap()).unwrap();
        assert_eq!(
            (json["status"].as_str(), json["unknown"].as_u64()),
            (Some("unknown"), Some(1))
        );
    }
}

#[test]
fn a_process_that_does_not_answer_is_named_in_each_check_of_it() {
    let fake = trees::gpu_node();
    trees::job(&fake, 5000, &[]);
    let process: Process = silent(&fake.root(), Subject::Pid(5000));
    let mut facts = collect(&fake.root(), None);
    facts.processes = vec![process];
    let report = examine(&facts);
    let unknown: Vec<&str> = report
        .lines
        .iter()
        .filter(|line| line.status == Status::Unknown && line.subject.contains("PID 5000"))
        .map(|line| line.id)
        .collect();
    assert_eq!(unknown, ["limit.memlock", "job.hidden"]);
    assert_eq!(report.code(), 3);
}

#[test]
fn users_take_turns_and_what_is_beyond_the_limit_is_said() {
    let fake = trees::gpu_node();
    for pid in 5000..5081 {
        trees::job(&fake, pid, &[]);
    }
    fake.proc("5080/status", "Uid:\t77\t77\t77\t77\n");
    let facts = collect(&fake.root(), None);
    assert_eq!(facts.processes.len(), 64);
    assert!(facts.processes.iter().any(|process| process.pid == 5080));
    assert!(facts.left_out >= 80 - 64, "{}", facts.left_out);
    assert_eq!(examine(&facts).code(), 3);
}

#[test]
fn a_search_of_open_files_that_stops_says_so() {
    let fake = trees::gpu_node();
    trees::job(&fake, 5000, &[]);
    for fd in 100..110 {
        fake.link(format!("proc/4000/fd/{fd}"), "/dev/null");
    }
    assert!(!kernel::openers(&fake.root(), 1000).1);
    let (_, cut) = kernel::openers(&fake.root(), 5);
    assert!(cut);
}
