//! What a refresh asks, and that failures stay where they are.
use std::cell::RefCell;

use super::super::attr::{
    DEV_INDEX, DEV_NAME, PORT_INDEX, RES_LQPN, RES_QP, RES_QP_ENTRY, RES_SUMMARY, RES_SUMMARY_ENTRY,
    RES_SUMMARY_ENTRY_CURR, RES_SUMMARY_ENTRY_NAME, STAT_HWCOUNTER_ENTRY, STAT_HWCOUNTER_ENTRY_NAME,
    STAT_HWCOUNTER_ENTRY_VALUE, STAT_HWCOUNTERS, cmd, message_type,
};
use super::super::client::Nldev;
use crate::model::cause::{CauseId, Obstacle};

use super::super::sample::{Dump, RequestError};
use super::super::sampler::{Sampler, Want, WantQps};
use super::super::wire::{Attrs, ERROR, F_MULTI, Message, MessageWriter};
use super::{FakeKernel, PORTID, done, reply};

/// Two devices; the second one's counters fail. QP counts are taken from `qps`; commands are noted in `asked`.
struct World {
    qps: [u64; 2],
    asked: Vec<(u16, Option<u32>)>,
}

fn device_of(request: &Message<'_>) -> Option<u32> {
    Attrs::new(request.payload)
        .flatten()
        .find(|attr| attr.number == DEV_INDEX)
        .and_then(|attr| attr.u32().ok())
}

fn answer(world: &RefCell<World>, request: &Message<'_>) -> Vec<Vec<u8>> {
    let device = device_of(request);
    let command = request.kind - message_type(0);
    world.borrow_mut().asked.push((command, device));
    let count = world.borrow().qps[device.unwrap_or(0) as usize];
    let writer = reply(request, 0);
    match command {
        cmd::GET => {
            let device = |index: u32, name: &[u8]| {
                reply(request, F_MULTI)
                    .u32(DEV_INDEX, index)
                    .string(DEV_NAME, name)
                    .u32(PORT_INDEX, 1)
                    .finish()
            };
            vec![device(0, b"rxe0"), device(1, b"rxe1"), done(request, 0)]
        }
        cmd::STAT_GET if device == Some(1) => {
            let refusal = MessageWriter::new(ERROR, 0, request.seq).portid(PORTID);
            vec![refusal.raw(&(-5_i32).to_ne_bytes()).raw(&[0; 16]).finish()]
        }
        cmd::STAT_GET => {
            let counter = |table: MessageWriter| {
                table.nest(STAT_HWCOUNTER_ENTRY, |entry| {
                    entry
                        .string(STAT_HWCOUNTER_ENTRY_NAME, b"any name")
                        .u64(STAT_HWCOUNTER_ENTRY_VALUE, 1 << 40)
                })
            };
            vec![writer.nest(STAT_HWCOUNTERS, counter).finish()]
        }
        cmd::RES_GET => {
            let entry = |entry: MessageWriter| {
                entry
                    .string(RES_SUMMARY_ENTRY_NAME, b"qp")
                    .u64(RES_SUMMARY_ENTRY_CURR, count)
            };
            let table = |table: MessageWriter| table.nest(RES_SUMMARY_ENTRY, entry);
            vec![
                writer
                    .u32(DEV_INDEX, device.unwrap())
                    .nest(RES_SUMMARY, table)
                    .finish(),
            ]
        }
        cmd::RES_QP_GET => {
            let table = |table: MessageWriter| {
                (0..u32::try_from(count).unwrap()).fold(table, |table, number| {
                    table.nest(RES_QP_ENTRY, |entry| entry.u32(RES_LQPN, number))
                })
            };
            vec![
                reply(request, F_MULTI).nest(RES_QP, table).finish(),
                done(request, 0),
            ]
        }
        cmd::PORT_GET => vec![writer.u32(PORT_INDEX, 1).finish()],
        _ => vec![writer.finish()],
    }
}

const WANT: Want = Want {
    skip_summary: false,
    ports: true,
    counters: true,
    qps: WantQps::OnChange,
    cm_ids: false,
    cqs: false,
    mrs: false,
    pds: false,
    ctxs: false,
    srqs: false,
    counter_sets: false,
};

#[test]
fn counters_that_a_driver_does_not_have_are_no_failure() {
    let error = |errno| RequestError {
        request: "counters".into(),
        why: Obstacle::new(CauseId::ReadFailed, "", ""),
        errno,
    };
    for (errno, absent) in [
        (Some(libc::EINVAL), true),
        (Some(libc::EOPNOTSUPP), true),
        (Some(libc::ENOENT), true),
        (Some(libc::EIO), false),
        (Some(libc::EPERM), false),
        (None, false),
    ] {
        assert_eq!(error(errno).is_absence(), absent, "{errno:?}");
    }
}

