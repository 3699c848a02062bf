//! The goals: which measured numbers are compared, and the limit of each. Pure functions.

use super::math::{Unit, line, show};
use super::raw::Raw;
use super::row::{Limit, Reading, Row};

/// All goals, in order.
pub(crate) const ALL: [&str; 10] = ["G1", "G2", "G3", "G4", "G5", "G6", "G7", "G8", "G9", "G10"];

/// What is known about the run besides the guest's numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    /// Whether a peer tool was given.
    pub(crate) peer: bool,
    /// Number of devices in the stage with many devices.
    pub(crate) devices: u32,
}

/// Returns the rows of the chosen goals.
pub(crate) fn rows(raw: &Raw, context: Context, wanted: &[String]) -> Vec<Row> {
    let numbers = Numbers { raw, context };
    let mut rows = numbers.idle();
    rows.extend(numbers.per_qp());
    rows.extend(numbers.per_process());
    rows.extend(numbers.per_device());
    rows.extend(numbers.posts());
    rows.extend(numbers.events());
    rows.extend(numbers.storms());
    rows.extend(numbers.starts());
    rows.extend(numbers.memory());
    rows.retain(|row| wanted.iter().any(|goal| goal == row.goal));
    rows
}

struct Numbers<'a> {
    raw: &'a Raw,
    context: Context,
}

const VIEWS: [(&str, &str); 2] = [("ebpf", "live"), ("noebpf", "--no-ebpf")];

/// The two ways in which the kernel enters rdmatop's trace programs.
const MODES: [&str; 2] = ["kprobe", "fentry"];

