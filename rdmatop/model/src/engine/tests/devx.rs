//! Objects that processes make past ib_core: each is told with its kind and counted for its maker.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rdmatop_common::event::DevxRecord;

use super::*;
use crate::{
    event::EventKind,
    snapshot::{DevxCounts, DevxKind, DevxObjects},
};

const QP: u32 = 0x500;
const CQ: u32 = 0x400;
const MKEY: u32 = 0x200;

/// A call of process `pid` that made an object of this file, or (no opcode) destroyed it, after `took` ns.
pub(super) fn devx(
    ts_ns: u64,
    pid: u32,
    (file, handle): (u64, u32),
    opcode: Option<u32>,
    took: u64,
) -> Record {
    let kind = match opcode {
        Some(_) => kind::DEVX_CREATE,
        None => kind::DEVX_DESTROY,
    };
    let mut prefix = by(prefix(kind, ts_ns, file), pid, "traffic");
    prefix.duration_ns = took;
    Record::Devx(DevxRecord {
        prefix,
        handle,
        opcode: opcode.unwrap_or(UNKNOWN_U32),
        owner_start_ns: 0,
    })
}

fn counts(all: &[(DevxKind, u64)]) -> DevxCounts {
    all.iter().copied().filter(|(_, count)| *count > 0).collect()
}

/// What a process made, which it did on one device.
fn made(host: &mut Host, pid: u32) -> DevxObjects {
    let row = host.process(pid);
    let all = row.devx.unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].clone()
}

#[test]
fn three_queue_pairs_and_a_completion_queue_of_which_one_goes() {
    let mut host = Host::new();
    let mut events = Vec::new();
    for (handle, opcode) in [(1, QP), (2, QP), (3, QP), (4, CQ)] {
        events.extend(host.record(devx(SECOND, 231, (0xf0, handle), Some(opcode), 500)));
    }
    events.extend(host.record(devx(2 * SECOND, 231, (0xf0, 2), None, 500)));
    let told: Vec<_> = events
        .iter()
        .map(|event| (event.event, event.devx, event.pid))
        .collect();
    let create = |kind| (EventKind::DevxCreate, Some(kind), Some(231));
    let (qp, cq) = (create(DevxKind::Qp), create(DevxKind::Cq));
    assert_eq!(
        told,
        [
            qp,
            qp,
            qp,
            cq,
            (EventKind::DevxDestroy, Some(DevxKind::Qp), Some(231))
        ]
    );
    assert_eq!(events[0].device.as_deref(), Some("rxe0"));
    let objects = made(&mut host, 231);
    assert_eq!(objects.made, counts(&[(DevxKind::Qp, 3), (DevxKind::Cq, 1)]));
    assert_eq!(objects.destroyed, counts(&[(DevxKind::Qp, 1)]));
    assert_eq!(objects.now, counts(&[(DevxKind::Qp, 2), (DevxKind::Cq, 1)]));
    assert!(!objects.whole, "no program saw each call");
    assert_eq!(objects.words(), "≥3 DEVX QPs, ≥1 DEVX CQ made on rxe0");
    assert_eq!(host.process(231).devices, ["rxe0".into()]);
    host.gone(231);
    let ended = made(&mut host, 231);
    assert_eq!((ended.made, ended.now), (objects.made, counts(&[])));
}

#[test]
fn a_destroy_of_what_was_there_before_has_no_kind() {
    let mut host = Host::new();
    let event = host.record(devx(SECOND, 231, (0xf0, 7), None, 500)).remove(0);
    assert_eq!((event.event, event.devx), (EventKind::DevxDestroy, None));
    assert_eq!(made(&mut host, 231).destroyed, counts(&[(DevxKind::Unknown, 1)]));
    // A number that could not be read is that of no object.
    host.record(devx(SECOND, 231, (0xf0, UNKNOWN_U32), Some(QP), 500));
    let event = host
        .record(devx(SECOND, 231, (0xf0, UNKNOWN_U32), None, 500))
        .remove(0);
    assert_eq!(event.devx, None);
}

