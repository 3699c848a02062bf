//! Numbers as text. JSON never uses this.

use std::ops::Range;

use rdmatop_base::text;
use rdmatop_model::value::{Known, Source};

/// Appends a whole number. `write!` takes five times as many instructions, and the line of an event has up to
/// ten numbers.
pub(super) fn number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// A time span in three significant digits and a unit, rounded half up: `842ns`, `12.3us`, `4.56ms`, `1.23s`.
pub fn duration(ns: u64) -> String {
    let mut out = Vec::new();
    append_duration(&mut out, ns);
    String::from_utf8(out).unwrap_or_default()
}

/// Appends a time span as [`duration`] writes it: the line of an event needs no text of its own for it.
pub(super) fn append_duration(out: &mut Vec<u8>, ns: u64) {
    const S: u64 = 1_000_000_000;
    // A value that would be rounded to 1000 of one unit is written as 1 of the next.
    let (unit, name) = match ns {
        0..1_000 => (1, "ns"),
        1_000..999_500 => (1_000, "us"),
        999_500..999_500_000 => (1_000_000, "ms"),
        999_500_000..999_500_000_000 => (S, "s"),
        _ => {
            number(out, ns / S + u64::from(ns % S >= S / 2));
            return out.push(b's');
        }
    };
    let (tens, decimals) = match ns {
        _ if unit == 1 => (1, 0),
        _ if ns * 200 < 1999 * unit => (100, 2),
        _ if ns * 20 < 1999 * unit => (10, 1),
        _ => (1, 0),
    };
    let step = unit / tens;
    let mut digits = itoa::Buffer::new();
    let digits = digits.format((ns + step / 2) / step);
    let (whole, part) = digits.split_at(digits.len().saturating_sub(decimals));
    let point = if part.is_empty() { "" } else { "." };
    for piece in [whole, point, part, name] {
        out.extend_from_slice(piece.as_bytes());
    }
}

/// Time of day in UTC with microseconds, from `CLOCK_REALTIME` ns: `13:37:00.000123`.
///
/// UTC, because it needs no time zone database and compares with the logs of other machines.
pub(crate) fn time_of_day(wall_ns: u64) -> [u8; 15] {
    let micros = wall_ns / 1000;
    let seconds = micros / 1_000_000;
    let mut text = *b"00:00:00.000000";
    let mut put = |at: Range<usize>, mut value: u64| {
        for digit in text[at].iter_mut().rev() {
            *digit += (value % 10) as u8;
            value /= 10;
        }
    };
    put(0..2, seconds / 3600 % 24);
    put(3..5, seconds / 60 % 60);
    put(6..8, seconds % 60);
    put(9..15, micros % 1_000_000);
    text
}

/// A count or a speed in powers of 1000 and at most six columns: `0`, `0.5`, `999`, `1.20k`, `34.0M`.
pub fn count(value: f64) -> String {
    // Half an event per second must read neither as 0 nor as 1.
    match value {
        0.05..9.95 if value.fract() > 0.04 => format!("{value:.1}"),
        _ if value > 0.0 && value < 1.0 => "<0.1".to_owned(),
        _ if value.is_finite() => text::scaled(value, 1000.0, &["", "k", "M", "G", "T", "P", "E"]),
        _ => "-".to_owned(),
    }
}

