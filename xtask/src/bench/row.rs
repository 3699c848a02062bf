//! One line of the table: our number, the number it is compared with, and the verdict. Pure functions.

use super::math::{Unit, figures, ratio, show};

/// Whether our number meets the goal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The number is within the limit.
    Ok,
    /// The number is not within the limit.
    Missed,
    /// The row has no limit.
    Shown,
    /// A number is missing, for this reason.
    NotMeasured(String),
}

/// The limit of a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    /// The most that ours / base may be.
    RatioAtMost(f64),
    /// The least that ours / base may be.
    RatioAtLeast(f64),
    /// The most that our number may be; the base is only shown for comparison.
    AtMost(f64),
    /// Our number must equal the base.
    Equal,
    /// The row has no limit and is only shown.
    Shown,
}

/// A number, or why there is none.
pub(crate) type Reading = Result<f64, String>;

/// A line of the table.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) goal: &'static str,
    /// What is measured, as a formula.
    pub(crate) formula: String,
    pub(crate) unit: Unit,
    pub(crate) ours: Reading,
    /// The number of the peer tool, or the floor.
    pub(crate) base: Reading,
    /// Shown in place of an absent base: a figure of an earlier run, which says so.
    pub(crate) recorded: Option<&'static str>,
    pub(crate) limit: Limit,
}

impl Row {
    /// ours / base, if both are known.
    pub(crate) fn ratio(&self) -> Option<f64> {
        ratio(*self.ours.as_ref().ok()?, *self.base.as_ref().ok()?)
    }

    pub(crate) fn verdict(&self) -> Verdict {
        let ours = match &self.ours {
            Ok(ours) => *ours,
            Err(why) => return Verdict::NotMeasured(why.clone()),
        };
        let met = match self.limit {
            Limit::Shown => return Verdict::Shown,
            Limit::AtMost(limit) => ours <= limit,
            Limit::Equal => match &self.base {
                Ok(base) => (ours - base).abs() < 0.5,
                Err(why) => return Verdict::NotMeasured(why.clone()),
            },
            Limit::RatioAtMost(_) | Limit::RatioAtLeast(_) => {
                if let Err(why) = &self.base {
                    return Verdict::NotMeasured(why.clone());
                }
                let Some(ratio) = self.ratio() else {
                    return Verdict::NotMeasured("the base is zero or negative: no ratio".to_owned());
                };
                match self.limit {
                    Limit::RatioAtLeast(limit) => ratio >= limit,
                    Limit::RatioAtMost(limit) | Limit::AtMost(limit) => ratio <= limit,
                    Limit::Equal | Limit::Shown => false,
                }
            }
        };
        if met { Verdict::Ok } else { Verdict::Missed }
    }

    /// The cells of the row, in the order of [`HEADER`].
    pub(crate) fn cells(&self) -> [String; 7] {
        let value = |reading: &Reading| reading.as_ref().ok().map(|value| show(*value, self.unit));
        let base = value(&self.base)
            .or_else(|| {
                self.recorded
                    .map(|text| format!("{text} (recorded, not measured)"))
            })
            .unwrap_or_else(|| "-".to_owned());
        let limit = match self.limit {
            Limit::RatioAtMost(limit) => format!("ratio <= {limit}"),
            Limit::RatioAtLeast(limit) => format!("ratio >= {limit}"),
            Limit::AtMost(limit) => format!("<= {}", show(limit, self.unit)),
            Limit::Equal => "equal".to_owned(),
            Limit::Shown => "-".to_owned(),
        };
        let verdict = match self.verdict() {
            Verdict::Ok => "ok".to_owned(),
            Verdict::Missed => "missed".to_owned(),
            Verdict::Shown => "-".to_owned(),
            Verdict::NotMeasured(why) => format!("not measured: {why}"),
        };
        [
            self.goal.to_owned(),
            self.formula.clone(),
            value(&self.ours).unwrap_or_else(|| "-".to_owned()),
            base,
            self.ratio().map_or_else(|| "-".to_owned(), figures),
            limit,
            verdict,
        ]
    }
}

/// Names of the columns.
pub(crate) const HEADER: [&str; 7] = [
    "goal",
    "formula",
    "ours",
    "peer or floor",
    "ratio",
    "limit",
    "verdict",
];

/// The cells of a line of such a table.
pub(crate) fn cells_of(line: &str) -> Option<[String; 7]> {
    let cells = line.strip_prefix('|')?.strip_suffix('|')?.split('|');
    let cells: Vec<String> = cells.map(|cell| cell.trim().to_owned()).collect();
    cells.try_into().ok()
}

