//! A QP that posts by the `ibv_wr_*` calls, and a CQ that is read by `ibv_start_poll`.

use std::{io, sync::Arc};

use super::{Context, Cq, Mr, Opcode, Pd, Qp, Wc, check, ffi, made};

/// How a work request is given its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// `ibv_wr_set_sge`.
    Sge = 0,
    /// `ibv_wr_set_inline_data`.
    Inline = 1,
    /// `ibv_wr_set_sge_list`, two halves.
    List = 2,
    /// `ibv_wr_set_inline_data_list`, two halves.
    InlineList = 3,
}

/// The CQ. A QP can have it as any other.
#[derive(Debug)]
pub struct ExtendedCq {
    /// The CQ as the creation of QPs needs it.
    pub cq: Arc<Cq>,
}

impl ExtendedCq {
    /// Creates it, of `cqe` entries.
    pub fn new(context: &Arc<Context>, cqe: i32) -> io::Result<Self> {
        let mut err = 0;
        // SAFETY: `raw` is an open context, `err` outlives the call.
        let raw = unsafe { ffi::shim_create_extended_cq(context.raw.as_ptr(), cqe, &raw mut err) };
        let cq = Cq {
            raw: made(raw, err)?,
            _context: context.clone(),
        };
        Ok(Self { cq: Arc::new(cq) })
    }

    /// Fills `room`, or takes nothing if there is nothing: `ibv_start_poll`, and `ibv_next_poll` for the
    /// others, which must be there. With `is_last` once more, and the CQ cannot be used after that (see
    /// shim.c).
    pub fn take(&self, room: &mut [Wc], is_last: bool) -> io::Result<usize> {
        let most = i32::try_from(room.len()).unwrap_or(i32::MAX);
        let cq = self.cq.raw.as_ptr();
        // SAFETY: a live CQ of these calls, and room for so many.
        let count = check(unsafe { ffi::shim_take(cq, room.as_mut_ptr(), most, i32::from(is_last)) })?;
        usize::try_from(count).map_err(io::Error::other)
    }
}

/// The QP; it is an ordinary one too.
#[derive(Debug)]
pub struct Extended {
    /// The QP as all calls but sends need it.
    pub qp: Qp,
}

impl Extended {
    /// Creates it, of `max_wr` sends and no receives.
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
        // SAFETY: a live QP of these calls.
        unsafe { ffi::shim_wr_start(self.qp.raw.as_ptr()) };
    }

    /// A work request between start and complete or abort.
    pub fn add(&self, wr_id: u64, opcode: Opcode, how: Data, length: u32, local: &Mr, remote: &Mr) {
        let qp = self.qp.raw.as_ptr();
        // SAFETY: as above; the provider and the device check addresses against the keys.
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
