//! These tests count frames instead of timing them: a slow machine draws fewer frames, never more.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use tokio::sync::oneshot;

use super::super::super::render;
use super::super::super::settings::Settings;
use super::super::super::theme::Depth;
use super::*;
use rdmatop_model::testkit;

/// Counts frames and the rows that were formatted for them.
struct Counting {
    frames: watch::Sender<(u64, usize)>,
}

impl Screen for Counting {
    fn draw(&mut self, state: &mut State) -> io::Result<()> {
        state.refresh();
        let mut canvas = render::Canvas::default();
        canvas.begin(state.size, state.glyphs.ascii);
        let rows = render::draw(state, &mut canvas);
        self.frames.send_modify(|(frames, last)| {
            *frames += 1;
            *last = rows;
        });
        Ok(())
    }

    fn behind(&self) -> bool {
        false
    }

    fn pour(&mut self) -> io::Result<bool> {
        Ok(false)
    }

    fn clear(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn copy(&mut self, _text: &str) -> io::Result<()> {
        Ok(())
    }

    fn give_back(&mut self) {}

    fn stop(&mut self, _signal: i32) {}

    fn again(&mut self) -> io::Result<bool> {
        Ok(true)
    }
}

struct Silent;

impl SignalSource for Silent {
    async fn next(&mut self) -> Asked {
        std::future::pending().await
    }

    async fn leave(&mut self) -> i32 {
        std::future::pending().await
    }

    fn continue_after(&mut self, _time: Duration) {}
}

/// The loop at work, and the channels that feed it.
struct Bench {
    keys: mpsc::Sender<io::Result<TermEvent>>,
    snapshots: watch::Sender<Arc<Snapshot>>,
    events: mpsc::Sender<Event>,
    frames: watch::Receiver<(u64, usize)>,
    asked: mpsc::Receiver<Control>,
    ended: oneshot::Receiver<Result<(), TuiError>>,
}

impl Bench {
    /// Starts on `tab`; returns after the first frame.
    async fn start(snapshot: Snapshot, tab: Tab, size: (u16, u16)) -> Self {
        let (keys, mut keys_in) = mpsc::channel(256);
        let (events, mut events_in) = mpsc::channel(BATCH * 4);
        let (snapshots, mut snapshots_in) = watch::channel(Arc::new(snapshot));
        let (frames, frames_out) = watch::channel((0, 0));
        let (end, ended) = oneshot::channel();
        let (control, asked) = mpsc::channel(8);
        std::thread::spawn(move || {
            let first = snapshots_in.borrow_and_update().clone();
            let mut state = State::new(first, Settings::default(), tab, true, Depth::True);
            update::resize(&mut state, size);
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
                .unwrap();
            let (mut screen, mut signals) = (Counting { frames }, Silent);
            let done = runtime.block_on(drive(
                &mut state,
                &mut screen,
                &mut keys_in,
                &mut signals,
                &mut snapshots_in,
                &mut events_in,
                &control,
            ));
            let _ = end.send(done);
        });
        let mut bench = Self {
            keys,
            snapshots,
            events,
            frames: frames_out,
            asked,
            ended,
        };
        bench.wait_for(1).await;
        bench
    }

    async fn wait_for(&mut self, frames: u64) {
        let reached = self.frames.wait_for(|(drawn, _)| *drawn >= frames);
        tokio::time::timeout(Duration::from_mins(1), reached)
            .await
            .expect("a frame within a minute")
            .unwrap();
    }

    fn drawn(&self) -> u64 {
        self.frames.borrow().0
    }

    async fn send(&self, event: TermEvent) {
        self.keys.send(Ok(event)).await.unwrap();
    }

    async fn key(&self, code: KeyCode) {
        self.send(TermEvent::Key(KeyEvent::new(code, KeyModifiers::NONE)))
            .await;
    }

    /// Leaves the view. Leaving is taken last, so everything sent before was taken.
    async fn leave(self) -> u64 {
        self.key(KeyCode::Char('q')).await;
        assert!(matches!(self.ended.await, Ok(Ok(()))));
        self.frames.borrow().0
    }
}

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap()
        .block_on(test);
}

