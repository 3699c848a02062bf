//! Something is missing on a machine: everything else is still shown, and one line says what is missing, why,
//! and the remedy.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use rdmatop_tests::{
    faults::{Switch, behind, notes, sample},
    lab::Lab,
    rdmatop::{END, Trace},
    snapshot::Row,
    traffic::{self, Traffic, id},
};

#[test]
fn kprobes_that_are_switched_off_are_told_and_not_taken_for_silence() -> Result<()> {
    let Some(_lab) = Lab::enter("kprobes off") else {
        return Ok(());
    };
    for path in [
        "/proc/sys/kernel/ftrace_enabled",
        "/sys/kernel/debug/kprobes/enabled",
    ] {
        let trace = Trace::start(&[])?;
        let off = Switch::set(path, "0")?;
        let said = |what: &'static str| trace.child.err.wait_for(what, END, |line| line.contains(what));
        let why = said("no events from now on")?;
        ensure!(
            why.contains(
                Path::new(path)
                    .file_name()
                    .context("name")?
                    .to_str()
                    .context("name")?
            ),
            "{why}"
        );
        let once = sample(&["env"])?;
        ensure!(
            once.value()["health"]["ebpf"]["state"] == "unavailable",
            "{}",
            once.value()["health"]["ebpf"]
        );
        let notes = notes(&once);
        ensure!(notes.len() == 1 && notes[0].starts_with("No eBPF"), "{notes:?}");
        drop(off);
        said("are missing")?;
        let done = traffic::run("qp-churn", &["--count", "3"])?;
        let traced = trace.stop()?;
        let seen = traced.events.pid(id(&done, "pid")?).kind("qp_create").len();
        ensure!(seen == 3, "{seen} of 3 QPs after the switch is on again");
        let sum = traced.stderr.last().context("no summary")?;
        ensure!(sum.contains("without programs"), "{sum}");
    }
    Ok(())
}

#[test]
fn root_in_a_container_is_told_what_to_give_to_the_container() -> Result<()> {
    let Some(_lab) = Lab::enter("root without capabilities") else {
        return Ok(());
    };
    let _paranoid = Switch::set("/proc/sys/kernel/perf_event_paranoid", "3")?;
    for lacks in ["-sys_admin", "-sys_admin,-bpf", "-all"] {
        let sample = sample(&["setpriv", &format!("--bounding-set={lacks}")])?;
        let notes = notes(&sample);
        ensure!(
            sample.value()["devices"]
                .as_array()
                .is_some_and(|list| !list.is_empty())
        );
        ensure!(
            notes.iter().filter(|note| note.starts_with("No eBPF")).count() == 1,
            "{lacks}: {notes:?}"
        );
        for note in &notes {
            ensure!(
                note.contains("--cap-add") && !note.contains("sudo"),
                "{lacks}: {note}"
            );
        }
        ensure!(
            !notes.iter().any(|note| note.contains("fentry")),
            "nobody asked for it: {notes:?}"
        );
    }
    Ok(())
}

#[test]
fn too_few_open_files_leave_netlink_what_it_needs() -> Result<()> {
    let Some(_lab) = Lab::enter("open files") else {
        return Ok(());
    };
    let idle = Traffic::start("idle-qps", &["--qps", "2"])?;
    idle.ready()?;
    let sample = sample(&["prlimit", "--nofile=40:40"])?;
    let notes = notes(&sample);
    ensure!(notes.len() == 1 && notes[0].contains("ulimit -n"), "{notes:?}");
    let pid = i64::from(idle.child.pid());
    let rows = sample.value()["qps"].as_array().context("no list of QPs")?;
    ensure!(
        rows.iter().filter(|row| row["pid"] == pid).count() == 2,
        "{rows:?}"
    );
    // rdmatop raises a soft limit by itself.
    let (code, child) = behind(&["prlimit", "--nofile=40:4096"], &["probes", "--json"])?;
    ensure!(code == Some(0), "{}", child.err.text());
    // With almost no files rdmatop cannot know whether there are devices: that is a failure, not a machine
    // without RDMA.
    for limit in ["7", "9"] {
        let (code, child) = behind(&["prlimit", &format!("--nofile={limit}:{limit}")], &["--once"])?;
        ensure!(code == Some(1), "{limit}: {code:?}: {}", child.out.text());
        let said = child.err.all();
        ensure!(
            said.len() == 1 && said[0].contains("ulimit -n"),
            "{limit}: {said:?}"
        );
    }
    Ok(())
}

