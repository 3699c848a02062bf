//! The sample of `rdmatop --once --json`, with queries for tests.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::Value;

/// A sample.
#[derive(Clone, Debug)]
pub struct Snapshot {
    value: Value,
}

/// A row of `qps` or `processes`.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a>(&'a Value);

impl Snapshot {
    /// Parses the single JSON object.
    pub fn parse(text: &str) -> Result<Self> {
        let value = serde_json::from_str(text).with_context(|| format!("not one JSON object: {text:?}"))?;
        Ok(Self { value })
    }

    /// The whole object.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The QP `qpn` of process `pid`.
    pub fn qp(&self, pid: u32, qpn: u32) -> Result<Row<'_>> {
        self.find("qps", |row| row["pid"] == pid && row["qpn"] == qpn)
            .with_context(|| format!("no row for QP {qpn} of pid {pid} in {}", self.value["qps"]))
    }

    /// The process `pid`.
    pub fn process(&self, pid: u32) -> Result<Row<'_>> {
        self.find("processes", |row| row["pid"] == pid)
            .with_context(|| format!("no row for pid {pid} in {}", self.value["processes"]))
    }

    /// All QP rows.
    pub fn qps(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows("qps")
    }

    /// All process rows.
    pub fn processes(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows("processes")
    }

    /// All verb rows.
    pub fn verbs(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows("verbs")
    }

    /// Port `number` of the device that is called `device`.
    pub fn port(&self, device: &str, number: u32) -> Result<Row<'_>> {
        self.find("ports", |row| row["device"] == device && row["port"] == number)
            .with_context(|| format!("no row for port {number} of {device} in {}", self.value["ports"]))
    }

    /// `health.lost_events`.
    pub fn lost(&self) -> Option<u64> {
        self.value["health"]["lost_events"].as_u64()
    }

    /// Returns how many runs of data path programs the kernel skipped (`health.losses`, `missed`). Linux
    /// before 6.7 does not count them. Before 6.4, where they happen, it is what SoftRoCE's driver counted
    /// but no program saw.
    pub fn skipped(&self) -> u64 {
        self.lost_at("missed")
    }

    /// Returns all losses by cause (`health.losses`), for the message of a failed test.
    pub fn losses(&self) -> &Value {
        &self.value["health"]["losses"]
    }

    /// What was lost for one cause (`health.losses`).
    pub fn lost_at(&self, cause: &str) -> u64 {
        let losses = self.value["health"]["losses"].as_array();
        let loss = losses.into_iter().flatten().find(|loss| loss["where"] == cause);
        loss.and_then(|loss| loss["count"].as_u64()).unwrap_or(0)
    }

    /// Returns the programs that the kernel skipped, and how often (`health.skipped`); `None` where the
    /// kernel does not count that.
    pub fn skipped_programs(&self) -> Option<BTreeMap<String, u64>> {
        let rows = self.value["health"]["skipped"].as_array()?;
        rows.iter()
            .map(|row| Some((row["program"].as_str()?.to_owned(), row["count"].as_u64()?)))
            .collect()
    }

    /// Returns how SoftRoCE's data path is entered: `kprobe` or `fentry`.
    pub fn datapath(&self) -> Option<&str> {
        self.value["health"]["ebpf"]["datapaths"]["rdma_rxe"].as_str()
    }

    /// Returns how the data path of a device is entered.
    pub fn datapath_of(&self, device: &str) -> Option<&str> {
        let row = self.find("devices", |row| row["name"] == device)?;
        row.field("datapath").as_str()
    }

    /// Returns process and number of each user QP that exists now, as [`crate::kernel::user_qps`] lists them.
    pub fn living_qps(&self) -> BTreeSet<(u32, u32)> {
        self.qps()
            .filter(|row| !row.is("exited") && !row.is("kernel"))
            .filter_map(|row| {
                let [pid, qpn] = ["pid", "qpn"].map(|key| row.field(key).as_u64());
                Some((u32::try_from(pid?).ok()?, u32::try_from(qpn?).ok()?))
            })
            .collect()
    }

    /// Returns the rows of the kernel consumer `name`, with brackets.
    pub fn kernel_qps(&self, name: &str) -> Vec<Row<'_>> {
        let own = |row: &Row<'_>| row.field("comm") == name && row.is("kernel");
        self.qps().filter(own).collect()
    }

    /// Returns the kernel consumer `name`, with brackets.
    pub fn kernel_process(&self, name: &str) -> Result<Row<'_>> {
        self.find("processes", |row| row["comm"] == name && row["kernel"] == true)
            .with_context(|| format!("no row for {name} in {}", self.value["processes"]))
    }

    fn rows(&self, table: &str) -> impl Iterator<Item = Row<'_>> {
        self.value[table].as_array().into_iter().flatten().map(Row)
    }

    fn find(&self, table: &str, wanted: impl Fn(&Value) -> bool) -> Option<Row<'_>> {
        self.rows(table).find(|row| wanted(row.0))
    }
}

