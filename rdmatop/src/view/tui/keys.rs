//! Keys. One table is the handler and the help: what is not in it does nothing, what is in it is explained.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::tab::Tab;

/// What a user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Leave.
    Quit,
    /// Stop the process, come back with `fg`.
    Suspend,
    /// One step back: menu, detail, follow, filter.
    Back,
    /// Move by rows.
    Move(isize),
    /// Move by screens.
    Page(isize),
    /// First row.
    Top,
    /// Last row.
    Bottom,
    /// Scroll columns.
    Scroll(isize),
    /// Open the detail pane, then the whole screen, then close.
    Detail,
    /// Scroll the detail pane.
    DetailScroll(isize),
    /// A tab.
    Go(Tab),
    /// The next or previous tab.
    Step(isize),
    /// Type a text to search for.
    Search,
    /// Next or previous match.
    Match(isize),
    /// Type a filter.
    Filter,
    /// Choose the sort column.
    SortMenu,
    /// Sort by the next or previous column.
    SortStep(isize),
    /// Turn the order around.
    Invert,
    /// Choose columns.
    ColumnMenu,
    /// Keep the screen as it is.
    Freeze,
    /// Sample faster or slower.
    Refresh(isize),
    /// Next theme.
    Theme,
    /// Bits or bytes.
    Units,
    /// Tree or list.
    Tree,
    /// Events of the selected row.
    Follow,
    /// Forget the events.
    Clear,
    /// The list of keys.
    Help,
    /// Draw everything anew.
    Redraw,
    /// In a menu: take it.
    Accept,
    /// In a menu: switch it.
    Toggle,
}

/// Where a binding works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everywhere but in menus and prompts.
    View,
    /// In the choosers.
    Menu,
    /// In the help.
    Help,
}

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chord(pub KeyCode, pub KeyModifiers);

/// Keys that do one thing.
#[derive(Debug)]
pub struct Binding {
    /// Any of these.
    pub keys: &'static [Chord],
    /// What they do.
    pub action: Action,
    /// Where.
    pub scope: Scope,
    /// Heading in the help.
    pub group: &'static str,
    /// What it does, for people.
    pub about: &'static str,
    /// Word for the last line of the screen, the most useful first.
    pub hint: Option<(u8, &'static str)>,
}

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

use Action as A;
use KeyCode as K;
use Scope::{Help, Menu, View};

const MOVE: &str = "Move";
const TABS: &str = "Tabs";
const FIND: &str = "Find and order";
const LOOK: &str = "Look";
const MENU: &str = "In a chooser";
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
        &[key(K::Left), ch('H')],
        A::Scroll(-1),
        View,
        MOVE,
        "columns to the left",
        None,
    ),
    bind(
        &[key(K::Right), ch('l'), ch('L')],
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
    bind(&[ctrl('l')], A::Redraw, View, LOOK, "draw anew", None),
    bind(&[ch('1')], A::Go(Tab::Processes), View, TABS, "Processes", None),
    bind(&[ch('2')], A::Go(Tab::Qps), View, TABS, "QPs", None),
    bind(&[ch('3')], A::Go(Tab::Devices), View, TABS, "Devices", None),
    bind(&[ch('4')], A::Go(Tab::Verbs), View, TABS, "Verbs", None),
    bind(&[ch('5')], A::Go(Tab::Trace), View, TABS, "Trace", None),
    bind(&[ch('6')], A::Go(Tab::Probes), View, TABS, "Probes", None),
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
        &[ch('c'), key(K::F(2))],
        A::ColumnMenu,
        View,
        FIND,
        "choose columns",
        Some((8, "Columns")),
    ),
    bind(
        &[ch('?'), ch('h'), key(K::F(1))],
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
    bind(&[key(K::Up), ch('k')], A::Move(-1), Help, "", "up", None),
    bind(&[key(K::Down), ch('j')], A::Move(1), Help, "", "down", None),
    bind(&[key(K::PageUp)], A::Page(-1), Help, "", "a screen up", None),
    bind(
        &[key(K::PageDown), ch(' ')],
        A::Page(1),
        Help,
        "",
        "a screen down",
        None,
    ),
    bind(
        &[
            key(K::Esc),
            ch('q'),
            ch('?'),
            ch('h'),
            key(K::F(1)),
            key(K::Enter),
        ],
        A::Back,
        Help,
        "",
        "close",
        Some((0, "Close")),
    ),
    bind(&[ctrl('c')], A::Quit, Help, "", "quit", None),
];

