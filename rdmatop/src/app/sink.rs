//! Where events go, and what happens when nobody takes them.

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::writer::{Format, PAGE_BYTES, Page};
use crate::model::event::{Event, EventKind};
use crate::model::filter::Filter;

/// Tells when to end: the time at which waiting is over, set once.
pub(super) type End = watch::Receiver<Option<Instant>>;

/// Counts of what became of the lifecycle events. Lines about losses are not counted among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Events that the engine made.
    pub(super) seen: u64,
    /// Of these, not asked for.
    pub(super) filtered: u64,
    /// Of these, asked for and not taken by the view.
    pub(super) refused: u64,
}

/// The way to the view.
#[derive(Debug)]
pub(super) enum Sink {
    /// No view wants events.
    Nobody,
    /// Lines: waits for room. The ring buffer in the kernel is the store meanwhile, and counts what it loses.
    Lines(Lines),
    /// The live view: what finds no room is refused and told as a loss, so that the screen never stands still.
    Drop(mpsc::Sender<Event>),
}

/// The way to the writer. Events become text here, where they are made: a page that changes threads costs one
/// wake-up, events that change threads one by one cost more than all that is done with them.
#[derive(Debug)]
pub(super) struct Lines {
    format: Format,
    page: Page,
    to: mpsc::Sender<Page>,
}

impl Lines {
    /// Lines for a writer.
    pub(super) fn new(format: Format, to: mpsc::Sender<Page>) -> Self {
        Self {
            format,
            page: Page::default(),
            to,
        }
    }
}

impl Sink {
    /// Hands an event on if the filter lets it. Lines wait for [`Sink::flush`].
    pub(super) fn give(&mut self, event: &Event, filter: &Filter, tally: &mut Tally) {
        let counts = event.event != EventKind::Lost;
        tally.seen += u64::from(counts);
        if !filter.matches_event(event) {
            tally.filtered += u64::from(counts);
            return;
        }
        match self {
            Self::Nobody => {}
            Self::Lines(lines) => lines.page.push(lines.format, event),
            Self::Drop(to) => tally.refused += u64::from(to.try_send(event.clone()).is_err() && counts),
        }
    }

    /// The page is large enough to be written for itself.
    pub(super) fn is_full(&self) -> bool {
        matches!(self, Self::Lines(lines) if lines.page.text.len() >= PAGE_BYTES)
    }

    /// Hands a begun page to the writer. Waits for room, and after the end no longer than its grace.
    pub(super) async fn flush(&mut self, tally: &mut Tally, end: &mut End) {
        let Self::Lines(lines) = self else { return };
        if lines.page.text.is_empty() {
            return;
        }
        // The next page is as long as this one, more or less.
        let next = Page {
            text: Vec::with_capacity(lines.page.text.len()),
            events: 0,
        };
        let page = std::mem::replace(&mut lines.page, next);
        let events = page.events;
        let taken = tokio::select! {
            biased;
            room = lines.to.reserve() => room.map(|permit| permit.send(page)).is_ok(),
            () = over(end) => false,
        };
        if !taken {
            tally.refused += events;
        }
    }
}

/// Waits until the end is asked for.
pub(super) async fn asked(end: &mut End) {
    if end.wait_for(Option::is_some).await.is_err() {
        // The asker is gone without having asked: nobody will.
        std::future::pending::<()>().await;
    }
}

/// Waits until the end is asked for and its grace is over.
pub(super) async fn over(end: &mut End) {
    let at = match end.wait_for(Option::is_some).await {
        Ok(at) => *at,
        Err(_) => None,
    };
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn event(kind: EventKind) -> Event {
        Event::new(kind, 0, 0)
    }

    #[test]
    fn every_event_is_given_filtered_or_refused() {
        let (to, mut from) = mpsc::channel(1);
        let mut sink = Sink::Drop(to);
        let filter = Filter {
            events: vec![EventKind::QpCreate],
            ..Filter::default()
        };
        let mut tally = Tally::default();
        for kind in [EventKind::QpCreate, EventKind::QpCreate, EventKind::MrReg] {
            sink.give(&event(kind), &filter, &mut tally);
        }
        assert_eq!(
            tally,
            Tally {
                seen: 3,
                filtered: 1,
                refused: 1
            }
        );
        assert!(from.try_recv().is_ok());
        sink.give(&event(EventKind::Lost), &filter, &mut tally);
        assert_eq!(
            from.try_recv().unwrap().event,
            EventKind::Lost,
            "losses pass every filter"
        );
        assert_eq!(tally.seen, 3, "a loss is no lifecycle event");
    }

    #[tokio::test]
    async fn events_given_one_by_one_leave_as_one_page() {
        let (to, mut from) = mpsc::channel(1);
        let (_asker, mut end) = watch::channel(None);
        let mut sink = Sink::Lines(Lines::new(Format::Json, to));
        let (filter, mut tally) = (Filter::default(), Tally::default());
        for kind in [EventKind::QpCreate, EventKind::Lost, EventKind::MrReg] {
            sink.give(&event(kind), &filter, &mut tally);
        }
        sink.flush(&mut tally, &mut end).await;
        let page = from.try_recv().unwrap();
        let text = String::from_utf8(page.text).unwrap();
        assert_eq!((text.lines().count(), page.events), (3, 2), "{text}");
        sink.flush(&mut tally, &mut end).await;
        assert!(
            from.try_recv().is_err(),
            "nothing is written when there is nothing"
        );
    }

    #[tokio::test]
    async fn a_writer_that_does_not_take_holds_up_until_the_grace_is_over_and_no_longer() {
        let (to, _from) = mpsc::channel(1);
        let (asker, mut end) = watch::channel(None);
        let mut sink = Sink::Lines(Lines::new(Format::Lines, to));
        let (filter, mut tally) = (Filter::default(), Tally::default());
        sink.give(&event(EventKind::MrReg), &filter, &mut tally);
        sink.flush(&mut tally, &mut end).await;
        let begin = Instant::now();
        asker.send(Some(begin + Duration::from_millis(200))).unwrap();
        for _ in 0..3 {
            sink.give(&event(EventKind::MrReg), &filter, &mut tally);
        }
        sink.flush(&mut tally, &mut end).await;
        assert_eq!(
            tally,
            Tally {
                seen: 4,
                filtered: 0,
                refused: 3
            }
        );
        assert!(begin.elapsed() >= Duration::from_millis(200));
    }
}
