//! The process that a thread belongs to: netlink may name the thread that created a resource.

use std::collections::BTreeMap;

use rdmatop_sources::{netlink::sample::DeviceSample, proc::process_of, root::Root};

/// Processes of threads. Numbers are reused, so an entry is valid for one dump.
pub(super) struct Owners {
    root: Root,
    /// A tree: few processes have most queue pairs, and their look-up takes a few comparisons and no hash.
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

    /// Bytes of regions by process; `None` unless all were listed, each with its owner: a region whose thread
    /// has ended has none, and may be any process's.
    pub(super) fn mr_bytes(&mut self, sample: &DeviceSample) -> Option<BTreeMap<u32, u64>> {
        let mrs = sample.mrs.as_ref()?.as_ref().ok()?;
        let mut sums = BTreeMap::new();
        for mr in &mrs.items {
            if let (Some(pid), Some(bytes)) = (mr.owner.as_ref()?.pid(), mr.bytes) {
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
    fn a_region_without_an_owner_may_be_any_process_s() {
        use rdmatop_sources::netlink::{
            record::{Device, Mr, Owner},
            sample::Dump,
        };
        let region = |owner| Mr {
            owner,
            bytes: Some(4096),
            ..Mr::default()
        };
        let device = Device {
            index: 3,
            name: "rxe0".into(),
            port_count: 1,
            node_guid: None,
            firmware: None,
            protocol: None,
        };
        let mut owners = Owners::new(Fake::new().root());
        let mut sums = |mrs: &[Option<Owner>]| {
            let items = mrs.iter().cloned().map(region).collect();
            let mut sample = DeviceSample::new(device.clone());
            sample.mrs = Some(Ok(Dump {
                items,
                ..Dump::default()
            }));
            owners.mr_bytes(&sample)
        };
        let (process, kernel) = (Some(Owner::Process(7)), Some(Owner::Kernel("nvme".into())));
        let known = BTreeMap::from([(7, 8192)]);
        assert_eq!(
            sums(&[process.clone(), kernel.clone(), process.clone()]),
            Some(known)
        );
        assert_eq!(sums(&[process, None, kernel]), None);
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
