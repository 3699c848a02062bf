//! The pane of work requests of one QP: what the QP does now, a timeline, and the last requests.

use std::iter;

use ratatui::layout::Rect;

use super::super::columns::Cell;
use super::super::format;
use super::super::glyphs::Glyphs;
use super::super::state::{State, WorkPane};
use super::super::text;
use super::super::theme::Tone;
use super::{Canvas, put, rule};
use rdmatop_model::watched::{Moment, Picture, Request, SLOT_NS, Slot, WatchState};

/// Width of the labels beside the lanes.
const MARGIN: usize = 6;
/// Slots of the timeline on a narrow screen: 8 s. A wide screen shows at least as much, in more cells.
const SHOWN: usize = 160;

/// What is shown until programs see work requests.
const STARTING: &str = "Attaching the programs that see work requests ...";

pub(super) fn draw(state: &State, pane: &WorkPane, area: Rect, canvas: &mut Canvas) {
    let title = format!("Work requests of QP {}/{}   Esc closes", pane.device, pane.qpn);
    rule(state, canvas, area, &title);
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    for (y, line) in (1..).zip(lines(state, pane, width, height.saturating_sub(1))) {
        put(state, canvas, area, y, &line);
    }
}

fn lines(state: &State, pane: &WorkPane, width: usize, height: usize) -> Vec<Cell> {
    let watched = state.snapshot.watched.as_deref().filter(|qp| qp.qp == pane.qp);
    let mut out = Vec::new();
    let Some(qp) = watched else {
        return Cell::lines(STARTING, width, Tone::Dim);
    };
    match &qp.state {
        WatchState::Starting => return Cell::lines(STARTING, width, Tone::Dim),
        WatchState::Off(why) => {
            let line = why.remedy.after(&format!("No work requests: {}", why.why));
            return Cell::lines(&line, width, Tone::Warn);
        }
        WatchState::Gone => {
            out.push(Cell::new(
                "The QP is gone. What was seen of it stays until Esc.",
                Tone::Warn,
            ));
        }
        WatchState::On => {}
    }
    // The line that says what the QP does comes first, because the smallest screen has room for it alone.
    out.push(now(qp));
    if height >= 10 {
        out.push(facts(state, pane, qp));
    }
    let lanes = lanes(state.glyphs, qp, width);
    let room = height.saturating_sub(out.len());
    if room >= lanes.len() + 3 {
        out.extend(lanes);
    } else {
        // Without room for all lanes, that of outstanding requests is shown: a stall is visible in it.
        out.extend(lanes.into_iter().skip(1).take(1));
    }
    out.extend(lost(qp));
    out.extend(untimed(qp));
    out.extend(list(state, pane, qp, width, height.saturating_sub(out.len())));
    out.truncate(height);
    out
}

/// What the QP does at present, in words.
fn now(qp: &Picture) -> Cell {
    if qp.state == WatchState::Gone {
        let last = format!(
            "{} posted, {} outstanding at its end",
            format::count(qp.happened),
            qp.outstanding
        );
        return Cell::new(last, Tone::Normal);
    }
    let oldest = qp.oldest.map(|oldest| {
        let at_least = if oldest.at_least { "at least " } else { "" };
        let wr_id = oldest.wr_id.map(|id| format!(" wr_id {id}")).unwrap_or_default();
        format!(
            "{at_least}{}: {}{wr_id}",
            format::nanos(oldest.age_ns),
            oldest.opcode
        )
    });
    let open = format!("{} outstanding", qp.outstanding);
    let (text, tone) = match (qp.moment, oldest) {
        (Moment::Stalled(waited), oldest) => {
            let oldest = oldest.map(|oldest| format!("; oldest outstanding {oldest}"));
            let (waited, oldest) = (format::nanos(waited), oldest.unwrap_or_default());
            (format!("STALLED {waited}: {open}, none ended{oldest}"), Tone::Bad)
        }
        (Moment::Busy, Some(oldest)) => (format!("{open}, the oldest for {oldest}"), Tone::Good),
        (Moment::Busy, None) => (open, Tone::Good),
        (Moment::Idle(Some(ago)), _) => {
            let ago = format::nanos(ago);
            (
                format!("Nothing outstanding; the last event was {ago} ago"),
                Tone::Normal,
            )
        }
        (Moment::Idle(None), _) => (
            "Nothing was posted since you look, and nothing ended".to_owned(),
            Tone::Dim,
        ),
    };
    let line = Cell::new(text, tone);
    match qp.longest {
        Some(wait) => line.and(
            format!(
                "   longest stall {}, {} ago",
                format::nanos(wait.length_ns),
                format::nanos(wait.ago_ns)
            ),
            Tone::Warn,
        ),
        None => line,
    }
}

