//! Each check by its facts: a change that affects one line changes no other. Ports, PCIe and processes have
//! files of their own.

mod jobs;
mod pcie;
mod ports;

use std::sync::LazyLock;

use super::{collect, trees};
use rdmatop_base::exclude::Excluded;
use rdmatop_doctor::{
    Facts, Reading, Status, examine,
    facts::{IdleNic, Port, Process, SoftRoce},
};
use rdmatop_model::cause::{Cause, CauseId, Concerns};

static HEALTHY: LazyLock<Facts> = LazyLock::new(|| collect(&trees::gpu_node().root(), None));

/// Lines that the healthy node's report does not have, without the pass lines that they replace: `FAIL
/// port.state text`.
fn changed(change: impl FnOnce(&mut Facts)) -> Vec<String> {
    let mut facts = HEALTHY.clone();
    let before = examine(&facts);
    change(&mut facts);
    let after = examine(&facts);
    let new: Vec<_> = after
        .lines
        .iter()
        .filter(|line| !before.lines.contains(line))
        .collect();
    // The removed lines belong to the same checks as the new ones.
    for gone in before.lines.iter().filter(|line| !after.lines.contains(line)) {
        assert!(
            new.iter().any(|line| line.id == gone.id),
            "{gone:?} went for {new:?}"
        );
    }
    new.iter()
        .map(|line| format!("{:?} {} {}", line.status, line.id, line.text))
        .collect()
}

fn port(facts: &mut Facts, number: usize) -> &mut Port {
    &mut devices(facts)[number].ports[0]
}

fn devices(facts: &mut Facts) -> &mut Vec<rdmatop_doctor::facts::Device> {
    match &mut facts.devices {
        Reading::Known(devices) => devices,
        other => panic!("{other:?}"),
    }
}

fn cause(id: CauseId) -> Cause {
    Cause {
        id,
        concerns: Concerns::Host,
        what: "what".into(),
        why: "why".into(),
        remedy: "remedy".into(),
    }
}

/// Lines of jobs for a process with these settings.
fn with_settings(settings: &[&str]) -> Vec<String> {
    let pairs = settings.iter().map(|setting| {
        let (name, value) = setting.split_once('=').unwrap();
        (name.to_owned(), value.to_owned())
    });
    let mut facts = HEALTHY.clone();
    facts.processes = vec![Process {
        environ: Reading::Known(pairs.collect()),
        ..facts.processes[0].clone()
    }];
    let report = examine(&facts);
    report
        .lines
        .iter()
        .filter(|line| line.id.starts_with("job."))
        .map(|line| format!("{:?} {} {}", line.status, line.id, line.text))
        .collect()
}

#[test]
fn devices_that_are_late_broken_leaving_or_closed_are_named() {
    let line = changed(|facts| devices(facts)[3].late = true);
    assert_eq!(line[0], "Fail device.present mlx5_3 does not answer");
    let line = changed(|facts| devices(facts)[3].dangling = true);
    assert_eq!(
        line[0],
        "Fail device.present mlx5_3 is listed, and its files in /sys are missing"
    );
    let line =
        changed(|facts| facts.leaving = Reading::Known(vec![("mlx5_9".into(), "held by 7 (x)".into())]));
    assert_eq!(
        line,
        ["Fail device.removal mlx5_9 is being removed, and the removal waits: held by 7 (x)"]
    );
    let mut facts = HEALTHY.clone();
    (facts.devices, facts.host.exclusive) = (Reading::Known(vec![]), true);
    let report = examine(&facts);
    assert!(
        report.verdict().contains("mode exclusive"),
        "{}",
        report.verdict()
    );
    assert!(!report.lines[0].remedy.contains("driver"), "no driver is missing");
    let line = changed(|facts| facts.leaving = Reading::Unreadable("it is so".into()));
    assert_eq!(line, ["Unknown device.removal devices that are being removed"]);
    let line = changed(|facts| {
        facts.idle_nics = vec![IdleNic {
            address: "0000:f0:00.0".into(),
            what: "an EFA",
            module: "efa",
            driver: None,
        }];
    });
    assert_eq!(
        line,
        ["Warn device.driver an EFA at 0000:f0:00.0 has no RDMA device: it has no driver"]
    );
}

