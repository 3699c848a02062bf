//! The content of each line of a frame, before it becomes cells.
//!
//! Making cells of text (graphemes, widths) and comparing them costs ten times as much as writing the text. A
//! line with the same marks as in the frame before needs neither, because its cells depend only on its marks.
//! With two of ratatui's buffers an idle view of 160x50 takes 3.2 M instructions a second, of 1.38 M that
//! goal G1 allows (docs/performance.md), and 0.7 M with this.

use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::super::text;

/// The lines of a frame.
#[derive(Debug, Default)]
pub struct Canvas {
    width: u16,
    ascii: bool,
    lines: Vec<Line>,
}

/// The content of a line, in drawing order. A line without marks is blank.
#[derive(Debug, Default, PartialEq)]
struct Line {
    /// The texts, one after the other.
    text: String,
    marks: Vec<Mark>,
}

/// A step of drawing a line: what is done to some of its columns.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mark {
    x: u16,
    width: u16,
    style: Style,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    /// Writes the next so many bytes of the line's text.
    Text(usize),
    /// Gives a style to what has been drawn there.
    Style,
    /// Erases what has been drawn there.
    Blank,
    Select,
}

impl Canvas {
    /// Begins a frame of `size`. With `ascii`, other characters become `?`.
    pub fn begin(&mut self, size: (u16, u16), ascii: bool) {
        (self.width, self.ascii) = (size.0, ascii);
        self.lines.resize_with(usize::from(size.1), Line::default);
        for line in &mut self.lines {
            line.text.clear();
            line.marks.clear();
        }
    }

    /// Writes `text` at `x` of line `y`, in at most `room` columns and not beyond the right edge.
    pub(super) fn text(&mut self, x: u16, y: u16, text: &str, room: usize, style: Style) {
        let area = Rect::new(x, y, u16::try_from(room).unwrap_or(u16::MAX), 1);
        if !text.is_empty() {
            self.mark(area, What::Text(text.len()), text, style);
        }
    }

    pub(super) fn style(&mut self, area: Rect, style: Style) {
        self.mark(area, What::Style, "", style);
    }

    pub(super) fn blank(&mut self, area: Rect) {
        self.mark(area, What::Blank, "", Style::new());
    }

    pub(super) fn select(&mut self, area: Rect, style: Style) {
        self.mark(area, What::Select, "", style);
    }

    fn mark(&mut self, area: Rect, what: What, text: &str, style: Style) {
        let (x, width) = (area.x, area.width.min(self.width.saturating_sub(area.x)));
        let lines = self.lines.iter_mut().skip(usize::from(area.y));
        for line in lines.take(usize::from(area.height)).filter(|_| width > 0) {
            line.text.push_str(text);
            line.marks.push(Mark {
                x,
                width,
                style,
                what,
            });
        }
    }

    /// Whether line `y` is the same in both frames.
    pub fn same_line(&self, other: &Self, y: u16) -> bool {
        let y = usize::from(y);
        self.ascii == other.ascii && self.width == other.width && self.lines.get(y) == other.lines.get(y)
    }

    /// Makes the cells of line `y`, `width` columns wide.
    pub fn cells(&self, y: u16, width: u16) -> Buffer {
        let mut buf = Buffer::empty(Rect::new(0, y, width, 1));
        let Some(line) = self.lines.get(usize::from(y)) else {
            return buf;
        };
        let mut texts = line.text.as_str();
        for Mark {
            x,
            width,
            style,
            what,
        } in line.marks.iter().copied()
        {
            match what {
                What::Text(bytes) => {
                    let (text, rest) = texts.split_at(bytes);
                    texts = rest;
                    buf.set_stringn(x, y, text, usize::from(width), style);
                }
                What::Style => buf.set_style(Rect::new(x, y, width, 1), style),
                What::Blank => (x..x + width).for_each(|x| buf[(x, y)].reset()),
                What::Select => (x..x + width).for_each(|x| select(&mut buf[(x, y)], style)),
            }
        }
        if !line.text.is_ascii() {
            mend(&mut buf);
        }
        if self.ascii {
            // Only names are affected: symbols of the view are ASCII then. Each `?` takes one column, because
            // the other half of a wide character is a cell of its own.
            let wrong = buf.content.iter_mut().filter(|cell| !cell.symbol().is_ascii());
            wrong.for_each(|cell| _ = cell.set_symbol("?"));
        }
        buf
    }
}

/// Removes each wide character whose right half is covered: a terminal shows it completely or not at all.
fn mend(line: &mut Buffer) {
    for x in 0..line.content.len() {
        let mut halves = 1..text::width(line.content[x].symbol());
        let covered = halves.any(|half| line.content.get(x + half).is_none_or(|half| half.symbol() != " "));
        if covered {
            line.content[x].set_symbol(" ");
        }
    }
}

/// Dim or coloured cells are hard to read reversed, so the row is plain text on one background.
fn select(cell: &mut Cell, style: Style) {
    if style.add_modifier.contains(Modifier::REVERSED) {
        cell.fg = Color::Reset;
        cell.modifier &= Modifier::BOLD;
    } else {
        cell.modifier.remove(Modifier::DIM);
    }
    cell.set_style(style);
}
