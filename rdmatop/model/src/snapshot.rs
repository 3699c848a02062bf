//! What views show: facts, what they mean and what is wrong, immutable and cheap to share.
//!
//! Facts know neither of the other two, and a judgement knows no findings, so each can be tested alone.

use std::ops::Deref;

use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use super::{
    findings::{Finding, FindingId},
    judgement::{Judgement, Peer, QpsWritten},
    value::Shared,
};

pub use super::facts::*;

/// Version of the JSON objects.
pub const SCHEMA: u32 = 1;

/// Everything at one time. Its facts can be read as if they were its own.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What was read and counted.
    pub facts: Facts,
    /// Totals, stuck QPs, what cannot be observed.
    pub judgement: Judgement,
    /// What is wrong, the worst first, then the oldest.
    pub findings: Shared<Finding>,
    /// Findings whose rules need more than [`Health::looked_ns`], and how many seconds they need.
    pub still_looks: Vec<(FindingId, u64)>,
}

impl Deref for Snapshot {
    type Target = Facts;

    fn deref(&self) -> &Facts {
        &self.facts
    }
}

impl Snapshot {
    /// Who is at the other end of a QP; `None` when it is not known.
    pub fn peer(&self, qp: &QpRow) -> Option<Peer<'_>> {
        self.judgement.peer(&self.facts, qp)
    }
}

impl Serialize for Snapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let facts = &self.facts;
        let mut object = serializer.serialize_struct("Snapshot", 13)?;
        object.serialize_field("schema", &SCHEMA)?;
        object.serialize_field("time", &facts.time)?;
        object.serialize_field("mono_ns", &facts.mono_ns)?;
        object.serialize_field("interval_ns", &facts.interval_ns)?;
        object.serialize_field("host", &facts.host)?;
        object.serialize_field("health", &facts.health)?;
        object.serialize_field("judgement", &self.judgement)?;
        object.serialize_field("findings", &self.findings)?;
        object.serialize_field("devices", &facts.devices)?;
        object.serialize_field("ports", &facts.ports)?;
        object.serialize_field("processes", &facts.processes)?;
        // The writer adds what is unknown of each QP, which only the rest of the facts tells.
        object.serialize_field("qps", &QpsWritten(&self.facts))?;
        object.serialize_field("verbs", &facts.verbs)?;
        object.end()
    }
}
