//! The end of a test run's log: the slowest tests, the sums, and finally the failures, so that the end of the
//! log alone says what to fix.

use std::fmt::Write as _;

use super::{
    counts::Counts,
    record::{Failure, Outcome, Spent, Took},
};

/// The number of slowest tests that are listed.
const SLOWEST: usize = 15;

/// Style and unit tests together, or one kernel.
pub(super) struct Part {
    pub(super) name: String,
    pub(super) outcome: Outcome,
    pub(super) seconds: f64,
}

/// Returns the report on all parts and on what was left out by default, and the total counts.
pub(super) fn of(parts: &[Part], left_out: &[String]) -> (String, Counts) {
    let mut text = slowest(parts.iter().flat_map(|part| &part.outcome.times));
    text.push_str(&guests(parts.iter().flat_map(|part| &part.outcome.guests)));
    let mut all = Counts::default();
    let _ = writeln!(
        text,
        "\n{:24} {:>7} {:>7} {:>7} {:>8} {:>8}",
        "part", "passed", "failed", "flaky", "skipped", "seconds"
    );
    for Part {
        name,
        outcome,
        seconds,
    } in parts
    {
        let counts = outcome.counts;
        let _ = writeln!(
            text,
            "{name:24} {:>7} {:>7} {:>7} {:>8} {seconds:>8.0}",
            counts.passed, counts.failed, counts.flaky, counts.skipped
        );
        all.add(counts);
    }
    if !left_out.is_empty() {
        let _ = writeln!(
            text,
            "\nleft out by default, run by cargo xtask test --everywhere"
        );
    }
    for line in left_out {
        let _ = writeln!(text, "  {line}");
    }
    let of = |list: fn(&Outcome) -> &Vec<Failure>| -> Vec<&Failure> {
        parts.iter().flat_map(|part| list(&part.outcome)).collect()
    };
    let flaky = of(|outcome| &outcome.flaky);
    text.push_str(&printed("FLAKY (failed, then passed alone)", &flaky));
    text.push_str(&printed("FAILED", &of(|outcome| &outcome.failures)));
    let _ = writeln!(
        text,
        "\n{} passed, {} failed, {} flaky, {} skipped",
        all.passed, all.failed, all.flaky, all.skipped
    );
    (text, all)
}

fn slowest<'a>(times: impl Iterator<Item = &'a Took>) -> String {
    let mut times: Vec<&Took> = times.collect();
    times.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let mut text = String::new();
    if !times.is_empty() {
        let _ = writeln!(text, "\nseconds  slowest");
    }
    for Took { name, seconds } in times.iter().take(SLOWEST) {
        let _ = writeln!(text, "{seconds:>7.1}  {name}");
    }
    text
}

/// Lists each guest. One that took less CPU time than seconds waited for events or for CPU of other guests.
fn guests<'a>(guests: impl Iterator<Item = &'a Spent>) -> String {
    let mut guests: Vec<&Spent> = guests.collect();
    guests.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let mut text = String::new();
    if !guests.is_empty() {
        let _ = writeln!(text, "\nseconds   of CPU  guest");
    }
    for Spent { guest, seconds, cpu } in guests {
        let cpu = cpu.map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.0}"));
        let _ = writeln!(text, "{seconds:>7.0} {cpu:>8}  {guest}");
    }
    text
}

/// Returns the output of each failure, followed by all names together.
fn printed(how: &str, failures: &[&Failure]) -> String {
    let mut text = String::new();
    for failure in failures {
        let _ = writeln!(text, "\n==== {how} {} ====", failure.name());
        for line in &failure.output {
            let _ = writeln!(text, "  {line}");
        }
    }
    if !failures.is_empty() {
        let _ = writeln!(text);
    }
    for failure in failures {
        let _ = writeln!(text, "{how} {}", failure.name());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_ends_with_what_failed() {
        let mut outcome = Outcome::default();
        outcome.fail(Failure::step("style", "clippy", "a\nb\n"));
        outcome.counts.flaky = 1;
        outcome.flaky.push(Failure::step("5.10 rxe", "storm", "c\n"));
        outcome.times = (0..20)
            .map(|second| Took {
                name: format!("test {second}"),
                seconds: f64::from(second),
            })
            .collect();
        outcome.guests = [("6.1 rxe", 7.0, None), ("7.2 rxe", 9.6, Some(8.4))]
            .map(|(guest, seconds, cpu)| Spent {
                guest: guest.into(),
                seconds,
                cpu,
            })
            .into();
        let part = Part {
            name: "style and unit tests".into(),
            outcome,
            seconds: 1.0,
        };
        let (text, all) = of(&[part], &["Linux 5.10: 2 kernel tests: live (2)".to_owned()]);
        assert_eq!(all.failed, 1);
        assert!(
            text.contains("   19.0  test 19\n") && !text.contains("test 4\n"),
            "{text}"
        );
        let guests = "\nseconds   of CPU  guest\n     10        8  7.2 rxe\n      7        -  6.1 rxe\n";
        assert!(text.contains(guests), "{text}");
        let left_out = "--everywhere\n  Linux 5.10: 2 kernel tests: live (2)\n";
        assert!(text.contains(left_out), "{text}");
        let end = "
==== FLAKY (failed, then passed alone) 5.10 rxe: storm ====
  c

FLAKY (failed, then passed alone) 5.10 rxe: storm

==== FAILED style: clippy ====
  a
  b

FAILED style: clippy

0 passed, 1 failed, 1 flaky, 0 skipped
";
        assert!(text.ends_with(end), "{text}");
    }
}