/// Whose QP it is, and how much it does.
fn facts(state: &State, pane: &WorkPane, qp: &Picture) -> Cell {
    let row = state.snapshot.qps.iter().find(|row| row.uid == pane.qp);
    let mut cell = Cell::default();
    let mut add = |name: &'static str, value: String| {
        cell.0.push((name.into(), Tone::Dim));
        cell.0.push((format!(" {value}  ").into(), Tone::Normal));
    };
    let rate = |rate: Option<f64>| format::known(rate, format::si);
    add("posts/s", rate(qp.posts));
    add("ends/s", rate(qp.ends));
    add("recvs/s", rate(qp.receives));
    if let Some(row) = row {
        let owner = row.comm.as_deref().unwrap_or(format::UNKNOWN);
        add("of", format::process(owner, row.pid));
        let peer = state.snapshot.peer(row).map(|peer| peer.name());
        let qpn = row.remote_qpn.map(|qpn| format!("{qpn} ")).unwrap_or_default();
        add(
            "peer",
            format!("{qpn}{}", peer.unwrap_or_else(|| format::UNKNOWN.to_owned())),
        );
    }
    cell
}

/// A cell of the timeline: some slots.
#[derive(Default)]
struct Column {
    posts: u64,
    ends: u64,
    failed: u64,
    receives: u64,
    open: u64,
    stalled: bool,
    seen: bool,
}

impl Column {
    fn of(slots: &[Slot]) -> Self {
        let mut column = Self {
            seen: !slots.is_empty(),
            ..Self::default()
        };
        for slot in slots {
            column.posts += u64::from(slot.posts);
            column.ends += u64::from(slot.ends);
            column.failed += u64::from(slot.failed);
            column.receives += u64::from(slot.receives);
            column.open = column.open.max(slot.open);
            column.stalled |= slot.stalled;
        }
        column
    }
}

/// The timeline: posts, what is outstanding, ends, receives, and the axis. Newest right.
fn lanes(glyphs: &Glyphs, qp: &Picture, width: usize) -> Vec<Cell> {
    let cells = width.saturating_sub(MARGIN + 1).max(1);
    let each = SHOWN.div_ceil(cells).max(1);
    // A cell keeps its slots while time goes on, so the newest cell may have fewer slots than the others.
    let now = qp.mono_ns / SLOT_NS + 1;
    let newest = match usize::try_from(now % each as u64) {
        Ok(some @ 1..) => some,
        _ => each,
    };
    let (older, newest) = qp.slots.split_at(qp.slots.len().saturating_sub(newest));
    let known = iter::once(newest).chain(older.rchunks(each)).map(Column::of);
    let mut columns: Vec<Column> = known
        .chain(iter::repeat_with(Column::default))
        .take(cells)
        .collect();
    columns.reverse();
    let most = |of: fn(&Column) -> u64| columns.iter().map(of).max().unwrap_or(0) as f64;
    let bar = |value: u64, max: f64| glyphs.spark(Some(value as f64), max);
    let lane = |name: &str, cell: &dyn Fn(&Column) -> (&'static str, Tone)| {
        let head = Cell::new(format!("{name:<MARGIN$}{}", glyphs.wall), Tone::Dim);
        columns.iter().fold(head, |lane, column| {
            let (sign, tone) = if column.seen {
                cell(column)
            } else {
                (" ", Tone::Dim)
            };
            lane.and(sign, tone)
        })
    };
    let (posts, open) = (most(|c| c.posts), most(|c| c.open));
    let (ends, receives) = (most(|c| c.ends), most(|c| c.receives));
    let mut out = vec![
        lane("post", &|c| (bar(c.posts, posts), Tone::Tx)),
        lane("open", &|c| {
            if c.stalled {
                ("X", Tone::Bad)
            } else if c.open > 0 {
                (bar(c.open, open), Tone::Good)
            } else if c.posts > 0 {
                // The requests ended in the slot in which they were posted.
                (glyphs.eighths[0], Tone::Good)
            } else {
                (glyphs.gap, Tone::Dim)
            }
        }),
        lane("done", &|c| {
            if c.failed > 0 {
                ("!", Tone::Bad)
            } else {
                (bar(c.ends, ends), Tone::Tx)
            }
        }),
    ];
    if receives > 0.0 {
        out.push(lane("recv", &|c| (bar(c.receives, receives), Tone::Rx)));
    }
    let seconds = format::nanos(cells as u64 * each as u64 * SLOT_NS);
    let left = format!("-{seconds}");
    let words = "X stalled  ! failed";
    let room = cells.saturating_sub(text::width(&left) + 3);
    let middle = if text::width(words) + 2 < room { words } else { "" };
    out.push(Cell::new(
        format!("{:MARGIN$} {left}{middle:^room$}now", ""),
        Tone::Dim,
    ));
    out
}

