//! The shape of a command's output: everything that does not differ from run to run.

use std::{collections::BTreeSet, net::Ipv6Addr};

/// The beginning of the last line about work requests.
const WORK: &str = "rdmatop: work requests: ";
/// What follows where some posts were found late begins so.
const LATE: &str = "; ";

/// What must be equal in two runs of `command`.
#[derive(Debug, PartialEq, Eq)]
pub struct Shape {
    /// The life of objects, in order.
    life: Vec<String>,
    /// Every other line with its count, unordered, because two processes print at any time.
    lines: Vec<String>,
}

impl Shape {
    /// The shape of all lines that `command` printed.
    pub fn of(command: &str, lines: &[String]) -> Self {
        // With `head`, the number of lines of each kind depends on time.
        let head = command.contains("| head");
        let (mut life, mut others) = (Vec::new(), Vec::new());
        let mut seen = BTreeSet::new();
        for line in lines.iter().filter(|line| !line.trim().is_empty()) {
            let mut shape = line_shape(without_skips(line));
            // SoftRoCE may finish a request before its doorbell is seen; then the time is unknown.
            if is_event(line) && shape.ends_with(" #") {
                shape.truncate(shape.len() - 2);
            }
            if head && !seen.insert(shape.clone()) {
                continue;
            }
            if is_event(line) && !line.contains(" wr_") {
                life.push(shape);
            } else {
                others.push(shape);
            }
        }
        others.sort();
        Self { life, lines: others }
    }

    /// Returns the differences in both directions, for a message.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let here = |one: &Self, two: &Self, sign: &str| -> Vec<String> {
            let mut left: Vec<&String> = two.life.iter().chain(&two.lines).collect();
            let mut only = Vec::new();
            for line in one.life.iter().chain(&one.lines) {
                match left.iter().position(|other| *other == line) {
                    Some(at) => {
                        left.remove(at);
                    }
                    None => only.push(format!("{sign} {line}")),
                }
            }
            only
        };
        let mut all = here(self, other, "-");
        all.extend(here(other, self, "+"));
        if all.is_empty() && self != other {
            all.push(format!("another order: {:?} became {:?}", self.life, other.life));
        }
        all
    }
}

/// Whether it is a line of a trace, which begins with a time.
fn is_event(line: &str) -> bool {
    let time = line.split(' ').next().unwrap_or_default();
    time.len() == 15 && time.split(':').count() == 3 && time.starts_with(|first: char| first.is_ascii_digit())
}

/// Cuts off what depends on load from the last line about work requests: how often the kernel skips a program
/// that would run inside another, and how many posts were found late. A count of records without room in the
/// ring stays, because at the page's rates there is room.
fn without_skips(line: &str) -> &str {
    if !line.starts_with(WORK) {
        return line;
    }
    let line = line.split_once(LATE).map_or(line, |(before, _)| before);
    line.split_once(" (ring full 0, not seen ")
        .map_or(line, |(before, _)| before)
}

/// Whether the last line about work requests accounts for each that happened as seen, left out or lost;
/// `None` for another line.
pub fn adds_up(line: &str) -> Option<bool> {
    let all = line.strip_prefix(WORK)?;
    let all = all.split([';', '(']).next().unwrap_or(all).trim_end();
    let numbers = all
        .split(", ")
        .map(|part| part.split(' ').next()?.parse::<u64>().ok());
    let numbers: Option<Vec<u64>> = numbers.collect();
    let numbers = numbers.unwrap_or_default();
    Some(matches!(&numbers[..], [happened, seen @ ..] if *happened == seen.iter().sum::<u64>()))
}

fn line_shape(line: &str) -> String {
    let words: Vec<String> = line.split_whitespace().map(word_shape).collect();
    words.join(" ")
}

