//! The programs themselves: thin, one a hook. What each gives and why it is needed: rdmatop's probe plan.
mod fentry;
mod kprobe;
mod rxe_kprobe;
mod tracepoint;
