//! `rdmatop doctor`: judges the facts about a machine or a process, line by line. Pure: [`facts`] are the
//! facts, [`table`] the checks, [`page`] the output.

mod checks;
pub mod facts;
pub mod line;
pub mod page;
pub mod table;
mod words;

pub use checks::limits::MEMLOCK_WARN;
pub use facts::{Facts, Reading};
pub use line::{Line, Report, Status};

use rdmatop_base::step::{NextStep, step};

/// All checks, in the order of the table.
pub fn examine(facts: &Facts) -> Report {
    let mut report = Report::default();
    for check in table::CHECKS {
        let before = report.lines.len();
        let mut found = line::Lines::default();
        (check.run)(facts, &mut found);
        let lines = found
            .into_lines(check)
            .into_iter()
            .map(|line| for_user(facts, line));
        report.lines.extend(lines);
        if report.lines.len() == before {
            report.not_applicable.push(check.id);
        }
    }
    report
}

/// Adapts the remedy "be root" to the user: root has it already, and `--pid` is kept. What rdmatop lacks in a
/// container is no fault of the machine's.
fn for_user(facts: &Facts, mut line: Line) -> Line {
    if facts.host.container && line.group == "rdmatop" && line.status == Status::Warn {
        line.status = Status::Skip;
    }
    if line.remedy == line::WITH_ROOT {
        line.remedy = match (facts.host.root, facts.pid) {
            (true, _) => NextStep::default(),
            (false, Some(pid)) => step!("{} --pid {}", line::WITH_ROOT, pid),
            (false, None) => line.remedy,
        };
    }
    line
}
