//! Where a process posts work requests without the kernel: from the address that the kernel keeps of each
//! user `struct ibv_qp` to the functions that its program calls, as places in files.
//!
//! What another process says is a hint, maybe of a hostile one, and never an address to put a probe on.
//! [`Helper`] reads it, in a process that may be lost, and checks each address and each length; what cannot
//! be true makes the QP unobservable, never a number. [`Libraries`] opens the file that the hint names, if it
//! may be probed, and [`Code`] finds where functions begin in it. [`functions()`], `places` and [`Code`] are
//! pure.
mod abi;
mod code;
mod files;
mod functions;
mod helper;
mod pages;
mod places;
mod process;

pub use abi::{
    BEGIN, CONTEXT_POLL_CQ, CONTEXT_POST_SEND, CQ_EX_CALLS, CQ_EX_OUTCOME, QP_EX_CALLS, QP_EX_WR_ID,
    SET_INLINE_DATA, WR_START, after_landing_pad,
};
pub use code::Code;
pub use files::{Libraries, Opened};
pub use functions::{Functions, functions};
#[cfg(feature = "testkit")]
pub use helper::helper_is;
pub use helper::{
    Helper, Mapped, Posts, Purpose, Unanswered, is_helper, is_left_alone, keeps_a_reader, serve,
};
pub use places::Place;
pub use process::{Process, file, user};

/// Reads what a process says, in the calling process and not in a helper.
#[cfg(any(test, feature = "testkit"))]
pub fn posts(pid: u32, handle: u64, qpn: u32, ends: bool) -> Result<Posts, String> {
    helper::posts(pid, handle, qpn, ends)
}
