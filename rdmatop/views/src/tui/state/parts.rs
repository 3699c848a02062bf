//! The small parts of the state.

use std::sync::Arc;

use super::super::columns::RowKey;
use super::super::keys::Scope;
use super::super::table::Entry;

/// A menu or prompt over the view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// No mode: the keys are those of the view.
    #[default]
    View,
    /// Typing a search; Esc returns the cursor to this row.
    Search(usize),
    /// Typing a filter; Esc restores `before`.
    Filter {
        /// The filter text as typed so far.
        input: String,
        /// The filter before the prompt opened.
        before: String,
    },
    /// Choosing the sort column.
    Sort(usize),
    /// Choosing columns.
    Columns(usize),
    /// The list of keys, scrolled by lines.
    Help(usize),
}

impl Mode {
    /// Returns in which part of the table of keys a key is looked up.
    pub fn scope(&self) -> Scope {
        match self {
            Self::View => Scope::View,
            Self::Search(_) | Self::Filter { .. } => Scope::Prompt,
            Self::Sort(_) | Self::Columns(_) => Scope::Menu,
            Self::Help(_) => Scope::Help,
        }
    }
}

/// The state of a table.
#[derive(Clone, Debug, Default)]
pub struct TableState {
    /// First row on the screen.
    pub offset: usize,
    /// Selected row, by place.
    pub cursor: usize,
    /// Selected row, by identity.
    pub selected: Option<RowKey>,
    /// Columns scrolled away.
    pub skip: usize,
    /// Rows in the order of the screen.
    pub order: Vec<Entry>,
    /// What `order` was computed for.
    pub(super) made_for: Option<u64>,
}

/// The pane of work requests of one QP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkPane {
    /// `uid` of the QP.
    pub qp: u64,
    /// The QP's device.
    pub device: Arc<str>,
    /// The QP's number.
    pub qpn: u32,
    /// First line of the list.
    pub first: usize,
}
