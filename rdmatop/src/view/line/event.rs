//! One line an event: fixed columns, which are easy to follow, and the detail last, because it may be long.

use std::fmt::Write as _;

use super::{detail, put};
use crate::model::event::{Event, EventKind};
use crate::model::ib::QpType;
use crate::text;

/// Columns of a comm. `TASK_COMM_LEN` is 15 bytes and a NUL, so only escaped and bracketed names are cut.
const COMM: usize = 16;
/// Columns at which a device name is cut; it moves the rest of its line from 10 on. The kernel allows 63 bytes.
const DEVICE_MAX: usize = 24;

/// Names of kinds with blanks to the next column, in the order of their declaration.
const KINDS: [[u8; 14]; EventKind::ALL.len()] = {
    let mut names = [[b' '; 14]; EventKind::ALL.len()];
    let mut kind = 0;
    while kind < names.len() {
        if let Some(word) = put::Word::of(EventKind::ALL[kind].name()) {
            names[EventKind::ALL[kind] as usize] = word.padded();
        }
        kind += 1;
    }
    names
};

/// Names of types with blanks to the next column, by number. Those of higher types do not fit.
const TYPES: [[u8; 4]; 5] = {
    let mut names = [[b' '; 4]; 5];
    let mut number: u8 = 0;
    while (number as usize) < names.len() {
        names[number as usize] = match QpType(number).name() {
            Some(name) => match put::Word::of(name) {
                Some(word) => word.padded(),
                None => panic!("longer than its column"),
            },
            None => panic!("no type"),
        };
        number += 1;
    }
    names
};

/// The header line, without a newline.
pub fn header() -> String {
    let mut out = String::new();
    row(
        &mut out,
        ["TIME(UTC)", "EVENT", "DEVICE", "QPN", "TYPE", "PID", "COMM"],
    );
    out.push_str("DETAIL");
    out
}

/// Appends the line of an event, without a newline. Text is cut to its columns; a number never is, it moves the
/// rest of its line instead.
///
/// Writes bytes, and formats numbers itself: this is the most expensive step for an event, and `format!` would triple
/// it.
pub fn line(out: &mut Vec<u8>, event: &Event) {
    let start = out.len();
    // Blank columns that are written into cost half of what is appended piece by piece.
    let mut row = put::Row::<{ WIDTH + detail::ROOM }>::after(WIDTH - 1);
    if row.columns().is_some_and(|columns| usual(columns, event)) {
        let details = detail::usual(&mut row, event).and_then(|()| row.whole());
        if let Some(text) = details.filter(|text| text.len() >= WIDTH) {
            return out.extend_from_slice(text);
        }
        out.extend_from_slice(row.columns::<WIDTH>().map_or(&[][..], |columns| &columns[..]));
        out.truncate(start + WIDTH);
    } else {
        columns(out, event);
    }
    detail::write(out, event);
    let end = out
        .iter()
        .rposition(|byte| *byte != b' ')
        .map_or(0, |last| last + 1);
    out.truncate(end.max(start));
}

/// Columns before the detail, with the blank before it.
const WIDTH: usize = 80;

/// Writes the columns before the detail, when each value fits its column: nearly always. False when a value does not fit;
/// then the columns hold nothing of use.
fn usual(columns: &mut [u8; WIDTH - 1], event: &Event) -> bool {
    let fits = event.qpn.is_none_or(|qpn| qpn < 100_000_000) && event.pid.is_none_or(|pid| pid < 10_000_000);
    if !fits {
        return false;
    }
    columns[..15].copy_from_slice(&put::time_of_day(event.ts_ns));
    columns[16..30].copy_from_slice(&KINDS[event.event as usize]);
    match event.qpn {
        Some(qpn) => columns[41..49].copy_from_slice(&put::eight(qpn)),
        None => columns[48] = b'-',
    }
    match event.pid {
        // The first of eight is the blank before the column.
        Some(pid) => columns[54..62].copy_from_slice(&put::eight(pid)),
        None => columns[61] = b'-',
    }
    let qp_type = match event.qp_type {
        Some(qp_type) => TYPES.get(usize::from(qp_type.0)),
        None => Some(b"-   "),
    };
    let Some(qp_type) = qp_type else { return false };
    columns[50..54].copy_from_slice(qp_type);
    // Events have only what is safe to print.
    word::<30, 10>(columns, event.device.as_deref().unwrap_or("-"))
        && word::<63, COMM>(columns, event.comm.as_deref().unwrap_or("-"))
}

