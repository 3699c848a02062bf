//! Signals that end the process: the terminal is given back first.
//!
//! Signals that ask for an orderly end (SIGINT, SIGTERM, SIGHUP) go through the loop. SIGPIPE is ignored.
//! SIGKILL cannot be caught. All others that end a process by default are handled here: the handler gives the
//! terminal back, and the process still ends by the signal, so that its parent sees the true reason. The
//! kernel detaches the eBPF programs.

use std::sync::OnceLock;

use libc::{c_int, c_void, sigaction, siginfo_t};

use super::taken::restore;

/// Signals that other processes send, or that a fault causes. Real-time signals are added to them.
const ENDING: [c_int; 18] = [
    libc::SIGQUIT,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGUSR1,
    libc::SIGSEGV,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGSTKFLT,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGSYS,
];

/// The actions before ours. Rust's runtime has some that tell a stack overflow from other faults.
static BEFORE: OnceLock<Vec<(c_int, sigaction)>> = OnceLock::new();

/// Takes the signals over. Ignored ones stay ignored.
pub(super) fn watch() {
    let before = BEFORE.get_or_init(|| {
        let all = ENDING.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX());
        all.filter_map(|signal| {
            // SAFETY: all zeroes is a valid action, and the kernel writes into it.
            let (known, before) = unsafe {
                let mut before = std::mem::zeroed::<sigaction>();
                let known = libc::sigaction(signal, std::ptr::null(), &raw mut before);
                (known == 0, before)
            };
            (known && before.sa_sigaction != libc::SIG_IGN).then_some((signal, before))
        })
        .collect()
    });
    for (signal, _) in before {
        // SAFETY: `ended` has the signature that SA_SIGINFO asks for, and calls only what signal-safety(7)
        // allows. After a stack overflow it runs on the alternate stack, which each Rust thread has.
        unsafe {
            let mut action = std::mem::zeroed::<sigaction>();
            action.sa_sigaction = ended as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(*signal, &raw const action, std::ptr::null_mut());
        }
    }
}

extern "C" fn ended(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    let _ = restore();
    // SAFETY: the kernel gives a siginfo_t with SA_SIGINFO. Codes above 0 are the kernel's own.
    let sent = unsafe { info.as_ref() }.is_none_or(|info| info.si_code <= 0);
    // After a true fault the handler returns; the fault happens again and meets the earlier action.
    let again = !sent && matches!(signal, libc::SIGSEGV | libc::SIGBUS);
    let before = BEFORE.get().filter(|_| again).and_then(|all| {
        let mut all = all.iter();
        all.find_map(|(number, before)| (*number == signal).then_some(*before))
    });
    // SAFETY: all zeroes is SIG_DFL without flags. sigaction(2) and raise(3) are async-signal-safe. The
    // raised signal is blocked until the handler returns.
    unsafe {
        let action = before.unwrap_or_else(|| std::mem::zeroed());
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        if !again {
            libc::raise(signal);
        }
    }
}
