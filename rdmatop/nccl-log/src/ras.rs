//! What an answer of NCCL's RAS service (`ncclras`, `STATUS` on port 28028) says is wrong: src/ras of NCCL
//! 2.24 and later.

use rdmatop_base::text;

/// Longest text that is kept, in bytes: a line for each rank may follow.
const LONGEST: usize = 240;

/// An answer, as text or as JSON.
#[derive(Clone, Debug, Default)]
pub struct Ras {
    /// Whether there is one.
    pub is_there: bool,
    /// The first thing that it says is wrong.
    pub problem: Option<String>,
    /// The last line was about it.
    is_open: bool,
    /// How many bytes a launcher puts before each line.
    prefix: usize,
}

impl Ras {
    /// Takes a line that is not NCCL's.
    pub(super) fn line(&mut self, line: &str) {
        if let Some(at) = line.find("Communicators... (") {
            (self.is_there, self.prefix) = (true, at);
        }
        self.is_there |= line.ends_with("\"ras\": {");
        if !self.is_there {
            return;
        }
        let line = line.get(self.prefix..).unwrap_or(line);
        // `#0-0 (970d3bfab2661e2d) MISMATCH`, or the word alone where it is about processes.
        let of_communicator = line.contains('#').then(|| line.rsplit_once(") ")).flatten();
        let word = of_communicator.map_or(line.trim_end(), |(_, word)| word.trim_end());
        let is_begin = ["INCOMPLETE", "DEAD", "ERROR", "TIMEOUT", "MISMATCH"].contains(&word);
        if is_begin && self.problem.is_none() {
            (self.problem, self.is_open) = (Some(word.to_owned()), true);
            return;
        }
        // What belongs to it is indented, behind any prefix of a launcher.
        let more = line.split_once("  ").filter(|_| self.is_open);
        self.is_open = more.is_some();
        if let (Some(problem), Some((_, more))) = (&mut self.problem, more)
            && problem.len() < LONGEST
        {
            problem.push_str(if problem.contains(':') { "; " } else { ": " });
            problem.push_str(text::cut(more.trim(), LONGEST));
        }
    }
}
