//! TCP, the fallback. Jobs on RDMA start over TCP too.

use crate::{facts::Facts, line::Lines, words::bytes};

/// `tcp_rmem`, largest, as Linux sets it on a machine with memory.
pub(crate) const RMEM: u64 = 6_291_456;
/// `tcp_wmem`, largest.
pub(crate) const WMEM: u64 = 4_194_304;
/// `somaxconn` that a job of many ranks needs.
pub(crate) const BACKLOG: u64 = 1024;

pub(crate) fn buffers(facts: &Facts, out: &mut Lines) {
    if facts.hardware().next().is_none() {
        return;
    }
    let (Some(rmem), Some(wmem)) = (facts.tcp.rmem, facts.tcp.wmem) else {
        return;
    };
    if rmem < RMEM || wmem < WMEM {
        out.warn(
            "",
            format!(
                "TCP buffers grow to {} (receive) and {} (send) only",
                bytes(rmem),
                bytes(wmem)
            ),
            "A job that falls back to TCP is then even slower than it has to be.",
            // These are RMEM and WMEM. What is larger stays as it is.
            match (rmem < RMEM, wmem < WMEM) {
                (true, true) => {
                    "sudo sysctl -w net.ipv4.tcp_rmem='4096 131072 6291456' net.ipv4.tcp_wmem='4096 16384 4194304'   # until the next boot"
                }
                (true, false) => "sudo sysctl -w net.ipv4.tcp_rmem='4096 131072 6291456'   # until the next boot",
                (false, _) => "sudo sysctl -w net.ipv4.tcp_wmem='4096 16384 4194304'   # until the next boot",
            },
        );
    } else {
        out.pass(
            "",
            format!(
                "TCP buffers grow to {} (receive) and {} (send)",
                bytes(rmem),
                bytes(wmem)
            ),
        );
    }
}

pub(crate) fn backlog(facts: &Facts, out: &mut Lines) {
    if facts.hardware().next().is_none() {
        return;
    }
    match facts.tcp.backlog {
        None => {}
        Some(backlog) if backlog < BACKLOG => out.warn(
            "",
            format!("only {backlog} ranks can wait to connect (net.core.somaxconn)"),
            "A job starts by all ranks connecting to one by TCP; those beyond that wait for seconds.",
            "sudo sysctl -w net.core.somaxconn=4096   # until the next boot; programs that listen already keep theirs",
        ),
        Some(backlog) => out.pass(
            "",
            format!("{backlog} ranks can wait to connect at the start of a job"),
        ),
    }
}
