//! Finds and opens the functions that one QP's program posts with.

use std::collections::BTreeSet;

use super::hooks::{Data, Function};
use crate::source::uprobes::{
    BEGIN, Functions, Miss, Opened, Place, Process, SET_INLINE_DATA, WR_START, after_landing_pad, functions,
};

/// A function in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spot {
    pub(super) function: Function,
    /// Device and inode.
    pub(super) file: (u64, u64),
    /// Offset of the probe in the file.
    pub(super) offset: u64,
    /// The one process that is probed there, `None` for all.
    pub(super) pid: Option<u32>,
}

/// The functions to probe for a QP.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) spots: Vec<(Spot, Opened)>,
    /// Every send of the QP calls one of these functions.
    pub(super) sends_are_seen: bool,
}

/// Why a QP cannot be probed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// A later try may succeed.
    NotYet(String),
    /// No later try can succeed.
    Never(String),
}

fn io(what: &str, error: &std::io::Error) -> Unfit {
    Unfit::NotYet(format!("cannot read {what}: {error}"))
}

/// Finds the functions that a QP's program posts with, and with `ends` the one that its completions come from.
pub(super) fn of(pid: u32, handle: u64, qpn: u32, ends: bool) -> Result<Target, Unfit> {
    let process = Process::open(pid).map_err(|error| io("its memory", &error))?;
    let found = functions(&process, handle, qpn).map_err(|miss| match miss {
        Miss::Unreadable => Unfit::NotYet("its memory cannot be read".into()),
        Miss::NotIbverbs => Unfit::NotYet("it does not use a libibverbs that rdmatop knows".into()),
    })?;
    let unmapped = |error| io("its mappings", &error);
    let posts = process
        .places([found.post_send, found.post_recv])
        .map_err(unmapped)?;
    let mut calls = Vec::with_capacity(32);
    for (function, place) in [Function::PostSend, Function::PostRecv].into_iter().zip(posts) {
        let place = place.ok_or_else(|| Unfit::Never("its functions are not in a file".into()))?;
        calls.push((function, place));
    }
    let mut of_cqs = BTreeSet::new();
    if ends {
        let [poll] = process.places([found.poll_cq]).map_err(unmapped)?;
        calls.extend(poll.map(|place| (Function::PollCq, place)));
        for cq in found.polls {
            of_cqs.extend(polls(process.places(cq).map_err(unmapped)?));
        }
    }
    let extended = extended(&found, &process.places(found.extended).map_err(unmapped)?);
    let sends_are_seen = extended.is_some();
    calls.extend(extended.unwrap_or_default());
    let spots = calls
        .iter()
        .map(|(function, place)| spot(&process, *function, place));
    let mut spots: Vec<_> = spots.collect::<Result<_, _>>()?;
    let provider = spots.first().map(|(spot, _)| spot.file);
    for place in &of_cqs {
        let found = spot(&process, Function::PollEx, place)?;
        // What is no function pointer may still lead to code.
        if provider == Some(found.0.file) {
            spots.push(found);
        }
    }
    Ok(Target {
        spots,
        sends_are_seen,
    })
}

/// `start_poll` and `next_poll` of a CQ, of which `end_poll` is given as well: none if these are not three functions. A CQ that has
/// no such calls has zeros there, or words of the provider's own.
fn polls([start, next, end]: [Option<Place>; 3]) -> Vec<Place> {
    let (Some(start), Some(next), Some(end)) = (start, next, end) else {
        return Vec::new();
    };
    let distinct = start != next && next != end && end != start;
    if distinct { vec![start, next] } else { Vec::new() }
}