#[test]
fn a_device_that_is_left_alone_is_named_and_not_read() {
    let fake = trees::gpu_node();
    let root = fake.root().without(Excluded::new(&["mlx5_3".to_owned()]));
    let facts = collect(&root, None);
    assert_eq!(facts.excluded, ["mlx5_3"]);
    let Reading::Known(devices) = &facts.devices else {
        panic!("{:?}", facts.devices);
    };
    assert!(devices.iter().all(|device| device.name != "mlx5_3") && !devices.is_empty());
    let report = examine(&facts);
    let lines = report.lines.iter().filter(|line| line.id == "device.present");
    let all: Vec<_> = lines.map(|line| (line.status, &*line.text)).collect();
    assert_eq!(all[0], (Status::Skip, "mlx5_3"));
    assert_eq!((all[1].0, all.len()), (Status::Pass, 2));
}

#[test]
fn what_a_reader_did_not_get_in_time_is_neither_there_nor_missing() {
    let late = || "it did not answer".to_owned();
    let lines = changed(|facts| {
        let pci = devices(facts)[0].pci.as_mut().unwrap();
        pci.current = Reading::Unknown(late());
    });
    assert_eq!(lines, ["Unknown pcie.link PCIe link of mlx5_0"]);
    let mut facts = HEALTHY.clone();
    facts.verbs = Reading::Unknown(late());
    let lines = examine(&facts).lines;
    let mut lines = lines.iter().filter(|line| line.id == "device.verbs");
    let found = lines.next().map(|line| (line.status, &*line.text));
    assert_eq!(found, Some((Status::Unknown, "verbs devices")));
    assert_eq!(lines.next(), None);
}

#[test]
fn a_machine_without_verbs_says_so() {
    let line = changed(|facts| {
        if let Reading::Known(verbs) = &mut facts.verbs {
            verbs.retain(|(_, device)| device != "mlx5_2");
        }
    });
    assert_eq!(
        line[0],
        "Warn device.verbs programs cannot open mlx5_2: it has no verbs device"
    );
    let mut facts = HEALTHY.clone();
    facts.verbs = Reading::Absent;
    let report = examine(&facts);
    assert!(
        report
            .lines
            .iter()
            .any(|line| line.id == "device.verbs" && line.remedy.starts_with("sudo modprobe ib_uverbs "))
    );
}

#[test]
fn firmware_that_differs_is_named_within_a_board_alone() {
    let line = changed(|facts| devices(facts)[3].firmware = Reading::Known("28.36.1010".into()));
    assert_eq!(
        line,
        [
            "Warn device.firmware different firmware on equal NICs: 28.36.1010 on mlx5_3; 28.39.1002 on mlx5_0, mlx5_1, mlx5_2, mlx5_4 and 3 more"
        ]
    );
    let line = changed(|facts| {
        devices(facts)[3].firmware = Reading::Known("16.1".into());
        devices(facts)[3].board = Reading::Known("other".into());
    });
    assert_eq!(line, [""; 0]);
    // Not every driver names its boards.
    let line = changed(|facts| {
        for device in devices(facts) {
            device.board = Reading::Absent;
        }
        devices(facts)[3].firmware = Reading::Known("231.1".into());
        devices(facts)[3].pci.as_mut().unwrap().ids = "0x14e4:0x1750".into();
    });
    assert_eq!(line, [""; 0]);
}

/// The remedies repeat the numbers of the checks, as text.
#[test]
fn what_a_remedy_of_tcp_sets_is_enough_for_its_check() {
    let numbers = |text: &str, key: &str| -> Option<u64> {
        let (_, value) = text.split_once(key)?;
        let value = value.split('\'').nth(1).unwrap_or(value);
        value.split_whitespace().last()?.parse().ok()
    };
    for (rmem, wmem) in [(1, 1), (1, 1 << 30), (1 << 30, 1)] {
        let mut facts = HEALTHY.clone();
        (facts.tcp.rmem, facts.tcp.wmem) = (Some(rmem), Some(wmem));
        let warned = |facts: &Facts| {
            let report = examine(facts);
            let mut lines = report.lines.into_iter();
            lines.find(|line| line.id == "tcp.buffers" && line.status == Status::Warn)
        };
        let remedy = warned(&facts).unwrap().remedy.to_string();
        facts.tcp.rmem = numbers(&remedy, "tcp_rmem=").or(facts.tcp.rmem);
        facts.tcp.wmem = numbers(&remedy, "tcp_wmem=").or(facts.tcp.wmem);
        assert!(warned(&facts).is_none(), "{remedy}");
    }
}