#[test]
fn without_sys_netlink_still_tells_and_nobody_says_that_there_is_no_rdma() -> Result<()> {
    let Some(_lab) = Lab::enter("no /sys") else {
        return Ok(());
    };
    let without = [
        "unshare",
        "-m",
        "sh",
        "-c",
        "mount -t tmpfs none /sys && exec \"$0\" \"$@\"",
    ];
    let sample = sample(&without)?;
    let notes = notes(&sample);
    ensure!(
        notes.len() == 1 && notes[0].contains("/sys is not mounted"),
        "{notes:?}"
    );
    ensure!(
        sample.value()["devices"]
            .as_array()
            .is_some_and(|list| !list.is_empty())
    );
    let (code, child) = behind(&without, &["--trace", "--for", "1"])?;
    let said = child.err.text();
    ensure!(
        code == Some(1) && said.contains("/sys is not mounted"),
        "{code:?}: {said}"
    );
    Ok(())
}

#[test]
fn without_btf_it_says_so_and_counts_nothing() -> Result<()> {
    let Some(_lab) = Lab::enter("no BTF") else {
        return Ok(());
    };
    let _paranoid = Switch::set("/proc/sys/kernel/perf_event_paranoid", "2")?;
    // Without CAP_SYS_ADMIN bpf(2) does not give the kernel's BTF either.
    let script = "mount -t tmpfs none /sys/kernel/btf && \
                  exec setpriv --bounding-set=-sys_admin \"$0\" \"$@\"";
    let sample = sample(&["unshare", "-m", "sh", "-c", script])?;
    let health = &sample.value()["health"];
    ensure!(
        !health.to_string().contains("\"rdma_rxe\":\"kprobe\""),
        "{health}"
    );
    ensure!(
        notes(&sample).iter().filter(|note| note.contains("BTF")).count() == 1,
        "{:?}",
        notes(&sample)
    );
    for row in sample.qps() {
        ensure!(row.field("tx_wr").is_null(), "{row:?}");
    }
    Ok(())
}

/// Records have PIDs of the machine, netlink those of the namespace. Without records, netlink's are used.
#[test]
fn in_a_pid_namespace_without_programs_netlink_tells_of_owners() -> Result<()> {
    let Some(_lab) = Lab::enter("PID namespace without programs") else {
        return Ok(());
    };
    let holder = traffic::path("idle-qps")?;
    // The shell is process 1 of the namespace: when it ends, all others end.
    let script = format!(
        "sleep 1000 | {} --qps 3 >/tmp/ready & until grep -q ready /tmp/ready; do sleep 0.1; done; \"$0\" \"$@\"",
        holder.display()
    );
    let within = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", &script];
    let _off = Switch::set("/proc/sys/kernel/ftrace_enabled", "0")?;
    let sample = sample(&within)?;
    ensure!(sample.value()["health"]["ebpf"]["state"] == "unavailable");
    let named = |row: &Row<'_>| row.field("comm") == "idle-qps";
    let rows: Vec<_> = sample.processes().filter(named).collect();
    let [row] = rows.as_slice() else {
        bail!(
            "{} rows of idle-qps among {:?}",
            rows.len(),
            sample.value()["processes"]
        );
    };
    ensure!(row.field("qps") == 3, "{row:?}");
    Ok(())
}

/// The records of a session that cannot be watched are lost: rdmatop reports that and tries again.
#[test]
fn a_ring_buffer_that_cannot_be_watched_is_told_and_tried_again() -> Result<()> {
    let Some(_lab) = Lab::enter("ring buffer not watched") else {
        return Ok(());
    };
    let trace = Trace::start(&[])?;
    let said = |what: &'static str| trace.child.err.wait_for(what, END, |line| line.contains(what));
    // The next session starts after probes were disabled; its ring buffer is one more file for epoll.
    let probes = Switch::set("/proc/sys/kernel/ftrace_enabled", "0")?;
    said("no events from now on: no program would run")?;
    let watches = Switch::set("/proc/sys/fs/epoll/max_user_watches", "0")?;
    drop(probes);
    said("no events from now on: cannot read the eBPF maps")?;
    drop(watches);
    said("are missing")?;
    let done = traffic::run("qp-churn", &["--count", "3"])?;
    let traced = trace.stop()?;
    let seen = traced.events.pid(id(&done, "pid")?).kind("qp_create").len();
    ensure!(
        seen == 3,
        "{seen} of 3 QPs after the ring buffer can be watched again"
    );
    Ok(())
}
