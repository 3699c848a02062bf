//! Numbers as text. Unknown is `-`, never 0.

use rdmatop_base::text;
pub use rdmatop_base::text::age;
use rdmatop_model::value::{Counter, Known, Source};

/// Unit of traffic on the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Units {
    /// Bits per second, as links are rated.
    #[default]
    Bits,
    /// Bytes per second.
    Bytes,
}

impl Units {
    /// The unit's name.
    pub fn per_second(self) -> &'static str {
        match self {
            Self::Bits => "b/s",
            Self::Bytes => "B/s",
        }
    }

    /// Bytes in this unit.
    pub fn of_bytes(self, bytes: f64) -> f64 {
        match self {
            Self::Bits => bytes * 8.0,
            Self::Bytes => bytes,
        }
    }
}

/// The text for unknown.
pub const UNKNOWN: &str = "-";

/// A number in at most six columns: `7`, `999`, `1.23k`, `45.6M`, `789G`.
pub fn si(value: f64) -> String {
    // A rate below one per second must not read as 0.
    if value > 0.0 && value < 9.95 && value.fract() > 0.04 {
        format!("{value:.1}")
    } else if value > 0.0 && value < 1.0 {
        "<0.1".to_owned()
    } else if value.is_finite() {
        text::scaled(value, 1000.0, &["", "k", "M", "G", "T", "P", "E"])
    } else {
        UNKNOWN.to_owned()
    }
}

/// Memory: `512`, `4.00Ki`, `64.0Mi`.
pub fn memory(bytes: u64) -> String {
    text::scaled(bytes as f64, 1024.0, &["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])
}

/// A total, exact while it is short.
pub fn count(value: u64) -> String {
    if value < 10_000 {
        value.to_string()
    } else {
        si(value as f64)
    }
}

/// A total in `width` columns: exact if it fits, otherwise with fewer digits and rounded down. `20k` in three
/// columns; `>9` if nothing else fits.
pub fn count_in(value: u64, width: usize) -> String {
    let exact = count(value);
    if exact.len() <= width {
        return exact;
    }
    let (mut whole, mut suffixes) = (value, ["", "k", "M", "G", "T", "P", "E"].iter());
    let mut suffix = suffixes.next();
    while whole >= 1000 && suffix.is_some() {
        whole /= 1000;
        suffix = suffixes.next();
    }
    let short = format!("{whole}{}", suffix.unwrap_or(&""));
    if short.len() <= width {
        short
    } else {
        format!(">{}", "9".repeat(width.saturating_sub(1)))
    }
}

/// A total with every digit, in groups of three.
pub fn exact(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `-` for an unknown value.
pub fn known<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), text)
}

fn mark(known: Known, source: Source) -> &'static str {
    match (known, source) {
        (Known::AtLeast, _) => ">",
        // A number alone would be read as what was moved.
        (Known::AtMost, _) => "0-",
        (Known::Exact, Source::Est | Source::Psn) => "~",
        (Known::Exact, _) => "",
    }
}

/// A mark before a rate that is an estimate or a bound.
pub fn rate_mark(counter: &Counter) -> &'static str {
    mark(counter.rate_known(), counter.source)
}

/// A mark before a total that is an estimate or a bound.
pub fn total_mark(counter: &Counter) -> &'static str {
    mark(counter.total_known(), counter.source)
}

/// Rate of a counter, as it is.
pub fn rate(counter: Option<&Counter>) -> String {
    known(counter.and_then(|c| Some((c, c.rate?))), |(c, r)| {
        format!("{}{}", rate_mark(c), si(r))
    })
}

/// Rate of a counter of bytes, in `units`.
pub fn byte_rate(counter: Option<&Counter>, units: Units) -> String {
    known(counter.and_then(|c| Some((c, c.rate?))), |(c, r)| {
        format!("{}{}", rate_mark(c), si(units.of_bytes(r)))
    })
}

/// Total of a counter.
pub fn total(counter: Option<&Counter>) -> String {
    known(counter, |c| format!("{}{}", total_mark(c), count(c.total)))
}

/// Total of a counter in `width` columns.
pub fn total_in(counter: Option<&Counter>, width: usize) -> String {
    known(counter, |c| {
        let mark = total_mark(c);
        format!("{mark}{}", count_in(c.total, width.saturating_sub(mark.len())))
    })
}

/// A link's rate in bits per second: `100G`.
pub fn link(bps: u64) -> String {
    let text = si(bps as f64);
    if !text.contains('.') {
        return text;
    }
    let (number, suffix) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
    format!("{}{suffix}", number.trim_end_matches('0').trim_end_matches('.'))
}

