use super::*;
use crate::input::Flood;

fn flood(pid: u32, failures: u64, records: u64) -> Flood {
    Flood {
        pid: Some(pid),
        comm: Some("fuzz".to_owned()),
        failures,
        records,
    }
}

#[test]
fn calls_that_were_left_out_are_told_once_with_their_process() {
    let mut host = Host::new();
    let mut told = |floods: Vec<Flood>| {
        let events = host.apply(Input::Floods(floods));
        events
            .iter()
            .map(|event| (event.pid, event.lost_where, event.count))
            .collect::<Vec<_>>()
    };
    let some = |pid, count| (Some(pid), Some("budget"), Some(count));
    assert_eq!(told(vec![flood(7, 100, 0), flood(8, 0, 3)]), [some(7, 100)]);
    assert_eq!(told(vec![flood(7, 100, 0), flood(8, 5, 3)]), [some(8, 5)]);
    assert_eq!(
        told(vec![flood(7, 100, 0), flood(8, 0, 3)]),
        [],
        "a reading that comes late"
    );
    assert_eq!(
        told(vec![flood(7, 149_937, 0), flood(8, 5, 4)]),
        [some(7, 149_837)]
    );
    let snapshot = host.tick();
    let health = &snapshot.health;
    assert_eq!(health.floods[..], [flood(7, 149_937, 0), flood(8, 5, 4)]);
    assert_eq!(
        health.floods[0].to_string(),
        "process `fuzz` (7): 149937 failed calls were not printed one by one"
    );
    assert!(health.lost_events.is_none_or(|lost| lost == 0) && health.losses.is_empty());
    assert!(!host.engine.wants_repair(), "the table of QPs lacks nothing");
}
