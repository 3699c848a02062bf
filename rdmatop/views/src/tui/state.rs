//! The complete state of the live view. This module neither draws nor reads input or clocks.

mod parts;

use std::collections::BTreeMap;
use std::sync::Arc;

use rdmatop_model::event::Event;
use rdmatop_model::fields::process_errors;
use rdmatop_model::findings::{Finding, NoFindings, Role, Severity};
use rdmatop_model::input::{EbpfState, ProbeVerdict};
use rdmatop_model::judgement::Stuck;
use rdmatop_model::snapshot::{PortRow, ProcessRow, QpRow, Snapshot, VerbRow};
use rdmatop_model::value::{Known, Source};

use super::columns::{self, Column, Ctx, Spec};
use super::filter::Filter;
use super::glyphs::{self, Glyphs};
use super::layout::Layout;
use super::settings::{Settings, Sort};
use super::tab::Tab;
use super::table;
use super::theme::{self, Depth, Paint};
use super::trace_log::{Follow, TraceLog};
use super::tree;

pub use parts::{Mode, TableState, WorkPane};

pub use super::layout::Detail;

/// The complete state of the live view.
#[derive(Debug)]
pub struct State {
    /// The tab.
    pub tab: Tab,
    /// The tables, by tab.
    pub tables: [TableState; 7],
    /// Menu or prompt.
    pub mode: Mode,
    /// Detail pane.
    pub detail: Detail,
    /// First line of the detail pane.
    pub detail_offset: usize,
    /// The pane of work requests, which covers the table.
    pub work: Option<WorkPane>,
    /// Which programs are probed.
    pub probing: Probing,
    /// The search text.
    pub search: String,
    /// The filter.
    pub filter: Filter,
    /// The row whose events are shown.
    pub follow: Option<Follow>,
    /// The snapshot on the screen.
    pub snapshot: Arc<Snapshot>,
    /// Newest snapshot, while the screen is frozen.
    pub newer: Option<Arc<Snapshot>>,
    /// The screen is frozen.
    pub frozen: bool,
    /// Events.
    pub trace: TraceLog,
    /// Events that arrived while the screen was frozen, newest last.
    pub waiting: Vec<Event>,
    /// Number of waiting events that had no room.
    pub waiting_lost: u64,
    /// The newest event is on the screen, and the view follows new ones.
    pub tail: bool,
    /// The user's choices.
    pub settings: Settings,
    /// A line for the user, until the next key.
    pub message: Option<String>,
    /// Columns and lines of the terminal.
    pub size: (u16, u16),
    /// Signs.
    pub glyphs: &'static Glyphs,
    /// Colours of the terminal.
    pub depth: Depth,
    /// Grows with each change that may alter the order of rows.
    version: u64,
}

