//! Lists of work requests of which the provider accepts only a part.

use std::io;

use super::{Mr, Qp, check, ffi};

impl Qp {
    /// Posts `count` RDMA WRITEs in one list, of `length` bytes, `length` + 1 and so on. The request number
    /// `bad_at`, if given, is invalid. Returns how many the provider accepted.
    pub fn post_list(
        &self,
        count: u32,
        bad_at: Option<u32>,
        length: u32,
        local: &Mr,
        remote: &Mr,
    ) -> io::Result<u32> {
        let bad_at = bad_at.map_or(-1, u32::cast_signed);
        // SAFETY: a live QP; the provider checks addresses against the keys.
        check(unsafe {
            ffi::shim_post_list(
                self.raw.as_ptr(),
                count.cast_signed(),
                bad_at,
                local.addr(0),
                length,
                local.lkey(),
                remote.addr(0),
                remote.rkey(),
            )
        })
        .map(i32::cast_unsigned)
    }

    /// Posts `count` receives in one list. Returns how many the provider accepted.
    pub fn post_recv_list(&self, count: u32, length: u32, into: &Mr) -> io::Result<u32> {
        // SAFETY: as for `post_list`.
        check(unsafe {
            ffi::shim_post_recv_list(
                self.raw.as_ptr(),
                count.cast_signed(),
                into.addr(0),
                length,
                into.lkey(),
            )
        })
        .map(i32::cast_unsigned)
    }
}
