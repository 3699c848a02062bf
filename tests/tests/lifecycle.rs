//! `rdmatop --trace --json` on real traffic: every step of every object appears once, with its owner.
//!
//! One trace sees the workloads of most tests; each test checks the events of its own processes.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    device::Device,
    events::{ALWAYS, Events, SOMETIMES},
    kernel,
    lab::{self, DEVICE, Lab},
    perftest::{Account, Accounts, Perftest},
    rdmatop::{self, Trace, Traced},
    snapshot::Snapshot,
    storm::Storm,
    table::say,
    together::{Did, Together},
    traffic::{self, Traffic, id},
};
use serde_json::Value;

const SENDER: [&str; 5] = ["create", "RESET->INIT", "INIT->RTR", "RTR->RTS", "destroy"];
/// perftest's receiver never sends and never goes to RTS.
const RECEIVER: [&str; 4] = ["create", "RESET->INIT", "INIT->RTR", "destroy"];

fn trace(args: &[&str], traffic: impl FnOnce() -> Result<Accounts>) -> Result<(Traced, Accounts)> {
    let trace = Trace::start(args)?;
    let accounts = traffic()?;
    let traced = trace.stop()?;
    traced.whole();
    Ok((traced, accounts))
}

/// The results of the workloads in the one trace.
#[derive(Debug)]
struct Workloads {
    /// What the QPs that are older than the trace printed, and a sample from before the trace.
    before: Did<(Value, Snapshot)>,
    plain: Did<Accounts>,
    four: Did<Accounts>,
    connected: Did<[OnDevice; 2]>,
    killed: Did<Value>,
    errors: Did<Value>,
    drained: Did<Value>,
    orphan: Did<Value>,
    reused: Did<[u32; 2]>,
}

static TOGETHER: Together<(Workloads, Traced)> = Together::new();

/// The test that wants events of every kind.
const SCHEMA: &str = "lifecycle::every_event_has_the_keys_of_the_schema_and_no_others";

/// How often the workloads run at most until the kernel skips no program.
const TRIES: usize = 4;

/// Returns the workloads and their trace. A kernel that preempts programs (Debian's 7.2) skips one that
/// another task enters on that CPU meanwhile, and any kernel skips one whose hook a softirq reaches inside
/// another. rdmatop counts such a skip as a lost event, but these tests need every event.
fn together() -> Result<&'static (Workloads, Traced)> {
    TOGETHER.get(|| {
        let mut ran = workloads()?;
        for _ in 1..TRIES {
            let skips = ran.1.skips();
            if ran.1.events.lost() == 0 || skips.is_empty() {
                break;
            }
            say(&format!("the workloads run once more: {}", skips.join("; ")));
            ran = workloads()?;
        }
        Ok(ran)
    })
}

fn workloads() -> Result<(Workloads, Traced)> {
    let before = Did::of_test(
        "lifecycle::qps_from_before_the_start_have_their_owner_and_their_state",
        || {
            let idle = Traffic::start("idle-qps", &["--qps", "4", "--state", "rts"])?;
            let ready = idle.ready()?;
            Ok((idle, ready, rdmatop::once(&["--delay", "1"])?))
        },
    );
    let trace = Trace::start(&[])?;
    let workloads = Workloads {
        before: Did::of(|| {
            let (idle, ready, sample) = before.into_inner()?;
            idle.finish()?;
            Ok((ready, sample))
        }),
        plain: Did::of(|| Perftest::new("ib_send_bw").run()),
        four: Did::of_test("lifecycle::four_qps_a_side_have_four_lives", || {
            Perftest::new("ib_send_bw").args(&["-q", "4"]).run()
        }),
        connected: Did::of_tests(
            &[
                "lifecycle::a_connection_through_rdma_cm_shows_both_ends_and_their_addresses",
                SCHEMA,
            ],
            connect_on_two_devices,
        ),
        killed: Did::of_test(
            "lifecycle::a_killed_process_still_owns_the_destroys_of_its_objects",
            || {
                let mut idle = Traffic::start("idle-qps", &["--qps", "3"])?;
                let ready = idle.ready()?;
                idle.child.signal(libc::SIGKILL)?;
                idle.child.wait(traffic::LIMIT)?;
                Ok(ready)
            },
        ),
        errors: Did::of_tests(
            &[
                "lifecycle::failed_verbs_are_events_and_probes_by_libraries_are_not",
                SCHEMA,
            ],
            || traffic::run("verb-errors", &[]),
        ),
        // The event comes from a softirq. If it interrupts one of our own programs on the same CPU, the
        // kernel skips the probe (trace_call_bpf, bpf_prog_active), and 6.1 does not even count that. On a
        // busy host this happens more often than not, so one of forty must come.
        drained: Did::of_test("lifecycle::an_asynchronous_event_reaches_the_trace", || {
            traffic::run("sqd", &["--times", "40"])
        }),
        orphan: Did::of_test(
            "lifecycle::a_qp_that_outlives_its_owner_keeps_it_and_names_who_destroyed_it",
            || {
                let held = Traffic::start("hold-fd", &[])?;
                let ready = held.ready()?;
                held.finish()?;
                Ok(ready)
            },
        ),
        reused: Did::of_test("lifecycle::a_reused_number_is_another_qp", run_on_two_devices),
    };
    let traced = trace.stop()?;
    Ok((workloads, traced))
}

