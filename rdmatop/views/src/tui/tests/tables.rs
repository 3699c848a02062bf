//! Order, layout and speed of tables.

use super::super::columns;
use super::super::format::Units;
use super::super::settings::Sort;
use super::super::text;
use super::*;

#[test]
fn equal_keys_keep_the_order_of_the_snapshot() {
    let mut s = state(testkit::busy(), Tab::Qps, (80, 24));
    let six = |s: &State| -> Vec<u32> {
        s.table()
            .order
            .iter()
            .map(|e| s.snapshot.qps[e.at].qpn)
            .filter(|q| (289..300).contains(q))
            .collect()
    };
    assert_eq!(six(&s), [289, 291, 293, 295, 297, 299]);
    typed(&mut s, "I");
    assert_eq!(six(&s), [289, 291, 293, 295, 297, 299]);
}

/// `--once` and the live view order processes alike, whatever `--sort` says.
#[test]
fn a_word_of_sort_gives_one_order_here_and_in_once() {
    use rdmatop_model::fields;
    let mut snapshot = testkit::busy();
    snapshot
        .processes
        .extend(rdmatop_model::testkit::full::snapshot().facts.processes);
    // Two processes that sort alike, with PIDs in the other order.
    let mut twin = snapshot.processes[0].clone();
    (twin.uid, twin.pid) = (999, Some(1));
    snapshot.processes.push(twin);
    let mut words = 0;
    for (word, _) in fields::sort_words() {
        let mut once = snapshot.clone();
        fields::sort_processes(&mut once, Some(word));
        let mut settings = Settings {
            stuck_first: false,
            ..Settings::default()
        };
        let sort = Sort::of_processes(word).unwrap();
        settings.sort.insert(Tab::Processes, sort);
        let live = Arc::new(snapshot.clone().judged(None));
        let live = State::new(live, settings, Tab::Processes, true, Depth::True);
        let live: Vec<u64> = live
            .table()
            .order
            .iter()
            .map(|e| live.snapshot.processes[e.at].uid)
            .collect();
        let once: Vec<u64> = once.processes.iter().map(|p| p.uid).collect();
        assert_eq!(live, once, "--sort {word}");
        words += 1;
    }
    assert!(words > 15, "{words}");
}

#[test]
fn rows_without_a_value_come_last_in_both_directions() {
    let mut s = state(testkit::busy(), Tab::Processes, (80, 24));
    for _ in 0..2 {
        let last = s
            .table()
            .order
            .last()
            .map(|e| s.snapshot.processes[e.at].comm.to_string());
        assert_eq!(last.as_deref(), Some("ucx_perftest"));
        typed(&mut s, "I");
    }
}

#[test]
fn columns_give_way_by_priority_and_never_the_essential_ones() {
    for tab in Tab::ALL {
        let s = state(testkit::busy(), tab, (80, 24));
        let mut before: Option<Vec<&str>> = None;
        for width in (20..=220).rev() {
            let fit = s.fit(width);
            let ids: Vec<&str> = fit.placed.iter().map(|p| p.column.id).collect();
            if let Some(before) = &before {
                let gone: Vec<_> = before.iter().filter(|id| !ids.contains(id)).collect();
                let rank = |id: &str| {
                    s.spec()
                        .columns()
                        .iter()
                        .find(|c| c.id == id)
                        .map_or(0, |c| c.screen.priority)
                };
                let least = ids.iter().map(|id| rank(id)).max().unwrap_or(0);
                assert!(
                    gone.iter().all(|id| rank(id) >= least),
                    "{tab:?} at {width}: {gone:?} went before {ids:?}"
                );
            }
            let right = fit.placed.last().map_or(0, |p| p.x + p.width);
            assert!(right <= width);
            before = Some(ids);
        }
    }
}

#[test]
fn at_80_columns_no_essential_column_is_missing() {
    let ids = |tab| -> Vec<&str> {
        state(testkit::busy(), tab, (80, 24))
            .fit(80)
            .placed
            .iter()
            .map(|p| p.column.id)
            .collect()
    };
    assert_eq!(
        ids(Tab::Processes),
        [
            "pid", "command", "device", "qps", "tx_wr", "tx", "rx", "errors", "retx", "p99"
        ]
    );
    assert_eq!(
        ids(Tab::Qps),
        [
            "device", "qpn", "state", "pid", "owner", "peer", "tx", "rx", "retx", "err"
        ]
    );
    let devices = ids(Tab::Devices);
    for id in [
        "port", "state", "link", "tx", "tx_bar", "rx", "rx_bar", "drops", "retx", "rnr",
    ] {
        assert!(devices.contains(&id), "{id}");
    }
}

