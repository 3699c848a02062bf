//! Colours and emphasis.

use ratatui::style::{Color, Modifier};

use super::super::theme::THEMES;
use super::*;
use rdmatop_model::{snapshot::Bound, value::Source};

fn cell_at<'a>(buf: &'a Buffer, text: &str) -> Option<&'a ratatui::buffer::Cell> {
    (0..buf.area.height).find_map(|y| {
        let line: Vec<&str> = (0..buf.area.width).map(|x| buf[(x, y)].symbol()).collect();
        let at = line.windows(text.len()).position(|w| w.concat() == text)?;
        Some(&buf[(u16::try_from(at).unwrap_or(0), y)])
    })
}

#[test]
fn without_colour_no_cell_has_one_in_any_theme() {
    for tab in Tab::ALL {
        for keys in ["", "?", "s", "c", "fx"] {
            let mut state = state(testkit::degraded(), tab, (120, 40));
            state.depth = Depth::Mono;
            for _ in THEMES {
                typed(&mut state, "t");
                typed(&mut state, keys);
                let (buf, _) = draw(&state);
                for cell in &buf.content {
                    assert_eq!((cell.fg, cell.bg), (Color::Reset, Color::Reset));
                }
                code(&mut state, KeyCode::Esc);
            }
        }
    }
}

#[test]
fn the_rows_that_match_the_search_are_underlined_until_escape() {
    let mut state = state(testkit::busy(), Tab::Processes, (80, 24));
    let marked = |state: &State| {
        let (buf, _) = draw(state);
        ["4242", "4259", "4276"].map(|pid| {
            let cell = cell_at(&buf, pid).unwrap();
            cell.modifier.contains(Modifier::UNDERLINED)
        })
    };
    assert_eq!(marked(&state), [false; 3]);
    typed(&mut state, "/nccl");
    code(&mut state, KeyCode::Enter);
    // The cursor leaves them: its row has a style of its own.
    code(&mut state, KeyCode::End);
    assert_eq!(marked(&state), [false, true, true]);
    code(&mut state, KeyCode::Esc);
    assert_eq!(marked(&state), [false; 3]);
}

#[test]
fn a_stuck_qp_stands_out_by_place_mark_weight_and_colour() {
    let mut state = state(testkit::busy(), Tab::Qps, (80, 24));
    let (buf, _) = draw(&state);
    let (err, rts) = (
        cell_at(&buf, "ERR !    4276").unwrap(),
        cell_at(&buf, "RTS      5120").unwrap(),
    );
    assert_ne!(err.fg, rts.fg);
    assert!(err.modifier.contains(Modifier::BOLD) && !rts.modifier.contains(Modifier::BOLD));
    let resting = cell_at(&buf, "RTR      4276").unwrap();
    assert!(
        !resting.modifier.contains(Modifier::BOLD),
        "a receiver may stay in RTR"
    );
    let first = |state: &State| -> Vec<u32> {
        let order = &state.table().order;
        order[..2].iter().map(|e| state.snapshot.qps[e.at].qpn).collect()
    };
    assert_eq!(first(&state), [312, 314]);
    assert!(screen(&state).contains(", 2 stuck"));
    typed(&mut state, "I");
    assert_eq!(first(&state), [312, 314], "in every order");
    typed(&mut state, "!");
    assert_ne!(first(&state), [312, 314]);
}

#[test]
fn a_process_with_stuck_qps_stands_on_top_with_a_mark_and_says_why() {
    let mut state = state(testkit::busy(), Tab::Processes, (120, 40));
    let first = |state: &State| state.snapshot.processes[state.table().order[0].at].pid;
    assert_eq!(first(&state), Some(4276));
    assert!(screen(&state).contains("     8! 64.0Mi"));
    code(&mut state, KeyCode::Enter);
    assert!(
        screen(&state).contains("1 of its QPs: Stuck in ERR"),
        "{}",
        screen(&state)
    );
    typed(&mut state, "!");
    assert_ne!(state.table().order[0].at, 2, "where the order puts it");
}

