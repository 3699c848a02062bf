//! Sources: everything that reads the outside world. They know nothing of the model or of views.
pub mod ebpf;
pub mod netlink;
pub mod platform;
pub mod privileges;
pub mod proc;
pub mod root;
pub mod seam;
pub mod sysfs;

#[cfg(test)]
pub(crate) mod fake;
