//! The last line of a trace: whether all events were printed.

use std::time::Duration;

use super::sink::EventCounts;
use crate::view::line::units;

/// One line for stderr. It always contains the losses, also when there are none: silence would be ambiguous.
/// `blind` is the time in which nothing was attached.
pub(super) fn line(counts: EventCounts, printed: u64, lost: u64, ran: Duration, blind: Duration) -> String {
    let EventCounts { seen, filtered, .. } = counts;
    let mut parts = vec![format!("{seen} events seen"), format!("{printed} printed")];
    if filtered > 0 {
        parts.push(format!("{filtered} filtered out"));
    }
    // Asked for and not written to the pipe: refused by a full or closed writer, or cut off in it.
    let unprinted = seen.saturating_sub(filtered).saturating_sub(printed);
    if unprinted > 0 {
        parts.push(format!(
            "{unprinted} not printed because the reader went away or was too slow"
        ));
    }
    parts.push(format!("{lost} lost"));
    let spell = |time: Duration| units::duration(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
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
        let line = line(
            EventCounts {
                seen: 3,
                filtered: 0,
                refused: 0,
            },
            3,
            0,
            Duration::from_millis(1500),
            Duration::ZERO,
        );
        assert_eq!(line, "rdmatop: 3 events seen, 3 printed, 0 lost in 1.50s");
    }

    #[test]
    fn printed_filtered_and_unprinted_add_up_to_seen() {
        let line = line(
            EventCounts {
                seen: 10,
                filtered: 2,
                refused: 1,
            },
            5,
            7,
            Duration::from_mins(1),
            Duration::from_secs(4),
        );
        assert_eq!(
            line,
            "rdmatop: 10 events seen, 5 printed, 2 filtered out, 3 not printed because the reader went away or was \
             too slow, 7 lost in 60.0s, of which 4.00s without programs: what happened then is not known"
        );
    }
}
