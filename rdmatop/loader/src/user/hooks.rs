//! The kprobes that find QPs whose programs can be probed, and the eBPF programs that are attached to those
//! programs.

use crate::hooks::{Entry, Hook, Role, Skip};
use rdmatop_sources::uprobes::{
    BEGIN, CONTEXT_POLL_CQ, CONTEXT_POST_SEND, CQ_EX_CALLS, CQ_EX_OUTCOME, QP_EX_CALLS, QP_EX_WR_ID,
    SET_INLINE_DATA, WR_START,
};

/// For the CQs of a QP, and the kernel's count of users of each.
const CQS: &[&str] = &[
    "OFF_QP_SEND_CQ",
    "OFF_QP_RECV_CQ",
    "OFF_CQ_UOBJECT",
    "OFF_CQ_USECNT",
    "OFF_CQ_ID",
];

/// A hook that finds a QP, with the offsets that its slot and the way to its program need.
const FINDS: Hook = Hook {
    gives: "QPs whose posts bypass the kernel, for --uprobes",
    needs: &[&["OFF_QP_UOBJECT", "OFF_UOBJECT_HANDLE"]],
    wants: &[&["OFF_QP_SRQ"], CQS],
    keeps_slots: true,
    skip: Skip::Count,
    role: Role::Probes,
    ..Hook::BASE
};

const DESTROY: Hook = Hook {
    program: "user_destroy",
    symbol: "ib_destroy_qp_user",
    gives: "final counts of a destroyed QP, for --uprobes",
    needs: &[],
    wants: &[],
    keeps_slots: false,
    ..FINDS
};

/// Attached with `--uprobes` only.
pub const HOOKS: &[Hook] = &[
    Hook {
        program: "user_destroy_ret",
        entry: Entry::Kretprobe,
        ..DESTROY
    },
    DESTROY,
    Hook {
        program: "user_modify",
        symbol: "_ib_modify_qp",
        wants: &[
            &["OFF_QP_SRQ"],
            CQS,
            &[
                "OFF_ATTR_STATE",
                "OFF_ATTR_DEST_QPN",
                "OFF_ATTR_DGID",
                "OFF_ATTR_AH_FLAGS",
            ],
        ],
        ..FINDS
    },
    Hook {
        program: "user_query",
        symbol: "ib_query_qp",
        ..FINDS
    },
];

/// A function of a provider that is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Function {
    PostSend,
    PostRecv,
    /// One of the `ibv_wr_*` calls, which begins a work request of this opcode.
    Begin(u32),
    /// One of the `ibv_wr_*` calls, which gives the data of a work request.
    Data(Data),
    Abort,
    Complete,
    /// Returns completions: for records of work requests.
    PollCq,
    /// `ibv_start_poll` (0) or `ibv_next_poll` (1) of a `struct ibv_cq_ex`, as `PollCq`.
    PollEx(usize),
}

/// How a call gives data. The eBPF program distinguishes the calls by these numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Data {
    Sge = 0,
    Inline = 1,
    List = 2,
    InlineList = 3,
}

