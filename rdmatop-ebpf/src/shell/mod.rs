//! The programs themselves: thin, one a hook. What each gives and why it is needed: rdmatop's probe plan.
mod kprobe;
mod tracepoint;
