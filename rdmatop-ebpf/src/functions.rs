//! Functions that the verifier checks once for each program that contains them.
//!
//! The verifier follows a call to a static function from each of its call sites, in each state that a program
//! can have there, which was up to 61,000 instructions and 18 MB of its memory for one program (measured on
//! Linux 6.12 and 7.2; 7.2 charges this memory to rdmatop's cgroup, 6.12 does not). A global function is
//! checked by itself, for any arguments, and a caller may assume nothing about its result. So these functions
//! take and return integers only.
//!
//! `no_mangle` and `extern "C"` make a function global. They also keep the compiler from removing an argument
//! that has the same value in all calls; BTF would still describe that argument.

use crate::{
    body::{rxe::Rxe, siw::Siw},
    providers::Any,
    slots,
};

/// The global functions of a provider.
pub(crate) trait Functions {
    /// See [`slots::search`].
    fn search(qp: u64, moving: u64) -> u64;
    /// See [`slots::settle`].
    fn settle(qp: u64, moving: u64) -> u64;
    /// See [`slots::adopt`].
    fn adopt(qp: u64) -> u64;
}

macro_rules! functions {
    ($provider:ty: $search:ident, $settle:ident, $adopt:ident) => {
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $search(qp: u64, moving: u64) -> u64 {
            slots::search::<$provider>(qp, moving)
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $settle(qp: u64, moving: u64) -> u64 {
            slots::settle::<$provider>(qp, moving)
        }

        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $adopt(qp: u64) -> u64 {
            slots::adopt::<$provider>(qp)
        }

        impl Functions for $provider {
            #[inline(always)]
            fn search(qp: u64, moving: u64) -> u64 {
                $search(qp, moving)
            }

            #[inline(always)]
            fn settle(qp: u64, moving: u64) -> u64 {
                $settle(qp, moving)
            }

            #[inline(always)]
            fn adopt(qp: u64) -> u64 {
                $adopt(qp)
            }
        }
    };
}

functions!(Any: any_search, any_settle, any_adopt);
functions!(Rxe: rxe_search, rxe_settle, rxe_adopt);
functions!(Siw: siw_search, siw_settle, siw_adopt);
