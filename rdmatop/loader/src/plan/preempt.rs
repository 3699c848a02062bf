//! Whether the kernel can preempt one of our programs.
//!
//! A kprobe program runs with preemption off on every kernel. An fentry program is not preempted only if the
//! kernel runs with `preempt=none` or `voluntary`, as Debian's Linux 6.1 and 6.12 do; 7.2 runs with `lazy`.

use rdmatop_model::cause::{CauseId, Obstacle};
use rdmatop_sources::root::Root;

/// Why fentry programs can be preempted; `None` if they cannot.
pub fn why(root: &Root) -> Option<Obstacle> {
    let version = root.line(&root.proc("sys/kernel/version")).unwrap_or_default();
    let modes = root.line(&root.sys("kernel/debug/sched/preempt"));
    let cmdline = root.line(&root.proc("cmdline")).unwrap_or_default();
    let why = of(&version, modes.as_deref(), &cmdline)?;
    Some(Obstacle::new(CauseId::KprobeInstead, why, ""))
}

/// As [`why`], from the kernel's version line (`PREEMPT` if built so, `PREEMPT_DYNAMIC` if the kernel chooses
/// at boot), its list of modes with the present one in brackets, and its command line.
fn of(version: &str, modes: Option<&str>, cmdline: &str) -> Option<String> {
    let built = version
        .split_whitespace()
        .find(|word| word.starts_with("PREEMPT"))?;
    let bracketed = |modes: &str| Some(modes.split_once('(')?.1.split_once(')')?.0.to_owned());
    let asked = || {
        let mut asked = cmdline
            .split_whitespace()
            .filter_map(|word| word.strip_prefix("preempt="));
        asked.next_back().map(str::to_owned)
    };
    let mode = if built == "PREEMPT_DYNAMIC" {
        modes.and_then(bracketed).or_else(asked)
    } else {
        Some("full".to_owned())
    };
    match mode.as_deref() {
        Some("none" | "voluntary") => None,
        Some(mode) => Some(format!(
            "this kernel preempts a program (preempt={mode}) and skips it for other tasks meanwhile"
        )),
        None => Some(
            "whether this kernel preempts programs, and then skips them, is unknown: \
             /sys/kernel/debug/sched/preempt is not readable"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DYNAMIC: &str = "#1 SMP PREEMPT_DYNAMIC Debian 6.12.107-1 (2026-08-29)";

    #[test]
    fn a_kernel_that_is_not_preempted_preempts_no_program() {
        assert_eq!(of("#1 SMP Debian 5.10.0-32", None, ""), None);
        assert_eq!(of(DYNAMIC, Some("none (voluntary) full "), ""), None);
        assert_eq!(of(DYNAMIC, Some("(none) voluntary full"), "preempt=full"), None);
        assert_eq!(of(DYNAMIC, None, "quiet preempt=full preempt=voluntary"), None);
    }

    #[test]
    fn a_preemptible_kernel_and_one_that_hides_it_are_told_apart() {
        let why = |version, modes, cmdline| of(version, modes, cmdline).unwrap();
        assert!(why(DYNAMIC, Some("full (lazy) "), "").contains("preempt=lazy"));
        assert!(why(DYNAMIC, Some("none voluntary (full)"), "preempt=none").contains("preempt=full"));
        assert!(why("#1 SMP PREEMPT_RT Debian", None, "").contains("preempt=full"));
        for modes in [None, Some(""), Some("(")] {
            assert!(why(DYNAMIC, modes, "").contains("unknown"));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(version in "\\PC{0,60}", modes in proptest::option::of("[ a-z()]{0,40}"), cmdline in "\\PC{0,60}") {
            let _ = of(&version, modes.as_deref(), &cmdline);
            let _ = of(DYNAMIC, modes.as_deref(), &cmdline);
        }
    }
}
