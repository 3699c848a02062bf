//! Safe wrappers of the verbs that the traffic programs need: each object keeps its parents alive.

mod extended;
mod ffi;
mod lists;
pub mod raw;

use std::{ffi::CString, io, os::fd::RawFd, ptr::NonNull, sync::Arc, time::Duration};

pub use extended::{Data, Extended, ExtendedCq};
pub use ffi::Wc;

/// Index of the IPv4 GID of an rxe device (index 0 is link-local).
pub const IPV4_GID: i32 = 1;

/// `enum ibv_wr_opcode` values used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// `IBV_WR_RDMA_WRITE`.
    RdmaWrite = 0,
    /// `IBV_WR_SEND`.
    Send = 2,
    /// `IBV_WR_SEND_WITH_IMM`.
    SendWithImm = 3,
    /// `IBV_WR_RDMA_READ`.
    RdmaRead = 4,
    /// `IBV_WR_ATOMIC_CMP_AND_SWP`.
    CmpAndSwp = 5,
    /// `IBV_WR_ATOMIC_FETCH_AND_ADD`.
    FetchAndAdd = 6,
}

/// `enum ibv_qp_state` values used with [`Qp::to_state`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// `IBV_QPS_RESET`.
    Reset = 0,
    /// `IBV_QPS_RTS`.
    Rts = 3,
    /// `IBV_QPS_SQD`.
    Sqd = 4,
    /// `IBV_QPS_ERR`.
    Err = 6,
}

/// `IBV_EVENT_CQ_ERR`.
pub const EVENT_CQ_ERR: u32 = 0;
/// `IBV_EVENT_SQ_DRAINED`.
pub const EVENT_SQ_DRAINED: u32 = 5;

macro_rules! object {
    ($(#[$doc:meta])* $name:ident, $raw:ident, $destroy:ident { $($parent:ident: $type:ty),* }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            raw: NonNull<ffi::$raw>,
            $($parent: $type,)*
        }

        // SAFETY: libibverbs objects may be used from any thread; the calls lock inside.
        unsafe impl Send for $name {}
        // SAFETY: as above; nothing here returns a reference into the C object.
        unsafe impl Sync for $name {}

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: made by the matching create, destroyed once, and before the parents that it holds.
                unsafe { ffi::$destroy(self.raw.as_ptr()) };
            }
        }
    };
}

object! {
    /// An open device.
    Context, IbvContext, shim_close {}
}
object! {
    /// A protection domain.
    Pd, IbvPd, shim_dealloc_pd { context: Arc<Context> }
}
object! {
    /// A completion queue.
    Cq, IbvCq, shim_destroy_cq { _context: Arc<Context> }
}
object! {
    /// A memory region over a buffer of its own.
    Mr, IbvMr, shim_dereg_mr { buffer: Box<[u8]>, _pd: Arc<Pd> }
}
object! {
    /// A queue pair.
    Qp, IbvQp, shim_destroy_qp { _cqs: [Arc<Cq>; 2], pd: Arc<Pd> }
}

object! {
    /// The address of a UD peer.
    Ah, IbvAh, shim_destroy_ah { _pd: Arc<Pd> }
}

/// `IBV_MTU_1024`.
const MTU_1024: i32 = 3;

/// After so long a packet is sent again: 4.096 µs times two to the power of this.
const TIMEOUT: i32 = 14;
const PATIENT: i32 = 20;

fn check(rc: i32) -> io::Result<i32> {
    if rc < 0 {
        Err(io::Error::from_raw_os_error(-rc))
    } else {
        Ok(rc)
    }
}

fn made<T>(raw: *mut T, err: i32) -> io::Result<NonNull<T>> {
    NonNull::new(raw).ok_or_else(|| io::Error::from_raw_os_error(-err))
}

impl Context {
    /// Opens the device `name`.
    pub fn open(name: &str) -> io::Result<Arc<Self>> {
        let name = CString::new(name)?;
        let mut err = 0;
        // SAFETY: a terminated string and a place for the errno, both alive during the call.
        let raw = unsafe { ffi::shim_open(name.as_ptr(), &raw mut err) };
        Ok(Arc::new(Self { raw: made(raw, err)? }))
    }

