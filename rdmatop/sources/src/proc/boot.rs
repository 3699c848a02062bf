//! Start times as the kernel keeps them.

use crate::root::Root;

const SECOND_NS: i128 = 1_000_000_000;

/// By how many ticks the start times in this /proc are later than the kernel's: the offset of the boot clock
/// of our time namespace (`timens_add_boottime` in fs/proc/array.c). 0 outside of a time namespace, and
/// before Linux 5.6.
pub fn start_offset(root: &Root, ticks_per_second: u64) -> i64 {
    let raw = root.bytes(&root.proc("self/timens_offsets"), 4096);
    let text = raw.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
    let offset = text.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        // By name, or by the clock's number (CLOCK_BOOTTIME).
        matches!(fields.next()?, "boottime" | "7").then_some(())?;
        let seconds: i128 = fields.next()?.parse().ok()?;
        let ns: i128 = fields.next()?.parse().ok()?;
        let ticks = (seconds * SECOND_NS + ns) * i128::from(ticks_per_second) / SECOND_NS;
        i64::try_from(ticks).ok()
    });
    offset.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn the_offset_of_a_time_namespace_is_taken_in_ticks() {
        let fake = Fake::new();
        assert_eq!(start_offset(&fake.root(), 100), 0);
        fake.proc(
            "self/timens_offsets",
            "monotonic           0         0\nboottime            0         0\n",
        );
        assert_eq!(start_offset(&fake.root(), 100), 0);
        fake.proc(
            "self/timens_offsets",
            "monotonic        -100         0\nboottime        86400 500000000\n",
        );
        assert_eq!(start_offset(&fake.root(), 100), 8_640_050);
        fake.proc("self/timens_offsets", "boottime -2 0\n");
        assert_eq!(start_offset(&fake.root(), 100), -200);
    }
}