#[test]
fn every_column_has_an_order_but_those_of_the_log() {
    for tab in Tab::ALL {
        for column in columns::spec(tab).columns() {
            assert_eq!(!column.sortable, tab == Tab::Trace, "{tab:?} {}", column.id);
        }
    }
}

#[test]
fn the_natural_order_of_ports_can_be_had_again() {
    let mut s = state(testkit::busy(), Tab::Devices, (120, 24));
    let order = |s: &State| -> Vec<usize> { s.table().order.iter().map(|e| e.at).collect() };
    for id in ["drops", "port"] {
        let column = s.spec().columns().iter().find(|c| c.id == id).unwrap();
        s.sort_by(column);
    }
    assert_eq!(order(&s), [0, 1, 2, 3]);
}

#[test]
fn headings_fit_their_columns() {
    for tab in Tab::ALL {
        let mut s = state(testkit::one_row(), tab, (80, 24));
        for units in [Units::Bits, Units::Bytes] {
            s.settings.units = units;
            for column in columns::spec(tab).columns() {
                let heading = column.heading(&s.ctx());
                assert!(
                    text::width(&heading) <= usize::from(column.screen.width.0),
                    "{tab:?} {heading}"
                );
            }
        }
    }
}

#[test]
fn the_tree_keeps_every_row_once_and_children_below_their_parent() {
    let mut snapshot = testkit::busy();
    snapshot.processes[1].ppid = snapshot.processes[2].pid;
    // Because /proc is read at different times, parents may form a cycle.
    snapshot.processes[4].ppid = snapshot.processes[6].pid;
    snapshot.processes[6].ppid = snapshot.processes[4].pid;
    let mut s = state(snapshot, Tab::Processes, (120, 24));
    typed(&mut s, "T");
    let mut rows: Vec<usize> = s.table().order.iter().map(|e| e.at).collect();
    let place = |at: usize| s.table().order.iter().position(|e| e.at == at);
    assert_eq!(place(1), place(2).map(|p| p + 1));
    rows.sort_unstable();
    assert_eq!(rows, (0..7).collect::<Vec<_>>());
}

#[test]
fn with_ten_thousand_qps_a_key_sorts_nothing() {
    let mut s = state(testkit::many(), Tab::Qps, (200, 50));
    let order = s.table().order.as_ptr();
    for _ in 0..20 {
        typed(&mut s, "j");
        let _ = draw(&s);
    }
    assert_eq!(
        s.table().order.as_ptr(),
        order,
        "the order was computed again for a key"
    );
}

#[test]
fn the_sort_mark_hides_nothing_of_a_heading() {
    let mut s = state(testkit::busy(), Tab::Processes, (80, 24));
    typed(&mut s, "<");
    assert!(screen(&s).contains(" QPs↓TX WR/s  TX b/s"), "{}", screen(&s));
}

#[test]
fn bars_are_equally_wide_so_that_they_compare() {
    let s = state(testkit::busy(), Tab::Devices, (200, 50));
    for width in 80..260 {
        let fit = s.fit(width);
        let bars: Vec<u16> = fit
            .placed
            .iter()
            .filter(|p| p.column.id.ends_with("_bar"))
            .map(|p| p.width)
            .collect();
        assert!(bars.windows(2).all(|w| w[0] == w[1]), "{width}: {bars:?}");
    }
}

#[test]
fn a_relative_scale_is_named_and_the_busiest_port_is_full() {
    let mut snapshot = testkit::busy();
    snapshot.ports[1].rate_bps = None;
    let s = state(snapshot, Tab::Devices, (120, 24));
    assert!(s.snapshot.judgement.scale.max > 0.0 && !s.snapshot.judgement.scale.link);
    assert!(screen(&s).contains("TX of max"));
    let s = state(testkit::one_row(), Tab::Devices, (120, 24));
    assert!(
        screen(&s).contains("TX pkt/s"),
        "no port counts bytes\n{}",
        screen(&s)
    );
}