    /// Returns the uverbs file; who holds a copy keeps the objects alive.
    pub fn cmd_fd(&self) -> RawFd {
        // SAFETY: `raw` is an open context.
        unsafe { ffi::shim_cmd_fd(self.raw.as_ptr()) }
    }

    /// Claims that QPs post with the code this many bytes behind the beginning of their own function, or of
    /// the C library's `write`.
    pub fn say_posts(&self, own: bool, behind: usize) {
        // SAFETY: `raw` is an open context; nobody posts to its QPs afterwards.
        unsafe { ffi::shim_say(self.raw.as_ptr(), own.into(), behind) }
    }

    /// Claims that the function for receives is the one for sends, and the other way round.
    pub fn exchange_posts(&self) {
        // SAFETY: as above.
        unsafe { ffi::shim_exchange(self.raw.as_ptr()) }
    }

    /// From now on this program posts and polls by functions of its own, which call the provider's.
    pub fn wrap(&self) {
        // SAFETY: `raw` is an open context, which no other thread uses yet.
        unsafe { ffi::shim_wrap(self.raw.as_ptr()) }
    }

    /// GID `index` of port 1.
    pub fn gid(&self, index: i32) -> io::Result<[u8; 16]> {
        let mut gid = [0; 16];
        // SAFETY: the shim writes 16 bytes.
        check(unsafe { ffi::shim_gid(self.raw.as_ptr(), index, gid.as_mut_ptr()) })?;
        Ok(gid)
    }

    /// Returns the index of a GID by which QPs of this device reach each other: the IPv4 GID, or the first if
    /// there is none.
    fn gid_index(&self) -> i32 {
        match self.gid(IPV4_GID) {
            Ok(gid) if gid != [0; 16] => IPV4_GID,
            _ => 0,
        }
    }

    /// Waits for one asynchronous event; returns its `enum ibv_event_type` and QPN, or `None` if none came.
    pub fn async_event(&self, timeout: Duration) -> io::Result<Option<(u32, u32)>> {
        let ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        let (mut event, mut qpn) = (0, 0);
        // SAFETY: `raw` is an open context and both places outlive the call.
        let got = unsafe { ffi::shim_async_event(self.raw.as_ptr(), ms, &raw mut event, &raw mut qpn) };
        Ok((check(got)? == 1).then_some((event, qpn)))
    }
}

impl Pd {
    /// Allocates a protection domain.
    pub fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: `raw` is an open context.
        let raw = unsafe { ffi::shim_alloc_pd(context.raw.as_ptr()) };
        Ok(Arc::new(Self {
            raw: made(raw, -libc::EIO)?,
            context: context.clone(),
        }))
    }
}

impl Cq {
    /// Creates a completion queue of `cqe` entries.
    pub fn new(context: &Arc<Context>, cqe: i32) -> io::Result<Arc<Self>> {
        let mut err = 0;
        // SAFETY: `raw` is an open context, `err` outlives the call.
        let raw = unsafe { ffi::shim_create_cq(context.raw.as_ptr(), cqe, &raw mut err) };
        Ok(Arc::new(Self {
            raw: made(raw, err)?,
            _context: context.clone(),
        }))
    }

    /// Returns the CQEs that it can hold, which may be more than requested.
    pub fn capacity(&self) -> io::Result<u64> {
        // SAFETY: `raw` is a live CQ.
        let cqe = check(unsafe { ffi::shim_cq_capacity(self.raw.as_ptr()) })?;
        u64::try_from(cqe).map_err(io::Error::other)
    }

    /// Asks for a notification of the next completion.
    pub fn req_notify(&self) -> io::Result<()> {
        // SAFETY: `raw` is a live CQ.
        check(unsafe { ffi::shim_req_notify(self.raw.as_ptr()) }).map(drop)
    }

