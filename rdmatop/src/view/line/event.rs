//! One line an event: fixed columns, which are easy to follow, and the detail last, because it may be long.

use std::{
    fmt::{Display, Write as _},
    io::Write as _,
};

use super::{detail, units};
use crate::model::event::Event;
use crate::text;

/// Columns of a comm. `TASK_COMM_LEN` is 15 bytes and a NUL, so only escaped and bracketed names are cut.
const COMM: usize = 16;
/// Columns at which a device name is cut; it moves the rest of its line from 10 on. The kernel allows 63
/// bytes.
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

/// Appends the line of an event, without a newline. Text is cut to its columns; a number never is, it moves
/// the rest of its line instead.
pub fn line(out: &mut Vec<u8>, event: &Event) {
    let start = out.len();
    columns(out, event);
    detail::write(out, event);
    let blanks = out[start..].iter().rev().take_while(|byte| **byte == b' ');
    out.truncate(out.len() - blanks.count());
}

/// The columns before the detail. Events have only what is safe to print.
fn columns(out: &mut Vec<u8>, event: &Event) {
    // Writing into memory cannot fail.
    let _ = write!(
        out,
        "{} {:<13} ",
        units::time_of_day(event.ts_ns),
        event.event.name()
    );
    name(out, event.device.as_deref(), 10, DEVICE_MAX);
    let _ = write!(
        out,
        "{:>8} {:<4} {:>7} ",
        or_unknown(event.qpn),
        or_unknown(event.qp_type),
        or_unknown(event.pid)
    );
    name(out, event.comm.as_deref(), COMM, COMM);
}

/// The value's text, `-` for an unknown one.
fn or_unknown(value: Option<impl Display>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn row(out: &mut String, [time, event, device, qpn, qp_type, pid, comm]: [&str; 7]) {
    let _ = write!(
        out,
        "{time:<15} {event:<13} {device:<10} {qpn:>8} {qp_type:<4} {pid:>7} {comm:<COMM$} "
    );
}

/// A name aligned left, at most `max` columns of it; a `+` at the end means that it was cut, as in ps(1).
fn name(out: &mut Vec<u8>, text: Option<&str>, width: usize, max: usize) {
    let text = text.unwrap_or("-");
    let (kept, mark) = if text::width(text) <= max {
        (text, "")
    } else {
        (text::cut_columns(text, max.saturating_sub(1)), "+")
    };
    let columns = text::width(kept) + mark.len();
    let blanks = width.saturating_sub(columns) + 1;
    let _ = write!(out, "{kept}{mark}{:blanks$}", "");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::{Cm, EventKind};
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
        fn any_sanitised_names_make_one_line(comm: Vec<u8>, device: Vec<u8>) {
            let mut event = Event::new(EventKind::MrReg, 1, 1);
            event.comm = Some(text::sanitize(&comm).into());
            event.device = Some(text::sanitize(&device).into());
            let out = shown(&event);
            prop_assert!(!out.chars().any(char::is_control));
        }
    }
}