/// The mark before a number that is an estimate or a bound; `least` is that of a lower one.
pub(crate) fn mark(known: Known, source: Source, least: &'static str) -> &'static str {
    match (known, source) {
        (Known::AtLeast, _) => least,
        // A number alone would be read as what was moved.
        (Known::AtMost, _) => "0-",
        (Known::Exact, Source::Est | Source::Psn) => "~",
        (Known::Exact, _) => "",
    }
}

/// Bytes in powers of 1024: `512B`, `4.00Ki`, `1.50Gi`.
pub fn bytes(value: f64) -> String {
    text::scaled(value, 1024.0, &["B", "Ki", "Mi", "Gi", "Ti", "Pi"])
}

/// Date and time in UTC to the second, from `CLOCK_REALTIME` ns: `2023-11-14 22:13:20 UTC`.
pub fn date_time(wall_ns: u64) -> String {
    let seconds = wall_ns / 1_000_000_000;
    // Years begin on 1 March here, so that a leap day is the last of its year, and 153 days are five months.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let year = 400 * era + year + month / 10;
    let month = (month + 2) % 12 + 1;
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spans_have_three_digits_and_a_unit() {
        let shown: Vec<String> = [
            0,
            842,
            999,
            1000,
            12_345,
            999_499,
            999_500,
            4_560_000,
            1_230_000_000,
            3_600_000_000_000,
        ]
        .into_iter()
        .map(duration)
        .collect();
        assert_eq!(
            shown,
            [
                "0ns", "842ns", "999ns", "1.00us", "12.3us", "999us", "1.00ms", "4.56ms", "1.23s", "3600s"
            ]
        );
    }

    #[test]
    fn spans_around_every_change_of_unit_and_of_decimals_have_three_digits() {
        let shown = [
            (999_499, "999us"),
            (999_500, "1.00ms"),
            (9_994_999, "9.99ms"),
            (9_995_000, "10.0ms"),
            (99_949_999, "99.9ms"),
            (99_950_000, "100ms"),
            (1_225_000, "1.23ms"),
            (1_224_999, "1.22ms"),
            (999_499_999_999, "999s"),
            (999_500_000_000, "1000s"),
            (1_000_500_000_000, "1001s"),
            (u64::MAX, "18446744074s"),
        ];
        for (ns, text) in shown {
            assert_eq!(duration(ns), text, "{ns}");
        }
    }

    #[test]
    fn a_time_of_day_is_utc_with_microseconds() {
        assert_eq!(&time_of_day(0), b"00:00:00.000000");
        assert_eq!(&time_of_day(1_700_000_000_123_456_789), b"22:13:20.123456");
        assert_eq!(&time_of_day(86_399_000_009_999), b"23:59:59.000009");
    }

    #[test]
    fn counts_are_decimal_and_bytes_binary() {
        assert_eq!(
            [count(0.5), count(0.01), count(9.97), count(2.0)],
            ["0.5", "<0.1", "10", "2"]
        );
        assert_eq!(
            [count(0.0), count(999.0), count(1200.0), count(34e6)],
            ["0", "999", "1.20k", "34.0M"]
        );
        assert_eq!(
            [bytes(512.0), bytes(4096.0), bytes(1.5 * 1_073_741_824.0)],
            ["512B", "4.00Ki", "1.50Gi"]
        );
        // Halves are rounded up: half a byte per second is not 0.
        assert_eq!([bytes(0.5), bytes(2.5), count(10.5)], ["1B", "3B", "11"]);
    }

    #[test]
    fn a_date_counts_leap_days() {
        // From `date -u -d @N` of the same seconds.
        for (seconds, shown) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59:59 UTC"),
            (1_772_323_200, "2026-03-01 00:00:00 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(date_time(seconds * 1_000_000_000), shown);
        }
        date_time(u64::MAX);
    }

    proptest! {
        #[test]
        fn a_span_is_nearest_to_its_time(ns: u64, shift in 0u32..64) {
            let ns = ns >> shift;
            let shown = duration(ns);
            let digits = shown.trim_end_matches(char::is_alphabetic);
            let name = &shown[digits.len()..];
            let unit = match name {
                "ns" => 1.0,
                "us" => 1e3,
                "ms" => 1e6,
                _ => 1e9,
            };
            let value: f64 = digits.parse().unwrap();
            let decimals = digits.split_once('.').map_or(0, |(_, after)| after.len());
            let half = unit * 0.5 / 10f64.powi(i32::try_from(decimals).unwrap());
            prop_assert!((value * unit - ns as f64).abs() <= half * 1.000_001, "{ns}: {shown}");
            prop_assert!(name == "ns" || value >= 1.0 && (value < 999.5 || name == "s"), "{ns}: {shown}");
            prop_assert!(decimals == 0 || digits.len() == 4, "{ns}: {shown}");
        }

        #[test]
        fn a_time_of_day_is_that_of_the_formatter(ns: u64) {
            let (micros, seconds) = (ns / 1000 % 1_000_000, ns / 1_000_000_000);
            let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
            let wanted = format!("{hour:02}:{minute:02}:{second:02}.{micros:06}");
            prop_assert_eq!(&time_of_day(ns)[..], wanted.as_bytes());
        }

        #[test]
        fn any_number_is_short(ns: u64, value in 0f64..1e18) {
            prop_assert!(duration(ns).len() <= 12);
            prop_assert!(count(value).len() <= 7, "{}", count(value));
            prop_assert!(bytes(value).len() <= 8, "{}", bytes(value));
        }
    }
}
