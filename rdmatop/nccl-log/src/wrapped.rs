//! Puts together again the pieces of a line of NCCL that a terminal, a mail or a ticket wrapped at 80
//! columns.

use super::line::is_nccl;

/// The width at which such tools wrap.
const WIDTH: usize = 80;
/// Longest line, in bytes, that is put together; NCCL's have at most a few thousand (a hundred NICs). A log
/// whose lines never end must not be taken into memory as one line.
const MAX_LENGTH: usize = 64 << 10;
/// A line that a tool broke at a space is rarely shorter than this.
const MIN_LENGTH: usize = WIDTH - 30;

/// What is known from one line to the next.
#[derive(Clone, Debug, Default)]
pub struct Unwrapper {
    /// A line of NCCL's that may go on in the next one.
    pending: Option<String>,
    /// Columns of its last piece.
    last: usize,
    /// The log has a line that is longer than the width, so it is not wrapped.
    wide: bool,
    /// The tool breaks lines at spaces, which are lost by that.
    at_spaces: bool,
}

impl Unwrapper {
    /// Takes a line, and gives each line that is complete.
    pub fn push(&mut self, line: &str, mut complete: impl FnMut(&str)) {
        let columns = line.chars().count();
        self.wide |= columns > WIDTH;
        if let Some(mut pending) = self.pending.take() {
            let fits = pending.len() < MAX_LENGTH && !self.wide;
            if let Some(separator) = self.separator(line).filter(|_| fits) {
                // Some tools keep the space at the end of the line.
                if !pending.ends_with(' ') {
                    pending.push_str(separator);
                }
                pending.push_str(line);
                (self.pending, self.last) = (Some(pending), columns);
                return;
            }
            complete(&pending);
        }
        if !self.wide && columns >= MIN_LENGTH && is_nccl(line) {
            (self.pending, self.last) = (Some(line.to_owned()), columns);
        } else {
            complete(line);
        }
    }

    /// Gives the line that was held back, because the log ends.
    pub fn end(&mut self, complete: impl FnOnce(&str)) {
        if let Some(pending) = self.pending.take() {
            complete(&pending);
        }
    }

    /// What stood between the last piece and this line; `None` if this line does not go on with it.
    fn separator(&mut self, line: &str) -> Option<&'static str> {
        let own =
            line.trim().is_empty() || is_nccl(line) || line.starts_with('#') || line.contains("CCL version");
        if own {
            return None;
        }
        if self.last == WIDTH {
            return Some(if self.at_spaces { " " } else { "" });
        }
        let first = line.split(' ').next().unwrap_or_default().chars().count();
        let broken = self.last >= MIN_LENGTH && first > 0 && self.last + 1 + first > WIDTH;
        self.at_spaces |= broken && self.last + 1 < WIDTH;
        broken.then_some(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str]) -> Vec<String> {
        let (mut wrapped, mut out) = (Unwrapper::default(), Vec::new());
        for line in lines {
            wrapped.push(line, |line| out.push(line.to_owned()));
        }
        wrapped.end(|line| out.push(line.to_owned()));
        out
    }

    const LINE: &str = "gpu-node-0001:161258:161690 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE \
                        [2]mlx5_2:1/RoCE [3]mlx5_3:1/RoCE [4]mlx5_4:1/RoCE [RO]; OOB eth0:192.0.2.1<0>";

    #[test]
    fn a_line_that_was_cut_at_80_columns_or_broken_at_spaces_is_whole_again() {
        let cut: Vec<&str> = (0..LINE.len())
            .step_by(80)
            .map(|at| &LINE[at..LINE.len().min(at + 80)])
            .collect();
        assert!(cut.len() == 3);
        assert_eq!(of(&[&cut[..], &["hello"]].concat()), [LINE, "hello"]);
        let mut broken = vec![String::new()];
        for word in LINE.split(' ') {
            let last = broken.last_mut().unwrap();
            if last.is_empty() {
                last.push_str(word);
            } else if last.len() + 1 + word.len() <= 80 {
                last.push(' ');
                last.push_str(word);
            } else {
                broken.push(word.to_owned());
            }
        }
        let pieces: Vec<&str> = broken.iter().map(String::as_str).collect();
        assert!(pieces.len() == 3);
        assert_eq!(of(&pieces), [LINE]);
        let spaced = broken.iter().map(|piece| format!("{piece} "));
        let spaced: Vec<String> = spaced.collect();
        let pieces: Vec<&str> = spaced.iter().map(String::as_str).collect();
        assert_eq!(of(&pieces), [format!("{LINE} ")]);
    }

    #[test]
    fn a_line_that_never_ends_is_given_in_parts() {
        let nearly = "n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0/Shared00";
        let piece = "x".repeat(WIDTH);
        let lines: Vec<&str> = std::iter::once(nearly)
            .chain(std::iter::repeat_n(&*piece, 4096))
            .collect();
        let whole = of(&lines);
        assert!(whole.iter().all(|line| line.len() < MAX_LENGTH + 2 * WIDTH));
        assert_eq!(whole.iter().map(String::len).sum::<usize>(), 4097 * WIDTH);
    }

    #[test]
    fn lines_of_other_programs_stay_their_own() {
        let short = "n:1:1 [0] NCCL INFO Using network IB";
        let nearly = "n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0/Shared00";
        assert_eq!(nearly.len(), 80);
        for lines in [
            &[short, "hello"][..],
            &[nearly, ""],
            &[nearly, "# nThread 1"],
            &[nearly, "NCCL version 2.18.5"],
            &[nearly, nearly],
            &[LINE, nearly, "hello"],
        ] {
            assert_eq!(of(lines), lines);
        }
    }
}
