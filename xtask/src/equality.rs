//! The equality table of a test run: workload x counter x kernel, collected by the kernel tests.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::paths;

/// The file that the kernel tests append their rows to; see tests/src/table.rs.
const GATHERED: &str = "equality.tsv";

/// One comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    kernel: String,
    title: String,
    workload: String,
    counter: String,
    expected: String,
    got: String,
    ok: bool,
}

/// Rows in the order of arrival, and the kernels that they are from.
#[derive(Debug, Default)]
struct Table {
    rows: Vec<Row>,
    kernels: Vec<String>,
}

/// Removes the rows of an earlier run from a guest's output directory.
pub(crate) fn forget(out: &Path) -> Result<()> {
    let path = out.join(GATHERED);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Prints a short table and writes the whole one to target/equality.md; does nothing without rows. `outs` are
/// the output directories of the guests.
pub(crate) fn finish(outs: &[PathBuf]) -> Result<()> {
    let gathered: String = outs
        .iter()
        .filter_map(|out| fs::read_to_string(out.join(GATHERED)).ok())
        .collect();
    if gathered.is_empty() {
        return Ok(());
    }
    let table = Table::parse(&gathered);
    let path = paths::target().join("equality.md");
    fs::write(&path, table.whole()).with_context(|| format!("cannot write {}", path.display()))?;
    println!("\n{}\nwhole table: {}", table.short(), shown(&path));
    Ok(())
}

fn shown(path: &Path) -> String {
    path.strip_prefix(paths::repo())
        .unwrap_or(path)
        .display()
        .to_string()
}

/// Returns `6.12` for `6.12.107+deb13-amd64`, and `6.12-arm64` for `6.12.107+deb13-arm64`.
fn series(release: &str) -> String {
    let mut dots = release.match_indices('.').map(|(at, _)| at).skip(1);
    let number = &release[..dots.next().unwrap_or(release.len())];
    let other = release.find("-arm64").map_or("", |at| &release[at..]);
    format!("{number}{other}")
}

/// Returns `send` for `send client, QP 2`.
fn group(workload: &str) -> &str {
    let ends = [" client", " server"]
        .iter()
        .filter_map(|side| workload.find(side));
    ends.min().map_or(workload, |end| &workload[..end])
}

impl Table {
    fn parse(text: &str) -> Self {
        let mut table = Self::default();
        for line in text.lines() {
            let mut cells = line.split('\t').map(str::to_owned);
            let mut cell = || cells.next().unwrap_or_default();
            let row = Row {
                kernel: cell(),
                title: cell(),
                workload: cell(),
                counter: cell(),
                expected: cell(),
                got: cell(),
                ok: cell() == "true",
            };
            if !table.kernels.contains(&row.kernel) {
                table.kernels.push(row.kernel.clone());
            }
            table.rows.push(row);
        }
        table
    }

    /// One line per workload: how many comparisons held on each kernel.
    fn short(&self) -> String {
        let mut order: Vec<(&str, &str)> = Vec::new();
        let mut cells: BTreeMap<(&str, &str, &str), (usize, usize)> = BTreeMap::new();
        for row in &self.rows {
            let (title, workload) = (row.title.as_str(), group(&row.workload));
            if !order.contains(&(title, workload)) {
                order.push((title, workload));
            }
            let cell = cells.entry((title, workload, &row.kernel)).or_default();
            cell.0 += usize::from(row.ok);
            cell.1 += 1;
        }
        let names: Vec<String> = order
            .iter()
            .map(|(title, workload)| format!("{title}: {workload}"))
            .collect();
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let held = self.rows.iter().filter(|row| row.ok).count();
        let mut text = format!(
            "{held} of {} comparisons of rdmatop's counts with the traffic's own held\n{:width$}",
            self.rows.len(),
            "workload"
        );
        let kernels: Vec<String> = self.kernels.iter().map(|kernel| series(kernel)).collect();
        let column = kernels.iter().map(String::len).max().unwrap_or(0).max(9);
        for kernel in &kernels {
            let _ = write!(text, "  {kernel:>column$}");
        }
        for (name, (title, workload)) in names.iter().zip(&order) {
            let _ = write!(text, "\n{name:width$}");
            for kernel in &self.kernels {
                let cell = match cells.get(&(*title, *workload, kernel.as_str())) {
                    None => "-".to_owned(),
                    Some((ok, all)) if ok == all => format!("{all} ok"),
                    Some((ok, all)) => format!("{ok} OF {all}"),
                };
                let _ = write!(text, "  {cell:>column$}");
            }
        }
        text
    }

    /// A Markdown table with one row per counter and one column per kernel.
    fn whole(&self) -> String {
        let mut order: Vec<(&str, &str, &str, usize)> = Vec::new();
        let mut cells: BTreeMap<(&str, &str, &str, usize), BTreeMap<&str, &Row>> = BTreeMap::new();
        let mut seen: BTreeMap<(&str, &str, &str, &str), usize> = BTreeMap::new();
        for row in &self.rows {
            let key = (row.title.as_str(), row.workload.as_str(), row.counter.as_str());
            // A workload may have several rows of one counter, such as one per QP.
            let number = seen.entry((key.0, key.1, key.2, &row.kernel)).or_default();
            let key = (key.0, key.1, key.2, *number);
            *number += 1;
            if !cells.contains_key(&key) {
                order.push(key);
            }
            cells.entry(key).or_default().insert(&row.kernel, row);
        }
        let mut text = String::from("# What rdmatop counts and what the traffic's own account says\n");
        let mut title = "";
        for key in order {
            if key.0 != title {
                title = key.0;
                let _ = write!(text, "\n## {title}\n\n| workload | counter | expected |");
                for kernel in &self.kernels {
                    let _ = write!(text, " {kernel} |");
                }
                let _ = write!(text, "\n|---|---|---|{}\n", "---|".repeat(self.kernels.len()));
            }
            let rows = &cells[&key];
            let mut expected: Vec<&str> = rows.values().map(|row| row.expected.as_str()).collect();
            expected.dedup();
            let same = expected.len() == 1;
            let all = if same { expected[0] } else { "see each" };
            let _ = write!(text, "| {} | {} | {all} |", key.1, key.2);
            for kernel in &self.kernels {
                let cell = rows.get(kernel.as_str()).map_or_else(
                    || "-".to_owned(),
                    |row| {
                        let mark = if row.ok { "" } else { " **DIFFERS**" };
                        let wanted = if same {
                            String::new()
                        } else {
                            format!(" of {}", row.expected)
                        };
                        format!("{}{wanted}{mark}", row.got)
                    },
                );
                let _ = write!(text, " {cell} |");
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "6.1.0-50-amd64\tKinds\tsend client\ttx_wr\t1000\t1000\ttrue\n\
        6.1.0-50-amd64\tKinds\tsend server\trx_wr\t1000\t1000\ttrue\n\
        7.2.13+deb14-amd64\tKinds\tsend client\ttx_wr\t1000\t999\tfalse\n\
        7.2.13+deb14-amd64\tRun\tsender\tposted\t1..5\t3\ttrue\n";

    #[test]
    fn a_workload_is_one_line_and_what_differs_is_seen() {
        let short = Table::parse(TEXT).short();
        let lines: Vec<&str> = short.lines().collect();
        assert_eq!(
            lines,
            [
                "3 of 4 comparisons of rdmatop's counts with the traffic's own held",
                "workload           6.1        7.2",
                "Kinds: send       2 ok     0 OF 1",
                "Run: sender          -       1 ok",
            ]
        );
    }

    #[test]
    fn kernels_for_two_machines_have_two_names() {
        assert_eq!(series("6.12.107+deb13-amd64"), "6.12");
        assert_eq!(series("6.12.107+deb13-arm64"), "6.12-arm64");
        assert_eq!(series("6.12.107+deb13-arm64-16k"), "6.12-arm64-16k");
        assert_eq!(series("6.12"), "6.12");
    }

    #[test]
    fn the_whole_table_has_a_column_a_kernel() {
        let whole = Table::parse(TEXT).whole();
        assert!(
            whole.contains("| send client | tx_wr | 1000 | 1000 | 999 **DIFFERS** |"),
            "{whole}"
        );
        assert!(whole.contains("| sender | posted | 1..5 | - | 3 |"), "{whole}");
    }
}
