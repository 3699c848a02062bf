//! One line for each event: fixed columns, which are easy to follow, then the detail, which may be long.

use super::{detail, units};
use rdmatop_base::text;
use rdmatop_model::event::Event;

/// Columns of a comm. `TASK_COMM_LEN` is 15 bytes and a NUL, so only escaped and bracketed names are cut.
const COMM: usize = 16;
/// Columns at which a device name is cut; the kernel allows 63 bytes. A name of more than 10 columns moves
/// the rest of its line to the right.
const DEVICE_MAX: usize = 24;

/// The header line, without a newline.
pub fn header() -> String {
    let columns = row(["TIME(UTC)", "EVENT", "DEVICE", "QPN", "TYPE", "PID", "COMM"]);
    columns + "DETAIL"
}

fn row([time, event, device, qpn, qp_type, pid, comm]: [&str; 7]) -> String {
    format!("{time:<15} {event:<13} {device:<10} {qpn:>8} {qp_type:<4} {pid:>7} {comm:<COMM$} ")
}

/// Appends the line of an event, without a newline. Text is cut to its columns. A number is never cut; a long
/// one moves the rest of its line.
///
/// The pieces are appended one by one, because `write!` with widths takes five times as many instructions,
/// and writing the line is most of what a traced event costs.
pub fn line(out: &mut Vec<u8>, event: &Event) {
    let start = out.len();
    columns(out, event);
    detail::write(out, event);
    let blanks = out[start..].iter().rev().take_while(|byte| **byte == b' ');
    out.truncate(out.len() - blanks.count());
}

/// The columns before the detail. All text in events is safe to print.
fn columns(out: &mut Vec<u8>, event: &Event) {
    out.extend_from_slice(&units::time_of_day(event.ts_ns));
    out.push(b' ');
    left(out, event.event.name(), 13);
    name(out, event.device.as_deref(), 10, DEVICE_MAX);
    right(out, event.qpn, 8);
    match event.qp_type.map(|of| (of, of.name())) {
        None => left(out, "-", 4),
        Some((_, Some(name))) => left(out, name, 4),
        Some((of, None)) => left(out, &of.to_string(), 4),
    }
    right(out, event.pid, 7);
    name(out, event.comm.as_deref(), COMM, COMM);
}

/// ASCII text, aligned left, and a blank after its column.
fn left(out: &mut Vec<u8>, text: &str, width: usize) {
    out.extend_from_slice(text.as_bytes());
    blanks(out, width.saturating_sub(text.len()) + 1);
}

/// A number (`-` if unknown), aligned right, and a blank after its column.
fn right(out: &mut Vec<u8>, value: Option<u32>, width: usize) {
    let mut digits = itoa::Buffer::new();
    let text = value.map_or("-", |value| digits.format(value));
    blanks(out, width.saturating_sub(text.len()));
    out.extend_from_slice(text.as_bytes());
    out.push(b' ');
}

/// A name of at most `max` columns, aligned left, and a blank after its column. A `+` at its end means that
/// it was cut, as in ps(1).
fn name(out: &mut Vec<u8>, text: Option<&str>, width: usize, max: usize) {
    let mut text = text.unwrap_or("-");
    let mut columns = text::width(text);
    let is_cut = columns > max;
    if is_cut {
        text = text::cut_columns(text, max.saturating_sub(1));
        columns = text::width(text) + 1;
    }
    out.extend_from_slice(text.as_bytes());
    if is_cut {
        out.push(b'+');
    }
    blanks(out, width.saturating_sub(columns) + 1);
}

fn blanks(out: &mut Vec<u8>, count: usize) {
    // No column is wider than COMM. `Vec::resize` writes one byte after the other.
    out.extend_from_slice(&[b' '; COMM + 1][..count.min(COMM + 1)]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rdmatop_model::event::{Cm, EventKind};
    use rdmatop_model::ib::QpType;
    use rdmatop_model::testkit::full;

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
        fn columns_are_as_wide_as_those_of_the_header(
            kind in 0..EventKind::ALL.len(),
            numbers: (u64, Option<u32>, Option<u32>),
            qp_type: Option<u8>,
            (device, comm) in ("[ -~]{0,10}", "[ -~]{0,16}"),
        ) {
            let (ts, qpn, pid) = numbers;
            let mut event = Event::new(EventKind::ALL[kind], ts, 0);
            (event.qpn, event.pid, event.qp_type) = (qpn, pid, qp_type.map(QpType));
            (event.device, event.comm) = (Some(device.as_str().into()), Some(comm.as_str().into()));
            let number = |value: Option<u32>| value.map_or("-".to_owned(), |value| value.to_string());
            let of_type = qp_type.map_or("-".to_owned(), |number| QpType(number).to_string());
            let (qpn, pid, time) = (number(qpn), number(pid), units::time_of_day(ts));
            let time = std::str::from_utf8(&time).unwrap();
            let mut out = Vec::new();
            let wanted = row([time, event.event.name(), &device, &qpn, &of_type, &pid, &comm]);
            columns(&mut out, &event);
            prop_assert_eq!(String::from_utf8(out).unwrap(), wanted);
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