/// Returns the rows as a Markdown table, with columns that are also aligned for a terminal.
pub(crate) fn table(rows: impl IntoIterator<Item = [String; 7]>) -> String {
    let mut lines: Vec<[String; 7]> = vec![HEADER.map(str::to_owned)];
    lines.extend(rows);
    let mut widths = [3; 7];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    // The last column is not padded: its reasons are long, and padding would only wrap lines of the terminal.
    widths[6] = 0;
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        for (cell, &width) in line.iter().zip(&widths) {
            text.push_str("| ");
            text.push_str(&format_cell(cell, width));
        }
        text.push_str("|\n");
        if number == 0 {
            for width in widths {
                text.push('|');
                text.push_str(&"-".repeat(width.max(3) + 2));
            }
            text.push_str("|\n");
        }
    }
    text
}

fn format_cell(cell: &str, width: usize) -> String {
    format!("{cell:width$} ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ours: Reading, base: Reading, limit: Limit) -> Row {
        Row {
            goal: "G1",
            formula: "a / b".to_owned(),
            unit: Unit::Insn,
            ours,
            base,
            recorded: None,
            limit,
        }
    }

    #[test]
    fn a_limit_is_met_up_to_and_with_itself() {
        let at_most = Limit::RatioAtMost(0.5);
        assert_eq!(row(Ok(1.0), Ok(2.0), at_most).verdict(), Verdict::Ok);
        assert_eq!(row(Ok(1.1), Ok(2.0), at_most).verdict(), Verdict::Missed);
        let at_least = Limit::RatioAtLeast(0.85);
        assert_eq!(row(Ok(85.0), Ok(100.0), at_least).verdict(), Verdict::Ok);
        assert_eq!(row(Ok(84.0), Ok(100.0), at_least).verdict(), Verdict::Missed);
    }

    #[test]
    fn an_absolute_limit_needs_no_base() {
        let without = row(Ok(5.0), Err("no peer".into()), Limit::AtMost(5.0));
        assert_eq!(without.verdict(), Verdict::Ok);
        assert_eq!(without.ratio(), None);
    }

    #[test]
    fn counts_that_must_be_equal_may_not_differ_by_one() {
        assert_eq!(
            row(Ok(10_000.0), Ok(10_000.0), Limit::Equal).verdict(),
            Verdict::Ok
        );
        assert_eq!(
            row(Ok(9_999.0), Ok(10_000.0), Limit::Equal).verdict(),
            Verdict::Missed
        );
    }

    #[test]
    fn what_is_not_known_is_not_ok() {
        let why = || Err("the guest died".to_owned());
        let limit = Limit::RatioAtMost(1.0);
        let unknown = Verdict::NotMeasured("the guest died".to_owned());
        assert_eq!(row(why(), Ok(1.0), limit).verdict(), unknown);
        assert_eq!(row(Ok(1.0), why(), limit).verdict(), unknown);
        assert_eq!(row(Ok(0.0), why(), Limit::Equal).verdict(), unknown);
        let nothing = row(Ok(1.0), Ok(0.0), limit).verdict();
        assert!(matches!(nothing, Verdict::NotMeasured(_)), "{nothing:?}");
    }

    #[test]
    fn a_recorded_figure_is_labelled_and_judges_nothing() {
        let mut row = row(Ok(2e6), Err("no peer given".into()), Limit::RatioAtMost(0.1));
        row.recorded = Some("13.8 M/s");
        assert_eq!(
            row.cells(),
            [
                "G1",
                "a / b",
                "2.00 M",
                "13.8 M/s (recorded, not measured)",
                "-",
                "ratio <= 0.1",
                "not measured: no peer given"
            ]
        );
    }

    #[test]
    fn the_table_is_aligned() {
        let rows = [
            row(Ok(1.0), Ok(2.0), Limit::RatioAtMost(0.5)),
            row(Ok(3e6), Ok(2.0), Limit::AtMost(1.0)),
        ];
        let text = table(rows.iter().map(Row::cells));
        let last = text.lines().last().and_then(cells_of);
        assert_eq!(last, Some(rows[1].cells()));
        assert_eq!(
            text,
            "\
| goal | formula | ours   | peer or floor | ratio   | limit        | verdict |
|------|---------|--------|---------------|---------|--------------|-----|
| G1   | a / b   | 1      | 2             | 0.500   | ratio <= 0.5 | ok |
| G1   | a / b   | 3.00 M | 2             | 1500000 | <= 1         | missed |
"
        );
    }
}
