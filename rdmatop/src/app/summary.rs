//! The last line of a trace: whether all events were printed.

use std::time::Duration;

use super::sink::EventCounts;
use crate::exit::{Stop, Written};
use rdmatop_views::line::units;

/// How a trace ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct End {
    /// Events whose lines were written.
    pub(super) printed: u64,
    /// Events that the programs or the channel lost; `None`: no program ran.
    pub(super) lost: Option<u64>,
    /// Failed calls of processes that had made as many events as they may: neither seen nor lost.
    pub(super) left_out: u64,
    /// How long it ran.
    pub(super) ran: Duration,
    /// The time in which nothing was attached.
    pub(super) blind: Duration,
    /// Why lines were not written, if some were not.
    pub(super) unprinted: &'static str,
}

/// Why lines were not written, by how the writer ended; `None`: it has not, and the pipe was full.
pub(super) fn why_unprinted(outcome: Option<&Result<Written, Stop>>) -> &'static str {
    match outcome {
        Some(Ok(Written::ReaderGone)) => "the reader went away",
        // The failure itself is reported apart.
        Some(Err(_)) => "they could not be written",
        _ => "the reader was too slow",
    }
}

pub(super) fn spell(time: Duration) -> String {
    units::duration(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// One line for stderr. It always contains the losses, also when there are none: silence would be ambiguous.
pub(super) fn line(counts: EventCounts, end: &End) -> String {
    let End {
        printed,
        lost,
        left_out,
        ran,
        blind,
        unprinted: why,
    } = *end;
    let EventCounts { seen, filtered, .. } = counts;
    let mut parts = vec![format!("{seen} events seen"), format!("{printed} printed")];
    if filtered > 0 {
        parts.push(format!("{filtered} filtered out"));
    }
    // Asked for and not written to the pipe: refused by a full or closed writer, or cut off in it.
    let unprinted = seen.saturating_sub(filtered).saturating_sub(printed);
    if unprinted > 0 {
        parts.push(format!("{unprinted} not printed because {why}"));
    }
    parts.push(lost.map_or_else(|| "no program ran".to_owned(), |lost| format!("{lost} lost")));
    if left_out > 0 {
        parts.push(format!("{left_out} failed calls not printed one by one"));
    }
    let unseen = if blind.is_zero() {
        String::new()
    } else {
        format!(
            ", of which {} without programs: what happened then is not known",
            spell(blind)
        )
    };
    format!("rdmatop: {} in {}{unseen}", parts.join(", "), spell(ran))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_losses_are_printed_even_when_there_are_none() {
        let counts = EventCounts {
            seen: 3,
            filtered: 0,
            refused: 0,
            ..EventCounts::default()
        };
        let end = End {
            printed: 3,
            lost: Some(0),
            ran: Duration::from_millis(1500),
            ..End::default()
        };
        let line = line(counts, &end);
        assert_eq!(line, "rdmatop: 3 events seen, 3 printed, 0 lost in 1.50s");
    }

    #[test]
    fn without_programs_there_is_no_number_of_losses() {
        let counts = EventCounts::default();
        let end = End {
            ran: Duration::from_millis(200),
            ..End::default()
        };
        assert_eq!(
            line(counts, &end),
            "rdmatop: 0 events seen, 0 printed, no program ran in 200ms"
        );
    }

    #[test]
    fn printed_filtered_and_unprinted_add_up_to_seen() {
        let counts = EventCounts {
            seen: 10,
            filtered: 2,
            refused: 1,
            ..EventCounts::default()
        };
        let end = End {
            printed: 5,
            lost: Some(7),
            left_out: 149_937,
            ran: Duration::from_mins(1),
            blind: Duration::from_secs(4),
            unprinted: why_unprinted(None),
        };
        assert_eq!(
            line(counts, &end),
            "rdmatop: 10 events seen, 5 printed, 2 filtered out, 3 not printed because the reader was too slow, 7 lost, \
             149937 failed calls not printed one by one in 60.0s, of which 4.00s without programs: what happened then \
             is not known"
        );
        let after = |outcome: &Result<Written, Stop>| {
            let unprinted = why_unprinted(Some(outcome));
            line(counts, &End { unprinted, ..end })
        };
        assert!(after(&Ok(Written::ReaderGone)).contains("because the reader went away, 7 lost"));
        let full = Err(Stop::failure("cannot write: No space left on device"));
        assert!(after(&full).contains("because they could not be written, 7 lost"));
    }
}