/// Returns a list from a traffic program's output.
fn list<'a>(done: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    done[key]
        .as_array()
        .with_context(|| format!("no {key} in {done}"))
}

/// Returns the workloads and the events, of which none was lost.
fn all() -> Result<(&'static Workloads, &'static Traced)> {
    let (did, traced) = together()?;
    traced.whole();
    Ok((did, traced))
}

fn assert_lives(events: &Events, side: &Account, comm: &str, life: &[&str]) {
    let own = events.pid(side.pid);
    for &qpn in &side.qpns {
        let qp = own.qpn(qpn).filter(|event| {
            event["event"]
                .as_str()
                .is_some_and(|kind| kind.starts_with("qp_"))
        });
        assert_eq!(qp.life(), life, "QP {qpn} of pid {}", side.pid);
        assert_eq!(qp.integers("qp_uid").len(), 1, "one QP, one identity");
        for event in qp.all() {
            assert_eq!(event["comm"], comm, "{event}");
            assert_eq!(event["device"], DEVICE, "{event}");
            assert_eq!(event["qp_type"], "RC", "{event}");
            if event["event"] != "qp_create" {
                assert_eq!(event["rc"], 0, "{event}");
            }
            if event["event"] == "qp_modify" {
                assert!(event["duration_ns"].as_u64().is_some_and(|ns| ns > 0), "{event}");
            }
        }
        let times: Vec<_> = qp.all().iter().map(|event| event["mono_ns"].as_u64()).collect();
        assert!(
            times.is_sorted() && times.iter().all(Option::is_some),
            "out of order: {times:?}"
        );
    }
}

fn assert_connected(events: &Events, side: &Account, peer: &Account) {
    let rtr = events.pid(side.pid).filter(|event| event["to"] == "RTR");
    for event in rtr
        .all()
        .iter()
        .filter(|event| side.qpns.iter().any(|&qpn| event["qpn"] == qpn))
    {
        let dest = event["dest_qpn"].as_u64().and_then(|qpn| u32::try_from(qpn).ok());
        assert!(dest.is_some_and(|qpn| peer.qpns.contains(&qpn)), "{event}");
        assert_eq!(event["path_mtu"], 1024, "{event}");
        // Both ends are on one device: the peer's GID is that which this end chose from the port's table.
        let index = event["sgid_index"].as_u64().unwrap_or_default();
        let path = format!("/sys/class/infiniband/{DEVICE}/ports/1/gids/{index}");
        let gid = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(event["dest_gid"], gid.trim(), "{event}");
    }
}

