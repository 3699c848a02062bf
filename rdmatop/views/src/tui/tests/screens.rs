//! Screens as somebody sees them who does not know rdmatop.

use super::*;

#[test]
fn every_tab_at_every_size() {
    for tab in Tab::ALL {
        for size in SIZES {
            let state = state(testkit::busy(), tab, size);
            insta::assert_snapshot!(
                format!("{}_{}x{}", tab.names()[0], size.0, size.1),
                screen(&state)
            );
        }
    }
}

#[test]
fn other_hosts_at_80_by_24() {
    for (name, snapshot) in [
        ("empty", testkit::empty()),
        ("one_row", testkit::one_row()),
        ("degraded", testkit::degraded()),
        ("hostile", testkit::hostile()),
    ] {
        for tab in [Tab::Processes, Tab::Devices, Tab::Probes] {
            let state = state(snapshot.clone(), tab, (80, 24));
            insta::assert_snapshot!(format!("{name}_{}", tab.names()[0]), screen(&state));
        }
    }
}

#[test]
fn what_is_wrong_is_on_the_first_screen_and_all_of_it_on_its_tab() {
    for tab in [Tab::Processes, Tab::Devices, Tab::Findings] {
        for size in SIZES {
            let state = state(testkit::troubled(), tab, size);
            insta::assert_snapshot!(
                format!("troubled_{}_{}x{}", tab.names()[0], size.0, size.1),
                screen(&state)
            );
        }
    }
    let mut state = state(testkit::troubled(), Tab::Findings, (120, 40));
    code(&mut state, KeyCode::Enter);
    insta::assert_snapshot!("troubled_detail", screen(&state));
}

#[test]
fn the_detail_of_every_kind_of_row() {
    for tab in Tab::ALL {
        let mut state = state(testkit::busy(), tab, (120, 50));
        code(&mut state, KeyCode::Enter);
        code(&mut state, KeyCode::Enter);
        insta::assert_snapshot!(format!("detail_{}", tab.names()[0]), screen(&state));
    }
}

#[test]
fn the_detail_stands_below_on_narrow_and_beside_on_wide_screens() {
    for size in [(80, 24), (200, 50)] {
        let mut state = state(testkit::busy(), Tab::Qps, size);
        typed(&mut state, "/312");
        code(&mut state, KeyCode::Enter);
        code(&mut state, KeyCode::Enter);
        insta::assert_snapshot!(format!("split_{}x{}", size.0, size.1), screen(&state));
    }
}

#[test]
fn menus_prompts_and_help() {
    for (name, keys) in [
        ("sort", "s"),
        ("columns", "c"),
        ("help", "?"),
        ("filter", "fdev:mlx5_1"),
        ("search", "/nvme"),
        ("tree", "T"),
    ] {
        let mut state = state(testkit::busy(), Tab::Processes, (80, 24));
        typed(&mut state, keys);
        insta::assert_snapshot!(name, screen(&state));
    }
}

#[test]
fn the_help_has_two_columns_where_there_is_room() {
    for tab in Tab::ALL {
        // The screen is lower than the longest list and twice as wide as any line.
        let mut state = state(testkit::busy(), tab, (160, 75));
        typed(&mut state, "?");
        let screen = screen(&state);
        for line in render::help_lines(&state) {
            assert!(screen.contains(line.text().trim()), "{}\n{screen}", line.text());
        }
    }
}

#[test]
fn the_help_lists_exactly_the_keys_that_are_handled() {
    use super::super::keys::{BINDINGS, names};
    let state = state(testkit::busy(), Tab::Processes, (80, 24));
    let help: Vec<String> = render::help_lines(&state)
        .iter()
        .map(|l| l.text().trim().to_owned())
        .collect();
    let place = |heading: &str| help.iter().position(|l| l == heading).unwrap();
    // The columns of the tab come first.
    let listed: Vec<_> = help[place(BINDINGS[0].group)..place("Mouse")]
        .iter()
        .filter(|l| !l.is_empty())
        .collect();
    let mut bound = 0;
    for binding in BINDINGS {
        bound += 1;
        let line = |l: &&&String| l.starts_with(&names(binding)) && l.ends_with(binding.about);
        assert!(
            listed.iter().any(|l| line(&l)),
            "{} is not in the help",
            names(binding)
        );
    }
    let groups: std::collections::BTreeSet<_> = BINDINGS
        .iter()
        .map(|b| b.group)
        .filter(|g| !g.is_empty())
        .collect();
    assert_eq!(
        listed.len(),
        bound + groups.len(),
        "the help lists something that no key does"
    );
}