#[test]
fn a_machine_where_only_the_kernel_has_qps_says_that_no_job_uses_rdma() {
    let mut s = testkit::one_row();
    assert!(!screen(&self::state(s.clone(), Tab::Processes, (80, 24))).contains("no job uses RDMA"));
    (s.processes[0].kernel, s.processes[0].pid) = (true, None);
    let text = screen(&self::state(s.clone(), Tab::Processes, (80, 24)));
    assert!(text.contains("no job uses RDMA now"), "{text}");
    assert!(text.contains("NCCL_DEBUG=INFO"), "{text}");
    // A NIC may have queue pairs that the kernel does not list: then neither the claim nor a 0 may be shown.
    s.devices[0].followed = false;
    let mut efa = s.clone();
    efa.devices[0].driver = Some("efa".into());
    let text = screen(&self::state(efa.judged(None), Tab::Processes, (80, 24)));
    assert!(
        text.contains("no job uses RDMA now"),
        "its QPs are all made by the kernel\n{text}"
    );
    s.devices[0].driver = Some("mlx5_core".into());
    for rows in [1, 0] {
        s.processes.truncate(rows);
        let text = screen(&self::state(s.clone().judged(None), Tab::Processes, (80, 24)));
        assert!(
            !text.contains("no job uses RDMA now") && !text.contains("No process uses RDMA"),
            "{text}"
        );
        assert!(
            text.contains("DEVX") && (rows > 0 || text.contains("WR -")),
            "{text}"
        );
    }
    s.devices.clear();
    let text = screen(&self::state(s, Tab::Processes, (80, 24)));
    assert!(text.contains("No RDMA device here"), "{text}");
}

#[test]
fn a_filter_by_a_field_that_is_none_names_those_there_are() {
    let mut state = state(testkit::busy(), Tab::Qps, (120, 40));
    typed(&mut state, "fcolour:red");
    let text = screen(&state);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains("No field is called colour; this tab has dev, qpn"),
        "{text}"
    );
}

#[test]
fn an_exited_row_is_dim() {
    use super::super::theme::Tone;
    for depth in [Depth::True, Depth::Ansi16, Depth::Mono] {
        let mut state = state(testkit::busy(), Tab::Processes, (80, 24));
        state.depth = depth;
        let dim = state.paint().style(Tone::Dim);
        let (buf, _) = draw(&state);
        let looks_dim = |name: &str| {
            let cell = cell_at(&buf, name).unwrap();
            cell.fg == dim.fg.unwrap_or_default() && cell.modifier.contains(dim.add_modifier)
        };
        assert!(looks_dim("ib_send_lat"), "{depth:?}");
        assert!(!looks_dim("nccl-tests"), "{depth:?}");
    }
}

#[test]
fn exactly_one_row_is_selected_and_moves_with_the_cursor() {
    let mut state = state(testkit::busy(), Tab::Processes, (80, 24));
    let first = state.layout().rows.y;
    for row in 0..3 {
        let (buf, _) = draw(&state);
        let lit: Vec<u16> = (first..23)
            .filter(|y| buf[(0, *y)].modifier.contains(Modifier::REVERSED))
            .collect();
        assert_eq!(lit, [first + row]);
        typed(&mut state, "j");
    }
}

#[test]
fn the_detail_of_a_process_says_how_busy_its_known_links_are() {
    let shown = |waits: bool, partial: bool| {
        let mut s = testkit::one_row();
        s.processes[0].bound = Some(Bound {
            share: 0.937,
            partial,
            of_ports: false,
            seconds: 30.0,
            processes: 1,
            source: Source::Hw,
            verdict: waits.then_some("communication"),
            gpu: None,
        });
        let mut state = state(s, Tab::Processes, (120, 40));
        code(&mut state, KeyCode::Enter);
        screen(&state)
    };
    let text = shown(true, false);
    assert!(
        text.contains("links 93 % busy over the last 30 s: communication-bound"),
        "{text}"
    );
    let text = shown(false, true);
    assert!(
        text.contains("links at least 93 % busy over the last 30 s"),
        "{text}"
    );
    assert!(!text.contains("bound"), "{text}");
    let mut state = state(testkit::one_row(), Tab::Processes, (120, 40));
    code(&mut state, KeyCode::Enter);
    assert!(!screen(&state).contains("links "), "{}", screen(&state));
}
