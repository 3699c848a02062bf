//! What a reading of a device asks for, and that a failure stays where it is.
use std::cell::RefCell;

use super::super::attr::{
    DEV_INDEX, DEV_NAME, PORT_INDEX, RES_MR, RES_MR_ENTRY, RES_MRN, RES_SUMMARY, RES_SUMMARY_ENTRY,
    RES_SUMMARY_ENTRY_CURR, RES_SUMMARY_ENTRY_NAME, cmd, message_type,
};
use super::super::client::Nldev;
use rdmatop_model::cause::{CauseId, Obstacle};

use super::super::record::Summary;
use super::super::sample::RequestError;
use super::super::sampler::{self, Want};
use super::super::wire::{Attrs, ERROR, F_MULTI, Message, MessageWriter};
use super::{FakeKernel, PORTID, done, reply};

/// Requests that the made-up kernel got: the command, and the device that it was about.
type Asked = RefCell<Vec<(u16, Option<u32>)>>;

/// Memory regions of the two devices.
const MRS: [u64; 2] = [0, 3];

fn device_of(request: &Message<'_>) -> Option<u32> {
    Attrs::new(request.payload)
        .flatten()
        .find(|attr| attr.number == DEV_INDEX)
        .and_then(|attr| attr.u32().ok())
}

/// Two devices; the port of the second one fails.
fn answer(asked: &Asked, request: &Message<'_>) -> Vec<Vec<u8>> {
    let device = device_of(request);
    let command = request.kind - message_type(0);
    asked.borrow_mut().push((command, device));
    let count = MRS[device.unwrap_or(0) as usize];
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
        cmd::PORT_GET if device == Some(1) => {
            let refusal = MessageWriter::new(ERROR, 0, request.seq).portid(PORTID);
            vec![refusal.raw(&(-5_i32).to_ne_bytes()).raw(&[0; 16]).finish()]
        }
        cmd::RES_GET => {
            let entry = |entry: MessageWriter| {
                entry
                    .string(RES_SUMMARY_ENTRY_NAME, b"mr")
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
        cmd::RES_MR_GET => {
            let table = |table: MessageWriter| {
                (0..u32::try_from(count).unwrap()).fold(table, |table, number| {
                    table.nest(RES_MR_ENTRY, |entry| entry.u32(RES_MRN, number))
                })
            };
            vec![
                reply(request, F_MULTI).nest(RES_MR, table).finish(),
                done(request, 0),
            ]
        }
        cmd::PORT_GET => vec![writer.u32(PORT_INDEX, 1).finish()],
        _ => vec![writer.finish()],
    }
}

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
fn one_failed_request_leaves_every_other_reading() {
    let asked = RefCell::new(Vec::new());
    let mut nldev = Nldev::new(FakeKernel(|request: &Message<'_>| answer(&asked, request)));
    let devices = nldev.devices().unwrap().items;
    let [first, second] = [0, 1].map(|at: usize| {
        let device = devices[at].clone();
        sampler::sample(
            &mut nldev,
            device,
            Want {
                ports: true,
                mrs: true,
            },
            None,
        )
    });
    assert_eq!(first.errors().count(), 0);
    assert!(first.ports[0].info.as_ref().unwrap().is_ok());
    assert_eq!(second.mrs.as_ref().unwrap().as_ref().unwrap().items.len(), 3);
    let errors: Vec<String> = second.errors().map(ToString::to_string).collect();
    assert_eq!(errors, ["port 1 of rxe1: Input/output error (os error 5)"]);
}

#[test]
fn what_is_known_or_not_wanted_is_not_asked_for() {
    let asked = RefCell::new(Vec::new());
    let mut nldev = Nldev::new(FakeKernel(|request: &Message<'_>| answer(&asked, request)));
    let devices = nldev.devices().unwrap().items;
    let mut commands = |device: usize, want: Want, counts: Option<Summary>| {
        asked.borrow_mut().clear();
        let sample = sampler::sample(&mut nldev, devices[device].clone(), want, counts);
        let commands: Vec<u16> = asked.borrow().iter().map(|(command, _)| *command).collect();
        (sample, commands)
    };
    let regions = Want {
        mrs: true,
        ..Want::default()
    };
    let (first, asked) = commands(0, regions, None);
    assert_eq!(asked, [cmd::RES_GET], "a count of 0 needs no dump");
    assert_eq!(first.mrs.unwrap().unwrap().items.len(), 0);
    let (second, asked) = commands(1, regions, None);
    assert_eq!(asked, [cmd::RES_GET, cmd::RES_MR_GET]);
    let counts = second.summary.unwrap().unwrap();
    let (second, asked) = commands(1, Want::default(), Some(counts.clone()));
    assert_eq!(asked, [0_u16; 0]);
    assert_eq!((second.summary, second.mrs), (Some(Ok(counts)), None));
    assert_eq!(
        second.ports[0].info, None,
        "not asked is neither empty nor failed"
    );
}

#[test]
fn a_garbled_count_of_ports_is_reported_and_not_walked() {
    let mut asked = 0_u32;
    let mut nldev = Nldev::new(FakeKernel(|request: &Message<'_>| {
        asked += 1;
        if request.kind != message_type(cmd::GET) {
            return vec![reply(request, 0).u32(PORT_INDEX, 1).u32(DEV_INDEX, 0).finish()];
        }
        let device = reply(request, F_MULTI)
            .u32(DEV_INDEX, 0)
            .string(DEV_NAME, b"rxe0")
            .u32(PORT_INDEX, u32::MAX);
        vec![device.finish(), done(request, 0)]
    }));
    let device = nldev.devices().unwrap().items.remove(0);
    let want = Want {
        ports: true,
        ..Want::default()
    };
    let sample = sampler::sample(&mut nldev, device, want, None);
    let errors: Vec<String> = sample.errors().map(ToString::to_string).collect();
    assert_eq!(
        errors,
        ["ports of rxe0 from 1025: not asked: 4294967295 ports are more than one refresh reads"]
    );
    assert!(asked < 1100, "{asked}");
}
