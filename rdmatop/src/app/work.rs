//! Work requests in a trace: what the kernel side is to leave out, what cannot be seen, and whether all was
//! printed.

use std::collections::BTreeSet;

use rdmatop_common::{provider::Counted, wr::WrFilter};
use zerocopy::FromZeros as _;

use super::{plan::Plan, sink::EventCounts};
use rdmatop_base::step::step;
use rdmatop_model::cause::{CauseId, Obstacle};
use rdmatop_model::snapshot::{DeviceRow, Health, QpRow, Snapshot, WorkRequests};
use rdmatop_model::{event::EventKind, input::EbpfState};

#[cfg(test)]
mod accounts_tests;

/// Bytes of a process's name that the kernel keeps.
const COMM_MAX: usize = rdmatop_common::event::COMM_LEN - 1;

/// What the kernel side makes records of. It may let through more than was asked for: events are filtered
/// again here, where names are as they are shown.
pub(super) fn filter(plan: &Plan, nested_pids: bool) -> WrFilter {
    let mut filter = WrFilter::new_zeroed();
    let asked = &plan.filter;
    // In a PID namespace of its own rdmatop has other numbers than those that the kernel side compares.
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

/// What the kernel side makes records of while the view watches one QP; or why that QP's work requests cannot
/// be seen.
pub(super) fn watched(qp: &QpRow, all: &Snapshot) -> Result<WrFilter, Obstacle> {
    match &all.health.ebpf {
        EbpfState::On { .. } => {}
        EbpfState::Starting => {
            let why = "the eBPF programs are being attached";
            return Err(Obstacle::new(
                CauseId::EbpfStarts,
                why,
                "press w again in a second",
            ));
        }
        EbpfState::Disabled => {
            let remedy = "leave out --no-ebpf";
            return Err(Obstacle::new(CauseId::NoEbpf, "eBPF is switched off", remedy));
        }
        EbpfState::Unavailable(why) => {
            let cause = &why.cause;
            return Err(Obstacle::new(cause.id, cause.why.clone(), cause.remedy.clone()));
        }
    }
    let device = all
        .devices
        .iter()
        .find(|device| Some(device.uid) == qp.device_uid);
    if let Some(why) = device.and_then(why_unseen) {
        let remedy = step!(
            "on Linux 5.17 or later `sudo rdmatop --trace --event wr --uprobes --qpn {}` prints those of programs that use verbs",
            qp.qpn
        );
        return Err(Obstacle::new(CauseId::NotFollowed, why, remedy));
    }
    let mut filter = WrFilter::new_zeroed();
    filter.qpn = qp.qpn;
    filter.flags = WrFilter::QPN;
    if is_plain(&qp.device) && qp.device.len() < filter.device.len() {
        copy(&mut filter.device, &qp.device);
    }
    Ok(filter)
}

/// Why work requests of a device are not among the events.
fn why_unseen(device: &DeviceRow) -> Option<String> {
    match Counted::of_driver(device.driver.as_deref()?) {
        Some(counted) if counted.has_records => None,
        Some(counted) => Some(format!(
            "those of {} are only counted (`rdmatop --once`)",
            counted.name
        )),
        None => Some("programs post to it without entering the kernel".to_owned()),
    }
}

/// A line for each device whose work requests are not among the events, with the reason.
pub(super) fn unseen(plan: &Plan, all: &Snapshot) -> Vec<String> {
    let shown = |device: &&DeviceRow| {
        let asked = plan.filter.device.as_deref();
        asked.is_none_or(|name| name == &*device.name)
    };
    let line = |device: &DeviceRow| {
        let name = &device.name;
        let why = why_unseen(device)?;
        Some(if plan.uprobes.is_some() {
            format!(
                "rdmatop: work requests of {name} are seen by probes on programs that use verbs: ends as \
                 ibv_poll_cq and ibv_start_poll return them, and no posts of ibv_post_srq_recv or of calls of the \
                 provider's own"
            )
        } else {
            format!(
                "rdmatop: no work requests of {name}: {why}; on Linux 5.17 or later --uprobes prints those of programs \
                 that use verbs"
            )
        })
    };
    all.devices.iter().filter(shown).filter_map(line).collect()
}

/// Lines that say since when probes on programs see what is posted, and what they do not see, and why.
#[derive(Debug, Default)]
pub(super) struct ProbeLines {
    /// Programs are probed for work requests.
    pub(super) watches: bool,
    lines: BTreeSet<String>,
    functions: u64,
}

impl ProbeLines {
    /// No line was printed so far.
    pub(super) fn of(plan: &Plan) -> Self {
        Self {
            watches: plan.wants_work() && plan.uprobes.is_some(),
            ..Self::default()
        }
    }

    /// The lines that are new in this snapshot.
    pub(super) fn anew(&mut self, health: &Health) -> Vec<String> {
        let Some(report) = health.uprobes.as_ref().filter(|_| self.watches) else {
            return Vec::new();
        };
        let causes = report.off.iter().chain(&report.failures);
        let lines = causes.map(|cause| format!("rdmatop: {cause}"));
        let mut all: Vec<_> = lines.filter(|line| self.lines.insert(line.clone())).collect();
        if report.functions > self.functions {
            self.functions = report.functions;
            all.push(format!(
                "rdmatop: {} functions of programs are probed from now on",
                report.functions
            ));
        }
        all
    }
}

/// The last line about work requests: each that happened is among the events seen, left out or lost.
pub(super) fn summary(health: &Health, counts: EventCounts) -> Option<String> {
    let WorkRequests {
        happened,
        filtered,
        sampled_out,
    } = health.work?;
    let filtered = filtered + counts.work_filtered;
    let seen = counts.work - counts.work_filtered;
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
    // The share matters to who judges durations: only the other posts have them.
    let early = if counts.posts_without_thread > 0 {
        format!(
            "; {} of {} posts were found on the queue before their doorbell rang: they have no thread, and \
             their ends no duration",
            counts.posts_without_thread, counts.posts
        )
    } else {
        String::new()
    };
    Some(format!(
        "rdmatop: work requests: {happened} posts and ends happened, {seen} seen, {filtered} filtered out, {sampled_out} \
         sampled out, {} lost{why}{early}",
        full + missed
    ))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use std::sync::Arc;

    use super::*;
    use crate::app::plan::{Terminal, plan};
    use crate::cli::Cli;
    use rdmatop_model::cause::{CauseId, Concerns, Obstacle};
    use rdmatop_model::input::UprobesReport;
    use rdmatop_model::snapshot::Loss;
    use rdmatop_model::testkit;

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
    fn a_name_that_is_not_shown_as_the_kernel_has_it_is_filtered_later() {
        let comm = |name: &str| filtered(&["--event", "wr", "--comm", name], false).comm;
        assert_eq!(&comm("ib_send_bw")[..11], b"ib_send_bw\0");
        assert_eq!(&comm("all_reduce_perf_mpi"), b"all_reduce_perf\0");
        for name in ["[nvme_rdma]", "\\x1b[31m", "a b", "caf\u{e9}"] {
            assert_eq!(comm(name)[0], 0, "{name}");
        }
    }

    #[test]
    fn a_device_that_bypasses_the_kernel_is_named_and_softroce_is_not_advised() {
        let of = |args: &[&str], all: &Snapshot| {
            let cli = Cli::try_parse_from(["rdmatop", "--trace"].iter().chain(args)).unwrap();
            unseen(&plan(&cli, Terminal::default()).unwrap(), all)
        };
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
        let lines = of(&["--event", "wr"], &all);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert_eq!(
            lines[0],
            "rdmatop: no work requests of mlx5_0: programs post to it without entering the kernel; on Linux 5.17 or later \
             --uprobes prints those of programs that use verbs"
        );
        assert!(
            lines[1].contains("siw0") && !lines.concat().contains("SoftRoCE"),
            "{lines:?}"
        );
        let probed = of(&["--event", "wr", "--uprobes"], &all);
        assert!(
            probed[0].starts_with("rdmatop: work requests of mlx5_0 are seen by probes")
                && !probed[0].contains("--uprobes"),
            "{probed:?}"
        );
        assert_eq!(
            of(&["--event", "wr", "--device", "rxe0"], &all),
            [""; 0],
            "of other devices nothing was asked"
        );
    }

    #[test]
    fn what_probes_do_not_see_is_said_once() {
        let mut health = testkit::empty().facts.health;
        let cli = Cli::try_parse_from(["rdmatop", "--trace", "--event", "wr", "--uprobes"]).unwrap();
        let mut lines = ProbeLines::of(&plan(&cli, Terminal::default()).unwrap());
        assert_eq!(lines.anew(&health), [""; 0]);
        health.uprobes = Some(Arc::new(UprobesReport {
            functions: 3,
            ..UprobesReport::default()
        }));
        assert_eq!(
            lines.anew(&health),
            ["rdmatop: 3 functions of programs are probed from now on"]
        );
        assert_eq!(lines.anew(&health), [""; 0]);
        let cause = Obstacle::new(CauseId::NotProbed, "it does not use libibverbs", "")
            .takes("Not counted: work requests of process 7", Concerns::Host);
        health.uprobes = Some(Arc::new(UprobesReport {
            failures: vec![cause],
            ..UprobesReport::default()
        }));
        let first = lines.anew(&health);
        assert_eq!(first.len(), 1, "{first:?}");
        assert!(
            first[0].starts_with("rdmatop: Not counted: work requests of process 7: it does not"),
            "{first:?}"
        );
        assert_eq!(lines.anew(&health), [""; 0]);
    }

    #[test]
    fn a_watched_qp_is_chosen_by_device_and_number_or_refused_with_reason() {
        let mut all = testkit::full::snapshot();
        let mut qp = (*all.qps[0]).clone();
        (qp.device_uid, qp.device) = (Some(all.devices[0].uid), "rxe0".into());
        all.devices[0].driver = Some("rdma_rxe".into());
        all.health.ebpf = EbpfState::On {
            datapaths: rdmatop_model::input::DataPaths::default(),
        };
        let filter = watched(&qp, &all).unwrap();
        assert_eq!(
            (filter.qpn, filter.flags, filter.sample),
            (qp.qpn, WrFilter::QPN, 0)
        );
        assert_eq!(&filter.device[..5], b"rxe0\0");
        all.devices[0].driver = Some("mlx5_core".into());
        let why = watched(&qp, &all).unwrap_err().why;
        assert_eq!(why, "programs post to it without entering the kernel");
        let no_right = Obstacle::new(CauseId::NoCapability, "no right", "sudo");
        for (state, why) in [
            (EbpfState::Disabled, "switched off"),
            (EbpfState::Starting, "being attached"),
            (EbpfState::unavailable(no_right), "no right"),
        ] {
            all.health.ebpf = state;
            assert!(watched(&qp, &all).unwrap_err().why.contains(why));
        }
    }

    #[test]
    fn the_last_line_adds_up() {
        let mut health = testkit::empty().facts.health;
        let seen = |work, work_filtered| EventCounts {
            work,
            work_filtered,
            ..EventCounts::default()
        };
        assert_eq!(summary(&health, seen(0, 0)), None);
        health.work = Some(WorkRequests {
            happened: 100,
            filtered: 20,
            sampled_out: 30,
        });
        let line = summary(&health, seen(53, 3)).unwrap();
        assert_eq!(
            line,
            "rdmatop: work requests: 100 posts and ends happened, 50 seen, 23 filtered out, 30 sampled out, 0 lost"
        );
        health.losses = vec![Loss {
            at: "wr_ring",
            count: 7,
            records: true,
        }];
        let line = summary(&health, seen(43, 0)).unwrap();
        assert!(
            line.ends_with("43 seen, 20 filtered out, 30 sampled out, 7 lost (ring full 7, not seen 0)"),
            "{line}"
        );
        let early = EventCounts {
            posts: 20,
            posts_without_thread: 5,
            ..seen(43, 0)
        };
        let line = summary(&health, early).unwrap();
        assert!(
            line.contains(" 7 lost (ring full 7, not seen 0); 5 of 20 posts were found"),
            "{line}"
        );
    }
}
