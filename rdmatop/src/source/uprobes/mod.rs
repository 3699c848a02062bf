//! Where a process posts work requests without the kernel: from the address that the kernel keeps of each user
//! `struct ibv_qp` to the functions that its program calls, as places in files.
//!
//! Everything here is read from another process, which may be hostile: each address and each length is checked, and what
//! cannot be true makes the QP unobservable, never a number. [`functions`] and [`places`] are pure; [`Process`] reads.
mod abi;
mod functions;
mod places;
mod process;
mod running;

pub(crate) use abi::{BEGIN, CQ_EX_OUTCOME, QP_EX_WR_ID, SET_INLINE_DATA, WR_START, after_landing_pad};
pub(crate) use functions::{Functions, Memory, Miss, functions};
pub(crate) use places::Place;
pub(crate) use process::{Opened, Process};
pub(crate) use running::{Running, Search, low};
