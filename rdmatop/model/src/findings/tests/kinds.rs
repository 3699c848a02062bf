//! Tests of all kinds: their page, the tests that prove each, and that none is raised and cleared faster than
//! it declares.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::super::{About, Change, Finding, FindingId, FindingTracker, Limits, Severity};
use super::S;
use crate::testkit;

/// The machine on which a test runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum On {
    /// A real kernel with SoftRoCE and what programs do there.
    Traffic,
    /// A real kernel with a driver whose ports and counters a test sets.
    Driver,
}

impl On {
    const fn name(self) -> &'static str {
        match self {
            Self::Traffic => "real kernel, real traffic",
            Self::Driver => "real kernel, test driver",
        }
    }
}

/// The test that causes each finding on the most realistic system available, as `file::test`.
const PROOFS: &[(FindingId, On, &str)] = &[
    (
        FindingId::ReceiverNotReady,
        On::Traffic,
        "findings::a_receiver_that_is_stopped_is_named_and_not_its_sender",
    ),
    (
        FindingId::PeerGone,
        On::Traffic,
        "findings::a_peer_that_was_killed_is_missed_by_its_sender",
    ),
    (
        FindingId::QpError,
        On::Traffic,
        "findings::completions_without_room_and_work_requests_that_fail_are_named",
    ),
    (
        FindingId::QpSetup,
        On::Traffic,
        "findings::qps_that_nobody_connects_are_found_by_state_alone",
    ),
    (
        FindingId::CompletionError,
        On::Traffic,
        "findings::completions_without_room_and_work_requests_that_fail_are_named",
    ),
    (
        FindingId::CqOverflow,
        On::Traffic,
        "findings::completions_without_room_and_work_requests_that_fail_are_named",
    ),
    (
        FindingId::SendQueueFull,
        On::Traffic,
        "findings::a_program_that_posts_to_a_queue_without_room_is_named",
    ),
    (
        FindingId::LatencyRises,
        On::Traffic,
        "findings::work_requests_on_a_path_that_becomes_slow_are_named",
    ),
    (
        FindingId::VerbFails,
        On::Traffic,
        "findings::what_a_process_does_wrong_is_named",
    ),
    (
        FindingId::CgroupLimit,
        On::Traffic,
        "findings::a_cgroup_that_may_have_no_more_objects_is_named_with_its_limit",
    ),
    (
        FindingId::TcpFallback,
        On::Traffic,
        "findings::a_job_on_tcp_is_named_and_what_it_moves_is_counted_to_the_byte",
    ),
    (
        FindingId::MrChurn,
        On::Traffic,
        "findings::what_a_process_does_wrong_is_named",
    ),
    (
        FindingId::MrGrowth,
        On::Traffic,
        "findings::a_process_that_only_registers_memory_is_named",
    ),
    (
        FindingId::MapCount,
        On::Traffic,
        "findings::a_process_that_has_nearly_all_mappings_that_it_may_is_named",
    ),
    (
        FindingId::Headroom,
        On::Driver,
        "testnic_findings::a_card_that_runs_out_of_queue_pairs_is_named_with_who_has_them",
    ),
    (
        FindingId::QpChurn,
        On::Traffic,
        "findings::what_a_process_does_wrong_is_named",
    ),
    (
        FindingId::QpLeak,
        On::Traffic,
        "findings::what_a_process_does_wrong_is_named",
    ),
    (
        FindingId::PortDown,
        On::Traffic,
        "findings::a_port_that_goes_down_under_qps_and_a_removal_that_waits",
    ),
    (
        FindingId::PortSlow,
        On::Driver,
        "testnic_findings::what_a_card_with_qps_can_have_is_found_and_over_when_mended",
    ),
    (
        FindingId::LinkErrors,
        On::Driver,
        "testnic_findings::link_errors_congestion_and_refused_commands_are_found_on_their_cards",
    ),
    (
        FindingId::RequestsFail,
        On::Driver,
        "testnic_findings::link_errors_congestion_and_refused_commands_are_found_on_their_cards",
    ),
    (
        FindingId::LinkFlaps,
        On::Traffic,
        "findings::a_port_that_goes_down_three_times_flaps",
    ),
    (
        FindingId::LinkFlaps,
        On::Driver,
        "testnic_findings::links_that_go_down_again_and_again_flap_by_state_or_by_counter",
    ),
    (
        FindingId::Loss,
        On::Traffic,
        "lab_scenarios::each_scenario_shows_the_finding_that_it_teaches",
    ),
    (
        FindingId::Congestion,
        On::Driver,
        "testnic_findings::link_errors_congestion_and_refused_commands_are_found_on_their_cards",
    ),
    (
        FindingId::IbCongestion,
        On::Driver,
        "testnic_findings::link_errors_congestion_and_refused_commands_are_found_on_their_cards",
    ),
    (
        FindingId::PauseStorm,
        On::Driver,
        "testnic_findings::what_a_card_with_qps_can_have_is_found_and_over_when_mended",
    ),
    (
        FindingId::TrafficClass,
        On::Driver,
        "testnic_findings::what_a_card_with_qps_can_have_is_found_and_over_when_mended",
    ),
    (
        FindingId::HotPort,
        On::Traffic,
        "findings::one_device_of_four_that_carries_all_is_hot",
    ),
    (
        FindingId::RailsIdle,
        On::Traffic,
        "findings::two_of_four_devices_that_carry_a_job_leave_the_others_idle",
    ),
    (
        FindingId::RxFunnel,
        On::Traffic,
        "lab_scenarios::scenarios_of_troubles_that_other_tests_make_show_their_findings",
    ),
    (
        FindingId::PortContention,
        On::Traffic,
        "findings::a_process_with_one_qp_beside_one_with_sixteen_is_named",
    ),
    (
        FindingId::FarNic,
        On::Driver,
        "testnic_gpu::a_nic_far_from_the_gpu_of_its_only_user_is_named",
    ),
    (
        FindingId::NoGpuDirect,
        On::Driver,
        "testnic_gpu::a_process_that_registers_no_memory_of_its_gpu_is_named",
    ),
    (
        FindingId::LagImbalance,
        On::Traffic,
        "findings::a_bond_of_which_one_link_has_all_and_one_that_lost_a_link",
    ),
    (
        FindingId::LagDegraded,
        On::Traffic,
        "findings::a_bond_of_which_one_link_has_all_and_one_that_lost_a_link",
    ),
    (
        FindingId::SmallMtu,
        On::Driver,
        "testnic_findings::what_a_card_with_qps_can_have_is_found_and_over_when_mended",
    ),
    (
        FindingId::PcieSlow,
        On::Driver,
        "testnic_findings::what_a_card_with_qps_can_have_is_found_and_over_when_mended",
    ),
    (
        FindingId::RoceV1,
        On::Driver,
        "testnic_findings::what_a_card_with_qps_can_have_is_found_and_over_when_mended",
    ),
    (
        FindingId::SetupSlow,
        On::Traffic,
        "findings::peers_that_answer_late_make_connections_slow",
    ),
    (
        FindingId::AdminErrors,
        On::Driver,
        "testnic_findings::link_errors_congestion_and_refused_commands_are_found_on_their_cards",
    ),
    (
        FindingId::DriverErrors,
        On::Driver,
        "testnic::an_error_that_a_driver_logs_is_a_finding_of_its_device",
    ),
    (
        FindingId::Removal,
        On::Traffic,
        "findings::a_port_that_goes_down_under_qps_and_a_removal_that_waits",
    ),
];

