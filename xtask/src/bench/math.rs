//! Ratios, fits, and numbers as text. Pure functions.

/// `value / base`; `None` if the base is not positive or the value not finite.
pub(crate) fn ratio(value: f64, base: f64) -> Option<f64> {
    (base > 0.0 && value.is_finite()).then(|| value / base)
}

/// Slope and intercept of the least-squares line through `points`; `None` without two different x.
pub(crate) fn line(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let count = points.len() as f64;
    let mean = |part: fn(&(f64, f64)) -> f64| points.iter().map(part).sum::<f64>() / count;
    let (mean_x, mean_y) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    if spread == 0.0 || !spread.is_finite() {
        return None;
    }
    let product: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let slope = product / spread;
    Some((slope, mean_y - slope * mean_x))
}

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Instructions.
    Insn,
    /// Instructions per second.
    InsnPerSecond,
    /// Nanoseconds of the guest's clock.
    Nanos,
    /// Bytes.
    Bytes,
    /// A number of things.
    Count,
}

/// Formats `value` with three significant digits and its unit.
pub(crate) fn show(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Insn => short(value),
        Unit::InsnPerSecond => format!("{}/s", short(value)),
        Unit::Nanos => format!("{} ms", figures(value / 1e6)),
        Unit::Bytes => format!("{} MB", figures(value / 1e6)),
        Unit::Count => format!("{value:.0}"),
    }
}

fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1e9 => format!("{} G", figures(value / 1e9)),
        size if size >= 1e6 => format!("{} M", figures(value / 1e6)),
        size if size >= 1e4 => format!("{} k", figures(value / 1e3)),
        _ => format!("{value:.0}"),
    }
}

/// Formats three significant digits: repeated measurements agree in no more.
pub(crate) fn figures(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_through_points_on_a_line_is_that_line() {
        let (slope, start) = line(&[(0.0, 5.0), (1000.0, 7005.0), (10_000.0, 70_005.0)]).unwrap();
        assert!(
            (slope - 7.0).abs() < 1e-9 && (start - 5.0).abs() < 1e-6,
            "{slope} {start}"
        );
    }

    #[test]
    fn a_fit_balances_what_is_not_on_the_line() {
        let (slope, start) = line(&[(0.0, 0.0), (1.0, 3.0), (2.0, 3.0)]).unwrap();
        assert!(
            (slope - 1.5).abs() < 1e-9 && (start - 0.5).abs() < 1e-9,
            "{slope} {start}"
        );
    }

    #[test]
    fn no_line_through_one_point_or_none() {
        assert_eq!(line(&[]), None);
        assert_eq!(line(&[(3.0, 1.0), (3.0, 2.0)]), None);
    }

    #[test]
    fn a_ratio_to_nothing_is_none() {
        assert_eq!(ratio(1.0, 0.0), None);
        assert_eq!(ratio(1.0, -2.0), None);
        assert_eq!(ratio(f64::NAN, 2.0), None);
        assert_eq!(ratio(3.0, 2.0), Some(1.5));
    }

    #[test]
    fn numbers_have_three_figures_and_a_unit() {
        assert_eq!(show(3114.0, Unit::Insn), "3114");
        assert_eq!(show(13_800_000.0, Unit::InsnPerSecond), "13.8 M/s");
        assert_eq!(show(1_323_000_000.0, Unit::Insn), "1.32 G");
        assert_eq!(show(827_000_000.0, Unit::Nanos), "827 ms");
        assert_eq!(show(6_400_000.0, Unit::Bytes), "6.40 MB");
        assert_eq!(show(0.0, Unit::Count), "0");
        assert_eq!(show(-25_000.0, Unit::Insn), "-25.0 k");
    }
}
