//! Work requests in a trace: what the kernel side is to leave out, what cannot be seen, and whether all was printed.

use rdmatop_common::wr::WrFilter;
use zerocopy::FromZeros as _;

use super::plan::Plan;
use crate::model::event::EventKind;
use crate::model::snapshot::{DeviceRow, Health, Snapshot, WorkRequests};

/// Bytes of a process's name that the kernel keeps.
const COMM_MAX: usize = rdmatop_common::event::COMM_LEN - 1;

/// What the kernel side makes records of. It may let through more than was asked for: events are filtered again here, where
/// names are as they are shown.
pub(super) fn filter(plan: &Plan, nested_pids: bool) -> WrFilter {
    let mut filter = WrFilter::new_zeroed();
    let asked = &plan.filter;
    // Another PID namespace has other numbers.
    filter.pid = asked.pid.filter(|_| !nested_pids).unwrap_or(0);
    if let Some(qpn) = asked.qpn {
        filter.qpn = qpn;
        filter.flags |= WrFilter::QPN;
    }
    filter.sample = plan.sample;
    if !asked.events.contains(&EventKind::WrPost) {
        filter.flags |= WrFilter::NO_POSTS;
    }
    if !asked.events.contains(&EventKind::WrDone) {
        filter.flags |= WrFilter::NO_ENDS;
    }
    if let Some(comm) = asked
        .comm
        .as_deref()
        .filter(|comm| is_plain(comm) && !comm.starts_with('['))
    {
        copy(&mut filter.comm[..COMM_MAX], comm);
    }
    if let Some(device) = asked
        .device
        .as_deref()
        .filter(|name| is_plain(name) && name.len() < filter.device.len())
    {
        copy(&mut filter.device, device);
    }
    filter
}

/// Whether a name is spelled on the screen as the kernel has it.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
}

fn copy(place: &mut [u8], name: &str) {
    for (to, from) in place.iter_mut().zip(name.bytes()) {
        *to = from;
    }
}

/// A line for each device whose work requests are not among the events, with the reason.
pub(super) fn unseen(all: &Snapshot) -> Vec<String> {
    let line = |device: &DeviceRow| {
        let why = match device.driver.as_deref()? {
            "rdma_rxe" => return None,
            "siw" => "those of soft iWARP are only counted: see `rdmatop --once`",
            _ => "programs post to it without entering the kernel",
        };
        Some(format!("rdmatop: no work requests of {}: {why}", device.name))
    };
    all.devices.iter().filter_map(line).collect()
}

/// The last line about work requests: each that happened is among the events seen, left out or lost.
pub(super) fn summary(health: &Health, seen: u64) -> Option<String> {
    let WorkRequests {
        happened,
        filtered,
        sampled_out,
    } = health.work?;
    let lost = |at: &str| {
        let found = health.losses.iter().find(|loss| loss.at == at);
        found.map_or(0, |loss| loss.count)
    };
    let (full, missed) = (lost("wr_ring"), lost("wr_missed"));
    let why = if full + missed > 0 {
        format!(" (ring full {full}, not seen {missed})")
    } else {
        String::new()
    };
    Some(format!(
        "rdmatop: work requests: {happened} posts and ends happened, {seen} seen, {filtered} filtered out, {sampled_out} \
         sampled out, {} lost{why}",
        full + missed
    ))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::app::plan::{Terminal, plan};
    use crate::cli::Cli;
    use crate::model::snapshot::Loss;
    use crate::model::testkit;

    fn filtered(args: &[&str], nested_pids: bool) -> WrFilter {
        let cli = Cli::try_parse_from(["rdmatop", "--trace"].iter().chain(args)).unwrap();
        filter(&plan(&cli, Terminal::default()).unwrap(), nested_pids)
    }

    #[test]
    fn the_kernel_side_filters_by_what_it_can_compare() {
        let all = filtered(&["--event", "wr"], false);
        assert_eq!((all.pid, all.flags, all.sample), (0, 0, 1));
        assert_eq!((all.comm[0], all.device[0]), (0, 0));
        let args = [
            "--event", "wr_done", "--pid", "7", "--qpn", "0", "--sample", "3", "--device", "rxe0",
        ];
        let some = filtered(&args, false);
        assert_eq!((some.pid, some.qpn, some.sample), (7, 0, 3));
        assert_eq!(some.flags, WrFilter::QPN | WrFilter::NO_POSTS);
        assert_eq!(&some.device[..5], b"rxe0\0");
        assert_eq!(
            filtered(&args, true).pid,
            0,
            "the number means another process there"
        );
    }

    #[test]
    fn a_name_that_is_shown_otherwise_than_the_kernel_has_it_is_left_to_the_second_filter() {
        let comm = |name: &str| filtered(&["--event", "wr", "--comm", name], false).comm;
        assert_eq!(&comm("ib_send_bw")[..11], b"ib_send_bw\0");
        assert_eq!(&comm("all_reduce_perf_mpi"), b"all_reduce_perf\0");
        for name in ["[nvme_rdma]", "\\x1b[31m", "a b", "caf\u{e9}"] {
            assert_eq!(comm(name)[0], 0, "{name}");
        }
    }

    #[test]
    fn a_device_that_bypasses_the_kernel_is_named_and_softroce_is_not_advised() {
        let mut all = testkit::empty();
        let device = |name: &str, driver: Option<&str>| {
            let mut row = testkit::full::snapshot().devices[0].clone();
            row.name = name.into();
            row.driver = driver.map(Into::into);
            row
        };
        all.devices = vec![
            device("rxe0", Some("rdma_rxe")),
            device("mlx5_0", Some("mlx5_core")),
            device("siw0", Some("siw")),
            device("x", None),
        ];
        let lines = unseen(&all);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert_eq!(
            lines[0],
            "rdmatop: no work requests of mlx5_0: programs post to it without entering the kernel"
        );
        assert!(
            lines[1].contains("siw0") && !lines.concat().contains("SoftRoCE"),
            "{lines:?}"
        );
    }

    #[test]
    fn the_last_line_adds_up() {
        let mut health = testkit::empty().health;
        assert_eq!(summary(&health, 0), None);
        health.work = Some(WorkRequests {
            happened: 100,
            filtered: 20,
            sampled_out: 30,
        });
        let line = summary(&health, 50).unwrap();
        assert_eq!(
            line,
            "rdmatop: work requests: 100 posts and ends happened, 50 seen, 20 filtered out, 30 sampled out, 0 lost"
        );
        health.losses = vec![Loss {
            at: "wr_ring",
            count: 7,
            records: true,
        }];
        let line = summary(&health, 43).unwrap();
        assert!(
            line.ends_with("43 seen, 20 filtered out, 30 sampled out, 7 lost (ring full 7, not seen 0)"),
            "{line}"
        );
    }
}
