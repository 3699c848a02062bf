//! Calls of verbs: each is counted once, however it enters the kernel, with its time and errno.

use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use rdmatop_tests::{
    child::output,
    lab::Lab,
    perftest::Perftest,
    rdmatop::{self, END, Trace, Window},
    snapshot::{Row, Snapshot},
    traffic::{self, id},
    wait,
};
use serde_json::{Map, Value};

/// Returns the row of a process's verb.
fn verb<'a>(sample: &'a Snapshot, pid: u32, verb: &str) -> Result<Row<'a>> {
    let mut rows = sample
        .verbs()
        .filter(|row| row.field("pid") == pid && row.field("verb") == verb);
    let row = rows
        .next()
        .with_context(|| format!("no {verb} of pid {pid} in {}", sample.value()["verbs"]))?;
    ensure!(rows.next().is_none(), "two rows for {verb} of pid {pid}");
    Ok(row)
}

fn object<'a>(done: &'a Value, key: &str) -> Result<&'a Map<String, Value>> {
    done[key]
        .as_object()
        .with_context(|| format!("no {key} in {done}"))
}

/// Fails unless a row has this number of calls, each with a time, and the given failure or none.
fn check(row: Row<'_>, name: &str, calls: u64, failed: Option<&Value>) -> Result<()> {
    let what = format!("{name}: {}", row.field("calls"));
    ensure!(
        row.total("calls") == Some(calls),
        "{what} where {calls} were made"
    );
    ensure!(
        row.total("errors") == Some(u64::from(failed.is_some())),
        "{name}: {}",
        row.field("errors")
    );
    let errnos: Vec<Value> = failed
        .map(|errno| serde_json::json!([errno, 1]))
        .into_iter()
        .collect();
    ensure!(
        row.field("errnos") == &Value::from(errnos),
        "{name}: {}",
        row.field("errnos")
    );
    let times = row.field("latency");
    ensure!(times["count"] == calls, "{name}: {times}");
    ensure!(
        times["mean_ns"].as_u64().is_some_and(|ns| ns > 0),
        "{name}: {times}"
    );
    ensure!(
        times["mean_ns"].as_u64() <= times["max_ns"].as_u64(),
        "{name}: {times}"
    );
    ensure!(
        times["p99_ns"].as_u64() <= times["max_ns"].as_u64(),
        "{name}: {times}"
    );
    Ok(())
}

/// Runs verb-calls under rdmatop with `args`, again if the kernel skipped a program, which depends on the
/// host's load.
fn undisturbed(args: &[&str]) -> Result<(Value, Snapshot)> {
    const TRIES: u32 = 5;
    for _ in 0..TRIES {
        let window = Window::open(args)?;
        let done = traffic::run("verb-calls", &[])?;
        let sample = window.close()?;
        if sample.skipped() == 0 {
            return Ok((done, sample));
        }
    }
    bail!("the kernel skipped programs in each of {TRIES} runs")
}

/// Runs verb-calls under rdmatop with `args` and compares every verb with the program's account.
fn calls(args: &[&str]) -> Result<()> {
    let (done, sample) = undisturbed(args)?;
    let pid = id(&done, "pid")?;
    let (by_write, failed) = (object(&done, "by_write")?, object(&done, "failed")?);
    // Without a data path nothing else counts calls by write().
    let writes_timed = !args.is_empty() || sample.datapath().is_none();
    let mut faults = 0;
    for (name, made) in object(&done, "calls")? {
        let mut made = made.as_u64().context("no number")?;
        let mut errno = failed.get(name);
        if writes_timed && let Some(more) = by_write.get(name) {
            made += more.as_u64().context("no number")?;
            errno = errno.or(done["failed_by_write"].get(name));
        }
        faults += u64::from(errno.is_some());
        check(verb(&sample, pid, name)?, name, made, errno)?;
    }
    let posted = by_write["post_send"].as_u64();
    let posts = verb(&sample, pid, "post_send")?;
    if writes_timed {
        check(posts, "post_send", posted.context("no number")?, None)?;
    } else {
        // Doorbells tell neither, and what is unknown is not 0.
        ensure!(
            posts.total("calls") == posted,
            "post_send: {}",
            posts.field("calls")
        );
        ensure!(
            posts.field("errors").is_null() && posts.field("latency").is_null(),
            "{posts:?}"
        );
    }
    // libibverbs' own probe is shown but is no fault.
    let probe = verb(&sample, pid, "query_device")?;
    ensure!(probe.is("probe") && probe.total("errors") == Some(1), "{probe:?}");
    let process = sample.process(pid)?;
    ensure!(
        process.total("verb_errors") == Some(faults),
        "{} of {faults}",
        process.field("verb_errors")
    );
    Ok(())
}

#[test]
fn every_call_of_every_verb_is_counted_once_with_time_and_errno() -> Result<()> {
    let Some(_lab) = Lab::enter("verb calls") else {
        return Ok(());
    };
    calls(&[])
}

#[test]
fn asked_for_it_times_what_comes_by_write_and_counts_each_doorbell_once() -> Result<()> {
    let Some(_lab) = Lab::enter("verb times") else {
        return Ok(());
    };
    calls(&["--verb-times"])
}

