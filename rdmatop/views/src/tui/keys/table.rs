//! Every key that works, in the order of the help.

use crossterm::event::{KeyCode, KeyModifiers};

use super::super::tab::Tab;
use super::{Action, Binding, Chord, Erase, Scope};
use Action as A;
use KeyCode as K;
use Scope::{Help, Menu, Prompt, View};

const fn ch(c: char) -> Chord {
    Chord(KeyCode::Char(c), KeyModifiers::NONE)
}

const fn ctrl(c: char) -> Chord {
    Chord(KeyCode::Char(c), KeyModifiers::CONTROL)
}

const fn key(code: KeyCode) -> Chord {
    Chord(code, KeyModifiers::NONE)
}

const fn bind(
    keys: &'static [Chord],
    action: Action,
    scope: Scope,
    group: &'static str,
    about: &'static str,
    hint: Option<(u8, &'static str)>,
) -> Binding {
    Binding {
        keys,
        action,
        scope,
        group,
        about,
        hint,
    }
}

const MOVE: &str = "Move";
const TABS: &str = "Tabs";
const FIND: &str = "Find and order";
const LOOK: &str = "Look";
const MENU: &str = "In a chooser";
const TYPE: &str = "While typing";
const HELP: &str = "In this list";
const LEAVE: &str = "Leave";

/// Every key that works.
pub const BINDINGS: &[Binding] = &[
    bind(&[key(K::Up), ch('k')], A::Move(-1), View, MOVE, "up", None),
    bind(&[key(K::Down), ch('j')], A::Move(1), View, MOVE, "down", None),
    bind(
        &[key(K::PageUp), ctrl('b')],
        A::Page(-1),
        View,
        MOVE,
        "a screen up",
        None,
    ),
    bind(
        &[key(K::PageDown), ctrl('f')],
        A::Page(1),
        View,
        MOVE,
        "a screen down",
        None,
    ),
    bind(&[ch('g'), key(K::Home)], A::Top, View, MOVE, "first row", None),
    bind(
        &[ch('G'), key(K::End)],
        A::Bottom,
        View,
        MOVE,
        "last row; in Trace: newest, and stay there",
        None,
    ),
    bind(
        &[key(K::Left), ch('h')],
        A::Scroll(-1),
        View,
        MOVE,
        "columns to the left",
        None,
    ),
    bind(
        &[key(K::Right), ch('l')],
        A::Scroll(1),
        View,
        MOVE,
        "columns to the right",
        None,
    ),
    bind(
        &[key(K::Enter)],
        A::Detail,
        View,
        LOOK,
        "detail of the row; again: whole screen; again: close",
        Some((1, "Detail")),
    ),
    bind(
        &[ch(']'), ch('J')],
        A::DetailScroll(1),
        View,
        LOOK,
        "scroll the detail down",
        None,
    ),
    bind(
        &[ch('['), ch('K')],
        A::DetailScroll(-1),
        View,
        LOOK,
        "scroll the detail up",
        None,
    ),
    bind(
        &[ch('o')],
        A::Follow,
        View,
        LOOK,
        "follow the row (QP, process, device) in Trace; again: stop",
        Some((6, "Follow")),
    ),
    bind(
        &[ch('w')],
        A::Work,
        View,
        LOOK,
        "work requests of the QP as they go by; again: close",
        None,
    ),
    bind(
        &[ch('U')],
        A::Probe,
        View,
        LOOK,
        "probe the row's process, to count its posts; again: stop",
        None,
    ),
    bind(
        &[ch('y')],
        A::Copy,
        View,
        LOOK,
        "copy what the finding says to do (OSC 52)",
        None,
    ),
    bind(
        &[ch(' '), ch('p')],
        A::Freeze,
        View,
        LOOK,
        "freeze, go on",
        Some((5, "Freeze")),
    ),
    bind(
        &[ch('+'), ch('=')],
        A::Refresh(1),
        View,
        LOOK,
        "refresh faster (down to 100 ms)",
        None,
    ),
    bind(
        &[ch('-')],
        A::Refresh(-1),
        View,
        LOOK,
        "refresh slower (up to 60 s)",
        None,
    ),
    bind(&[ch('u')], A::Units, View, LOOK, "bits or bytes per second", None),
    bind(
        &[ch('T'), key(K::F(5))],
        A::Tree,
        View,
        LOOK,
        "processes as a tree",
        None,
    ),
    bind(&[ch('t')], A::Theme, View, LOOK, "next theme", None),
    bind(&[ch('X')], A::Clear, View, LOOK, "empty the event log", None),
    bind(&[ctrl('l')], A::Redraw, View, LOOK, "redraw the screen", None),
    bind(&[ch('1')], A::Go(Tab::Processes), View, TABS, "Processes", None),
    bind(&[ch('2')], A::Go(Tab::Qps), View, TABS, "QPs", None),
    bind(&[ch('3')], A::Go(Tab::Devices), View, TABS, "Devices", None),
    bind(&[ch('4')], A::Go(Tab::Verbs), View, TABS, "Verbs", None),
    bind(&[ch('5')], A::Go(Tab::Trace), View, TABS, "Trace", None),
    bind(&[ch('6')], A::Go(Tab::Probes), View, TABS, "Probes", None),
    bind(&[ch('7')], A::Go(Tab::Findings), View, TABS, "Findings", None),
    bind(
        &[key(K::Tab)],
        A::Step(1),
        View,
        TABS,
        "next tab",
        Some((2, "Next")),
    ),
    bind(&[key(K::BackTab)], A::Step(-1), View, TABS, "previous tab", None),
    bind(
        &[ch('/'), key(K::F(3))],
        A::Search,
        View,
        FIND,
        "search; the cursor jumps as you type",
        Some((7, "Search")),
    ),
    bind(&[ch('n')], A::Match(1), View, FIND, "next match", None),
    bind(&[ch('N')], A::Match(-1), View, FIND, "previous match", None),
    bind(
        &[ch('f'), key(K::F(4))],
        A::Filter,
        View,
        FIND,
        "filter: words, dev: pid: comm: state: ..., ! for not",
        Some((3, "Filter")),
    ),
    bind(
        &[ch('s'), key(K::F(6))],
        A::SortMenu,
        View,
        FIND,
        "choose the sort column",
        Some((4, "Sort")),
    ),
    bind(
        &[ch('<'), ch(',')],
        A::SortStep(-1),
        View,
        FIND,
        "sort by the column to the left",
        None,
    ),
    bind(
        &[ch('>'), ch('.')],
        A::SortStep(1),
        View,
        FIND,
        "sort by the column to the right",
        None,
    ),
    bind(&[ch('I')], A::Invert, View, FIND, "turn the order around", None),
    bind(
        &[ch('!')],
        A::Pin,
        View,
        FIND,
        "rows with trouble on top; again: where the order puts them",
        None,
    ),
    bind(
        &[ch('c'), key(K::F(2))],
        A::ColumnMenu,
        View,
        FIND,
        "choose columns",
        Some((8, "Columns")),
    ),
    bind(
        &[ch('?'), key(K::F(1))],
        A::Help,
        View,
        LEAVE,
        "this list",
        Some((0, "Help")),
    ),
    bind(
        &[key(K::Esc)],
        A::Back,
        View,
        LEAVE,
        "back: detail, follow, filter",
        None,
    ),
    bind(
        &[ch('q'), key(K::F(10)), ctrl('c')],
        A::Quit,
        View,
        LEAVE,
        "quit",
        Some((9, "Quit")),
    ),
    bind(&[ctrl('z')], A::Suspend, View, LEAVE, "stop; fg comes back", None),
    bind(&[key(K::Up), ch('k')], A::Move(-1), Menu, MENU, "up", None),
    bind(&[key(K::Down), ch('j')], A::Move(1), Menu, MENU, "down", None),
    bind(
        &[ch(' ')],
        A::Toggle,
        Menu,
        MENU,
        "switch a column on or off",
        Some((1, "Switch")),
    ),
    bind(
        &[key(K::Enter)],
        A::Accept,
        Menu,
        MENU,
        "take it",
        Some((0, "Take")),
    ),
    bind(
        &[key(K::Esc), ch('q')],
        A::Back,
        Menu,
        MENU,
        "close",
        Some((2, "Close")),
    ),
    bind(&[ctrl('c')], A::Quit, Menu, MENU, "quit", None),
    bind(
        &[key(K::Enter)],
        A::Accept,
        Prompt,
        TYPE,
        "keep what is typed",
        None,
    ),
    bind(&[key(K::Esc)], A::Back, Prompt, TYPE, "as it was before", None),
    bind(
        &[key(K::Backspace)],
        A::Erase(Erase::Char),
        Prompt,
        TYPE,
        "take a character back",
        None,
    ),
    bind(
        &[ctrl('w')],
        A::Erase(Erase::Word),
        Prompt,
        TYPE,
        "take a word back",
        None,
    ),
    bind(
        &[ctrl('u')],
        A::Erase(Erase::All),
        Prompt,
        TYPE,
        "take all back",
        None,
    ),
    bind(&[ctrl('c')], A::Quit, Prompt, TYPE, "quit", None),
    bind(&[key(K::Up), ch('k')], A::Move(-1), Help, HELP, "up", None),
    bind(&[key(K::Down), ch('j')], A::Move(1), Help, HELP, "down", None),
    bind(&[key(K::PageUp)], A::Page(-1), Help, HELP, "a screen up", None),
    bind(
        &[key(K::PageDown), ch(' ')],
        A::Page(1),
        Help,
        HELP,
        "a screen down",
        None,
    ),
    bind(
        &[key(K::Esc), ch('q'), ch('?'), key(K::F(1)), key(K::Enter)],
        A::Back,
        Help,
        HELP,
        "close",
        Some((0, "Close")),
    ),
    bind(&[ctrl('c')], A::Quit, Help, HELP, "quit", None),
];
