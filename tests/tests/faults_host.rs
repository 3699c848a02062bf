//! A machine, container or administrator withholds rights, memory, threads or file systems. Everything else
//! is still shown, and one line says what is missing, why, and a remedy that helps there.

use std::fs;

use anyhow::{Result, ensure};
use rdmatop_tests::{
    faults::{Switch, after, behind, notes, sample, sample_after},
    lab::Lab,
    rdmatop::Window,
    snapshot::Snapshot,
    table::Table,
    traffic::{self, id},
};

const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// Returns the notes of a sample that the same machine without the fault does not have.
fn new_notes(sample: &Snapshot, before: &[String]) -> Vec<String> {
    let mut notes = notes(sample);
    notes.retain(|note| !before.contains(note));
    notes
}

/// Returns the state of eBPF: `on`, `unavailable`.
fn ebpf(sample: &Snapshot) -> &str {
    sample.value()["health"]["ebpf"]["state"]
        .as_str()
        .unwrap_or_default()
}

/// Fails unless devices are shown: netlink works whatever the state of eBPF.
fn devices_are_told(sample: &Snapshot) -> Result<()> {
    let devices = sample.value()["devices"].as_array();
    ensure!(
        devices.is_some_and(|list| !list.is_empty()),
        "{:?}",
        sample.value()["devices"]
    );
    Ok(())
}

/// Whether the tracepoints of rdma_cm are found through tracefs, because the module has no BTF.
fn reads_tracefs() -> bool {
    !fs::exists("/sys/kernel/btf/rdma_cm").unwrap_or(false)
}

/// Before Linux 5.11 maps are charged to the limit of locked memory, not to the cgroup.
fn charges_the_cgroup(lab: &Lab) -> bool {
    !lab.release.starts_with("5.10.")
}

