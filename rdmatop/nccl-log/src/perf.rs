//! Lines that nccl-tests prints: the bandwidth that a collective reached.

use serde::Serialize;

/// The message with the highest bus bandwidth of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Best {
    /// Bytes of the message.
    pub bytes: u64,
    /// Bus bandwidth, the better of out-of-place and in-place, GB/s.
    pub gigabytes_per_second: f64,
}

/// The output of nccl-tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Perf {
    /// The message with the highest bus bandwidth.
    pub best: Option<Best>,
    /// The average over all sizes, by nccl-tests itself, GB/s.
    pub average_gigabytes_per_second: Option<f64>,
    /// Number of wrong values, as nccl-tests counted them.
    pub wrong: Option<u64>,
}

impl Perf {
    /// Whether nccl-tests printed nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reads a line that is not NCCL's.
    pub fn line(&mut self, line: &str) {
        let value = |name| {
            let rest = line.trim_start_matches(['#', ' ']).strip_prefix(name)?;
            rest.trim_start_matches([' ', ':']).split_whitespace().next()
        };
        if let Some(average) = value("Avg bus bandwidth") {
            self.average_gigabytes_per_second = number(average);
        } else if let Some(wrong) = value("Out of bounds values") {
            self.wrong = wrong.parse().ok();
        } else if let Some(best) = row(line)
            && self
                .best
                .is_none_or(|known| best.gigabytes_per_second > known.gigabytes_per_second)
        {
            self.best = Some(best);
        }
    }
}

/// Reads `SIZE COUNT TYPE [REDOP] [ROOT] TIME ALGBW BUSBW WRONG TIME ALGBW BUSBW WRONG`.
fn row(line: &str) -> Option<Best> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [bytes, count, kind, .., out, _, _, _, inside, _] = words.as_slice() else {
        return None;
    };
    if words.len() < 11
        || count.parse::<u64>().is_err()
        || !kind.starts_with(|c: char| c.is_ascii_alphabetic())
    {
        return None;
    }
    Some(Best {
        bytes: bytes.parse().ok()?,
        gigabytes_per_second: number(out)?.max(number(inside)?),
    })
}

fn number(word: &str) -> Option<f64> {
    word.parse()
        .ok()
        .filter(|value: &f64| value.is_finite() && *value >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_old_and_new_versions_give_their_bus_bandwidth() {
        let mut perf = Perf::default();
        assert!(perf.is_empty());
        for line in [
            "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error",
            "     1048576        262144   float     sum    310.5    3.38    5.91  2e-07    309.1    3.39    5.94  2e-07",
            "  8589934592    2147483648     float     sum      -1    22341  384.49  720.91      0    22388  383.68  719.41      0",
            "           8             2   float       0    45.82    0.00    0.00    N/A    38.17    0.00    0.00    N/A",
            "# Out of bounds values : 0 OK",
            "# Avg bus bandwidth    : 84.8558 ",
        ] {
            perf.line(line);
        }
        let best = perf.best.unwrap();
        assert_eq!((best.bytes, best.gigabytes_per_second), (8_589_934_592, 720.91));
        assert_eq!(perf.average_gigabytes_per_second, Some(84.8558));
        assert_eq!(perf.wrong, Some(0));
    }

    #[test]
    fn other_tables_are_no_rows() {
        for line in [
            "1 2 3 4 5 6 7 8 9 10 11 12 13",
            "a b c",
            "  8 2 float sum -1 inf NaN NaN 0 1 1 NaN 0",
        ] {
            assert_eq!(row(line), None, "{line}");
        }
    }
}
