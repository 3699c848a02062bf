//! Numbers and times written as bytes, without the machinery of `format!`.
//!
//! A storm makes hundreds of thousands of lines a second; these functions are most of what a line costs.

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
const fn digit(value: u64) -> u8 {
    b'0' + value as u8
}

/// `00` to `99`: two digits cost one division.
static PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut value = 0;
    while value < 100 {
        pairs[value] = [digit(value as u64 / 10), digit(value as u64 % 10)];
        value += 1;
    }
    pairs
};

fn pair(value: u64) -> [u8; 2] {
    PAIRS[(value % 100) as usize]
}

/// Writes a number right-aligned in its columns and returns its number of digits. Digits without room are cut off.
pub fn right(columns: &mut [u8], mut value: u64) -> usize {
    let mut end = columns.len();
    while value >= 10
        && let Some(place) = columns[..end].last_chunk_mut::<2>()
    {
        *place = pair(value);
        value /= 100;
        end -= 2;
        if value == 0 {
            return columns.len() - end;
        }
    }
    if let Some(place) = columns[..end].last_mut() {
        *place = digit(value % 10);
        end -= 1;
    }
    columns.len() - end
}

/// A number below 100,000,000 right-aligned in eight columns: all digits at once, two to a word of it, then four, then eight.
pub fn eight(value: u32) -> [u8; 8] {
    // The first digits are in the low bytes, where they are in the text.
    let pairs = u64::from(value / 10_000) | u64::from(value % 10_000) << 32;
    let hundreds = ((pairs * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let twos = hundreds + ((pairs - 100 * hundreds) << 16);
    let tens = ((twos * 103) >> 10) & 0x000f_000f_000f_000f;
    let digits = tens + ((twos - 10 * tens) << 8);
    // A zero before the first other digit is a blank; the last digit is none.
    let blank = (digits | 1 << 63).trailing_zeros() & !7;
    let blanks = 0x1010_1010_1010_1010 & ((1 << blank) - 1);
    (digits + 0x3030_3030_3030_3030 - blanks).to_le_bytes()
}

/// Writes an ASCII text, which takes one column a byte, into the first of the columns: one or two words where it has four bytes
/// or more. False when the text does not fit, is longer than 16 bytes or is not ASCII; then the columns hold nothing of use.
pub fn ascii<const N: usize>(columns: &mut [u8; N], text: &[u8]) -> bool {
    let Some(place) = columns.get_mut(..text.len()) else {
        return false;
    };
    // The two words overlap where the text is shorter than both.
    if let (Some(first), Some(last)) = (text.first_chunk::<8>(), text.last_chunk::<8>()) {
        if let Some(place) = place.first_chunk_mut() {
            *place = *first;
        }
        if let Some(place) = place.last_chunk_mut() {
            *place = *last;
        }
        let words = u64::from_ne_bytes(*first) | u64::from_ne_bytes(*last);
        return words & 0x8080_8080_8080_8080 == 0 && text.len() <= 16;
    }
    if let (Some(first), Some(last)) = (text.first_chunk::<4>(), text.last_chunk::<4>()) {
        if let Some(place) = place.first_chunk_mut() {
            *place = *first;
        }
        if let Some(place) = place.last_chunk_mut() {
            *place = *last;
        }
        return (u32::from_ne_bytes(*first) | u32::from_ne_bytes(*last)) & 0x8080_8080 == 0;
    }
    let mut all = 0;
    for (place, byte) in place.iter_mut().zip(text) {
        *place = *byte;
        all |= *byte;
    }
    all.is_ascii()
}

/// A text of known length followed by blanks: copied as one word, where a string is copied byte by byte.
#[derive(Clone, Copy)]
pub struct Word<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Word<N> {
    /// The word; `None` when it does not fit.
    pub const fn of(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        let len = text.len();
        if len > N {
            return None;
        }
        let mut bytes = [b' '; N];
        let mut at = 0;
        while at < len {
            bytes[at] = text[at];
            at += 1;
        }
        Some(Self { bytes, len })
    }

    /// With the blanks after it.
    pub const fn padded(&self) -> [u8; N] {
        self.bytes
    }
}

/// Short texts one after another. A text without room is left out, and [`Row::whole`] then returns nothing.
pub struct Row<const N: usize> {
    bytes: [u8; N],
    len: usize,
    whole: bool,
}

impl<const N: usize> Row<N> {
    /// Nothing yet.
    pub fn new() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
            whole: true,
        }
    }

    /// `columns` blank columns, which [`Row::columns`] changes, before the texts.
    pub fn after(columns: usize) -> Self {
        Self {
            bytes: [b' '; N],
            len: columns,
            whole: columns <= N,
        }
    }

    /// The first columns.
    pub fn columns<const M: usize>(&mut self) -> Option<&mut [u8; M]> {
        self.bytes.first_chunk_mut()
    }

    /// Appends a literal.
    pub fn text<const M: usize>(&mut self, text: [u8; M]) {
        self.append(text, M);
    }

    /// Appends a word.
    pub fn word<const M: usize>(&mut self, word: &Word<M>) {
        self.append(word.bytes, word.len);
    }

    fn append<const M: usize>(&mut self, bytes: [u8; M], len: usize) {
        match self.bytes.get_mut(self.len..).and_then(<[u8]>::first_chunk_mut) {
            Some(place) => {
                *place = bytes;
                self.len += len;
            }
            None => self.whole = false,
        }
    }

    /// Appends a number.
    pub fn number(&mut self, value: u64) {
        match value {
            0..10 => self.text([digit(value)]),
            10..100 => self.text(pair(value)),
            100..1000 => {
                self.text([digit(value / 100)]);
                self.text(pair(value));
            }
            1000..10_000 => {
                self.text(pair(value / 100));
                self.text(pair(value));
            }
            _ => {
                self.number(value / 10_000);
                self.text(pair(value / 100));
                self.text(pair(value));
            }
        }
    }

    /// Everything, if all of it fitted.
    pub fn whole(&self) -> Option<&[u8]> {
        self.bytes.get(..self.len).filter(|_| self.whole)
    }
}

