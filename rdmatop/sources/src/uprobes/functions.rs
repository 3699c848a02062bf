//! From a user `struct ibv_qp` to the addresses of the functions behind it. Pure but for the memory that is
//! given.

use serde::{Deserialize, Serialize};

use super::abi;

pub trait Memory {
    /// Fills `into` from an address; false when any byte of it cannot be read.
    fn read(&self, address: u64, into: &mut [u8]) -> bool;
}

/// The functions that post to a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Functions {
    /// The provider's `post_send`.
    pub post_send: u64,
    /// The provider's `post_recv`.
    pub post_recv: u64,
    /// The provider's `poll_cq`, 0 if that is not known.
    pub poll_cq: u64,
    /// For each of the QP's two CQs, the words at the places where a `struct ibv_cq_ex` has `start_poll`,
    /// `next_poll` and `end_poll`. Of a CQ that is no `ibv_cq_ex` they mean nothing.
    pub polls: [[u64; 3]; 2],
    /// The words where a `struct ibv_qp_ex` has its function pointers. Of another QP they mean nothing.
    pub extended: [u64; abi::QP_EX_NUMBER],
}

/// Why a QP's functions are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Miss {
    /// Memory that has to be there cannot be read: the process is ending, or it is not what it seems.
    #[error("its memory cannot be read")]
    Unreadable,
    /// The kernel's handle is no `struct ibv_qp` of this number: the program does not use libibverbs, or the
    /// QP is not finished yet.
    #[error("it does not use a libibverbs that rdmatop knows")]
    NotIbverbs,
}

/// Whether a pointer can be one of a process.
fn is_user(address: u64) -> bool {
    (4096..abi::USER_END).contains(&address)
}

fn word(memory: &impl Memory, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    memory
        .read(address, &mut bytes)
        .then(|| u64::from_le_bytes(bytes))
}

