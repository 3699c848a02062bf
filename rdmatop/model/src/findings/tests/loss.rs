//! Lost packets: how many, whose, and on the way to whom.

use super::*;
use crate::ib::Gid;

#[test]
fn loss_is_a_share_of_what_is_sent_and_not_what_rnr_explains() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    s.health.ebpf = crate::input::EbpfState::Disabled;
    let sent = s.ports[1].tx_packets.unwrap().rate.unwrap();
    s.ports[1].retries = rate(sent * 0.0005);
    assert_eq!(ids(&after(10, &s)), [""; 0]);
    s.ports[1].retries = rate(sent * 0.002);
    let found = after(10, &s);
    // A round repeats any number of packets, so no share is known.
    let verdict = &found[0].verdict;
    assert!(
        verdict.starts_with("Packets from mlx5_1/1 are lost or out of order (")
            && verdict.contains(" retransmissions/s")
            && verdict.ends_with("/s); used by rank (PID 4711, slurm 7341.0)"),
        "{verdict}"
    );
    s.ports[1].retransmits = rate(sent * 0.002);
    assert_eq!(
        after(10, &s)[0].verdict,
        "Packets from mlx5_1/1 are lost or out of order (0.20 % are sent again); used by rank (PID 4711, slurm 7341.0)"
    );
    // Each round repeats everything in flight: the repeated packets are not all lost.
    (s.ports[1].retransmits, s.ports[1].retries) = (rate(sent * 0.41), rate(sent * 0.0059));
    assert_eq!(
        after(10, &s)[0].verdict,
        "About 1.00 % of the packets from mlx5_1/1 are lost or out of order, and 41 % of what it sends is sent again for them; used by rank (PID 4711, slurm 7341.0)"
    );
    s.ports[1].rnr_naks = rate(1.0);
    assert_eq!(ids(&after(10, &s)), ["receiver-not-ready"]);
}

#[test]
fn on_efa_there_is_no_switch_to_set() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    s.health.ebpf = crate::input::EbpfState::Disabled;
    let sent = s.ports[1].tx_packets.unwrap().rate.unwrap();
    s.ports[1].retransmits = rate(sent * 0.002);
    let next = &after(10, &s)[0].next;
    assert!(next.contains("PFC"), "{next}");
    s.devices[1].driver = Some("efa".into());
    let next = &after(10, &s)[0].next;
    assert!(next.contains("rx_drops") && !next.contains("PFC"), "{next}");
    named(&mut s.ports[1], "impaired_remote_conn_events", 3.0);
    let evidence = &after(10, &s)[0].evidence;
    let impaired = |line: &String| line.starts_with("impaired_remote_conn_events 3.0/s: ");
    assert!(evidence.iter().any(impaired), "{evidence:?}");
}

#[test]
fn on_efa_a_timeout_changes_the_path_and_repeats_nothing_else() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    s.health.ebpf = crate::input::EbpfState::Disabled;
    let sent = s.ports[1].tx_packets.unwrap().rate.unwrap();
    (s.ports[1].retransmits, s.ports[1].retries) = (rate(sent * 0.02), rate(sent * 0.001));
    assert_eq!(after(10, &s)[0].severity, Severity::Critical);
    s.devices[1].driver = Some("efa".into());
    let found = &after(10, &s)[0];
    assert!(
        found.verdict.contains("(2.00 % are sent again)"),
        "{}",
        found.verdict
    );
    assert_eq!(found.severity, Severity::Warning);
    assert!(
        found
            .evidence
            .iter()
            .any(|line| line.ends_with("changes of the path after a timeout"))
    );
}

#[test]
fn while_programs_are_attached_no_packet_is_called_lost() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    let sent = s.ports[1].tx_packets.unwrap().rate.unwrap();
    s.ports[1].retransmits = rate(sent);
    s.health.ebpf = crate::input::EbpfState::Starting;
    assert_eq!(
        ids(&after(20, &s)),
        [""; 0],
        "a QP whose peer is gone may explain it"
    );
    s.health.ebpf = crate::input::EbpfState::Disabled;
    assert_eq!(ids(&after(20, &s)), ["loss"]);
}

#[test]
fn where_qps_are_counted_loss_has_a_qp_that_sends_again_and_finishes_work() {
    let mut s = pair();
    (s.ports[0].retries, s.ports[0].tx_packets) = (rate(80.0), rate(90.0));
    edit(&mut s, 0, |t| (t.retransmits, t.tx_wr) = (rate(80.0), None));
    assert_eq!(
        ids(&after(20, &s)),
        [""; 0],
        "whether it finishes anything is not known yet"
    );
    edit(&mut s, 0, |t| t.tx_wr = rate(5.0));
    assert_eq!(ids(&after(20, &s)), ["loss"]);
    edit(&mut s, 0, |t| t.retransmits = None);
    assert_eq!(
        ids(&after(20, &s)),
        [""; 0],
        "a QP that is not counted yet sends again"
    );
    s.devices[0].datapath = None;
    assert_eq!(ids(&after(20, &s)), ["loss"], "no QP is counted");
}