impl Numbers<'_> {
    fn get(&self, name: &str) -> Reading {
        // A view that could not load its programs works from netlink: its numbers belong to the other row.
        if name.starts_with("ebpf.")
            && self
                .raw
                .get("ebpf_programs")
                .is_ok_and(|programs| programs == 0.0)
        {
            return Err("rdmatop attached no eBPF program".to_owned());
        }
        self.raw.get(name)
    }

    fn peer(&self, name: &str) -> Reading {
        if self.context.peer {
            self.get(name)
        } else {
            Err("no peer given: --peer PATH".to_owned())
        }
    }

    fn difference(&self, more: &str, less: &str) -> Reading {
        Ok(self.get(more)? - self.get(less)?)
    }

    fn idle(&self) -> Vec<Row> {
        let row = |(view, name): (&str, &str)| Row {
            goal: "G1",
            formula: format!("{name}, 160x50, 1 device, 0 QPs / peer"),
            unit: Unit::InsnPerSecond,
            ours: self.get(&format!("{view}.idle.cpu")),
            base: self.peer("peer.idle.cpu"),
            recorded: Some("13.8 M/s"),
            limit: Limit::RatioAtMost(0.1),
        };
        VIEWS.into_iter().map(row).collect()
    }

    fn per_qp(&self) -> Vec<Row> {
        let row = |goal, (view, name): (&str, &str), limit| Row {
            goal,
            formula: format!("{name}: [C(10k QPs) - C(0)] / one dump{}", self.fit(view)),
            unit: Unit::Insn,
            ours: self.difference(&format!("{view}.q10000.cpu"), &format!("{view}.idle.cpu")),
            base: self.get("floor.q10000.qps"),
            recorded: Some("68.3 M"),
            limit: Limit::RatioAtMost(limit),
        };
        vec![row("G2", VIEWS[1], 1.3), row("G3", VIEWS[0], 0.05)]
    }

    /// Says the slope of the line through the numbers for all QP counts.
    fn fit(&self, view: &str) -> String {
        let points: Vec<(f64, f64)> = [(0.0, "idle"), (1000.0, "q1000"), (10_000.0, "q10000")]
            .into_iter()
            .filter_map(|(qps, load)| Some((qps, self.get(&format!("{view}.{load}.cpu")).ok()?)))
            .collect();
        if points.len() < 3 {
            return String::new();
        }
        line(&points).map_or_else(String::new, |(slope, _)| format!(" (fit: {slope:.0} per QP)"))
    }

    fn per_process(&self) -> Vec<Row> {
        let slope = |view: &str| {
            let rise = self.difference(&format!("{view}.p100.cpu"), &format!("{view}.p1.cpu"));
            rise.map(|rise| rise / 99.0)
        };
        let row = |(view, name): (&str, &str)| Row {
            goal: "G4",
            formula: format!("{name}: [C(100 processes) - C(1)] / 99, 1000 QPs; peer"),
            unit: Unit::Insn,
            ours: slope(view),
            base: self.peer("peer.p100.cpu").and_then(|_| slope("peer")),
            recorded: Some("245 k"),
            limit: Limit::AtMost(60_000.0),
        };
        VIEWS.into_iter().map(row).collect()
    }

    fn per_device(&self) -> Vec<Row> {
        let devices = f64::from(self.context.devices);
        let floor = || -> Reading {
            let list = self.get("floor.many.devices")? / devices;
            Ok(self.get("floor.many.stat")? + self.get("floor.many.port")? + list)
        };
        let row = |(view, name): (&str, &str)| Row {
            goal: "G5",
            formula: format!(
                "{name}: [C({devices} devices) - C(1)] / {} / (STAT + PORT + share of the list)",
                devices - 1.0
            ),
            unit: Unit::Insn,
            ours: self
                .difference(&format!("{view}.many.cpu"), &format!("{view}.idle.cpu"))
                .map(|rise| rise / (devices - 1.0)),
            base: floor(),
            recorded: Some("51.0 k"),
            limit: Limit::RatioAtMost(1.5),
        };
        VIEWS.into_iter().map(row).collect()
    }

    fn posts(&self) -> Vec<Row> {
        let row = |how: &str, limit| {
            let bpftrace = if how == "fentry" { "kfunc" } else { how };
            // The clock that times a post is subtracted: it is no part of the cost and would flatter the
            // ratio.
            let cost = |name: &str| self.difference(&format!("post.{name}"), "post.clock");
            let compare = cost(&format!("bpftrace_{bpftrace}"));
            let mut compare: Vec<String> = compare
                .map(|cost| format!("bpftrace {bpftrace} count: {cost:.0}"))
                .into_iter()
                .collect();
            // `--verb-times` has no limit, because the user asks for its cost.
            if how == "kprobe"
                && let Ok(cost) = cost("verb_times")
            {
                compare.push(format!("with --verb-times: {cost:.0}"));
            }
            let compare = if compare.is_empty() {
                String::new()
            } else {
                format!(" ({})", compare.join("; "))
            };
            Row {
                goal: "G6",
                formula: format!("ibv_post_send traced by {how} / untraced{compare}"),
                unit: Unit::Insn,
                ours: cost(how),
                base: cost("none"),
                recorded: Some("3114"),
                limit: Limit::RatioAtMost(limit),
            }
        };
        vec![row("fentry", 1.10), row("kprobe", 1.20)]
    }

    fn events(&self) -> Vec<Row> {
        let extra = |who: &str| self.difference(&format!("event.producer.{who}"), "event.producer.none");
        let row = |formula: String, ours, base, recorded, limit| Row {
            goal: "G7",
            formula,
            unit: Unit::Insn,
            ours,
            base,
            recorded: Some(recorded),
            limit: Limit::RatioAtMost(limit),
        };
        let tracer = |mode| {
            row(
                format!("tracer's CPU per printed event, by {mode} / bpftrace printf"),
                self.get(&format!("event.{mode}.tracer")),
                self.get("event.bpftrace.tracer"),
                "23.0 k",
                0.3,
            )
        };
        let traced = |mode| {
            row(
                format!("traced program's extra per event, by {mode} / under bpftrace printf"),
                extra(mode),
                extra("bpftrace"),
                "2570",
                0.9,
            )
        };
        MODES.map(tracer).into_iter().chain(MODES.map(traced)).collect()
    }

    fn storms(&self) -> Vec<Row> {
        MODES.into_iter().flat_map(|mode| self.storm(mode)).collect()
    }

    /// Three rows have the limit of 0.65, because no single one covers what it means.
    ///
    /// * The CPU time of the producers covers a machine where the tracer runs on a CPU that nobody else
    ///   needs: the producer then pays only for the programs that it runs into. This is measured in a guest
    ///   with one CPU, whose scheduler knows whether tracer or producer ran. With two CPUs on one emulated
    ///   core, both clocks run while either CPU executes, so the producer's would include the tracer's work.
    ///   One row has all kinds of events, another only the events of QPs.
    /// * The elapsed time of the storm, with tracer and producers on one core, covers a machine that is full.
    ///   It includes the CPU time of both, and is the row to compare with figures of other tracers.
    fn storm(&self, mode: &str) -> Vec<Row> {
        let row = |formula: &str, unit, ours, base, limit| Row {
            goal: "G8",
            formula: format!("by {mode}: {formula}"),
            unit,
            ours,
            base,
            recorded: None,
            limit,
        };
        let lost = |name: &str| self.get(&format!("storm.{name}.lost"));
        let told = |name: &str| Ok(self.get(&format!("storm.{name}.lines"))? + lost(name)?);
        let happened = |name: &str| self.get(&format!("storm.{name}.happened"));
        let inverse = |name: &str| Ok(1e9 / self.get(name)?);
        let (tiny, fifo) = (format!("{mode}_tiny"), format!("{mode}_fifo"));
        vec![
            row(
                "lost of 200 000 QP events, 4 threads; bpftrace",
                Unit::Count,
                lost(mode),
                lost("bpftrace"),
                Limit::AtMost(0.0),
            ),
            row(
                "printed + lost; happened",
                Unit::Count,
                told(mode),
                happened(mode),
                Limit::Equal,
            ),
            row(
                "events per second traced / untraced, tracer and producers on one core",
                Unit::Count,
                inverse(&format!("storm.{mode}.elapsed")),
                inverse("storm.none.elapsed"),
                Limit::RatioAtLeast(0.65),
            ),
            row(
                "events per second of the producers' own CPU, traced / untraced",
                Unit::Count,
                inverse(&format!("producers.{mode}.cpu")),
                inverse("producers.none.cpu"),
                Limit::RatioAtLeast(0.65),
            ),
            row(
                "the same with --event qp, as bpftrace is asked: verb calls are not entered",
                Unit::Count,
                inverse(&format!("producers.{mode}_qp.cpu")),
                inverse("producers.none.cpu"),
                Limit::RatioAtLeast(0.65),
            ),
            row(
                "10 000 QP events with a ring of 8 KiB: printed + lost; happened",
                Unit::Count,
                told(&tiny),
                happened(&tiny),
                Limit::Equal,
            ),
            row(
                "lost of 40 000 QP events under SCHED_FIFO",
                Unit::Count,
                lost(&fifo),
                Err("none".to_owned()),
                Limit::AtMost(0.0),
            ),
        ]
    }

    fn starts(&self) -> Vec<Row> {
        let row = |formula: &str, unit, ours, base, recorded, limit| Row {
            goal: "G9",
            formula: formula.to_owned(),
            unit,
            ours,
            base,
            recorded: Some(recorded),
            limit: Limit::RatioAtMost(limit),
        };
        vec![
            row(
                "live: time to the first row / peer",
                Unit::Nanos,
                self.get("start.ebpf.wall"),
                self.peer("start.peer.wall"),
                "227 ms",
                0.1,
            ),
            row(
                "live: CPU to the first row / peer",
                Unit::Insn,
                self.get("start.ebpf.cpu"),
                self.peer("start.peer.cpu"),
                "23.3 M",
                1.0,
            ),
            row(
                "--trace: time to the first event / bpftrace kprobe",
                Unit::Nanos,
                self.get("first_event.ours.wall"),
                self.get("first_event.bpftrace_kprobe.wall"),
                "787 ms",
                0.25,
            ),
            row(
                "--trace: CPU to the first event / bpftrace kprobe",
                Unit::Insn,
                self.get("first_event.ours.cpu"),
                self.get("first_event.bpftrace_kprobe.cpu"),
                "698 M",
                0.25,
            ),
        ]
    }

    fn memory(&self) -> Vec<Row> {
        let row = |formula, ours, limit| Row {
            goal: "G10",
            formula,
            unit: Unit::Bytes,
            ours,
            base: self.peer("peer.q10000.rss"),
            recorded: Some("6.40 MB"),
            limit,
        };
        let of = |view: &str, what: &str| self.get(&format!("{view}.q10000.{what}"));
        let told = |what: &str, bytes: Reading| {
            bytes.map_or_else(
                |_| String::new(),
                |bytes| format!(" ({what}: {})", show(bytes, Unit::Bytes)),
            )
        };
        let own = |(view, name): (&str, &str)| {
            let anonymous = told("anonymous", of(view, "anon"));
            row(
                format!("{name}: RSS at 10k QPs less the eBPF maps mapped into it / peer{anonymous}"),
                self.difference(&format!("{view}.q10000.rss"), &format!("{view}.q10000.maps")),
                Limit::RatioAtMost(3.0),
            )
        };
        let (view, name) = VIEWS[0];
        let maps = told("maps", of(view, "maps"));
        let with_maps = row(
            format!("{name}: RSS at 10k QPs, the mapped eBPF maps included / peer{maps}"),
            of(view, "rss"),
            Limit::Shown,
        );
        let [live, plain] = VIEWS.map(own);
        vec![live, with_maps, plain]
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::Verdict;
    use super::*;

    fn raw(values: &[(&str, f64)]) -> Raw {
        let mut raw = Raw::default();
        raw.values
            .extend(values.iter().map(|(name, value)| ((*name).to_owned(), *value)));
        raw
    }

    fn of(raw: &Raw, peer: bool, goal: &str) -> Vec<Row> {
        rows(raw, Context { peer, devices: 32 }, &[goal.to_owned()])
    }

    #[test]
    fn every_goal_has_a_row_and_nothing_measured_means_no_verdict() {
        let empty = Raw::default();
        for goal in ALL {
            let rows = of(&empty, true, goal);
            assert!(!rows.is_empty(), "{goal}");
            for row in rows {
                assert!(matches!(row.verdict(), Verdict::NotMeasured(_)), "{row:?}");
            }
        }
    }

    #[test]
    fn without_a_peer_our_number_stands_and_the_reason_names_the_option() {
        let rows = of(
            &raw(&[("ebpf.idle.cpu", 1e6), ("peer.idle.cpu", 2e7)]),
            false,
            "G1",
        );
        assert_eq!(rows[0].ours, Ok(1e6));
        assert_eq!(
            rows[0].verdict(),
            Verdict::NotMeasured("no peer given: --peer PATH".to_owned())
        );
    }

    #[test]
    fn the_slope_per_queue_pair_is_held_against_one_dump() {
        let rows = of(
            &raw(&[
                ("noebpf.idle.cpu", 1e6),
                ("noebpf.q10000.cpu", 81e6),
                ("floor.q10000.qps", 80e6),
            ]),
            false,
            "G2",
        );
        assert_eq!(rows[0].ratio(), Some(1.0));
        assert_eq!(rows[0].verdict(), Verdict::Ok);
    }

    #[test]
    fn the_clock_that_times_a_post_is_taken_off_both_sides() {
        let values = [
            ("post.clock", 800.0),
            ("post.none", 3800.0),
            ("post.kprobe", 4500.0),
        ];
        let rows = of(&raw(&values), false, "G6");
        assert_eq!(
            (rows[1].ours.clone(), rows[1].base.clone()),
            (Ok(3700.0), Ok(3000.0))
        );
        assert_eq!(rows[1].verdict(), Verdict::Missed);
    }

    #[test]
    fn the_slope_per_device_counts_the_devices_that_were_added() {
        let rows = of(
            &raw(&[
                ("noebpf.idle.cpu", 1e6),
                ("noebpf.many.cpu", 1e6 + 31.0 * 50_000.0),
                ("floor.many.stat", 20_000.0),
                ("floor.many.port", 17_000.0),
                ("floor.many.devices", 13_000.0 * 32.0),
            ]),
            false,
            "G5",
        );
        assert_eq!(rows[1].ratio(), Some(1.0));
    }

    #[test]
    fn a_view_without_programs_is_not_measured_as_one_with_them() {
        let rows = of(
            &raw(&[("ebpf.idle.cpu", 1e6), ("ebpf_programs", 0.0)]),
            false,
            "G1",
        );
        assert_eq!(
            rows[0].verdict(),
            Verdict::NotMeasured("rdmatop attached no eBPF program".to_owned())
        );
    }

    #[test]
    fn one_unaccounted_event_misses_the_goal() {
        let values = [
            ("storm.kprobe.lines", 199_998.0),
            ("storm.kprobe.lost", 1.0),
            ("storm.kprobe.happened", 200_000.0),
            ("storm.fentry.lines", 200_000.0),
            ("storm.fentry.lost", 0.0),
            ("storm.fentry.happened", 200_000.0),
        ];
        let rows = of(&raw(&values), false, "G8");
        assert_eq!(rows[0].verdict(), Verdict::Missed);
        assert_eq!(rows[1].verdict(), Verdict::Missed);
        // The other mode (fentry or kprobe) has rows of its own.
        assert_eq!(rows[7].verdict(), Verdict::Ok);
        assert_eq!(rows[8].verdict(), Verdict::Ok);
    }

    #[test]
    fn the_producers_own_speed_is_not_taken_from_the_guest_of_two_cpus() {
        let values = [
            ("storm.none.elapsed", 17_000.0),
            ("storm.kprobe.elapsed", 28_000.0),
            ("storm.none.cpu", 16_000.0),
            ("storm.kprobe.cpu", 22_600.0),
        ];
        let rows = of(&raw(&values), false, "G8");
        assert!(rows[2].formula.contains("on one core"), "{}", rows[2].formula);
        assert_eq!(rows[2].verdict(), Verdict::Missed);
        assert!(rows[3].formula.contains("own CPU"), "{}", rows[3].formula);
        assert!(
            matches!(rows[3].verdict(), Verdict::NotMeasured(_)),
            "{:?}",
            rows[3]
        );
        let values = [
            ("producers.none.cpu", 17_000.0),
            ("producers.kprobe.cpu", 20_000.0),
        ];
        let rows = of(&raw(&values), false, "G8");
        assert_eq!(rows[3].verdict(), Verdict::Ok);
        // The other row has the same limit.
        assert_eq!(rows[2].limit, rows[3].limit);
    }

    #[test]
    fn the_verdict_on_memory_leaves_the_mapped_maps_out_and_a_row_shows_them() {
        let values = [
            ("ebpf.q10000.rss", 54e6),
            ("ebpf.q10000.maps", 30e6),
            ("ebpf.q10000.anon", 11e6),
            ("peer.q10000.rss", 6e6),
        ];
        let rows = of(&raw(&values), true, "G10");
        assert_eq!((rows[0].ratio(), rows[0].verdict()), (Some(4.0), Verdict::Missed));
        assert!(
            rows[0].formula.contains("less the eBPF maps"),
            "{}",
            rows[0].formula
        );
        assert_eq!((rows[1].ratio(), rows[1].verdict()), (Some(9.0), Verdict::Shown));
        assert!(rows[1].formula.contains("maps included"), "{}", rows[1].formula);
        // A number that was not read is not taken for zero.
        assert!(matches!(rows[2].verdict(), Verdict::NotMeasured(_)));
    }
}
