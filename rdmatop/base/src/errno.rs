//! Names of errnos, as errno(3) and include/uapi/asm-generic/errno*.h have them.

macro_rules! errnos {
    ($($name:ident),* $(,)?) => {
        /// The name of a positive errno; `None` for one that is not in the table.
        pub fn name(errno: u32) -> Option<&'static str> {
            match i32::try_from(errno).ok()? {
                $(libc::$name => Some(stringify!($name)),)*
                // A signal ended the call. This number is the kernel's own, include/linux/errno.h.
                512 => Some("ERESTARTSYS"),
                _ => None,
            }
        }
    };
}

errnos! {
    EPERM, ENOENT, ESRCH, EINTR, EIO, ENXIO, E2BIG, ENOEXEC, EBADF, ECHILD, EAGAIN, ENOMEM, EACCES, EFAULT, ENOTBLK,
    EBUSY, EEXIST, EXDEV, ENODEV, ENOTDIR, EISDIR, EINVAL, ENFILE, EMFILE, ENOTTY, ETXTBSY, EFBIG, ENOSPC, ESPIPE,
    EROFS, EMLINK, EPIPE, EDOM, ERANGE, EDEADLK, ENAMETOOLONG, ENOLCK, ENOSYS, ENOTEMPTY, ELOOP, ENOMSG, EIDRM,
    ENODATA, ETIME, ENOLINK, ECOMM, EPROTO, EBADMSG, EOVERFLOW, EILSEQ, EUSERS, ENOTSOCK, EDESTADDRREQ, EMSGSIZE,
    EPROTOTYPE, ENOPROTOOPT, EPROTONOSUPPORT, ESOCKTNOSUPPORT, EOPNOTSUPP, EPFNOSUPPORT, EAFNOSUPPORT, EADDRINUSE,
    EADDRNOTAVAIL, ENETDOWN, ENETUNREACH, ENETRESET, ECONNABORTED, ECONNRESET, ENOBUFS, EISCONN, ENOTCONN,
    ESHUTDOWN, ETOOMANYREFS, ETIMEDOUT, ECONNREFUSED, EHOSTDOWN, EHOSTUNREACH, EALREADY, EINPROGRESS, ESTALE,
    EUCLEAN, EREMOTEIO, EDQUOT, ENOMEDIUM, EMEDIUMTYPE, ECANCELED, ENOKEY, EKEYEXPIRED, EKEYREVOKED, EKEYREJECTED,
    EOWNERDEAD, ENOTRECOVERABLE, ERFKILL, EHWPOISON,
}

/// The name, or the number where there is none.
pub fn text(errno: u32) -> String {
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
