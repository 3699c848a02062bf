//! The one place that makes text from the kernel and from processes safe to print.
//!
//! A device name, a comm, a command line, an environment value or a counter name can hold any bytes: the
//! kernel accepts ESC and newline in RDMA device names and in comms. Everything a reader hands on as a
//! `String` went through [`sanitize`]; what records hold are bytes, which the engine makes safe
//! (`model/engine/names.rs`). Views, JSON and exporters only add the escaping of their format.
use std::cmp::Ordering;
use std::fmt::{Display, Write as _};

use unicode_width::UnicodeWidthChar;

/// Makes any bytes printable on one terminal line.
///
/// * a byte that is not part of valid UTF-8 becomes `\xNN`;
/// * a control character below U+0080 (ESC, newline, tab, NUL, DEL) becomes `\xNN`;
/// * any other character that draws nothing, steers the terminal or reorders text (C1 controls, bidirectional
///   marks and overrides, letters that are written from right to left, zero-width, joining and combining
///   characters, modifiers of emoji, line and paragraph separators, tags, fillers) becomes `\u{HEX}`;
/// * all else, the backslash included, stays as it is.
///
/// The result is for display and for keys, and cannot be reversed: a name that contains the six characters of
/// an escape looks like the escape. In exchange the function is idempotent: text that passes through it twice
/// is not escaped twice.
pub fn sanitize(bytes: &[u8]) -> String {
    // Nearly every text is printable ASCII, which stays as it is.
    if bytes.iter().all(|byte| (b' '..=b'~').contains(byte)) {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            push_safe(&mut out, c);
        }
        for byte in chunk.invalid() {
            push_hex(&mut out, *byte);
        }
    }
    out
}

/// Whether [`sanitize`] may have written an escape into this text. A name that holds the characters of one
/// itself counts too: the two cannot be told apart. What systemd escapes in the names of units (`\x2d`) are
/// characters that [`sanitize`] leaves as they are.
pub fn may_be_sanitized(text: &str) -> bool {
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('\\') {
        let byte = after.strip_prefix('x').and_then(|hex| hex.get(..2));
        let byte = byte.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if after.starts_with("u{") || byte.is_some_and(|byte| !(b' '..=b'~').contains(&byte)) {
            return true;
        }
        rest = after;
    }
    false
}

/// [`sanitize`] with a bound: returns at most `max_bytes`.
pub fn sanitize_bounded(bytes: &[u8], max_bytes: usize) -> String {
    // A character that begins before the bound ends within three more bytes. No character becomes shorter, so
    // that what the end of these has cut is behind the bound.
    let head = bytes.get(..max_bytes.saturating_add(3)).unwrap_or(bytes);
    let mut out = sanitize(head);
    out.truncate(cut(&out, max_bytes).len());
    out
}

fn push_safe(out: &mut String, c: char) {
    if c.is_ascii_control() {
        push_hex(out, c as u8);
    } else if is_unsafe(c) {
        out.extend(c.escape_unicode());
    } else {
        out.push(c);
    }
}

fn push_hex(out: &mut String, byte: u8) {
    let _ = write!(out, "\\x{byte:02x}");
}