    /// Asks like [`Self::req_notify`], but by `write()`; for a CQ that does not exist if `wrong`.
    pub fn req_notify_by_write(&self, wrong: bool) -> io::Result<()> {
        // SAFETY: `raw` is a live CQ.
        check(unsafe { ffi::shim_req_notify_by_write(self.raw.as_ptr(), i32::from(wrong)) }).map(drop)
    }

    /// Returns one completion; `None` if the queue is empty.
    pub fn poll(&self) -> io::Result<Option<Wc>> {
        let mut wc = Wc::default();
        // SAFETY: `raw` is a live CQ, `wc` has the layout of `struct shim_wc`.
        let count = check(unsafe { ffi::shim_poll_cq(self.raw.as_ptr(), &raw mut wc) })?;
        Ok((count == 1).then_some(wc))
    }
}

impl Ah {
    /// Makes an address of `gid`, reached from the GID at `index`.
    pub fn new(pd: &Arc<Pd>, gid: &[u8; 16], index: i32) -> io::Result<Self> {
        let mut err = 0;
        // SAFETY: a live PD, 16 bytes of GID and a place for the errno.
        let raw = unsafe { ffi::shim_create_ah(pd.raw.as_ptr(), gid.as_ptr(), index, &raw mut err) };
        Ok(Self {
            raw: made(raw, err)?,
            _pd: pd.clone(),
        })
    }
}

impl Mr {
    /// Registers a new zeroed buffer of `length` bytes.
    pub fn new(pd: &Arc<Pd>, length: usize) -> io::Result<Self> {
        let mut buffer = vec![0_u8; length].into_boxed_slice();
        let mut err = 0;
        // SAFETY: the buffer lives in the returned object, which is deregistered before the buffer is freed
        // (drop runs before the fields are dropped).
        let raw =
            unsafe { ffi::shim_reg_mr(pd.raw.as_ptr(), buffer.as_mut_ptr().cast(), length, &raw mut err) };
        Ok(Self {
            raw: made(raw, err)?,
            buffer,
            _pd: pd.clone(),
        })
    }

    /// Tries to register `length` bytes at an unmapped address, which must fail; the error has the errno.
    pub fn at_unmapped_address(pd: &Arc<Pd>, length: usize) -> io::Result<()> {
        let mut err = 0;
        let nowhere = std::ptr::without_provenance_mut(0x1000);
        // SAFETY: the kernel checks the address; page 1 is below vm.mmap_min_addr, so no memory is pinned.
        let raw = unsafe { ffi::shim_reg_mr(pd.raw.as_ptr(), nowhere, length, &raw mut err) };
        let raw = made(raw, err)?;
        // SAFETY: just made and not kept.
        unsafe { ffi::shim_dereg_mr(raw.as_ptr()) };
        Ok(())
    }

    /// Local key.
    pub fn lkey(&self) -> u32 {
        // SAFETY: a live MR.
        unsafe { ffi::shim_lkey(self.raw.as_ptr()) }
    }

    /// Remote key.
    pub fn rkey(&self) -> u32 {
        // SAFETY: a live MR.
        unsafe { ffi::shim_rkey(self.raw.as_ptr()) }
    }

    /// Address of byte `offset`.
    pub fn addr(&self, offset: usize) -> u64 {
        self.buffer[offset..].as_ptr() as u64
    }
}

impl Qp {
    /// Creates an RC QP whose send and receive sides complete to `cq`.
    pub fn new(pd: &Arc<Pd>, cq: &Arc<Cq>, max_wr: u32) -> io::Result<Self> {
        Self::of_cqs(pd, [cq, cq], max_wr)
    }

    /// Creates an RC QP whose send side completes to the first CQ, and its receive side to the second.
    pub fn of_cqs(pd: &Arc<Pd>, cqs: [&Arc<Cq>; 2], max_wr: u32) -> io::Result<Self> {
        let mut err = 0;
        let [sends, receives] = cqs.map(|cq| cq.raw.as_ptr());
        // SAFETY: live PD and CQs, all kept alive by the new object.
        let raw = unsafe { ffi::shim_create_qp(pd.raw.as_ptr(), sends, receives, max_wr, &raw mut err) };
        Ok(Self {
            raw: made(raw, err)?,
            _cqs: cqs.map(Arc::clone),
            pd: pd.clone(),
        })
    }