/// What `event` means in `scope`.
pub fn action(scope: Scope, event: KeyEvent) -> Option<Action> {
    // Shift is already in the character; Alt and friends are not ours, and must not act as the plain key.
    let mods = event.modifiers - KeyModifiers::SHIFT;
    let chord = Chord(event.code, mods);
    BINDINGS
        .iter()
        .find(|b| b.scope == scope && b.keys.contains(&chord))
        .map(|b| b.action)
}

/// The key as people write it.
pub fn name(chord: Chord) -> String {
    let key = match chord.0 {
        K::Char(' ') => "Space".to_owned(),
        K::Char(c) if chord.1.contains(KeyModifiers::CONTROL) => c.to_ascii_uppercase().to_string(),
        K::Char(c) => c.to_string(),
        K::F(n) => format!("F{n}"),
        K::Up => "Up".to_owned(),
        K::Down => "Down".to_owned(),
        K::Left => "Left".to_owned(),
        K::Right => "Right".to_owned(),
        K::PageUp => "PgUp".to_owned(),
        K::PageDown => "PgDn".to_owned(),
        K::Home => "Home".to_owned(),
        K::End => "End".to_owned(),
        K::Enter => "Enter".to_owned(),
        K::Tab => "Tab".to_owned(),
        K::BackTab => "S-Tab".to_owned(),
        K::Esc => "Esc".to_owned(),
        other => format!("{other:?}"),
    };
    if chord.1.contains(KeyModifiers::CONTROL) {
        format!("^{key}")
    } else {
        key
    }
}

/// The keys of a binding, as in the help.
pub fn names(binding: &Binding) -> String {
    binding
        .keys
        .iter()
        .map(|c| name(*c))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Hints for the last line of the screen, the most useful first.
pub fn hints(scope: Scope) -> Vec<(String, &'static str)> {
    let mut found: Vec<_> = BINDINGS
        .iter()
        .filter(|b| b.scope == scope)
        .filter_map(|b| Some((b.hint?, b.keys.first()?)))
        .collect();
    found.sort_by_key(|((rank, _), _)| *rank);
    found
        .into_iter()
        .map(|((_, word), chord)| (name(*chord), word))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(scope: Scope, chord: Chord) -> Option<Action> {
        action(scope, KeyEvent::new(chord.0, chord.1))
    }

    #[test]
    fn every_key_of_the_table_does_what_the_table_says() {
        for binding in BINDINGS {
            for chord in binding.keys {
                assert_eq!(
                    press(binding.scope, *chord),
                    Some(binding.action),
                    "{}",
                    names(binding)
                );
            }
        }
    }

    #[test]
    fn every_function_key_has_a_letter_twin() {
        for binding in BINDINGS
            .iter()
            .filter(|b| b.keys.iter().any(|c| matches!(c.0, K::F(_))))
        {
            assert!(
                binding
                    .keys
                    .iter()
                    .any(|c| matches!(c.0, K::Char(_)) && c.1.is_empty()),
                "{}",
                names(binding)
            );
        }
    }

    #[test]
    fn control_c_quits_everywhere_and_never_opens_a_menu() {
        for scope in [View, Menu, Help] {
            assert_eq!(press(scope, ctrl('c')), Some(Action::Quit));
        }
        assert_eq!(press(View, ch('c')), Some(Action::ColumnMenu));
        assert_eq!(press(View, Chord(K::Char('q'), KeyModifiers::ALT)), None);
    }

    #[test]
    fn a_capital_letter_works_with_and_without_the_shift_flag() {
        let shifted = KeyEvent::new(K::Char('G'), KeyModifiers::SHIFT);
        assert_eq!(action(View, shifted), Some(Action::Bottom));
        assert_eq!(press(View, ch('G')), Some(Action::Bottom));
    }
}
