//! Positions on the screen, for drawing and for the mouse.

use ratatui::layout::Rect;

use rdmatop_base::text::count;
use rdmatop_model::cause::Cause;
use rdmatop_model::findings::{Finding, NoFindings, WITHOUT_EBPF, shared_port};
use rdmatop_model::judgement::{looked_at_none, unseen_qps};

use super::state::State;
use super::tab::Tab;
use super::text;

/// The detail pane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// The detail pane is closed.
    #[default]
    Closed,
    /// The pane is beside or below the table.
    Split,
    /// The pane takes the place of the table.
    Full,
}

/// The parts of the screen. A part without room has no height.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Host, health, sums.
    pub header: Rect,
    /// Tx and Rx of each port and of each link of a bond, where there are several.
    pub rails: Rect,
    /// Tx and Rx of all ports over time, on tall screens.
    pub chart: Rect,
    /// The worst finding, on every tab but Findings: what is wrong, and what to do where there is room.
    pub findings: Rect,
    /// The first note, on every tab but Probes; one line or two.
    pub banner: Rect,
    /// Tabs.
    pub tabs: Rect,
    /// Notes in full, on the Probes tab.
    pub notes: Rect,
    /// Headings of the table.
    pub heading: Rect,
    /// Rows of the table.
    pub rows: Rect,
    /// Detail pane, its title line included.
    pub detail: Rect,
    /// What the signs above mean, on tabs with numbers.
    pub legend: Rect,
    /// Hints, prompts, messages.
    pub footer: Rect,
}

/// Below this height the header has one line.
const SMALL: u16 = 16;
/// From this height a note may take two lines, and ports are shown beside each other.
const ROOMY: u16 = 22;
/// From this height there is room for a chart of the totals.
const TALL: u16 = 40;
/// From this width the detail pane stands beside the table.
const WIDE: u16 = 160;
/// Below this width a verdict is cut before it says what is wrong, so its few words for a table stand before
/// it.
const NARROW: u16 = 60;

impl Layout {
    /// The position of every part.
    pub fn of(state: &State) -> Self {
        let (width, height) = state.size;
        let detail = match state.work {
            Some(_) => Detail::Full,
            None => state.detail,
        };
        let (findings, notes) = (&state.snapshot.findings, &state.snapshot.health.notes);
        let mut top = 0;
        let mut left = height;
        let mut cut = |wanted: u16| {
            let lines = wanted.min(left);
            let rect = Rect::new(0, top, width, lines);
            top += lines;
            left -= lines;
            rect
        };
        let mut out = Self::default();
        let small = height < SMALL;
        // When room is short the last line goes last: it shows how to leave.
        let footer = u16::from(height > 1);
        out.header = cut(if small { 1 } else { 2 });
        if height >= ROOMY && has_rails(state) {
            out.rails = cut(2);
        }
        if height >= TALL {
            out.chart = cut(6);
        }
        let said = !findings.is_empty() || most_lines(state) > 1;
        let legend = u16::from(height >= ROOMY && detail != Detail::Full && has_numbers(state.tab));
        if state.tab != Tab::Findings && height > 5 && said {
            let wanted = finding_lines(state, width).len();
            out.findings = cut(u16::try_from(wanted).unwrap_or(1));
        }
        let some = !notes.is_empty();
        if state.tab != Tab::Probes && some && height >= 10 {
            let lines = banner_lines(state, width, if height < ROOMY { 1 } else { 2 });
            out.banner = cut(u16::try_from(lines.len()).unwrap_or(1));
        }
        out.tabs = cut(u16::from(height > 3));
        out.footer = Rect::new(0, height - footer, width, footer);
        out.legend = Rect::new(0, height - footer - legend, width, legend);
        let mut body = Rect::new(0, top, width, (height - footer - legend).saturating_sub(top));
        if state.tab == Tab::Probes && some {
            let wanted = notes_lines(notes, width).len() + 1;
            let lines = u16::try_from(wanted).unwrap_or(u16::MAX).min(body.height / 2);
            (out.notes, body) = split_top(body, lines);
        }
        match detail {
            Detail::Closed => {}
            Detail::Full => {
                out.detail = body;
                return out;
            }
            Detail::Split if width >= WIDE && body.height >= 12 => {
                let side = width / 2 - 10;
                out.detail = Rect {
                    x: width - side,
                    width: side,
                    ..body
                };
                body.width -= side;
            }
            Detail::Split => {
                let lines = (body.height * 3 / 5).max(4).min(body.height);
                (body, out.detail) = split_top(body, body.height - lines);
            }
        }
        (out.heading, out.rows) = split_top(body, 1);
        out
    }

