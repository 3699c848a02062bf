//! Where events go, and what happens when the view does not take them.

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::reorder::Reorder;
use super::writer::{Format, Page};
use rdmatop_model::event::{Event, EventKind};
use rdmatop_model::filter::Filter;

/// When to end: the time at which waiting is over, set once.
pub(super) type End = watch::Receiver<Option<Instant>>;

/// Counts of lifecycle events by their fate. Lines about losses are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EventCounts {
    /// Events that the engine made.
    pub(super) seen: u64,
    /// Events among these that were not asked for.
    pub(super) filtered: u64,
    /// Events among these that the view did not take.
    pub(super) refused: u64,
    /// Posts and ends of work requests among all seen.
    pub(super) work: u64,
    /// Work requests among these that were not asked for: the kernel side cannot compare everything.
    pub(super) work_filtered: u64,
    /// Posts of processes that were let through, and of these the ones whose thread is not known.
    pub(super) posts: u64,
    pub(super) posts_without_thread: u64,
}

/// So many events make a page for the writer, although more are at hand: some 64 KiB of lines, the size of a
/// pipe, and up to 300 KiB of JSON.
const FULL: usize = 512;

/// The way to the view. Events wait here, so that they leave in the order of their times.
#[derive(Debug)]
pub(super) struct Sink {
    order: Reorder<Event>,
    to: To,
}

/// The view that takes the events.
#[derive(Debug)]
pub(super) enum To {
    /// No view wants events.
    Nobody,
    /// Lines: waits for room. Meanwhile the ring buffer in the kernel stores records and counts those that it
    /// loses. Events become text here: a page for the writer's thread costs one wake-up, and events that are
    /// handed over one by one cost more than all other work on them.
    Lines(Format, mpsc::Sender<Page>),
    /// The live view: events without room are refused and reported as a loss, so that the screen never
    /// stalls.
    Live(mpsc::Sender<Event>),
}

impl Sink {
    pub(super) fn new(to: To) -> Self {
        let order = Reorder::default();
        Self { order, to }
    }

    pub(super) fn is_live(&self) -> bool {
        matches!(self.to, To::Live(_))
    }

    /// Takes an event if the filter lets it. It waits for [`Sink::flush`].
    pub(super) fn give(&mut self, event: Event, filter: &Filter, counts: &mut EventCounts) {
        let is_event = u64::from(!event.event.is_concluded());
        counts.seen += is_event;
        let is_work = u64::from(event.event.is_on_request());
        counts.work += is_work;
        if !filter.matches_event(&event) {
            counts.filtered += is_event;
            counts.work_filtered += is_work;
            return;
        }
        if event.event == EventKind::WrPost && !event.kernel {
            counts.posts += 1;
            counts.posts_without_thread += u64::from(event.tid.is_none());
        }
        self.take(event);
    }

    /// Takes an event that is wanted. It waits for [`Sink::flush`].
    pub(super) fn take(&mut self, event: Event) {
        if matches!(self.to, To::Nobody) {
            return;
        }
        // A loss is detected some time after it happened, and a finding while records of earlier times are on
        // their way: its line stands where it was detected.
        if event.event.is_concluded() {
            self.order.push_behind(event);
        } else {
            self.order.push(event.mono_ns, event);
        }
    }

    /// The youngest time of an event.
    pub(super) fn newest_ns(&self) -> u64 {
        self.order.newest_ns()
    }

    /// Whether anything waits.
    pub(super) fn holds(&self) -> bool {
        self.order.len() > 0
    }

    /// Whether enough waits for a page of its own.
    pub(super) fn is_full(&self) -> bool {
        self.order.len() >= FULL && !self.is_live()
    }

