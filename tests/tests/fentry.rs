//! `--attach fentry`: which hooks use it, whether it reports the same as kprobes, what it loses in a storm,
//! and which modules it pins.

use std::{collections::BTreeSet, fs, thread, time::Duration};

use anyhow::{Context, Result};
use rdmatop_tests::{
    lab::{Lab, skip},
    perftest::Perftest,
    rdmatop::{self, Trace},
    storm::Storm,
    table::say,
    traffic::{self, Traffic},
    wait::{self, PATIENCE},
};
use serde_json::Value;

/// Functions with hooks at entry and return.
const CALLS: [&str; 5] = [
    "_ib_modify_qp",
    "ib_dereg_mr_user",
    "ib_destroy_cq_user",
    "ib_destroy_qp_user",
    "ib_uverbs_cmd_verbs",
];

/// Whether another task can run while one of our programs runs. A program of the control plane could then be
/// skipped, so these stay kprobes.
fn preempts() -> bool {
    // Debian's 6.12 for arm64 is built without this; then there are no modes to choose from.
    let version = fs::read_to_string("/proc/version").unwrap_or_default();
    if !version.contains(" PREEMPT") {
        return false;
    }
    let modes = fs::read_to_string("/sys/kernel/debug/sched/preempt").unwrap_or_default();
    !modes.contains("(none)") && !modes.contains("(voluntary)")
}

/// Returns the modules that `--attach fentry` keeps loaded here.
fn pinned() -> &'static [&'static str] {
    if preempts() {
        &["rdma_rxe"]
    } else {
        &["ib_core", "ib_uverbs", "rdma_rxe"]
    }
}

fn has_btf() -> bool {
    ["ib_core", "ib_uverbs", "rdma_rxe"]
        .iter()
        .all(|module| fs::exists(format!("/sys/kernel/btf/{module}")).unwrap_or(false))
}

/// As [`Lab::enter`], for kernels whose modules have BTF.
fn enter(name: &str) -> Option<Lab> {
    let lab = Lab::enter(name)?;
    if !has_btf() {
        let release = &lab.release;
        skip(name, &format!("Linux {release} has no BTF of modules: no fentry"));
        return None;
    }
    Some(lab)
}

fn probes(mode: &str) -> Result<Value> {
    rdmatop::probes(&["--attach", mode])
}

fn on(probes: &Value) -> Result<impl Iterator<Item = &Value>> {
    let list = probes["probes"].as_array().context("no probes")?;
    Ok(list
        .iter()
        .filter(|probe| probe["verdict"] == "ok" || probe["verdict"] == "partial"))
}

fn hooks(probes: &Value) -> Result<BTreeSet<String>> {
    on(probes)?
        .map(|probe| Ok(probe["hook"].as_str().context("no hook")?.to_owned()))
        .collect()
}

/// Whether the verdict on a function has a reason that contains `why`.
fn says_why(probes: &Value, function: &str, why: &str) -> Result<bool> {
    Ok(on(probes)?.any(|probe| {
        let text = |key: &str| probe[key].as_str().unwrap_or_default();
        text("hook").ends_with(&format!(":{function}")) && text("reason").contains(why)
    }))
}

/// Returns the notes of a mode.
fn notes(probes: &Value) -> String {
    probes["notes"].to_string()
}

