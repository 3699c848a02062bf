//! The programs: one thin program per hook and way to attach. rdmatop's `loader/hooks/control.rs` and
//! `datapath.rs` say what each is for.

/// Makes the programs at a function's entry: name of the kprobe program, name of the fentry program if there
/// is one, arguments as u64, body. With `always` they run even while counting is off, and `[stack]` names the
/// variable that has the stack pointer.
macro_rules! entry {
    (always $([$stack:ident])? $kprobe:ident($($arg:ident),*) $body:expr) => {
        entry!(@kprobe |ctx| $([$stack])? $kprobe($($arg),*) $body);
    };
    (always $kprobe:ident / $fentry:ident($($arg:ident),*) $body:expr) => {
        entry!(@kprobe |ctx| $kprobe($($arg),*) $body);
        entry!(@fentry $fentry($($arg),*) $body);
    };
    ($kprobe:ident / $fentry:ident($($arg:ident),*) $body:expr) => {
        entry!($kprobe($($arg),*) $body);
        entry!(@fentry $fentry($($arg),*) if $crate::maps::enabled() {
            let _ = $body;
        });
    };
    ($kprobe:ident($($arg:ident),*) $body:expr) => {
        entry!(@kprobe |ctx| $kprobe($($arg),*) if $crate::maps::enabled() {
            #[cfg(feature = "log")]
            aya_log_ebpf::debug!(&ctx, "{} entered", stringify!($kprobe));
            let _ = $body;
        });
    };
    (@kprobe |$ctx:ident| $([$stack:ident])? $kprobe:ident($($arg:ident),*) $body:expr) => {
        #[aya_ebpf::macros::kprobe]
        pub(crate) fn $kprobe($ctx: aya_ebpf::programs::ProbeContext) -> u32 {
            let mut _n = 0;
            $(
                let Some($arg) = $ctx.arg::<u64>(_n) else { return 0 };
                _n += 1;
            )*
            $(let $stack = stack(&$ctx);)?
            let _ = $body;
            0
        }
    };
    (@fentry $fentry:ident($($arg:ident),*) $body:expr) => {
        #[aya_ebpf::macros::fentry]
        pub(crate) fn $fentry(ctx: aya_ebpf::programs::FEntryContext) -> i32 {
            let mut _n = 0;
            $(
                let Some($arg) = $crate::shell::argument(&ctx, _n) else { return 0 };
                _n += 1;
            )*
            let _ = $body;
            0
        }
    };
}

/// Return programs. They run even while counting is off, to remove what the entry program remembered.
macro_rules! ret {
    ($kretprobe:ident($rc:ident) $body:expr) => {
        #[aya_ebpf::macros::kretprobe]
        pub(crate) fn $kretprobe(ctx: aya_ebpf::programs::RetProbeContext) -> u32 {
            let $rc = ctx.ret::<i32>();
            let _ = $body;
            0
        }
    };
    ($kretprobe:ident / $fexit:ident($rc:ident) $body:expr) => {
        ret!($kretprobe($rc) $body);
        #[aya_ebpf::macros::fexit]
        pub(crate) fn $fexit(ctx: aya_ebpf::programs::FExitContext) -> i32 {
            use aya_ebpf::EbpfContext as _;
            let mut rc = 0u64;
            // SAFETY: the helper writes only this one word, and is inlined.
            if unsafe { aya_ebpf::helpers::generated::bpf_get_func_ret(ctx.as_ptr(), &raw mut rc) } == 0 {
                let $rc = rc as i32;
                let _ = $body;
            }
            0
        }
    };
}

mod control;
mod rxe;
mod siw;
mod tracepoint;
mod user;
mod wr;

use aya_ebpf::{EbpfContext, bindings::pt_regs, helpers::generated, programs::ProbeContext};

/// An argument of the function that an fentry or fexit program is attached to. A load from the context would
/// give a typed pointer, with which the verifier allows no arithmetic. The helper returns the same word as a
/// plain number, and the verifier inlines it.
#[inline(always)]
pub(crate) fn argument(ctx: &impl EbpfContext, number: u32) -> Option<u64> {
    let mut value = 0u64;
    // SAFETY: the helper writes only the one word, and refuses a number without an argument.
    let rc = unsafe { generated::bpf_get_func_arg(ctx.as_ptr(), number, &raw mut value) };
    (rc == 0).then_some(value)
}

/// Offsets of the stack pointer and of the instruction pointer in the registers of a kprobe or uprobe. Each
/// architecture names them differently in aya-ebpf; the size of the registers identifies the architecture.
const POINTERS: (usize, usize) = match size_of::<pt_regs>() {
    // x86-64
    168 => (152, 128),
    // arm64
    272 => (248, 256),
    // riscv64
    256 => (16, 0),
    _ => panic!("where the stack pointer is on this machine has to be added"),
};

/// The stack pointer: at the entry of a function, or at its return.
#[inline(always)]
pub(crate) fn stack(ctx: &impl EbpfContext) -> u64 {
    // SAFETY: the register is inside the part of the context that the verifier lets a kprobe read.
    unsafe { ctx.as_ptr().byte_add(POINTERS.0).cast::<u64>().read() }
}

/// The instruction pointer: the function's address.
#[inline(always)]
pub(crate) fn instruction(ctx: &ProbeContext) -> u64 {
    // SAFETY: as in `stack`.
    unsafe { ctx.as_ptr().byte_add(POINTERS.1).cast::<u64>().read() }
}