/// True for a non-ASCII character that must not reach a terminal unescaped.
pub fn is_unsafe(c: char) -> bool {
    // The width table gives None for controls and 0 for characters without a glyph of their own; the ranges
    // after it are those to which some versions of the table give a width although terminals act on them or
    // draw nothing, join them with the character before, or let them change places with the numbers behind
    // them (Unicode's blocks of letters from right to left).
    c.width().is_none_or(|columns| columns == 0)
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
            | '\u{590}'..='\u{8ff}' | '\u{2d7f}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{fefe}'
            | '\u{10800}'..='\u{10fff}' | '\u{16d67}'..='\u{16d6a}' | '\u{1e800}'..='\u{1efff}' | '\u{1f3fb}'..='\u{1f3ff}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// The longest prefix of `s` that has at most `max_bytes` bytes and ends between characters.
pub fn cut(s: &str, max_bytes: usize) -> &str {
    &s[..s.floor_char_boundary(max_bytes)]
}

/// The longest prefix of `s` that takes at most `columns` terminal columns.
pub fn cut_columns(s: &str, columns: usize) -> &str {
    let mut used = 0;
    for (at, c) in s.char_indices() {
        used += c.width().unwrap_or(0);
        if used > columns {
            return &s[..at];
        }
    }
    s
}

/// Terminal columns of `s`, the sum of its characters': East Asian wide ones take two. What a terminal may
/// join [`sanitize`] has escaped.
pub fn width(s: &str) -> usize {
    // Nearly every text is ASCII that prints; the tables of scripts cost a look-up for each character.
    if is_plain(s) {
        s.len()
    } else {
        s.chars().filter_map(UnicodeWidthChar::width).sum()
    }
}

/// ASCII that prints: each byte is a character of one column.
pub fn is_plain(s: &str) -> bool {
    s.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

/// Columns of a terminal, for pages that are printed.
const PAGE: usize = 80;

/// Appends words in lines of 80 columns: `first`, of `used` columns, before the first line, and `hang` spaces
/// before the others. A word that has no room stays whole.
pub fn wrap(out: &mut String, first: &str, used: usize, hang: usize, words: &str) {
    out.push_str(first);
    let (mut columns, mut empty) = (used, true);
    for word in words.split(' ').filter(|word| !word.is_empty()) {
        let wide = width(word);
        if !empty && columns + 1 + wide > PAGE {
            out.push('\n');
            out.push_str(&" ".repeat(hang));
            (columns, empty) = (hang, true);
        }
        if !empty {
            out.push(' ');
            columns += 1;
        }
        out.push_str(word);
        columns += wide;
        empty = false;
    }
    out.truncate(out.trim_end_matches(' ').len());
    out.push('\n');
}

/// An age in two units at most: `7s`, `3m12s`, `4h03m`, `12d4h`.
pub fn age(seconds: u64) -> String {
    let (d, h, m, s) = (
        seconds / 86_400,
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60,
    );
    match (d, h, m) {
        (0, 0, 0) => format!("{s}s"),
        (0, 0, _) => format!("{m}m{s:02}s"),
        (0, ..) => format!("{h}h{m:02}m"),
        _ => format!("{d}d{h}h"),
    }
}

/// `1 rank`, `2 ranks`, `2 addresses`.
pub fn count<N: Copy + Display + PartialEq + From<u8>>(number: N, one: &str) -> String {
    let ending = match one {
        _ if number == N::from(1) => "",
        _ if one.ends_with("ss") => "es",
        _ => "s",
    };
    format!("{number} {one}{ending}")
}

/// A number in the largest unit of which it is one or more, in three digits: `0`, `999`, `1.20k`, `34.0M`.
pub fn scaled(value: f64, base: f64, units: &[&str]) -> String {
    let (mut value, mut unit) = (value.max(0.0), 0);
    // 999.5 and above would print as 1000; the next unit is shorter.
    while value >= base - 0.5 && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    if unit == 0 {
        return format!("{:.0}{}", value.round(), units[0]);
    }
    let decimals = usize::from(value < 99.95) + usize::from(value < 9.995);
    format!("{value:.decimals$}{}", units[unit])
}

/// A number of `unit` per second in powers of 1000: `11.2 GB/s`, `7 B/s`.
pub fn rate(value: f64, unit: &str) -> String {
    for (prefix, size) in [("G", 1e9), ("M", 1e6), ("k", 1e3)] {
        if value >= size {
            return format!("{:.1} {prefix}{unit}", value / size);
        }
    }
    format!("{value:.0} {unit}")
}

/// `64 KiB`, `8 MiB`, `1.5 GiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [(u32, &str); 3] = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    for (shift, unit) in UNITS {
        let whole = count >> shift;
        if whole > 0 {
            let tenth = (count >> (shift - 10) & 1023) * 10 / 1024;
            return if tenth == 0 {
                format!("{whole} {unit}")
            } else {
                format!("{whole}.{tenth} {unit}")
            };
        }
    }
    format!("{count} bytes")
}

/// Names that are listed before "and N more".
const NAMED: usize = 4;

/// A name's beginning and the number that it ends with.
fn split(name: &str) -> Option<(&str, u64)> {
    let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (head, tail) = name.split_at_checked(digits)?;
    Some((head, tail.parse().ok()?))
}

/// Names in a list that is short however many there are: `mlx5_0 to mlx5_7`, `a and b`, `a, b, c, d and 4
/// more`.
pub fn names<T: ToString>(all: impl IntoIterator<Item = T>) -> String {
    let all: Vec<String> = all.into_iter().map(|one| one.to_string()).collect();
    let run = all.iter().map(|name| split(name)).collect::<Option<Vec<_>>>();
    let in_order = run.is_some_and(|run| {
        run.windows(2)
            .all(|two| two[0].0 == two[1].0 && Some(two[1].1) == two[0].1.checked_add(1))
    });
    match all.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [first, .., last] if in_order && all.len() > 2 => format!("{first} to {last}"),
        [most @ .., last] if all.len() <= NAMED + 1 => format!("{} and {last}", most.join(", ")),
        _ => format!("{} and {} more", all[..NAMED].join(", "), all.len() - NAMED),
    }
}

