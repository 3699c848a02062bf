//! qedr: Marvell (`QLogic`) FastLinQ: its driver has no counters.

use super::table::{Carries, Table};

pub(super) const TABLE: Table = Table {
    carries: Carries::Unknown,
    pma: true,
    counters: &[],
};
