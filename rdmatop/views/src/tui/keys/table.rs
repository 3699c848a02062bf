//! Every key that works, in the order of the help.

use crossterm::event::{KeyCode, KeyModifiers};

use super::super::tab::Tab;
use super::{Action, Binding, Chord, Erase, Scope};
use Action as A;
use KeyCode as K;

const fn ch(c: char) -> Chord {
    Chord(KeyCode::Char(c), KeyModifiers::NONE)
}

const fn ctrl(c: char) -> Chord {
    Chord(KeyCode::Char(c), KeyModifiers::CONTROL)
}

const fn f(number: u8) -> Chord {
    key(KeyCode::F(number))
}

const fn key(code: KeyCode) -> Chord {
    Chord(code, KeyModifiers::NONE)
}

/// Makes a table of keys, by scope and heading of the help. Each entry: the keys, the action, its words, and
/// if the last line of the screen shows it, its rank and its word there.
macro_rules! bindings {
    (@hint) => { None };
    (@hint $hint:expr) => { Some($hint) };
    ($($scope:ident $group:literal {
        $([$($key:expr),+] => $action:expr, $about:literal $(, $hint:expr)?;)+
    })+) => {
        &[$($(Binding {
            keys: &[$($key),+],
            action: $action,
            scope: Scope::$scope,
            group: $group,
            about: $about,
            hint: bindings!(@hint $($hint)?),
        },)+)+]
    };
}

/// Every key that works.
pub const BINDINGS: &[Binding] = bindings! {
    View "Move" {
        [key(K::Up), ch('k')] => A::Move(-1), "up";
        [key(K::Down), ch('j')] => A::Move(1), "down";
        [key(K::PageUp), ctrl('b')] => A::Page(-1), "a screen up";
        [key(K::PageDown), ctrl('f')] => A::Page(1), "a screen down";
        [ch('g'), key(K::Home)] => A::Top, "first row";
        [ch('G'), key(K::End)] => A::Bottom, "last row; in Trace: newest, and stay there";
        [key(K::Left), ch('h')] => A::Scroll(-1), "columns to the left";
        [key(K::Right), ch('l')] => A::Scroll(1), "columns to the right";
    }
    View "Look" {
        [key(K::Enter)] => A::Detail, "detail of the row; again: whole screen; again: close", (1, "Detail");
        [ch(']'), ch('J')] => A::DetailScroll(1), "scroll the detail down";
        [ch('['), ch('K')] => A::DetailScroll(-1), "scroll the detail up";
        [ch('o')] => A::Follow, "follow the row (QP, process, device) in Trace; again: stop", (6, "Follow");
        [ch('w')] => A::Work, "work requests of the QP as they go by; again: close";
        [ch('U')] => A::Probe, "probe the row's process, to count its posts; again: stop";
        [ch('y')] => A::Copy, "copy what the finding says to do (OSC 52)", (5, "Copy");
        [ch(' '), ch('p')] => A::Freeze, "freeze, go on", (5, "Freeze");
        [ch('+'), ch('=')] => A::Refresh(1), "refresh faster (down to 100 ms)";
        [ch('-')] => A::Refresh(-1), "refresh slower (up to 60 s)";
        [ch('u')] => A::Units, "bits or bytes per second";
        [ch('T'), f(5)] => A::Tree, "processes as a tree";
        [ch('t')] => A::Theme, "next theme";
        [ch('X')] => A::Clear, "empty the event log";
        [ctrl('l')] => A::Redraw, "redraw the screen";
    }
    View "Tabs" {
        [ch('1')] => A::Go(Tab::Processes), "Processes";
        [ch('2')] => A::Go(Tab::Qps), "QPs";
        [ch('3')] => A::Go(Tab::Devices), "Devices";
        [ch('4')] => A::Go(Tab::Verbs), "Verbs";
        [ch('5')] => A::Go(Tab::Trace), "Trace";
        [ch('6')] => A::Go(Tab::Probes), "Probes";
        [ch('7')] => A::Go(Tab::Findings), "Findings";
        [key(K::Tab)] => A::Step(1), "next tab", (2, "Next");
        [key(K::BackTab)] => A::Step(-1), "previous tab";
    }
    View "Find and order" {
        [ch('/'), f(3)] => A::Search, "search; the cursor jumps as you type", (7, "Search");
        [ch('n')] => A::Match(1), "next match";
        [ch('N')] => A::Match(-1), "previous match";
        [ch('f'), f(4)] => A::Filter, "filter: words, dev: pid: comm: state: ..., ! for not", (3, "Filter");
        [ch('s'), f(6)] => A::SortMenu, "choose the sort column", (4, "Sort");
        [ch('<'), ch(',')] => A::SortStep(-1), "sort by the column to the left";
        [ch('>'), ch('.')] => A::SortStep(1), "sort by the column to the right";
        [ch('I')] => A::Invert, "turn the order around";
        [ch('!')] => A::Pin, "rows with trouble on top; again: where the order puts them";
        [ch('c'), f(2)] => A::ColumnMenu, "choose columns", (8, "Columns");
    }
    View "Leave" {
        [ch('?'), f(1)] => A::Help, "this list", (0, "Help");
        [key(K::Esc)] => A::Back, "back: detail, follow, filter, search";
        [ch('q'), f(10), ctrl('c')] => A::Quit, "quit", (9, "Quit");
        [ctrl('z')] => A::Suspend, "stop; fg comes back";
    }
    Menu "In a chooser" {
        [key(K::Up), ch('k')] => A::Move(-1), "up";
        [key(K::Down), ch('j')] => A::Move(1), "down";
        [ch(' ')] => A::Toggle, "switch a column on or off", (1, "Switch");
        [key(K::Enter)] => A::Accept, "take it", (0, "Take");
        [key(K::Esc), ch('q')] => A::Back, "close", (2, "Close");
        [ctrl('c')] => A::Quit, "quit";
    }
    Prompt "While typing" {
        [key(K::Enter)] => A::Accept, "keep what is typed";
        [key(K::Esc)] => A::Back, "as it was before";
        [key(K::Backspace)] => A::Erase(Erase::Char), "take a character back";
        [ctrl('w')] => A::Erase(Erase::Word), "take a word back";
        [ctrl('u')] => A::Erase(Erase::All), "take all back";
        [ctrl('c')] => A::Quit, "quit";
    }
    Help "In this list" {
        [key(K::Up), ch('k')] => A::Move(-1), "up";
        [key(K::Down), ch('j')] => A::Move(1), "down";
        [key(K::PageUp)] => A::Page(-1), "a screen up";
        [key(K::PageDown), ch(' ')] => A::Page(1), "a screen down";
        [key(K::Esc), ch('q'), ch('?'), f(1), key(K::Enter)] => A::Back, "close", (0, "Close");
        [ctrl('c')] => A::Quit, "quit";
    }
};
