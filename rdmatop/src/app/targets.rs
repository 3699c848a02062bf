//! `--device` and `--pid` that name nothing: one line that says what there is.

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::exit::Stop;
use crate::model::filter::Filter;
use crate::model::snapshot::Snapshot;
use crate::source::root::Root;

/// Names listed in a message; a machine may have ten thousand processes.
const SHOWN: usize = 8;

/// An end when `--device` names no device although there are some.
pub(super) fn device(filter: &Filter, all: &Snapshot) -> Result<(), Stop> {
    let Some(wanted) = &filter.device else {
        return Ok(());
    };
    if all.devices.is_empty() || all.devices.iter().any(|row| *row.name == **wanted) {
        return Ok(());
    }
    let names = list(all.devices.iter().map(|row| row.name.to_string()));
    Err(Stop::failure(format!(
        "--device {wanted}: no such RDMA device; there is {names}"
    )))
}

/// An end when `--pid` names no process. One without RDMA objects may still make some: a trace waits for it.
pub(super) fn process(filter: &Filter, all: &Snapshot, root: &Root) -> Result<(), Stop> {
    let Some(pid) = filter.pid else { return Ok(()) };
    if has_rdma(pid, all) || root.proc(pid.to_string()).exists() || lives(pid, root) {
        return Ok(());
    }
    Err(Stop::failure(format!(
        "--pid {pid}: no such process; {}",
        owners(all)
    )))
}

/// An end when the process of `--pid` has no RDMA objects, for one sample.
pub(super) fn rdma_process(filter: &Filter, all: &Snapshot, root: &Root) -> Result<(), Stop> {
    process(filter, all, root)?;
    match filter.pid {
        Some(pid) if !has_rdma(pid, all) => Err(Stop::failure(format!(
            "--pid {pid}: this process has no RDMA objects; {}",
            owners(all)
        ))),
        _ => Ok(()),
    }
}

/// Whether there is a process that /proc does not show: it is not mounted, or hides those of other users (hidepid).
fn lives(pid: u32, root: &Root) -> bool {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // kill(2) with signal 0 tells; EPERM is somebody else's.
    root.is_live() && number.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

fn has_rdma(pid: u32, all: &Snapshot) -> bool {
    all.processes.iter().any(|row| row.pid == Some(pid))
}

fn owners(all: &Snapshot) -> String {
    let with = all
        .processes
        .iter()
        .filter_map(|row| Some(format!("{} ({})", row.pid?, row.comm)));
    let names = list(with);
    if names.is_empty() {
        "no process has any".to_owned()
    } else {
        format!("RDMA is used by {names}")
    }
}

fn list(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<String> = names.collect();
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::fake::Fake;
    use crate::view::fixture;

    #[test]
    fn an_unknown_device_is_told_with_those_there_are() {
        let filter = |name: &str| Filter {
            device: Some(name.to_owned()),
            ..Filter::default()
        };
        let all = fixture::snapshot();
        assert_eq!(device(&filter("rxe0"), &all), Ok(()));
        let stop = device(&filter("rxe9"), &all).unwrap_err();
        assert_eq!(
            stop.line,
            "--device rxe9: no such RDMA device; there is mlx5_0, rxe0"
        );
        assert_eq!(
            device(&filter("rxe9"), &fixture::empty()),
            Ok(()),
            "that is another message"
        );
    }

    #[test]
    fn a_process_without_rdma_may_be_traced_and_not_sampled() {
        let fake = Fake::new();
        fake.proc("77/comm", "bash\n");
        let root = fake.root();
        let filter = |pid| Filter {
            pid: Some(pid),
            ..Filter::default()
        };
        let all = fixture::snapshot();
        assert_eq!(rdma_process(&filter(231), &all, &root), Ok(()));
        assert_eq!(process(&filter(77), &all, &root), Ok(()));
        let stop = rdma_process(&filter(77), &all, &root).unwrap_err();
        assert_eq!(
            stop.line,
            "--pid 77: this process has no RDMA objects; RDMA is used by 231 (ib_send_bw)"
        );
        let stop = process(&filter(78), &fixture::empty(), &root).unwrap_err();
        assert_eq!(stop.line, "--pid 78: no such process; no process has any");
    }

    #[test]
    fn a_process_that_proc_hides_is_asked_for_by_signal() {
        let live = Root::default();
        assert!(lives(std::process::id(), &live) && lives(1, &live));
        assert!(!lives(u32::MAX, &live) && !lives(0, &live));
        assert!(!lives(1, &Fake::new().root()), "another machine's");
    }

    #[test]
    fn a_long_list_ends_with_its_rest() {
        assert_eq!(
            list((0..10).map(|n| n.to_string())),
            "0, 1, 2, 3, 4, 5, 6, 7, 2 more"
        );
    }
}
