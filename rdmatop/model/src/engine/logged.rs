//! Errors that drivers log: which device one concerns, and how many there were.

use std::sync::Arc;

use crate::{input::LoggedError, snapshot::DeviceRow};
use rdmatop_base::driver_log::weight;

/// What the driver of one device logged.
#[derive(Debug, Default)]
pub(super) struct Errors {
    count: u64,
    /// The last one, or a worse one of less than [`STAYS`] before, and when it was read.
    last: Option<(Arc<str>, u64)>,
}

/// How long a line is shown in the place of later ones that are not as bad, ns.
const STAYS: u64 = 60_000_000_000;

impl Errors {
    pub(super) fn add(&mut self, error: &LoggedError, now_ns: u64) {
        if error.ours {
            // So were those that came with the readings before.
            self.last.take_if(|(text, _)| alike(text, &error.text));
            return;
        }
        self.count += 1;
        let is_worse = |(text, ns): &(Arc<str>, u64)| {
            now_ns.saturating_sub(*ns) < STAYS && weight(text) > weight(&error.text)
        };
        if self.last.as_ref().is_some_and(is_worse) {
            return;
        }
        self.last = Some((error.text.as_str().into(), now_ns));
    }

    /// Puts them into the row; how many there are is unknown while the log is not read.
    pub(super) fn show(&self, logs: bool, row: &mut DeviceRow) {
        row.driver_errors = logs.then_some(self.count);
        row.driver_error = self.last.as_ref().map(|(text, _)| Arc::clone(text));
        row.driver_error_ns = self.last.as_ref().map(|(_, ns)| *ns);
    }
}

/// Whether two lines differ in numbers alone.
fn alike(one: &str, other: &str) -> bool {
    let words = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
    words(one) == words(other)
}

/// Whether an error concerns this device. dev_err(9) names the PCI function, and ibdev_err() the RDMA device
/// with a colon behind it (`ibdev_printk`, drivers/infiniband/core/device.c). qedr has it in brackets
/// (`DP_ERR`, include/linux/qed/qed_if.h).
pub fn concerns(error: &LoggedError, name: &str, pci: Option<&str>) -> bool {
    let of_function = |pci: &str| {
        let named = error
            .device
            .as_deref()
            .and_then(|device| device.strip_prefix("+pci:"));
        named == Some(pci) || says(&error.text, pci, "")
    };
    let of_device = |end| says(&error.text, name, end);
    pci.is_some_and(of_function) || of_device(":") || of_device(")]")
}

/// Whether a text has this name as a word, directly followed by `end`.
fn says(text: &str, name: &str, end: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    let is_word = |(at, _): (usize, &str)| {
        let rest = text.get(at + name.len()..).unwrap_or_default();
        let begins = !text.get(..at).unwrap_or_default().ends_with(part);
        begins && rest.starts_with(end) && (!end.is_empty() || !rest.starts_with(part))
    };
    !name.is_empty() && text.match_indices(name).any(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str, device: Option<&str>) -> LoggedError {
        LoggedError {
            text: text.into(),
            device: device.map(Into::into),
            critical: false,
            ours: false,
        }
    }

    #[test]
    fn a_worse_line_stays_for_a_minute() {
        let mut errors = Errors::default();
        let worst = "mlx5_core 0000:3b:00.0: timeout. Will cause a leak of a command resource";
        let last = |errors: &Errors| errors.last.as_ref().map(|(text, _)| text.to_string());
        for (text, at_ns, shown) in [
            ("a", 1, "a"),
            (worst, 2, worst),
            ("b", 3, worst),
            ("c", STAYS + 2, "c"),
        ] {
            errors.add(&error(text, None), at_ns);
            assert_eq!(last(&errors).as_deref(), Some(shown));
        }
        assert_eq!(errors.count, 4);
    }

    #[test]
    fn lines_that_the_readings_cause_take_back_those_before() {
        let mut errors = Errors::default();
        errors.add(&error("cmd 7 failed", None), 1);
        errors.add(&error("cmd 8 failed", None), 2);
        let ours = |text| LoggedError {
            ours: true,
            ..error(text, None)
        };
        errors.add(&ours("another"), 3);
        assert!(errors.last.is_some(), "it says something else");
        errors.add(&ours("cmd 9 failed"), 4);
        assert_eq!((errors.count, errors.last), (2, None));
    }

    #[test]
    fn an_error_concerns_the_function_or_the_device_that_it_names() {
        let pci = Some("0000:3b:00.0");
        for (text, device, is) in [
            ("mlx5_core 0000:3b:00.0: cmd failed", None, true),
            ("mlx5_core 0000:3b:00.0 eth0: failed", None, true),
            ("syndrome", Some("+pci:0000:3b:00.0"), true),
            ("syndrome", Some("+pci:0000:3b:00.1"), false),
            ("mlx5_core 0000:3b:00.1: cmd failed", None, false),
            ("infiniband mlx5_0: REG_MR err -12", None, true),
            ("mlx5_core 0000:af:00.0 mlx5_0: REG_MR", None, true),
            ("infiniband mlx5_01: REG_MR err -12", None, false),
            ("a text with mlx5_0 and no colon", None, false),
            (
                "[qedr_affiliated_event:738(mlx5_0)]CQ event 1 on handle 3",
                None,
                true,
            ),
            (
                "[qedr_affiliated_event:738(mlx5_01)]CQ event 1 on handle 3",
                None,
                false,
            ),
        ] {
            assert_eq!(concerns(&error(text, device), "mlx5_0", pci), is, "{text}");
        }
        assert!(concerns(&error("rdma_rxe: rxe0: failed", None), "rxe0", None));
        assert!(!concerns(&error(": failed", None), "", None));
    }
}
