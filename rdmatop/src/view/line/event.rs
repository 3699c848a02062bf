//! One line an event: fixed columns, so that the eye can follow one, and the detail last, so that it may be long.

use std::fmt::Write as _;

use super::{detail, put};
use crate::model::event::Event;
use crate::text;

/// Columns of a comm. `TASK_COMM_LEN` is 15 bytes and a NUL, so only escaped and bracketed names are cut.
const COMM: usize = 16;
/// Columns at which a device name is cut; it moves the rest of its line from 10 on. The kernel allows 63 bytes.
const DEVICE_MAX: usize = 24;

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
/// Writes bytes, and numbers by hand: of all that is done with an event this is the most, and `format!` would triple
/// it.
pub fn line(out: &mut Vec<u8>, event: &Event) {
    let start = out.len();
    put::time_of_day(out, event.ts_ns);
    out.push(b' ');
    left(out, event.event.name(), 13);
    name(out, event.device.as_deref(), 10, DEVICE_MAX);
    number(out, event.qpn, 8);
    match event.qp_type {
        None => left(out, "-", 4),
        Some(qp_type) => match qp_type.name() {
            Some(name) => left(out, name, 4),
            None => left(out, &qp_type.to_string(), 4),
        },
    }
    number(out, event.pid, 7);
    name(out, event.comm.as_deref(), COMM, COMM);
    detail::write(out, event);
    let end = out
        .iter()
        .rposition(|byte| *byte != b' ')
        .map_or(0, |last| last + 1);
    out.truncate(end.max(start));
}

fn row(out: &mut String, [time, event, device, qpn, qp_type, pid, comm]: [&str; 7]) {
    let _ = write!(
        out,
        "{time:<15} {event:<13} {device:<10} {qpn:>8} {qp_type:<4} {pid:>7} {comm:<COMM$} "
    );
}

/// ASCII of our own, to the left.
fn left(out: &mut Vec<u8>, text: &str, width: usize) {
    out.extend_from_slice(text.as_bytes());
    put::spaces(out, width.saturating_sub(text.len()) + 1);
}

/// A number to the right, `-` for an unknown one.
fn number(out: &mut Vec<u8>, value: Option<u32>, width: usize) {
    let digits = value.map(|value| put::Digits::of(value.into()));
    let text = digits.as_ref().map_or(&b"-"[..], put::Digits::as_bytes);
    put::spaces(out, width.saturating_sub(text.len()));
    out.extend_from_slice(text);
    out.push(b' ');
}

/// A name to the left, at most `max` columns of it; a `+` at the end says that there was more, as ps(1) does.
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
    use crate::model::event::EventKind;
    use crate::view::fixture;
    use proptest::prelude::*;

    fn shown(event: &Event) -> String {
        let mut out = Vec::new();
        line(&mut out, event);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_kind_has_a_line_that_reads_well() {
        let mut out = header();
        for event in fixture::events() {
            out.push('\n');
            out.push_str(&shown(&event));
        }
        insta::assert_snapshot!(out);
    }

    #[test]
    fn the_fixture_has_every_kind() {
        let seen: std::collections::BTreeSet<_> = fixture::events().iter().map(|e| e.event).collect();
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
        event.cm_id = Some(7);
        let out = shown(&event);
        let before = out.split("id 7").next().unwrap();
        assert_eq!(text::width(before), header().find("DETAIL").unwrap());
    }

    proptest! {
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
