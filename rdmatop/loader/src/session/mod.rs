//! A session: loaded maps and attached programs, from a start to its end.
pub(crate) mod armed;
mod headroom;
pub(crate) mod report;
mod sizes;
mod start;

use std::{collections::HashMap, os::fd::OwnedFd};

use aya::maps::{Array, Map, MapData, RingBuf};
use aya_log::EbpfLogger;
use rdmatop_common::names::map;

use crate::{
    attach::{AttachedProgram, explain},
    hooks::{Role, Skip},
    load::program_log,
    maps::{skipped::Watched, slots::SlotMap},
    plan::{Outcome, options::Options, unseen},
    user::UserPath,
};
use rdmatop_model::{
    cause::{Cause, CauseId, Obstacle},
    input::DataPaths,
};
use rdmatop_sources::privileges::Raised;
use start::Resolved;

/// Puts the step that failed before the reason.
pub(super) fn at(step: &str, obstacle: Obstacle) -> Obstacle {
    Obstacle {
        why: format!("{step}: {}", obstacle.why),
        ..obstacle
    }
}

/// The obstacle if programs could be attached but would never run.
pub(super) fn would_not_run(obstacle: Obstacle) -> Obstacle {
    at("no program would run", obstacle)
}

/// Loaded maps and attached programs. Dropping it detaches everything.
pub struct Session {
    maps: HashMap<String, Map>,
    log: Option<EbpfLogger<program_log::Stderr>>,
    outcomes: Vec<Outcome>,
    unseen: Vec<Cause>,
    datapaths: DataPaths,
    /// The counters of QPs, until they are taken.
    pub(super) slots: Option<SlotMap>,
    /// Those of probed programs.
    pub(super) user: Option<Result<UserPath, Cause>>,
    /// Probes on programs make records of work requests.
    follows_user_work: bool,
    /// Whether the programs of SoftRoCE count packets and receives for the comparison with the driver.
    pub(super) compares: [bool; 2],
    /// Attached programs; dropping them detaches them.
    programs: Vec<AttachedProgram>,
}

impl Session {
    /// Loads and attaches the programs. They count nothing until [`Session::set_enabled`].
    pub fn start(options: &Options) -> Result<Self, Obstacle> {
        let _rights = Raised::for_attach();
        let mut resolved = Resolved::of(options)?;
        let (loader, maps) = resolved.load()?;
        resolved.session(&loader, maps)
    }

    /// Switches counting and records on or off.
    pub fn set_enabled(&mut self, on: bool) -> Result<(), Obstacle> {
        let refused =
            |why: String| Obstacle::new(CauseId::Refused, format!("cannot switch counting on: {why}"), "");
        let control = self
            .maps
            .get_mut(map::CONTROL)
            .ok_or_else(|| refused("no CONTROL map".into()))?;
        let mut control: Array<&mut MapData, u32> =
            Array::try_from(control).map_err(|error| refused(error.to_string()))?;
        control
            .set(0, u32::from(on), 0)
            .map_err(|error| refused(error.to_string()))
    }

    /// Number of attached programs.
    pub fn attached(&self) -> usize {
        self.programs.len()
    }

    /// Prints what programs built with the `log` feature have logged.
    pub fn flush_log(&mut self) {
        if let Some(log) = &mut self.log {
            log.flush();
        }
    }

    /// The attached programs, to read how often the kernel skipped them. `None` if too many files are open
    /// for that.
    pub(super) fn watched(&self) -> Option<Vec<Watched>> {
        let each = self.programs.iter().map(|attached| {
            let link = attached.event.link.as_ref().map(OwnedFd::try_clone);
            let program = attached.program.try_clone().ok()?;
            Some(Watched::new(
                attached.hook,
                attached.second,
                program,
                link.transpose().ok()?,
            ))
        });
        each.collect()
    }

    /// Whether `write()` is probed. If so, its calls count post_send, and the doorbells do not.
    pub(super) fn counts_writes(&self) -> bool {
        let mut writes = self
            .outcomes
            .iter()
            .filter(|o| o.hook.role == Role::Write)
            .peekable();
        writes.peek().is_some() && writes.all(Outcome::is_on)
    }

    /// Takes the ring buffer, once.
    pub fn take_ring(&mut self) -> Result<RingBuf<MapData>, Obstacle> {
        let none = || Obstacle::new(CauseId::Defect, "the object has no EVENTS map", "");
        let ring = self.maps.remove(map::EVENTS).ok_or_else(none)?;
        RingBuf::try_from(ring).map_err(|error| explain(&error))
    }

    /// Whether work requests make records.
    pub(super) fn follows_work(&self) -> bool {
        let mut of_work = self
            .outcomes
            .iter()
            .filter(|outcome| outcome.hook.skip == Skip::Work);
        of_work.any(Outcome::is_on) || self.follows_user_work
    }

    /// Why work requests make no records.
    pub(super) fn why_no_work(&self) -> Option<Obstacle> {
        let off = self.outcomes.iter().filter(|outcome| !outcome.is_on());
        off.flat_map(|outcome| &outcome.obstacles)
            .next()
            .map(|obstacle| unseen::for_the_user(obstacle.clone(), false))
    }

    /// Takes the ring buffer of work requests, once; `None` if no program makes such records.
    pub fn take_work(&mut self) -> Option<RingBuf<MapData>> {
        if !self.follows_work() {
            return None;
        }
        RingBuf::try_from(self.maps.remove(map::WR_EVENTS)?).ok()
    }

    /// Takes a map, once.
    pub fn take_map(&mut self, name: &str) -> Option<Map> {
        self.maps.remove(name)
    }
}
