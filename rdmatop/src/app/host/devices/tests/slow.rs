//! Several devices, of which one has a driver that sleeps.

use std::time::Instant;

use super::*;
use rdmatop_model::snapshot::Snapshot;

/// Three devices, and the engine that gets their inputs.
struct Watched {
    host: Host,
    engine: Engine,
}

impl Watched {
    /// Once all are listed, device 1 sleeps this long for each request for counters.
    fn new(sleeps: u64) -> Self {
        let mut watched = Self {
            host: Host::new(3),
            engine: Engine::new(EngineConfig::default()),
        };
        for packets in [1000, 2000] {
            watched.move_on(packets);
            watched.round(false);
            thread::sleep(Duration::from_millis(60));
        }
        watched.host.kernel.change(1, |made| made.sleeps = sleeps);
        watched.host.kernel.asked(0);
        watched
    }

    fn move_on(&self, packets: u64) {
        for device in 0..3 {
            self.host.kernel.change(device, |made| made.packets = packets);
        }
    }

    /// A round, and how long it took.
    fn round(&mut self, once: bool) -> (Arc<Snapshot>, Duration) {
        let wants = Wants {
            round: self.host.round,
            counters: true,
            qps: true,
            once,
            ..Wants::default()
        };
        self.host.round += 1;
        let begun = Instant::now();
        let Self { host, engine } = self;
        host.source.poll(&wants, &mut |input| {
            engine.apply(input.at(now()));
        });
        (engine.tick(now()), begun.elapsed())
    }
}

fn packets(snapshot: &Snapshot) -> Vec<Option<u64>> {
    let total = |port: &PortRow| port.tx_packets.map(|counter| counter.total);
    snapshot.ports.iter().map(total).collect()
}

fn notes(snapshot: &Snapshot) -> Vec<String> {
    snapshot.health.notes.iter().map(ToString::to_string).collect()
}

#[test]
fn a_device_that_sleeps_makes_no_other_old_and_is_named() {
    let mut watched = Watched::new(2_500);
    watched.move_on(3000);
    let (seen, took) = watched.round(false);
    assert_eq!(packets(&seen), [Some(3000), Some(2000), Some(3000)]);
    assert!(took < Duration::from_millis(1_500), "{took:?}");
    assert_eq!(notes(&seen), [""; 0], "it may be a hiccup");
    assert_eq!(seen.devices.len(), 3);
    // The next rounds do not wait at all.
    watched.move_on(4000);
    for _ in 0..4 {
        thread::sleep(Duration::from_millis(150));
        let (seen, took) = watched.round(false);
        assert_eq!(packets(&seen), [Some(4000), Some(2000), Some(4000)]);
        assert!(took < Duration::from_millis(400), "{took:?}");
    }
    let (seen, _) = watched.round(false);
    let said = notes(&seen);
    assert!(
        said.len() == 1 && said[0].starts_with("rxe1 is slow: no answer about its counters for"),
        "{said:?}"
    );
    let state = seen.devices[1].state;
    assert!(state.is_some() && state == seen.devices[0].state);
    let asked = watched.host.kernel.asked(cmd::STAT_GET);
    assert_eq!(
        asked.iter().filter(|device| **device == Some(1)).count(),
        0,
        "its first question is still on its way to it"
    );
    // The answer: the rate is over the time between its own two reads.
    watched.host.kernel.change(1, |made| made.sleeps = 0);
    let begun = Instant::now();
    let seen = loop {
        let (seen, _) = watched.round(false);
        if packets(&seen)[1] == Some(4000) {
            break seen;
        }
        assert!(begun.elapsed() < Duration::from_secs(5));
        thread::sleep(Duration::from_millis(50));
    };
    assert!(
        notes(&seen)[0].contains("reading its counters took 2.5 s"),
        "{:?}",
        notes(&seen)
    );
    let rate = |seen: &Snapshot| seen.ports[1].tx_packets.unwrap().rate;
    assert!(
        rate(&seen).is_none_or(|rate| rate < 2000.0 / 1.2),
        "{:?}",
        rate(&seen)
    );
}

