//! The thread that writes event lines: a slow reader holds up this thread and not the engine.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tokio::sync::{mpsc, oneshot};

use crate::exit::{Stop, Written, written};
use crate::model::event::{Event, EventKind};
use crate::view::{json, line};

/// Events that wait for the writer: some 5 MB.
const WAITING: usize = 8192;
/// Bytes after which a batch is written: the size of a pipe.
const BATCH_BYTES: usize = 64 << 10;

/// How events are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Lines under a header.
    Lines,
    /// One JSON object a line.
    Json,
}

/// A running writer.
pub(super) struct Writer {
    /// Lifecycle events that have been written.
    pub(super) printed: Arc<AtomicU64>,
    /// How it ended: after the last event, or because nobody reads.
    pub(super) outcome: oneshot::Receiver<Result<Written, Stop>>,
}

/// Starts the writer.
pub(super) fn start(
    format: Format,
    out: impl Write + Send + 'static,
) -> Result<(mpsc::Sender<Event>, Writer), Stop> {
    let (to, from) = mpsc::channel(WAITING);
    let printed = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&printed);
    let (tell, outcome) = oneshot::channel();
    thread::Builder::new()
        .name("writer".to_owned())
        .spawn(move || {
            // The receiver of the outcome is gone only when the program ends anyway.
            let _ = tell.send(written(work(format, out, from, &counter)));
        })
        .map_err(|e| Stop::failure(format!("cannot start a thread: {e}")))?;
    Ok((to, Writer { printed, outcome }))
}

fn work(
    format: Format,
    mut out: impl Write,
    mut from: mpsc::Receiver<Event>,
    printed: &AtomicU64,
) -> io::Result<()> {
    let mut batch = Vec::with_capacity(BATCH_BYTES);
    let mut text = String::new();
    if format == Format::Lines {
        out.write_all(line::event::header().as_bytes())?;
        out.write_all(b"\n")?;
        out.flush()?;
    }
    while let Some(first) = from.blocking_recv() {
        batch.clear();
        let mut count = 0;
        let mut next = Some(first);
        while let Some(event) = next {
            append(&mut batch, &mut text, format, &event)?;
            count += u64::from(event.event != EventKind::Lost);
            next = if batch.len() < BATCH_BYTES {
                from.try_recv().ok()
            } else {
                None
            };
        }
        // One write a batch, flushed: what was seen is on its way before the next wait.
        out.write_all(&batch)?;
        out.flush()?;
        printed.fetch_add(count, Ordering::Relaxed);
    }
    Ok(())
}

fn append(batch: &mut Vec<u8>, text: &mut String, format: Format, event: &Event) -> io::Result<()> {
    match format {
        Format::Json => json::event(batch, event),
        Format::Lines => {
            text.clear();
            line::event::line(text, event);
            text.push('\n');
            batch.extend_from_slice(text.as_bytes());
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::fixture;
    use std::sync::Mutex;

    #[derive(Clone, Default)]
    struct Page {
        writes: Arc<Mutex<Vec<Vec<u8>>>>,
        closed: bool,
    }

    impl Write for Page {
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

    #[tokio::test]
    async fn a_batch_is_one_write_and_every_event_a_line() {
        let page = Page::default();
        let (to, from) = mpsc::channel(WAITING);
        for event in fixture::events() {
            to.send(event).await.unwrap();
        }
        drop(to);
        let (out, printed) = (page.clone(), AtomicU64::new(0));
        tokio::task::spawn_blocking(move || {
            work(Format::Json, out, from, &printed).unwrap();
            assert_eq!(
                printed.load(Ordering::Relaxed),
                fixture::events().len() as u64 - 1,
                "the loss is not counted"
            );
        })
        .await
        .unwrap();
        let writes = page.writes.lock().unwrap();
        assert_eq!(writes.len(), 1);
        assert_eq!(
            std::str::from_utf8(&writes[0]).unwrap().lines().count(),
            fixture::events().len()
        );
    }

    #[tokio::test]
    async fn a_reader_that_went_away_ends_the_writer_without_a_failure() {
        let page = Page {
            closed: true,
            ..Page::default()
        };
        let (to, writer) = start(Format::Json, page).unwrap();
        for event in fixture::events() {
            let _ = to.send(event).await;
        }
        assert_eq!(writer.outcome.await.unwrap(), Ok(Written::ReaderGone));
        assert_eq!(writer.printed.load(Ordering::Relaxed), 0);
    }
}