#[test]
fn a_sum_without_known_parts_is_unknown_and_with_some_a_lower_bound() {
    let s = state(testkit::empty(), Tab::Processes, (80, 24));
    assert_eq!(
        (
            s.snapshot.judgement.totals.tx.rate,
            s.snapshot.judgement.totals.wr.rate
        ),
        (None, None)
    );
    assert!(screen(&s).contains("Tx -"));
    let s = state(testkit::degraded(), Tab::Processes, (80, 24));
    assert!(s.snapshot.judgement.totals.tx.partial && s.snapshot.judgement.totals.tx.rate.is_some());
    assert!(screen(&s).contains("Tx ≥"));
    let s = state(testkit::one_row(), Tab::Processes, (80, 24));
    assert!(
        s.snapshot.judgement.totals.tx.rate.is_some(),
        "rxe has no port bytes: what eBPF counted by QP stands in"
    );
}

#[test]
fn what_qps_move_is_a_lower_bound_without_peers_one_sided_traffic() {
    let mut snapshot = testkit::one_row();
    let s = state(snapshot.clone(), Tab::Processes, (80, 24));
    assert!(s.snapshot.judgement.totals.tx.partial && s.snapshot.judgement.totals.rx.partial);
    // The side that is written to has no completions: what it received is unknown, not 0.
    for qp in snapshot.qps.iter_mut() {
        let qp = Arc::make_mut(qp);
        let traffic = Arc::make_mut(&mut qp.traffic);
        traffic.rx_bytes = traffic
            .rx_bytes
            .map(|c| rdmatop_model::value::Counter { rate: Some(0.0), ..c });
    }
    let s = state(snapshot, Tab::Processes, (80, 24));
    assert!(screen(&s).contains("Rx -  "), "{}", screen(&s));
}

#[test]
fn the_bytes_of_a_read_are_received() {
    use rdmatop_model::ib::WrOpcode;
    let mut snapshot = testkit::one_row();
    for qp in snapshot.qps.iter_mut() {
        let t = Arc::make_mut(&mut Arc::make_mut(qp).traffic);
        t.by_opcode.truncate(1);
        t.by_opcode[0].opcode = WrOpcode(4);
        t.by_opcode[0].bytes.rate = Some(1000.0);
        for (counter, rate) in [(&mut t.tx_bytes, 1500.0), (&mut t.rx_bytes, 20.0)] {
            if let Some(counter) = counter {
                counter.rate = Some(rate);
            }
        }
    }
    let s = state(snapshot, Tab::Processes, (80, 24));
    assert_eq!(
        (
            s.snapshot.judgement.totals.tx.rate,
            s.snapshot.judgement.totals.rx.rate
        ),
        (Some(500.0), Some(1020.0))
    );
}

#[test]
fn the_header_has_each_fact_at_80_columns_and_longer_ones_beyond() {
    for (width, facts) in [
        (
            80,
            [
                "node17",
                "up 3d4h",
                "eBPF on",
                "2 ok",
                "lost 0",
                "self 0.4%",
                "4 dev",
                "Tx 189Gb/s",
                "Rx 99.0Gb/s",
                "WR ≥331k/s",
                "QPs 11: 8 RTS",
                "2 stuck",
                "1s",
            ],
        ),
        (
            120,
            [
                "node17  6.12.107",
                "up 3d4h",
                "eBPF on (kprobe)",
                "probes 2 ok",
                "lost 0",
                "self 0.4% 12.0MiB",
                "4 devices",
                "Tx 189Gb/s",
                "Rx 99.0Gb/s",
                "WR ≥331k/s",
                "QPs 11: 1 SQE 1 ERR 8 RTS",
                "2 of them stuck",
                "every 1s",
            ],
        ),
    ] {
        for tab in Tab::ALL {
            let s = state(testkit::busy(), tab, (width, 24));
            let text = screen(&s);
            let header: String = text.lines().take(2).collect::<Vec<_>>().join("\n");
            for fact in facts {
                assert!(header.contains(fact), "{width} {fact}\n{header}");
            }
        }
    }
}