impl Function {
    /// The eBPF program for the entry, and the one for the return.
    pub(super) const fn programs(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::PostSend => ("user_post_send", Some("user_post_send_ret")),
            Self::PostRecv => ("user_post_recv", Some("user_post_recv_ret")),
            Self::Begin(_) => ("user_wr", None),
            Self::Data(_) => ("user_wr_data", None),
            Self::Abort => ("user_wr_abort", None),
            Self::Complete => ("user_wr_complete", Some("user_wr_done")),
            Self::PollCq => ("user_poll_cq", Some("user_poll_cq_ret")),
            Self::PollEx(_) => ("user_poll_ex", Some("user_poll_ex_ret")),
        }
    }

    /// Where the pointer lies by which a program calls the function: in the context of its QP or CQ for those
    /// of `struct ibv_context_ops`, else in the QP or CQ itself.
    fn pointer(self) -> u64 {
        let (first, number) = match self {
            Self::PostSend => (CONTEXT_POST_SEND, 0),
            Self::PostRecv => (CONTEXT_POST_SEND, 1),
            Self::PollCq => (CONTEXT_POLL_CQ, 0),
            Self::PollEx(number) => (CQ_EX_CALLS, number),
            Self::Begin(opcode) => {
                let of = BEGIN.iter().find(|(_, begins)| *begins == opcode);
                (QP_EX_CALLS, of.map_or(0, |(number, _)| *number))
            }
            Self::Data(how) => (
                QP_EX_CALLS,
                SET_INLINE_DATA + GIVE.iter().take_while(|data| **data != how).count(),
            ),
            Self::Complete => (QP_EX_CALLS, WR_START + 1),
            Self::Abort => (QP_EX_CALLS, WR_START + 2),
        };
        first + 8 * number as u64
    }

    /// The cookie to attach the eBPF programs with: see `Entered::cookie` in rdmatop-ebpf.
    pub(super) fn cookie(self) -> u64 {
        let what = match self {
            // With the offset of `wr_id`, which `wr_flags` follow.
            Self::Begin(opcode) => QP_EX_WR_ID << 32 | u64::from(opcode),
            Self::Data(how) => how as u64,
            Self::PollEx(_) => CQ_EX_OUTCOME << 32,
            _ => 0,
        };
        self.pointer() << 16 | what
    }
}

/// The ways to give data, in the order of their pointers.
pub(super) const GIVE: [Data; 4] = [Data::Inline, Data::InlineList, Data::Sge, Data::List];

/// eBPF programs that are attached to functions of user programs. No [`Hook`] lists them.
#[rustfmt::skip] // names, as many as a line has room for
pub const PROGRAMS: [&str; 13] = [
    "user_post_send", "user_post_send_ret", "user_post_recv", "user_post_recv_ret", "user_wr", "user_wr_data",
    "user_wr_abort", "user_wr_complete", "user_wr_done", "user_poll_cq", "user_poll_cq_ret", "user_poll_ex",
    "user_poll_ex_ret",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_program_is_that_of_a_function() {
        let functions = [
            Function::PostSend,
            Function::PostRecv,
            Function::Begin(0),
            Function::Data(Data::Sge),
            Function::Abort,
            Function::Complete,
            Function::PollCq,
            Function::PollEx(0),
        ];
        let named = functions.map(Function::programs);
        let named: Vec<_> = named
            .iter()
            .flat_map(|(entry, back)| [Some(*entry), *back])
            .flatten()
            .collect();
        assert_eq!(named, PROGRAMS);
    }

    #[test]
    fn each_probe_knows_the_pointer_by_which_a_program_calls_its_function() {
        let pointer = |function: Function| function.cookie() >> 16 & 0xffff;
        assert_eq!(pointer(Function::PostRecv), pointer(Function::PostSend) + 8);
        assert_eq!(pointer(Function::PollEx(1)), pointer(Function::PollEx(0)) + 8);
        let begin = BEGIN.map(|(number, opcode)| (number, Function::Begin(opcode)));
        let data = GIVE.map(Function::Data);
        let given = (SET_INLINE_DATA..).zip(data);
        let ends = [Function::Complete, Function::Abort];
        let ends = (WR_START + 1..).zip(ends);
        for (number, function) in begin.into_iter().chain(given).chain(ends) {
            assert_eq!(pointer(function), QP_EX_CALLS + 8 * number as u64, "{function:?}");
        }
        for (opcode, how) in [(0, 1), (15, 3)] {
            let begin = Function::Begin(opcode).cookie();
            assert_eq!((begin & 0xffff, begin >> 32), (u64::from(opcode), QP_EX_WR_ID));
            assert_eq!(
                Function::Data(if how == 1 { Data::Inline } else { Data::InlineList }).cookie() & 0xffff,
                how
            );
        }
    }
}
