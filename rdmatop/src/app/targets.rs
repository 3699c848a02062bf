//! `--device` and `--pid` that match nothing: one line with what there is.

use crate::exit::Stop;
use rdmatop_base::text::names;
use rdmatop_model::{filter::Filter, snapshot::Snapshot};
use rdmatop_sources::{proc::lives, root::Root};

/// An end when the first snapshot shows that `--device` or `--pid` names nothing.
pub(super) fn check(filter: Filter) -> impl Fn(&Snapshot) -> Result<(), Stop> {
    move |all| {
        device(&filter, all)?;
        process(&filter, all, &Root::default())
    }
}

/// An end when `--device` names no device although there are some.
pub(super) fn device(filter: &Filter, all: &Snapshot) -> Result<(), Stop> {
    let Some(wanted) = &filter.device else {
        return Ok(());
    };
    if all.devices.is_empty() || all.devices.iter().any(|row| *row.name == **wanted) {
        return Ok(());
    }
    Err(Stop::failure(format!(
        "--device {wanted}: no such RDMA device; there is {}",
        names(all.devices.iter().map(|row| &row.name))
    )))
}

/// An end when `--pid` names no process. A process without RDMA objects may still create some: a trace waits
/// for it.
pub(super) fn process(filter: &Filter, all: &Snapshot, root: &Root) -> Result<(), Stop> {
    let Some(pid) = filter.pid else { return Ok(()) };
    if has_rdma(pid, all) || lives(root, pid) {
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

/// The line for a `--comm` that no process has. This is no failure, because a later process may have the
/// name.
pub(super) fn comm(filter: &Filter, all: &Snapshot) -> Option<String> {
    let comm = filter.comm.as_ref()?;
    let by_name = Filter {
        comm: Some(comm.clone()),
        ..Filter::default()
    };
    let some = all.processes.iter().any(|row| by_name.matches_process(row));
    let line = || {
        format!(
            "--comm {comm}: no process of this name has RDMA objects; {}",
            owners(all)
        )
    };
    (!some).then(line)
}

fn has_rdma(pid: u32, all: &Snapshot) -> bool {
    all.processes.iter().any(|row| row.pid == Some(pid))
}

fn owners(all: &Snapshot) -> String {
    let rows = all.processes.iter();
    let names = names(rows.filter_map(|row| Some(format!("{} ({})", row.pid?, row.comm))));
    if names.is_empty() {
        "no process has any".to_owned()
    } else {
        format!("RDMA is used by {names}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_model::testkit::full;
    use rdmatop_sources::fake::Fake;

    #[test]
    fn an_unknown_device_is_reported_with_the_existing_ones() {
        let filter = |name: &str| Filter {
            device: Some(name.to_owned()),
            ..Filter::default()
        };
        let all = full::snapshot();
        assert_eq!(device(&filter("rxe0"), &all), Ok(()));
        let stop = device(&filter("rxe9"), &all).unwrap_err();
        assert_eq!(
            stop.line,
            "--device rxe9: no such RDMA device; there is mlx5_0 and rxe0"
        );
        assert_eq!(
            device(&filter("rxe9"), &full::empty()),
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
        let all = full::snapshot();
        assert_eq!(rdma_process(&filter(231), &all, &root), Ok(()));
        assert_eq!(process(&filter(77), &all, &root), Ok(()));
        let stop = rdma_process(&filter(77), &all, &root).unwrap_err();
        assert_eq!(
            stop.line,
            "--pid 77: this process has no RDMA objects; RDMA is used by 231 (ib_send_bw)"
        );
        let stop = process(&filter(78), &full::empty(), &root).unwrap_err();
        assert_eq!(stop.line, "--pid 78: no such process; no process has any");
    }

    #[test]
    fn a_name_that_no_process_has_is_reported_with_the_existing_ones() {
        let named = |comm: &str| Filter {
            comm: Some(comm.to_owned()),
            ..Filter::default()
        };
        let all = full::snapshot();
        assert_eq!(comm(&named("ib_send_bw"), &all), None);
        assert_eq!(comm(&Filter::default(), &all), None);
        assert_eq!(
            comm(&named("nosuch"), &all).as_deref(),
            Some("--comm nosuch: no process of this name has RDMA objects; RDMA is used by 231 (ib_send_bw)")
        );
    }
}
