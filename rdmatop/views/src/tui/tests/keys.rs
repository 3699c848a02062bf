//! Keys and the mouse as state transitions.

use std::fmt::Write as _;
use std::time::Duration;

use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};

use super::super::columns::RowKey;
use super::super::run::Control;
use super::super::state::{Detail, Mode, Probing};
use super::super::trace_log::{Follow, KEPT};
use super::*;
use rdmatop_model::input::EbpfState;

fn mouse(state: &mut State, kind: MouseEventKind, column: u16, row: u16) {
    let event = MouseEvent {
        kind,
        column,
        row,
        modifiers: KeyModifiers::NONE,
    };
    update::terminal_event(state, &TermEvent::Mouse(event));
}

fn click(state: &mut State, column: u16, row: u16) {
    mouse(state, MouseEventKind::Down(MouseButton::Left), column, row);
}

#[test]
fn q_and_control_c_leave_and_escape_does_not() {
    let mut s = state(testkit::busy(), Tab::Processes, (80, 24));
    assert_eq!(typed(&mut s, "q"), Some(Effect::Quit));
    assert_eq!(code(&mut s, KeyCode::Esc), None);
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    for keys in ["", "/x", "fx", "s", "?"] {
        typed(&mut s, keys);
        assert_eq!(
            update::key_event(&mut s, control_c),
            Some(Effect::Quit),
            "after {keys:?}"
        );
        code(&mut s, KeyCode::Esc);
    }
}

#[test]
fn the_last_line_has_a_colon_between_each_key_and_its_word() {
    let mut s = state(testkit::busy(), Tab::Processes, (80, 24));
    let last = |s: &State| screen(s).lines().last().unwrap_or_default().trim_end().to_owned();
    assert_eq!(
        last(&s),
        "?:Help  Enter:Detail  Tab:Next  f:Filter  s:Sort  Space:Freeze  q:Quit"
    );
    typed(&mut s, " ");
    assert!(last(&s).contains("  Space:Go on  q:Quit"), "{}", last(&s));
    typed(&mut s, " s");
    assert_eq!(last(&s), "Enter:Take  Space:Switch  Esc:Close");
    code(&mut s, KeyCode::Esc);
    typed(&mut s, "?");
    assert_eq!(last(&s), "Esc:Close");
    code(&mut s, KeyCode::Esc);
    typed(&mut s, "/");
    assert!(
        last(&s).ends_with("Enter:keep  Esc:undo  then n N"),
        "{}",
        last(&s)
    );
}

#[test]
fn the_cursor_stays_on_its_row_when_the_order_changes() {
    let mut s = state(testkit::busy(), Tab::Qps, (80, 24));
    typed(&mut s, "jjj");
    let row = s.table().selected.clone();
    typed(&mut s, "I");
    assert_eq!(s.table().selected, row);
    let mut next = testkit::busy();
    next.qps.reverse();
    s.take(Arc::new(next.judged(None)));
    assert_eq!(s.table().selected, row);
}

#[test]
fn the_cursor_at_the_top_stays_there_until_a_detail_is_open() {
    let mut s = state(testkit::busy(), Tab::Qps, (80, 24));
    let top = s.table().selected.clone();
    let mut next = testkit::busy();
    next.qps.retain(|q| q.qpn != 312);
    let gone = next.clone();
    s.take(Arc::new(next.judged(None)));
    assert_ne!(s.table().selected, top);
    assert_eq!(s.table().cursor, 0);
    // The row with an open detail is followed, even when it moves down from the top.
    code(&mut s, KeyCode::Enter);
    let shown = s.table().selected.clone();
    s.take(Arc::new(testkit::busy().judged(None)));
    assert_eq!((s.table().selected.clone(), s.table().cursor), (shown, 1));
    s.take(Arc::new(gone.judged(None)));
}

