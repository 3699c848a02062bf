//! The process that a thread belongs to: netlink may name the thread that created a resource.

use std::collections::BTreeMap;

use rdmatop_sources::{
    netlink::{record::Owner, sample::DeviceSample},
    proc::process_of,
    root::Root,
};

/// Processes of threads. Numbers are reused, so an entry is valid for one dump.
pub(super) struct Owners {
    root: Root,
    /// A tree, because few processes have most queue pairs: their look-up takes a few comparisons and no hash.
    known: BTreeMap<u32, u32>,
}

impl Owners {
    /// Reads under `root`.
    pub(super) fn new(root: Root) -> Self {
        Self {
            root,
            known: BTreeMap::new(),
        }
    }

    /// Forgets the entries of the last dump.
    pub(super) fn forget(&mut self) {
        self.known.clear();
    }

    /// The process that a thread belongs to; the number itself where that is not known.
    pub(super) fn process(&mut self, tid: u32) -> u32 {
        if let Some(pid) = self.known.get(&tid) {
            return *pid;
        }
        let pid = process_of(&self.root, tid);
        self.known.insert(tid, pid);
        pid
    }

    /// Bytes of regions by process; `None` unless all were listed.
    pub(super) fn mr_bytes(&mut self, sample: &DeviceSample) -> Option<BTreeMap<u32, u64>> {
        let mrs = sample.mrs.as_ref()?.as_ref().ok()?;
        let mut sums = BTreeMap::new();
        for mr in &mrs.items {
            if let (Some(pid), Some(bytes)) = (mr.owner.as_ref().and_then(Owner::pid), mr.bytes) {
                let sum = sums.entry(self.process(pid)).or_insert(0_u64);
                *sum = sum.saturating_add(bytes);
            }
        }
        (!mrs.interrupted).then_some(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_sources::fake::Fake;

    #[test]
    fn what_was_learnt_holds_for_one_dump() {
        let fake = Fake::new();
        fake.proc("10/status", "Tgid:\t9\nPid:\t10\n");
        let mut owners = Owners::new(fake.root());
        assert_eq!(owners.process(10), 9);
        fake.proc("10/status", "Tgid:\t10\nPid:\t10\n");
        assert_eq!(owners.process(10), 9);
        owners.forget();
        assert_eq!(owners.process(10), 10);
    }

    #[test]
    fn our_own_threads_belong_to_us() {
        let me = std::process::id();
        let tid = std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get());
        let mut owners = Owners::new(Root::default());
        assert_eq!(owners.process(me), me);
        // The thread has ended: /proc no longer has it, so its own number is used.
        let tid = u32::try_from(tid.join().unwrap()).unwrap();
        assert_eq!(owners.process(tid), tid);
        let (seen, asked) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let alive = std::thread::spawn(move || {
            seen.send(rustix::thread::gettid().as_raw_nonzero().get())
                .unwrap();
            let _ = wait.recv();
        });
        let tid = u32::try_from(asked.recv().unwrap()).unwrap();
        assert_eq!(owners.process(tid), me);
        drop(done);
        alive.join().unwrap();
    }
}
