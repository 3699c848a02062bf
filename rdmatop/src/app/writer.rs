//! The thread that writes event lines: a slow reader holds up this thread and not the engine.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::patience::stretched;
use crate::exit::{Stop, Written, written};
use rdmatop_model::event::Event;
use rdmatop_sources::limits;
use rdmatop_views::{json, line};

/// Pages that wait for the writer: some 2 MB of lines, and 10 MB where each is a long JSON object.
const WAITING: usize = 32;
/// So many bytes of a text are written at a time: the size of a pipe.
const PAGE_BYTES: usize = 64 << 10;

/// How events are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Lines under a header.
    Lines,
    /// One JSON object a line.
    Json,
}

/// Events that have become text, and how many of them are lifecycle events.
#[derive(Debug, Default)]
pub(super) struct Page {
    /// Whole lines.
    pub(super) text: Vec<u8>,
    /// Lines about losses are not counted.
    pub(super) events: u64,
}

impl Page {
    pub(super) fn push(&mut self, format: Format, event: &Event) {
        match format {
            Format::Json => json::event(&mut self.text, event),
            Format::Lines => {
                line::event::line(&mut self.text, event);
                self.text.push(b'\n');
            }
        }
        self.events += u64::from(!event.event.is_concluded());
    }
}

/// Standard output, for a thread that may wait for its reader.
pub(super) fn stdout() -> Result<File, Stop> {
    let own = io::stdout().as_fd().try_clone_to_owned();
    own.map(File::from)
        .map_err(|e| Stop::failure(format!("cannot use stdout: {e}")))
}

/// Waits until nothing was written for this long.
pub(super) async fn stalls(printed: &AtomicU64, time: Duration) {
    loop {
        let before = printed.load(Ordering::Relaxed);
        sleep(time).await;
        if printed.load(Ordering::Relaxed) == before {
            return;
        }
    }
}

/// Writes all of `bytes`, and says how that went.
pub(super) fn whole(mut out: impl Write + Send + 'static, bytes: Vec<u8>) -> Result<Writer, Stop> {
    Writer::start(move |written| {
        for part in bytes.chunks(PAGE_BYTES) {
            out.write_all(part)?;
            written.fetch_add(part.len() as u64, Ordering::Relaxed);
        }
        out.flush()
    })
}

/// How long the start of a thread is tried again when it is refused. A thread that has ended counts against
/// the limit of processes (RLIMIT_NPROC) until the kernel has taken it apart, a moment after its last
/// instruction: a reader that has just ended may be in the way.
const TRIED_FOR: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(10);

/// Tries until it succeeds, or the time is over.
fn retried<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let end = Instant::now() + stretched(TRIED_FOR);
    loop {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                thread::sleep(PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// A thread that writes: a reader that does not read holds it up for ever.
pub(super) struct Writer {
    /// Lifecycle events that have been written, or bytes of a text.
    pub(super) printed: Arc<AtomicU64>,
    /// How it ended: after the last page, or because the reader is gone.
    pub(super) outcome: oneshot::Receiver<Result<Written, Stop>>,
}

impl Writer {
    /// Runs `work`, which counts what it has written, in a thread of its own.
    fn start(work: impl FnOnce(&AtomicU64) -> io::Result<()> + Send + 'static) -> Result<Self, Stop> {
        let printed = Arc::new(AtomicU64::new(0));
        let (tell, outcome) = oneshot::channel();
        // A refused spawn drops its closure: the work is kept outside of it for the next try.
        let work = Arc::new(Mutex::new(Some((work, tell, Arc::clone(&printed)))));
        retried(|| {
            let work = Arc::clone(&work);
            thread::Builder::new().name("writer".to_owned()).spawn(move || {
                let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some((work, tell, printed)) = work {
                    // The receiver of the outcome is gone only when the program ends anyway.
                    let _ = tell.send(written(work(&printed)));
                }
            })
        })
        .map_err(|e| Stop::failure(format!("cannot start a thread: {e}; {}", limits::threads())))?;
        Ok(Self { printed, outcome })
    }
}

/// Starts the thread that writes the pages of a trace.
pub(super) fn start(
    format: Format,
    out: impl Write + Send + 'static,
) -> Result<(mpsc::Sender<Page>, Writer), Stop> {
    let (to, from) = mpsc::channel(WAITING);
    Ok((
        to,
        Writer::start(move |printed| work(format, out, from, printed))?,
    ))
}

fn work(
    format: Format,
    mut out: impl Write,
    mut from: mpsc::Receiver<Page>,
    printed: &AtomicU64,
) -> io::Result<()> {
    if format == Format::Lines {
        let mut header = line::event::header();
        header.push('\n');
        out.write_all(header.as_bytes())?;
        out.flush()?;
    }
    while let Some(page) = from.blocking_recv() {
        // One write a page, flushed: what was seen is on its way before the next wait.
        out.write_all(&page.text)?;
        out.flush()?;
        printed.fetch_add(page.events, Ordering::Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_model::testkit::full;

    #[test]
    fn only_a_thread_that_is_refused_for_a_moment_is_tried_again() {
        let mut attempts = 0;
        let had = retried(|| {
            attempts += 1;
            if attempts < 4 {
                Err(io::ErrorKind::WouldBlock.into())
            } else {
                Ok(attempts)
            }
        });
        assert_eq!(had.unwrap(), 4);
        let began = Instant::now();
        assert!(retried(|| Err::<(), _>(io::ErrorKind::OutOfMemory.into())).is_err());
        assert!(began.elapsed() < TRIED_FOR);
        assert!(retried(|| Err::<(), _>(io::ErrorKind::WouldBlock.into())).is_err());
        assert!(began.elapsed() >= TRIED_FOR);
    }

    #[derive(Clone, Default)]
    struct Paper {
        writes: Arc<Mutex<Vec<Vec<u8>>>>,
        closed: bool,
    }

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.closed {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.writes.lock().unwrap().push(bytes.to_vec());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn page(format: Format) -> Page {
        let mut page = Page::default();
        for event in full::events() {
            page.push(format, &event);
        }
        page
    }

    #[tokio::test]
    async fn a_page_is_one_write_and_every_event_a_line() {
        for (format, headers) in [(Format::Json, 0), (Format::Lines, 1)] {
            let paper = Paper::default();
            let (to, writer) = start(format, paper.clone()).unwrap();
            to.send(page(format)).await.unwrap();
            drop(to);
            assert_eq!(writer.outcome.await.unwrap(), Ok(Written::All));
            assert_eq!(
                writer.printed.load(Ordering::Relaxed),
                full::events().len() as u64 - 3,
                "the loss and the two about findings are not counted"
            );
            let writes = paper.writes.lock().unwrap();
            assert_eq!(writes.len(), 1 + headers);
            assert_eq!(
                std::str::from_utf8(&writes[headers]).unwrap().lines().count(),
                full::events().len()
            );
        }
    }

    #[tokio::test]
    async fn a_reader_that_went_away_ends_the_writer_without_a_failure() {
        let paper = Paper {
            closed: true,
            ..Paper::default()
        };
        let (to, writer) = start(Format::Json, paper).unwrap();
        let _ = to.send(page(Format::Json)).await;
        assert_eq!(writer.outcome.await.unwrap(), Ok(Written::ReaderGone));
        assert_eq!(writer.printed.load(Ordering::Relaxed), 0);
    }
}