#[test]
fn when_the_selected_row_goes_the_cursor_stays_in_its_place() {
    let mut s = state(testkit::busy(), Tab::Processes, (80, 24));
    typed(&mut s, "jj");
    let mut next = testkit::busy();
    let RowKey::Process(uid) = s.table().selected.clone().unwrap() else {
        panic!("a process")
    };
    next.processes.retain(|p| p.uid != uid);
    s.take(Arc::new(next.judged(None)));
    assert_eq!(s.table().cursor, 2);
    s.take(Arc::new(testkit::empty().judged(None)));
    assert_eq!((s.table().cursor, s.selected()), (0, None));
}

#[test]
fn a_frozen_screen_keeps_its_rows_and_shows_the_newest_afterwards() {
    let mut s = state(testkit::busy(), Tab::Trace, (80, 24));
    let before = (s.snapshot.processes.len(), s.trace.len());
    typed(&mut s, " ");
    s.take(Arc::new(testkit::empty().judged(None)));
    s.take_events(testkit::events());
    assert_eq!((s.snapshot.processes.len(), s.trace.len()), before);
    assert!(
        screen(&s).contains("FROZEN") && screen(&s).contains("10 waiting"),
        "{}",
        screen(&s)
    );
    typed(&mut s, "p");
    assert_eq!((s.snapshot.processes.len(), s.trace.len()), (0, before.1 * 2));
}

#[test]
fn a_filter_narrows_as_it_is_typed_and_escape_takes_it_back() {
    let mut s = state(testkit::busy(), Tab::Qps, (80, 24));
    let all = s.table().order.len();
    typed(&mut s, "fstate:err");
    assert_eq!(s.table().order.len(), 1);
    code(&mut s, KeyCode::Esc);
    assert_eq!(s.table().order.len(), all);
    typed(&mut s, "f!dev:mlx5_0 !pid:4276");
    code(&mut s, KeyCode::Enter);
    assert_eq!(s.table().order.len(), 2);
    typed(&mut s, "3");
    assert_eq!(
        s.table().order.len(),
        3,
        "devices know no pid: that word lets them pass"
    );
    code(&mut s, KeyCode::Esc);
    assert!(s.filter.is_empty());
}

#[test]
fn a_search_jumps_and_n_goes_around() {
    let mut s = state(testkit::busy(), Tab::Processes, (80, 24));
    typed(&mut s, "/nccl");
    assert_eq!(s.message.as_deref(), Some("match 1 of 2"));
    code(&mut s, KeyCode::Enter);
    let first = s.table().cursor;
    for (key, message) in [
        ("n", "match 2 of 2"),
        ("n", "match 1 of 2"),
        ("N", "match 2 of 2"),
    ] {
        typed(&mut s, key);
        assert_eq!(s.message.as_deref(), Some(message));
        assert_eq!(s.table().cursor == first, message == "match 1 of 2");
    }
    typed(&mut s, "/no such name");
    assert!(s.message.as_deref().unwrap_or("").contains("no row matches"));
}

#[test]
fn y_copies_the_command_of_the_selected_finding_alone() {
    let mut s = state(testkit::troubled(), Tab::Findings, (120, 40));
    for row in 0..s.table().order.len() {
        s.put_cursor(row);
        let found = &s.snapshot.findings[s.selected().unwrap()];
        let step = found.steps().next().unwrap().into_owned();
        assert!(!step.contains("   # "), "{step}");
        assert_eq!(typed(&mut s, "y"), Some(Effect::Copy(step.clone())));
        assert!(s.message.as_deref().unwrap().ends_with(&step));
    }
    let mut s = state(testkit::busy(), Tab::Qps, (120, 40));
    assert_eq!(typed(&mut s, "y"), None);
    assert!(s.message.is_some());
}

#[test]
fn following_a_qp_shows_its_events_and_losses_only() {
    let mut s = state(testkit::busy(), Tab::Qps, (80, 24));
    typed(&mut s, "/289");
    code(&mut s, KeyCode::Enter);
    typed(&mut s, "o");
    assert_eq!(s.tab, Tab::Trace);
    assert!(matches!(&s.follow, Some(Follow::Qp(10, ..))));
    assert_eq!(s.table().order.len(), 7);
    code(&mut s, KeyCode::Esc);
    assert_eq!(s.table().order.len(), 10);
}

