//! What a reader sees in each situation, kept in docs/screens as text and as pictures.

use std::fmt::Write as _;
use std::path::Path;

use super::svg;
use super::*;
use rdmatop_model::testkit::situations::{ALL, Situation};

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
