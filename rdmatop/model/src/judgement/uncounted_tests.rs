//! The reasons why work requests of a QP or a process are unknown.

use std::{collections::BTreeMap, sync::Arc};

use super::*;
use crate::{
    cause::{Cause, CauseId, Concerns, Obstacle},
    ib::QpType,
    input::{DataPaths, EbpfState, UprobesReport},
    snapshot::{Hidden, Loss, Quantity, Snapshot, Traffic},
    testkit,
    value::{Counter, Source},
};

/// A device whose driver no program follows, with a QP of a process.
fn nic(driver: &str, libraries: &[&str]) -> Snapshot {
    let mut s = testkit::one_row();
    let device = &mut s.devices[0];
    (device.driver, device.followed, device.datapath) = (Some(driver.into()), false, None);
    s.health.ebpf = EbpfState::On {
        datapaths: DataPaths::default(),
    };
    Arc::make_mut(&mut s.qps[0]).traffic = Arc::default();
    let process = &mut s.processes[0];
    process.traffic = Traffic::default();
    let libraries: Vec<String> = libraries.iter().map(|&name| name.to_owned()).collect();
    process.libraries = Some(libraries.into());
    process.environ = Some(Vec::new().into());
    s
}

/// A report of probes that were removed because they cost too much.
fn too_dear() -> Arc<UprobesReport> {
    let off = Obstacle::new(CauseId::TooCostly, "the probes took too much", "raise it");
    Arc::new(UprobesReport {
        off: Some(off.takes("x", Concerns::Host)),
        ..UprobesReport::default()
    })
}

fn probed(mut s: Snapshot) -> Snapshot {
    s.health.uprobes = Some(Arc::default());
    s
}

/// Returns `unknown` of the first QP in JSON. The judgement must explain each entry, and the QP's reasons
/// must have the same ids.
fn unknown(s: &Snapshot) -> BTreeMap<String, String> {
    let s = s.clone().judged(None);
    let json = serde_json::to_value(&s).unwrap();
    let unknown: BTreeMap<String, String> =
        serde_json::from_value(json["qps"][0]["unknown"].clone()).unwrap();
    let all = json["judgement"]["unobserved"].as_array().unwrap();
    for (what, id) in &unknown {
        let explains = |row: &serde_json::Value| row["what"] == **what && row["cause"]["id"] == **id;
        assert!(all.iter().any(explains), "{what}: {id}: {all:?}");
    }
    let word = |cause: &Cause| serde_json::to_value(cause.id).unwrap();
    let told: Vec<_> = why_qp_is_unknown(&s, &s.qps[0]).iter().map(word).collect();
    assert_eq!(told.len(), unknown.len());
    assert!(
        told.iter()
            .all(|id| unknown.values().any(|known| id == known.as_str()))
    );
    unknown
}

/// Returns the cause's id and sentence if all work requests are unknown. Those of the process must be equal.
fn why(s: &Snapshot) -> (CauseId, String) {
    assert_eq!(unknown(s).keys().collect::<Vec<_>>(), ["work_requests"]);
    let causes = why_qp_is_unknown(s, &s.qps[0]);
    let process = why_process_is_uncounted(s, &s.processes[0]).unwrap();
    assert_eq!(sentence(&process), sentence(&causes[0]));
    (causes[0].id, sentence(&causes[0]))
}

/// Returns what cannot be observed of the device's work requests, without its bytes.
fn lines(s: &Snapshot) -> Vec<String> {
    let judged = s.clone().judged(None);
    let lines = judged.judgement.unobserved.iter().map(Unobserved::what);
    lines.filter(|line| !line.starts_with("bytes")).collect()
}

#[test]
fn without_probes_posts_past_the_kernel_are_unknown_with_a_remedy() {
    let (id, why) = why(&nic("mlx5_core", &["libuct.so.0"]));
    assert_eq!(id, CauseId::NotFollowed);
    assert!(
        why.contains("bypass the kernel") && why.contains("`--uprobes` counts them"),
        "{why}"
    );
}