#[test]
fn a_driver_that_sleeps_in_a_dump_delays_no_other_and_loses_no_qp() {
    let mut watched = Watched::new(0);
    watched.host.kernel.change(1, |made| {
        (made.sleeps, made.sleeps_in) = (5_000, Some(cmd::RES_QP_GET));
    });
    for device in 0..3 {
        watched.host.kernel.change(device, |made| made.qps.push((77, 5)));
    }
    watched.move_on(3000);
    let listed = |seen: &Snapshot| -> Vec<Arc<str>> {
        let new = seen.qps.iter().filter(|row| row.qpn == 77);
        new.map(|row| Arc::clone(&row.device)).collect()
    };
    // A kernel that lists ten thousand QPs takes as long, so the first of these rounds waits for a while.
    let (seen, took) = watched.round(false);
    assert!(took < Duration::from_secs(4), "{took:?}");
    let [first, _, last] = packets(&seen)[..] else {
        panic!("three ports");
    };
    assert_eq!([first, last], [Some(3000); 2]);
    assert_eq!(listed(&seen), ["rxe0".into(), "rxe2".into()]);
    let begun = Instant::now();
    let seen = loop {
        watched.move_on(4000);
        let (seen, took) = watched.round(false);
        assert!(took < Duration::from_millis(400), "{took:?}");
        if listed(&seen).len() == 3 {
            break seen;
        }
        let said = notes(&seen);
        assert!(
            said.len() == 1 && said[0].starts_with("rxe1 is slow: no answer"),
            "{said:?}"
        );
        assert_eq!([0, 2].map(|port| packets(&seen)[port]), [Some(4000); 2]);
        assert!(begun.elapsed() < Duration::from_secs(8));
        thread::sleep(Duration::from_millis(100));
    };
    // Between two rounds it may have answered that, and in this one what asks no driver.
    let said = notes(&seen);
    assert!(
        said.iter()
            .all(|line| line.starts_with("rxe1 is slow: reading its queue pairs")),
        "{said:?}"
    );
    watched.host.kernel.asked(cmd::RES_QP_GET);
    watched.round(false);
    let asked = watched.host.kernel.asked(cmd::RES_QP_GET);
    assert!(!asked.contains(&Some(1)), "its driver rests: {asked:?}");
}

#[test]
fn a_mode_that_prints_once_waits_for_a_device_that_sleeps() {
    let mut watched = Watched::new(1_200);
    watched.move_on(3000);
    let (seen, took) = watched.round(true);
    assert_eq!(packets(&seen), [Some(3000); 3]);
    assert!(took >= Duration::from_millis(1_200), "{took:?}");
}

#[test]
fn a_list_that_arrives_meanwhile_removes_only_devices_that_are_gone() {
    let mut watched = Watched::new(1_500);
    watched.round(false);
    watched.host.source.listed_ns = None;
    let (seen, took) = watched.round(false);
    assert_eq!(packets(&seen), [Some(2000); 3], "as it was");
    assert!(took < Duration::from_millis(400), "{took:?}");
    watched.host.kernel.0.lock().unwrap().devices.truncate(1);
    for name in ["rxe1", "rxe2"] {
        watched.host.files.remove(format!("sys/class/infiniband/{name}"));
    }
    let (seen, _) = watched.round(false);
    assert_eq!(packets(&seen), [Some(2000)]);
    // Its late answer belongs to no device any more.
    thread::sleep(Duration::from_millis(1_600));
    let (seen, _) = watched.round(false);
    assert_eq!(packets(&seen), [Some(2000)]);
    assert_eq!(notes(&seen), [""; 0]);
}

#[test]
fn the_end_does_not_wait_for_a_device_that_sleeps() {
    let mut watched = Watched::new(2_000);
    watched.round(false);
    let begun = Instant::now();
    drop(watched.host.source);
    assert!(begun.elapsed() < Duration::from_millis(500));
}
