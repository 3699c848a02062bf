//! Devices of other network namespaces.

use super::*;
use crate::app::host::devices::{
    elsewhere::Place,
    present::{COMES, MOVES},
};
use rdmatop_model::input::NetnsReading;
use rdmatop_sources::netns::Netns;

/// A machine in mode exclusive, whose devices are in these namespaces, each of which has a process.
fn exclusive(namespaces: &[u64]) -> Host {
    let host = Host::new(namespaces.len());
    host.kernel.0.lock().unwrap().exclusive = true;
    host.files.link("proc/self/ns/net", "net:[1]");
    for (index, netns) in namespaces.iter().enumerate() {
        host.kernel.change(index, |made| made.netns = *netns);
        let file = format!("class/infiniband_verbs/uverbs{index}/ibdev");
        host.files.sys(file, format!("rxe{index}\n"));
        lives(&host, 100 + netns, *netns);
    }
    host
}

/// Starts a process in a namespace.
fn lives(host: &Host, pid: u64, netns: u64) {
    let text = if netns == 0 { 1 } else { netns };
    host.files
        .link(format!("proc/{pid}/ns/net"), format!("net:[{text}]"))
        .proc(format!("{pid}/comm"), format!("pause{netns}\n"))
        .proc(format!("{pid}/status"), "Uid:\t0\t0\t0\t0\n");
}

/// The devices of a listing by name, each with its namespace and whether it was read, and what notes say.
type Look = (Vec<(String, Option<NetnsReading>, bool)>, Vec<String>);

fn look(host: &mut Host) -> Look {
    host.source.listed_ns = None;
    again(host)
}

/// As [`look`], where no listing is due.
fn again(host: &mut Host) -> Look {
    let wants = Wants {
        qps: true,
        counters: true,
        ..Wants::default()
    };
    let mut seen = Vec::new();
    host.source.poll(&wants, &mut |input| {
        if let Input::Devices(sample) = input {
            let of = |reading: DeviceReading| (reading.name, reading.netns, !reading.held);
            seen = sample.devices.into_iter().map(of).collect();
        }
    });
    seen.sort_by(|a, b| a.0.cmp(&b.0));
    (seen, host.source.elsewhere.iter().map(Cause::line).collect())
}

fn at(netns: u64) -> Option<NetnsReading> {
    (netns != 0).then(|| NetnsReading {
        inode: netns,
        pid: u32::try_from(100 + netns).unwrap(),
        holder: Some(format!("PID {}, pause{netns}", 100 + netns)),
    })
}

fn is(name: &str, netns: u64) -> (String, Option<NetnsReading>, bool) {
    (name.to_owned(), at(netns), true)
}

#[test]
fn a_device_is_read_where_it_is_and_is_one_wherever_it_goes() {
    let mut host = exclusive(&[0, 7, 9]);
    let here = [is("rxe0", 0), is("rxe1", 7), is("rxe2", 9)];
    assert_eq!(look(&mut host), (here.to_vec(), vec![]));
    let ids =
        |host: &Host| -> BTreeSet<u64> { host.source.present.entries.iter().map(|entry| entry.id).collect() };
    let before = ids(&host);
    // From one namespace to another, out of one, and into one.
    host.kernel.change(1, |made| made.netns = 9);
    assert_eq!(look(&mut host).0, [is("rxe0", 0), is("rxe1", 9), is("rxe2", 9)]);
    host.kernel.change(2, |made| made.netns = 0);
    host.kernel.change(0, |made| made.netns = 7);
    // No listing is due: what the namespaces have says it.
    assert_eq!(again(&mut host).0, [is("rxe0", 7), is("rxe1", 9), is("rxe2", 0)]);
    assert_eq!(ids(&host), before);
    // While the kernel moves it, no namespace has it, however many lists are made meanwhile.
    host.files.remove("sys/class/infiniband/rxe1");
    host.kernel.change(1, |made| made.netns = 99);
    for _ in 0..5 {
        assert_eq!(look(&mut host).0[1], ("rxe1".to_owned(), None, false));
    }
    host.kernel.change(1, |made| made.netns = 7);
    assert_eq!(again(&mut host).0, [is("rxe0", 7), is("rxe1", 7), is("rxe2", 0)]);
    assert_eq!(ids(&host), before);
    // One whose verbs file is there is in some namespace, and may be found later than one that has none.
    host.kernel.change(1, |made| made.netns = 99);
    look(&mut host);
    missed_for(&mut host, 2 * MOVES);
    assert_eq!(look(&mut host).0[1], ("rxe1".to_owned(), None, false));
    host.files.remove("sys/class/infiniband_verbs/uverbs1");
    assert_eq!(look(&mut host).0, [is("rxe0", 7), is("rxe2", 0)]);
}