    /// The position and the text of each tab's label.
    ///
    /// `note` stands at the right end; long names give way to it.
    pub fn labels(&self, active: Tab, note: &str) -> Vec<(Tab, Rect, String)> {
        let columns = |text: &str| u16::try_from(text::width(text)).unwrap_or(u16::MAX);
        let note = match columns(note) {
            0 => 0,
            wide => wide.saturating_add(2),
        };
        // With its long name, with a short one, and with its number alone.
        let label = |tab: Tab, form: usize| {
            let number = tab.index() + 1;
            let name = tab.names().get(form).map(|name| format!(":{name}"));
            format!(" {number}{} ", name.unwrap_or_default())
        };
        let sum = |form: usize| {
            Tab::ALL
                .iter()
                .map(|tab| columns(&label(*tab, form)))
                .sum::<u16>()
        };
        let form = usize::from(sum(0).saturating_add(note) > self.tabs.width);
        let bare = sum(1) > self.tabs.width;
        let mut x = 0;
        let mut out = Vec::with_capacity(Tab::ALL.len());
        for tab in Tab::ALL {
            // On the narrowest screens only the active tab keeps its name.
            let text = label(tab, if bare && tab != active { 2 } else { form });
            let width = columns(&text);
            let room = self.tabs.width.saturating_sub(x).min(width);
            out.push((tab, Rect::new(x, self.tabs.y, room, self.tabs.height), text));
            x = x.saturating_add(width);
        }
        out
    }
}

fn split_top(rect: Rect, lines: u16) -> (Rect, Rect) {
    let height = lines.min(rect.height);
    let (y, rest) = (rect.y + height, rect.height - height);
    (
        Rect { height, ..rect },
        Rect {
            y,
            height: rest,
            ..rect
        },
    )
}

/// The notes in full, one entry a line: the text, and whether the line begins a note.
pub fn notes_lines(notes: &[Cause], width: u16) -> Vec<(String, bool)> {
    let mut out = Vec::new();
    for note in notes {
        let lines = text::wrap(&note.to_string(), usize::from(width).saturating_sub(2));
        out.extend(lines.into_iter().enumerate().map(|(at, line)| (line, at == 0)));
    }
    out
}

/// The first note in at most `most` lines, with a mark if there are others. If the reason does not fit, the
/// remedy is shown; the Probes tab has the whole note.
pub fn banner_lines(state: &State, width: u16, most: u16) -> Vec<String> {
    let notes = &state.snapshot.health.notes;
    let Some(first) = notes.first() else {
        return Vec::new();
    };
    let more = if notes.len() > 1 {
        format!("  +{} in 6:Probes", notes.len() - 1)
    } else {
        String::new()
    };
    let room = usize::from(width).saturating_sub(text::width(state.glyphs.alert) + 1);
    let most = usize::from(most);
    let fits = |lines: &[String]| {
        let last = lines.last().map_or(0, |line| text::width(line));
        lines.len() < most || (lines.len() == most && last + text::width(&more) <= room)
    };
    let mut lines = text::wrap(&first.to_string(), room);
    if !fits(&lines) {
        lines = text::wrap(&first.remedy.after(&first.what), room);
    }
    if !fits(&lines) {
        // The words that were wrapped away are joined again, to be cut at the end of the line.
        let rest = lines.split_off(lines.len().min(most).saturating_sub(1)).join(" ");
        lines.push(text::cut(
            &rest,
            room.saturating_sub(text::width(&more)),
            state.glyphs.cut,
        ));
    }
    if let Some(last) = lines.last_mut() {
        if text::width(last) + text::width(&more) > room {
            lines.push(more.trim_start().to_owned());
        } else {
            last.push_str(&more);
        }
    }
    lines
}

/// Whether there is more than one link to set side by side.
fn has_rails(state: &State) -> bool {
    let ports = &state.snapshot.ports;
    ports.len() > 1 || ports.iter().any(|port| port.bond.is_some())
}

/// Whether a tab's table has numbers, whose signs the legend explains.
pub fn has_numbers(tab: Tab) -> bool {
    matches!(tab, Tab::Processes | Tab::Qps | Tab::Devices | Tab::Verbs)
}

/// How many lines a finding may have. It gets more than the least only if the table's rows still have room.
fn most_lines(state: &State) -> usize {
    let (height, snapshot) = (state.size.1, &state.snapshot);
    let (least, most) = if height >= ROOMY { (4, 8) } else { (1, 3) };
    // Tabs, headings and footer are always there; the other parts only on some machines.
    let parts = [
        (true, 4),
        (height >= SMALL, 1),
        (height >= ROOMY, 1),
        (height >= ROOMY && has_rails(state), 2),
        (height >= TALL, 6),
        (!snapshot.health.notes.is_empty(), 2),
    ];
    let there = parts.into_iter().filter(|(is_there, _)| *is_there);
    let taken = there.map(|(_, lines)| lines).sum::<usize>() + state.table().order.len();
    usize::from(height).saturating_sub(taken).clamp(least, most)
}