/// The row of a table on which the cursor can stand.
#[derive(Clone, Copy, Debug)]
pub enum Row<'a> {
    /// A process, or another user of RDMA.
    Process(&'a ProcessRow),
    /// A queue pair.
    Qp(&'a QpRow),
    /// A port of a device.
    Port(&'a PortRow),
    /// A verb of a process.
    Verb(&'a VerbRow),
    /// An event, with its number in the log.
    Event(u64, &'a Event),
    /// A program.
    Probe(&'a ProbeVerdict),
    /// A finding.
    Finding(&'a Finding),
}

/// Whose programs are probed, as the user asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probing {
    /// Nobody's programs are probed.
    None,
    /// The programs that `--uprobes` names are probed.
    Option,
    /// The programs of the process with this PID are probed.
    Process(u32),
}

impl State {
    /// A view of `snapshot` with `settings` on a terminal of `depth` colours.
    pub fn new(snapshot: Arc<Snapshot>, settings: Settings, tab: Tab, utf8: bool, depth: Depth) -> Self {
        let ascii = settings.ascii.unwrap_or(!utf8);
        let mut state = Self {
            tab,
            tables: std::array::from_fn(|_| TableState::default()),
            mode: Mode::View,
            detail: Detail::Closed,
            detail_offset: 0,
            work: None,
            probing: Probing::None,
            search: String::new(),
            filter: Filter::default(),
            follow: None,
            snapshot,
            newer: None,
            frozen: false,
            trace: TraceLog::default(),
            waiting: Vec::new(),
            waiting_lost: 0,
            tail: true,
            message: None,
            size: (80, 24),
            glyphs: if ascii { &glyphs::ASCII } else { &glyphs::UNICODE },
            depth,
            version: 0,
            settings,
        };
        state.refresh();
        state
    }

    /// What the cells are drawn from.
    pub fn ctx(&self) -> Ctx<'_> {
        Ctx {
            snapshot: &self.snapshot,
            trace: &self.trace,
            glyphs: self.glyphs,
            units: self.settings.units,
        }
    }

    /// Colours.
    pub fn paint(&self) -> Paint {
        Paint {
            theme: &theme::THEMES[theme::by_name(&self.settings.theme).unwrap_or(0)],
            depth: self.depth,
        }
    }

    /// The next theme.
    pub fn next_theme(&mut self) {
        let at = theme::by_name(&self.settings.theme).unwrap_or(0);
        let next = &theme::THEMES[(at + 1) % theme::THEMES.len()];
        next.name.clone_into(&mut self.settings.theme);
        self.message = Some(format!("theme {}: {}", next.name, next.about));
    }

    /// The table of the tab.
    pub fn spec(&self) -> &'static Spec {
        columns::spec(self.tab)
    }

    /// The state of the tab's table.
    pub fn table(&self) -> &TableState {
        &self.tables[self.tab.index()]
    }

    /// The table of the tab, for changes.
    pub fn table_mut(&mut self) -> &mut TableState {
        &mut self.tables[self.tab.index()]
    }

    /// Takes a new snapshot; a frozen screen keeps it for later.
    pub fn take(&mut self, snapshot: Arc<Snapshot>) {
        if self.frozen {
            self.newer = Some(snapshot);
            return;
        }
        self.snapshot = snapshot;
        self.touch();
    }

    /// Takes events. A frozen screen keeps at most as many for later as the log holds.
    pub fn take_events(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            if !self.frozen {
                self.trace.push(event);
            } else if self.waiting.len() < super::trace_log::KEPT {
                self.waiting.push(event);
            } else {
                self.waiting_lost += 1;
            }
        }
        if !self.frozen && self.tab == Tab::Trace {
            self.touch();
        }
    }

    /// Freezes the screen; or thaws it and shows what arrived meanwhile.
    pub fn freeze(&mut self, on: bool) {
        self.frozen = on;
        if on {
            return;
        }
        let waiting = std::mem::take(&mut self.waiting);
        self.take_events(waiting);
        if self.waiting_lost > 0 {
            self.message = Some(format!(
                "{} events came while frozen and had no room",
                self.waiting_lost
            ));
            self.waiting_lost = 0;
        }
        if let Some(newer) = self.newer.take() {
            self.take(newer);
        }
        self.touch();
    }

    /// Notes that the order of rows may have changed.
    pub fn touch(&mut self) {
        self.version += 1;
        self.refresh();
    }

    /// Updates the order of the tab's rows and keeps the cursor on its row; cheap when nothing changed.
    pub fn refresh(&mut self) {
        let at = self.tab.index();
        if self.tables[at].made_for == Some(self.version) {
            return;
        }
        let spec = columns::spec(self.tab);
        let ctx = self.ctx();
        let table = &self.tables[at];
        let mut order = table::order(&ctx, self.tab, &self.filter, self.sort());
        if self.tab == Tab::Trace
            && let Some(follow) = &self.follow
        {
            order.retain(|e| self.trace.get(e.at).is_some_and(|event| follow.matches(event)));
        }
        if self.settings.stuck_first {
            self.troubled_first(&mut order);
        }
        if self.tab == Tab::Processes && self.settings.tree {
            order = tree::grow(&self.snapshot.processes, &order);
        }
        let cursor = if self.tab == Tab::Trace && self.tail {
            order.len().saturating_sub(1)
        } else if table.cursor == 0 && self.detail == Detail::Closed {
            // A cursor that the user never moved stays at the top, whichever row is there.
            0
        } else {
            let found = table
                .selected
                .as_ref()
                .and_then(|key| order.iter().position(|e| (spec.row)(&ctx, e.at) == *key));
            found.unwrap_or(table.cursor).min(order.len().saturating_sub(1))
        };
        let version = self.version;
        let table = &mut self.tables[at];
        (table.order, table.made_for) = (order, Some(version));
        self.put_cursor(cursor);
    }

    /// Puts rows that need attention on top: for each finding, the worst first, the process that causes it,
    /// then its victims. After them come stuck QPs and their owners.
    fn troubled_first(&self, order: &mut [table::Entry]) {
        let (snapshot, now) = (&self.snapshot, self.snapshot.mono_ns);
        if snapshot.findings.is_empty() && snapshot.judgement.stuck().len() == 0 {
            return;
        }
        match self.tab {
            Tab::Qps => order.sort_by_key(|e| Stuck::of(&snapshot.qps[e.at], now).is_none()),
            Tab::Processes => order.sort_by_key(|e| {
                let row = &snapshot.processes[e.at];
                // Information is no trouble, because it may be meant to be so.
                let trouble = snapshot
                    .findings
                    .iter()
                    .take_while(|found| found.severity > Severity::Info);
                let mut trouble = trouble.enumerate();
                let first = trouble.find_map(|(at, found)| {
                    let is_cause = found.role_of(row)? == Role::Cause;
                    // Of several victims the one that the finding names is first: the others may wait for it.
                    Some((at, !is_cause, found.pid != row.pid))
                });
                let stuck = usize::from(snapshot.judgement.stuck_of(row.uid).is_none());
                first.unwrap_or((usize::MAX - 1 + stuck, false, false))
            }),
            _ => {}
        }
    }

    /// Puts the cursor on row `to`, or on the nearest row that exists.
    pub fn put_cursor(&mut self, to: usize) {
        let spec = self.spec();
        let cursor = to.min(self.table().order.len().saturating_sub(1));
        let selected = self
            .table()
            .order
            .get(cursor)
            .map(|e| (spec.row)(&self.ctx(), e.at));
        let table = self.table_mut();
        if table.selected != selected {
            table.selected = selected;
            self.detail_offset = 0;
        }
        self.table_mut().cursor = cursor;
        self.show_cursor();
    }

    /// For the right end of the tabs: what narrows the rows, and how many columns are not on the screen.
    pub fn narrowing(&self, layout: &Layout) -> String {
        let height = usize::from(layout.rows.height);
        let mut parts = Vec::new();
        let (first, all) = (self.table().offset, self.table().order.len());
        if height > 0 && all > height {
            // There are rows below the last line, so the range of the shown rows is named.
            parts.push(format!("{}-{} of {all}", first + 1, (first + height).min(all)));
        }
        if let (Tab::Trace, Some(follow)) = (self.tab, &self.follow) {
            parts.push(format!("follow {}", follow.name()));
        }
        if !self.filter.is_empty() {
            let (shown, all) = (self.table().order.len(), (self.spec().len)(&self.ctx()));
            parts.push(format!("filter {} {shown}/{all}", self.filter.text()));
        }
        if self.tab == Tab::Trace {
            if !self.waiting.is_empty() {
                parts.push(format!("{} waiting", self.waiting.len()));
            } else if !self.tail {
                parts.push("scrolled, G: newest".to_owned());
            }
            if self.trace.forgotten() > 0 {
                parts.push(format!("{} older gone", self.trace.forgotten()));
            }
        }
        // A narrow screen has room for only one of these parts.
        if layout.heading.height > 0 && (parts.is_empty() || layout.tabs.width >= 80) {
            parts.push(self.fit(layout.heading.width).hidden(self.glyphs));
        }
        parts.retain(|part| !part.is_empty());
        parts.join("  ")
    }

    /// What to say when nothing is wrong; `None` while QPs are stuck, which may be no finding.
    pub(super) fn quiet(&self) -> Option<NoFindings> {
        let snapshot = &self.snapshot;
        if snapshot.ports.is_empty() || snapshot.judgement.stuck().len() > 0 {
            return None;
        }
        Some(NoFindings::of(snapshot))
    }

    /// Whether rules had all their inputs and looked for long enough: without a finding, all is well.
    pub(super) fn is_well(&self) -> bool {
        self.snapshot.health.ebpf.is_on() && NoFindings::of(&self.snapshot) == NoFindings::Whole
    }

    /// Explains upper bounds, else unknown numbers where no work request is known because no device has posts
    /// that pass the kernel; processes without QPs have those for another reason.
    pub(super) fn blind(&self) -> Option<&'static str> {
        if self.shows(Known::AtMost) {
            return Some("'0-n' below: between 0 and n, others may have moved a part (Enter: who)");
        }
        let snapshot = &self.snapshot;
        let mut sent = snapshot.processes.iter().filter_map(|row| row.traffic.tx_bytes);
        if snapshot.judgement.totals.tx.rate.is_some()
            && sent.any(|bytes| bytes.source == Source::Port && bytes.rate.is_none())
        {
            return Some("'-' below: who moved what is not known, each may have QPs on every NIC (Enter)");
        }
        let mut counts = snapshot.processes.iter().map(|row| row.qps);
        let bypassing = matches!(snapshot.health.ebpf, EbpfState::On { .. })
            && !snapshot.ports.is_empty()
            && snapshot.judgement.totals.wr.known().is_none()
            && !snapshot.devices.iter().any(|device| device.followed)
            && (snapshot.processes.is_empty() || counts.any(|qps| qps > 0));
        bypassing.then_some("'-' below: these NICs' work requests bypass the kernel")
    }

    /// Whether traffic or errors in the table of processes are such bounds.
    pub(super) fn shows(&self, bound: Known) -> bool {
        let mut rows = self.snapshot.processes.iter();
        self.tab == Tab::Processes
            && rows.any(|row| {
                let rates = [row.traffic.tx_bytes, row.traffic.rx_bytes];
                let errors = process_errors(row);
                rates
                    .into_iter()
                    .flatten()
                    .any(|bytes| bytes.rate_known() == bound)
                    || errors.is_some_and(|errors| errors.total_known() == bound)
            })
    }

    /// The layout.
    pub fn layout(&self) -> Layout {
        Layout::of(self)
    }

    /// Whether a popup covers the table.
    pub fn is_covered(&self) -> bool {
        matches!(self.mode, Mode::Help(_) | Mode::Sort(_) | Mode::Columns(_))
    }

    /// Scrolls so that the cursor is on the screen.
    pub fn show_cursor(&mut self) {
        let height = usize::from(self.layout().rows.height);
        let table = self.table_mut();
        table.offset = table::window(table.offset, table.cursor, table.order.len(), height);
    }

    /// Selected row, by its place in the snapshot.
    pub fn selected(&self) -> Option<usize> {
        self.table().order.get(self.table().cursor).map(|e| e.at)
    }

    /// The selected row.
    pub fn row(&self) -> Option<Row<'_>> {
        let (snapshot, at) = (&*self.snapshot, self.selected()?);
        Some(match self.tab {
            Tab::Processes => Row::Process(&snapshot.processes[at]),
            Tab::Qps => Row::Qp(&snapshot.qps[at]),
            Tab::Devices => Row::Port(&snapshot.ports[at]),
            Tab::Verbs => Row::Verb(&snapshot.verbs[at]),
            Tab::Trace => Row::Event(self.trace.number(at), self.trace.get(at)?),
            Tab::Probes => Row::Probe(&snapshot.health.probes[at]),
            Tab::Findings => Row::Finding(&snapshot.findings[at]),
        })
    }

    /// Whether a column is switched on.
    pub fn column_on(&self, column: &Column) -> bool {
        self.switched()
            .and_then(|c| c.get(column.id))
            .copied()
            .unwrap_or(column.screen.on)
    }

    fn switched(&self) -> Option<&BTreeMap<String, bool>> {
        self.settings.columns.get(&self.tab)
    }

    /// Switches a column on or off.
    pub fn switch_column(&mut self, column: &Column) {
        let on = !self.column_on(column);
        let table = self.settings.columns.entry(self.tab).or_default();
        table.insert(column.id.to_owned(), on);
    }

    /// Sorts by `column`; reverses the order if the table is sorted by it already.
    pub fn sort_by(&mut self, column: &Column) {
        if !column.sortable {
            return;
        }
        let down = match self.sort() {
            (by, down) if by == column.id => !down,
            // Numbers begin with the largest, names with A.
            _ => column.align == columns::Align::Right,
        };
        self.set_sort(column.id.to_owned(), down);
    }

    /// The id of the column by which the table is sorted, and whether the largest comes first. The command
    /// line may name a column that this tab cannot sort by; the default holds then.
    pub fn sort(&self) -> (&str, bool) {
        let spec = self.spec();
        let chosen = self.settings.sort.get(&self.tab);
        let chosen = chosen.filter(|sort| spec.orders().any(|column| column.id == sort.by));
        chosen.map_or(spec.sort, |sort| (&sort.by, sort.down))
    }

    /// Sorts by the column `by`, in the next run too.
    pub fn set_sort(&mut self, by: String, down: bool) {
        self.settings.sort.insert(self.tab, Sort { by, down });
        self.touch();
    }

    /// Columns of the tab, laid out.
    pub fn fit(&self, width: u16) -> table::Fit {
        let spec = self.spec();
        let on: Vec<&'static Column> = spec
            .columns()
            .iter()
            .filter(|c| c.screen.priority == 0 || self.column_on(c))
            // The column of findings takes no room while there are none.
            .filter(|c| c.id != "finding" || !self.snapshot.findings.is_empty())
            .collect();
        let chosen = self.switched().into_iter().flatten().filter(|(_, on)| **on);
        let chosen: Vec<&str> = chosen.map(|(id, _)| id.as_str()).collect();
        table::fit(&on, &chosen, self.table().skip, width)
    }

    /// Goes to a tab.
    pub fn go(&mut self, tab: Tab) {
        if self.tab != tab {
            self.work = None;
            self.tab = tab;
            self.detail_offset = 0;
            // A user who goes to a tab wants to see its table, not a detail.
            if self.detail == Detail::Full {
                self.detail = Detail::Closed;
            }
        }
        self.refresh();
        self.show_cursor();
    }
}
