//! The engine: folds inputs into state, hands out events and snapshots. No I/O, no clock.

use std::sync::Arc;

use super::{
    event::Event,
    input::{Input, Now},
    snapshot::{Health, SCHEMA, Snapshot},
};

/// Settings of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// How long rows of destroyed QPs and ended processes stay, ns. `u64::MAX` keeps all
    /// ([`EngineConfig::keep_all`]).
    pub linger_ns: u64,
    /// Two readings closer than this give no rate, ns: the error of the clock would be most of it.
    pub min_interval_ns: u64,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            linger_ns: 5_000_000_000,
            min_interval_ns: 50_000_000,
        }
    }
}

impl EngineConfig {
    /// For one sample over a window (`--once --delay N`): what ended within the window is still told.
    pub fn keep_all() -> Self {
        Self {
            linger_ns: u64::MAX,
            ..Self::default()
        }
    }
}

/// The model's state.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
}

impl Engine {
    /// An engine that knows nothing yet.
    pub fn new(config: EngineConfig) -> Self {
        Self { config }
    }

    /// Folds one input in. Returns the events it makes, for `--trace`; most inputs make none.
    pub fn apply(&mut self, input: Input, now: Now) -> Vec<Event> {
        let _ = (input, now, &self.config);
        Vec::new()
    }

    /// The state at `now`.
    pub fn tick(&mut self, now: Now) -> Arc<Snapshot> {
        Arc::new(Snapshot {
            schema: SCHEMA,
            time: now.wall_ns,
            mono_ns: now.mono_ns,
            interval_ns: None,
            host: super::input::HostFacts::default(),
            health: Health {
                ebpf: super::input::EbpfState::Starting,
                lost_events: 0,
                losses: Vec::new(),
                events: 0,
                probes: Vec::new(),
                notes: Vec::new(),
                errors: Vec::new(),
                self_cpu: None,
                self_rss: None,
            },
            devices: Vec::new(),
            ports: Vec::new(),
            processes: Vec::new(),
            qps: Vec::new(),
            verbs: Vec::new(),
        })
    }

    /// True when records were lost and the QP table may be wrong: the caller should send a fresh
    /// [`Input::Qps`]. True until one that began after the loss arrives.
    pub fn wants_repair(&self) -> bool {
        false
    }

    /// Process ids whose facts are wanted, each once.
    pub fn wants_process(&mut self) -> Vec<u32> {
        Vec::new()
    }
}