#[test]
fn what_a_child_destroys_was_its_parent_s() {
    let mut host = Host::new();
    host.record(devx(SECOND, 231, (0xf0, 1), Some(QP), 500));
    let event = host.record(devx(2 * SECOND, 240, (0xf0, 1), None, 500)).remove(0);
    assert_eq!((event.pid, event.by_pid), (Some(231), Some(240)));
    assert_eq!(made(&mut host, 231).now, counts(&[]));
    assert!(host.process(240).devx.is_none());
}

#[test]
fn a_file_that_is_closed_takes_its_objects_with_it() {
    let mut host = Host::new();
    let open = |host: &mut Host, pids: Option<Vec<u32>>| {
        let mut device = rxe(0, "rxe0");
        device.contexts = pids;
        host.pass(SECOND).devices(vec![device]);
        made(host, 231).now
    };
    let now = host.now;
    host.record(devx(now, 231, (0xf0, 1), Some(QP), 500));
    let there = counts(&[(DevxKind::Qp, 1)]);
    assert_eq!(open(&mut host, None), there);
    assert_eq!(open(&mut host, Some(vec![240])), there, "the list may be older");
    assert_eq!(open(&mut host, Some(vec![231])), there);
    assert_eq!(open(&mut host, Some(vec![240])), counts(&[]));
    let now = host.now;
    host.record(devx(now, 231, (0xf0, 1), Some(QP), 500));
    assert_eq!(open(&mut host, Some(vec![240])), there, "another file");
    host.devices(vec![rxe(1, "rxe1")]);
    assert_eq!(made(&mut host, 231).now, counts(&[]), "its device is gone");
}

#[test]
fn a_process_with_more_objects_than_are_remembered_has_at_least_those() {
    let mut host = Host::new();
    for handle in 0..20_000 {
        host.record(devx(SECOND, 231, (0xf0, handle), Some(MKEY), 500));
    }
    let objects = made(&mut host, 231);
    assert_eq!(objects.made, counts(&[(DevxKind::Other, 20_000)]));
    assert_eq!(objects.now, counts(&[(DevxKind::Other, 16_384)]));
    // A queue pair that is not remembered is there all the same.
    host.record(devx(SECOND, 231, (0xf0, 20_000), Some(QP), 500));
    let objects = made(&mut host, 231);
    assert_eq!((objects.whole, objects.carriers()), (false, 1));
    host.record(devx(SECOND, 240, (0xf1, 1), Some(QP), 500));
    assert_eq!(
        made(&mut host, 240).now,
        counts(&[(DevxKind::Qp, 1)]),
        "others have room"
    );
}