    /// Hands on what happened up to `until_ns`, in the order of times. Lines wait for room, after the end no
    /// longer than its grace.
    pub(super) async fn flush(&mut self, until_ns: u64, counts: &mut EventCounts, end: &mut End) {
        let events = self.order.take(until_ns);
        let (format, to) = match &self.to {
            To::Nobody => return,
            To::Lines(format, to) => (*format, to),
            To::Live(to) => {
                for event in events {
                    let is_event = !event.event.is_concluded();
                    counts.refused += u64::from(to.try_send(event).is_err() && is_event);
                }
                return;
            }
        };
        let mut page = Page::default();
        events.for_each(|event| page.push(format, &event));
        if page.text.is_empty() {
            return;
        }
        let events = page.events;
        let taken = tokio::select! {
            biased;
            room = to.reserve() => room.map(|permit| permit.send(page)).is_ok(),
            () = over(end) => false,
        };
        if !taken {
            counts.refused += events;
        }
    }
}

/// Waits until the end is requested.
pub(super) async fn asked(end: &mut End) {
    if end.wait_for(Option::is_some).await.is_err() {
        // The requesting side is gone without a request, so none will come.
        std::future::pending::<()>().await;
    }
}

/// Waits until the end is requested and its grace is over.
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
    use proptest::prelude::*;
    use rdmatop_model::event::EventKind;
    use std::time::Duration;

    fn event(kind: EventKind) -> Event {
        Event::new(kind, 0, 0)
    }

    #[tokio::test]
    async fn every_event_is_given_filtered_or_refused() {
        let (to, mut from) = mpsc::channel(1);
        let (_asker, mut end) = watch::channel(None);
        let mut sink = Sink::new(To::Live(to));
        let filter = Filter {
            events: vec![EventKind::QpCreate],
            ..Filter::default()
        };
        let mut counts = EventCounts::default();
        for kind in [EventKind::QpCreate, EventKind::QpCreate, EventKind::MrReg] {
            sink.give(event(kind), &filter, &mut counts);
        }
        sink.flush(0, &mut counts, &mut end).await;
        assert_eq!(
            counts,
            EventCounts {
                seen: 3,
                filtered: 1,
                refused: 1,
                ..EventCounts::default()
            }
        );
        assert!(from.try_recv().is_ok());
        sink.give(event(EventKind::Lost), &filter, &mut counts);
        sink.flush(0, &mut counts, &mut end).await;
        assert_eq!(
            from.try_recv().unwrap().event,
            EventKind::Lost,
            "losses pass every filter"
        );
        assert_eq!(counts.seen, 3, "a loss is no lifecycle event");
    }

    #[tokio::test]
    async fn events_given_one_by_one_leave_as_one_page() {
        let (to, mut from) = mpsc::channel(1);
        let (_asker, mut end) = watch::channel(None);
        let mut sink = Sink::new(To::Lines(Format::Json, to));
        let (filter, mut counts) = (Filter::default(), EventCounts::default());
        for kind in [EventKind::QpCreate, EventKind::Lost, EventKind::MrReg] {
            sink.give(event(kind), &filter, &mut counts);
        }
        sink.flush(u64::MAX, &mut counts, &mut end).await;
        let page = from.try_recv().unwrap();
        let text = String::from_utf8(page.text).unwrap();
        assert_eq!((text.lines().count(), page.events), (3, 2), "{text}");
        sink.flush(u64::MAX, &mut counts, &mut end).await;
        assert!(
            from.try_recv().is_err(),
            "nothing is written when there is nothing"
        );
    }

    #[tokio::test]
    async fn lines_and_events_leave_in_order_of_time_and_the_youngest_wait() {
        let (to, mut pages) = mpsc::channel(9);
        let (to_view, mut events) = mpsc::channel(9);
        let (_asker, mut end) = watch::channel(None);
        let (filter, mut counts) = (Filter::default(), EventCounts::default());
        let lines = Sink::new(To::Lines(Format::Json, to));
        for mut sink in [lines, Sink::new(To::Live(to_view))] {
            for mono_ns in [20, 30, 10, 50, 40] {
                sink.give(Event::new(EventKind::MrReg, 0, mono_ns), &filter, &mut counts);
            }
            sink.flush(30, &mut counts, &mut end).await;
            assert!(sink.holds());
            sink.give(Event::new(EventKind::MrReg, 0, 45), &filter, &mut counts);
            sink.flush(u64::MAX, &mut counts, &mut end).await;
            assert!(!sink.holds());
        }
        let mut shown = Vec::new();
        while let Ok(page) = pages.try_recv() {
            let lines = String::from_utf8(page.text).unwrap();
            let times = lines.lines().map(|line| {
                serde_json::from_str::<serde_json::Value>(line).unwrap()["mono_ns"]
                    .as_u64()
                    .unwrap()
            });
            let times: Vec<u64> = times.collect();
            assert_eq!(page.events, times.len() as u64);
            shown.push(times);
        }
        assert_eq!(shown, [vec![10, 20, 30], vec![40, 45, 50]]);
        let live: Vec<u64> = std::iter::from_fn(|| events.try_recv().ok())
            .map(|e| e.mono_ns)
            .collect();
        assert_eq!(live, [10, 20, 30, 40, 45, 50]);
        assert_eq!((counts.seen, counts.refused), (12, 0));
    }

    proptest! {
        #[test]
        fn lines_leave_as_events_do_whatever_their_order(
            times in prop::collection::vec((0u64..6, 0u64..3, proptest::option::of(0u64..9)), 1..60),
        ) {
            let (to, mut pages) = mpsc::channel(64);
            let (to_view, mut events) = mpsc::channel(64);
            let (_asker, mut end) = watch::channel(None);
            let (filter, mut counts) = (Filter::default(), EventCounts::default());
            let mut sinks = [
                Sink::new(To::Lines(Format::Json, to)),
                Sink::new(To::Live(to_view)),
            ];
            let mut at = 0;
            let shown = run(async {
                for (step, back, look) in times {
                    at += step;
                    let mono_ns = (at + 2) - back;
                    for sink in &mut sinks {
                        sink.give(Event::new(EventKind::MrReg, 0, mono_ns), &filter, &mut counts);
                        if let Some(look) = look {
                            sink.flush((at + 2).saturating_sub(look), &mut counts, &mut end).await;
                        }
                    }
                }
                for sink in &mut sinks {
                    sink.flush(u64::MAX, &mut counts, &mut end).await;
                }
                let mut shown = Vec::new();
                while let Ok(page) = pages.try_recv() {
                    let text = String::from_utf8(page.text).unwrap();
                    assert_eq!(page.events, text.lines().count() as u64);
                    shown.extend(text.lines().map(|line| {
                        serde_json::from_str::<serde_json::Value>(line).unwrap()["mono_ns"].as_u64().unwrap()
                    }));
                }
                shown
            });
            let live: Vec<u64> = std::iter::from_fn(|| events.try_recv().ok()).map(|event| event.mono_ns).collect();
            prop_assert_eq!(shown, live);
            prop_assert_eq!(counts.refused, 0);
        }
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
            .block_on(work)
    }

    #[tokio::test]
    async fn a_writer_that_takes_nothing_holds_up_no_longer_than_the_grace() {
        let (to, _from) = mpsc::channel(1);
        let (asker, mut end) = watch::channel(None);
        let mut sink = Sink::new(To::Lines(Format::Lines, to));
        let (filter, mut counts) = (Filter::default(), EventCounts::default());
        sink.give(event(EventKind::MrReg), &filter, &mut counts);
        sink.flush(u64::MAX, &mut counts, &mut end).await;
        let begin = Instant::now();
        asker.send(Some(begin + Duration::from_millis(200))).unwrap();
        for _ in 0..3 {
            sink.give(event(EventKind::MrReg), &filter, &mut counts);
        }
        sink.flush(u64::MAX, &mut counts, &mut end).await;
        assert_eq!(
            counts,
            EventCounts {
                seen: 4,
                filtered: 0,
                refused: 3,
                ..EventCounts::default()
            }
        );
        assert!(begin.elapsed() >= Duration::from_millis(200));
    }
}