#[test]
fn a_library_that_may_post_by_itself_is_named_on_its_driver_alone() {
    const UCX: &str = "UCX is loaded, which may post to mlx5";
    for (driver, library, id, says) in [
        ("mlx5_core", "libuct.so.0", CauseId::MayBypass, UCX),
        ("mlx5_core", "libucp.so.0", CauseId::MayBypass, UCX),
        (
            "mlx5_core",
            "libnvshmem_host.so.3",
            CauseId::MayBypass,
            "NVSHMEM is loaded, with which a GPU may",
        ),
        (
            "mlx5_core",
            "libdoca_gpunetio.so.2",
            CauseId::MayBypass,
            "DOCA GPUNetIO is loaded, with which a GPU may",
        ),
        (
            "efa",
            "libfabric.so.1",
            CauseId::MayBypass,
            "libfabric is loaded, which may post to EFA",
        ),
        ("mlx5_core", "libfabric.so.1", CauseId::NotProbed, "no probe"),
        ("mlx5_core", "libucs.so.0", CauseId::NotProbed, "no probe"),
        ("efa", "libucp.so.0", CauseId::NotProbed, "no probe"),
        ("vmw_pvrdma", "libucp.so.0", CauseId::NotProbed, "no probe"),
        ("bnxt_re", "libuct.so.0", CauseId::NotProbed, "no probe"),
        ("mlx4_core", "libuct.so.0", CauseId::NotProbed, "no probe"),
    ] {
        let (told, why) = why(&probed(nic(driver, &["libibverbs.so.1", library])));
        assert_eq!(told, id, "{driver} {library}");
        assert!(why.contains(says), "{driver} {library}: {why}");
    }
    let mut unread = probed(nic("mlx5_core", &[]));
    unread.processes[0].libraries = None;
    assert_eq!(why(&unread).0, CauseId::NotProbed);
}

#[test]
fn libfabric_that_is_told_not_to_post_by_itself_is_not_named() {
    let mut s = probed(nic("efa", &["libfabric.so.1"]));
    assert!(
        why(&s).1.contains("FI_EFA_USE_DATA_PATH_DIRECT=0"),
        "{:?}",
        why(&s)
    );
    for (value, id) in [
        ("0", CauseId::NotProbed),
        ("False", CauseId::NotProbed),
        ("1", CauseId::MayBypass),
    ] {
        let set = ("FI_EFA_USE_DATA_PATH_DIRECT".to_owned(), value.to_owned());
        s.processes[0].environ = Some(vec![set].into());
        assert_eq!(why(&s).0, id, "{value}");
    }
}

#[test]
fn a_qp_that_a_probe_saw_says_only_that_its_end_is_not_seen() {
    let mut s = probed(nic("mlx5_core", &["libuct.so.0"]));
    let posted = Counter::whole(7, Some(1.0), Source::Uprobe);
    let known = Traffic {
        tx_wr: Some(posted),
        ..Traffic::default()
    };
    Arc::make_mut(&mut s.qps[0]).traffic = Arc::new(known.clone());
    s.processes[0].traffic = known;
    let want = BTreeMap::from([("completions".to_owned(), "not-followed".to_owned())]);
    assert_eq!(unknown(&s), want);
    assert_eq!(why_process_is_uncounted(&s, &s.processes[0]), None);
    assert_eq!(
        lines(&s),
        ["completions, errors and times: probes on programs see what is posted, and not what becomes of it."]
    );
    // Beside it there is a QP that posts nothing.
    let mut silent = (*s.qps[0]).clone();
    silent.traffic = Arc::default();
    s.qps.push(Arc::new(silent));
    let lines = lines(&s);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].starts_with("work requests of 1 QP: UCX is loaded"),
        "{lines:?}"
    );
}

#[test]
fn qps_that_are_silent_are_counted_by_what_their_processes_have_loaded() {
    let mut s = probed(nic("mlx5_core", &["libucp.so.0"]));
    let mut plain = s.processes[0].clone();
    (plain.uid, plain.pid, plain.libraries) = (9, Some(9), Some(Vec::new().into()));
    s.processes.push(plain);
    let first = Arc::clone(&s.qps[0]);
    for (uid, posted) in [(9, None), (231, None), (9, None), (9, Some(3)), (231, None)] {
        let mut qp = (*first).clone();
        qp.process_uid = Some(uid);
        let traffic = Arc::make_mut(&mut qp.traffic);
        traffic.rx_wr_posted = posted.map(|posted| Counter::whole(posted, None, Source::Uprobe));
        s.qps.push(Arc::new(qp));
    }
    let lines = lines(&s);
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(
        lines[0].starts_with("work requests of 2 QPs: these posts bypass the kernel"),
        "{lines:?}"
    );
    assert!(
        lines[1].starts_with("work requests of 3 QPs: UCX is loaded"),
        "{lines:?}"
    );
}

#[test]
fn with_one_process_probed_its_own_qps_are_not_said_to_be_left_out() {
    let mut s = nic("bnxt_re", &["libibverbs.so.1"]);
    let of = |pid| {
        Some(Arc::new(UprobesReport {
            pid: Some(pid),
            ..UprobesReport::default()
        }))
    };
    s.health.uprobes = of(9);
    let other = why(&s).1;
    assert!(
        other.contains("only process 9 is probed") && other.contains("`--uprobes` probes all"),
        "{other}"
    );
    s.health.uprobes = of(231);
    let own = why(&s).1;
    assert!(
        own.contains("no probe on a program counts them") && !own.contains("only process"),
        "{own}"
    );
    s.health.uprobes = Some(too_dear());
    assert_eq!(why(&s).0, CauseId::TooCostly);
}