#[test]
fn what_a_receiver_of_this_host_got_twice_was_late_and_is_not_lost() {
    let mut s = pair();
    (s.ports[0].retries, s.ports[0].tx_packets) = (rate(80.0), rate(90.0));
    edit(&mut s, 0, |t| (t.retransmits, t.tx_wr) = (rate(80.0), rate(5.0)));
    s.ports[0].counters.clear();
    named(&mut s.ports[0], "duplicate_request", 75.0);
    assert_eq!(ids(&after(20, &s)), [""; 0], "5/s are no loss");
    s.ports[0].counters.clear();
    named(&mut s.ports[0], "duplicate_request", 60.0);
    let found = after(20, &s);
    assert_eq!(ids(&found), ["loss"], "20/s did not arrive");
    assert!(
        found[0].verdict.contains("are lost or out of order ("),
        "some arrived twice"
    );
    s.ports[0].counters.clear();
    named(&mut s.ports[0], "duplicate_request", 1.0);
    assert!(after(20, &s)[0].verdict.contains("are lost ("), "none came twice");
    s.ports[0].counters.clear();
    named(&mut s.ports[0], "duplicate_request", 60.0);
    let found = after(20, &s);
    assert!(
        found[0].evidence[0].starts_with("20/s "),
        "{:?}",
        found[0].evidence
    );
    // The peer is on another host, so what it receives is unknown.
    let elsewhere = Arc::make_mut(&mut s.qps[0]);
    elsewhere.remote_qpn = Some(99);
    s.ports[0].counters.clear();
    named(&mut s.ports[0], "duplicate_request", 80.0);
    assert_eq!(ids(&after(20, &s)), ["loss"]);
}

#[test]
fn loss_names_the_peers_to_which_packets_do_not_come() {
    let mut s = pair();
    (s.ports[0].retries, s.ports[0].tx_packets) = (rate(80.0), rate(90.0));
    edit(&mut s, 0, |t| (t.retransmits, t.tx_wr) = (rate(80.0), rate(5.0)));
    let said = |s: &Snapshot| {
        let found = after(20, s).remove(0);
        let (to, rest) = found.verdict.split_once(" are lost").unwrap();
        let (_, by) = rest.split_once("(80 retransmissions/s)").unwrap();
        let to = to.strip_prefix("Packets from rxe0/1").unwrap();
        (format!("{to}{by}"), found.evidence.last().unwrap().clone())
    };
    let carries = "; used by ib_send_bw (PID 254) and 1 more";
    let sends = "; ib_send_bw (PID 254) sends them";
    let sent = "80/s rounds of retransmission, 90/s packets sent";
    assert_eq!(
        said(&s),
        (format!(" to ~server (PID 251){sends}"), sent.to_owned())
    );
    // A second QP sends more of it again, to another host.
    let mut far = s.qps[0].clone();
    let row = Arc::make_mut(&mut far);
    (row.uid, row.qpn, row.remote_qpn) = (20, 30, Some(99));
    let mut ipv4 = [0; 16];
    ipv4[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 9]);
    row.remote_gid = Some(Gid(ipv4));
    Arc::make_mut(&mut row.traffic).retransmits = Some(Counter::whole(5000, Some(70.0), Source::Ebpf));
    s.qps.push(far);
    assert_eq!(
        said(&s),
        (
            format!(" to 10.0.0.9 or 1 more{sends}"),
            "the QPs that send again lead to 10.0.0.9, ~server (PID 251)".to_owned()
        )
    );
    // Whose packets are lost is not known: all processes and all peers of the port are named.
    for qp in s.qps.iter_mut() {
        Arc::make_mut(&mut Arc::make_mut(qp).traffic).retransmits = None;
    }
    s.devices[0].datapath = None;
    s.qps.remove(1);
    let row = Arc::make_mut(&mut s.qps[0]);
    row.remote_gid = Some(Gid(ipv4));
    assert_eq!(said(&s), (format!(" to 10.0.0.9{carries}"), sent.to_owned()));
    let row = Arc::make_mut(&mut s.qps[0]);
    row.remote_gid = None;
    assert_eq!(said(&s).0, format!(" to 10.0.0.9 or others{carries}"));
    s.processes.clear();
    assert_eq!(said(&s).0, " to 10.0.0.9 or others");
    // Nothing is known of them.
    s = pair();
    (s.ports[0].retries, s.ports[0].tx_packets, s.devices[0].datapath) = (rate(80.0), rate(90.0), None);
    s.qps.clear();
    assert_eq!(said(&s), (carries.to_owned(), sent.to_owned()));
}
