//! The loop. A frame is drawn only when something changed.

use std::io;
use std::sync::Arc;

use crossterm::event::Event as TermEvent;
use tokio::sync::{mpsc, watch};
use tokio::time::{Duration, Instant, sleep_until, timeout};

use rdmatop_model::event::Event;
use rdmatop_model::snapshot::Snapshot;

use super::super::state::State;
use super::super::tab::Tab;
use super::super::update::{self, Effect};
use super::input::{Asked, SignalSource, TOGETHER};
use super::{Control, TuiError};

/// Shortest time between frames that no key requested.
const FRAME: Duration = Duration::from_millis(100);
/// How often the view, in the background, looks whether it is in the foreground: fg(1) of a job that runs
/// sends no signal.
const LOOK: Duration = Duration::from_millis(200);
/// Events taken at once: a storm of events must not keep a key waiting.
const BATCH: usize = 1024;

/// The screen on which the loop draws.
pub(in crate::tui) trait Screen {
    /// Draws the state; drops the frame if the terminal has not taken the one before. Never waits.
    fn draw(&mut self, state: &mut State) -> io::Result<()>;
    /// Whether the terminal has not taken all that was drawn.
    fn behind(&self) -> bool;
    /// Writes more of it. True if frames were dropped meanwhile, so that one has to be drawn.
    fn pour(&mut self) -> io::Result<bool>;
    /// Forgets what is on the screen, so that the next frame is drawn completely.
    fn clear(&mut self) -> io::Result<()>;
    /// Asks the terminal to put a text into its clipboard.
    fn copy(&mut self, text: &str) -> io::Result<()>;
    /// Gives the terminal back.
    fn give_back(&mut self);
    /// Stops the process by this signal, until `fg`.
    fn stop(&mut self, signal: i32);
    /// Takes the terminal over again; false in the background, where it is the shell's.
    fn again(&mut self) -> io::Result<bool>;
}

/// Runs until the user leaves, a signal arrives, or the engine ends.
pub(super) async fn drive<S: Screen, T: SignalSource>(
    state: &mut State,
    screen: &mut S,
    keys: &mut mpsc::Receiver<io::Result<TermEvent>>,
    signals: &mut T,
    snapshots: &mut watch::Receiver<Arc<Snapshot>>,
    events: &mut mpsc::Receiver<Event>,
    control: &mpsc::Sender<Control>,
) -> Result<(), TuiError> {
    let (mut dirty, mut events_open) = (true, true);
    let mut drawn: Option<Instant> = None;
    let (mut empty, mut shown) = (true, false);
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        let due = drawn.map(|at| at + FRAME);
        // To a terminal that does not read, writing is tried again at the pace of frames.
        let wanting = dirty || screen.behind();
        // A frame that is due is drawn here and needs no timer, which spares one wake-up for each snapshot.
        if wanting && due.is_none_or(|due| due <= Instant::now()) {
            if dirty {
                screen.draw(state)?;
                dirty = false;
                if !empty && !std::mem::replace(&mut shown, true) {
                    let _ = control.try_send(Control::Shown);
                }
            } else {
                dirty = screen.pour()?;
            }
            drawn = Some(Instant::now());
            continue;
        }
        tokio::select! {
            biased;
            input = keys.recv() => {
                let event = input.ok_or(TuiError::Gone)??;
                let effect = update::terminal_event(state, &event);
                if effect == Some(Effect::Still) {
                    continue;
                }
                if effect == Some(Effect::Suspend) {
                    if let Some(number) = suspend(screen, signals, libc::SIGTSTP).await {
                        return left(number);
                    }
                    continue;
                }
                match effect {
                    Some(Effect::Quit) => return Ok(()),
                    // If the channel is full the app is behind: the user sees that nothing changes, and asks
                    // again.
                    Some(Effect::Ask(wish)) => _ = control.try_send(wish),
                    Some(Effect::Copy(text)) => screen.copy(&text)?,
                    Some(Effect::Redraw) => screen.clear()?,
                    None | Some(Effect::Still | Effect::Suspend) => {}
                }
                // A held key or the wheel makes many events: all that have arrived share one frame.
                if keys.is_empty() {
                    screen.draw(state)?;
                    (dirty, drawn) = (false, Some(Instant::now()));
                } else {
                    dirty = true;
                }
            }
            signal = signals.next() => match signal {
                Asked::Leave(number) => return left(number),
                // Whoever sent it can send a SIGCONT too, so that it stops without a shell as well.
                Asked::Stop => if let Some(number) = suspend(screen, signals, libc::SIGSTOP).await {
                    return left(number);
                },
                // In the background it goes on without a screen. It must not stop itself: a shell sends no
                // SIGCONT with the SIGTERM for a job that it takes for a running one.
                Asked::Continued => if screen.again()? {
                    dirty = true;
                } else {
                    signals.continue_after(LOOK);
                },
                Asked::Resized => { screen.draw(state)?; (dirty, drawn) = (false, Some(Instant::now())); }
            },
            // Before the channels, so that a storm of events does not hinder drawing.
            () = sleep_until(due.unwrap_or_else(Instant::now)), if wanting => {}
            changed = snapshots.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                state.take(snapshots.borrow_and_update().clone());
                dirty |= !state.frozen;
                // The first rows do not wait until the next frame is due.
                if std::mem::take(&mut empty) {
                    drawn = None;
                }
            }
            count = events.recv_many(&mut batch, BATCH), if events_open => {
                events_open = count > 0;
                state.take_events(batch.drain(..));
                dirty |= count > 0 && state.tab == Tab::Trace;
            }
        }
    }
}

fn left(signal: i32) -> Result<(), TuiError> {
    match signal {
        libc::SIGHUP => Err(TuiError::Gone),
        _ => Ok(()),
    }
}

/// Gives the terminal back and stops by `signal`. Returns the number of a signal that ends the program, if
/// one came until then: a stop would come after the SIGCONT that was sent with it.
async fn suspend<S: Screen>(screen: &mut S, signals: &mut impl SignalSource, signal: i32) -> Option<i32> {
    screen.give_back();
    if let Ok(number) = timeout(TOGETHER, signals.leave()).await {
        return Some(number);
    }
    screen.stop(signal);
    // Also where the kernel did not stop it. A SIGTERM that came with the SIGCONT is seen first.
    signals.continue_after(TOGETHER);
    None
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