#[test]
fn a_kernel_consumer_posts_in_the_kernel_and_no_probe_on_a_program_helps() {
    let mut removed = nic("mlx5_core", &[]);
    removed.health.uprobes = Some(too_dear());
    let on = probed(nic("mlx5_core", &["libuct.so.0"]));
    for mut s in [nic("mlx5_core", &[]), on, removed] {
        Arc::make_mut(&mut s.qps[0]).kernel = true;
        s.processes[0].kernel = true;
        let (id, why) = why(&s);
        assert_eq!(id, CauseId::NotFollowed);
        assert!(
            why.starts_with("the kernel posts these itself") && !why.contains("--uprobes"),
            "{why}"
        );
    }
}

#[test]
fn the_cores_own_qps_make_no_line_of_their_device() {
    let mut s = probed(nic("mlx5_core", &[]));
    let posted = Some(Counter::whole(7, None, Source::Uprobe));
    Arc::make_mut(&mut Arc::make_mut(&mut s.qps[0]).traffic).tx_wr = posted;
    let add = |s: &mut Snapshot, kind: u8, comm: &str| {
        let mut qp = (*s.qps[0]).clone();
        (qp.kernel, qp.qp_type, qp.comm) = (true, Some(QpType(kind)), Some(comm.into()));
        qp.traffic = Arc::default();
        s.qps.push(Arc::new(qp));
    };
    add(&mut s, 1, "[ib_core]");
    add(&mut s, 2, "[mlx5_ib]");
    assert!(
        !lines(&s).iter().any(|line| line.contains("work requests")),
        "{:?}",
        lines(&s)
    );
    add(&mut s, 2, "[nvme_rdma]");
    assert!(
        lines(&s)[0].starts_with("work requests of 1 QP: the kernel posts these itself"),
        "{:?}",
        lines(&s)
    );
}

#[test]
fn where_programs_count_only_what_the_driver_hides_has_a_cause() {
    const HIDDEN: &[Hidden] = &[
        Hidden {
            what: Quantity::Retransmissions,
            why: "TCP sends again and does not report it to the driver",
        },
        Hidden {
            what: Quantity::ReceiverWaits,
            why: "iWARP has none",
        },
    ];
    let mut s = testkit::one_row();
    assert_eq!(unknown(&s), BTreeMap::new(), "SoftRoCE is counted");
    (s.devices[0].driver, s.devices[0].hidden) = (Some("siw".into()), HIDDEN);
    let hidden =
        ["receiver_waits", "retransmissions"].map(|what| (what.to_owned(), "not-in-driver".to_owned()));
    assert_eq!(unknown(&s), BTreeMap::from(hidden));
    let first = why_qp_is_unknown(&s, &s.qps[0]).swap_remove(0);
    assert_eq!(
        first.line(),
        "packets sent again: TCP sends again and does not report it to the driver"
    );
}

#[test]
fn without_btf_or_with_no_slot_that_is_the_cause() {
    let mut s = testkit::one_row();
    Arc::make_mut(&mut s.qps[0]).traffic = Arc::default();
    s.processes[0].traffic = Traffic::default();
    assert_eq!(unknown(&s), BTreeMap::new(), "the next reading will tell");
    // Another QP got no slot, and it is unknown which one.
    let mut doubt = s.clone();
    doubt.health.losses.push(Loss {
        at: "slot",
        count: 1,
        records: false,
    });
    let causes = why_qp_is_unknown(&doubt, &doubt.qps[0]);
    assert!(
        sentence(&causes[0]).contains("which ones is not known"),
        "{causes:?}"
    );
    let mut slotless = s.clone();
    Arc::make_mut(&mut slotless.qps[0]).uncounted = true;
    let no_slot = BTreeMap::from([("work_requests".to_owned(), "no-slot".to_owned())]);
    assert_eq!(unknown(&slotless), no_slot);
    let refused = Obstacle::new(CauseId::NoBtf, "the kernel has no BTF", "");
    s.health.ebpf = EbpfState::unavailable(refused);
    let want = (CauseId::NoBtf, "eBPF is off: the kernel has no BTF.".to_owned());
    assert_eq!(why(&s), want);
    s.health.ebpf = EbpfState::Disabled;
    assert_eq!(why(&s).0, CauseId::NoEbpf);
}