#[test]
fn a_trace_tells_of_failed_writes_only_where_it_is_asked_to() -> Result<()> {
    let Some(_lab) = Lab::enter("failed writes in a trace") else {
        return Ok(());
    };
    for (args, wanted) in [
        (&[][..], &["detach_mcast"][..]),
        (&["--verb-times"], &["req_notify_cq", "detach_mcast"]),
    ] {
        let trace = Trace::start(&[&["--event", "verb_error"], args].concat())?;
        let done = traffic::run("verb-calls", &[])?;
        let events = trace.stop()?.events.pid(id(&done, "pid")?);
        let verbs: Vec<_> = events.all().iter().map(|event| event["verb"].as_str()).collect();
        ensure!(
            verbs == wanted.iter().map(|verb| Some(*verb)).collect::<Vec<_>>(),
            "{args:?}: {verbs:?}"
        );
    }
    Ok(())
}

#[test]
fn the_verdict_of_write_names_the_price_and_the_way() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("verdict of write") else {
        return Ok(());
    };
    let verdicts = |args: &[&str]| -> Result<Vec<Value>> {
        let probes = rdmatop::probes(args)?;
        let list = probes["probes"].as_array().context("no list of probes")?;
        let of_write = |probe: &&Value| {
            probe["program"]
                .as_str()
                .is_some_and(|p| p.starts_with("uverbs_write"))
        };
        Ok(list.iter().filter(of_write).cloned().collect())
    };
    for probe in verdicts(&[])? {
        let reason = probe["reason"].as_str().unwrap_or("");
        ensure!(probe["verdict"] == "not_applicable", "{probe}");
        ensure!(
            reason.contains("instructions") && reason.contains("--verb-times"),
            "{probe}"
        );
    }
    let on = verdicts(&["--verb-times"])?;
    ensure!(
        on.len() == 2 && on.iter().all(|probe| probe["verdict"] == "ok"),
        "{on:?}"
    );
    Ok(())
}

#[test]
fn commands_of_rdma_cm_are_verbs_too() -> Result<()> {
    let Some(_lab) = Lab::enter("rdma_cm verbs") else {
        return Ok(());
    };
    let window = Window::open(&[])?;
    let done = traffic::run("cm-calls", &[])?;
    let sample = window.close()?;
    let pid = id(&done, "pid")?;
    let failed = object(&done, "failed")?;
    for (name, made) in object(&done, "calls")? {
        let row = verb(&sample, pid, name)?;
        if name == "cm_get_event" {
            // A wait, whose length means nothing.
            ensure!(row.total("calls") == made.as_u64(), "{row:?}");
            ensure!(row.field("latency").is_null(), "{row:?}");
        } else {
            check(row, name, made.as_u64().context("no number")?, failed.get(name))?;
        }
        let by_design = matches!(name.as_str(), "cm_get_event" | "cm_bind_af_ib");
        ensure!(row.is("probe") == by_design, "{row:?}");
    }
    // The bind to an address that belongs to nobody.
    let process = sample.process(pid)?;
    ensure!(
        process.total("verb_errors") == Some(1),
        "{}",
        process.field("verb_errors")
    );
    Ok(())
}

#[test]
fn perftest_s_verbs_have_its_notifications_and_connections_and_no_fault() -> Result<()> {
    let Some(_lab) = Lab::enter("perftest's verbs") else {
        return Ok(());
    };
    let window = Window::open(&[])?;
    let notified = Perftest::new("ib_send_bw").args(&["-e"]).iterations(100).run()?;
    let connected = Perftest::new("ib_send_bw").cm().iterations(100).run()?;
    let sample = window.close()?;
    for pid in [notified.client.pid, notified.server.pid] {
        let row = verb(&sample, pid, "req_notify_cq")?;
        let calls = row.total("calls").unwrap_or(0);
        ensure!(calls > 0, "{row:?}");
        check(row, "req_notify_cq", calls, None)?;
    }
    // Each side has two ids: one tells the other where the data goes.
    for (pid, name) in [
        (connected.client.pid, "cm_connect"),
        (connected.client.pid, "cm_resolve_route"),
        (connected.server.pid, "cm_listen"),
        (connected.server.pid, "cm_accept"),
    ] {
        check(verb(&sample, pid, name)?, name, 2, None)?;
    }
    for account in [&notified, &connected] {
        for pid in [account.client.pid, account.server.pid] {
            let errors = sample.process(pid)?.total("verb_errors");
            ensure!(errors == Some(0), "pid {pid}: {errors:?}");
        }
    }
    Ok(())
}

#[test]
fn the_connection_manager_may_be_loaded_later() -> Result<()> {
    let Some(_lab) = Lab::enter("rdma_ucm loaded later") else {
        return Ok(());
    };
    let modprobe = |args: &[&str]| output(Command::new("modprobe").args(args));
    modprobe(&["-r", "rdma_ucm"])?;
    let trace = Trace::start(&["--event", "verb_error"]);
    modprobe(&["rdma_ucm"])?;
    let trace = trace?;
    // Once rdmatop has attached again it sees one, because each run makes a bind that fails.
    wait::for_some("a failed cm_bind in the trace", END, || {
        traffic::run("cm-calls", &[])?;
        let events = trace.events()?;
        let seen =
            |event: &Value| event["verb"] == "cm_bind" && event["rc"].as_i64().is_some_and(|rc| rc < 0);
        Ok(events.all().iter().any(seen).then_some(()))
    })?;
    let traced = trace.stop()?;
    // The bind without InfiniBand and the poll for events fail by design.
    ensure!(
        traced
            .events
            .all()
            .iter()
            .all(|e| e["verb"] != "cm_bind_af_ib" && e["verb"] != "cm_get_event")
    );
    Ok(())
}