/// Writes a text into the `N` columns from `AT` on; false when it does not fit.
fn word<const AT: usize, const N: usize>(columns: &mut [u8; WIDTH - 1], text: &str) -> bool {
    let place = columns.get_mut(AT..).and_then(<[u8]>::first_chunk_mut::<N>);
    place.is_some_and(|place| put::ascii(place, text.as_bytes()))
}

/// The columns before the detail, of any width.
fn columns(out: &mut Vec<u8>, event: &Event) {
    out.extend_from_slice(&put::time_of_day(event.ts_ns));
    out.push(b' ');
    left(out, event.event.name(), 13);
    name(out, event.device.as_deref(), 10, DEVICE_MAX);
    number(out, event.qpn, 8);
    match event.qp_type {
        None => left(out, "-", 4),
        Some(qp_type) => left(out, &qp_type.to_string(), 4),
    }
    number(out, event.pid, 7);
    name(out, event.comm.as_deref(), COMM, COMM);
}

fn row(out: &mut String, [time, event, device, qpn, qp_type, pid, comm]: [&str; 7]) {
    let _ = write!(
        out,
        "{time:<15} {event:<13} {device:<10} {qpn:>8} {qp_type:<4} {pid:>7} {comm:<COMM$} "
    );
}

/// ASCII text of ours, aligned left.
fn left(out: &mut Vec<u8>, text: &str, width: usize) {
    out.extend_from_slice(text.as_bytes());
    put::spaces(out, width.saturating_sub(text.len()) + 1);
}

/// A number aligned right, `-` for an unknown one.
fn number(out: &mut Vec<u8>, value: Option<u32>, width: usize) {
    let digits = value.map(|value| put::Digits::of(value.into()));
    let text = digits.as_ref().map_or(&b"-"[..], put::Digits::as_bytes);
    put::spaces(out, width.saturating_sub(text.len()));
    out.extend_from_slice(text);
    out.push(b' ');
}