#[test]
fn a_plain_pair_gives_each_qp_its_whole_life_once() -> Result<()> {
    let Some(lab) = Lab::enter("plain pair") else {
        return Ok(());
    };
    let (did, traced) = all()?;
    let Accounts { server, client } = did.plain.get()?;
    assert_lives(&traced.events, client, "ib_send_bw", &SENDER);
    assert_lives(&traced.events, server, "ib_send_bw", &RECEIVER);
    assert_connected(&traced.events, client, server);
    assert_connected(&traced.events, server, client);
    for side in [client, server] {
        let created = traced.events.pid(side.pid).kind("qp_create").integers("qpn");
        assert_eq!(
            created,
            side.qpns.iter().map(|&qpn| u64::from(qpn)).collect(),
            "a QP nobody made"
        );
    }
    let events = [client, server].map(|side| traced.events.pid(side.pid).len());
    say(&format!(
        "Linux {}: {} events of one pair",
        lab.release,
        events.iter().sum::<usize>()
    ));
    Ok(())
}

#[test]
fn memory_regions_and_completion_queues_come_and_go_in_pairs() -> Result<()> {
    let Some(_lab) = Lab::enter("MR and CQ pairs") else {
        return Ok(());
    };
    let (did, traced) = all()?;
    let accounts = did.plain.get()?;
    for side in [&accounts.client, &accounts.server] {
        let own = traced.events.pid(side.pid);
        let (registered, given_back) = (
            own.kind("mr_reg").sum("bytes")?,
            own.kind("mr_dereg").sum("bytes")?,
        );
        assert_eq!(registered, given_back);
        // perftest's buffer holds one message to send and one to receive.
        assert_eq!(registered, 2 * side.size, "{:?}", own.kind("mr_reg").all());
        assert_eq!(
            own.kind("mr_reg").len(),
            own.kind("mr_dereg").len(),
            "{:?}",
            own.all()
        );
        assert!(!own.kind("cq_create").is_empty());
        assert_eq!(own.kind("cq_create").len(), own.kind("cq_destroy").len());
    }
    Ok(())
}

#[test]
fn four_qps_a_side_have_four_lives() -> Result<()> {
    let Some(_lab) = Lab::enter("-q 4") else {
        return Ok(());
    };
    let (did, traced) = all()?;
    let accounts = did.four.get()?;
    assert_eq!(accounts.client.qpns.len(), 4);
    assert_lives(&traced.events, &accounts.client, "ib_send_bw", &SENDER);
    assert_lives(&traced.events, &accounts.server, "ib_send_bw", &RECEIVER);
    assert_connected(&traced.events, &accounts.client, &accounts.server);
    Ok(())
}

/// A trace of one family loads only the programs that it needs: no program may depend on what another family
/// loads.
#[test]
fn each_family_of_events_can_be_traced_alone() -> Result<()> {
    let Some(_lab) = Lab::enter("families alone") else {
        return Ok(());
    };
    for family in ["qp", "mr", "cq", "cm"] {
        let (traced, accounts) = trace(&["--event", family], || Perftest::new("ib_send_bw").cm().run())?;
        for side in [&accounts.server, &accounts.client] {
            let own = traced.events.pid(side.pid);
            let first = format!("{family}_");
            ensure!(
                own.all().len() > 1
                    && own.all().iter().all(|event| {
                        event["event"]
                            .as_str()
                            .is_some_and(|kind| kind.starts_with(&first))
                    }),
                "--event {family}: {:?}",
                own.all()
            );
        }
        let complaints: Vec<_> = traced
            .stderr
            .iter()
            .filter(|line| line.contains("panicked"))
            .collect();
        ensure!(complaints.is_empty(), "--event {family}: {complaints:?}");
    }
    Ok(())
}

/// The results of pairs that rdma_cm connected on a device of their own.
#[derive(Debug)]
struct OnDevice {
    device: &'static str,
    /// Address of the device's network interface.
    address: String,
    /// Its pairs. The ids of the first pair of the first device exist while the pairs of the second device
    /// run.
    pairs: Vec<Accounts>,
}

