//! `/proc/PID/stat` (proc_pid_stat(5); `do_task_stat` in fs/proc/array.c).
use super::basic::ProcKey;
use crate::root::parse_u64;
use rdmatop_base::text;

/// The fields of one line that we use. Times are clock ticks (`AT_CLKTCK`, see [`super::clock_ticks`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// Process (or thread) number in the PID namespace of the /proc that was read.
    pub pid: u32,
    /// Name, safe to print.
    pub comm: String,
    /// It has ended, and its parent has not taken note of that (a zombie).
    pub ended: bool,
    /// Parent; 0 when it is outside the PID namespace.
    pub ppid: u32,
    /// Start, in ticks after boot.
    pub start: u64,
    /// Where its stack begins, which fork(2) leaves and execve(2) changes; `None` where that may not be read.
    pub stack: Option<u64>,
}

impl Stat {
    /// Which process it is of.
    pub fn key(&self) -> ProcKey {
        ProcKey {
            pid: self.pid,
            start: self.start,
        }
    }

    /// Parses the file. The comm stands unescaped between the first `(` and the last `)`: it may hold
    /// parentheses, blanks and newlines itself, while nothing after it can hold a `)`.
    pub fn parse(raw: &[u8]) -> Option<Self> {
        let open = raw.iter().position(|b| *b == b'(')?;
        // The search goes through all bytes: `rposition` takes ten instructions for each.
        let close = (open..raw.len()).filter(|at| raw[*at] == b')').max()?;
        let mut fields = raw[close + 1..].trim_ascii().split(|b| *b == b' ');
        // Fields are numbered as in the manual page: state is 3, ppid 4, starttime 22, startstack 28.
        let state = fields
            .next()?
            .first()
            .filter(|state| state.is_ascii_alphabetic())?;
        let ppid = parse_u64(fields.next()?)?;
        let start = parse_u64(fields.nth(17)?)?;
        Some(Self {
            pid: parse_u64(&raw[..open])?.try_into().ok()?,
            comm: text::sanitize(&raw[open + 1..close]),
            ended: matches!(state, b'Z' | b'X'),
            ppid: ppid.try_into().ok()?,
            start,
            stack: fields.nth(5).and_then(parse_u64).filter(|stack| *stack != 0),
        })
    }
}

/// A line as the kernel prints it, for the tests of this module and of its users.
#[cfg(test)]
pub(super) fn line(pid: u32, comm: &[u8], start: u64) -> Vec<u8> {
    let mut out = format!("{pid} (").into_bytes();
    out.extend(comm);
    out.extend(
        format!(") S 1 {pid} {pid} 0 -1 4194560 100 0 0 0 30 12 0 0 20 -5 4 0 {start} 1000 200 18446744073709551615 1\n")
            .bytes(),
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_fields_are_where_the_manual_puts_them() {
        let s = Stat::parse(&line(231, b"ib_send_bw", 4711)).unwrap();
        assert_eq!(
            (s.pid, s.comm.as_str(), s.ppid, s.start),
            (231, "ib_send_bw", 1, 4711)
        );
    }

    #[test]
    fn a_comm_that_imitates_the_line_does_not_shift_the_fields() {
        for comm in ["a) R 9 9 (b", "x y\nz", ") Z 1 1 1", "((((", ")", ""] {
            let s = Stat::parse(&line(7, comm.as_bytes(), 99)).unwrap();
            assert_eq!((s.pid, s.ppid, s.start), (7, 1, 99), "{comm:?}");
            assert_eq!(s.comm, text::sanitize(comm.as_bytes()));
        }
    }

    #[test]
    fn a_line_that_ends_early_is_no_stat() {
        let full = line(1, b"init", 3);
        let cut = full.iter().rposition(|b| *b == b')').unwrap() + 40;
        assert_eq!(Stat::parse(&full[..cut]), None);
        assert_eq!(Stat::parse(b""), None);
        assert_eq!(Stat::parse(b")("), None);
    }

    proptest! {
        #[test]
        fn any_comm_is_carried_and_nothing_shifts(pid: u32, comm: Vec<u8>, start: u64) {
            let s = Stat::parse(&line(pid, &comm, start)).unwrap();
            prop_assert_eq!((s.pid, s.ppid, s.start), (pid, 1, start));
            prop_assert_eq!(s.comm, text::sanitize(&comm));
        }

        #[test]
        fn no_bytes_panic(raw: Vec<u8>, tail in "[ -9]{0,200}") {
            let _ = Stat::parse(&raw);
            let _ = Stat::parse(format!("1 (x) S {tail}").as_bytes());
        }
    }
}