/// As [`names`], of what contains commas itself: `a, b; c, d; and 3 more`.
pub fn lists<S: AsRef<str>>(all: &[S]) -> String {
    let shown: Vec<&str> = all.iter().take(NAMED).map(AsRef::as_ref).collect();
    match all.len() - shown.len() {
        0 => shown.join("; "),
        more => format!("{}; and {more} more", shown.join("; ")),
    }
}

/// The order in which people count: digits by value, so that `mlx5_2` comes before `mlx5_10`.
pub fn natural(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a.as_bytes(), b.as_bytes());
    loop {
        match (left.first(), right.first()) {
            (Some(x), Some(y)) if x.is_ascii_digit() && y.is_ascii_digit() => {
                let (x, rest_left) = leading_number(left);
                let (y, rest_right) = leading_number(right);
                // Without leading zeroes the longer number is the larger one; no length overflows this.
                let order = x.len().cmp(&y.len()).then_with(|| x.cmp(y));
                if order != Ordering::Equal {
                    return order;
                }
                (left, right) = (rest_left, rest_right);
            }
            (Some(x), Some(y)) if x == y => (left, right) = (&left[1..], &right[1..]),
            // `007` and `7` count alike; the whole text decides, so that the order is total.
            (None, None) => return a.cmp(b),
            (x, y) => return x.cmp(&y),
        }
    }
}

