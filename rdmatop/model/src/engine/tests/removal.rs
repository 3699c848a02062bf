//! A device whose removal waits: its QPs go on and keep its name.

use super::*;
use crate::cause::{Cause, CauseId, Concerns};
use crate::input::UNLISTED;
use crate::snapshot::DeviceState;
use rdmatop_base::step::NextStep;

/// What sysfs still has of a device.
fn going(index: u32, name: &str) -> DeviceReading {
    DeviceReading {
        removing: true,
        ..rxe(index, name)
    }
}

fn states(snapshot: &Snapshot) -> Vec<(&str, Option<u32>, Option<DeviceState>)> {
    let each = snapshot.devices.iter();
    each.map(|row| (&*row.name, row.index, row.state)).collect()
}

#[test]
fn qps_of_a_device_that_is_being_removed_live_until_it_is_gone() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t + 1, 0xa0, 17));
    let note = Cause {
        id: CauseId::RemovalWaits,
        concerns: Concerns::Device("rxe0".into()),
        what: "rxe0 is being removed".into(),
        why: String::new(),
        remedy: NextStep::default(),
    };
    let sample = DevicesSample {
        mono_ns: host.pass(SECOND).now,
        devices: vec![going(0, "rxe0")],
        notes: vec![note.clone()],
        ..DevicesSample::default()
    };
    host.apply(Input::Devices(Box::new(sample)));
    let snapshot = host.tick();
    assert_eq!(
        states(&snapshot),
        [("rxe0", Some(0), Some(DeviceState::Removing))]
    );
    assert_eq!(
        (snapshot.qps[0].exited, &*snapshot.qps[0].device),
        (false, "rxe0")
    );
    assert_eq!(*snapshot.health.notes, [note]);
    host.pass(SECOND).devices(vec![]);
    let snapshot = host.tick();
    assert!(snapshot.qps[0].exited && snapshot.devices.is_empty());
    assert!(snapshot.health.notes.is_empty());
}

/// An engine that knows no device.
fn blank() -> Host {
    Host {
        engine: Engine::new(EngineConfig::default()),
        now: SECOND,
        slept_ns: 0,
        births: std::collections::HashMap::default(),
    }
}

/// A machine on which `rxe0` was being removed before the first reading, which comes before or after its work
/// requests.
fn met(before: bool) -> Arc<Snapshot> {
    let mut host = blank();
    let t = host.now;
    let work = slot(t, 0xa0, 17, 5);
    if before {
        host.devices(vec![going(UNLISTED, "rxe0")]);
    }
    host.sweep(&[work]);
    host.pass(SECOND).devices(vec![going(UNLISTED, "rxe0")]);
    host.sweep(&[slot(t, 0xa0, 17, 9)]);
    host.pass(SECOND).devices(vec![going(UNLISTED, "rxe0")]);
    host.tick()
}

#[test]
fn work_requests_of_a_device_that_netlink_never_listed_have_its_name() {
    for before in [false, true] {
        let snapshot = met(before);
        assert_eq!(
            states(&snapshot),
            [("rxe0", Some(0), Some(DeviceState::Removing))],
            "{before}"
        );
        let row = &snapshot.qps[0];
        assert_eq!((&*row.device, row.exited, snapshot.qps.len()), ("rxe0", false, 1));
    }
}

#[test]
fn which_of_two_devices_it_was_is_not_guessed() {
    let mut host = blank();
    let t = host.now;
    let two = || vec![going(UNLISTED, "rxe0"), going(UNLISTED + 1, "rxe1")];
    host.devices(two());
    host.sweep(&[slot(t, 0xa0, 17, 5)]);
    let snapshot = host.pass(SECOND).tick();
    assert_eq!(&*snapshot.qps[0].device, "#0");
    host.devices(two());
    let snapshot = host.tick();
    let named: Vec<_> = states(&snapshot)
        .into_iter()
        .map(|(name, index, _)| (name, index))
        .collect();
    assert_eq!(named, [("rxe0", None), ("rxe1", None)]);
}
