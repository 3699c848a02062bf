//! How busy the links of a job were.

use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use crate::value::Source;

/// How busy the links of the job of a process were.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// What the busier direction carried, as a share of what all of the job's links could.
    pub share: f64,
    /// A part of the job is not counted, so the true share may be higher.
    pub partial: bool,
    /// The share is of all that passed the ports, whoever moved it, and not of what is counted of the job.
    pub of_ports: bool,
    /// Length of the time over which this is the average, s.
    pub seconds: f64,
    /// Processes of the job with queue pairs.
    pub processes: u64,
    /// What counted the bytes: of several sources the one that says least.
    pub source: Source,
    /// What the job waits for, `communication` or `compute`; `None` when there is no verdict.
    pub verdict: Option<&'static str>,
    /// How busy the job's GPUs were; `None` where that is not known.
    pub gpu: Option<GpuUse>,
}

/// How busy the GPUs of a job were, on average.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct GpuUse {
    /// Share of the multiprocessors that had work.
    pub sm_share: f64,
    /// Share of the time in which tensor cores worked.
    pub tensor_share: f64,
    /// Number of GPUs.
    pub gpus: u64,
    /// Length of the time over which this is the average, s.
    pub seconds: f64,
}

impl Bound {
    /// The judgement in one line of words.
    pub fn line(&self) -> String {
        let at_least = match self.source {
            _ if self.partial => "at least ",
            Source::Psn => "about ",
            _ => "",
        };
        let together = match (self.of_ports, self.processes) {
            (true, _) => ", with all traffic of its ports".to_owned(),
            (false, 1) => String::new(),
            (false, more) => format!(", all {more} processes of the job together"),
        };
        let gpu = self.gpu.map_or_else(String::new, |gpu| {
            let [sms, tensor] = [gpu.sm_share, gpu.tensor_share].map(|share| (share * 100.0).floor());
            format!("; multiprocessors {sms:.0} % busy, tensor cores {tensor:.0} %")
        });
        let verdict = self
            .verdict
            .map(|verdict| format!(": {verdict}-bound"))
            .unwrap_or_default();
        let share = if self.share > 0.0 && self.share < 0.01 {
            "under 1".to_owned()
        } else {
            // Rounding down: 99.6 % must not read as 100 %.
            format!("{:.0}", (self.share * 100.0).floor())
        };
        format!(
            "{at_least}{share} % busy over the last {:.0} s{together}{gpu}{verdict}",
            self.seconds
        )
    }
}

impl Serialize for Bound {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Bound", if self.partial { 8 } else { 7 })?;
        object.serialize_field("verdict", &self.verdict)?;
        object.serialize_field("link_share", &Some(self.share).filter(|_| !self.partial))?;
        if self.partial {
            object.serialize_field("at_least", &self.share)?;
        }
        object.serialize_field("of", if self.of_ports { "ports" } else { "job" })?;
        object.serialize_field("seconds", &self.seconds)?;
        object.serialize_field("processes", &self.processes)?;
        object.serialize_field("source", &self.source)?;
        object.serialize_field("gpu", &self.gpu)?;
        object.end()
    }
}