/// What differs from a real machine, besides the driver.
const WHY_NOT: &[(FindingId, &str)] = &[(FindingId::PcieSlow, "the slot is QEMU's")];

/// Whether `--trace` can show a finding, for the table of the page. The compiler asks for each new kind.
pub(super) const fn in_a_trace(id: FindingId) -> &'static str {
    match id {
        // It needs counters of QPs. A trace has only those of ports, so it names a port, seldom a process.
        FindingId::ReceiverNotReady => "of ports",
        // They need counts of work requests or completions, readings of GPUs, or lists of mappings, which a
        // trace does not take.
        FindingId::PeerGone
        | FindingId::CompletionError
        | FindingId::CqOverflow
        | FindingId::SendQueueFull
        | FindingId::LatencyRises
        | FindingId::MapCount
        | FindingId::QpLeak
        | FindingId::PortContention
        | FindingId::FarNic
        | FindingId::NoGpuDirect => "no",
        FindingId::QpError
        | FindingId::QpSetup
        | FindingId::VerbFails
        | FindingId::CgroupLimit
        | FindingId::TcpFallback
        | FindingId::MrChurn
        | FindingId::MrGrowth
        | FindingId::Headroom
        | FindingId::QpChurn
        | FindingId::PortDown
        | FindingId::PortSlow
        | FindingId::LinkErrors
        | FindingId::RequestsFail
        | FindingId::LinkFlaps
        | FindingId::Loss
        | FindingId::Congestion
        | FindingId::IbCongestion
        | FindingId::PauseStorm
        | FindingId::TrafficClass
        | FindingId::HotPort
        | FindingId::RailsIdle
        | FindingId::RxFunnel
        | FindingId::LagImbalance
        | FindingId::LagDegraded
        | FindingId::SmallMtu
        | FindingId::PcieSlow
        | FindingId::RoceV1
        | FindingId::SetupSlow
        | FindingId::AdminErrors
        | FindingId::DriverErrors
        | FindingId::Removal => "yes",
    }
}