#[test]
fn one_devices_failed_request_leaves_every_other_reading() {
    let world = RefCell::new(World {
        qps: [2, 3],
        asked: Vec::new(),
    });
    let mut sampler = Sampler::new(Nldev::new(FakeKernel(|request: &Message<'_>| {
        answer(&world, request)
    })));
    let sample = sampler.sample(WANT);
    let devices = sample.devices.as_ref().unwrap();
    let counters = devices[0].ports[0].counters.as_ref().unwrap().as_ref().unwrap();
    assert_eq!((&*counters[0].name, counters[0].value), ("any name", 1 << 40));
    assert_eq!(devices[1].qps.as_ref().unwrap().as_ref().unwrap().items.len(), 3);
    assert!(devices[1].ports[0].info.as_ref().unwrap().is_ok());
    let errors: Vec<String> = sample.errors().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        ["counters of rxe1 port 1: Input/output error (os error 5)"]
    );
}

#[test]
fn qps_are_listed_again_only_when_their_number_changed() {
    let world = RefCell::new(World {
        qps: [2, 0],
        asked: Vec::new(),
    });
    let mut sampler = Sampler::new(Nldev::new(FakeKernel(|request: &Message<'_>| {
        answer(&world, request)
    })));
    let listed = |sampler: &mut Sampler<_>, want: Want| {
        world.borrow_mut().asked.clear();
        let sample = sampler.sample(want);
        let asked: Vec<_> = world
            .borrow()
            .asked
            .iter()
            .filter(|(command, _)| *command == cmd::RES_QP_GET)
            .copied()
            .collect();
        let devices = sample.devices.unwrap();
        let lengths = [0, 1].map(|at: usize| {
            devices[at]
                .qps
                .as_ref()
                .map(|qps| qps.as_ref().map(|dump: &Dump<_>| dump.items.len()).unwrap())
        });
        (asked.len(), lengths)
    };
    assert_eq!(
        listed(&mut sampler, WANT),
        (1, [Some(2), Some(0)]),
        "a count of 0 needs no request"
    );
    assert_eq!(
        listed(&mut sampler, WANT),
        (0, [None, None]),
        "not asked is not empty"
    );
    world.borrow_mut().qps = [2, 1];
    assert_eq!(listed(&mut sampler, WANT), (1, [None, Some(1)]));
    assert_eq!(
        listed(
            &mut sampler,
            Want {
                qps: WantQps::Now,
                ..WANT
            }
        ),
        (2, [Some(2), Some(1)])
    );
    assert_eq!(
        listed(
            &mut sampler,
            Want {
                qps: WantQps::Never,
                ..WANT
            }
        ),
        (0, [None, None])
    );
}

#[test]
fn the_subsystems_settings_are_asked_once() {
    let world = RefCell::new(World {
        qps: [0, 0],
        asked: Vec::new(),
    });
    let mut sampler = Sampler::new(Nldev::new(FakeKernel(|request: &Message<'_>| {
        answer(&world, request)
    })));
    assert!(sampler.sample(WANT).sys.is_some());
    assert!(sampler.sample(WANT).sys.is_none());
    assert_eq!(
        world
            .borrow()
            .asked
            .iter()
            .filter(|(command, _)| *command == cmd::SYS_GET)
            .count(),
        1
    );
}

#[test]
fn a_garbled_count_of_ports_is_told_and_not_walked() {
    let mut asked = 0_u32;
    let mut sampler = Sampler::new(Nldev::new(FakeKernel(|request: &Message<'_>| {
        asked += 1;
        if request.kind != message_type(cmd::GET) {
            return vec![reply(request, 0).u32(PORT_INDEX, 1).u32(DEV_INDEX, 0).finish()];
        }
        let device = reply(request, F_MULTI)
            .u32(DEV_INDEX, 0)
            .string(DEV_NAME, b"rxe0")
            .u32(PORT_INDEX, u32::MAX);
        vec![device.finish(), done(request, 0)]
    })));
    let sample = sampler.sample(Want {
        counters: false,
        qps: WantQps::Never,
        ..WANT
    });
    let errors: Vec<String> = sample.errors().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        ["ports of rxe0 from 1025: not asked: 4294967295 ports are more than one refresh reads"]
    );
    assert!(asked < 1100, "{asked}");
}