/// A time: `812ns`, `4.2us`, `16ms`, `3.1s`, `12m`.
pub fn nanos(ns: u64) -> String {
    let value = ns as f64;
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns}ns"),
        1_000..1_000_000 => (value / 1e3, "us"),
        1_000_000..1_000_000_000 => (value / 1e6, "ms"),
        1_000_000_000..120_000_000_000 => (value / 1e9, "s"),
        _ => return age(ns / 1_000_000_000),
    };
    if value < 9.95 {
        format!("{value:.1}{unit}")
    } else {
        format!("{value:.0}{unit}")
    }
}

/// The upper edge of a histogram bucket: the true value lies below it.
pub fn below(ns: Option<u64>) -> String {
    known(ns, |ns| format!("<{}", nanos(ns)))
}

/// Returns the time of day in UTC, with microseconds.
pub fn clock(ts_ns: u64) -> String {
    let (s, us) = (ts_ns / 1_000_000_000 % 86_400, ts_ns / 1000 % 1_000_000);
    format!("{:02}:{:02}:{:02}.{us:06}", s / 3600, s / 60 % 60, s % 60)
}

/// A share as percent: `<1%`, `7%`, `100%`.
pub fn percent(fraction: f64) -> String {
    if fraction > 0.0 && fraction < 0.005 {
        "<1%".to_owned()
    } else {
        format!("{:.0}%", fraction * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counter(rate: Option<f64>, source: Source) -> Counter {
        Counter::whole(5, rate, source)
    }

    #[test]
    fn unknown_is_a_dash_and_zero_is_zero() {
        assert_eq!(rate(None), "-");
        assert_eq!(rate(Some(&counter(None, Source::Ebpf))), "-");
        assert_eq!(rate(Some(&counter(Some(0.0), Source::Ebpf))), "0");
        assert_eq!(total(None), "-");
        assert_eq!(below(None), "-");
    }

    #[test]
    fn an_estimate_is_marked_and_so_is_a_part() {
        assert_eq!(rate(Some(&counter(Some(1500.0), Source::Est))), "~1.50k");
        let part = Counter {
            partial: true,
            ..counter(Some(1500.0), Source::Netlink)
        };
        assert_eq!(
            (rate(Some(&part)), total(Some(&part))),
            (">1.50k".to_owned(), ">5".to_owned())
        );
        assert_eq!(total_in(Some(&part), 5), ">5");
    }

    #[test]
    fn rates_keep_three_digits_and_never_read_one_thousand_k() {
        for (value, text) in [
            (0.0, "0"),
            (0.01, "<0.1"),
            (0.5, "0.5"),
            (7.0, "7"),
            (999.0, "999"),
            (999.6, "1.00k"),
            (1234.0, "1.23k"),
            (99_960.0, "100k"),
            (999_600.0, "1.00M"),
            (24_100_000_000.0, "24.1G"),
        ] {
            assert_eq!(si(value), text, "{value}");
        }
        assert_eq!(si(f64::NAN), "-");
        assert_eq!(memory(64 << 20), "64.0Mi");
        assert_eq!(
            byte_rate(Some(&counter(Some(125.0), Source::Sysfs)), Units::Bits),
            "1.00k"
        );
    }

    #[test]
    fn times_and_ages_read_like_a_person_writes_them() {
        assert_eq!(nanos(812), "812ns");
        assert_eq!(nanos(4_200), "4.2us");
        assert_eq!(nanos(16_384), "16us");
        assert_eq!(nanos(3_600_000_000_000), "1h00m");
        assert_eq!(age(192), "3m12s");
        assert_eq!(age(90_061), "1d1h");
        assert_eq!(clock(3_723_000_001_000), "01:02:03.000001");
        assert_eq!(link(100_000_000_000), "100G");
        assert_eq!(link(2_500_000_000), "2.5G");
        assert_eq!(exact(1_234_567), "1,234,567");
        assert_eq!(exact(12), "12");
    }

    #[test]
    fn a_count_that_does_not_fit_loses_digits_and_not_its_unit() {
        for (value, width, text) in [
            (9_999, 4, "9999"),
            (27_431, 5, "27.4k"),
            (27_431, 4, "27k"),
            (999_999, 4, "999k"),
            (1_999_999, 4, "1M"),
            (1_234, 3, "1k"),
            (123_456, 3, ">99"),
        ] {
            assert_eq!(count_in(value, width), text, "{value} in {width}");
        }
    }

    proptest! {
        #[test]
        fn a_count_fits_in_any_column(value: u64, width in 1usize..8) {
            let text = count_in(value, width);
            prop_assert!(text.len() <= width, "{text} in {width}");
        }

        #[test]
        fn a_rate_fits_in_six_columns(value in 0.0f64..1e18) {
            prop_assert!(si(value).len() <= 5, "{}", si(value));
        }

        #[test]
        fn memory_fits_in_seven_columns(value: u64) {
            prop_assert!(memory(value).len() <= 6, "{}", memory(value));
        }
    }
}
