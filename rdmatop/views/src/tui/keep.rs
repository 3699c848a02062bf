//! Writes changed settings some time after the last change, on a thread of its own: a home directory may be
//! on a server that does not answer, and the screen must not wait for it.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use super::settings::Settings;

/// A change is written when no other came for this long: stepping through the themes is one write.
pub(super) const QUIET: Duration = Duration::from_secs(2);

/// How long the program waits at its end for the file to be written: a home directory whose server does not
/// answer must not keep it.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// The channel to the thread, and the one by which its result comes at the end.
type Work = (Sender<Settings>, Receiver<Result<(), String>>);

/// Keeps settings. Nothing runs until the first change.
pub(super) struct SettingsWriter<S> {
    save: S,
    quiet: Duration,
    work: Option<Work>,
    /// The last settings when no thread could be started.
    left: Option<Settings>,
}

impl<S: Fn(&Settings) -> Result<(), String> + Clone + Send + 'static> SettingsWriter<S> {
    /// `save` writes the settings when nothing has changed for `quiet`.
    pub(super) fn new(save: S, quiet: Duration) -> Self {
        Self {
            save,
            quiet,
            work: None,
            left: None,
        }
    }

    /// Takes a change. Never waits.
    pub(super) fn changed(&mut self, settings: &Settings) {
        if self.work.is_none() {
            let (to, from) = mpsc::channel();
            let (quiet, save) = (self.quiet, self.save.clone());
            let thread = thread::Builder::new().name("rdmatop-keep".to_owned());
            // If no thread can be started, `finish` writes.
            let (done_tx, done) = mpsc::channel();
            let thread = thread.spawn(move || drop(done_tx.send(keep(&from, quiet, save))));
            self.work = thread.ok().map(|_| (to, done));
        }
        match &self.work {
            // Only a panic ends the thread before its sender; `finish` reports that.
            Some((to, _)) => drop(to.send(settings.clone())),
            None => self.left = Some(settings.clone()),
        }
    }

    /// Writes what is not written yet, and waits for that at most `patience`. `Err` says why the changes are
    /// not saved.
    pub(super) fn finish(self, patience: Duration) -> Result<(), String> {
        match (self.work, self.left) {
            (Some((to, done)), _) => {
                drop(to);
                done.recv_timeout(patience).unwrap_or_else(|error| {
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
            (None, Some(left)) => (self.save)(&left),
            (None, None) => Ok(()),
        }
    }
}

/// Runs until the sender is gone. After a failed write it tries again with the next change, and at the end.
fn keep(
    from: &Receiver<Settings>,
    quiet: Duration,
    save: impl Fn(&Settings) -> Result<(), String>,
) -> Result<(), String> {
    let mut outcome = Ok(());
    let mut last = None;
    while let Ok(first) = from.recv() {
        let mut newest = first;
        let over = loop {
            match from.recv_timeout(quiet) {
                Ok(newer) => newest = newer,
                Err(RecvTimeoutError::Timeout) => break false,
                Err(RecvTimeoutError::Disconnected) => break true,
            }
        };
        outcome = save(&newest);
        if over {
            return outcome;
        }
        last = Some(newest);
    }
    match last {
        Some(newest) if outcome.is_err() => save(&newest),
        _ => outcome,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    const LONG: Duration = Duration::from_mins(1);

    /// What was written, and how many of the next writes fail.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<(Vec<f64>, u32)>>);

    impl Disk {
        fn writer(
            &self,
            quiet: Duration,
        ) -> SettingsWriter<impl Fn(&Settings) -> Result<(), String> + Clone + Send + use<>> {
            let disk = self.clone();
            let save = move |settings: &Settings| {
                let mut disk = disk.0.lock().unwrap();
                if disk.1 > 0 {
                    disk.1 -= 1;
                    return Err("disk full".to_owned());
                }
                disk.0.push(settings.delay);
                Ok(())
            };
            SettingsWriter::new(save, quiet)
        }

        fn wait_for(&self, writes: usize) {
            let end = std::time::Instant::now() + Duration::from_mins(1);
            while self.written().len() < writes {
                assert!(std::time::Instant::now() < end, "no write within a minute");
                thread::sleep(Duration::from_millis(5));
            }
        }

        fn written(&self) -> Vec<f64> {
            self.0.lock().unwrap().0.clone()
        }
    }

    fn delay(delay: f64) -> Settings {
        Settings {
            delay,
            ..Settings::default()
        }
    }

    #[test]
    fn a_change_is_written_without_an_end_and_not_written_again_at_the_end() {
        let disk = Disk::default();
        let mut writer = disk.writer(Duration::from_millis(1));
        writer.changed(&delay(2.0));
        disk.wait_for(1);
        writer.changed(&delay(3.0));
        disk.wait_for(2);
        assert_eq!(writer.finish(LONG), Ok(()));
        assert_eq!(disk.written(), [2.0, 3.0]);
    }

    #[test]
    fn changes_in_a_row_are_one_write_and_the_end_does_not_wait_for_the_quiet() {
        let disk = Disk::default();
        let mut writer = disk.writer(Duration::from_hours(1));
        for n in 1..=20 {
            writer.changed(&delay(f64::from(n)));
        }
        assert_eq!(writer.finish(LONG), Ok(()));
        assert_eq!(disk.written(), [20.0]);
    }

    #[test]
    fn a_failed_write_is_tried_again_at_the_end_and_then_reported() {
        for (fails, done) in [(1, Ok(())), (9, Err("disk full".to_owned()))] {
            let disk = Disk::default();
            disk.0.lock().unwrap().1 = fails;
            let mut writer = disk.writer(Duration::from_millis(1));
            writer.changed(&delay(2.0));
            let end = std::time::Instant::now() + Duration::from_mins(1);
            while disk.0.lock().unwrap().1 == fails {
                assert!(std::time::Instant::now() < end, "no write within a minute");
                thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(writer.finish(LONG), done);
            assert_eq!(disk.written().len(), usize::from(done.is_ok()));
        }
    }

    #[test]
    fn a_file_system_that_does_not_answer_does_not_keep_the_end() {
        let (answer, answered) = mpsc::channel::<()>();
        let answered = Arc::new(Mutex::new(answered));
        let mut writer = SettingsWriter::new(
            move |_: &Settings| {
                let _ = answered.lock().unwrap().recv();
                Ok(())
            },
            Duration::ZERO,
        );
        writer.changed(&delay(2.0));
        let why = writer.finish(Duration::from_millis(50)).unwrap_err();
        assert!(why.contains("did not answer"), "{why}");
        drop(answer);
    }

    #[test]
    fn without_a_change_nothing_is_written() {
        let disk = Disk::default();
        assert_eq!(disk.writer(QUIET).finish(LONG), Ok(()));
        assert!(disk.written().is_empty());
    }
}
