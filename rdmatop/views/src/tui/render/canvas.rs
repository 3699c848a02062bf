//! The content of each line of a frame, before it becomes cells.
//!
//! Making cells of text (graphemes, widths) and comparing them costs ten times as much as writing the text. A
//! line with the same marks as in the frame before needs neither, because its cells depend only on its marks.
//! With two of ratatui's buffers an idle view of 160x50 takes 3.2 M instructions a second, of 1.38 M that
//! goal G1 allows (docs/performance.md), and 0.7 M with this.

use ratatui::buffer::Buffer;
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

/// A step of drawing a line.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mark {
    /// The next `bytes` of the line's text, in at most `room` columns.
    Text {
        x: u16,
        bytes: usize,
        room: u16,
        style: Style,
    },
    /// A style for what has been drawn there.
    Style {
        x: u16,
        width: u16,
        style: Style,
    },
    /// Erases the area.
    Blank {
        x: u16,
        width: u16,
    },
    Select {
        x: u16,
        width: u16,
        style: Style,
    },
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
        let room = u16::try_from(room).unwrap_or(u16::MAX);
        let room = room.min(self.width.saturating_sub(x));
        let Some(line) = self.lines.get_mut(usize::from(y)) else {
            return;
        };
        if room == 0 || text.is_empty() {
            return;
        }
        line.text.push_str(text);
        line.marks.push(Mark::Text {
            x,
            bytes: text.len(),
            room,
            style,
        });
    }

    pub(super) fn style(&mut self, area: Rect, style: Style) {
        self.mark(area, |x, width| Mark::Style { x, width, style });
    }

    pub(super) fn blank(&mut self, area: Rect) {
        self.mark(area, |x, width| Mark::Blank { x, width });
    }

    pub(super) fn select(&mut self, area: Rect, style: Style) {
        self.mark(area, |x, width| Mark::Select { x, width, style });
    }

    fn mark(&mut self, area: Rect, mark: impl Fn(u16, u16) -> Mark) {
        let width = area.width.min(self.width.saturating_sub(area.x));
        let lines = self.lines.iter_mut().skip(usize::from(area.y));
        if width > 0 {
            lines
                .take(usize::from(area.height))
                .for_each(|line| line.marks.push(mark(area.x, width)));
        }
    }

    /// Whether line `y` is the same in both frames.
    pub fn same_line(&self, other: &Self, y: u16) -> bool {
        let y = usize::from(y);
        self.ascii == other.ascii && self.width == other.width && self.lines.get(y) == other.lines.get(y)
    }

    /// Makes the cells of line `y` in `buf`, whose line must be blank. Returns how many cells had a character
    /// replaced.
    pub fn cells(&self, y: u16, buf: &mut Buffer) -> usize {
        let Some(line) = self.lines.get(usize::from(y)) else {
            return 0;
        };
        let mut texts = line.text.as_str();
        for mark in &line.marks {
            match *mark {
                Mark::Text {
                    x,
                    bytes,
                    room,
                    style,
                } => {
                    let (text, rest) = texts.split_at(bytes);
                    texts = rest;
                    write(buf, (x, y), text, room, style);
                }
                Mark::Style { x, width, style } => buf.set_style(Rect::new(x, y, width, 1), style),
                Mark::Blank { x, width } => (x..x + width).for_each(|x| buf[(x, y)].reset()),
                Mark::Select { x, width, style } => select(buf, x..x + width, y, style),
            }
        }
        if !line.text.is_ascii() {
            self.mend(y, buf);
        }
        if self.ascii { self.to_ascii(y, buf) } else { 0 }
    }

    /// Removes each wide character whose right half is covered: a terminal shows it completely or not at all.
    fn mend(&self, y: u16, buf: &mut Buffer) {
        for x in 0..self.width {
            let wide = u16::try_from(text::width(buf[(x, y)].symbol())).unwrap_or(1);
            let covered = (x + 1..x.saturating_add(wide)).any(|x| {
                let half = buf.cell((x, y));
                half.is_none_or(|half| half.symbol() != " ")
            });
            if covered {
                buf[(x, y)].set_symbol(" ");
            }
        }
    }

    /// Replaces non-ASCII characters. Symbols of the view are ASCII then, so only names are affected.
    fn to_ascii(&self, y: u16, buf: &mut Buffer) -> usize {
        let mut replaced = 0;
        for x in 0..self.width {
            let cell = &mut buf[(x, y)];
            if !cell.symbol().is_ascii() {
                // Only one column: the other half of a wide character is a cell of its own.
                cell.set_symbol("?");
                replaced += 1;
            }
        }
        replaced
    }
}

/// `text` in at most `room` columns. ASCII, which nearly all text is, needs no search for graphemes.
fn write(buf: &mut Buffer, (x, y): (u16, u16), text: &str, room: u16, style: Style) {
    if !text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
        buf.set_stringn(x, y, text, usize::from(room), style);
        return;
    }
    let right = buf.area.right().min(x.saturating_add(room));
    for (x, at) in (x..right).zip(0..text.len()) {
        if let Some(symbol) = text.get(at..=at) {
            buf[(x, y)].set_symbol(symbol).set_style(style);
        }
    }
}

fn select(buf: &mut Buffer, columns: std::ops::Range<u16>, y: u16, style: Style) {
    for x in columns {
        let cell = &mut buf[(x, y)];
        // Dim or coloured cells are hard to read reversed, so the row is plain text on one background.
        let keep = cell.modifier & Modifier::BOLD;
        if style.add_modifier.contains(Modifier::REVERSED) {
            cell.fg = Color::Reset;
            cell.modifier = keep;
        } else {
            cell.modifier.remove(Modifier::DIM);
        }
        cell.set_style(style);
    }
}
