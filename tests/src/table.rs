//! Prints to the log of the tests past libtest's capture, because skips and comparisons must be visible even
//! if all tests pass.

use std::{env, fmt::Write as _, fs::File, io::Write as _, path::Path};

use crate::lab::Lab;

/// Prints one line to the log.
pub fn say(line: &str) {
    // Failing to write the log must not change a test's result.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// The largest error of a source that docs/model.md names for test `test`, as a part of the truth.
pub fn documented(source: &str, test: &str) -> Option<f64> {
    let rows = include_str!("../../docs/model.md").lines();
    let mut rows =
        rows.filter(|row| row.starts_with(&format!("| `{source}` |")) && row.contains(&format!("`{test}`")));
    let error = rows.next()?.trim_end_matches(" % |").rsplit(' ').next()?;
    Some(error.parse::<f64>().ok()? / 100.0)
}

/// One comparison of a counter.
#[derive(Clone, Debug)]
pub struct Row {
    /// Workload and side.
    pub workload: String,
    /// Counter.
    pub counter: String,
    /// The value from the traffic program.
    pub expected: String,
    /// The value from rdmatop.
    pub got: String,
    /// Whether they agree.
    pub ok: bool,
}

/// The file with the rows of all tests of a run, in the directory that the lab brings back; `cargo xtask
/// test` reads it by this name.
const GATHERED: &str = "equality.tsv";

/// The equality table of one test.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Row>,
}

impl Table {
    /// Compares a counter with its expected value. An unknown counter (`None`) equals no number.
    pub fn equal(&mut self, workload: &str, counter: &str, expected: u64, got: Option<u64>) {
        self.row(
            workload,
            counter,
            &expected.to_string(),
            got,
            got == Some(expected),
        );
    }

    /// Compares a count that stays wrong when the kernel skips a program: it must be equal if no program was
    /// skipped, and otherwise at most `skipped` less than `expected`.
    pub fn equal_unless_skipped(
        &mut self,
        workload: &str,
        counter: &str,
        expected: u64,
        got: Option<u64>,
        skipped: u64,
    ) {
        if skipped == 0 {
            return self.equal(workload, counter, expected, got);
        }
        let least = expected.saturating_sub(skipped);
        let fits = got.is_some_and(|got| (least..=expected).contains(&got));
        self.row(workload, counter, &format!("{least}..={expected}"), got, fits);
    }

    /// Adds a rule other than equality, described in words.
    pub fn rule(&mut self, workload: &str, counter: &str, rule: &str, got: Option<u64>, ok: bool) {
        self.row(workload, counter, rule, got, ok);
    }

    fn row(&mut self, workload: &str, counter: &str, expected: &str, got: Option<u64>, ok: bool) {
        self.rows.push(Row {
            workload: workload.into(),
            counter: counter.into(),
            expected: expected.into(),
            got: got.map_or_else(|| "-".into(), |value| value.to_string()),
            ok,
        });
    }

    /// Prints how many rows hold and adds the table to those of this run.
    ///
    /// # Panics
    ///
    /// If a row does not hold, after printing the whole table, or if there is no row: an empty table
    /// proves nothing.
    pub fn check(&self, lab: &Lab, title: &str) {
        if let Some(dir) = env::var_os("RDMATOP_LAB_OUT")
            && let Err(error) = self.gather(Path::new(&dir), &lab.release, title)
        {
            say(&format!("{title}: not gathered: {error}"));
        }
        self.judge(&format!("{title}, Linux {}", lab.release));
    }

    fn gather(&self, dir: &Path, release: &str, title: &str) -> std::io::Result<()> {
        let mut text = String::new();
        for row in &self.rows {
            let Row {
                workload,
                counter,
                expected,
                got,
                ok,
            } = row;
            let _ = writeln!(
                text,
                "{release}\t{title}\t{workload}\t{counter}\t{expected}\t{got}\t{ok}"
            );
        }
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(dir.join(GATHERED))?;
        file.write_all(text.as_bytes())
    }

    fn judge(&self, title: &str) {
        let bad: Vec<_> = self.rows.iter().filter(|row| !row.ok).collect();
        if bad.is_empty() {
            say(&format!("{title}: {} comparisons hold", self.rows.len()));
        } else {
            say(&self.render(title));
        }
        assert!(
            bad.is_empty(),
            "{title}: {} of {} rows differ: {bad:#?}",
            bad.len(),
            self.rows.len()
        );
        assert!(!self.rows.is_empty(), "{title}: nothing was compared");
    }

    fn render(&self, title: &str) -> String {
        let mut width = [8, 7, 8, 3];
        for row in &self.rows {
            for (cell, width) in [&row.workload, &row.counter, &row.expected, &row.got]
                .into_iter()
                .zip(&mut width)
            {
                *width = (*width).max(cell.chars().count());
            }
        }
        let [a, b, c, d] = width;
        let mut text = format!(
            "\n{title}\n{:a$}  {:b$}  {:>c$}  {:>d$}",
            "workload", "counter", "expected", "got"
        );
        for row in &self.rows {
            let mark = if row.ok { "" } else { "  DIFFERS" };
            let _ = write!(
                text,
                "\n{:a$}  {:b$}  {:>c$}  {:>d$}{mark}",
                row.workload, row.counter, row.expected, row.got
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_sources_are_read_from_the_page() {
        assert_eq!(documented("port", "port_shares"), Some(0.0));
        assert!(documented("psn", "port_shares").is_some_and(|error| error > 0.0 && error <= 0.05));
        assert_eq!(documented("psn", "no test"), None);
    }

    #[test]
    fn an_unknown_counter_is_not_zero() {
        let mut table = Table::default();
        table.equal("w", "tx_wr", 0, None);
        assert!(!table.rows[0].ok);
        assert_eq!(table.rows[0].got, "-");
    }

    #[test]
    fn a_count_that_a_skip_shortens_is_exact_without_a_skip() {
        let mut table = Table::default();
        table.equal_unless_skipped("w", "rx_wr", 5, Some(4), 0);
        table.equal_unless_skipped("w", "rx_wr", 5, Some(4), 1);
        table.equal_unless_skipped("w", "rx_wr", 5, Some(3), 1);
        table.equal_unless_skipped("w", "rx_wr", 5, Some(6), 1);
        table.equal_unless_skipped("w", "rx_wr", 5, None, 9);
        let ok: Vec<_> = table.rows.iter().map(|row| row.ok).collect();
        assert_eq!(ok, [false, true, false, false, false]);
    }

    #[test]
    #[should_panic(expected = "1 of 2 rows differ")]
    fn a_wrong_row_fails_the_table() {
        let mut table = Table::default();
        table.equal("w", "tx_wr", 5, Some(5));
        table.equal("w", "rx_wr", 5, Some(4));
        table.judge("t");
    }

    #[test]
    #[should_panic(expected = "nothing was compared")]
    fn an_empty_table_proves_nothing() {
        Table::default().judge("t");
    }
}