fn leading_number(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let zeroes = digits
        .iter()
        .position(|byte| *byte != b'0')
        .unwrap_or(digits.len());
    (&digits[zeroes..], rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_as_one_would_say_them() {
        let eight: Vec<String> = (0..8).map(|n| format!("mlx5_{n}")).collect();
        assert_eq!(names(&eight), "mlx5_0 to mlx5_7");
        assert_eq!(names(["a"]), "a");
        assert_eq!(names(["rxe0", "rxe1"]), "rxe0 and rxe1");
        assert_eq!(names(["a", "c", "x"]), "a, c and x");
        assert_eq!(names(["a", "b", "c", "d", "e", "f"]), "a, b, c, d and 2 more");
        assert_eq!(names(["m1", "m2", "m4"]), "m1, m2 and m4");
        assert_eq!(
            names(["m18446744073709551615", "m0", "m1"]),
            "m18446744073709551615, m0 and m1"
        );
        assert_eq!(names::<&str>([]), "");
        assert_eq!(lists(&["a, b", "c"]), "a, b; c");
        assert_eq!(lists(&["a", "b", "c", "d", "e"]), "a; b; c; d; and 1 more");
    }
    use proptest::prelude::*;
    use unicode_width::UnicodeWidthStr;

    #[test]
    fn devices_sort_as_people_count() {
        let mut names = ["mlx5_10", "rxe0", "mlx5_2", "mlx5_02", "mlx5", "mlx5_2a"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["mlx5", "mlx5_02", "mlx5_2", "mlx5_2a", "mlx5_10", "rxe0"]);
    }

    #[test]
    fn escape_sequences_newlines_and_invalid_bytes_become_visible() {
        assert_eq!(
            sanitize(b"a\x1b[31mb\nc\td\0\x7f"),
            "a\\x1b[31mb\\x0ac\\x09d\\x00\\x7f"
        );
        assert_eq!(sanitize(b"bad\xff\xc3("), "bad\\xff\\xc3(");
    }

    #[test]
    fn bidi_zero_width_and_c1_characters_become_visible() {
        assert_eq!(sanitize("x\u{202e}y".as_bytes()), "x\\u{202e}y");
        assert_eq!(
            sanitize("\u{200b}\u{feff}\u{2066}".as_bytes()),
            "\\u{200b}\\u{feff}\\u{2066}"
        );
        assert_eq!(sanitize("\u{9b}31m\u{2028}".as_bytes()), "\\u{9b}31m\\u{2028}");
        assert_eq!(sanitize("e\u{301}".as_bytes()), "e\\u{301}");
        // Numbers behind such a letter would change places with what stands before it.
        assert_eq!(sanitize("א7".as_bytes()), "\\u{5d0}7");
        assert_eq!(sanitize("لا".as_bytes()), "\\u{644}\\u{627}");
        assert_eq!(sanitize("👍🏽".as_bytes()), "👍\\u{1f3fd}");
    }

    #[test]
    fn no_character_joins_its_neighbour() {
        let safe: Vec<char> = ('\u{a0}'..'\u{32000}').filter(|c| !is_unsafe(*c)).collect();
        for c in safe {
            for text in [format!("a{c}a"), format!("{c}{c}"), format!("👍{c}")] {
                assert_eq!(
                    UnicodeWidthStr::width(&*text),
                    width(&text),
                    "U+{:04X} {text}",
                    c as u32
                );
            }
        }
    }

    #[test]
    fn what_systemd_escapes_is_a_real_name() {
        for (text, changed) in [
            (r"machine-qemu\x2d2\x2dinstance.scope", false),
            (r"a\b", false),
            (r"a\", false),
            (r"a\x1b[31m", true),
            (r"a\xff", true),
            (r"a\u{202e}", true),
        ] {
            assert_eq!(may_be_sanitized(text), changed, "{text}");
        }
    }

    #[test]
    fn ordinary_text_in_any_script_stays() {
        for s in [
            "mlx5_0",
            "ib_send_bw -d rxe0",
            "naïve",
            "日本語",
            "back\\slash",
            "🦀",
        ] {
            assert_eq!(sanitize(s.as_bytes()), s);
        }
    }

    #[test]
    fn cutting_never_splits_a_character() {
        assert_eq!(cut("日本", 4), "日");
        assert_eq!(cut("日本", 99), "日本");
        assert_eq!(cut_columns("日本x", 3), "日");
        assert_eq!(cut_columns("日本x", 5), "日本x");
        assert_eq!(width("日本x"), 5);
    }

    #[test]
    fn printable_ascii_takes_the_columns_of_the_tables() {
        let all: String = (' '..='~').collect();
        assert_eq!(width(&all), UnicodeWidthStr::width(&*all));
        assert_eq!(width(&all), 95);
    }

    #[test]
    fn the_bound_holds_for_input_that_grows_by_escaping() {
        assert_eq!(sanitize_bounded(&[0; 100], 10), "\\x00\\x00\\x");
    }

    #[test]
    fn a_character_at_the_bound_is_left_out_and_not_shown_as_broken_bytes() {
        assert_eq!(sanitize_bounded("naïve".as_bytes(), 3), "na");
        assert_eq!(sanitize_bounded("naïve".as_bytes(), 4), "naï");
        assert_eq!(sanitize_bounded("a🦀b".as_bytes(), 4), "a");
        assert_eq!(sanitize_bounded(b"a\xf0\x9f\xa6", 4), "a\\xf");
        assert_eq!(sanitize_bounded(b"\xf0\x9f(", 2), "\\x");
    }

    proptest! {
        #[test]
        fn text_that_was_changed_can_be_told(bytes in prop::collection::vec(any::<u8>(), 0..20), s in "\\PC*|[\\x00-\u{10ffff}]*") {
            for bytes in [&bytes[..], s.as_bytes()] {
                let safe = sanitize(bytes);
                prop_assert!(safe.as_bytes() == bytes || may_be_sanitized(&safe), "{safe:?}");
            }
        }

        #[test]
        fn sanitizing_twice_changes_nothing(bytes: Vec<u8>) {
            let once = sanitize(&bytes);
            prop_assert_eq!(sanitize(once.as_bytes()), once);
        }

        #[test]
        fn sanitized_text_has_no_character_that_acts_or_hides(s in "\\PC*|[\\x00-\u{10ffff}]*") {
            let safe = sanitize(s.as_bytes());
            prop_assert!(safe.chars().all(|c| !c.is_control() && c.width().is_some_and(|w| w > 0)), "{safe:?}");
        }

        #[test]
        fn a_cut_is_a_prefix_within_its_bound(s: String, max in 0usize..40) {
            prop_assert!(cut(&s, max).len() <= max && s.starts_with(cut(&s, max)));
            let columns = cut_columns(&s, max);
            prop_assert!(s.starts_with(columns));
            prop_assert!(columns.chars().filter_map(UnicodeWidthChar::width).sum::<usize>() <= max);
        }

        #[test]
        fn natural_order_is_total(a in "[a-z0-9_]{0,8}", b in "[a-z0-9_]{0,8}", c in "[a-z0-9_]{0,8}") {
            prop_assert_eq!(natural(&a, &b), natural(&b, &a).reverse());
            prop_assert_eq!(natural(&a, &b) == Ordering::Equal, a == b);
            if natural(&a, &b).is_le() && natural(&b, &c).is_le() {
                prop_assert!(natural(&a, &c).is_le());
            }
        }
    }
}