#[test]
fn each_level_of_perf_event_paranoid_is_judged_as_the_kernel_does() -> Result<()> {
    const NONE: &str = "-all";
    const TRACER: &str = "-all,+bpf,+perfmon,+sys_resource";
    const ADMIN: &str = "-all,+bpf,+perfmon,+sys_resource,+sys_admin";
    let Some(_lab) = Lab::enter("perf_event_paranoid") else {
        return Ok(());
    };
    for (level, caps, why) in [
        // Below 3 the level does not affect CAP_PERFMON; from 3 on Debian's kernels need more.
        ("2", TRACER, None),
        ("2", NONE, Some("CAP_BPF and CAP_PERFMON missing")),
        ("3", TRACER, Some("kernel.perf_event_paranoid is 3")),
        ("3", ADMIN, None),
    ] {
        let _level = Switch::set(PARANOID, level)?;
        let (inherited, ambient) = (format!("--inh-caps={caps}"), format!("--ambient-caps={caps}"));
        let nobody = [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            &inherited,
            &ambient,
        ];
        let sample = sample(&nobody)?;
        let notes = notes(&sample);
        devices_are_told(&sample)?;
        let off: Vec<_> = notes.iter().filter(|note| note.starts_with("No eBPF")).collect();
        match why {
            None => {
                ensure!(
                    ebpf(&sample) == "on" && off.is_empty(),
                    "{level} {caps}: {notes:?}"
                );
                // tracefs belongs to root: that matters only where it is read, and remounting would not help.
                let of_root = notes
                    .iter()
                    .any(|note| note.contains("tracefs may be read by root only"));
                ensure!(
                    of_root == reads_tracefs() && !notes.iter().any(|note| note.contains("not mounted")),
                    "{level} {caps}: {notes:?}"
                );
            }
            Some(why) => {
                ensure!(ebpf(&sample) == "unavailable", "{level} {caps}: {notes:?}");
                ensure!(
                    off.len() == 1 && off[0].contains(why),
                    "{level} {caps}: {notes:?}"
                );
                // Root's remedy differs from the sysctl; both are named where both would help.
                let sysctl = off[0].contains("kernel.perf_event_paranoid");
                ensure!(sysctl == (level > "2"), "{level} {caps}: {notes:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn root_of_a_user_namespace_is_told_that_its_rights_end_there() -> Result<()> {
    let Some(_lab) = Lab::enter("user namespace") else {
        return Ok(());
    };
    // The kernel creates no user namespace for a process in a chroot, and the lab's jobs run in one, so its
    // root first becomes the root of a mount namespace.
    let script = "cd /new && mount -o move . / && exec chroot . /usr/bin/unshare -U -r \"$0\" \"$@\"";
    let enter = [
        "nsenter",
        "--target",
        "1",
        "--root",
        "--wd",
        "/bin/busybox",
        "unshare",
        "-m",
        "/bin/busybox",
        "sh",
        "-c",
        script,
    ];
    let sample = sample(&enter)?;
    devices_are_told(&sample)?;
    let notes = notes(&sample);
    let off: Vec<_> = notes.iter().filter(|note| note.starts_with("No eBPF")).collect();
    ensure!(off.len() == 1 && off[0].contains("user namespace"), "{notes:?}");
    ensure!(
        !notes
            .iter()
            .any(|note| note.contains("--cap-add") || note.contains("sudo")),
        "{notes:?}"
    );
    let (code, trace) = behind(&enter, &["--trace", "--for", "0.3"])?;
    let said = trace.err.all();
    ensure!(
        code == Some(1)
            && said.len() == 1
            && said[0].contains("user namespace")
            && !said[0].contains("--cap-add"),
        "{code:?}: {said:?}"
    );
    Ok(())
}

#[test]
fn a_memory_cgroup_of_20_mb_costs_no_counter_and_one_of_14_mb_a_trace() -> Result<()> {
    const ROOT: &str = "/sys/fs/cgroup";
    const SMALL: &str = "/sys/fs/cgroup/rdmatop-small";
    let Some(_lab) = Lab::enter("memory cgroup") else {
        return Ok(());
    };
    let before = notes(&sample(&["env"])?);
    fs::write(format!("{ROOT}/cgroup.subtree_control"), "+memory")?;
    fs::create_dir_all(SMALL)?;
    let script = format!("echo $$ >{SMALL}/cgroup.procs && exec \"$0\" \"$@\"");
    let limit = |bytes: &str| fs::write(format!("{SMALL}/memory.max"), bytes);
    let sample = limit("20M").map(|()| sample(&["sh", "-c", &script]));
    let trace = limit("14M").map(|()| behind(&["sh", "-c", &script], &["--trace", "--for", "0.3"]));
    let _ = fs::remove_dir(SMALL);
    let (sample, (code, trace)) = (sample??, trace??);
    devices_are_told(&sample)?;
    let notes = new_notes(&sample, &before);
    ensure!(ebpf(&sample) == "on" && notes.is_empty(), "{notes:?}");
    let said = trace.err.all();
    // Loading the programs alone may take 15 MiB.
    let names_it = |line: &String| line.contains("memory limit of") && line.contains("cgroup");
    ensure!(
        code == Some(1) && said.len() == 1 && said.iter().all(names_it),
        "{code:?}: {said:?}"
    );
    Ok(())
}

#[test]
fn maps_that_find_no_locked_memory_are_told_by_its_limit() -> Result<()> {
    let Some(lab) = Lab::enter("RLIMIT_MEMLOCK") else {
        return Ok(());
    };
    // Runs without the right to raise the limit.
    let front = [
        "prlimit",
        "--memlock=500000:500000",
        "setpriv",
        "--bounding-set=-sys_resource",
    ];
    let sample = sample(&front)?;
    devices_are_told(&sample)?;
    let notes = notes(&sample);
    let off: Vec<_> = notes.iter().filter(|note| note.starts_with("No eBPF")).collect();
    if charges_the_cgroup(&lab) {
        ensure!(ebpf(&sample) == "on" && off.is_empty(), "{notes:?}");
    } else {
        ensure!(ebpf(&sample) == "unavailable", "{notes:?}");
        ensure!(
            off.len() == 1 && off[0].contains("ulimit -l") && !off[0].contains("--cap-add"),
            "{notes:?}"
        );
    }
    Ok(())
}

#[test]
fn too_few_processes_are_told_by_their_limit() -> Result<()> {
    const CAPS: &str = "-all,+bpf,+perfmon,+sys_admin";
    let Some(_lab) = Lab::enter("RLIMIT_NPROC") else {
        return Ok(());
    };
    let (inherited, ambient) = (format!("--inh-caps={CAPS}"), format!("--ambient-caps={CAPS}"));
    let nobody = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        &inherited,
        &ambient,
        // Root's directory of settings is closed to this user, which the program would say.
        "env",
        "HOME=/",
    ];
    // Without a thread for the readings nothing can be shown.
    let (code, child) = behind(&[&nobody[..], &["prlimit", "--nproc=1:1"]].concat(), &["--once"])?;
    let said = child.err.all();
    ensure!(code == Some(1), "{code:?}: {said:?}");
    ensure!(said.len() == 1 && said[0].contains("ulimit -u"), "{said:?}");
    // Without a thread to attach, everything except eBPF is shown.
    let sample = sample(&[&nobody[..], &["prlimit", "--nproc=3:3"]].concat())?;
    devices_are_told(&sample)?;
    let notes = notes(&sample);
    let off: Vec<_> = notes.iter().filter(|note| note.starts_with("No eBPF")).collect();
    ensure!(ebpf(&sample) == "unavailable", "{notes:?}");
    ensure!(off.len() == 1 && off[0].contains("ulimit -u"), "{notes:?}");
    Ok(())
}

#[test]
fn a_small_address_space_is_told_by_its_own_limit() -> Result<()> {
    let Some(_lab) = Lab::enter("ulimit -v") else {
        return Ok(());
    };
    let before = notes(&sample(&["env"])?);
    let within = |megabytes: u32, args: &[&str]| {
        let bytes = u64::from(megabytes) * 1_000_000;
        behind(&["prlimit", &format!("--as={bytes}:{bytes}")], args)
    };
    // With less memory the kernel or the dynamic linker ends it before it starts.
    let mut least = 20;
    while within(least, &["--version"])?.0 != Some(0) {
        least += 10;
        ensure!(least < 500, "it does not begin within {least} MB");
    }
    let mut refused = 0;
    for more in [0, 35, 65] {
        let megabytes = least + more;
        let (code, child) = within(megabytes, &["--once", "--json", "--delay", "0.2"])?;
        let said = child.err.all();
        if code == Some(1) {
            ensure!(
                said.len() == 1 && said[0].contains("ulimit -v"),
                "{megabytes} MB: {said:?}"
            );
            refused += 1;
            continue;
        }
        // A failed allocation would end it by a signal.
        ensure!(code == Some(0), "{megabytes} MB: {code:?}: {said:?}");
        let sample = Snapshot::parse(&child.out.text())?;
        devices_are_told(&sample)?;
        let notes = new_notes(&sample, &before);
        if ebpf(&sample) == "on" && notes.is_empty() {
            continue;
        }
        refused += 1;
        ensure!(
            notes.len() == 1 && notes[0].contains("ulimit -v"),
            "{megabytes} MB: {notes:?}"
        );
        ensure!(
            !notes[0].contains("cgroup") && !notes[0].contains("ulimit -u"),
            "{megabytes} MB: {notes:?}"
        );
    }
    ensure!(refused > 0, "no limit was low enough to be felt");
    Ok(())
}

#[test]
fn on_a_read_only_root_all_is_counted() -> Result<()> {
    let Some(lab) = Lab::enter("read-only root") else {
        return Ok(());
    };
    let before = notes(&sample(&["env"])?);
    let words = after("mount -o remount,ro / && ! touch /rdmatop-test 2>/dev/null");
    let window = Window::open_under(&words.each_ref().map(String::as_str))?;
    let done = traffic::run("timed-posts", &["--count", "300"])?;
    let sample = window.close()?;
    devices_are_told(&sample)?;
    let notes = new_notes(&sample, &before);
    ensure!(ebpf(&sample) == "on" && notes.is_empty(), "{notes:?}");
    let qp = sample.qp(id(&done, "pid")?, id(&done, "qpn")?)?;
    let mut table = Table::default();
    table.equal("sender", "tx_wr", 300, qp.total("tx_wr"));
    table.equal("sender", "tx_bytes", 300 * 64, qp.total("tx_bytes"));
    table.check(&lab, "On a read-only root");
    Ok(())
}

#[test]
fn a_masked_list_of_modules_is_not_taken_for_unloaded_ones() -> Result<()> {
    let Some(_lab) = Lab::enter("no /sys/module") else {
        return Ok(());
    };
    let sample = sample_after("mount -t tmpfs none /sys/module")?;
    devices_are_told(&sample)?;
    let notes = notes(&sample);
    ensure!(ebpf(&sample) == "unavailable", "{notes:?}");
    ensure!(notes.len() == 1 && notes[0].contains("/sys/module"), "{notes:?}");
    ensure!(!notes[0].contains("not loaded"), "{notes:?}");
    Ok(())
}

/// A container that has /sys/class but not the targets of its links.
#[test]
fn names_in_sys_without_their_files_are_said_to_be_that() -> Result<()> {
    let Some(_lab) = Lab::enter("no /sys/devices/virtual") else {
        return Ok(());
    };
    let before = notes(&sample(&["env"])?);
    let sample = sample_after("mount -t tmpfs none /sys/devices/virtual")?;
    devices_are_told(&sample)?;
    let notes = new_notes(&sample, &before);
    ensure!(notes.len() == 1, "{notes:?}");
    ensure!(
        notes[0].contains("/sys/devices are not here")
            && notes[0].contains("-v /sys/devices:/sys/devices:ro"),
        "{notes:?}"
    );
    Ok(())
}

#[test]
fn masked_btf_is_asked_for_and_the_kernel_is_not_blamed() -> Result<()> {
    let Some(_lab) = Lab::enter("no /sys/kernel/btf") else {
        return Ok(());
    };
    let sample = sample_after("mount -t tmpfs none /sys/kernel/btf")?;
    devices_are_told(&sample)?;
    let notes = notes(&sample);
    ensure!(!notes.is_empty(), "the data path reads structs");
    for note in &notes {
        ensure!(
            note.contains("/sys/kernel/btf") && !note.contains("whose modules have BTF"),
            "{notes:?}"
        );
    }
    for row in sample.qps() {
        ensure!(row.field("tx_wr").is_null(), "{row:?}");
    }
    Ok(())
}

#[test]
fn without_tracefs_and_debugfs_only_what_they_give_is_missing() -> Result<()> {
    let Some(_lab) = Lab::enter("no tracefs") else {
        return Ok(());
    };
    let before = notes(&sample(&["env"])?);
    let sample = sample_after("umount /sys/kernel/tracing && umount /sys/kernel/debug")?;
    devices_are_told(&sample)?;
    let notes = new_notes(&sample, &before);
    ensure!(ebpf(&sample) == "on", "{notes:?}");
    let told = |note: &String| note.contains("rdma_cm") && note.contains("tracefs is not mounted");
    ensure!(
        notes.len() == usize::from(reads_tracefs()) && notes.iter().all(told),
        "{notes:?}"
    );
    Ok(())
}