/// Runs pairs on two new devices whose rdma_cm ids have the same numbers: a pair on the first device
/// disconnects after those on the second have finished.
fn connect_on_two_devices() -> Result<[OnDevice; 2]> {
    const DEVICES: [&str; 2] = ["rxe1", "rxe2"];
    let _devices = (Device::add(DEVICES[0], 1)?, Device::add(DEVICES[1], 2)?);
    let pair = |device| Perftest::new("ib_send_bw").cm().devices(device, device);
    // A server listens on all devices, which takes a number of each; a connection takes only numbers of its
    // own device. The number of ids, and thus which pairs share them, differs between kernels: one pair
    // before and several meanwhile make some equal on all kernels.
    let before = pair(DEVICES[0]).iterations(100).run()?;
    let first = pair(DEVICES[0]).iterations(5000).start_connected()?;
    first.client.signal(libc::SIGSTOP)?;
    let meanwhile: Result<Vec<_>> = (0..3).map(|_| pair(DEVICES[1]).iterations(100).run()).collect();
    first.client.signal(libc::SIGCONT)?;
    let on = |device, pairs| -> Result<_> {
        Ok(OnDevice {
            device,
            address: lab::address(device)?,
            pairs,
        })
    };
    Ok([
        on(DEVICES[0], vec![first.finish()?, before])?,
        on(DEVICES[1], meanwhile?)?,
    ])
}

/// Without BTF of rdma_cm an event in a worker names no device and no process.
fn workers_name_owners() -> bool {
    Path::new("/sys/kernel/btf/rdma_cm").exists()
}

/// The local address of an event tells its device, and thus its pair of processes.
fn each_id_has_the_owner_and_the_device_of_its_address(events: &Events, both: &[OnDevice; 2]) -> Result<()> {
    let has_btf = workers_name_owners();
    let pids_of = |pairs: &[Accounts]| -> Vec<[u32; 2]> {
        let both_ends = pairs.iter().map(|pair| [pair.server.pid, pair.client.pid]);
        both_ends.collect()
    };
    let elsewhere = |device: &str, pid: &Value| {
        let others = both.iter().filter(|other| other.device != device);
        others
            .flat_map(|other| pids_of(&other.pairs))
            .flatten()
            .any(|other| *pid == other)
    };
    let mut numbers = Vec::new();
    for OnDevice {
        device,
        address,
        pairs,
    } in both
    {
        let pids = pids_of(pairs);
        let begin = format!("{address}:");
        let own = events.filter(|event| event["src"].as_str().is_some_and(|src| src.starts_with(&begin)));
        for event in own.all() {
            let unknown = !has_btf && event["pid"].is_null();
            // If rdma_cm rejected a pair it was started again, so other processes also had ids here.
            ensure!(unknown || !event["pid"].is_null(), "of nobody: {event}");
            ensure!(!elsewhere(device, &event["pid"]), "not of {device}: {event}");
            ensure!(!has_btf || event["device"] == *device, "not on {device}: {event}");
        }
        for kind in ["cm_event", "cm_connect", "cm_accept", "cm_disconnect"] {
            ensure!(!own.kind(kind).is_empty(), "no {kind} on {device}");
        }
        let of = |pair: &[u32; 2]| pair.map(|pid| own.pid(pid).integers("cm_id"));
        numbers.push(pids.iter().map(of).collect::<Vec<_>>());
    }
    let same = |pair: &[BTreeSet<u64>; 2]| {
        let mut there = numbers[0][0].iter();
        there.any(|ids| pair.iter().any(|others| !ids.is_disjoint(others)))
    };
    ensure!(numbers[1].iter().any(same), "nothing was tested: {numbers:?}");
    Ok(())
}

