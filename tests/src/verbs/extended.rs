//! A QP that posts with the `ibv_wr_*` calls, and a CQ that is read with `ibv_start_poll`.

use std::{io, sync::Arc};

use super::{Context, Cq, Mr, Opcode, Pd, Qp, Wc, check, ffi, made};

/// How a work request gets its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// `ibv_wr_set_sge`.
    Sge = 0,
    /// `ibv_wr_set_inline_data`.
    Inline = 1,
    /// `ibv_wr_set_sge_list` with two halves.
    List = 2,
    /// `ibv_wr_set_inline_data_list` with two halves.
    InlineList = 3,
}

/// An extended CQ. QPs use it like any other.
#[derive(Debug)]
pub struct ExtendedCq {
    /// The CQ for the creation of QPs.
    pub cq: Arc<Cq>,
}

impl ExtendedCq {
    /// Creates a CQ of `cqe` entries.
    pub fn new(context: &Arc<Context>, cqe: i32) -> io::Result<Self> {
        let mut err = 0;
        // SAFETY: `raw` is an open context; `err` outlives the call.
        let raw = unsafe { ffi::shim_create_extended_cq(context.raw.as_ptr(), cqe, &raw mut err) };
        let cq = Cq {
            raw: made(raw, err)?,
            _context: context.clone(),
        };
        Ok(Self { cq: Arc::new(cq) })
    }

    /// Takes completions until `room` is full, or none if there is none: `ibv_start_poll`, and
    /// `ibv_next_poll` for the others, which must exist. With `is_last` it calls once more, after which the
    /// CQ is unusable (see shim.c).
    pub fn take(&self, room: &mut [Wc], is_last: bool) -> io::Result<usize> {
        let most = i32::try_from(room.len()).unwrap_or(i32::MAX);
        let cq = self.cq.raw.as_ptr();
        // SAFETY: a live extended CQ, and room for this many completions.
        let count = check(unsafe { ffi::shim_take(cq, room.as_mut_ptr(), most, i32::from(is_last)) })?;
        usize::try_from(count).map_err(io::Error::other)
    }
}

/// An extended QP, which is an ordinary QP too.
#[derive(Debug)]
pub struct Extended {
    /// The QP for all calls except sends.
    pub qp: Qp,
}

impl Extended {
    /// Creates a QP for `max_wr` sends and no receives.
    pub fn new(pd: &Arc<Pd>, cq: &Arc<Cq>, max_wr: u32) -> io::Result<Self> {
        let mut err = 0;
        // SAFETY: live PD and CQ, both kept alive by the new object.
        let raw =
            unsafe { ffi::shim_create_extended_qp(pd.raw.as_ptr(), cq.raw.as_ptr(), max_wr, &raw mut err) };
        let qp = Qp {
            raw: made(raw, err)?,
            _cqs: [cq.clone(), cq.clone()],
            pd: pd.clone(),
        };
        Ok(Self { qp })
    }

    /// `ibv_wr_start`.
    pub fn start(&self) {
        // SAFETY: a live extended QP.
        unsafe { ffi::shim_wr_start(self.qp.raw.as_ptr()) };
    }

    /// Adds a work request between start and complete or abort.
    pub fn add(&self, wr_id: u64, opcode: Opcode, how: Data, length: u32, local: &Mr, remote: &Mr) {
        let qp = self.qp.raw.as_ptr();
        // SAFETY: as above; provider and device check addresses against the keys.
        unsafe {
            ffi::shim_wr_begin(qp, wr_id, opcode as i32, remote.addr(0), remote.rkey());
            ffi::shim_wr_data(qp, how as i32, local.addr(0), length, local.lkey());
        }
    }

    /// `ibv_wr_complete`.
    pub fn complete(&self) -> io::Result<()> {
        // SAFETY: as above.
        check(unsafe { ffi::shim_wr_complete(self.qp.raw.as_ptr()) }).map(drop)
    }

    /// `ibv_wr_abort`.
    pub fn abort(&self) {
        // SAFETY: as above.
        unsafe { ffi::shim_wr_abort(self.qp.raw.as_ptr()) };
    }
}
