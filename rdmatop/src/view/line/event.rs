//! One line an event: fixed columns, so that the eye can follow one, and the detail last, so that it may be long.

use super::{detail, units};
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
pub fn line(out: &mut String, event: &Event) {
    let start = out.len();
    let number = |value: Option<u32>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    let qp_type = event.qp_type.map_or_else(|| "-".to_owned(), |t| t.to_string());
    row(
        out,
        [
            &units::time_of_day(event.ts_ns),
            event.event.name(),
            &fit(event.device.as_deref(), DEVICE_MAX),
            &number(event.qpn),
            &qp_type,
            &number(event.pid),
            &fit(event.comm.as_deref(), COMM),
        ],
    );
    detail::write(out, event);
    out.truncate(start + out[start..].trim_end().len());
}

fn row(out: &mut String, [time, event, device, qpn, qp_type, pid, comm]: [&str; 7]) {
    for (text, width) in [(time, 15), (event, 13), (device, 10)] {
        left(out, text, width);
    }
    right(out, qpn, 8);
    left(out, qp_type, 4);
    right(out, pid, 7);
    left(out, comm, COMM);
}

fn left(out: &mut String, text: &str, width: usize) {
    out.push_str(text);
    pad(out, width.saturating_sub(text::width(text)) + 1);
}

fn right(out: &mut String, text: &str, width: usize) {
    pad(out, width.saturating_sub(text::width(text)));
    out.push_str(text);
    out.push(' ');
}

fn pad(out: &mut String, columns: usize) {
    out.extend(std::iter::repeat_n(' ', columns));
}

/// At most `columns` columns; a `+` at the end says that there was more, as ps(1) does.
fn fit(text: Option<&str>, columns: usize) -> String {
    let text = text.unwrap_or("-");
    if text::width(text) <= columns {
        return text.to_owned();
    }
    format!("{}+", text::cut_columns(text, columns.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::EventKind;
    use crate::view::fixture;
    use proptest::prelude::*;

    #[test]
    fn every_kind_has_a_line_that_reads_well() {
        let mut out = header();
        for event in fixture::events() {
            out.push('\n');
            line(&mut out, &event);
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
        let mut out = String::new();
        line(&mut out, &event);
        assert_eq!(
            out,
            "00:00:00.000000 qp_create     aaaaaaaaaaaaaaaaaaaaaaa+ 4294967295 -    4194304 \\x1b[31m\\x0a\\x0+"
        );
    }

    #[test]
    fn a_wide_character_does_not_move_the_columns() {
        let mut event = Event::new(EventKind::CmConnect, 0, 0);
        event.comm = Some("日本".into());
        event.cm_id = Some(7);
        let mut out = String::new();
        line(&mut out, &event);
        let before = out.split("id 7").next().unwrap();
        assert_eq!(text::width(before), header().find("DETAIL").unwrap());
    }

    proptest! {
        #[test]
        fn any_sanitised_names_make_one_line(comm: Vec<u8>, device: Vec<u8>) {
            let mut event = Event::new(EventKind::MrReg, 1, 1);
            event.comm = Some(text::sanitize(&comm).into());
            event.device = Some(text::sanitize(&device).into());
            let mut out = String::new();
            line(&mut out, &event);
            prop_assert!(!out.chars().any(char::is_control));
        }
    }
}
