//! Names of errno values, as errno(3) spells them.

macro_rules! names {
    ($($name:ident)*) => {
        /// The name of a (positive) errno.
        pub(super) fn name(errno: u32) -> Option<&'static str> {
            match i32::try_from(errno).ok()? {
                $(libc::$name => Some(stringify!($name)),)*
                // A signal ended the call: the kernel's own, include/linux/errno.h.
                512 => Some("ERESTARTSYS"),
                _ => None,
            }
        }
    };
}

// What verbs, rdma_cm and the memory below them return.
names! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST EXDEV ENODEV
    ENOTDIR EINVAL ENFILE EMFILE ENOTTY EFBIG ENOSPC ERANGE EDEADLK ENOSYS ENODATA ETIME EPROTO EOVERFLOW
    EBADMSG EOPNOTSUPP EPROTONOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH
    ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH
    EALREADY EINPROGRESS ESTALE ECANCELED EKEYREJECTED EMSGSIZE ENOPROTOOPT EREMOTEIO
}

/// The name, or the number where there is none.
pub(super) fn text(errno: u32) -> String {
    name(errno).map_or_else(|| format!("errno {errno}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_errno_has_its_name_and_an_unknown_one_its_number() {
        assert_eq!(text(22), "EINVAL");
        assert_eq!(text(12), "ENOMEM");
        assert_eq!(text(9999), "errno 9999");
    }
}
