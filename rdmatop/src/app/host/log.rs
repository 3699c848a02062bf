//! Errors in the kernel's log.

use rdmatop_model::input::{Input, LoggedError};
use rdmatop_sources::kernel_log::KernelLog;

/// Sends what is new in the log.
pub struct LogSource {
    log: KernelLog,
    /// Whether the log could be read at the last look; `None` before the first.
    readable: Option<bool>,
}

impl LogSource {
    /// `log` was opened before privileges were given up.
    pub fn new(log: KernelLog) -> Self {
        Self { log, readable: None }
    }

    /// Whether the last look left lines in the log.
    pub(super) fn is_behind(&self) -> bool {
        self.log.is_behind()
    }

    /// Sends what was logged since the last look; `weigh` marks which of it is because of rdmatop.
    pub(super) fn look(&mut self, weigh: impl FnOnce(&mut [LoggedError]), out: &mut dyn FnMut(Input)) {
        let mut errors = self.log.errors();
        weigh(errors.as_deref_mut().unwrap_or_default());
        let same = self.readable.replace(errors.is_ok()) == Some(errors.is_ok());
        // If nothing is new, nothing is sent.
        if !same || errors.as_ref().is_ok_and(|errors| !errors.is_empty()) {
            out(Input::Logged(errors.map_err(|cause| Box::new(cause.clone()))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_model::cause::{Cause, CauseId, Concerns};

    #[test]
    fn a_log_that_cannot_be_read_is_reported_once() {
        let cause = Cause {
            id: CauseId::NoKernelLog,
            concerns: Concerns::Host,
            what: "a".into(),
            why: "b".into(),
            remedy: "c".into(),
        };
        let mut source = LogSource::new(KernelLog::of(Err(cause)));
        let mut sent = Vec::new();
        for _ in 0..3 {
            source.look(|_| (), &mut |input| sent.push(input));
        }
        assert!(matches!(sent[..], [Input::Logged(Err(_))]), "{sent:?}");
    }
}