#[test]
fn nothing_is_drawn_when_nothing_changed() {
    run(async {
        let bench = Bench::start(testkit::busy(), Tab::Processes, (80, 24)).await;
        // Wait for several frames' time, then move the pointer, release a button, press keys that do nothing,
        // and send events that this tab does not show.
        tokio::time::sleep(FRAME * 4).await;
        for kind in [MouseEventKind::Moved, MouseEventKind::Up(MouseButton::Left)] {
            for column in 0..40 {
                let mouse = MouseEvent {
                    kind,
                    column,
                    row: 5,
                    modifiers: KeyModifiers::NONE,
                };
                bench.send(TermEvent::Mouse(mouse)).await;
            }
        }
        for code in [KeyCode::Char('Z'), KeyCode::F(9), KeyCode::Insert] {
            bench.key(code).await;
        }
        bench.send(TermEvent::Resize(80, 24)).await;
        for event in testkit::events() {
            bench.events.send(event).await.unwrap();
        }
        tokio::time::sleep(FRAME * 2).await;
        assert_eq!(bench.drawn(), 1);
        assert_eq!(bench.leave().await, 1);
    });
}

#[test]
fn a_key_and_a_snapshot_are_one_frame_each() {
    run(async {
        let mut bench = Bench::start(testkit::busy(), Tab::Processes, (80, 24)).await;
        bench.key(KeyCode::Char('j')).await;
        bench.wait_for(2).await;
        bench.snapshots.send(Arc::new(testkit::busy())).unwrap();
        bench.wait_for(3).await;
        tokio::time::sleep(FRAME * 3).await;
        assert_eq!(bench.leave().await, 3);
    });
}

#[test]
fn the_app_learns_once_that_the_first_rows_are_drawn() {
    run(async {
        let mut bench = Bench::start(testkit::full::snapshot(), Tab::Processes, (80, 24)).await;
        // The frame that was drawn before the first round has no rows of it.
        assert!(bench.asked.try_recv().is_err());
        for frames in 2..5 {
            bench.snapshots.send_replace(Arc::new(testkit::full::snapshot()));
            bench.wait_for(frames).await;
        }
        assert_eq!(bench.asked.recv().await, Some(Control::Shown));
        assert!(bench.asked.try_recv().is_err());
        bench.leave().await;
    });
}

#[test]
fn a_frozen_screen_is_not_drawn_for_a_snapshot() {
    run(async {
        let mut bench = Bench::start(testkit::busy(), Tab::Processes, (80, 24)).await;
        bench.key(KeyCode::Char(' ')).await;
        bench.wait_for(2).await;
        bench.snapshots.send(Arc::new(testkit::one_row())).unwrap();
        tokio::time::sleep(FRAME * 3).await;
        assert_eq!(bench.leave().await, 2);
    });
}

#[test]
fn a_storm_of_events_is_drawn_at_the_pace_of_frames_and_not_of_events() {
    run(async {
        let bench = Bench::start(testkit::busy(), Tab::Trace, (80, 24)).await;
        let begin = Instant::now();
        for _ in 0..2000 {
            for event in testkit::events() {
                bench.events.send(event).await.unwrap();
            }
        }
        let frames = bench.leave().await;
        let most = begin.elapsed().as_millis() / FRAME.as_millis() + 2;
        assert!(u128::from(frames) <= most, "{frames} frames, at most {most}");
    });
}

#[test]
fn with_ten_thousand_qps_a_frame_formats_no_row_off_the_screen() {
    run(async {
        let mut bench = Bench::start(testkit::many(), Tab::Qps, (200, 30)).await;
        let first = bench.frames.borrow().1;
        assert!((10..30).contains(&first), "{first} rows in 30 lines");
        for (at, code) in (2..).zip([KeyCode::PageDown, KeyCode::End, KeyCode::Char('I')]) {
            bench.key(code).await;
            bench.wait_for(at).await;
            assert_eq!(bench.frames.borrow().1, first);
        }
    });
}
