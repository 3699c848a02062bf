//! The pane of work requests.

use rdmatop_common::wr::{NO_STATUS, WrRecord, flag, kind};
use zerocopy::FromZeros as _;

use super::super::run::Control;
use super::*;
use rdmatop_model::cause::{CauseId, Obstacle};
use rdmatop_model::input::{Now, WatchReport};
use rdmatop_model::watched::Watched;

const MS: u64 = 1_000_000;

/// A QP that posts an RDMA WRITE every 40 ms, each of which takes 10 ms. Nothing ends between 5 s and 6.4 s,
/// and from 8 s on.
fn watched(qp: u64) -> Watched {
    let mut watched = Watched::new(1, qp);
    let mut records = Vec::new();
    for number in 1..=200u32 {
        let posted = u64::from(number) * 40;
        if (5_100..6_400).contains(&posted) {
            continue;
        }
        let ended = if (5_000..5_100).contains(&posted) {
            6_400
        } else {
            posted + 10
        };
        let mut record = WrRecord::new_zeroed();
        record.kind = kind::POST;
        record.flags = flag::WR_ID | flag::DETAILS | flag::SIGNALED;
        record.number = u32::try_from(records.len() / 2 + 1).unwrap();
        (record.wr_id, record.bytes, record.status) = (u64::from(number) + 7_000_000_000, 65_536, NO_STATUS);
        (record.ts_ns, record.post_ns) = (posted * MS, posted * MS);
        records.push((posted, record));
        (record.kind, record.ts_ns) = (kind::DONE, ended * MS);
        record.status = if number == 100 { 12 } else { 0 };
        records.push((ended, record));
    }
    records.sort_by_key(|(at, _)| *at);
    // The last two have not ended.
    records.retain(|(at, record)| *at < 7_970 || record.kind == kind::POST);
    let records = records.into_iter().map(|(_, record)| record).collect();
    let now = Now {
        mono_ns: 8_100 * MS,
        wall_ns: 3_600_000 * MS,
    };
    watched.take(WatchReport::On, Now { mono_ns: 0, ..now });
    let report = WatchReport::Records {
        records,
        full: 0,
        missed: 0,
    };
    watched.take(report, now);
    watched
}

/// The pane, open for the first QP of a busy host; `change` edits what is watched.
fn open(size: (u16, u16), change: impl FnOnce(&mut Watched)) -> State {
    let mut state = state(testkit::busy(), Tab::Qps, size);
    assert!(matches!(
        typed(&mut state, "w"),
        Some(Effect::Ask(Control::Watch(Some(_))))
    ));
    let mut watched = watched(state.work.as_ref().unwrap().qp);
    change(&mut watched);
    let mut snapshot = (*state.snapshot).clone();
    snapshot.watched = Some(Arc::new(watched.picture(10_000 * MS)));
    state.take(Arc::new(snapshot));
    state
}

#[test]
fn a_stall_shows_at_every_size() {
    for size in SIZES {
        let state = open(size, |_| ());
        let text = screen(&state);
        assert!(text.contains("STALLED 2.0s: 2 outstanding"), "{text}");
        insta::assert_snapshot!(format!("work_{}x{}", size.0, size.1), text);
    }
}

#[test]
fn for_how_many_requests_the_duration_is_unknown_is_said_on_the_page() {
    assert!(!screen(&open((80, 24), |_| ())).contains("unknown"));
    let text = screen(&open((80, 24), |watched| {
        let mut record = WrRecord::new_zeroed();
        (record.kind, record.number, record.ts_ns) = (kind::DONE, 167, 8_200 * MS);
        let now = Now {
            mono_ns: 8_300 * MS,
            wall_ns: 3_600_000 * MS,
        };
        let report = WatchReport::Records {
            records: vec![record],
            full: 0,
            missed: 0,
        };
        watched.take(report, now);
    }));
    insta::assert_snapshot!("work_untimed", text);
}

#[test]
fn without_colour_and_in_ascii_a_stall_is_a_letter() {
    let mut state = open((80, 24), |_| ());
    state.glyphs = &super::super::glyphs::ASCII;
    let (buf, replaced) = draw(&state);
    assert_eq!(replaced, 0);
    assert!(buf.content.iter().all(|cell| cell.symbol().is_ascii()));
    insta::assert_snapshot!("work_ascii", screen(&state));
}

#[test]
fn what_cannot_be_seen_is_one_plain_line() {
    let why = "programs post to it without entering the kernel";
    let mut state = open((80, 24), |watched| {
        let obstacle = Obstacle::new(CauseId::NotFollowed, why, "");
        watched.take(
            WatchReport::Off(obstacle),
            Now {
                mono_ns: 1,
                wall_ns: 1,
            },
        );
    });
    assert!(screen(&state).contains("No work requests: programs post to it without entering the kernel."));
    // No report has come yet.
    let mut snapshot = (*state.snapshot).clone();
    snapshot.watched = None;
    state.take(Arc::new(snapshot));
    assert!(screen(&state).contains("Attaching the programs that see work requests"));
}

#[test]
fn the_end_of_the_qp_is_told_and_what_was_seen_stays() {
    let text = screen(&open((80, 24), Watched::end));
    assert!(
        text.contains("The QP is gone.") && text.contains("rdma_write"),
        "{text}"
    );
}

#[test]
fn whatever_closes_the_pane_ends_the_watch() {
    for closing in ["w", "1", "\u{1b}"] {
        let mut state = open((80, 24), |_| ());
        assert_eq!(typed(&mut state, "jj"), None);
        assert_eq!(state.work.as_ref().unwrap().first, 2);
        let effect = match closing {
            "\u{1b}" => code(&mut state, KeyCode::Esc),
            key => typed(&mut state, key),
        };
        assert_eq!(
            (effect, &state.work),
            (Some(Effect::Ask(Control::Watch(None))), &None),
            "{closing:?}"
        );
    }
    // Keys for the table do nothing while it is covered.
    let mut state = open((80, 24), |_| ());
    assert_eq!(typed(&mut state, "s"), None);
    assert!(state.work.is_some() && screen(&state).contains("Esc closes the work requests first"));
}

#[test]
fn a_row_that_is_no_qp_has_no_work_requests() {
    let mut state = state(testkit::busy(), Tab::Processes, (80, 24));
    assert_eq!(typed(&mut state, "w"), None);
    assert!(state.work.is_none() && screen(&state).contains("choose one in 2:QPs"));
}

#[test]
fn no_size_of_the_pane_panics() {
    for size in [(0, 0), (1, 1), (5, 9), (8, 30), (40, 6), (400, 100)] {
        let _ = draw(&open(size, |_| ()));
    }
}
