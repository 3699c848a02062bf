//! The last column of an event line: the details of its kind.

use std::{io::Write, net::Ipv6Addr};

use super::{errno, units};
use rdmatop_base::text;
use rdmatop_model::event::{BUDGET, Event, EventKind};
use rdmatop_model::ib::QpState;
use rdmatop_model::snapshot::DevxKind;

/// Bits of `ib_qp_attr_mask`, include/rdma/ib_verbs.h, in their order.
const ATTRS: [(u32, &str); 22] = [
    (1, "STATE"),
    (1 << 1, "CUR_STATE"),
    (1 << 2, "EN_SQD_ASYNC_NOTIFY"),
    (1 << 3, "ACCESS_FLAGS"),
    (1 << 4, "PKEY_INDEX"),
    (1 << 5, "PORT"),
    (1 << 6, "QKEY"),
    (1 << 7, "AV"),
    (1 << 8, "PATH_MTU"),
    (1 << 9, "TIMEOUT"),
    (1 << 10, "RETRY_CNT"),
    (1 << 11, "RNR_RETRY"),
    (1 << 12, "RQ_PSN"),
    (1 << 13, "MAX_QP_RD_ATOMIC"),
    (1 << 14, "ALT_PATH"),
    (1 << 15, "MIN_RNR_TIMER"),
    (1 << 16, "SQ_PSN"),
    (1 << 17, "MAX_DEST_RD_ATOMIC"),
    (1 << 18, "PATH_MIG_STATE"),
    (1 << 19, "CAP"),
    (1 << 20, "DEST_QPN"),
    (1 << 25, "RATE_LIMIT"),
];

/// Appends the detail of an event: words and `name value` pairs, each followed by a space. First what
/// happened, then its result, then the time it took.
pub fn write(out: &mut Vec<u8>, event: &Event) {
    write_untimed(out, event);
    if let Some(ns) = event.duration_ns {
        units::append_duration(out, ns);
    }
}

/// As [`write()`], but without the time.
pub fn write_untimed(out: &mut Vec<u8>, event: &Event) {
    match event.event {
        EventKind::QpCreate | EventKind::QpDestroy | EventKind::QpModify => qp(out, event),
        EventKind::QpError => word(out, event.async_event),
        EventKind::MrReg | EventKind::MrDereg => number(out, "bytes", event.bytes),
        EventKind::CqCreate | EventKind::CqDestroy => number(out, "cqe", event.cqe),
        EventKind::DevxCreate | EventKind::DevxDestroy => word(out, event.devx.map(DevxKind::name)),
        EventKind::CmConnect | EventKind::CmAccept | EventKind::CmReject | EventKind::CmDisconnect => {
            cm(out, event);
        }
        EventKind::CmEvent => {
            word(out, event.cm().cm_event);
            cm(out, event);
        }
        EventKind::VerbError => word(out, event.verb.as_deref()),
        EventKind::WrPost | EventKind::WrDone => work(out, event),
        EventKind::Lost => lost(out, event),
        EventKind::FindingRaise | EventKind::FindingClear => finding(out, event),
    }
    if let Some(rc) = event.rc.filter(|rc| *rc != 0) {
        text(out, "= ");
        text(out, &errno::show(rc));
        text(out, " ");
    }
    number(out, "by-pid", event.by_pid);
}

/// A finding: severity, age or how long it lasted, and what is wrong; of a raised one also what to do.
fn finding(out: &mut Vec<u8>, event: &Event) {
    let Some(finding) = &event.finding else { return };
    if event.event == EventKind::FindingClear {
        let lasted = text::age(finding.lasted_s(event.mono_ns));
        word(
            out,
            Some(format_args!("over after {lasted}: {}", finding.verdict)),
        );
        return;
    }
    let age = text::age(finding.age_s(event.mono_ns));
    let severity = finding.severity.name();
    word(
        out,
        Some(format_args!(
            "{severity} {age}: {} | next: {}",
            finding.verdict, finding.next
        )),
    );
}

fn qp(out: &mut Vec<u8>, event: &Event) {
    match (event.from, event.to) {
        (from, Some(to)) => {
            state(out, from);
            text(out, "->");
            state(out, Some(to));
            text(out, " ");
        }
        (Some(from), None) => {
            text(out, "in ");
            state(out, Some(from));
            text(out, " ");
        }
        (None, None) => {}
    }
    if event.to.is_none()
        && let Some(mask) = event.attr_mask.filter(|mask| *mask != 0)
    {
        word(out, Some(attrs(mask)));
    }
    let port = event.port.filter(|_| event.event == EventKind::QpModify);
    number(out, "port", port);
    number(out, "dest", event.dest_qpn);
    number(out, "mtu", event.path_mtu);
    number(out, "sgid", event.sgid_index);
    number(out, "timeout", event.timeout);
    number(out, "retry", event.retry_cnt);
    number(out, "rnr", event.rnr_retry);
}