/// Returns the table of the page that says how each finding is proven.
fn proven() -> String {
    let mut page = "
## How each is proven

The test that brings each about, on the most real thing that there is for it. In each of them nothing else is found, apart from what the
test names. The healthy neighbour of each is in the unit tests of `rdmatop/model/src/findings/tests`; healthy traffic on a real kernel
(`findings::healthy_traffic_has_no_findings`), healthy cards (`testnic_findings::cards_that_are_well_have_no_findings`), and an hour of
each program of perftest and of a job on eight NICs, second by second (`hour`), have none.

| finding | proven on | test |
|---|---|---|
"
    .to_owned();
    for id in FindingId::ALL {
        for (_, on, test) in PROOFS.iter().filter(|(of, ..)| of == id) {
            let why = WHY_NOT.iter().find(|(of, _)| of == id);
            let why = why.map(|(_, why)| format!(": {why}")).unwrap_or_default();
            let _ = writeln!(page, "| `{}` | {}{why} | `{test}` |", id.name(), on.name());
        }
    }
    page
}

/// Rust files below `dir`.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn each_finding_is_proven_on_a_real_kernel_by_a_test_that_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut kernel = Vec::new();
    sources(&root.join("tests/tests"), &mut kernel);
    for (id, _, proof) in PROOFS {
        let (file, test) = proof.split_once("::").unwrap();
        let has = kernel.iter().any(|path| {
            let named = path.with_extension("");
            let named = named.components().any(|part| part.as_os_str() == file);
            named
                && std::fs::read_to_string(path)
                    .unwrap()
                    .contains(&format!("fn {test}("))
        });
        assert!(has, "{}: there is no test {proof}", id.name());
    }
    let all: BTreeSet<_> = PROOFS.iter().map(|(id, ..)| *id).collect();
    assert_eq!(all, FindingId::ALL.iter().copied().collect());
}