#[test]
fn a_connection_through_rdma_cm_shows_both_ends_and_their_addresses() -> Result<()> {
    let Some(_lab) = Lab::enter("-R") else {
        return Ok(());
    };
    let (did, traced) = all()?;
    let both = did.connected.get()?;
    each_id_has_the_owner_and_the_device_of_its_address(&traced.events, both)?;
    let OnDevice { pairs, address, .. } = &both[0];
    let Accounts { server, client } = &pairs[0];
    for side in [client, server] {
        let own = traced.events.pid(side.pid);
        for &qpn in &side.qpns {
            let life = own.qpn(qpn).life();
            assert_eq!(life.first().map(String::as_str), Some("create"));
            assert_eq!(life.last().map(String::as_str), Some("destroy"));
            // librdmacm sets a QP to INIT when it is created and again when it is connected; rdma_cm sets
            // both ends to RTS and, on its disconnect, to ERR.
            let begin: Vec<&str> = life.iter().skip(1).take(4).map(String::as_str).collect();
            assert_eq!(begin, ["RESET->INIT", "INIT->INIT", "INIT->RTR", "RTR->RTS"]);
        }
        let reached = own
            .kind("cm_event")
            // The kernel reports ESTABLISHED to the passive side and CONNECT_RESPONSE to the active side;
            // librdmacm makes the active side's ESTABLISHED itself.
            .filter(|event| event["cm_event"] == "ESTABLISHED" || event["cm_event"] == "CONNECT_RESPONSE");
        let may_be_empty = !workers_name_owners();
        assert!(
            may_be_empty || !reached.is_empty(),
            "pid {} was not connected",
            side.pid
        );
        for event in reached.all() {
            for key in ["src", "dst"] {
                let text = event[key]
                    .as_str()
                    .with_context(|| format!("no {key} in {event}"))?;
                assert!(text.starts_with(&format!("{address}:")), "{event}");
            }
        }
    }
    assert!(
        !traced.events.pid(client.pid).kind("cm_connect").is_empty(),
        "no cm_connect of the client"
    );
    assert!(
        !traced.events.pid(server.pid).kind("cm_accept").is_empty(),
        "no cm_accept of the server"
    );
    let ends: BTreeSet<_> = traced.events.kind("cm_disconnect").integers("pid");
    assert!(
        ends.contains(&u64::from(client.pid)) || ends.contains(&u64::from(server.pid)),
        "{ends:?}"
    );
    Ok(())
}

#[test]
fn a_killed_process_still_owns_the_destroys_of_its_objects() -> Result<()> {
    let Some(_lab) = Lab::enter("kill -9") else {
        return Ok(());
    };
    let (did, traced) = all()?;
    let ready = did.killed.get()?;
    let pid = ready["pids"][0].as_u64().context("no pid")?;
    let events = traced.events.pid(u32::try_from(pid)?);
    for qpn in ready["qpns"].as_array().context("no qpns")? {
        let qp = events.filter(|event| event["qpn"] == *qpn);
        assert_eq!(qp.life(), SENDER);
        assert_eq!(qp.kind("qp_destroy").all()[0]["comm"], "idle-qps");
    }
    assert_eq!(events.kind("cq_create").len(), 1);
    assert_eq!(events.kind("cq_destroy").len(), 1);
    Ok(())
}

/// Creates the same QPs on a device and on its successor; returns the PIDs. rxe assigns numbers in a circle
/// of 131072 and starts again for a new device, so the same numbers return.
fn run_on_two_devices() -> Result<[u32; 2]> {
    let netdev = lab::netdev(DEVICE)?;
    let churn_on_new = || -> Result<u32> {
        kernel::delete_link(DEVICE)?;
        kernel::add_link(DEVICE, &netdev)?;
        id(&traffic::run("qp-churn", &["--count", "3"])?, "pid")
    };
    Ok([churn_on_new()?, churn_on_new()?])
}

#[test]
fn a_reused_number_is_another_qp() -> Result<()> {
    let Some(_lab) = Lab::enter("QPN reuse") else {
        return Ok(());
    };
    let (did, traced) = all()?;
    let pids = did.reused.get()?;
    // Without the kernel's own QP of a new device, which stays.
    let created = traced
        .events
        .kind("qp_create")
        .filter(|event| pids.iter().any(|pid| event["pid"] == *pid));
    assert_eq!(created.len(), 6, "{:?}", created.all());
    let numbers = created.integers("qpn");
    assert!(
        numbers.len() < created.len(),
        "no number came back: {numbers:?}, {} QPs",
        created.len()
    );
    assert_eq!(
        created.integers("qp_uid").len(),
        created.len(),
        "two QPs share an identity"
    );
    for qp in created.all() {
        let life = traced.events.filter(|event| event["qp_uid"] == qp["qp_uid"]);
        assert_eq!(life.kind("qp_destroy").len(), 1, "{qp} has not its own end");
    }
    Ok(())
}