#[test]
fn the_verdicts_say_which_hooks_are_entered_by_fentry() -> Result<()> {
    let Some(_lab) = enter("fentry verdicts") else {
        return Ok(());
    };
    let (kprobe, fentry) = (probes("kprobe")?, probes("fentry")?);
    for (mode, told) in [("kprobe", &kprobe), ("fentry", &fentry)] {
        assert_eq!(told["ebpf"]["datapaths"]["rdma_rxe"], mode, "{}", told["ebpf"]);
    }
    let (slow, fast) = (hooks(&kprobe)?, hooks(&fentry)?);
    let only = |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect::<Vec<_>>();
    let each = |entry: &str, ret: &str| {
        // Of the data path only the doorbell, whose cost the posting program itself bears.
        let mut each = vec![format!("{entry}:rxe_post_send")];
        if !preempts() {
            each.push(format!("{entry}:rdma_restrack_add"));
            for function in CALLS {
                each.extend([format!("{entry}:{function}"), format!("{ret}:{function}")]);
            }
        }
        each.sort();
        each
    };
    assert_eq!(only(&fast, &slow), each("fentry", "fexit"));
    assert_eq!(only(&slow, &fast), each("kprobe", "kretprobe"));
    for call in CALLS {
        assert_eq!(
            says_why(&fentry, call, "kretprobe instead of fexit: this kernel preempts")?,
            preempts()
        );
    }
    let (kprobe, fentry) = (notes(&kprobe), notes(&fentry));
    assert!(!kprobe.contains("unloading"), "{kprobe}");
    let told = format!(r#""unloading of {}""#, pinned().join(", "));
    assert!(fentry.contains(&told), "no {told:?} in {fentry}");
    Ok(())
}

#[test]
fn where_modules_have_no_btf_each_hook_says_why_it_stays_a_kprobe() -> Result<()> {
    let Some(lab) = Lab::enter("fentry without BTF") else {
        return Ok(());
    };
    if has_btf() {
        let release = &lab.release;
        skip(
            "fentry without BTF",
            &format!("Linux {release} has BTF of modules"),
        );
        return Ok(());
    }
    let (kprobe, fentry) = (probes("kprobe")?, probes("fentry")?);
    assert_eq!(hooks(&fentry)?, hooks(&kprobe)?);
    for (function, how, module) in [
        ("_ib_modify_qp", "kprobe instead of fentry", "ib_core"),
        ("_ib_modify_qp", "kretprobe instead of fexit", "ib_core"),
        ("ib_uverbs_cmd_verbs", "kprobe instead of fentry", "ib_uverbs"),
    ] {
        let why = format!("{how}: the kernel has no BTF for {module}");
        assert!(
            says_why(&fentry, function, &why)?,
            "{function}: no {why:?} in {fentry}"
        );
    }
    assert!(!notes(&fentry).contains("unloading"), "nothing is pinned");
    Ok(())
}

/// Returns events without what two observers of one call see differently: times and their own QP numbers.
fn as_told(trace: Trace) -> Result<Vec<String>> {
    let traced = trace.stop()?;
    let mut all = Vec::new();
    for event in traced.whole().all() {
        let mut event = event.as_object().context("not an object")?.clone();
        for key in ["ts_ns", "mono_ns"] {
            assert!(event.remove(key).is_some_and(|time| time.is_u64()), "{event:?}");
        }
        event.remove("qp_uid");
        if let Some(took) = event.get_mut("duration_ns") {
            assert!(took.as_u64().is_some_and(|ns| ns > 0), "{took} in an event");
            *took = Value::Null;
        }
        all.push(Value::Object(event).to_string());
    }
    all.sort();
    Ok(all)
}

#[test]
fn kprobe_and_fentry_tell_the_same_of_the_same_calls() -> Result<()> {
    let Some(lab) = enter("kprobe and fentry events") else {
        return Ok(());
    };
    let [kprobe, fentry] = ["kprobe", "fentry"].map(|mode| Trace::start(&["--attach", mode]));
    let (kprobe, fentry) = (kprobe?, fentry?);
    traffic::run("qp-churn", &["--count", "40", "--laps", "3", "--threads", "4"])?;
    traffic::run("verb-errors", &[])?;
    Perftest::new("ib_send_bw").run()?;
    Perftest::new("ib_send_bw").cm().run()?;
    let mut idle = Traffic::start("idle-qps", &["--qps", "3"])?;
    idle.ready()?;
    idle.child.signal(libc::SIGKILL)?;
    idle.child.wait(traffic::LIMIT)?;
    let (kprobe, fentry) = (as_told(kprobe)?, as_told(fentry)?);
    let count = |all: &[String], kind: &str| all.iter().filter(|event| event.contains(kind)).count();
    say(&format!(
        "Linux {}: kprobe and fentry told {} and {} events, {} of them modifies, {} failed verbs",
        lab.release,
        kprobe.len(),
        fentry.len(),
        count(&kprobe, r#""qp_modify""#),
        count(&kprobe, r#""verb_error""#),
    ));
    for kind in [
        "qp_create",
        "qp_modify",
        "qp_destroy",
        "mr_reg",
        "mr_dereg",
        "cq_create",
        "cq_destroy",
        "verb_error",
        "cm_connect",
    ] {
        assert!(count(&kprobe, &format!("{kind:?}")) > 0, "no {kind}");
    }
    for (one, other) in kprobe.iter().zip(&fentry) {
        assert_eq!(one, other, "kprobe's and fentry's");
    }
    assert_eq!(kprobe.len(), fentry.len());
    Ok(())
}

#[test]
fn a_storm_under_fentry_is_printed_or_counted_as_lost_to_the_last_event() -> Result<()> {
    let Some(lab) = enter("fentry storm") else {
        return Ok(());
    };
    let trace = Trace::start(&["--attach", "fentry"])?;
    let done = traffic::run("qp-churn", &["--count", "2000", "--threads", "4"])?;
    let what = format!("Linux {}, fentry, 10 000 events of 4 threads", lab.release);
    Storm::of(&trace.stop()?, &done)?.check(&what)
}

/// Returns the reference count of a module.
fn held(module: &str) -> Result<u64> {
    let path = format!("/sys/module/{module}/refcnt");
    let text = fs::read_to_string(&path).with_context(|| path.clone())?;
    text.trim().parse().context(path)
}

#[test]
fn modules_are_held_while_fentry_is_attached_and_the_first_line_says_so() -> Result<()> {
    let Some(_lab) = enter("pinned modules") else {
        return Ok(());
    };
    let modules = ["ib_core", "ib_uverbs"];
    let all = || {
        modules
            .iter()
            .map(|module| held(module))
            .collect::<Result<Vec<_>>>()
    };
    let before = all()?;
    let mut held = Vec::new();
    for mode in ["kprobe", "fentry"] {
        let trace = Trace::start(&["--attach", mode])?;
        // An open netlink socket holds ib_core in either mode (netlink_create, net/netlink/af_netlink.c), and
        // rdmatop sometimes has a second one: the least of several looks is what is held permanently.
        let mut least = all()?;
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(50));
            least = least
                .into_iter()
                .zip(all()?)
                .map(|(one, other)| one.min(other))
                .collect();
        }
        held.push(least);
        let traced = trace.stop()?;
        let line = traced.stderr.iter().find(|line| line.contains("tracing"));
        let line = line.context("no first line")?;
        let told = line.contains("ib_core, ib_uverbs cannot be unloaded until Ctrl-C ends it");
        assert_eq!(told, mode == "fentry" && !preempts(), "{line}");
        // The kernel frees a trampoline and releases its module once no task can be inside.
        wait::until("the modules to be let go", PATIENCE, || {
            all().is_ok_and(|now| now == before)
        })?;
    }
    let [kprobe, fentry] = held.as_slice() else {
        unreachable!()
    };
    assert_eq!(kprobe[1], before[1], "ib_uverbs, by kprobe");
    for (module, (by_fentry, by_kprobe)) in modules.iter().zip(fentry.iter().zip(kprobe)) {
        let (more, fentry) = (by_fentry > by_kprobe, !preempts());
        assert_eq!(
            more, fentry,
            "{module}: {by_fentry} by fentry, {by_kprobe} by kprobe"
        );
    }
    Ok(())
}