/// Reads what posts to the QP at `handle`, whose number the kernel says is `qpn`.
pub fn functions(memory: &impl Memory, handle: u64, qpn: u32) -> Result<Functions, Miss> {
    if !is_user(handle) || !handle.is_multiple_of(8) {
        return Err(Miss::NotIbverbs);
    }
    let mut head = [0; abi::QP_HEAD];
    if !memory.read(handle, &mut head) {
        return Err(Miss::Unreadable);
    }
    let at = |offset: u64| head.get(usize::try_from(offset).ok()?..);
    let number = at(abi::QP_NUM).and_then(|rest| rest.first_chunk()).copied();
    if number.map(u32::from_le_bytes) != Some(qpn) {
        return Err(Miss::NotIbverbs);
    }
    let context = at(abi::QP_CONTEXT).and_then(|rest| rest.first_chunk()).copied();
    let context = context.map_or(0, u64::from_le_bytes);
    if !is_user(context) || !context.is_multiple_of(8) {
        return Err(Miss::NotIbverbs);
    }
    let operation = |number: u64| {
        let address = word(memory, context + abi::CONTEXT_POST_SEND + 8 * number).ok_or(Miss::Unreadable)?;
        if is_user(address) {
            Ok(address)
        } else {
            Err(Miss::NotIbverbs)
        }
    };
    let mut extended = [0; abi::QP_EX_NUMBER];
    for (pointer, number) in extended.iter_mut().zip(0..) {
        *pointer = word(memory, handle + abi::QP_EX_CALLS + 8 * number).unwrap_or(0);
    }
    let polls = [0, 1].map(|number| {
        let cq = at(abi::QP_CQS + 8 * number)
            .and_then(|rest| rest.first_chunk())
            .copied();
        let cq = cq.map_or(0, u64::from_le_bytes);
        let known = is_user(cq) && cq.is_multiple_of(8) && word(memory, cq) == Some(context);
        [0, 1, 2].map(|call| {
            let call = known
                .then(|| word(memory, cq + abi::CQ_EX_CALLS + 8 * call))
                .flatten();
            call.unwrap_or(0)
        })
    });
    Ok(Functions {
        post_send: operation(0)?,
        post_recv: operation(1)?,
        poll_cq: word(memory, context + abi::CONTEXT_POLL_CQ)
            .filter(|address| is_user(*address))
            .unwrap_or(0),
        polls,
        extended,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Words by address; the rest cannot be read.
    #[derive(Debug, Default)]
    struct Words(BTreeMap<u64, u64>);

    impl Memory for Words {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            for (byte, place) in into.iter_mut().zip(address..) {
                let Some(word) = self.0.get(&(place & !7)) else {
                    return false;
                };
                *byte = word.to_le_bytes()[(place & 7) as usize];
            }
            true
        }
    }

    const QP: u64 = 0x7f00_0000_1000;
    const CONTEXT: u64 = 0x7f00_0000_8000;

    fn qp(qpn: u32) -> Words {
        let mut words = Words::default();
        for word in 0..7 {
            words.0.insert(QP + word * 8, 0);
        }
        words.0.insert(QP, CONTEXT);
        words.0.insert(QP + 48, u64::from(qpn) << 32 | 5);
        words.0.insert(CONTEXT + 96, 0x7f12_3440);
        words.0.insert(CONTEXT + 208, 0x7f12_3450);
        words.0.insert(CONTEXT + 216, 0x7f12_3460);
        words
    }

    #[test]
    fn the_functions_of_a_plain_qp_are_those_of_its_context() {
        assert_eq!(
            functions(&qp(17), QP, 17),
            Ok(Functions {
                post_send: 0x7f12_3450,
                post_recv: 0x7f12_3460,
                poll_cq: 0x7f12_3440,
                // Nothing is there.
                polls: [[0; 3]; 2],
                extended: [0; abi::QP_EX_NUMBER],
            })
        );
    }

    #[test]
    fn a_qp_of_another_number_is_nobody_s() {
        assert_eq!(functions(&qp(18), QP, 17), Err(Miss::NotIbverbs));
        for handle in [0, 1, QP + 4, u64::MAX, 1 << 60] {
            assert_eq!(
                functions(&qp(17), handle, 17),
                Err(Miss::NotIbverbs),
                "{handle:x}"
            );
        }
        assert_eq!(functions(&Words::default(), QP, 17), Err(Miss::Unreadable));
    }

    #[test]
    fn a_context_that_is_none_gives_nothing() {
        for context in [0, 8, CONTEXT + 1, u64::MAX - 7] {
            let mut words = qp(17);
            words.0.insert(QP, context);
            assert_eq!(functions(&words, QP, 17), Err(Miss::NotIbverbs), "{context:x}");
        }
        let mut words = qp(17);
        words.0.remove(&(CONTEXT + 216));
        assert_eq!(functions(&words, QP, 17), Err(Miss::Unreadable));
        words.0.insert(CONTEXT + 96, 7);
        words.0.insert(CONTEXT + 216, 0x7f12_3460);
        assert_eq!(
            functions(&words, QP, 17).map(|found| found.poll_cq),
            Ok(0),
            "without it posts are known"
        );
        words.0.insert(CONTEXT + 216, 0);
        assert_eq!(functions(&words, QP, 17), Err(Miss::NotIbverbs));
    }

    #[test]
    fn the_calls_of_an_extended_cq_are_those_of_a_cq_of_the_same_context() {
        const CQ: u64 = 0x7f00_0001_0000;
        let mut words = qp(17);
        words.0.insert(QP + 24, CQ);
        words.0.insert(QP + 32, CQ + 4096);
        words.0.insert(CQ, CONTEXT);
        for (call, address) in (abi::CQ_EX_CALLS..).step_by(8).zip(0x7f55_0001..0x7f55_0004) {
            words.0.insert(CQ + call, address);
        }
        let polls = |words: &Words| functions(words, QP, 17).map(|found| found.polls);
        let there = [0x7f55_0001, 0x7f55_0002, 0x7f55_0003];
        assert_eq!(polls(&words), Ok([there, [0; 3]]), "the other one cannot be read");
        words.0.insert(QP + 32, CQ);
        assert_eq!(polls(&words), Ok([there; 2]));
        for (place, value) in [(CQ, CONTEXT + 8), (QP + 24, CQ + 4), (QP + 24, u64::MAX - 7)] {
            let mut words = Words(words.0.clone());
            words.0.insert(place, value);
            let found = polls(&words).unwrap();
            assert_eq!(found[0], [0; 3], "{place:x}: {value:x}");
        }
    }

    proptest! {
        #[test]
        fn any_memory_gives_user_addresses_or_nothing(
            words in prop::collection::btree_map((0u64..64).prop_map(|n| QP + n * 8), any::<u64>(), 0..64),
            handle in prop_oneof![Just(QP), any::<u64>(), (0u64..64).prop_map(|n| QP + n)],
            qpn: u32,
            inside: bool,
        ) {
            let mut words = Words(words);
            if inside {
                // A struct whose members lie in itself.
                words.0.insert(QP, QP + 8);
                words.0.insert(QP + 48, u64::from(qpn) << 32);
            }
            if let Ok(found) = functions(&words, handle, qpn) {
                prop_assert!(is_user(found.post_send) && is_user(found.post_recv));
            }
        }
    }
}
