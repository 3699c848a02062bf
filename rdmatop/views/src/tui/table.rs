//! The order of rows and the layout of columns. Both are kept until something on which they depend changes.

use std::cmp::Ordering;

use rdmatop_model::fields::{self, Kind, Value};

use super::columns::{self, Align, Column, Ctx};
use super::filter::Filter;
use super::glyphs::Glyphs;
use super::tab::Tab;

/// A row in the order of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Place in the snapshot.
    pub at: usize,
    /// Its place among its relatives, where the table is a tree.
    pub branch: Branch,
}

/// A row's place among the rows around it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Branch {
    /// Ancestors in the table.
    pub depth: u8,
    /// Kind of line in front of it.
    pub line: Line,
}

/// The line in front of a row of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Line {
    /// No line is drawn.
    #[default]
    None,
    /// First of a group whose parent is not in the table.
    First,
    /// More relatives follow.
    Middle,
    /// Last of its relatives.
    Last,
}

/// The rows that pass `filter`, sorted. Unknown values come last. Rows with equal keys keep the order of the
/// snapshot; processes have an order of their own then.
pub fn order(ctx: &Ctx<'_>, tab: Tab, filter: &Filter, (sort, down): (&str, bool)) -> Vec<Entry> {
    let spec = columns::spec(tab);
    let rows = (0..(spec.len)(ctx)).filter(|at| filter.is_empty() || filter.matches(ctx, spec, *at));
    let mut rows: Vec<usize> = rows.collect();
    if let Some(column) = spec.column(sort).filter(|column| column.sortable) {
        let values: Vec<_> = rows.iter().map(|at| column.of.value(ctx, *at)).collect();
        let mut keys: Vec<_> = rows.iter().copied().zip(values.iter().map(Value::key)).collect();
        let rows_of = &ctx.snapshot.processes;
        fields::order(&mut keys, down, |a, b| match tab {
            Tab::Processes => fields::process_ties(&rows_of[a], &rows_of[b]),
            _ => Ordering::Equal,
        });
        rows = keys.into_iter().map(|(at, _)| at).collect();
    } else if down {
        rows.reverse();
    }
    let branch = Branch::default();
    rows.into_iter().map(|at| Entry { at, branch }).collect()
}

/// A column on the screen.
#[derive(Clone, Copy)]
pub struct Placed {
    /// The column.
    pub column: &'static Column,
    /// From the left edge of the table.
    pub x: u16,
    /// Width.
    pub width: u16,
}

/// Columns on the screen, and how many did not fit.
#[derive(Clone, Default)]
pub struct Fit {
    /// The columns that fit, from left to right.
    pub placed: Vec<Placed>,
    /// Number of columns left out for lack of width.
    pub shed: usize,
    /// Columns scrolled away to the left.
    pub skipped: usize,
}

impl Fit {
    /// How many more columns there are on each side, with the key that shows them: `←2 +3→`.
    pub fn hidden(&self, glyphs: &Glyphs) -> String {
        let [left, right] = glyphs.more;
        match (self.skipped, self.shed) {
            (0, 0) => String::new(),
            (0, shed) => format!("+{shed}{right}"),
            (skipped, 0) => format!("{left}{skipped}"),
            (skipped, shed) => format!("{left}{skipped} +{shed}{right}"),
        }
    }
}

/// Lays out `columns` in `width`. The highest priority numbers are left out until the least widths fit; then
/// names grow before numbers. Columns in `chosen` were requested by the user and are left out last.
pub fn fit(columns: &[&'static Column], chosen: &[&str], skip: usize, width: u16) -> Fit {
    let priority = |c: &Column| {
        c.screen
            .priority
            .min(if chosen.contains(&c.id) { 1 } else { u8::MAX })
    };
    let mut kept: Vec<&'static Column> = Vec::new();
    let mut skipped = 0;
    for column in columns {
        // The first column identifies the row, so it never scrolls away.
        if !kept.is_empty() && skipped < skip && column.screen.priority > 0 {
            skipped += 1;
        } else {
            kept.push(column);
        }
    }
    let least = |kept: &[&'static Column]| -> u16 {
        let gaps = u16::try_from(kept.len().saturating_sub(1)).unwrap_or(u16::MAX);
        kept.iter()
            .map(|c| c.screen.width.0)
            .fold(gaps, u16::saturating_add)
    };
    let mut shed = 0;
    while least(&kept) > width {
        let worst = kept
            .iter()
            .enumerate()
            .filter(|(_, c)| priority(c) > 0)
            .max_by_key(|(at, c)| (priority(c), *at));
        let Some((at, _)) = worst else { break };
        kept.remove(at);
        shed += 1;
    }
    let mut widths: Vec<u16> = kept.iter().map(|c| c.screen.width.0).collect();
    let mut spare = width.saturating_sub(least(&kept));
    // Widths grow in rounds, so that columns of the same kind become equally wide.
    for wanted in [Align::Left, Align::Right] {
        loop {
            let mut grown = false;
            for (at, column) in kept.iter().enumerate() {
                if spare > 0 && column.align == wanted && widths[at] < column.screen.width.1 {
                    widths[at] += 1;
                    spare -= 1;
                    grown = true;
                }
            }
            if !grown {
                break;
            }
        }
    }
    // Bars are compared with each other, so all get the width of the narrowest.
    let bar = |c: &Column| c.of.meta.kind == Kind::Share;
    let mut bars: Vec<&mut u16> = kept
        .iter()
        .zip(&mut widths)
        .filter(|(c, _)| bar(c))
        .map(|(_, w)| w)
        .collect();
    let narrow = bars.iter().map(|width| **width).min();
    bars.iter_mut()
        .zip(narrow)
        .for_each(|(width, narrow)| **width = narrow);
    let mut placed = Vec::with_capacity(kept.len());
    let mut x = 0u16;
    for (column, wide) in kept.into_iter().zip(widths) {
        let wide = wide.min(width.saturating_sub(x));
        if wide > 0 {
            placed.push(Placed {
                column,
                x,
                width: wide,
            });
        }
        x = x.saturating_add(wide).saturating_add(1);
    }
    Fit {
        placed,
        shed,
        skipped,
    }
}

/// The first row to draw, so that the cursor is on the screen and no line is empty without need.
pub fn window(offset: usize, cursor: usize, len: usize, height: usize) -> usize {
    let last = len.saturating_sub(height);
    let offset = offset.min(last);
    if cursor < offset {
        cursor
    } else if height > 0 && cursor >= offset + height {
        (cursor + 1 - height).min(last)
    } else {
        offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_cursor_is_always_on_the_screen(offset in 0usize..200, cursor in 0usize..100, more in 1usize..50, height in 1usize..60) {
            let len = cursor + more;
            let first = window(offset, cursor, len, height);
            prop_assert!(first <= cursor && cursor < first + height);
            prop_assert!(first == 0 || first + height <= len, "no empty lines while rows are hidden above");
        }
    }
}