impl<'a> Row<'a> {
    /// A field as it is.
    pub fn field(&self, name: &str) -> &'a Value {
        &self.0[name]
    }

    /// The total of counter `name`; `None` when unknown.
    pub fn total(&self, name: &str) -> Option<u64> {
        self.0[name]["total"].as_u64()
    }

    /// The rate of counter `name`; `None` when unknown.
    pub fn rate(&self, name: &str) -> Option<f64> {
        self.0[name]["rate"].as_f64()
    }

    /// Returns the total of a port's own driver counter `name`.
    pub fn named(&self, name: &str) -> Option<u64> {
        let counters = self.0["counters"].as_array()?;
        counters.iter().find(|counter| counter["name"] == name)?["total"].as_u64()
    }

    /// Returns the sum of the CQEs of all statuses.
    pub fn statuses(&self) -> Option<u64> {
        let list = self.0["by_status"].as_array()?;
        list.iter().map(|row| row["cqes"]["total"].as_u64()).sum()
    }

    /// The source of counter `name`.
    pub fn source(&self, name: &str) -> Option<&'a str> {
        self.0[name]["source"].as_str()
    }

    /// Returns (WRs, bytes) of `opcode`.
    pub fn opcode(&self, opcode: &str) -> Option<(u64, u64)> {
        let row = self.0["by_opcode"]
            .as_array()?
            .iter()
            .find(|row| row["opcode"] == opcode)?;
        Some((row["wr"]["total"].as_u64()?, row["bytes"]["total"].as_u64()?))
    }

    /// Returns the number of different opcodes.
    pub fn opcodes(&self) -> Option<u64> {
        Some(self.0["by_opcode"].as_array()?.len() as u64)
    }

    /// Returns the CQEs of `status`; 0 if the list exists without it.
    pub fn status(&self, status: &str) -> Option<u64> {
        let list = self.0["by_status"].as_array()?;
        list.iter()
            .find(|row| row["status"] == status)
            .map_or(Some(0), |row| row["cqes"]["total"].as_u64())
    }

    /// Whether the boolean field `name` is true.
    pub fn is(&self, name: &str) -> bool {
        self.0[name] == true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_skipped_is_among_the_losses() {
        let text = r#"{"health":{"losses":[{"where":"ring","count":9},{"where":"missed","count":2}]}}"#;
        assert_eq!(Snapshot::parse(text).unwrap().skipped(), 2);
        assert_eq!(
            Snapshot::parse(r#"{"health":{"losses":[]}}"#).unwrap().skipped(),
            0
        );
    }

    #[test]
    fn a_null_counter_is_unknown_and_an_unnamed_status_is_zero() {
        let text = r#"{"qps":[{"pid":5,"qpn":17,"tx_wr":null,"rx_wr":{"total":3},"by_status":[],
            "by_opcode":[{"opcode":"send","wr":{"total":2},"bytes":{"total":128}}]}]}"#;
        let snapshot = Snapshot::parse(text).unwrap();
        let qp = snapshot.qp(5, 17).unwrap();
        assert_eq!(qp.total("tx_wr"), None);
        assert_eq!(qp.total("rx_wr"), Some(3));
        assert_eq!(qp.status("retry_exc_err"), Some(0));
        assert_eq!(qp.opcode("send"), Some((2, 128)));
        assert_eq!(qp.opcode("rdma_read"), None);
        assert!(snapshot.qp(5, 18).is_err());
    }
}