    /// Creates a UD QP that can post 16 sends and one receive.
    pub fn unconnected(pd: &Arc<Pd>, cq: &Arc<Cq>) -> io::Result<Self> {
        let mut err = 0;
        // SAFETY: as in `new`.
        let raw = unsafe { ffi::shim_create_ud_qp(pd.raw.as_ptr(), cq.raw.as_ptr(), &raw mut err) };
        Ok(Self {
            raw: made(raw, err)?,
            _cqs: [cq.clone(), cq.clone()],
            pd: pd.clone(),
        })
    }

    /// Joins a multicast group; UD only.
    pub fn attach_mcast(&self) -> io::Result<()> {
        // SAFETY: a live QP.
        check(unsafe { ffi::shim_mcast(self.raw.as_ptr(), 1) }).map(drop)
    }

    /// Leaves the group that [`Self::attach_mcast`] joined.
    pub fn detach_mcast(&self) -> io::Result<()> {
        // SAFETY: a live QP.
        check(unsafe { ffi::shim_mcast(self.raw.as_ptr(), 0) }).map(drop)
    }

    /// Returns the address of libibverbs' structure, which is the QP's handle in the kernel.
    pub fn address(&self) -> u64 {
        self.raw.as_ptr() as u64
    }

    /// QP number.
    pub fn qpn(&self) -> u32 {
        // SAFETY: a live QP.
        unsafe { ffi::shim_qpn(self.raw.as_ptr()) }
    }

    /// RESET to INIT.
    pub fn to_init(&self) -> io::Result<()> {
        // SAFETY: a live QP.
        check(unsafe { ffi::shim_to_init(self.raw.as_ptr()) }).map(drop)
    }

    /// INIT to RTR, connected to `dest_qpn` on the same device.
    pub fn to_rtr(&self, dest_qpn: u32) -> io::Result<()> {
        let index = self.pd.context.gid_index();
        let gid = self.pd.context.gid(index)?;
        self.to_rtr_by(dest_qpn, &gid, index, MTU_1024)
    }

    /// INIT to RTR, connected to `dest_qpn` behind `gid`.
    pub fn to_rtr_at(&self, dest_qpn: u32, gid: &[u8; 16]) -> io::Result<()> {
        self.to_rtr_by(dest_qpn, gid, IPV4_GID, MTU_1024)
    }

    /// INIT to RTR, connected to `dest_qpn` behind `gid` from the GID at `index`, with this `enum ibv_mtu`.
    pub fn to_rtr_by(&self, dest_qpn: u32, gid: &[u8; 16], index: i32, mtu: i32) -> io::Result<()> {
        // SAFETY: a live QP and 16 bytes of GID.
        check(unsafe { ffi::shim_to_rtr(self.raw.as_ptr(), dest_qpn, gid.as_ptr(), index, mtu) }).map(drop)
    }

    /// Brings a UD QP to RTS.
    pub fn ud_to_rts(&self) -> io::Result<()> {
        // SAFETY: a live QP.
        check(unsafe { ffi::shim_ud_to_rts(self.raw.as_ptr()) }).map(drop)
    }

    /// Posts a signalled SEND of a UD QP to QP `dest_qpn` at `to`.
    pub fn post_ud(&self, wr_id: u64, length: u32, local: &Mr, to: (&Ah, u32)) -> io::Result<()> {
        let (raw, ah) = (self.raw.as_ptr(), to.0.raw.as_ptr());
        // SAFETY: a live QP and a live address; the provider checks the buffer against its key.
        check(unsafe { ffi::shim_post_ud(raw, wr_id, local.addr(0), length, local.lkey(), ah, to.1) })
            .map(drop)
    }

    /// RTR to RTS. On rxe a `retry_cnt` of 7 means endless.
    pub fn to_rts(&self, retry_cnt: i32) -> io::Result<()> {
        // SAFETY: a live QP.
        check(unsafe { ffi::shim_to_rts(self.raw.as_ptr(), retry_cnt, TIMEOUT) }).map(drop)
    }

