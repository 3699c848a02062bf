//! Writes changed settings when the view ends, on a thread of its own: a home directory may be on a server
//! that does not answer, and that must not keep the program.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// How long the program waits at its end for the file to be written.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// Runs `save` and waits at most `patience` for its result. `Err` says why the settings are not saved.
pub(super) fn save_within(
    patience: Duration,
    save: impl FnOnce() -> Result<(), String> + Send + 'static,
) -> Result<(), String> {
    let (done, result) = mpsc::channel();
    let thread = thread::Builder::new().name("rdmatop-keep".to_owned());
    thread
        .spawn(move || drop(done.send(save())))
        .map_err(|error| format!("no thread could be started for it: {error}"))?;
    result.recv_timeout(patience).unwrap_or_else(|error| {
        Err(match error {
            RecvTimeoutError::Timeout => format!(
                "the file system of the settings did not answer for {} s",
                patience.as_secs()
            ),
            RecvTimeoutError::Disconnected => {
                "writing it ended by itself: this is a defect of rdmatop".to_owned()
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_of_saving_is_reported() {
        let minute = Duration::from_mins(1);
        assert_eq!(save_within(minute, || Ok(())), Ok(()));
        let full = || Err("disk full".to_owned());
        assert_eq!(save_within(minute, full), full());
    }

    #[test]
    fn a_file_system_that_does_not_answer_does_not_keep_the_end() {
        let (answer, answered) = mpsc::channel::<()>();
        let save = move || {
            let _ = answered.recv();
            Ok(())
        };
        let why = save_within(Duration::from_millis(50), save).unwrap_err();
        assert!(why.contains("did not answer"), "{why}");
        drop(answer);
    }
}