#[test]
fn a_storm_is_printed_or_counted_as_lost_to_the_last_event() -> Result<()> {
    let Some(lab) = Lab::enter("storm") else {
        return Ok(());
    };
    let trace = Trace::start(&[])?;
    let done = traffic::run("qp-churn", &["--count", "4000", "--threads", "2"])?;
    Storm::of(&trace.stop()?, &done)?.check(&format!("Linux {}, 20 000 events", lab.release))
}

#[test]
fn failed_verbs_are_events_and_probes_by_libraries_are_not() -> Result<()> {
    let Some(_lab) = Lab::enter("verb errors") else {
        return Ok(());
    };
    let (did, traced) = all()?;
    let events = traced.events.pid(id(did.errors.get()?, "pid")?);
    let errors = events.kind("verb_error");
    let got: Vec<_> = errors
        .all()
        .iter()
        .map(|e| (e["verb"].as_str(), e["rc"].as_i64()))
        .collect();
    // Opening a device, rdma-core asks for more than the kernel gives (-ENOSPC): by design, not a fault.
    assert!(
        got.iter().all(|(_, rc)| *rc != Some(-i64::from(libc::ENOSPC))),
        "{got:?}"
    );
    let [einval, efault] = [libc::EINVAL, libc::EFAULT].map(|errno| Some(-i64::from(errno)));
    assert_eq!(
        got,
        [
            (Some("create_cq"), einval),
            (Some("reg_mr"), efault),
            (Some("modify_qp"), einval)
        ]
    );
    let modify = events.kind("qp_modify");
    assert_eq!(modify.len(), 1);
    assert_eq!(
        modify.all()[0]["rc"],
        -libc::EINVAL,
        "a failed modify is shown as failed"
    );
    Ok(())
}

#[test]
fn an_asynchronous_event_reaches_the_trace() -> Result<()> {
    let Some(_lab) = Lab::enter("async event") else {
        return Ok(());
    };
    let (did, traced) = all()?;
    let mut sent = BTreeSet::new();
    let done = did.drained.get()?;
    let pid = id(done, "pid")?;
    for (qpn, event) in list(done, "qpns")?.iter().zip(list(done, "events")?) {
        assert_eq!(event, "SQ_DRAINED", "the kernel sent no event: {done}");
        sent.insert((pid, u32::try_from(qpn.as_u64().context("no QPN")?)?));
    }
    assert_eq!(sent.len(), 40);
    // One of forty has to arrive, and all that arrive must be right.
    let events = traced.events.kind("qp_error");
    assert!(!events.is_empty(), "none of forty events came");
    let mut seen = BTreeSet::new();
    for event in events.all() {
        assert_eq!(event["async_event"], "SQ_DRAINED");
        let of = (id(event, "pid")?, id(event, "qpn")?);
        assert!(sent.contains(&of), "{event} is of no QP that drained");
        assert!(seen.insert(of), "{event} came twice");
    }
    Ok(())
}

#[test]
fn a_qp_that_outlives_its_owner_keeps_it_and_names_who_destroyed_it() -> Result<()> {
    let Some(_lab) = Lab::enter("orphan") else {
        return Ok(());
    };
    let (did, traced) = all()?;
    let ready = did.orphan.get()?;
    let (owner, holder, qpn) = (id(ready, "owner")?, id(ready, "holder")?, id(ready, "qpn")?);
    let events = traced.events.pid(owner).qpn(qpn);
    assert_eq!(events.life(), SENDER);
    assert!(
        events
            .all()
            .iter()
            .all(|event| event["pid"] == owner && event["comm"] == "hold-fd")
    );
    assert_eq!(events.kind("qp_destroy").all()[0]["by_pid"], holder);
    Ok(())
}

