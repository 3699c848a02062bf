//! Numbers and times written as bytes, without the machinery of `format!`.
//!
//! A storm makes hundreds of thousands of lines a second; these functions are most of what a line costs.

use super::units;

/// Decimal digits of a number.
pub struct Digits {
    buffer: [u8; 20],
    start: usize,
}

impl Digits {
    /// All digits; one for zero.
    pub fn of(value: u64) -> Self {
        let mut buffer = [0; 20];
        let count = right(&mut buffer, value);
        Self {
            buffer,
            start: 20 - count,
        }
    }

    /// The digits.
    pub fn as_bytes(&self) -> &[u8] {
        &self.buffer[self.start..]
    }
}

#[expect(clippy::cast_possible_truncation, reason = "callers give 0 to 9")]
fn digit(value: u64) -> u8 {
    b'0' + value as u8
}

/// Writes a number at the right end of its columns and says how many digits it has. What has no room is cut off.
pub fn right(columns: &mut [u8], mut value: u64) -> usize {
    let mut count = 0;
    for place in columns.iter_mut().rev() {
        *place = digit(value % 10);
        value /= 10;
        count += 1;
        if value == 0 {
            break;
        }
    }
    count
}

/// Appends a number.
pub fn number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(Digits::of(value).as_bytes());
}

/// Appends spaces.
pub fn spaces(out: &mut Vec<u8>, count: usize) {
    out.resize(out.len() + count, b' ');
}

/// Time of day in UTC with microseconds, from `CLOCK_REALTIME` ns: `13:37:00.000123`.
///
/// UTC, because it needs no time zone database and compares with the logs of other machines.
pub fn time_of_day(wall_ns: u64) -> [u8; 15] {
    let micros = wall_ns / 1000 % 86_400_000_000;
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let mut text = *b"00:00:00.000000";
    for (at, value) in [(0, hour), (3, minute), (6, second)] {
        right(&mut text[at..at + 2], value);
    }
    right(&mut text[9..], micros);
    text
}

/// Appends a time span as [`units::duration`] writes it.
pub fn duration(out: &mut Vec<u8>, ns: u64) {
    let (unit, name) = match ns {
        0..1_000 => {
            number(out, ns);
            return out.extend_from_slice(b"ns");
        }
        1_000..999_500 => (1_000, "us"),
        999_500..999_500_000 => (1_000_000, "ms"),
        999_500_000..1_000_000_000_000 => (1_000_000_000, "s"),
        _ => return out.extend_from_slice(units::duration(ns).as_bytes()),
    };
    // Nanoseconds of the last digit shown.
    let (tens, step) = match ns {
        _ if ns * 200 < 1999 * unit => (100, unit / 100),
        _ if ns * 20 < 1999 * unit => (10, unit / 10),
        _ => (1, unit),
    };
    // Half a digit is rounded by what a binary fraction makes of it.
    if ns % step * 2 == step {
        return out.extend_from_slice(units::duration(ns).as_bytes());
    }
    let rounded = (ns + step / 2) / step;
    number(out, rounded / tens);
    if tens > 1 {
        out.push(b'.');
        if tens > 10 {
            out.push(digit(rounded / 10 % 10));
        }
        out.push(digit(rounded % 10));
    }
    out.extend_from_slice(name.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn spans_around_every_change_of_unit_and_of_decimals_are_written_as_units_does() {
        for unit in [1_000_u64, 1_000_000, 1_000_000_000, 1_000_000_000_000] {
            for (times, by) in [
                (1, 1),
                (9995, 1000),
                (9995, 100),
                (9995, 10),
                (1225, 100),
                (99, 2),
            ] {
                let middle = unit * times / by;
                for ns in middle - 3..=middle + 3 {
                    assert_eq!(text(|out| duration(out, ns)), units::duration(ns), "{ns}");
                }
            }
        }
        for ns in [0, 1, 999, 1000, u64::MAX] {
            assert_eq!(text(|out| duration(out, ns)), units::duration(ns), "{ns}");
        }
    }

    #[test]
    fn a_time_of_day_is_utc_with_microseconds() {
        assert_eq!(&time_of_day(0), b"00:00:00.000000");
        assert_eq!(&time_of_day(1_700_000_000_123_456_789), b"22:13:20.123456");
        assert_eq!(&time_of_day(86_399_000_009_999), b"23:59:59.000009");
    }

    proptest! {
        #[test]
        fn a_span_is_written_as_units_does(ns: u64, shift in 0u32..64) {
            let ns = ns >> shift;
            prop_assert_eq!(text(|out| duration(out, ns)), units::duration(ns));
            let round = ns / 5000 * 5000;
            prop_assert_eq!(text(|out| duration(out, round)), units::duration(round));
        }

        #[test]
        fn a_number_is_written_as_display_does(value: u64, shift in 0u32..64) {
            prop_assert_eq!(text(|out| number(out, value >> shift)), (value >> shift).to_string());
        }
    }
}
