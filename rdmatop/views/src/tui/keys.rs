//! Keys. One table is both the handler and the help, so that every key in it is explained, and a key that is
//! not in it does nothing.

use crossterm::event::{KeyCode as K, KeyEvent, KeyModifiers};

use super::tab::Tab;
use rdmatop_base::order::Ordered as _;

mod table;

pub use table::BINDINGS;

/// The user's actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Leave.
    Quit,
    /// Stop the process; `fg` resumes it.
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
    /// Freeze the screen.
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
    /// Work requests of the selected QP.
    Work,
    /// Probes on the program of the selected process.
    Probe,
    /// What the selected finding says to do, into the clipboard.
    Copy,
    /// Forget the events.
    Clear,
    /// The list of keys.
    Help,
    /// Draw everything again.
    Redraw,
    /// Stuck QPs on top of their table.
    Pin,
    /// In a menu or prompt: accept the choice or the text.
    Accept,
    /// Switches the entry of a menu.
    Toggle,
    /// In a prompt: delete what was typed.
    Erase(Erase),
}

/// How much of a prompt is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Erase {
    /// The last character.
    Char,
    /// The last word.
    Word,
    /// Everything.
    All,
}

/// Where a binding applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everywhere but in menus and prompts.
    View,
    /// The key works in the choosers.
    Menu,
    /// While a search or a filter is typed.
    Prompt,
    /// The key works in the help.
    Help,
}

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chord(pub K, pub KeyModifiers);

/// Keys that do one thing.
#[derive(Debug)]
pub struct Binding {
    /// Any of these keys does it.
    pub keys: &'static [Chord],
    /// What they do.
    pub action: Action,
    /// The place where the key works.
    pub scope: Scope,
    /// Heading in the help.
    pub group: &'static str,
    /// What the key does, in words.
    pub about: &'static str,
    /// Rank and word of its hint on the last line of the screen; the lowest rank is the most useful.
    pub hint: Option<(u8, &'static str)>,
}

/// The meaning of `event` in `scope`.
pub fn action(scope: Scope, event: KeyEvent) -> Option<Action> {
    // A character says already whether Shift was pressed. Keys with Alt and similar are not bound, and must
    // not act as the plain key.
    let mods = event.modifiers - KeyModifiers::SHIFT;
    let chord = Chord(event.code, mods);
    BINDINGS
        .iter()
        .find(|b| b.scope == scope && b.keys.contains(&chord))
        .map(|b| b.action)
}

/// The key's name for the user.
pub fn name(chord: Chord) -> String {
    let key = match chord.0 {
        K::Char(' ') => "Space".to_owned(),
        K::Char(c) if chord.1.contains(KeyModifiers::CONTROL) => c.to_ascii_uppercase().to_string(),
        K::Char(c) => c.to_string(),
        K::F(n) => format!("F{n}"),
        K::PageUp => "PgUp".to_owned(),
        K::PageDown => "PgDn".to_owned(),
        K::BackTab => "S-Tab".to_owned(),
        // Up, Enter, Tab and others: as crossterm calls them.
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
    let names: Vec<String> = binding.keys.iter().map(|chord| name(*chord)).collect();
    names.join(" ")
}

/// Hints for the last line of the screen, the most useful first.
pub fn hints(scope: Scope) -> Vec<(String, &'static str)> {
    let mut found: Vec<_> = BINDINGS
        .iter()
        .filter(|b| b.scope == scope)
        .filter_map(|b| Some((b.hint?, b.keys.first()?)))
        .collect();
    found.order_by_key(|((rank, _), _)| *rank);
    found
        .into_iter()
        .map(|((_, word), chord)| (name(*chord), word))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::Scope::{Help, Menu, Prompt, View};
    use super::*;

    fn ch(c: char) -> Chord {
        Chord(K::Char(c), KeyModifiers::NONE)
    }

    fn ctrl(c: char) -> Chord {
        Chord(K::Char(c), KeyModifiers::CONTROL)
    }

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
        for scope in [View, Menu, Prompt, Help] {
            assert_eq!(press(scope, ctrl('c')), Some(Action::Quit));
        }
        assert_eq!(press(View, ch('c')), Some(Action::ColumnMenu));
        assert_eq!(press(View, Chord(K::Char('q'), KeyModifiers::ALT)), None);
    }

    #[test]
    fn a_key_has_one_meaning_in_a_scope() {
        for (at, binding) in BINDINGS.iter().enumerate() {
            for other in BINDINGS[at + 1..].iter().filter(|o| o.scope == binding.scope) {
                assert!(
                    binding.keys.iter().all(|k| !other.keys.contains(k)),
                    "{} and {}",
                    names(binding),
                    names(other)
                );
            }
        }
    }

    #[test]
    fn the_letters_of_vi_move() {
        for (letter, action) in [
            ('h', Action::Scroll(-1)),
            ('j', Action::Move(1)),
            ('k', Action::Move(-1)),
            ('l', Action::Scroll(1)),
        ] {
            assert_eq!(press(View, ch(letter)), Some(action));
        }
    }

    #[test]
    fn a_capital_letter_works_with_and_without_the_shift_flag() {
        let shifted = KeyEvent::new(K::Char('G'), KeyModifiers::SHIFT);
        assert_eq!(action(View, shifted), Some(Action::Bottom));
        assert_eq!(press(View, ch('G')), Some(Action::Bottom));
    }
}
