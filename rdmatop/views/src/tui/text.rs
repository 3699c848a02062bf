//! Cutting and breaking by display width, measured as ratatui does.

use rdmatop_base::text::cut_columns;
pub(super) use rdmatop_base::text::width;

/// `text` in at most `max` columns. A text that is too long ends in `mark`.
pub(super) fn cut(text: &str, max: usize, mark: &str) -> String {
    if width(text) <= max {
        return text.to_owned();
    }
    let mark = cut_columns(mark, max);
    format!("{}{mark}", cut_columns(text, max - width(mark)))
}

/// The last `max` columns of `text`: for paths, whose end says most.
pub(super) fn cut_left(text: &str, max: usize, mark: &str) -> String {
    if width(text) <= max {
        return text.to_owned();
    }
    let mark = cut_columns(mark, max);
    let mut rest = text.chars();
    while width(rest.as_str()) > max - width(mark) {
        rest.next();
    }
    format!("{mark}{}", rest.as_str())
}

/// `text` in lines of at most `max` columns, broken at spaces where there are any.
pub(super) fn wrap(text: &str, max: usize) -> Vec<String> {
    let max = max.max(1);
    let mut lines = Vec::new();
    let mut line = String::new();
    // Width of `line`. The words can be measured one by one, because the spaces between them keep them apart.
    let mut used = 0;
    for word in text.split_whitespace() {
        let gap = usize::from(!line.is_empty());
        let wide = width(word);
        if used + gap + wide <= max {
            line.push_str(&" "[..gap]);
            line.push_str(word);
            used += gap + wide;
            continue;
        }
        if !line.is_empty() {
            lines.push(std::mem::take(&mut line));
        }
        let mut rest = word;
        while width(rest) > max {
            let head = cut_columns(rest, max);
            lines.extend((!head.is_empty()).then(|| head.to_owned()));
            // A character that is wider than a line is dropped, or this loop would never end.
            let first = rest.chars().next().map_or(0, char::len_utf8);
            rest = &rest[head.len().max(first)..];
        }
        line.push_str(rest);
        used = width(rest);
    }
    lines.extend((!line.is_empty()).then_some(line));
    lines
}

/// A command in lines that a shell takes as one command: no quoted text is broken, and each line but the last
/// ends with `|`, `;` or `&&`, or else with a backslash. Where there is a choice it is `|`, because blanks
/// that a terminal copies behind a backslash would end the command there. A word that has no room at all is
/// broken as [`wrap`] does.
pub(super) fn wrap_command(command: &str, max: usize) -> Vec<String> {
    const HELD: char = '\u{2420}';
    let mut quote = None;
    let held: String = command
        .chars()
        .map(|c| match (quote, c) {
            (Some(_), ' ') => HELD,
            (None, '\'' | '"') => {
                quote = Some(c);
                c
            }
            (Some(open), _) if open == c => {
                quote = None;
                c
            }
            _ => c,
        })
        .collect();
    let room = max.saturating_sub(2);
    if width(command) <= max || held.split(' ').any(|word| width(word) > room) {
        return wrap(command, max);
    }
    // A command of a pipe stays whole where a line has room for it.
    let piped = held.split_inclusive("| ").map(|one| match one.trim_end() {
        whole if width(whole) <= room => whole.replace(' ', &HELD.to_string()),
        long => long.to_owned(),
    });
    let lines = wrap(&piped.collect::<Vec<_>>().join(" "), room);
    let last = lines.len().saturating_sub(1);
    let shown = lines.into_iter().enumerate().map(|(at, line)| {
        let line = line.replace(HELD, " ");
        let goes_on = at == last || ["|", ";", "&&"].iter().any(|end| line.ends_with(end));
        if goes_on { line } else { format!("{line} \\") }
    });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use unicode_width::UnicodeWidthStr;

    #[test]
    fn a_command_that_is_wrapped_is_still_one_command() {
        let command = "sudo grep -zE 'A B|C D' /proc/1/environ; echo \"a b\"";
        assert_eq!(
            wrap_command(command, 22),
            [
                "sudo grep -zE \\",
                "'A B|C D' \\",
                "/proc/1/environ;",
                "echo \"a b\""
            ]
        );
        assert_eq!(wrap_command(command, 80), [command]);
        let piped = "sudo grep -zE 'A B|C D' /proc/1/environ | cat -v";
        assert_eq!(
            wrap_command(piped, 47),
            ["sudo grep -zE 'A B|C D' /proc/1/environ |", "cat -v"]
        );
        for (command, width) in [command, piped]
            .into_iter()
            .flat_map(|one| (19..60).map(move |w| (one, w)))
        {
            let lines = wrap_command(command, width);
            assert!(lines.iter().all(|line| super::width(line) <= width), "{lines:?}");
            let joined: Vec<_> = lines.iter().map(|line| line.trim_end_matches(" \\")).collect();
            assert_eq!(joined.join(" "), command, "{width}");
            // Blanks behind a line change nothing where it needs no backslash.
            let (_, before) = lines.split_last().expect("a line");
            assert!(
                before.iter().all(|line| line.ends_with(['|', ';', '\\'])),
                "{lines:?}"
            );
        }
    }

    #[test]
    fn a_wide_character_is_never_cut_in_half() {
        assert_eq!(cut("日本語", 5, "~"), "日本~");
        assert_eq!(cut("日本語", 4, "~"), "日~");
        assert_eq!(cut("日本語", 6, "~"), "日本語");
        assert_eq!(cut("abc", 0, "~"), "");
    }

    #[test]
    fn combining_marks_stay_with_their_letter() {
        assert_eq!(cut("e\u{301}e\u{301}e\u{301}", 2, ""), "e\u{301}e\u{301}");
    }

    #[test]
    fn a_path_keeps_its_end() {
        assert_eq!(cut_left("/system.slice/slurmd.service/job_7", 8, "~"), "~e/job_7");
    }

    #[test]
    fn wrapping_breaks_at_spaces_and_splits_only_words_that_do_not_fit() {
        assert_eq!(wrap("to be or not", 5), ["to be", "or", "not"]);
        assert_eq!(wrap("abcdefg h", 3), ["abc", "def", "g h"]);
        assert_eq!(wrap("日本", 1), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn the_short_way_to_a_width_gives_what_the_long_one_gives(text in "[ -~]{0,20}|\\PC{0,20}|[\\x00-\\x7f]{0,20}|[ -~·\\u{2500}-\\u{259f}]{0,20}") {
            // Views get no other text.
            let text = rdmatop_base::text::sanitize(text.as_bytes());
            prop_assert_eq!(width(&text), UnicodeWidthStr::width(text.as_str()));
        }

        #[test]
        fn nothing_is_ever_wider_than_asked(text in "\\PC{0,40}", max in 0usize..30) {
            let text = rdmatop_base::text::sanitize(text.as_bytes());
            prop_assert!(width(&cut(&text, max, "~")) <= max);
            prop_assert!(width(&cut_left(&text, max, "~")) <= max);
            for line in wrap(&text, max) {
                prop_assert!(width(&line) <= max.max(1));
            }
        }
    }
}