#[test]
fn the_trace_stays_at_the_newest_until_the_user_scrolls() {
    let mut s = state(testkit::busy(), Tab::Trace, (80, 12));
    assert_eq!(s.table().cursor, 9);
    typed(&mut s, "kkk");
    s.take_events(testkit::events());
    s.refresh();
    assert_eq!(s.table().cursor, 6);
    typed(&mut s, "G");
    s.take_events(testkit::events());
    s.refresh();
    assert_eq!(s.table().cursor, 29);
}

#[test]
fn the_log_is_bounded_and_says_what_went() {
    let mut s = state(testkit::busy(), Tab::Trace, (120, 24));
    for _ in 0..=KEPT / 10 {
        s.take_events(testkit::events());
    }
    s.refresh();
    assert_eq!((s.trace.len(), s.trace.forgotten()), (KEPT, 20));
    assert!(screen(&s).contains("20 older gone"));
}

#[test]
fn plus_and_minus_stay_between_a_tenth_of_a_second_and_a_minute() {
    let mut s = state(testkit::busy(), Tab::Processes, (80, 24));
    assert_eq!(
        typed(&mut s, "+"),
        Some(Effect::Ask(Control::Refresh(Duration::from_millis(500))))
    );
    typed(&mut s, "++++++");
    assert_eq!(s.settings.delay(), Duration::from_millis(100));
    typed(&mut s, "---------------");
    assert_eq!(s.settings.delay(), Duration::from_mins(1));
}

#[test]
fn enter_opens_the_pane_then_the_screen_then_closes() {
    let mut s = state(testkit::busy(), Tab::Processes, (80, 24));
    for wanted in [Detail::Split, Detail::Full, Detail::Closed, Detail::Split] {
        code(&mut s, KeyCode::Enter);
        assert_eq!(s.detail, wanted);
    }
    code(&mut s, KeyCode::Esc);
    assert_eq!(s.detail, Detail::Closed);
}

#[test]
fn a_click_selects_a_row_a_tab_and_a_sort_column() {
    let mut s = state(testkit::busy(), Tab::Processes, (80, 24));
    let layout = s.layout();
    let (row, heading, tabs) = (layout.rows.y + 2, layout.heading.y, layout.tabs.y);
    click(&mut s, 10, row);
    assert_eq!((s.table().cursor, s.detail), (2, Detail::Closed));
    click(&mut s, 10, row);
    assert_eq!(s.detail, Detail::Split);
    code(&mut s, KeyCode::Esc);
    click(&mut s, 5, heading);
    assert_eq!(s.sort(), ("pid", true));
    click(&mut s, 5, heading);
    assert!(!s.sort().1);
    click(&mut s, 16, tabs);
    assert_eq!(s.tab, Tab::Qps);
    mouse(&mut s, MouseEventKind::ScrollDown, 5, row);
    assert_eq!(s.table().cursor, 3);
}

#[test]
fn settings_are_changed_by_the_keys_for_them_and_by_no_other() {
    let mut s = state(testkit::busy(), Tab::Processes, (120, 24));
    typed(&mut s, "j?");
    code(&mut s, KeyCode::Esc);
    assert_eq!(s.settings, Settings::default());
    typed(&mut s, "t");
    assert_eq!(s.settings.theme, "dark");
}

#[test]
fn sort_and_columns_are_remembered_in_the_settings() {
    let mut s = state(testkit::busy(), Tab::Processes, (120, 24));
    typed(&mut s, "c");
    assert_eq!(s.mode, Mode::Columns(0));
    typed(&mut s, "j ");
    code(&mut s, KeyCode::Esc);
    assert!(!screen(&s).contains("USER"));
    typed(&mut s, ">");
    assert_ne!(s.settings.sort, Settings::default().sort);
    let again = State::new(
        s.snapshot.clone(),
        s.settings.clone(),
        Tab::Processes,
        true,
        Depth::Mono,
    );
    assert_eq!(again.sort(), s.sort());
    assert!(!again.settings.columns[&Tab::Processes]["user"]);
}