fn state(out: &mut Vec<u8>, state: Option<QpState>) {
    let Some(state) = state else { return };
    match state.name() {
        Some(name) => text(out, name),
        None => text(out, &state.to_string()),
    }
}

/// A work request: what it is, its peer, how it ended.
fn work(out: &mut Vec<u8>, event: &Event) {
    let work = event.work();
    word(out, work.opcode);
    number(out, "wr_id", work.wr_id);
    number(out, "bytes", event.bytes);
    number(out, "imm", work.imm);
    number(out, "peer", event.dest_qpn);
    if let Some(gid) = event.dest_gid {
        // Written as a network address, because the GID as sysfs writes it is three times as long.
        word(out, Some("at"));
        word(out, Some(Ipv6Addr::from(gid.0).to_canonical()));
    }
    if work.signaled == Some(false) {
        word(out, Some("unsignaled"));
    }
    if event.event == EventKind::WrDone {
        match work.wc_status {
            Some(status) => word(out, Some(status)),
            None if work.dropped => {}
            None => word(out, Some("status -")),
        }
    }
    if work.dropped {
        word(out, Some("dropped"));
    }
    if work.cq_full {
        word(out, Some("cq-full"));
    }
}

fn attrs(mask: u32) -> String {
    let mut names: Vec<String> = ATTRS
        .iter()
        .filter(|(bit, _)| mask & bit != 0)
        .map(|(_, name)| (*name).to_owned())
        .collect();
    let known = ATTRS.iter().fold(0, |all, (bit, _)| all | bit);
    if mask & !known != 0 {
        names.push(format!("{:#x}", mask & !known));
    }
    names.join("|")
}

fn cm(out: &mut Vec<u8>, event: &Event) {
    let cm = event.cm();
    // First, because what comes last may find no room on a screen.
    pair(out, "status", cm.status.filter(|status| *status != 0));
    match (cm.src, cm.dst) {
        (Some(src), Some(dst)) => word(out, Some(format_args!("{src} -> {dst}"))),
        (Some(src), None) => pair(out, "from", Some(src)),
        (None, Some(dst)) => pair(out, "to", Some(dst)),
        (None, None) => {}
    }
    number(out, "id", cm.cm_id);
}

fn lost(out: &mut Vec<u8>, event: &Event) {
    if let (Some(BUDGET), Some(count)) = (event.lost_where, event.count) {
        return word(
            out,
            Some(format_args!("{count} failed calls not printed one by one")),
        );
    }
    match event.count {
        Some(count) => number(out, "records", Some(count)),
        None => word(out, Some("records")),
    }
    pair(out, "at", event.lost_where);
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

fn word(out: &mut Vec<u8>, text: Option<impl std::fmt::Display>) {
    if let Some(text) = text {
        let _ = write!(out, "{text} ");
    }
}

fn pair(out: &mut Vec<u8>, name: &str, value: Option<impl std::fmt::Display>) {
    if let Some(value) = value {
        let _ = write!(out, "{name} {value} ");
    }
}

fn number(out: &mut Vec<u8>, name: &str, value: Option<impl Into<u64>>) {
    if let Some(value) = value {
        text(out, name);
        text(out, " ");
        units::number(out, value.into());
        text(out, " ");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(event: &Event) -> String {
        let mut out = b"x ".to_vec();
        write(&mut out, event);
        String::from_utf8(out.split_off(2)).unwrap().trim_end().to_owned()
    }

    #[test]
    fn a_modify_without_a_state_names_its_attributes() {
        let mut event = Event::new(EventKind::QpModify, 0, 0);
        event.attr_mask = Some(1 << 7 | 1 << 10 | 1 << 30);
        assert_eq!(shown(&event), "AV|RETRY_CNT|0x40000000");
    }

    #[test]
    fn a_failed_step_says_so_and_why() {
        let mut event = Event::new(EventKind::QpModify, 0, 0);
        (event.from, event.to, event.rc) = (Some(QpState(1)), Some(QpState(2)), Some(-22));
        event.duration_ns = Some(12_345);
        assert_eq!(shown(&event), "INIT->RTR = -22 EINVAL 12.3us");
    }

    #[test]
    fn calls_that_were_left_out_are_no_lost_records() {
        let mut event = Event::new(EventKind::Lost, 0, 0);
        (event.count, event.lost_where) = (Some(149_937), Some(BUDGET));
        assert_eq!(shown(&event), "149937 failed calls not printed one by one");
        event.lost_where = Some("ring");
        assert_eq!(shown(&event), "records 149937 at ring");
    }

    #[test]
    fn an_event_of_which_nothing_is_known_has_an_empty_detail() {
        for kind in EventKind::ALL.into_iter().filter(|kind| *kind != EventKind::Lost) {
            // A work request that has ended has a status, even if an unknown one.
            let all = if kind == EventKind::WrDone { "status -" } else { "" };
            assert_eq!(shown(&Event::new(kind, 0, 0)), all, "{kind:?}");
        }
    }
}
