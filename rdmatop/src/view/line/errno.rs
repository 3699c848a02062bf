//! Names of errnos, as errno(3) and include/uapi/asm-generic/errno*.h have them.

macro_rules! errnos {
    ($($name:ident),* $(,)?) => {
        /// The name of a positive errno; `None` for one that this table does not have.
        pub fn name(errno: i32) -> Option<&'static str> {
            match errno {
                $(libc::$name => Some(stringify!($name)),)*
                // A signal ended the call: the kernel's own, include/linux/errno.h.
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

/// A return code for a human: `-22 EINVAL`, or the bare number when it has no name.
pub fn show(rc: i32) -> String {
    // Kernel functions give restarts and a few errors of their own above 511 (include/linux/errno.h).
    let own = match rc {
        -513 => Some("ERESTARTNOINTR"),
        -514 => Some("ERESTARTNOHAND"),
        -516 => Some("ERESTART_RESTARTBLOCK"),
        -517 => Some("EPROBE_DEFER"),
        -524 => Some("ENOTSUPP"),
        _ => None,
    };
    match own.or_else(|| rc.checked_neg().and_then(name)) {
        Some(name) => format!("{rc} {name}"),
        None => rc.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_has_its_name_and_a_stranger_keeps_its_number() {
        assert_eq!(show(-22), "-22 EINVAL");
        assert_eq!(show(-110), "-110 ETIMEDOUT");
        assert_eq!(show(-524), "-524 ENOTSUPP");
        assert_eq!(show(-4000), "-4000");
        assert_eq!(show(i32::MIN), "-2147483648");
        assert_eq!(show(1), "1");
    }
}