#[test]
fn settings_with_the_log_turned_around_can_be_read_again() {
    let mut s = state(testkit::busy(), Tab::Trace, (120, 24));
    typed(&mut s, "I");
    assert_eq!(s.sort(), ("time", true));
    let written = toml::to_string(&s.settings).unwrap();
    assert_eq!(Settings::parse(&written).as_ref(), Ok(&s.settings), "{written}");
}

#[test]
fn a_prompt_takes_words_back_and_escape_restores() {
    let mut s = state(testkit::busy(), Tab::Qps, (80, 24));
    typed(&mut s, "fdev:mlx5_0 state:rts");
    let control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
    update::key_event(&mut s, control('w'));
    assert_eq!(s.filter.text(), "dev:mlx5_0");
    code(&mut s, KeyCode::Backspace);
    code(&mut s, KeyCode::Backspace);
    assert_eq!(s.filter.text(), "dev:mlx5_");
    update::key_event(&mut s, control('u'));
    assert!(s.filter.is_empty());
    code(&mut s, KeyCode::Esc);
    assert_eq!(s.mode, Mode::View);
}

#[test]
fn a_tab_shows_its_table_whatever_was_whole_screen_before() {
    let mut s = state(testkit::busy(), Tab::Qps, (80, 24));
    code(&mut s, KeyCode::Enter);
    code(&mut s, KeyCode::Enter);
    assert_eq!(s.detail, Detail::Full);
    typed(&mut s, "3");
    assert_eq!((s.tab, s.detail), (Tab::Devices, Detail::Closed));
}

#[test]
fn a_key_that_does_nothing_says_why() {
    let mut s = state(testkit::busy(), Tab::Qps, (200, 24));
    for (keys, says) in [("h", "on the left"), ("l", "on the right")] {
        typed(&mut s, keys);
        assert!(
            s.message.as_deref().unwrap_or("").contains(says),
            "{:?}",
            s.message
        );
    }
    typed(&mut s, "++++++++");
    assert!(s.message.as_deref().unwrap_or("").contains("fastest"));
}

#[test]
fn rows_with_trouble_stand_first_on_the_tab_that_has_them() {
    for (tab, shown) in [
        (Tab::Processes, Tab::Processes),
        (Tab::Qps, Tab::Qps),
        (Tab::Devices, Tab::Qps),
        (Tab::Trace, Tab::Qps),
        (Tab::Findings, Tab::Qps),
    ] {
        let mut s = state(testkit::busy(), tab, (120, 24));
        let before = s.settings.stuck_first;
        for (place, first) in [(shown, !before), (shown, before)] {
            typed(&mut s, "!");
            let says = s.message.as_deref().unwrap_or_default();
            assert!(
                says.starts_with("rows with trouble stand ") && says.contains("first") == first,
                "{says}"
            );
            assert_eq!((s.tab, s.settings.stuck_first), (place, first), "{tab:?}");
        }
    }
}

#[test]
fn enter_where_nothing_is_found_says_so_and_opens_no_detail() {
    for (tab, says) in [
        (Tab::Findings, "nothing is found yet"),
        (Tab::Qps, "no row has a detail"),
    ] {
        let mut s = state(testkit::empty(), tab, (80, 24));
        code(&mut s, KeyCode::Enter);
        let message = s.message.as_deref().unwrap_or_default();
        assert!(message.contains(says), "{message}");
        assert_eq!(s.detail, Detail::Closed);
    }
}

#[test]
fn the_detail_of_a_finding_in_the_trace_is_that_of_the_finding() {
    use rdmatop_model::{event::Event, findings::Change};
    let mut s = state(testkit::busy(), Tab::Trace, (120, 60));
    let finding = testkit::full::finding();
    let title = finding.verdict.clone();
    s.take_events(vec![Event::of_change(Change::Raised(finding), 1, 1)]);
    s.refresh();
    typed(&mut s, "G");
    code(&mut s, KeyCode::Enter);
    code(&mut s, KeyCode::Enter);
    let shown = screen(&s);
    assert!(
        shown.contains("finding_raise") && shown.contains(&*title),
        "{shown}"
    );
    assert!(!shown.contains("{\""), "JSON in the detail: {shown}");
}