/// Returns the line that says how many records the list lacks.
fn lost(qp: &Picture) -> Option<Cell> {
    let kinds = [
        (
            qp.full,
            "records found no room: the lanes have them, the list has not",
        ),
        (qp.missed, "posts and ends were not seen in time"),
    ];
    let some = kinds.into_iter().filter(|(count, _)| *count > 0);
    let words: Vec<_> = some
        .map(|(count, words)| format!("{} {words}", format::exact(count)))
        .collect();
    (!words.is_empty()).then(|| Cell::new(words.join("; "), Tone::Warn))
}

/// Returns the line that says for how many requests the list has no duration.
fn untimed(qp: &Picture) -> Option<Cell> {
    let (untimed, all) = (format::exact(qp.untimed), format::exact(qp.end_records));
    let line = format!("TOOK unknown for {untimed} of {all} ends: posts not seen at the doorbell");
    (qp.untimed > 0).then(|| Cell::new(line, Tone::Dim))
}

/// The last requests, newest first.
fn list(state: &State, pane: &WorkPane, qp: &Picture, width: usize, height: usize) -> Vec<Cell> {
    if height < 2 {
        return Vec::new();
    }
    // If room is short, the time and whether a completion was asked for are left out first.
    let wide = width >= 76;
    let took = "TOOK";
    let mut heading = if wide {
        format!(
            "{:<15} {:<11} {:>20} {:>7} {:<3} {took:>6} STATUS",
            "POSTED(UTC)", "OPCODE", "WR_ID", "BYTES", "SIG"
        )
    } else {
        format!("{:<11} {:>10} {took:>6} STATUS", "OPCODE", "WR_ID")
    };
    let (shown, all) = (qp.requests.len(), qp.requests.len() as u64 + qp.forgotten);
    if width >= 100 && qp.forgotten > 0 {
        heading = format!("{heading}  last {shown} of {}", format::count(all));
    }
    let first = pane.first.min(shown.saturating_sub(1));
    let rows = qp.requests.iter().skip(first).take(height - 1);
    iter::once(Cell::new(heading, Tone::Title))
        .chain(rows.map(|request| row(state, request, qp.mono_ns, wide)))
        .collect()
}

fn row(state: &State, request: &Request, mono_ns: u64, wide: bool) -> Cell {
    let wr_id = format::known(request.wr_id, |id| id.to_string());
    let opcode = format::known(request.opcode, |opcode| opcode.to_string());
    let age = request.posted_ns.map(|at| mono_ns.saturating_sub(at));
    let outstanding = request.is_outstanding();
    let took = if outstanding { age } else { request.took_ns };
    let took = format::known(took, format::nanos);
    let (status, tone) = if outstanding {
        let old = age.is_some_and(|age| age >= rdmatop_model::watched::STALL_NS);
        ("outstanding".to_owned(), if old { Tone::Bad } else { Tone::Good })
    } else if request.unseen_end {
        ("ended, its record found no room".to_owned(), Tone::Dim)
    } else if request.dropped {
        ("dropped".to_owned(), Tone::Warn)
    } else {
        let full = if request.cq_full { " cq-full" } else { "" };
        let tone = match request.status {
            Some(status) if status.0 == 0 && full.is_empty() => Tone::Normal,
            _ => Tone::Bad,
        };
        let status = format::known(request.status, |status| status.to_string());
        (format!("{status}{full}"), tone)
    };
    let opcode = text::cut(&opcode, 11, state.glyphs.cut);
    let head = if wide {
        let clock = format::clock(request.wall_ns);
        let bytes = format::known(request.bytes, |bytes| format::count(bytes.into()));
        let signaled = format::known(request.signaled, |yes| if yes { "yes" } else { "no" }.to_owned());
        format!("{clock:<15} {opcode:<11} {wr_id:>20} {bytes:>7} {signaled:<3} ")
    } else {
        let wr_id = text::cut_left(&wr_id, 10, state.glyphs.cut);
        format!("{opcode:<11} {wr_id:>10} ")
    };
    Cell::new(head, Tone::Normal)
        .and(format!("{took:>6} "), tone)
        .and(status, tone)
}