/// The `ibv_wr_*` calls of a QP to probe: an empty list if it has none, `None` if not all of them can be probed.
fn extended<const N: usize>(
    found: &Functions,
    places: &[Option<Place>; N],
) -> Option<Vec<(Function, Place)>> {
    let [Some(_), Some(complete), Some(abort)] = places.get(WR_START..WR_START + 3)? else {
        // A QP with such calls has these three. Without such calls the memory holds anything, but hardly ever three
        // addresses of code.
        return Some(Vec::new());
    };
    let data = [Data::Inline, Data::InlineList, Data::Sge, Data::List].map(Function::Data);
    let begin = BEGIN.map(|(number, opcode)| (number, Function::Begin(opcode)));
    let given = (SET_INLINE_DATA..).zip(data);
    let mut calls = Vec::with_capacity(N);
    for (number, function) in begin.into_iter().chain(given) {
        match (found.extended.get(number)?, places.get(number)?) {
            // The program did not ask for this call.
            (0, _) => {}
            (_, Some(place)) => calls.push((function, *place)),
            // An older library has something else after wr_abort.
            (_, None) if number > WR_START => {}
            (_, None) => return None,
        }
    }
    calls.extend([(Function::Abort, *abort), (Function::Complete, *complete)]);
    // If two pointers lead to one function, a probe there cannot distinguish the calls.
    let distinct: BTreeSet<_> = calls
        .iter()
        .map(|(_, place)| (place.range, place.offset))
        .collect();
    (distinct.len() == calls.len()).then_some(calls)
}

fn spot(process: &Process, function: Function, place: &Place) -> Result<(Spot, Opened), Unfit> {
    let file = process
        .file(place)
        .map_err(|error| io("the file of its library", &error))?;
    let offset = place.offset + after_landing_pad(&file.code(place.offset));
    let spot = Spot {
        function,
        file: file.identity,
        offset,
        pid: None,
    };
    Ok((spot, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: usize = 22;

    /// A QP whose pointers with these numbers lead to code, each to another function.
    fn qp(pointers: &[usize]) -> (Functions, [Option<Place>; N]) {
        let mut extended = [0; N];
        let mut places = [None; N];
        for number in pointers {
            extended[*number] = 0x1000 + *number as u64;
            places[*number] = Some(Place {
                range: (0x1000, 0x2000),
                offset: *number as u64,
            });
        }
        let found = Functions {
            post_send: 1,
            post_recv: 2,
            poll_cq: 3,
            polls: [[0; 3]; 2],
            extended,
        };
        (found, places)
    }

    fn names(calls: Option<Vec<(Function, Place)>>) -> Option<Vec<Function>> {
        calls.map(|calls| calls.into_iter().map(|(function, _)| function).collect())
    }

    #[test]
    fn the_calls_of_a_qp_are_those_that_it_has() {
        let (found, places) = qp(&[5, 7, 13, 14, 15, 16, 17, 18, 19]);
        let wanted = vec![
            Function::Begin(0),
            Function::Begin(2),
            Function::Data(Data::Inline),
            Function::Data(Data::InlineList),
            Function::Data(Data::Sge),
            Function::Data(Data::List),
            Function::Abort,
            Function::Complete,
        ];
        assert_eq!(names(extended(&found, &places)), Some(wanted));
    }

    #[test]
    fn a_qp_without_them_has_nothing_to_probe_whatever_lies_there() {
        let (mut found, places) = qp(&[17, 18]);
        found.extended[19] = 77;
        assert_eq!(names(extended(&found, &places)), Some(Vec::new()));
    }

    #[test]
    fn the_calls_of_an_extended_cq_are_three_functions() {
        let at = |offset| {
            Some(Place {
                range: (0x1000, 0x2000),
                offset,
            })
        };
        assert_eq!(polls([at(1), at(2), at(3)]).len(), 2);
        for none in [
            [None; 3],
            [at(1), at(2), None],
            [at(1), at(1), at(3)],
            [at(1), at(2), at(1)],
        ] {
            assert_eq!(polls(none), Vec::new());
        }
    }

    #[test]
    fn calls_that_cannot_be_probed_or_told_apart_leave_sends_unknown() {
        let (mut found, places) = qp(&[5, 15, 17, 18, 19]);
        found.extended[7] = 77;
        assert_eq!(names(extended(&found, &places)), None, "a pointer to no code");
        let (mut found, mut places) = qp(&[5, 15, 17, 18, 19]);
        (found.extended[7], places[7]) = (found.extended[5], places[5]);
        assert_eq!(names(extended(&found, &places)), None, "two of one function");
        let (mut found, places) = qp(&[5, 15, 17, 18, 19]);
        (found.extended[20], found.extended[21]) = (1, u64::MAX);
        assert_eq!(
            names(extended(&found, &places)).map(|calls| calls.len()),
            Some(4),
            "an older library"
        );
    }
}