/// A name aligned left, at most `max` columns of it; a `+` at the end means that it was cut, as in ps(1).
fn name(out: &mut Vec<u8>, text: Option<&str>, width: usize, max: usize) {
    let text = text.unwrap_or("-");
    let mut columns = text::width(text);
    if columns <= max {
        out.extend_from_slice(text.as_bytes());
    } else {
        let kept = text::cut_columns(text, max.saturating_sub(1));
        out.extend_from_slice(kept.as_bytes());
        out.push(b'+');
        columns = text::width(kept) + 1;
    }
    put::spaces(out, width.saturating_sub(columns) + 1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::Cm;
    use crate::model::ib::QpState;
    use crate::model::testkit::full;
    use proptest::prelude::*;

    fn shown(event: &Event) -> String {
        let mut out = Vec::new();
        line(&mut out, event);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_kind_has_a_line_that_reads_well() {
        let mut out = header();
        for event in full::events() {
            out.push('\n');
            out.push_str(&shown(&event));
        }
        insta::assert_snapshot!(out);
    }

    #[test]
    fn the_fixture_has_every_kind() {
        let seen: std::collections::BTreeSet<_> = full::events().iter().map(|e| e.event).collect();
        assert_eq!(seen, EventKind::ALL.into_iter().collect());
    }

    #[test]
    fn a_long_name_is_cut_with_a_mark_and_a_long_number_is_not() {
        let mut event = Event::new(EventKind::QpCreate, 0, 0);
        event.comm = Some("\\x1b[31m\\x0a\\x0a\\x0aevil".into());
        event.device = Some("a".repeat(63).into());
        event.qpn = Some(u32::MAX);
        event.pid = Some(4_194_304);
        assert_eq!(
            shown(&event),
            "00:00:00.000000 qp_create     aaaaaaaaaaaaaaaaaaaaaaa+ 4294967295 -    4194304 \\x1b[31m\\x0a\\x0+"
        );
    }

    #[test]
    fn a_wide_character_does_not_move_the_columns() {
        let mut event = Event::new(EventKind::CmConnect, 0, 0);
        event.comm = Some("日本".into());
        event.cm = Some(Box::new(Cm {
            cm_id: Some(7),
            ..Cm::default()
        }));
        let out = shown(&event);
        let before = out.split("id 7").next().unwrap();
        assert_eq!(text::width(before), header().find("DETAIL").unwrap());
    }

    proptest! {
        #[test]
        fn usual_columns_are_those_of_any_width(
            kind in 0..EventKind::ALL.len(), ts: u64, device in "[a-z0-9_é]{0,12}", comm in "[ -~é]{0,18}",
            qp_type in 0u8..12, qpn: Option<u32>, pid: Option<u32>, shift in 0u32..32,
        ) {
            let mut event = Event::new(EventKind::ALL[kind], ts, 0);
            event.device = Some(device.as_str().into()).filter(|_| shift != 7);
            event.comm = Some(comm.as_str().into()).filter(|_| shift != 9);
            event.qp_type = Some(QpType(qp_type)).filter(|_| qp_type > 0);
            event.qpn = qpn.map(|qpn| qpn >> shift);
            event.pid = pid.map(|pid| pid >> shift);
            let (mut fast, mut slow) = ([b' '; WIDTH - 1], Vec::new());
            columns(&mut slow, &event);
            if usual(&mut fast, &event) {
                let fast = [&fast[..], b" "].concat();
                prop_assert_eq!(String::from_utf8(fast), String::from_utf8(slow));
            } else {
                // 80 ASCII bytes can also be a name with "é" that was cut to ASCII: only the names themselves show
                // it.
                let short = |name: &Option<_>, max| {
                    name.as_deref().is_none_or(|name: &str| name.is_ascii() && name.len() <= max)
                };
                let fits = slow.len() == 80 && short(&event.device, 10) && short(&event.comm, COMM);
                prop_assert!(!fits || event.qp_type.is_some(), "{:?}", event);
            }
        }

        #[test]
        fn a_line_is_its_columns_and_its_detail(
            kind in 0..EventKind::ALL.len(), ts: u64, device in "[a-z0-9_]{0,11}", comm in "[ -~]{0,17}",
            states: (Option<u8>, Option<u8>), numbers: (Option<u32>, Option<u32>, Option<u32>, Option<u32>),
            (rc, mask) in (proptest::option::of(-1i32..1), proptest::option::of(0u32..3)),
            (span, shift) in (proptest::option::of(0u64..), 0u32..64),
        ) {
            let mut event = Event::new(EventKind::ALL[kind], ts, 0);
            event.device = Some(device.as_str().into()).filter(|_| shift != 7);
            event.comm = Some(comm.as_str().into()).filter(|_| shift != 9);
            event.from = states.0.map(|state| QpState(state % 9));
            event.to = states.1.map(|state| QpState(state % 9));
            (event.qpn, event.pid, event.port, event.dest_qpn) = numbers;
            event.pid = event.pid.map(|pid| pid >> 8);
            (event.rc, event.attr_mask) = (rc, mask);
            event.duration_ns = span.map(|span| span >> shift);
            let mut slow = Vec::new();
            columns(&mut slow, &event);
            detail::write(&mut slow, &event);
            let slow = String::from_utf8(slow).unwrap();
            prop_assert_eq!(shown(&event), slow.trim_end_matches(' '));
            // It is appended, and nothing before it changes.
            let mut out = b"line before  ".to_vec();
            line(&mut out, &event);
            prop_assert_eq!(String::from_utf8(out).unwrap(), format!("line before  {}", slow.trim_end_matches(' ')));
        }

        #[test]
        fn any_sanitised_names_make_one_line(comm: Vec<u8>, device: Vec<u8>) {
            let mut event = Event::new(EventKind::MrReg, 1, 1);
            event.comm = Some(text::sanitize(&comm).into());
            event.device = Some(text::sanitize(&device).into());
            let out = shown(&event);
            prop_assert!(!out.chars().any(char::is_control));
        }
    }
}