impl<const N: usize> Default for Row<N> {
    fn default() -> Self {
        Self::new()
    }
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
    let (minutes, second) = (seconds / 60, seconds % 60);
    let (hour, minute) = (minutes / 60, minutes % 60);
    let mut text = *b"00:00:00.000000";
    for (at, value) in [
        (0, hour),
        (3, minute),
        (6, second),
        (9, micros / 10_000),
        (11, micros / 100),
        (13, micros),
    ] {
        text[at..at + 2].copy_from_slice(&pair(value));
    }
    text
}

/// Appends a time span: three significant digits and a unit, half a digit rounded up: `842ns`, `12.3us`, `4.56ms`, `1.23s`.
pub fn duration<const N: usize>(row: &mut Row<N>, ns: u64) {
    // Nanoseconds of a unit, and of the last digit shown with two, one and no decimals.
    let (unit, [two, one, none], name) = match ns {
        0..1_000 => {
            row.number(ns);
            row.text(*b"ns");
            return;
        }
        1_000..999_500 => (1_000, [10, 100, 1_000], *b"us"),
        999_500..999_500_000 => (1_000_000, [10_000, 100_000, 1_000_000], *b"ms"),
        999_500_000..999_500_000_000 => (1_000_000_000, [10_000_000, 100_000_000, 1_000_000_000], *b"s "),
        _ => {
            row.number(ns / 1_000_000_000 + u64::from(ns % 1_000_000_000 >= 500_000_000));
            row.text(*b"s");
            return;
        }
    };
    let (tens, step) = match ns {
        _ if ns * 200 < 1999 * unit => (100, two),
        _ if ns * 20 < 1999 * unit => (10, one),
        _ => (1, none),
    };
    let rounded = (ns + step / 2) / step;
    match tens {
        100 => {
            row.number(rounded / 100);
            row.text(*b".");
            row.text(pair(rounded));
        }
        10 => {
            row.number(rounded / 10);
            row.text([b'.', digit(rounded % 10)]);
        }
        _ => row.number(rounded),
    }
    if unit == 1_000_000_000 {
        row.text(*b"s");
    } else {
        row.text(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::line::units;
    use proptest::prelude::*;

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
            assert_eq!(units::duration(ns), text, "{ns}");
        }
    }

    proptest! {
        #[test]
        fn a_short_text_is_written_or_refused(text in "[a-z-]{0,20}|\\PC{0,8}") {
            let mut columns = [b' '; 18];
            let written = ascii(&mut columns, text.as_bytes());
            prop_assert_eq!(written, text.is_ascii() && text.len() <= 16);
            if written {
                let shown = std::str::from_utf8(&columns).unwrap();
                prop_assert_eq!(shown, format!("{text:<18}"));
            }
        }
    }

    #[test]
    fn a_text_of_as_many_columns_fits_and_a_longer_one_does_not() {
        for len in 0..20 {
            let text = "x".repeat(len);
            assert_eq!(ascii(&mut [b' '; 10], text.as_bytes()), len <= 10, "{len}");
        }
    }

    #[test]
    fn a_time_of_day_is_utc_with_microseconds() {
        assert_eq!(&time_of_day(0), b"00:00:00.000000");
        assert_eq!(&time_of_day(1_700_000_000_123_456_789), b"22:13:20.123456");
        assert_eq!(&time_of_day(86_399_000_009_999), b"23:59:59.000009");
    }

    #[test]
    fn a_row_without_room_gives_nothing_and_one_with_just_enough_all() {
        let mut row = Row::<8>::new();
        row.number(1_234_567);
        row.text(*b"s");
        assert_eq!(row.whole(), Some(&b"1234567s"[..]));
        row.text(*b"");
        assert!(row.whole().is_some());
        row.text(*b" ");
        assert_eq!(row.whole(), None);
        let word = Word::<4>::of("ab").unwrap();
        let mut row = Row::<5>::new();
        row.word(&word);
        assert_eq!(row.whole(), Some(&b"ab"[..]));
        row.word(&word);
        assert_eq!(row.whole(), None, "a word needs its blanks");
        assert_eq!(word.padded(), *b"ab  ");
        assert!(Word::<1>::of("ab").is_none());
    }

    #[test]
    fn eight_columns_hold_a_number_at_each_change_of_its_digits() {
        for power in 0..9 {
            let value = 10u32.pow(power);
            for value in [value - 1, value, value + 1].map(|value| value.min(99_999_999)) {
                assert_eq!(eight(value), format!("{value:8}").as_bytes());
            }
        }
    }

    proptest! {
        #[test]
        fn eight_columns_hold_any_number(value in 0u32..100_000_000, shift in 0u32..27) {
            let value = value >> shift;
            prop_assert_eq!(eight(value).to_vec(), format!("{value:8}").into_bytes());
        }

        #[test]
        fn a_span_is_nearest_to_its_time(ns: u64, shift in 0u32..64) {
            let ns = ns >> shift;
            let shown = units::duration(ns);
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
        fn a_number_at_the_right_end_is_its_last_digits(value: u64, shift in 0u32..64, room in 0usize..24) {
            let value = value >> shift;
            let mut columns = [b' '; 24];
            let count = right(&mut columns[..room], value);
            let digits = value.to_string();
            let kept = &digits[digits.len().saturating_sub(room)..];
            prop_assert_eq!(count, kept.len());
            let shown = format!("{kept:>room$}{}", " ".repeat(24 - room));
            prop_assert_eq!(std::str::from_utf8(&columns), Ok(shown.as_str()));
        }

        #[test]
        fn a_number_in_a_row_is_written_as_display_does(value: u64, shift in 0u32..64) {
            let mut row = Row::<20>::new();
            row.number(value >> shift);
            prop_assert_eq!(row.whole().map(<[u8]>::to_vec), Some((value >> shift).to_string().into_bytes()));
        }

        #[test]
        fn a_number_is_written_as_display_does(value: u64, shift in 0u32..64) {
            let mut out = Vec::new();
            number(&mut out, value >> shift);
            prop_assert_eq!(String::from_utf8(out), Ok((value >> shift).to_string()));
        }
    }
}
