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
    // Short names are close to each other.
    if short.len() < 5 || known().any(|known| known == short) {
        return None;
    }
    let best = known()
        .filter(|known| known.len() >= 5)
        .map(|known| (distance(short.as_bytes(), known.as_bytes()), known))
        .min()?;
    (best.0 <= 2).then_some(best.1)
}

/// Letters to add, drop, change or swap; 3 stands for more than 2.
fn distance(a: &[u8], b: &[u8]) -> usize {
    const FAR: usize = 3;
    if a.len().abs_diff(b.len()) >= FAR || a.len() > 64 {
        return FAR;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let mut best = (last[j] + usize::from(x != y))
                .min(last[j + 1] + 1)
                .min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()].min(FAR)
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
    fn distances_are_right() {
        for (a, b, far) in [
            ("", "", 0),
            ("AB", "BA", 1),
            ("ABC", "AC", 1),
            ("ABC", "ABCD", 1),
            ("ABC", "XYC", 2),
            ("ABC", "XYZ", 3),
        ] {
            assert_eq!(distance(a.as_bytes(), b.as_bytes()), far, "{a} {b}");
        }
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