#[test]
fn in_ascii_mode_every_sign_of_ours_is_ascii() {
    for tab in Tab::ALL {
        for size in SIZES {
            for keys in ["", "?", "s", "c", "fx", "T"] {
                for detail in [0, 1, 2] {
                    let mut state = state(testkit::degraded(), tab, size);
                    state.glyphs = &super::super::glyphs::ASCII;
                    for _ in 0..detail {
                        code(&mut state, KeyCode::Enter);
                    }
                    typed(&mut state, keys);
                    let (buf, replaced) = draw(&state);
                    assert!(buf.content.iter().all(|c| c.symbol().is_ascii()));
                    assert_eq!(
                        replaced,
                        0,
                        "a sign bypassed the table: {tab:?} {size:?} {keys:?}\n{}",
                        screen(&state)
                    );
                }
            }
        }
    }
}

#[test]
fn names_that_are_not_ascii_are_replaced_in_ascii_mode() {
    let mut state = state(testkit::hostile(), Tab::Processes, (80, 24));
    state.glyphs = &super::super::glyphs::ASCII;
    let (buf, replaced) = draw(&state);
    assert!(replaced > 0);
    assert!(buf.content.iter().all(|c| c.symbol().is_ascii()));
}

#[test]
fn no_size_panics() {
    for snapshot in [
        testkit::empty(),
        testkit::busy(),
        testkit::degraded(),
        testkit::hostile(),
    ] {
        for tab in Tab::ALL {
            for size in [
                (0, 0),
                (1, 1),
                (2, 30),
                (12, 4),
                (20, 5),
                (40, 3),
                (80, 2),
                (200, 60),
            ] {
                for keys in ["", "?", "s", "c", "fx"] {
                    let mut state = state(snapshot.clone(), tab, size);
                    for _ in 0..3 {
                        typed(&mut state, keys);
                        let _ = draw(&state);
                        code(&mut state, KeyCode::Esc);
                        code(&mut state, KeyCode::Enter);
                        code(&mut state, KeyCode::PageDown);
                        let _ = draw(&state);
                    }
                }
            }
        }
    }
}

#[test]
fn a_bond_with_a_link_of_unknown_state_does_not_say_how_many_are_up() {
    let mut s = rdmatop_model::testkit::full::snapshot();
    let bonds = || s.ports.iter().filter_map(|port| port.bond.as_ref());
    assert_eq!(
        bonds()
            .map(rdmatop_model::snapshot::Bond::links_up)
            .collect::<Vec<_>>(),
        ["2/2"]
    );
    // In 80 columns there is no room for the links themselves.
    let told = |s: &Snapshot| {
        let both = [(Tab::Processes, (80, 24)), (Tab::Devices, (200, 50))];
        both.map(|(tab, size)| screen(&state(s.clone(), tab, size)))
            .join("\n")
    };
    assert!(told(&s).contains(" 2/2 up"), "{}", told(&s));
    for up in [None, Some(false)] {
        let bond = s.ports.iter_mut().find_map(|port| port.bond.as_mut()).unwrap();
        bond.members[0].up = up;
        let words = if up.is_none() { " ?/2 up" } else { " 1/2 up" };
        let page = told(&s);
        assert!(page.matches(words).count() >= 3, "Tx, Rx and NETDEV:\n{page}");
        assert!(!page.contains("2/2"), "{page}");
    }
}

#[test]
fn the_links_of_a_bond_stand_behind_its_port_where_there_is_room() {
    let all = rdmatop_model::testkit::situations::ALL;
    let mut s = (all.iter().find(|one| one.name.starts_with("bond")).unwrap().make)();
    let strip = |s: &Snapshot, width| {
        let page = screen(&state(s.clone(), Tab::Verbs, (width, 24)));
        let lines = page.lines().filter(|line| line.contains(" % of link: "));
        // Without the bars.
        let words = |line: &str| {
            let plain = line.replace(|c: char| !c.is_ascii(), " ");
            plain.split_whitespace().skip(4).collect::<Vec<_>>().join(" ")
        };
        lines.map(words).collect::<Vec<_>>()
    };
    let both = [
        "mlx5_bond_0 46% ens1f0np0 92% ens1f1np1 <1%",
        "mlx5_bond_0 42% ens1f0np0 44% ens1f1np1 40%",
    ];
    assert_eq!(strip(&s, 80), both);
    assert_eq!(
        strip(&s, 79),
        ["mlx5_bond_0 2/2 up 46%", "mlx5_bond_0 2/2 up 42%"]
    );
    let port = &mut s.ports[0];
    let bond = port.bond.as_mut().unwrap();
    (bond.members[0].rate_bps, bond.members[1].up) = (None, Some(false));
    // What a link carries of an unknown rate is not known, and what one that is down carries does not matter.
    let down = "mlx5_bond_0 46% ens1f0np0 - ens1f1np1 DOWN";
    assert_eq!(strip(&s, 80), [down, &down.replace("46", "42")]);
}

#[test]
fn the_help_explains_each_sign_before_a_number() {
    let lines = super::super::render::help_lines(&state(testkit::busy(), Tab::Processes, (200, 50)));
    for sign in ["~", "0-n", "> "] {
        let is_it = |line: &str| line.trim_start().starts_with(sign);
        assert!(lines.iter().any(|line| is_it(&line.text())), "{sign}");
    }
}