/// Lets devices have been missed for so long.
fn missed_for(host: &mut Host, ns: u64) {
    for entry in &mut host.source.present.entries {
        if entry.missed.is_some() {
            entry.missed = Some(now().mono_ns - ns);
        }
    }
}

#[test]
fn a_device_that_another_namespace_gets_is_one_all_the_way() {
    let mut host = exclusive(&[0, 7]);
    look(&mut host);
    let id = host.source.present.entries[0].id;
    // The kernel takes it from netlink and from its users first, then from the old sysfs.
    host.kernel.change(0, |made| made.netns = 99);
    host.files.remove("sys/class/infiniband_verbs/uverbs0");
    assert_eq!(look(&mut host).0.len(), 2);
    assert!(host.source.present.removals.entries().any(|entry| entry.id == id));
    host.files.remove("sys/class/infiniband/rxe0");
    for _ in 0..3 {
        assert_eq!(again(&mut host).0[0], ("rxe0".to_owned(), None, false));
        assert_eq!(look(&mut host).0[0], ("rxe0".to_owned(), None, false));
    }
    host.kernel.change(0, |made| made.netns = 7);
    assert_eq!(look(&mut host).0, [is("rxe0", 7), is("rxe1", 7)]);
    assert_eq!(
        host.source
            .present
            .entries
            .iter()
            .filter(|entry| entry.id == id)
            .count(),
        1
    );
}

#[test]
fn a_device_that_is_removed_inside_a_pod_stays_until_its_removal_is_over() {
    let mut host = exclusive(&[0, 7]);
    look(&mut host);
    // The pod's sysfs has it, and the own one does not.
    let there = Fake::new();
    there.sys("class/infiniband/rxe1/node_type", "1: CA\n");
    there.sys("class/infiniband_verbs/uverbs0/ibdev", "rxe0\n");
    host.files.remove("sys/class/infiniband/rxe1");
    host.files.remove("sys/class/infiniband_verbs/uverbs1");
    let place = Place::made_up(Netns { inode: 7, pid: 107 }, there.root());
    host.source.present.entries[1].place = Some(Arc::new(place));
    let id = host.source.present.entries[1].id;
    host.kernel.change(1, |made| made.netns = 99);
    for _ in 0..3 {
        let mut removing = Vec::new();
        host.source.listed_ns = None;
        host.source.poll(
            &Wants {
                counters: true,
                ..Wants::default()
            },
            &mut |input| {
                if let Input::Devices(sample) = input {
                    let devices = sample.devices.into_iter();
                    removing = devices
                        .map(|one| (one.name, one.removing, one.netns.map(|netns| netns.inode)))
                        .collect();
                }
            },
        );
        let is = [
            ("rxe0".to_owned(), false, None),
            ("rxe1".to_owned(), true, Some(7)),
        ];
        assert_eq!(removing, is);
        assert!(
            host.source.present.removals.entries().any(|entry| entry.id == id)
                && host.source.present.removals.notes().len() == 1
        );
    }
    there.remove("sys/class/infiniband/rxe1");
    look(&mut host);
    missed_for(&mut host, 2 * MOVES);
    assert_eq!(look(&mut host).0, [is("rxe0", 0)]);
}

#[test]
fn a_namespace_that_cannot_be_read_takes_nothing_from_others() {
    let mut host = exclusive(&[0, 7, 9]);
    look(&mut host);
    let id = host.source.present.entries[1].id;
    host.kernel.0.lock().unwrap().silent.insert(7);
    for _ in 0..3 {
        let (seen, notes) = look(&mut host);
        assert_eq!((seen[0].clone(), seen[2].clone()), (is("rxe0", 0), is("rxe2", 9)));
        assert_eq!(seen[1], ("rxe1".to_owned(), None, false));
        missed_for(&mut host, 2 * COMES);
        assert!(
            notes.len() == 1 && notes[0].starts_with("rxe1 not read") && notes[0].contains("PID 107"),
            "{notes:?}"
        );
        // No list is due because of it, and the rounds after it read counters alone.
        assert!(host.source.listed_ns.is_some());
        assert_eq!(again(&mut host).0, []);
    }
    // What goes is seen to go.
    host.kernel.change(0, |made| made.netns = 99);
    host.files.remove("sys/class/infiniband_verbs/uverbs0");
    look(&mut host);
    assert_eq!(host.source.present.removals.notes().len(), 1);
    host.kernel.0.lock().unwrap().silent.clear();
    let (seen, notes) = look(&mut host);
    assert_eq!((seen[1].clone(), notes.len()), (is("rxe1", 7), 0));
    assert_eq!(host.source.present.entries[0].id, id);
}

