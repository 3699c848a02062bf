//! The state of our programs: the notes about it, and which PIDs are those of which namespace.

use super::*;
use crate::cause::{Cause, CauseId, Concerns, Obstacle};
use crate::input::{DataPaths, EbpfState, HealthSample};

fn report(state: EbpfState) -> Input {
    Input::Ebpf(Box::new(EbpfReport {
        state,
        ..EbpfReport::default()
    }))
}

fn on() -> Input {
    report(EbpfState::On {
        datapaths: DataPaths::default(),
    })
}

fn off(id: CauseId, remedy: &'static str) -> Input {
    report(EbpfState::unavailable(Obstacle::new(
        id,
        "too many open files",
        remedy,
    )))
}

fn machine(notes: Vec<Cause>) -> Input {
    Input::Health(Box::new(HealthSample {
        notes: notes.into(),
        ..HealthSample::default()
    }))
}

fn missing(id: CauseId) -> Cause {
    Obstacle::new(id, "x", "y").takes("z", Concerns::Host)
}

fn nested(ebpf: EbpfState) -> Host {
    Host::with(EngineConfig {
        nested_pids: true,
        ebpf,
        ..EngineConfig::default()
    })
}

/// The owner of QP 17, which a dump shows.
fn owner_by_dump(host: &mut Host) -> Option<u32> {
    let t = host.now;
    host.pass(SECOND).dump(t, vec![dumped(17, Some(5), 3)]);
    host.only_qp().pid
}

#[test]
fn in_a_pid_namespace_dumps_name_owners_where_no_program_works() {
    let mut host = nested(EbpfState::Starting);
    assert_eq!(
        owner_by_dump(&mut host),
        None,
        "programs may be there at any moment"
    );
    host.apply(off(CauseId::NoFiles, "y"));
    assert_eq!(owner_by_dump(&mut host), Some(5));
    assert_eq!(host.engine.needs().processes, [5]);
    assert_eq!(owner_by_dump(&mut nested(EbpfState::Disabled)), Some(5));
    assert_eq!(
        owner_by_dump(&mut Host::new()),
        Some(5),
        "on the machine itself PIDs are PIDs"
    );
}

#[test]
fn pids_of_one_namespace_are_never_taken_for_those_of_another() {
    let mut host = nested(EbpfState::Starting);
    host.apply(off(CauseId::NoFiles, "y"));
    assert_eq!(owner_by_dump(&mut host), Some(5));
    host.apply(on());
    assert!(host.engine.wants_repair());
    assert_eq!(host.only_qp().pid, None);
    assert_eq!(owner_by_dump(&mut host), None);
    // The machine's PID of the same QP, and then again that of the namespace.
    let t = host.now;
    host.qp(create(t, 0xb0, 18));
    host.apply(off(CauseId::ProbesOff, "y"));
    assert!(host.tick().qps.iter().all(|qp| qp.pid.is_none()));
    let t = host.now;
    host.pass(SECOND)
        .dump(t, vec![dumped(17, Some(5), 3), dumped(18, Some(6), 3)]);
    let owners: Vec<_> = host.tick().qps.iter().map(|qp| (qp.qpn, qp.pid)).collect();
    assert_eq!(owners, [(17, Some(5)), (18, Some(6))]);
}

#[test]
fn ebpf_that_is_refused_has_one_note_with_why_and_the_remedy() {
    let notes = |inputs: Vec<Input>| -> Vec<String> {
        let mut host = Host::new();
        for input in inputs {
            host.apply(input);
        }
        host.tick().health.notes.iter().map(ToString::to_string).collect()
    };
    let refused = "No eBPF: no lifecycle events and no per-QP rates: too many open files; ";
    assert_eq!(
        notes(vec![off(CauseId::NoFiles, "`ulimit -n 1024`")]),
        [format!("{refused}`ulimit -n 1024`")]
    );
    assert_eq!(
        notes(vec![off(CauseId::Refused, "")]),
        [format!("{refused}`rdmatop probes` and dmesg may say more")]
    );
    assert_eq!(notes(vec![on()]), [""; 0]);
    // Said already, whichever comes first; and what does not say it does not hide it.
    for said in [CauseId::NoCapability, CauseId::Memlock, CauseId::NoSysfs] {
        let both = vec![off(CauseId::NotPermitted, ""), machine(vec![missing(said)])];
        assert_eq!(notes(both), ["z: x; y"], "{said:?}");
    }
    // A limit of memory is not why a thread could not start.
    for (said, refused) in [
        (CauseId::NoPtrace, CauseId::NotPermitted),
        (CauseId::Memlock, CauseId::NoThread),
    ] {
        let both = vec![machine(vec![missing(said)]), off(refused, "")];
        assert_eq!(notes(both).len(), 2, "{said:?}");
    }
}

#[test]
fn without_programs_nothing_says_that_no_event_was_lost() {
    let counts = |host: &mut Host| {
        let health = &host.tick().health;
        (health.events, health.lost_events)
    };
    let mut host = Host::with(EngineConfig {
        ebpf: EbpfState::Disabled,
        ..EngineConfig::default()
    });
    assert_eq!(counts(&mut host), (None, None), "--no-ebpf");
    let mut host = Host::new();
    assert_eq!(counts(&mut host), (None, None), "none runs yet");
    host.apply(off(CauseId::NoCapability, "y"));
    assert_eq!(counts(&mut host), (None, None), "none can run");
    host.apply(on());
    assert_eq!(counts(&mut host), (Some(0), Some(0)));
    host.apply(off(CauseId::NoFiles, "y"));
    assert_eq!(counts(&mut host), (None, None), "they are gone");
    // What was counted before stays true.
    host.apply(on());
    host.apply(Input::BadRecord);
    let t = host.now;
    host.qp(create(t, 0xb0, 18));
    host.apply(off(CauseId::NoFiles, "y"));
    assert_eq!(counts(&mut host), (Some(1), Some(1)));
}

#[test]
fn programs_that_are_gone_leave_no_verdict_and_no_note_of_theirs() {
    let mut host = Host::new();
    host.apply(Input::Ebpf(Box::new(EbpfReport {
        state: EbpfState::On {
            datapaths: DataPaths::default(),
        },
        notes: vec![missing(CauseId::Pinned)],
        follows_qps: true,
        ..EbpfReport::default()
    })));
    let health = host.tick().health.clone();
    assert!(health.follows_qps && health.notes.len() == 1);
    host.apply(off(CauseId::Unreadable, "it is tried again"));
    let health = host.tick().health.clone();
    assert!(!health.follows_qps && health.probes.is_empty());
    let ids: Vec<_> = health.notes.iter().map(|note| note.id).collect();
    assert_eq!(ids, [CauseId::Unreadable]);
}
