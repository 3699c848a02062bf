//! How often the kernel skipped our programs.
//!
//! From Linux 6.7 on the kernel counts skips in two places. `trace_call_bpf` skips a program if another one
//! is running on the CPU, or while bpf(2) works on a map there: `recursion_misses` of the program. The kernel
//! skips the kprobe while it handles another kprobe, and a return if no return instance is left: `missed` of
//! the link. Before 6.7 it counts neither.

use std::{io, os::fd::OwnedFd};

use rdmatop_common::counters::loss;

use crate::{
    hooks::{Hook, Skip},
    load::sys,
};
use rdmatop_model::input;

/// A program that is attached, and how often it was skipped.
#[derive(Debug)]
pub(crate) struct Watched {
    hook: &'static Hook,
    /// Whether it is the second program of its hook.
    second: bool,
    fd: OwnedFd,
    /// The link to the kprobe, if the kernel has such links.
    link: Option<OwnedFd>,
    /// Skips before the session began to count.
    before: u64,
    now: u64,
}

/// All programs of a session.
#[derive(Debug, Default)]
pub(crate) struct Skips {
    programs: Vec<Watched>,
    /// The kernel counts skips, and every program is watched.
    counted: bool,
}

impl Skips {
    /// Begins to count. `watched` is `None` if some program cannot be watched.
    pub(crate) fn new(watched: Option<Vec<Watched>>) -> Self {
        let all = watched.is_some();
        let mut programs = watched.unwrap_or_default();
        programs.retain(|program| program.hook.skip != Skip::Nothing);
        for program in &mut programs {
            program.read();
            program.before = program.now;
        }
        // The kernel began to count skips of kprobe programs in the same version as those of links.
        let counted = all && programs.iter().any(Watched::is_counted);
        Self { programs, counted }
    }

    /// Asks the kernel about each program: a system call or two, which touch no map, so that the kernel skips
    /// no program during them.
    pub(crate) fn read(&mut self) {
        self.programs.iter_mut().for_each(Watched::read);
    }

    /// The programs that were skipped, as of the last look. `None` if the kernel does not count skips.
    pub(crate) fn named(&self) -> Option<Vec<input::Skipped>> {
        let skipped = self.programs.iter().filter(|program| program.skipped() > 0);
        let named = skipped.map(|program| input::Skipped {
            program: program.hook.runs(program.second).to_owned(),
            hook: program.hook.place(program.second),
            count: program.skipped(),
            cost: program.hook.cost_of_a_skip(),
        });
        self.counted.then(|| named.collect())
    }

    /// The number of skipped runs that would have reported work requests.
    pub(crate) fn of_work(&self) -> u64 {
        self.sum(Skip::Work)
    }

    fn sum(&self, skip: Skip) -> u64 {
        let of = self.programs.iter().filter(|program| program.hook.skip == skip);
        of.map(Watched::skipped).sum()
    }

    /// Adds the skips that the kernel counted to the kernel side's own losses.
    pub(super) fn add_to(&self, losses: &mut [u64; loss::COUNT as usize]) {
        let sum = |skip| self.sum(skip);
        fold(losses, sum(Skip::Record), sum(Skip::Return), sum(Skip::Count));
    }
}

fn fold(losses: &mut [u64; loss::COUNT as usize], record: u64, returns: u64, count: u64) {
    if let Some(sum) = losses.get_mut(loss::STASH as usize) {
        *sum += record;
    }
    // The kernel side counts the same skipped returns when the thread enters the function again, so adding
    // both would count them twice.
    if let Some(sum) = losses.get_mut(loss::RETURN as usize) {
        *sum = returns.max(*sum);
    }
    if let Some(sum) = losses.get_mut(loss::MISSED as usize) {
        *sum += count;
    }
}

impl Watched {
    pub(crate) const fn new(hook: &'static Hook, second: bool, fd: OwnedFd, link: Option<OwnedFd>) -> Self {
        Self {
            hook,
            second,
            fd,
            link,
            before: 0,
            now: 0,
        }
    }

    /// Skips since counting began.
    fn skipped(&self) -> u64 {
        self.now.saturating_sub(self.before)
    }

    fn is_counted(&self) -> bool {
        self.link.as_ref().is_some_and(|link| missed(link).is_ok())
    }

    fn read(&mut self) {
        let skipped = sys::program(&self.fd).map_or(0, |info| info.recursion_misses);
        let missed = self.link.as_ref().and_then(|link| missed(link).ok()).unwrap_or(0);
        self.now = self.now.max(skipped + missed);
    }
}

/// The head of `struct bpf_link_info`, with the fields of a kprobe in Linux 6.7 (include/uapi/linux/bpf.h).
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct LinkInfo {
    kind: u32,
    id: u32,
    prog_id: u32,
    reserved: u32,
    event: u32,
    reserved2: u32,
    func_name: u64,
    name_len: u32,
    offset: u32,
    addr: u64,
    missed: u64,
}

/// `BPF_LINK_TYPE_PERF_EVENT`, `BPF_PERF_EVENT_KPROBE` and `BPF_PERF_EVENT_KRETPROBE`.
const PERF_EVENT: u32 = 7;
const KPROBE: u32 = 3;
const KRETPROBE: u32 = 4;

/// How often a link's kprobe was skipped; `Unsupported` if the kernel does not report it.
fn missed(link: &OwnedFd) -> io::Result<u64> {
    let mut info = LinkInfo::default();
    // SAFETY: the struct has only plain integers, and its address is null.
    let length = unsafe { sys::info(link, &mut info) }?;
    let kprobe = info.kind == PERF_EVENT && (info.event == KPROBE || info.event == KRETPROBE);
    if length < size_of::<LinkInfo>() || !kprobe {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(info.missed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_return_that_both_sides_count_is_one_loss() {
        let mut losses = [0; loss::COUNT as usize];
        losses[loss::RETURN as usize] = 3;
        losses[loss::STASH as usize] = 1;
        fold(&mut losses, 2, 5, 7);
        assert_eq!(losses, [0, 3, 0, 0, 0, 0, 5, 7, 0, 0, 0]);
        fold(&mut losses, 0, 4, 0);
        assert_eq!(losses[loss::RETURN as usize], 5, "what was told does not fall");
    }

    #[test]
    fn the_part_of_a_link_that_is_asked_for_is_what_linux_6_7_has() {
        // 6.6 stops before `missed`; a later kernel may have more fields, which are not asked for.
        assert_eq!(size_of::<LinkInfo>(), 56);
        assert_eq!(std::mem::offset_of!(LinkInfo, missed), 48);
    }
}