#[test]
fn settings_of_tcp_are_judged_by_the_kernels_defaults() {
    let line = changed(|facts| facts.tcp.wmem = Some(1 << 20));
    assert_eq!(
        line,
        ["Warn tcp.buffers TCP buffers grow to 6 MiB (receive) and 1 MiB (send) only"]
    );
    let line = changed(|facts| facts.tcp.backlog = Some(128));
    assert_eq!(
        line,
        ["Warn tcp.backlog only 128 ranks can wait to connect (net.core.somaxconn)"]
    );
}

#[test]
fn what_rdmatop_needs_is_reported_to_root_and_skipped_for_others() {
    let line = changed(|facts| facts.own.missing.push(cause(CauseId::Lockdown)));
    assert_eq!(line, ["Warn rdmatop.ebpf rdmatop's eBPF programs: why"]);
    let line = changed(|facts| facts.own.btf = Some(false));
    assert!(line[0].starts_with("Warn rdmatop.ebpf"), "{line:?}");
    let line = changed(|facts| facts.own.missing.push(cause(CauseId::PidNamespace)));
    assert_eq!(line, ["Warn rdmatop.processes what"]);
    let line = changed(|facts| {
        facts.host.root = false;
        facts.own.missing = vec![cause(CauseId::NoCapability), cause(CauseId::NoPtrace)];
    });
    assert_eq!(line, ["Skip rdmatop.ebpf rdmatop's eBPF programs"]);
    let with_capabilities = changed(|facts| facts.host.root = false);
    assert!(
        with_capabilities.iter().all(|line| !line.contains("eBPF")),
        "as for root: {with_capabilities:?}"
    );
    for root in [true, false] {
        let missing = [CauseId::NoCapability, CauseId::PidNamespace].map(cause);
        let mut facts = HEALTHY.clone();
        (facts.host.container, facts.host.root) = (true, root);
        facts.own.missing = missing.to_vec();
        let report = examine(&facts);
        let lines = report.lines.iter().filter(|line| line.id.starts_with("rdmatop."));
        let statuses: Vec<_> = lines.map(|line| line.status).collect();
        assert_eq!(statuses, [Status::Skip; 2]);
        assert_eq!(report.code(), 0, "nothing is wrong with a container");
    }
    let line = changed(|facts| facts.unfinished = vec![("GPUs and NICs on PCI", "late")]);
    assert_eq!(line, ["Unknown device.search GPUs and NICs on PCI"]);
    let line = changed(|facts| facts.hidden_processes = 3);
    assert_eq!(line, ["Unknown job.hidden settings and limits of 3 processes"]);
}

#[test]
fn softroce_is_offered_only_where_no_device_is() {
    let without = |softroce| {
        let mut facts = Facts {
            softroce,
            ..Facts::default()
        };
        facts.host.root = true;
        examine(&facts).lines
    };
    let line = &without(Some(SoftRoce::Missing("apt install x".into())))[1];
    assert_eq!(
        (line.id, line.status, &*line.remedy),
        ("device.softroce", Status::Warn, "apt install x")
    );
    assert_eq!(without(Some(SoftRoce::Ready))[1].status, Status::Pass);
    assert!(without(None).iter().all(|line| line.id != "device.softroce"));
}

#[test]
fn the_exit_code_is_that_of_the_worst_line() {
    let code = |change: fn(&mut Facts)| {
        let mut facts = HEALTHY.clone();
        change(&mut facts);
        examine(&facts).code()
    };
    assert_eq!(code(|_| {}), 0);
    assert_eq!(code(|facts| facts.hidden_processes = 3), 3);
    let user = |facts: &mut Facts| {
        facts.host.root = false;
        facts.own.missing = vec![cause(CauseId::NoCapability)];
    };
    assert_eq!(code(user), 0, "a user need not load programs");
    assert_eq!(code(|facts| facts.excluded = vec!["mlx5_3".into()]), 0);
    // Doctor reads nothing of a device in a pod's network namespace.
    assert_eq!(code(|facts| facts.elsewhere = vec!["mlx5_4".into()]), 3);
    assert_eq!(code(|facts| facts.tcp.backlog = Some(1)), 1);
    assert_eq!(code(|facts| facts.view.nodes = Reading::Absent), 2);
}