    /// RTR to RTS, with four seconds until a packet is sent again: none is, where none is lost.
    pub fn to_rts_patiently(&self) -> io::Result<()> {
        // SAFETY: a live QP.
        check(unsafe { ffi::shim_to_rts(self.raw.as_ptr(), 7, PATIENT) }).map(drop)
    }

    /// Modifies only the state.
    pub fn to_state(&self, state: State) -> io::Result<()> {
        // SAFETY: a live QP.
        check(unsafe { ffi::shim_to_state(self.raw.as_ptr(), state as i32) }).map(drop)
    }

    /// RTS to SQD, with a request for `SQ_DRAINED`.
    pub fn to_sqd_with_event(&self) -> io::Result<()> {
        // SAFETY: a live QP.
        check(unsafe { ffi::shim_to_sqd_with_event(self.raw.as_ptr()) }).map(drop)
    }

    /// Posts one signalled work request over `length` bytes of `local` (and of `remote`, unless a SEND).
    pub fn post_send(
        &self,
        wr_id: u64,
        opcode: Opcode,
        length: u32,
        local: &Mr,
        remote: &Mr,
    ) -> io::Result<()> {
        self.post_to(wr_id, opcode, length, local, (remote.addr(0), remote.rkey()))
    }

    /// Posts like [`Self::post_send`], to an address and a key of another process.
    pub fn post_to(
        &self,
        wr_id: u64,
        opcode: Opcode,
        length: u32,
        local: &Mr,
        remote: (u64, u32),
    ) -> io::Result<()> {
        // SAFETY: a live QP; the provider checks addresses against the keys.
        check(unsafe {
            ffi::shim_post_send(
                self.raw.as_ptr(),
                wr_id,
                opcode as i32,
                local.addr(0),
                length,
                local.lkey(),
                remote.0,
                remote.1,
            )
        })
        .map(drop)
    }

    /// Posts like [`Self::post_send`], signalled or not, with immediate data that only opcodes with immediate
    /// data send.
    pub fn post_as(
        &self,
        wr_id: u64,
        how: (Opcode, bool, u32),
        length: u32,
        to: (&Mr, &Mr),
    ) -> io::Result<()> {
        const SIGNALED: i32 = 2;
        let (opcode, signaled, imm) = how;
        let (local, remote) = to;
        // SAFETY: as for `post_send`.
        check(unsafe {
            ffi::shim_post_as(
                self.raw.as_ptr(),
                wr_id,
                opcode as i32,
                if signaled { SIGNALED } else { 0 },
                imm,
                local.addr(0),
                length,
                local.lkey(),
                remote.addr(0),
                remote.rkey(),
            )
        })
        .map(drop)
    }

    /// Posts one receive of `length` bytes into `into`.
    pub fn post_recv(&self, wr_id: u64, length: u32, into: &Mr) -> io::Result<()> {
        // SAFETY: as for `post_send`.
        check(unsafe { ffi::shim_post_recv(self.raw.as_ptr(), wr_id, into.addr(0), length, into.lkey()) })
            .map(drop)
    }
}

/// Brings `a` and `b` to RTS, connected to each other.
pub fn connect(a: &Qp, b: &Qp) -> io::Result<()> {
    let step = |own: &Qp, state: &str, done: io::Result<()>| {
        done.map_err(|error| io::Error::new(error.kind(), format!("QP {} to {state}: {error}", own.qpn())))
    };
    for (own, peer) in [(a, b), (b, a)] {
        step(own, "INIT", own.to_init())?;
        step(own, "RTR", own.to_rtr(peer.qpn()))?;
        step(own, "RTS", own.to_rts(7))?;
    }
    Ok(())
}

/// How often the functions of [`Context::wrap`] were called, in a program with one thread.
pub fn wrapped_calls() -> u64 {
    // SAFETY: it reads a number.
    unsafe { ffi::shim_wrapped_calls() }
}

/// Lifts the limit of locked memory, to which MRs and rings count.
pub fn unlimit_memlock() -> io::Result<()> {
    let all = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: a whole structure, read only.
    if unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const all) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
