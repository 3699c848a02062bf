//! Counts the results in the output of a test run.

/// Counts of one part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
    /// Failed first but passed in a second run: counted neither as passed nor as failed.
    pub(super) flaky: u64,
    /// How many of all these are tests; style checks and builds are none.
    pub(super) tests: u64,
    /// Printed skips of a run whose result line has not arrived yet.
    pending: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.flaky += other.flaky;
        self.tests += other.tests;
    }

    /// Takes a line of a test run: libtest's result line, or a skip that a kernel test prints (libtest counts
    /// that test as passed).
    pub(super) fn line(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("test result: ") {
            let count = |what: &str| {
                rest.split([';', '.'])
                    .find_map(|part| part.trim().strip_suffix(what)?.trim().parse::<u64>().ok())
                    .unwrap_or(0)
            };
            let (passed, failed, ignored) = (count("passed"), count("failed"), count("ignored"));
            self.tests += passed + failed + ignored;
            // A skip may be of a part of a test: more skips than passed tests do not count.
            let skipped = std::mem::take(&mut self.pending).min(passed);
            self.passed += passed - skipped;
            self.failed += failed;
            self.skipped += skipped + ignored;
        } else if line.contains("SKIPPED ") {
            self.pending += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_add_up_and_a_skip_is_no_pass() {
        let mut counts = Counts::default();
        counts.line("test a ... SKIPPED a: not on this kernel");
        counts.line("test b ... ok");
        counts.line("test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out");
        counts.line("test result: FAILED. 12 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out");
        assert_eq!(
            counts,
            Counts {
                passed: 14,
                failed: 2,
                skipped: 2,
                flaky: 0,
                tests: 18,
                pending: 0
            }
        );
    }
}