#[test]
fn the_page_of_keys_is_what_the_table_says() {
    use super::super::keys::{BINDINGS, names};
    let mut page =
        "# Keys of the live view\n\nMade from the table that handles them; a test holds it to that.\n"
            .to_owned();
    let mut group = "";
    for binding in BINDINGS {
        if binding.group != group {
            group = binding.group;
            let _ = write!(page, "\n## {group}\n\n");
        }
        let _ = writeln!(page, "* `{}`: {}", names(binding), binding.about);
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/keys.md");
    if std::env::var_os("RDMATOP_WRITE_DOCS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    assert_eq!(
        std::fs::read_to_string(path).unwrap(),
        page,
        "run the test with RDMATOP_WRITE_DOCS=1"
    );
}

/// The lines between two marks of README.md.
fn readme(mark: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (begin, end) = (format!("<!-- {mark} -->\n"), format!("\n<!-- end of {mark} -->"));
    let from = text.find(&begin).unwrap() + begin.len();
    let to = from + text[from..].find(&end).unwrap();
    text[from..to].trim().to_owned()
}

#[test]
fn the_keys_in_the_readme_work_and_none_is_missing() {
    use super::super::keys::{BINDINGS, Scope, names};
    let table = readme("keys");
    let firsts = table.lines().skip(2).filter_map(|line| line.split('|').nth(1));
    let shown: Vec<&str> = firsts
        .flat_map(|keys| keys.split('`').skip(1).step_by(2))
        .collect();
    let view = || BINDINGS.iter().filter(|b| b.scope == Scope::View);
    for key in &shown {
        let bound = view().any(|b| names(b).split(' ').any(|name| name == *key));
        assert!(bound, "{key} does nothing");
    }
    for binding in view() {
        let listed = names(binding).split(' ').any(|name| shown.contains(&name));
        assert!(
            listed,
            "{}: {} is not in the README",
            names(binding),
            binding.about
        );
    }
}

#[test]
fn the_readme_says_how_to_read_every_tab() {
    let list = readme("tabs");
    for tab in Tab::ALL {
        let begin = format!("* **{}**", tab.names()[0]);
        assert!(list.contains(&begin), "{begin}");
    }
}

#[test]
fn a_key_asks_for_probes_on_the_process_of_the_row_and_for_their_end() {
    for tab in [Tab::Processes, Tab::Qps] {
        let mut state = state(with_data_path(None), tab, (120, 30));
        let Some(Effect::Ask(Control::Probe(Some(pid)))) = typed(&mut state, "U") else {
            panic!("{:?}", state.message);
        };
        assert!(screen(&state).contains(&format!("probes on process {pid}")));
        assert_eq!(
            (typed(&mut state, "U"), state.probing),
            (Some(Effect::Ask(Control::Probe(None))), Probing::None)
        );
    }
    let refused = |snapshot, tab, probing| {
        let mut state = state(snapshot, tab, (120, 30));
        state.probing = probing;
        assert_eq!((typed(&mut state, "U"), state.probing), (None, probing));
        state.message.unwrap_or_default()
    };
    let why = refused(with_data_path(None), Tab::Devices, Probing::None);
    assert!(why.contains("choose one in 1 Processes or 2 QPs"), "{why}");
    let why = refused(with_data_path(None), Tab::Processes, Probing::Option);
    assert!(why.contains("--uprobes was given"), "{why}");
    let why = refused(with_data_path(Some("kprobe")), Tab::Processes, Probing::None);
    assert!(why.contains("the kernel sees its work requests"), "{why}");
    let mut off = with_data_path(None);
    off.health.ebpf = EbpfState::Disabled;
    let why = refused(off, Tab::Processes, Probing::None);
    assert!(why.contains("takes eBPF"), "{why}");
}

/// A busy host whose devices' work requests are counted in the kernel as `how` says, or all bypass it.
fn with_data_path(how: Option<&str>) -> Snapshot {
    let mut snapshot = testkit::busy();
    for device in &mut snapshot.devices {
        device.datapath = how.map(Into::into);
    }
    snapshot
}
