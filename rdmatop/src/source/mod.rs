//! Where numbers come from. Sources know the outside world and nothing of the model or of views.
pub mod netlink;