/// Replaces each number with its unit in a word by `#`. Digits of a name (rxe0, wr_id, P99) stay.
fn word_shape(word: &str) -> String {
    // The value may be unknown in one run and a number in another.
    if word == "-" || is_guid(word) {
        return "#".into();
    }
    let end = word.trim_end_matches([')', ',', ':']);
    if end.parse::<Ipv6Addr>().is_ok() {
        return format!("#{}", &word[end.len()..]);
    }
    let mut shape = String::new();
    // Bounds of a number: less than, at least, about.
    let mut rest = word.trim_start_matches(['<', '>', '=', '~', '≥']);
    if rest.is_empty() {
        return word.into();
    }
    if let Some(times) = rest.strip_prefix('x').filter(|times| is_number(times)) {
        return format!("x{}", word_shape(times));
    }
    while let Some(first) = rest.chars().next() {
        if first.is_ascii_digit() {
            rest = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
            rest = rest.trim_start_matches(|c: char| c.is_ascii_alphabetic());
            shape.push('#');
        } else if first.is_alphabetic() {
            // A name is kept up to the end of the word or of its part (rxe0/17).
            let (name, left) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            shape.push_str(name);
            rest = left;
        } else {
            shape.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    shape
}

/// Whether a word is a GUID: four groups of hexadecimal digits.
fn is_guid(word: &str) -> bool {
    let hex = |group: &str| group.len() == 4 && group.bytes().all(|byte| byte.is_ascii_hexdigit());
    word.split(':').count() == 4 && word.split(':').all(hex)
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    fn shape(command: &str, text: &str) -> Shape {
        Shape::of(command, &lines(text))
    }

    #[test]
    fn numbers_have_no_shape_and_names_do() {
        for (line, wanted) in [
            ("ping: PID 231, rxe0, QP 17", "ping: PID #, rxe0, QP #"),
            (
                "rxe0/17  RC  RTS  <65.5us  - f83f:78ff:fe8b:9f19",
                "rxe0/# RC RTS # # #",
            ),
            (
                "wr_id 2 bytes 64 peer 18 at 10.77.0.1 success 2.43ms",
                "wr_id # bytes # peer # at # success #",
            ),
            (
                "The peer (QP 18 at fe80::b7:7bff:fe7c:d021) does not answer",
                "The peer (QP # at #) does not answer",
            ),
            (
                "2(N-1) sends (4s) >=10.8Gi/s ENOMEM x31",
                "#(N-1) sends (#) #/s ENOMEM x#",
            ),
            ("P99 TXWR/s", "P99 TXWR/s"),
        ] {
            assert_eq!(line_shape(line), wanted);
        }
    }

    #[test]
    fn the_life_of_objects_has_an_order_and_work_requests_have_a_number() {
        let life = "05:02:25.292347 mr_reg rxe0\n05:02:25.292348 qp_create rxe0\n";
        let other = "06:02:25.292347 qp_create rxe0\n06:02:25.292348 mr_reg rxe0\n";
        assert_ne!(shape("a", life), shape("a", other));
        assert!(shape("a", life).differences(&shape("a", other))[0].contains("order"));
        let posts =
            "05:02:25.292347 wr_post rxe0\n05:02:25.292348 wr_done rxe0\n05:02:25.292349 wr_post rxe0\n";
        let fewer = "05:02:25.292347 wr_done rxe0\n05:02:25.292348 wr_post rxe0\n";
        assert_ne!(shape("a", posts), shape("a", fewer));
        assert_eq!(shape("a | head -9", posts), shape("a | head -9", fewer));
    }

    #[test]
    fn a_skipped_program_changes_no_shape_and_a_full_ring_does() {
        let line = |end: &str| {
            format!(
                "{WORK}336 posts and ends happened, 166 seen, 168 filtered out, 0 sampled out, 2 lost{end}"
            )
        };
        let none = shape("a", &line(""));
        assert_eq!(none, shape("a", &line(" (ring full 0, not seen 2)")));
        assert_ne!(none, shape("a", &line(" (ring full 2, not seen 0)")));
        let late = "; 2 of 39 posts were found on the queue before their doorbell rang: they have no thread, and so on";
        assert_eq!(none, shape("a", &line(late)));
        assert_eq!(adds_up(&line(late)), Some(true));
        assert_eq!(adds_up(&line(late).replace("336", "337")), Some(false));
        assert_eq!(adds_up(&line(" (ring full 0, not seen 2)")), Some(true));
        assert_eq!(adds_up(&line("")), Some(true));
        assert_eq!(adds_up(&line("").replace("336", "337")), Some(false));
        assert_eq!(
            adds_up("rdmatop: 12 events seen, 12 printed, 0 lost in 5.06s"),
            None
        );
    }

    #[test]
    fn what_differs_is_named_with_its_direction() {
        let was = shape("a", "3 devices\n5 events seen");
        assert_eq!(was, shape("a", "5 events seen\n4 devices"));
        assert_eq!(
            was.differences(&shape("a", "7 events seen\nnote: x")),
            ["- # devices", "+ note: x"]
        );
    }
}
