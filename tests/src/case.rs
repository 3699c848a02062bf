//! A perftest pair and what the rows of each side must show.

use anyhow::{Result, ensure};

use crate::{
    perftest::{Accounts, Perftest},
    snapshot::{Row, Snapshot},
    table::Table,
};

/// Bytes of one of perftest's credits.
const CREDIT: u64 = 4;

/// What the row of each QP of one side has to show.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expect {
    /// Send WRs.
    pub tx: u64,
    /// Receive WRs completed.
    pub rx: u64,
    /// Bytes of a message.
    pub size: u64,
    /// Bytes that each receive counts in addition.
    pub rx_extra: u64,
    /// The only opcode used.
    pub opcode: Option<&'static str>,
    /// CQEs, if the number is known.
    pub completions: Option<u64>,
    /// Calls of `ibv_post_send`, if the number is known.
    pub doorbells: Option<u64>,
    /// Whether receives come from a shared receive queue.
    pub srq: bool,
    /// Whether this side tells the sender how many messages it has taken, as perftest does with iWARP: by
    /// RDMA WRITEs of 4 bytes, each with a completion. perftest does not print their number, so rows are
    /// compared with the number that rdmatop gives; a test without other WRITEs compares the sum with the
    /// function tracer's.
    pub credits: bool,
}

/// A pair and what its sides have to show.
#[derive(Clone, Debug)]
pub struct Case {
    /// The case's name in tables.
    pub name: &'static str,
    /// The pair.
    pub pair: Perftest,
    /// The active side.
    pub client: Expect,
    /// The passive side.
    pub server: Expect,
}

/// A pair whose client posts `n` requests of `opcode`; the passive side gets no completions.
pub fn one_sided(name: &'static str, pair: Perftest, n: u64, size: u64, opcode: &'static str) -> Case {
    let client = Expect {
        tx: n,
        size,
        opcode: Some(opcode),
        ..Expect::default()
    };
    Case {
        name,
        pair: pair.iterations(n).size(size),
        client,
        server: Expect {
            size,
            ..Expect::default()
        },
    }
}

/// A pair whose server receives what the client sends.
pub fn two_sided(name: &'static str, pair: Perftest, n: u64, size: u64) -> Case {
    let mut case = one_sided(name, pair, n, size, "send");
    case.server = Expect {
        rx: n,
        size,
        completions: Some(n),
        ..Expect::default()
    };
    case
}

/// A pair whose sides send to each other in turn.
pub fn ping_pong(name: &'static str, pair: Perftest, n: u64, size: u64) -> Case {
    let mut case = two_sided(name, pair, n, size);
    let both = Expect {
        tx: n,
        rx: n,
        size,
        opcode: Some("send"),
        ..Expect::default()
    };
    (case.client, case.server) = (both, both);
    case
}

impl Case {
    /// Compares every QP and the process of both sides with perftest's account. `skipped` is the number of
    /// program runs that the kernel skipped, see [`Table::equal_unless_skipped`].
    pub fn compare(
        &self,
        table: &mut Table,
        sample: &Snapshot,
        accounts: &Accounts,
        skipped: u64,
    ) -> Result<()> {
        for (side, account, expect) in [
            ("client", &accounts.client, self.client),
            ("server", &accounts.server, self.server),
        ] {
            let process = sample.process(account.pid)?;
            let count = account.qpns.len() as u64;
            for (number, &qpn) in (1..).zip(&account.qpns) {
                let qp = sample.qp(account.pid, qpn)?;
                let name = if count == 1 {
                    format!("{} {side}", self.name)
                } else {
                    format!("{} {side}, QP {number}", self.name)
                };
                compare_row(table, &name, qp, expect, 1, skipped);
                for (key, wanted) in [("exited", true), ("since_attach", false)] {
                    let ok = qp.field(key) == wanted;
                    table.rule(&name, key, &wanted.to_string(), Some(u64::from(qp.is(key))), ok);
                }
                ensure!(qp.source("tx_wr") == Some("ebpf"), "{qp:?}");
            }
            // With rdma_cm and several QPs perftest has an additional QP of its own.
            if count > 1 && !self.pair.is_cm() {
                let name = format!("{} {side}, process", self.name);
                compare_row(table, &name, process, expect, count, skipped);
            }
        }
        Ok(())
    }
}

fn compare_row(table: &mut Table, name: &str, row: Row<'_>, expect: Expect, times: u64, skipped: u64) {
    let credits = row.total("tx_wr").filter(|_| expect.credits).unwrap_or(0);
    let tx = expect.tx * times + credits;
    let tx_bytes = expect.tx * times * expect.size + credits * CREDIT;
    // These counters are differences of ring indices.
    for (counter, expected) in [("tx_wr", tx), ("tx_wr_posted", tx), ("tx_bytes", tx_bytes)] {
        table.equal(name, counter, expected, row.total(counter));
    }
    let opcodes = u64::from(expect.opcode.is_some()) + u64::from(credits > 0);
    table.equal(name, "opcodes", opcodes, row.opcodes());
    if expect.credits {
        let (wr, bytes) = row.opcode("rdma_write").unzip();
        table.rule(name, "credits", "> 0", Some(credits), credits > 0);
        table.equal(name, "rdma_write wr", credits, wr);
        table.equal(name, "rdma_write bytes", credits * CREDIT, bytes);
    }
    if let Some(opcode) = expect.opcode {
        let (wr, bytes) = row.opcode(opcode).unzip();
        table.equal(name, &format!("{opcode} wr"), tx, wr);
        table.equal(name, &format!("{opcode} bytes"), tx * expect.size, bytes);
    }
    let posted = row.total("rx_wr_posted");
    if expect.srq {
        // Receives of a shared queue belong to no QP: unknown, not 0.
        let null = row.field("rx_wr_posted").is_null();
        table.rule(name, "rx_wr_posted", "null", posted, null);
    } else {
        // perftest posts as many receives as it will need.
        table.equal(name, "rx_wr_posted", expect.rx * times, posted);
    }
    if let Some(doorbells) = expect.doorbells {
        let got = row.total("doorbells");
        table.equal_unless_skipped(name, "doorbells", doorbells * times, got, skipped);
    }
    // These counters count CQEs.
    let size = expect.size + expect.rx_extra;
    let rx = expect.rx * times;
    table.equal_unless_skipped(name, "rx_wr", rx, row.total("rx_wr"), skipped);
    table.equal_unless_skipped(name, "rx_bytes", rx * size, row.total("rx_bytes"), skipped * size);
    if let Some(completions) = expect.completions {
        let got = row.total("completions");
        table.equal_unless_skipped(name, "completions", completions * times + credits, got, skipped);
    }
    table.equal(name, "completion_errors", 0, row.total("completion_errors"));
    table.equal(name, "cq_overflows", 0, row.total("cq_overflows"));
}
