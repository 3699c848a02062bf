//! Return codes as text.

use rdmatop_base::errno::name;

/// A return code as text: `-22 EINVAL`, or the number alone when it has no name.
pub fn show(rc: i32) -> String {
    // The kernel's own numbers above 511: restarts and a few errors (include/linux/errno.h).
    let own = match rc {
        -513 => Some("ERESTARTNOINTR"),
        -514 => Some("ERESTARTNOHAND"),
        -516 => Some("ERESTART_RESTARTBLOCK"),
        -517 => Some("EPROBE_DEFER"),
        -524 => Some("ENOTSUPP"),
        _ => None,
    };
    match own.or_else(|| u32::try_from(rc.checked_neg()?).ok().and_then(name)) {
        Some(name) => format!("{rc} {name}"),
        None => rc.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_has_its_name_and_an_unknown_one_keeps_its_number() {
        assert_eq!(show(-22), "-22 EINVAL");
        assert_eq!(show(-110), "-110 ETIMEDOUT");
        assert_eq!(show(-524), "-524 ENOTSUPP");
        assert_eq!(show(-4000), "-4000");
        assert_eq!(show(i32::MIN), "-2147483648");
        assert_eq!(show(1), "1");
    }
}
