//! Sources: everything that reads the outside world. They know nothing of the engine or of views; the eBPF side alone
//! speaks in the model's inputs.
pub mod clock;
pub mod ebpf;
pub mod limits;
pub mod netlink;
pub mod platform;
pub mod privileges;
pub mod proc;
pub mod removal;
pub mod root;
pub mod seam;
pub mod sysfs;
pub mod tcp;

#[cfg(test)]
pub(crate) mod fake;