#[test]
fn qps_from_before_the_start_have_their_owner_and_their_state() -> Result<()> {
    let Some(_lab) = Lab::enter("before start") else {
        return Ok(());
    };
    let (did, traced) = all()?;
    let (ready, sample) = did.before.get()?;
    let pid = u32::try_from(ready["pids"][0].as_u64().context("no pid")?)?;
    let qpns: Vec<u32> = ready["qpns"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_u64)
        .filter_map(|qpn| u32::try_from(qpn).ok())
        .collect();
    for &qpn in &qpns {
        let row = sample.qp(pid, qpn)?;
        assert_eq!(row.field("comm"), "idle-qps");
        assert_eq!(row.field("state"), "RTS");
    }
    assert_eq!(sample.process(pid)?.field("qps"), 4);
    for &qpn in &qpns {
        let destroyed = traced.events.pid(pid).qpn(qpn).kind("qp_destroy");
        assert_eq!(destroyed.len(), 1);
        assert_eq!(destroyed.all()[0]["pid"], pid);
        assert_eq!(destroyed.all()[0]["from"], "RTS");
    }
    Ok(())
}

#[test]
fn every_event_has_the_keys_of_the_schema_and_no_others() -> Result<()> {
    let Some(_lab) = Lab::enter("schema") else {
        return Ok(());
    };
    let (_, traced) = all()?;
    let events = traced.events.of_hooks();
    let kinds: BTreeSet<_> = events
        .all()
        .iter()
        .filter_map(|event| event["event"].as_str())
        .collect();
    for kind in [
        "qp_create",
        "qp_modify",
        "qp_destroy",
        "mr_reg",
        "cq_create",
        "cm_event",
        "verb_error",
    ] {
        assert!(kinds.contains(kind), "no {kind} among {kinds:?}");
    }
    for event in events.all() {
        let object = event.as_object().context("not an object")?;
        assert_eq!(event["schema"], 1);
        for key in ALWAYS {
            assert!(object.contains_key(key), "no {key} in {event}");
        }
        for key in object.keys() {
            assert!(
                ALWAYS.contains(&key.as_str()) || SOMETIMES.contains(&key.as_str()),
                "{key} in {event}"
            );
        }
    }
    Ok(())
}

#[test]
fn filters_keep_what_they_name() -> Result<()> {
    let Some(_lab) = Lab::enter("filters") else {
        return Ok(());
    };
    let pair = || Perftest::new("ib_send_bw").iterations(100).run();
    let (traced, _) = trace(&["--event", "qp_create,qp_destroy"], pair)?;
    let kinds: BTreeSet<_> = traced
        .events
        .all()
        .iter()
        .filter_map(|event| event["event"].as_str())
        .collect();
    assert_eq!(kinds, BTreeSet::from(["qp_create", "qp_destroy"]));
    let (traced, _) = trace(&["--comm", "ib_send_bw"], || {
        traffic::run("qp-churn", &["--count", "3"])?;
        pair()
    })?;
    assert!(!traced.events.is_empty());
    assert!(
        traced
            .events
            .all()
            .iter()
            .all(|event| event["comm"] == "ib_send_bw")
    );
    let unknown = rdmatop::command(&["--trace", "--device", "nosuch0"])?.output()?;
    let said = String::from_utf8_lossy(&unknown.stderr);
    assert_eq!(unknown.status.code(), Some(1), "{said}");
    assert!(
        said.lines()
            .any(|line| line.contains("nosuch0") && line.contains(DEVICE)),
        "{said}"
    );

    let waiting = Traffic::start("qp-churn", &["--count", "3", "--wait"])?;
    let pid = id(&waiting.ready()?, "pid")?;
    let trace = Trace::start(&["--pid", &pid.to_string()])?;
    pair()?;
    waiting.finish()?;
    let events = trace.stop()?.events;
    assert_eq!(events.kind("qp_create").len(), 3);
    assert!(events.all().iter().all(|event| event["pid"] == pid));
    Ok(())
}

#[test]
fn the_summary_counts_what_was_printed() -> Result<()> {
    let Some(_lab) = Lab::enter("summary") else {
        return Ok(());
    };
    let (_, traced) = all()?;
    let summary = traced.stderr.last().context("no summary")?;
    assert!(
        summary.contains(&format!("{} events", traced.events.of_hooks().len())),
        "{summary}"
    );
    assert!(
        summary.contains("0 lost") || summary.contains("lost 0"),
        "{summary}"
    );
    Ok(())
}
