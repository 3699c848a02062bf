//! Counters of Ethernet flow control, as drivers name them in `ethtool -S`.
//!
//! Names are those of Linux 6.12: mlx5 (`en_stats.c`), bnxt_en (`bnxt_ethtool.c`), ice and i40e
//! (`*_ethtool.c`), hns3 (`hclge_main.c`), mlx4 (`en_ethtool.c`). Durations are used where the driver
//! documents their unit: microseconds in mlx5 and bnxt_en.

/// The direction that a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// The port received it: the other end of the link asks this port to stop.
    Rx,
    /// The port sent it: it asks the other end to stop.
    Tx,
}

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Frames that ask for a pause.
    Frames,
    /// Time in pause, µs.
    Micros,
    /// Times that the port paused the other end for so long that the driver's watchdog noticed it.
    Storms,
    /// Bytes of a priority, paused or not.
    Bytes,
}

/// A counter's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// Sent or received.
    pub way: Way,
    /// What it counts.
    pub unit: Unit,
    /// Of this priority (PFC, IEEE 802.1Qbb); `None`: of the whole link (IEEE 802.3x).
    pub priority: Option<u8>,
}

/// Names around a priority, `W` for rx or tx, `N` for the priority.
const PRIORITIES: &[(&str, Unit)] = &[
    ("W_prioN_pause", Unit::Frames),
    ("W_prioN_pause_duration", Unit::Micros),
    ("W_prioN_bytes", Unit::Bytes),
    ("W_pfc_ena_frames_priN", Unit::Frames),
    ("pfc_priN_W_duration_us", Unit::Micros),
    ("W_bytes_priN", Unit::Bytes),
    ("W_priority_N_xoff.nic", Unit::Frames),
    ("port.W_priority_N_xoff", Unit::Frames),
    ("mac_W_pfc_priN_pkt_num", Unit::Frames),
    ("W_pause_prio_N", Unit::Frames),
    ("W_prio_N_bytes", Unit::Bytes),
];

const LINKS: &[(&str, Unit)] = &[
    ("W_global_pause", Unit::Frames),
    ("W_global_pause_duration", Unit::Micros),
    ("W_pause_frames", Unit::Frames),
    ("link_xoff_W.nic", Unit::Frames),
    ("port.link_xoff_W", Unit::Frames),
    ("mac_W_mac_pause_num", Unit::Frames),
    ("W_pause_storm_warning_events", Unit::Storms),
    ("W_pause_storm_error_events", Unit::Storms),
];

/// What a counter of this name means; `None` for one that is not of flow control.
pub fn meaning(name: &str) -> Option<Meaning> {
    for (way, word) in [(Way::Rx, "rx"), (Way::Tx, "tx")] {
        for (pattern, unit) in LINKS {
            if rest(pattern, word, name) == Some("") {
                let (unit, priority) = (*unit, None);
                return Some(Meaning { way, unit, priority });
            }
        }
        for (pattern, unit) in PRIORITIES {
            if let Some(priority) = priority(pattern, word, name) {
                let (unit, priority) = (*unit, Some(priority));
                return Some(Meaning { way, unit, priority });
            }
        }
    }
    None
}

/// `priority 3`, or `priorities 3, 4`.
pub fn list(priorities: &[u8]) -> String {
    let all: Vec<String> = priorities.iter().map(u8::to_string).collect();
    let word = if all.len() == 1 { "priority" } else { "priorities" };
    format!("{word} {}", all.join(", "))
}

/// What follows in a name behind a pattern with this word for `W`; `None` when the name begins otherwise.
fn rest<'a>(pattern: &str, word: &str, name: &'a str) -> Option<&'a str> {
    match pattern.split_once('W') {
        Some((before, after)) => name.strip_prefix(before)?.strip_prefix(word)?.strip_prefix(after),
        None => name.strip_prefix(pattern),
    }
}

/// The digit in the place of `N`. Ethernet has eight priorities.
fn priority(pattern: &str, word: &str, name: &str) -> Option<u8> {
    let (before, after) = pattern.split_once('N')?;
    let from = rest(before, word, name)?;
    let digit = from.bytes().next()?;
    let is_rest = rest(after, word, from.get(1..)?) == Some("");
    (is_rest && (b'0'..b'8').contains(&digit)).then(|| digit - b'0')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn counters_of_each_driver_are_understood() {
        use Unit::{Bytes, Frames, Micros, Storms};
        use Way::{Rx, Tx};
        for (name, way, unit, priority) in [
            ("rx_prio3_pause", Rx, Frames, Some(3)),
            ("tx_prio0_pause_duration", Tx, Micros, Some(0)),
            ("tx_prio7_bytes", Tx, Bytes, Some(7)),
            ("rx_global_pause_duration", Rx, Micros, None),
            ("tx_pause_storm_error_events", Tx, Storms, None),
            ("tx_pfc_ena_frames_pri5", Tx, Frames, Some(5)),
            ("pfc_pri3_rx_duration_us", Rx, Micros, Some(3)),
            ("tx_bytes_pri0", Tx, Bytes, Some(0)),
            ("rx_priority_3_xoff.nic", Rx, Frames, Some(3)),
            ("link_xoff_tx.nic", Tx, Frames, None),
            ("port.rx_priority_2_xoff", Rx, Frames, Some(2)),
            ("mac_tx_pfc_pri4_pkt_num", Tx, Frames, Some(4)),
            ("rx_pause_prio_1", Rx, Frames, Some(1)),
        ] {
            assert_eq!(meaning(name), Some(Meaning { way, unit, priority }), "{name}");
        }
    }

    #[test]
    fn other_counters_are_not() {
        for name in [
            "",
            "rx_packets",
            "rx_prio8_pause",
            "rx_prio3_pause_transition",
            "rx_prio_pause",
            "rx_prio3_pausex",
            "rx_prio3_discards",
            "rx3_bytes",
            "rx_prioé_pause",
            "rx_global_pause_transition",
            "rx_priority_3_xon.nic",
        ] {
            assert_eq!(meaning(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_name_panics(name: String) {
            let _ = meaning(&name);
        }
    }
}