#[test]
fn the_mode_may_change_while_rdmatop_runs() {
    let mut host = exclusive(&[0, 7]);
    let mode = |host: &mut Host, exclusive| host.kernel.0.lock().unwrap().exclusive = exclusive;
    mode(&mut host, false);
    assert_eq!(look(&mut host).0, [is("rxe0", 0), is("rxe1", 0)]);
    mode(&mut host, true);
    assert_eq!(look(&mut host).0, [is("rxe0", 0), is("rxe1", 7)]);
    mode(&mut host, false);
    assert_eq!(look(&mut host).0, [is("rxe0", 0), is("rxe1", 0)]);
}

#[test]
fn no_connection_into_another_namespace_outlives_a_reading() {
    let mut host = exclusive(&[0, 7]);
    for _ in 0..3 {
        look(&mut host);
        again(&mut host);
        let (made, open) = host.kernel.connections(7);
        assert!(made > 0 && open == 0, "{made} {open}");
        assert!(host.kernel.connections(0).1 > 0, "that of the own one is kept");
    }
    assert_eq!(host.source.present.entries.len(), 2);
}

#[test]
fn nothing_is_looked_for_in_mode_shared() {
    let mut host = exclusive(&[0, 7]);
    host.kernel.0.lock().unwrap().exclusive = false;
    assert_eq!(look(&mut host).0, [is("rxe0", 0), is("rxe1", 0)]);
    assert_eq!(host.kernel.connections(7).0, 0);
}

#[test]
fn a_process_that_ends_gives_way_to_another_one_of_its_namespace() {
    let mut host = exclusive(&[0, 7]);
    look(&mut host);
    lives(&host, 300, 7);
    host.files
        .remove("proc/107/ns/net")
        .link("proc/107/ns/net", "net:[1]");
    let (seen, notes) = look(&mut host);
    assert_eq!(
        (seen[1].1.as_ref().map(|netns| netns.pid), notes.len()),
        (Some(300), 0)
    );
}

#[test]
fn fresh_namespaces_of_one_user_hide_no_device_of_others() {
    let mut host = exclusive(&[0, 7]);
    host.kernel.change(1, |made| made.netns = 99);
    let fresh = |host: &Host, round: u64| {
        for at in 0..70 {
            let pid = 1000 + at;
            if round > 1 {
                host.files.remove(format!("proc/{pid}"));
            }
            lives(host, pid, 1000 * round + at);
            host.files
                .proc(format!("{pid}/status"), "Uid:\t1000\t1000\t1000\t1000\n");
        }
    };
    // The pod's namespace is asked before it has its device.
    fresh(&host, 1);
    assert_eq!(look(&mut host).0, [is("rxe0", 0)]);
    host.kernel.change(1, |made| made.netns = 7);
    fresh(&host, 2);
    assert_eq!(look(&mut host).0, [is("rxe0", 0), is("rxe1", 7)]);
}

#[test]
fn what_is_not_found_is_named_with_the_reason() {
    let mut host = exclusive(&[0, 7]);
    host.files.remove("proc/107");
    let (seen, notes) = look(&mut host);
    assert_eq!(seen, [is("rxe0", 0)]);
    assert!(
        notes.len() == 1 && notes[0].starts_with("rxe1 not shown") && notes[0].contains("ip netns exec"),
        "{notes:?}"
    );
}

#[test]
fn one_user_with_many_namespaces_delays_no_other_ones_and_all_are_entered() {
    for (uid, searches) in [(7, 1), (0, 3)] {
        let mut host = exclusive(&[0, 7]);
        host.files.remove("proc/107");
        for netns in 1000..1150 {
            lives(&host, netns, netns);
        }
        lives(&host, 5000, 7);
        host.files.proc("5000/status", format!("Uid:\t{uid}\t0\t0\t0\n"));
        let mut notes = Vec::new();
        for _ in 1..searches {
            notes.push(look(&mut host).1.join(" "));
        }
        assert!(
            notes.iter().all(|note| note.contains("not looked at yet")),
            "{notes:?}"
        );
        assert_eq!(
            notes
                .iter()
                .filter(|note| note.contains("of which 87 were"))
                .count(),
            searches / 3
        );
        let (seen, notes) = look(&mut host);
        assert_eq!(
            (seen[1].1.as_ref().map(|netns| netns.pid), notes.len()),
            (Some(5000), 0)
        );
    }
}