/// What happens to one of the objects, or to all of a process.
#[derive(Clone, Copy, Debug)]
enum Step {
    Make {
        who: usize,
        opcode: u32,
    },
    /// Its destruction begins: its number is free.
    Destroy(usize),
    /// The call that destroys it returns.
    Return(usize),
    /// A file is closed, and another one is opened at its address.
    Reopen(usize),
    Ends(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let opcode = prop::sample::select(vec![QP, CQ, MKEY]);
    prop_oneof![
        6 => (0..2_usize, opcode).prop_map(|(who, opcode)| Step::Make { who, opcode }),
        4 => (0..64_usize).prop_map(Step::Destroy),
        4 => (0..64_usize).prop_map(Step::Return),
        1 => (0..2_usize).prop_map(Step::Reopen),
        1 => (0..2_usize).prop_map(Step::Ends),
    ]
}

/// An object in truth.
#[derive(Clone, Copy, Debug)]
struct Object {
    pid: u32,
    place: (u64, u32),
    opcode: u32,
    began_ns: Option<u64>,
    /// A later one has its number: it is gone.
    replaced: bool,
}

proptest! {
    /// Two processes, of which each has a file, make and destroy objects whose numbers come again while the
    /// call that destroys an earlier one has not returned. Files are closed with what is in them, processes
    /// end, and others come. What is told of each object, and what was made and destroyed, is the truth.
    #[test]
    fn each_object_is_told_and_counted_whoever_has_its_number_next(
        steps in prop::collection::vec(step(), 1..80)
    ) {
        let mut host = Host::new();
        let mut pids = [231, 240];
        let mut last_pid = 300;
        let mut objects: Vec<Object> = Vec::new();
        let mut sums: BTreeMap<u32, [DevxCounts; 2]> = BTreeMap::new();
        for step in steps {
            host.pass(1000);
            let now = host.now;
            match step {
                Step::Make { who, opcode } => {
                    let file = 0xf0 + who as u64;
                    let is_free = |handle: &u32| !objects.iter()
                        .any(|object| object.place == (file, *handle) && object.began_ns.is_none());
                    // The driver has not returned from two destructions of one number at a time in each file.
                    let ends = |handle: u32| objects.iter().filter(|object| object.place == (file, handle)).count();
                    let Some(handle) = (0..6).find(|handle| is_free(handle) && ends(*handle) < 2) else { continue };
                    let place = (file, handle);
                    let earlier = objects.iter_mut().filter(|object| object.place == place);
                    earlier.for_each(|object| object.replaced = true);
                    let object = Object { pid: pids[who], place, opcode, began_ns: None, replaced: false };
                    objects.push(object);
                    let event = host.record(devx(now, object.pid, object.place, Some(opcode), 500)).remove(0);
                    let kind = DevxKind::of(Some(opcode));
                    prop_assert_eq!((event.pid, event.devx), (Some(object.pid), Some(kind)));
                    *sums.entry(object.pid).or_default()[0].entry(kind).or_default() += 1;
                }
                Step::Destroy(which) => {
                    let living: Vec<usize> = (0..objects.len()).filter(|at| objects[*at].began_ns.is_none()).collect();
                    if let Some(at) = living.get(which % living.len().max(1)) {
                        objects[*at].began_ns = Some(now);
                    }
                }
                Step::Return(which) => {
                    let ending: Vec<usize> = (0..objects.len()).filter(|at| objects[*at].began_ns.is_some()).collect();
                    let Some(at) = ending.get(which % ending.len().max(1)) else { continue };
                    let object = objects.remove(*at);
                    let took = now - object.began_ns.unwrap();
                    let event = host.record(devx(now, object.pid, object.place, None, took)).remove(0);
                    let kind = DevxKind::of(Some(object.opcode));
                    prop_assert_eq!((event.pid, event.devx), (Some(object.pid), Some(kind)));
                    *sums.entry(object.pid).or_default()[1].entry(kind).or_default() += 1;
                }
                Step::Reopen(who) | Step::Ends(who) => {
                    // Its threads are out of the kernel before that.
                    if objects.iter().any(|object| object.pid == pids[who] && object.began_ns.is_some()) {
                        continue;
                    }
                    let pid = pids[who];
                    objects.retain(|object| object.pid != pid);
                    if matches!(step, Step::Ends(_)) {
                        host.gone(pid);
                        last_pid += 1;
                        pids[who] = last_pid;
                        sums.remove(&pid);
                    } else {
                        let list = |host: &mut Host, pids: &[u32]| {
                            let mut device = rxe(0, "rxe0");
                            device.contexts = Some(pids.to_vec());
                            host.devices(vec![device]);
                            host.tick();
                        };
                        list(&mut host, &pids);
                        list(&mut host, &[pids[1 - who]]);
                    }
                }
            }
            let snapshot = host.tick();
            for (pid, [made, destroyed]) in &sums {
                let row = snapshot.processes.iter().find(|row| row.pid == Some(*pid)).unwrap();
                let mut now = DevxCounts::new();
                for object in objects.iter().filter(|object| object.pid == *pid) {
                    // Until its destroy has returned an object may be there.
                    if !object.replaced {
                        *now.entry(DevxKind::of(Some(object.opcode))).or_default() += 1;
                    }
                }
                let all = row.devx.as_ref().unwrap();
                prop_assert_eq!((&all[0].made, &all[0].destroyed), (made, destroyed));
                prop_assert_eq!(&all[0].now, &now, "{:?}", objects);
            }
        }
    }
}
