//! Names of NCCL's variables: the present ones and earlier ones.

use super::jobs;
use crate::facts::Facts;
use crate::line::Lines;
use rdmatop_base::step::step;
use rdmatop_base::variables::NCCL;

/// No longer read, with their replacements.
const OLD: [(&str, &str); 6] = [
    ("NCCL_IB_GDR_LEVEL", "NCCL_NET_GDR_LEVEL"),
    ("NCCL_IB_CUDA_SUPPORT", "NCCL_NET_GDR_LEVEL"),
    ("NCCL_LL_THRESHOLD", "NCCL_PROTO"),
    ("NCCL_TREE_THRESHOLD", "NCCL_ALGO"),
    ("NCCL_SINGLE_RING_THRESHOLD", "NCCL_MIN_NCHANNELS"),
    ("NCCL_RINGS", "NCCL_GRAPH_FILE"),
];

pub(crate) fn names(facts: &Facts, out: &mut Lines) {
    for job in jobs(facts) {
        for (name, _) in job.environ.iter().filter(|(name, _)| name.starts_with("NCCL_")) {
            let subject = &job.subject;
            let ignored = "NCCL ignores what it does not know, without a word.";
            if let Some((_, new)) = OLD.iter().find(|(old, _)| old == name) {
                out.warn(
                    subject,
                    format!("{subject}: {name} is an old name that NCCL reads no more"),
                    ignored,
                    step!("start the job with {} instead", *new),
                );
            } else if let Some(meant) = misspelt(name) {
                out.warn(
                    subject,
                    format!("{subject}: {name} is not a variable of NCCL; NCCL_{meant} is"),
                    ignored,
                    step!("start the job with NCCL_{} instead", meant),
                );
            }
        }
    }
}

/// The known variable that is close to an unknown name, without its `NCCL_`.
fn misspelt(name: &str) -> Option<&'static str> {
    let short = name.strip_prefix("NCCL_")?;
    let known = || NCCL.split_ascii_whitespace();
    // Short names are close to each other. A process may have very long ones.
    if !(5..=64).contains(&short.len()) || known().any(|known| known == short) {
        return None;
    }
    let best = known()
        .filter(|known| known.len() >= 5)
        .map(|known| (strsim::osa_distance(short, known), known))
        .min()?;
    (best.0 <= 2).then_some(best.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_found_and_a_right_or_foreign_one_is_not() {
        for (name, meant) in [
            ("NCCL_IB_HCAS", "NCCL_IB_HCA"),
            ("NCCL_SOCKET_IFNMAE", "NCCL_SOCKET_IFNAME"),
            ("NCCL_IB_GIDINDEX", "NCCL_IB_GID_INDEX"),
            ("NCCL_IB_DISABLED", "NCCL_IB_DISABLE"),
        ] {
            assert_eq!(misspelt(name), meant.strip_prefix("NCCL_"));
        }
        for name in [
            "NCCL_IB_HCA",
            "NCCL_DEBUG",
            "NCCL_DEBUG_FILE",
            "NCCL_MY_PLUGIN_SETTING",
            "NCCL_FASTRAK_X",
            "NCCL_LIBDIR",
            "NCCL_LIB_DIR",
            "PATH",
            "NCCL_",
        ] {
            assert_eq!(misspelt(name), None, "{name}");
        }
        let long = format!("NCCL_{}", "A".repeat(10_000));
        assert_eq!(misspelt(&long), None);
    }

    #[test]
    fn an_old_name_is_not_also_a_known_one() {
        for (old, new) in OLD {
            let known = |name: &str| {
                NCCL.split_ascii_whitespace()
                    .any(|known| format!("NCCL_{known}") == name)
            };
            assert!(!known(old) && known(new), "{old} {new}");
        }
    }
}
