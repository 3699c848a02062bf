//! Plain tables: a header, aligned columns, one row a line. No frames, so that awk and grep can read them.

use rdmatop_base::text;

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A table under construction.
#[derive(Debug)]
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new(columns: Vec<(&'static str, Align)>) -> Self {
        Self {
            columns,
            rows: Vec::new(),
        }
    }

    /// Adds a row. An empty cell becomes `-`, so that every row has as many words as the header.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let shown = |cell: String| if cell.is_empty() { "-".to_owned() } else { cell };
        let row: Vec<String> = cells.into_iter().map(shown).collect();
        debug_assert_eq!(row.len(), self.columns.len());
        self.rows.push(row);
    }

    /// True without rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Appends the table, every line with its newline and without trailing blanks.
    pub fn write(&self, out: &mut String) {
        let width = |(at, (title, _)): (usize, &(&str, Align))| {
            let cells = self.rows.iter().map(|row| text::width(&row[at]));
            cells.fold(text::width(title), usize::max)
        };
        let widths: Vec<usize> = self.columns.iter().enumerate().map(width).collect();
        let titles: Vec<&str> = self.columns.iter().map(|(title, _)| *title).collect();
        self.line(out, &widths, &titles);
        for row in &self.rows {
            let cells: Vec<&str> = row.iter().map(String::as_str).collect();
            self.line(out, &widths, &cells);
        }
    }

    fn line(&self, out: &mut String, widths: &[usize], cells: &[&str]) {
        let start = out.len();
        for (((_, align), width), cell) in self.columns.iter().zip(widths).zip(cells) {
            if out.len() > start {
                out.push_str("  ");
            }
            let blanks = width.saturating_sub(text::width(cell));
            if *align == Align::Right {
                out.extend(std::iter::repeat_n(' ', blanks));
            }
            out.push_str(cell);
            if *align == Align::Left {
                out.extend(std::iter::repeat_n(' ', blanks));
            }
        }
        out.truncate(start + out[start..].trim_end().len());
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(vec![
            ("NAME", Align::Left),
            ("N", Align::Right),
            ("WHY", Align::Left),
        ]);
        table.row(["日本".to_owned(), "7".to_owned(), String::new()]);
        table.row(["a".to_owned(), "12345".to_owned(), "x y".to_owned()]);
        let mut out = String::new();
        table.write(&mut out);
        assert_eq!(out, "NAME      N  WHY\n日本      7  -\na     12345  x y\n");
    }
}