/// Makes docs/findings.md from the table of kinds. The rule of a kind, and where it is from, are written in
/// that page by hand.
#[test]
fn the_document_lists_every_kind_with_its_rule() {
    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/findings.md");
    let written = std::fs::read_to_string(PAGE).unwrap();
    let mut page = "\
# Findings

What rdmatop looks for, in each sample. `cargo test` writes this page anew with `RDMATOP_WRITE_DOCS=1`, but for the columns *raised
when* and *from*.

A symptom becomes a finding when it was there as long as *raised after* says, in one piece or in several, within two and a half
times as long; 0 s is at once. So the symptom of a job that works in bursts has to be there
40 % of the time. A finding is cleared when its symptom stays away as long as *cleared after* says, which is one and a
half times *raised after* or more: nothing is raised again within that window. A rule whose inputs are unknown (no eBPF, no such counter) says nothing: the notes
name what is missing. The live view shows the worst finding above its tables and all of them on tab 7; `--once` and `--json`
have them too; `rdmatop check` looks for 12 s and ends with 0 (found nothing), 1 (warnings), 2 (critical) or 3 (could not
look). Until the rules of bursts had their 30 s it says `ok so far`. Rules that need longer are named behind the verdict, with their seconds (`--for`). Where eBPF was wanted and
is not there (an ordinary user), and nothing is wrong in ports and states of QPs, its verdict is `unknown` and it ends with 3; with `--no-ebpf` it judges these alone. The live view says `Looking` for 30 s, in which every rule
had its window, before it says that no trouble is found.

A finding is `critical` (something does not work), a `warning` (it works worse than it could) or `info`: it may be meant so. `check`
ends with 0 where there is no other, and it is never above one that is worse.

The first finding is the headline of each view. Of equally bad ones it is the one that is most likely the cause, and new. Last are those that
stand for days, because a setting, a slot, a cable, the place of a GPU or the size of a process makes them so, if they were there when rdmatop
began to look, or have lasted an hour: @stands@.
The others are in episodes, the newest first: each of an episode began within five minutes after the one before. Within an episode, what is
about a port or a device is before what is about a process, and then the first is first. What is about a process is behind each equally bad
finding of a port or a device that it uses or suffers from, however old that is: a port that is down is before the QPs that a new job loses on
it. The order changes when a finding begins, ends, becomes worse or less bad, concerns other processes, or has stood for an hour.

`--trace` prints a line when a finding is raised (`finding_raise`) and when it is cleared (`finding_clear`), unless `--event`
names other kinds of events. It reads ports, states and calls every two seconds, and counts no work requests: the column
*trace* says what it can find.

`no-gpudirect` speaks only where no way to GPU memory is left unseen. Plain `reg_mr` registers it too, with a peer memory module (nvidia_peermem), with
amzn-drivers' efa and where GPU and CPU share page tables (GH200, GB10): there it is silent, as on every machine that is not x86-64. All other ways, of
whichever driver and call (`reg_dmabuf_mr`, `reg_mr` from Linux 6.17 on, mlx5's `devx_umem_reg`), map a DMA-BUF, which a hook sees. It proves that nothing
can come from the GPU directly, and not that something should: who loads data may have nothing of the GPU to send, which is why it is information.
`rdmatop doctor` says of a machine what the direct way needs (`gpu.direct`), and `rdmatop nccl-log` which way NCCL took.

| finding | raised when | raised, cleared after | trace | from | why it matters | fixed when |
|---|---|---|---|---|---|---|
"
    .to_owned();
    let stands = FindingId::ALL.iter().filter(|id| id.stands());
    let stands: Vec<_> = stands.map(|id| format!("`{}`", id.name())).collect();
    page = page.replace("@stands@", &stands.join(", "));
    for id in FindingId::ALL {
        let kind = id.kind();
        let begin = format!("| `{}` | ", kind.name);
        let row = written.lines().find_map(|line| line.strip_prefix(&begin));
        let cells: Vec<_> = row
            .unwrap_or_default()
            .trim_end_matches(" |")
            .split(" | ")
            .collect();
        let (rule, source) = (cells[0], cells.get(3).copied().unwrap_or_default());
        assert!(
            !rule.is_empty() && !source.is_empty(),
            "write by hand into docs/findings.md: {begin}RULE |  |  | SOURCE |"
        );
        let _ = writeln!(
            page,
            "| `{}` | {} | {} s, {} s | {} | {} | {} | {} |",
            kind.name,
            rule,
            kind.raise_s,
            kind.clear_s,
            in_a_trace(*id),
            source,
            kind.why,
            kind.fixed
        );
    }
    page.push_str(&proven());
    page.push_str(
        "
## Limits

The numbers in the rules above are defaults. The settings file ([config.md](config.md)) may have others, which the live view,
`--once`, `check` and `--trace` use; times of raising and clearing are fixed.

```toml
[findings]
mr_per_s = 500
```

| key | default | what it is |
|---|---|---|
",
    );
    for (limit, default) in Limits::TABLE.iter().zip(Limits::default().values()) {
        let _ = writeln!(page, "| `{}` | {default} | {} |", limit.name, limit.what);
    }
    if std::env::var_os("RDMATOP_WRITE_DOCS").is_some() {
        std::fs::write(PAGE, &page).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(PAGE).unwrap_or_default(),
        page,
        "RDMATOP_WRITE_DOCS=1 writes it anew"
    );
}

/// A symptom of a kind on one of two devices.
fn symptom(id: FindingId, device: u64, since_ns: u64, critical: bool) -> Finding {
    Finding {
        severity: Severity::critical_if(critical),
        ..Finding::of(id, About::of_device(device), since_ns)
    }
}

/// How long a symptom was present within a window, from the looks that showed it.
#[derive(Clone, Default)]
struct Held {
    spans: Vec<(u64, u64)>,
    shown: bool,
}

impl Held {
    fn look(&mut self, before: Option<u64>, now: u64, since: Option<u64>) {
        let shown_before = std::mem::replace(&mut self.shown, since.is_some());
        if let Some(since) = since {
            let from = match before {
                Some(before) if shown_before => before,
                Some(before) => before.max(since),
                None => since,
            };
            self.spans.push((from.min(now), now));
        }
    }

    fn within(&self, begin: u64) -> u64 {
        let spans = self.spans.iter();
        spans.map(|(from, to)| to.saturating_sub(*from.max(&begin))).sum()
    }
}

proptest! {
    /// However symptoms of all kinds come and go on two devices: a symptom is raised as soon as it was
    /// present for the raise time within the window, and no sooner; it is cleared once it was absent for as
    /// long as its kind says; raising and clearing alternate, at most once per window.
    #[test]
    fn no_kind_comes_and_goes_faster_than_it_says(
        looks in prop::collection::vec((1_u64..15_000, any::<u64>(), any::<u64>(), 0_u64..5_000, any::<bool>()), 1..120),
        often in any::<bool>(),
    ) {
        let mut watch = FindingTracker::default();
        let mut s = testkit::empty();
        let mut last: BTreeMap<(FindingId, u64), (bool, u64)> = BTreeMap::new();
        let mut raised_at: BTreeMap<(FindingId, u64), u64> = BTreeMap::new();
        let mut held: BTreeMap<(FindingId, u64), Held> = BTreeMap::new();
        let mut before = None;
        for (ms, first, second, ago, critical) in looks {
            let mut symptoms = Vec::new();
            let since = s.mono_ns.saturating_sub(ago * 1_000_000);
            for (at, id) in FindingId::ALL.iter().enumerate() {
                for (device, bits) in [(1, first), (2, second)] {
                    let shown = bits >> (at % 64) & 1 == 1;
                    held.entry((*id, device)).or_default().look(before, s.mono_ns, shown.then_some(since));
                    if shown {
                        symptoms.push(symptom(*id, device, since, critical));
                    }
                }
            }
            let found = watch.follow(&s, &s.judgement, symptoms);
            for change in watch.take_changes() {
                let (finding, raised) = match &change {
                    Change::Raised(finding) => (finding, true),
                    Change::Cleared(finding) => (finding, false),
                };
                prop_assert_eq!(found.iter().any(|f| f.id == finding.id && f.about == finding.about), raised);
                let kind = finding.id.kind();
                let key = (finding.id, finding.about.device.unwrap());
                if raised {
                    if let Some(at) = raised_at.insert(key, s.mono_ns) {
                        prop_assert!(s.mono_ns - at >= kind.window_ns(), "{} raised twice in a window", kind.name);
                    }
                } else {
                    held.insert(key, Held::default());
                }
                if let Some((was, at)) = last.insert(key, (raised, s.mono_ns)) {
                    prop_assert_ne!(was, raised, "raised twice, or cleared twice");
                    let least = if raised { kind.raise_s } else { kind.clear_s };
                    prop_assert!(s.mono_ns - at >= least * S, "{} after {} ns", kind.name, s.mono_ns - at);
                } else {
                    prop_assert!(raised);
                }
            }
            for ((id, device), held) in &held {
                let enough = held.within(s.mono_ns.saturating_sub(id.kind().window_ns())) >= id.kind().raise_s * S;
                let is_found = found.iter().any(|f| f.id == *id && f.about.device == Some(*device));
                let was_raised = last.get(&(*id, *device)).is_some_and(|(raised, at)| *raised && *at < s.mono_ns);
                prop_assert!(was_raised || is_found == (enough && held.shown), "{}: {enough} {is_found}", id.name());
            }
            before = Some(s.mono_ns);
            s.mono_ns += if often { ms.div_ceil(10) } else { ms } * 1_000_000;
        }
    }
}

#[test]
fn a_symptom_in_bursts_is_raised_by_its_share_and_never_flaps() {
    const LOOKS: u64 = 240;
    for on in [1, 2, 3, 5, 8, 13, 21] {
        for off in [1, 2, 3, 5, 8, 13, 21, 34] {
            let mut watch = FindingTracker::default();
            let mut s = testkit::empty();
            let mut raises: BTreeMap<FindingId, u64> = BTreeMap::new();
            for look in 0..LOOKS {
                let shown = look % (on + off) < on;
                let since = s.mono_ns - S;
                let symptoms = FindingId::ALL.iter().map(|id| symptom(*id, 1, since, false));
                watch.follow(&s, &s.judgement, symptoms.filter(|_| shown).collect());
                for change in watch.take_changes() {
                    if let Change::Raised(finding) = change {
                        *raises.entry(finding.id).or_default() += 1;
                    }
                }
                s.mono_ns += S;
            }
            for id in FindingId::ALL {
                let kind = id.kind();
                let raised = raises.get(id).copied().unwrap_or(0);
                let window = kind.raise_s * 5 / 2;
                // The largest part that a window of whole seconds can contain.
                let shown = |second: u64| second % (on + off) < on;
                let most =
                    (0..on + off).map(|begin| (begin..begin + window).filter(|at| shown(*at)).count() as u64);
                let enough = most.max() >= Some(kind.raise_s);
                let what = format!("{}: {on} s on, {off} s off: {raised}", kind.name);
                assert_eq!(raised > 0, enough, "{what}");
                assert!(raised <= 1 || off >= kind.clear_s, "{what}");
                assert!(window == 0 || raised <= LOOKS / window + 1, "{what}");
            }
        }
    }
}

#[test]
fn what_is_cleared_had_less_in_its_window_than_what_raises() {
    for id in FindingId::ALL {
        let kind = id.kind();
        assert!(2 * kind.clear_s >= 3 * kind.raise_s, "{}", kind.name);
    }
}