/// The worst finding in one line, or in several if there is room: its severity, its age, what is wrong; then
/// what to do next, and how one sees that it is over.
pub fn finding_lines(state: &State, width: u16) -> Vec<String> {
    let most = most_lines(state);
    let findings = &state.snapshot.findings;
    let room = usize::from(width).saturating_sub(text::width(state.glyphs.alert) + 1);
    let Some(worst) = findings.first() else {
        let Some(quiet) = state.quiet() else {
            return Vec::new();
        };
        let without = !state.snapshot.health.ebpf.is_on();
        let place = if without {
            format!(" in {WITHOUT_EBPF}")
        } else {
            String::new()
        };
        let rest = if without {
            "; without eBPF the rest is not judged"
        } else {
            ""
        };
        let enough = NoFindings::ENOUGH_S;
        let quiet = match quiet {
            NoFindings::Starting => "Looking: eBPF programs are being attached".to_owned(),
            _ if looked_at_none(&state.snapshot) => {
                format!(
                    "Looked at none of {}",
                    count(state.snapshot.devices.len(), "device")
                )
            }
            NoFindings::Looking(seconds) => {
                format!("Looking ({seconds} s of {enough}): no trouble yet{place}{rest}")
            }
            NoFindings::Whole => format!("No trouble found{place}{rest}"),
        };
        let after = |words: Option<String>| words.map(|words| format!("; {words}")).unwrap_or_default();
        let unseen = after(unseen_qps(&state.snapshot));
        let shared = after(shared_port(&state.snapshot));
        let blind = after(state.blind().map(str::to_owned));
        let mut lines = text::wrap(&format!("{quiet}{unseen}{shared}{blind}"), room);
        let rest = lines.split_off(lines.len().min(most) - 1).join(" ");
        lines.push(text::cut(&rest, room, state.glyphs.cut));
        return lines;
    };
    let more = match findings.len() {
        1 => String::new(),
        all if most > 1 => format!("  +{} in 7:Findings", all - 1),
        all => format!("  +{} in 7", all - 1),
    };
    let now = state.snapshot.mono_ns;
    let head = match (worst.when(now), worst.severity.name()) {
        _ if width < NARROW => format!("{}: ", worst.short),
        (when, severity) if most > 1 && worst.is_past(now) => format!("{severity}, {when}: "),
        (when, severity) if most > 1 => format!("{severity} {when}: "),
        _ => String::new(),
    };
    let mut lines = text::wrap(&format!("{head}{}", worst.verdict), room);
    let next = steps(worst, room);
    // The last line says how one sees that it is over.
    let last = usize::from(most > 4);
    // The other lines are for what to do. A third line says who suffers, where that is not cut for it.
    let own = match most / 2 {
        own @ 0..2 => own.max(1),
        _ => most.saturating_sub(next.concat().len() + last).clamp(2, 3),
    };
    if lines.len() > own {
        let rest = lines.split_off(own - 1).join(" ");
        lines.push(rest);
    }
    if let Some(last) = lines.last_mut() {
        *last = text::cut(last, room.saturating_sub(text::width(&more)), state.glyphs.cut);
        last.push_str(&more);
    }
    let left = most.saturating_sub(lines.len() + last);
    // A result that is told in part is none, but on the smallest screens.
    let mut fits = 0;
    let whole = next.iter().take_while(|part| {
        fits += part.len();
        fits == part.len() || fits <= left || last == 0
    });
    let mut shown = whole.flatten().cloned().collect::<Vec<_>>();
    shown.truncate(left);
    if let Some(end) = shown.last_mut().filter(|_| fits > left) {
        let (whole, cut) = (end.trim_end_matches(" \\"), state.glyphs.cut);
        *end = text::cut(&format!("{whole} {cut}"), room, cut);
    }
    lines.extend(shown);
    let over = worst.over(state.snapshot.mono_ns);
    let left = if most > 1 {
        most.saturating_sub(lines.len())
    } else {
        0
    };
    let rest = [Some(&*over), state.blind()].into_iter().flatten().take(left);
    lines.extend(rest.map(|line| text::cut(line, room, state.glyphs.cut)));
    lines
}

/// What to do next. The command is on a line of its own, so that it can be copied, and so is each of its
/// possible results.
fn steps(finding: &Finding, room: usize) -> Vec<Vec<String>> {
    let parts: Vec<_> = finding.steps().collect();
    // A sentence has no results behind it.
    let (first, readings) = parts.split_at(usize::from(parts.len() > 1));
    let command = first.iter().map(|command| text::wrap_command(command, room));
    command
        .chain(readings.iter().map(|part| wrapped(part, room)))
        .collect()
}

/// A step in lines. Each line of a comment begins with `# `, so that a shell takes the copied lines as
/// comments.
fn wrapped(step: &str, room: usize) -> Vec<String> {
    const SIGN: &str = "# ";
    let Some(comment) = step.strip_prefix(SIGN) else {
        return text::wrap(step, room);
    };
    let lines = text::wrap(comment, room.saturating_sub(text::width(SIGN)));
    lines.into_iter().map(|line| format!("{SIGN}{line}")).collect()
}

/// A centred box for `wanted` columns and lines, as far as there is room.
pub fn popup(size: (u16, u16), wanted: (u16, u16)) -> Rect {
    let (width, height) = (wanted.0.min(size.0), wanted.1.min(size.1));
    Rect::new((size.0 - width) / 2, (size.1 - height) / 2, width, height)
}
