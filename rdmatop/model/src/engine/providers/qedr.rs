//! qedr: Marvell (`QLogic`) FastLinQ: its driver has no counters.

use super::table::{Carries, Table};

pub(super) const TABLE: Table = Table {
    name: "qedr",
    source: "hw/qedr/main.c",
    note: "The driver has no counters: neither `hw_counters` nor an answer of `ports/N/counters` (`qedr_process_mad` answers nothing).",
    carries: Carries::Unknown("the driver counts no bytes"),
    pma: true,
    counters: &[],
};
