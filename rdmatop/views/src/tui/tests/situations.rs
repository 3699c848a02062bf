//! What a reader sees in each situation, kept in docs/screens as text and as pictures.

use std::fmt::Write as _;
use std::path::Path;

use super::super::layout;
use super::svg;
use super::*;
use rdmatop_model::snapshot::PortRow;
use rdmatop_model::testkit::situations::{ALL, Situation};
use rdmatop_model::value::Known;

const PAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/screens/situations");
const SHOWN: [(u16, u16); 3] = [(40, 12), (80, 24), (200, 50)];

/// The words of a screen, without the ends of lines.
fn words(screen: &str) -> String {
    screen.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn first_screen(situation: &Situation, size: (u16, u16)) -> State {
    let mut state = State::new(
        Arc::new((situation.make)()),
        Settings::default(),
        Tab::Processes,
        true,
        Depth::True,
    );
    state.touch();
    update::resize(&mut state, size);
    state
}

/// Writes the page if asked to; otherwise returns how the file differs from it.
fn held(name: &str, page: &str) -> Option<String> {
    let path = Path::new(PAGES).join(name);
    if std::env::var_os("RDMATOP_WRITE_DOCS").is_some() {
        std::fs::create_dir_all(PAGES).unwrap();
        std::fs::write(&path, page).unwrap();
    }
    (std::fs::read_to_string(&path).unwrap_or_default() != page).then(|| name.to_owned())
}

#[test]
fn each_situation_has_its_finding_and_no_other() {
    for situation in ALL {
        let snapshot = (situation.make)();
        let found: Vec<_> = snapshot.findings.iter().map(|finding| finding.id).collect();
        let wanted: Vec<_> = situation.finds.into_iter().collect();
        assert_eq!(found, wanted, "{}: {:#?}", situation.name, snapshot.findings);
    }
}

#[test]
fn the_first_screen_of_80_columns_says_cause_and_culprit_and_what_to_do() {
    let mut silent = String::new();
    for situation in ALL {
        let page = screen(&first_screen(situation, (80, 24)));
        let said = words(&page);
        for part in situation.says {
            if !said.contains(part) {
                let _ = writeln!(
                    silent,
                    "{} ({}) does not say {part:?}:\n{page}",
                    situation.name, situation.truth
                );
            }
        }
    }
    assert!(silent.is_empty(), "{silent}");
}

#[test]
fn the_card_of_80_columns_is_whole_and_says_when_it_is_over() {
    for situation in ALL.iter().filter(|situation| situation.finds.is_some()) {
        let lines = layout::finding_lines(&first_screen(situation, (80, 24)), 80);
        let has = |is: &dyn Fn(&String) -> bool| lines.iter().any(is);
        let ends = ["Fixed when ", "Over when ", "It is over: "];
        let name = situation.name;
        assert!(
            has(&|line| ends.iter().any(|end| line.starts_with(end))),
            "{name}: {lines:#?}"
        );
        assert!(
            !has(&|line| line.ends_with('\\')),
            "{name}: a command is broken: {lines:#?}"
        );
        // What a pod's node needs if its system is an image is left out.
        let is_cut = has(&|line| line.ends_with('…'));
        assert_eq!(is_cut, name == "eight-10-memlock", "{name}: {lines:#?}");
    }
}

#[test]
fn no_bound_of_a_process_is_more_than_its_nics_carry() {
    let mut bounds = 0;
    for situation in ALL {
        let s = (situation.make)();
        for row in &s.processes {
            let own = s.ports.iter().filter(|port| row.devices.contains(&port.device));
            let most: f64 = own.filter_map(PortRow::capacity).sum();
            let ways = [row.traffic.tx_bytes, row.traffic.rx_bytes].into_iter().flatten();
            for bound in ways.filter(|bytes| bytes.rate_known() == Known::AtMost) {
                assert!(bound.rate <= Some(1.05 * most), "{}: {row:?}", situation.name);
                bounds += 1;
            }
        }
    }
    assert!(bounds > 10);
}

#[test]
fn the_smallest_screen_says_whether_and_what_is_wrong() {
    for situation in ALL {
        let page = screen(&first_screen(situation, (40, 12)));
        let state = first_screen(situation, (40, 12));
        let worst = state.snapshot.findings.first();
        let begin = worst.map_or_else(String::new, |worst| {
            format!("{}: {}", worst.short, worst.verdict.get(..10).unwrap_or_default())
        });
        assert!(
            words(&page).contains(begin.trim_end()),
            "{}:\n{page}",
            situation.name
        );
    }
}

#[test]
fn the_pages_hold_these_screens() {
    let mut other = Vec::new();
    for situation in ALL {
        let mut page = format!("{}: {}.\n", situation.name, situation.truth);
        for size in SHOWN {
            let state = first_screen(situation, size);
            let _ = write!(page, "\n--- {}x{}\n{}", size.0, size.1, screen(&state));
            let (buf, _) = draw(&state);
            let name = format!("{}-{}x{}.svg", situation.name, size.0, size.1);
            other.extend(held(&name, &svg::picture(&buf)));
        }
        other.extend(held(&format!("{}.txt", situation.name), &page));
    }
    assert!(
        other.is_empty(),
        "RDMATOP_WRITE_DOCS=1 writes them anew: {other:?}"
    );
}
