//! A screen as a picture: one `<text>` for each run of cells that look alike.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

use super::super::text;

const GROUND: &str = "#16181d";
const INK: &str = "#d5d9e0";
/// Sizes for a monospaced font of 14 px.
const WIDE: f64 = 8.4;
const HIGH: usize = 18;

/// How a cell is written: colour, weight, and whether colours are exchanged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Look {
    ink: String,
    bold: bool,
    dim: bool,
    reversed: bool,
}

impl Look {
    fn of(cell: &Cell) -> Self {
        Self {
            ink: match cell.fg {
                Color::Rgb(r, g, b) => format!("#{r:02x}{g:02x}{b:02x}"),
                _ => INK.to_owned(),
            },
            bold: cell.modifier.contains(Modifier::BOLD),
            dim: cell.modifier.contains(Modifier::DIM),
            reversed: cell.modifier.contains(Modifier::REVERSED),
        }
    }

    fn rules(&self) -> String {
        let mut rules = format!("fill:{}", if self.reversed { GROUND } else { &self.ink });
        if self.bold {
            rules.push_str(";font-weight:bold");
        }
        if self.dim {
            rules.push_str(";opacity:.7");
        }
        rules
    }
}

/// The picture.
pub(super) fn picture(buf: &Buffer) -> String {
    let mut looks: BTreeMap<Look, usize> = BTreeMap::new();
    let mut body = String::new();
    for y in 0..buf.area.height {
        let mut x = 0;
        while x < buf.area.width {
            let (from, look) = (x, Look::of(&buf[(x, y)]));
            let mut run = String::new();
            while x < buf.area.width && Look::of(&buf[(x, y)]) == look {
                let symbol = buf[(x, y)].symbol();
                run.push_str(symbol);
                x += u16::try_from(text::width(symbol)).unwrap_or(1).max(1);
            }
            let (left, top) = (f64::from(from) * WIDE, usize::from(y) * HIGH);
            if look.reversed {
                let wide = f64::from(x - from) * WIDE;
                let _ = writeln!(
                    body,
                    r#"<rect x="{left:.1}" y="{top}" width="{wide:.1}" height="{HIGH}" fill="{}"/>"#,
                    look.ink
                );
            }
            let shown = run.trim_end();
            if shown.is_empty() {
                continue;
            }
            let blanks = shown.len() - shown.trim_start().len();
            let left = left + blanks as f64 * WIDE;
            let shown = shown
                .trim_start()
                .replace('&', "&amp;")
                .replace('<', "&lt;")
                .replace('>', "&gt;");
            let next = looks.len();
            let class = *looks.entry(look).or_insert(next);
            let _ = writeln!(
                body,
                r#"<text x="{left:.1}" y="{}" class="s{class}">{shown}</text>"#,
                top + 14
            );
        }
    }
    let (wide, high) = (
        f64::from(buf.area.width) * WIDE,
        usize::from(buf.area.height) * HIGH,
    );
    let mut out = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="-8 -6 {:.0} {}" width="{:.0}">
<style>text{{font:14px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre}}"#,
        wide + 16.0,
        high + 12,
        wide + 16.0
    );
    for (look, class) in &looks {
        let _ = write!(out, ".s{class}{{{}}}", look.rules());
    }
    let _ = write!(
        out,
        "</style>\n<rect x=\"-8\" y=\"-6\" width=\"100%\" height=\"100%\" rx=\"6\" fill=\"{GROUND}\"/>\n{body}</svg>\n"
    );
    out
}

#[test]
fn names_cannot_leave_their_text() {
    let mut buf = Buffer::empty(ratatui::layout::Rect::new(0, 0, 30, 1));
    buf.set_string(2, 0, "</text><script>&", ratatui::style::Style::new());
    let svg = picture(&buf);
    assert_eq!(svg.matches("<text ").count(), 1, "{svg}");
    assert!(svg.contains(">&lt;/text&gt;&lt;script&gt;&amp;</text>"), "{svg}");
}
