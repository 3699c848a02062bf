//! Processes as a tree: children below their parent, ranks of one launcher side by side.

use std::collections::{HashMap, HashSet};

use rdmatop_model::snapshot::ProcessRow;

use super::table::{Branch, Entry, Line};

/// Deeper rows are drawn at this depth.
const DEEPEST: u8 = 8;

/// The rows of `sorted` with relatives together. A family stands where its first row in `sorted` stands.
pub(super) fn grow(processes: &[ProcessRow], sorted: &[Entry]) -> Vec<Entry> {
    let by_pid: HashMap<u32, usize> = sorted
        .iter()
        .filter_map(|e| Some((processes[e.at].pid?, e.at)))
        .collect();
    let parent = |at: usize| {
        let p = &processes[at];
        p.ppid
            .and_then(|ppid| by_pid.get(&ppid).copied())
            .filter(|parent| *parent != at)
    };
    let mut children: HashMap<usize, Vec<usize>> = HashMap::new();
    // Ranks share a launcher (mpirun, slurmstepd) that has no RDMA objects and therefore no row.
    let mut groups: HashMap<u32, Vec<usize>> = HashMap::new();
    for entry in sorted {
        match (parent(entry.at), processes[entry.at].ppid) {
            (Some(parent), _) => children.entry(parent).or_default().push(entry.at),
            // Everything that was orphaned is a child of init, which makes it no family.
            (None, Some(ppid)) if ppid > 1 => groups.entry(ppid).or_default().push(entry.at),
            _ => {}
        }
    }
    let mut out = Vec::with_capacity(sorted.len());
    let mut seen = HashSet::new();
    for entry in sorted {
        if parent(entry.at).is_some() || seen.contains(&entry.at) {
            continue;
        }
        let group = processes[entry.at]
            .ppid
            .and_then(|ppid| groups.get(&ppid))
            .filter(|g| g.len() > 1);
        let members = group.map_or_else(|| vec![entry.at], Clone::clone);
        for (place, at) in members.iter().enumerate() {
            let line = match (members.len(), place) {
                (1, _) => Line::None,
                (_, 0) => Line::First,
                (n, p) if p + 1 == n => Line::Last,
                _ => Line::Middle,
            };
            descend(*at, Branch { depth: 0, line }, &children, &mut seen, &mut out);
        }
    }
    // Parents cannot form a cycle, but /proc is read at different times; no row may get lost by that.
    for entry in sorted {
        descend(entry.at, Branch::default(), &HashMap::new(), &mut seen, &mut out);
    }
    out
}

fn descend(
    at: usize,
    branch: Branch,
    children: &HashMap<usize, Vec<usize>>,
    seen: &mut HashSet<usize>,
    out: &mut Vec<Entry>,
) {
    if !seen.insert(at) {
        return;
    }
    out.push(Entry { at, branch });
    let Some(below) = children.get(&at) else { return };
    for (place, child) in below.iter().enumerate() {
        let line = if place + 1 == below.len() {
            Line::Last
        } else {
            Line::Middle
        };
        let depth = (branch.depth + 1).min(DEEPEST);
        descend(*child, Branch { depth, line }, children, seen, out);
    }
}
