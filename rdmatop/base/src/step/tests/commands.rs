//! The commands in the text of a remedy. The kernel test of remedies compiles this file too.

/// What a command begins with. Words that sentences have as well are here with their first option.
const STARTS: &[&str] = &[
    "capsh ",
    "cat ",
    "dcb app ",
    "dcb pfc ",
    "docker ",
    "echo ",
    "ethtool ",
    "free -",
    "grep ",
    "ibstat ",
    "ibv_devinfo ",
    "ip ",
    "kill ",
    "lspci ",
    "mlxlink ",
    "nvidia-smi",
    "ping -",
    "printf ",
    "prlimit ",
    "ps -",
    "rdma ",
    "rdmatop ",
    "ss -",
    "sudo ",
    "sysctl ",
    "tc ",
    "top ",
    "ucx_info ",
    "ulimit ",
];

/// What comes behind a command.
const ENDS: &[&str] = &[
    "   # ",
    ", ",
    "; ",
    " (",
    "`",
    " that file",
    " -> ",
    ". Where ",
    " in the ",
    " lists ",
    " on the ",
    " shows ",
    " to find ",
];

/// The commands of a template: from the name of a program to the end of the command, which a sentence may
/// follow. What a reading of its result says after `-> ` may be one too.
pub(super) fn commands(template: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = template;
    while let Some(at) = rest.char_indices().map(|(at, _)| at).find(|at| {
        let begins = rest[..*at].chars().next_back().is_none_or(|c| " `\"".contains(c));
        begins && STARTS.iter().any(|start| rest[*at..].starts_with(start))
    }) {
        let command = &rest[at..];
        let end = ENDS.iter().filter_map(|end| command.find(end)).min();
        let end = end.unwrap_or(command.len());
        out.push(command[..end].trim_end().trim_end_matches('.'));
        rest = &command[end..];
    }
    out
}
