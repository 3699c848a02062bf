//! Where events go, and what happens when nobody takes them.

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

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
    Wait(mpsc::Sender<Event>),
    /// The live view: what finds no room is refused and told as a loss, so that the screen never stands still.
    Drop(mpsc::Sender<Event>),
}

impl Sink {
    /// Hands an event on if the filter lets it.
    pub(super) async fn give(&self, event: Event, filter: &Filter, tally: &mut Tally, end: &mut End) {
        let counts = event.event != EventKind::Lost;
        tally.seen += u64::from(counts);
        if !filter.matches_event(&event) {
            tally.filtered += u64::from(counts);
            return;
        }
        let taken = match self {
            Self::Nobody => true,
            Self::Drop(to) => to.try_send(event).is_ok(),
            Self::Wait(to) => tokio::select! {
                biased;
                room = to.reserve() => room.map(|permit| permit.send(event)).is_ok(),
                () = over(end) => false,
            },
        };
        tally.refused += u64::from(counts && !taken);
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

    #[tokio::test]
    async fn every_event_is_given_filtered_or_refused() {
        let (to, mut from) = mpsc::channel(1);
        let (_asker, mut end) = watch::channel(None);
        let sink = Sink::Drop(to);
        let filter = Filter {
            events: vec![EventKind::QpCreate],
            ..Filter::default()
        };
        let mut tally = Tally::default();
        for kind in [EventKind::QpCreate, EventKind::QpCreate, EventKind::MrReg] {
            sink.give(event(kind), &filter, &mut tally, &mut end).await;
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
        sink.give(event(EventKind::Lost), &filter, &mut tally, &mut end)
            .await;
        assert_eq!(
            from.try_recv().unwrap().event,
            EventKind::Lost,
            "losses pass every filter"
        );
        assert_eq!(tally.seen, 3, "a loss is no lifecycle event");
    }

    #[tokio::test]
    async fn a_view_that_does_not_take_holds_up_until_the_grace_is_over_and_no_longer() {
        let (to, _from) = mpsc::channel(1);
        let (asker, mut end) = watch::channel(None);
        let sink = Sink::Wait(to);
        let (filter, mut tally) = (Filter::default(), Tally::default());
        sink.give(event(EventKind::MrReg), &filter, &mut tally, &mut end)
            .await;
        let begin = Instant::now();
        asker.send(Some(begin + Duration::from_millis(200))).unwrap();
        sink.give(event(EventKind::MrReg), &filter, &mut tally, &mut end)
            .await;
        assert_eq!(
            tally,
            Tally {
                seen: 2,
                filtered: 0,
                refused: 1
            }
        );
        assert!(begin.elapsed() >= Duration::from_millis(200));
    }
}
