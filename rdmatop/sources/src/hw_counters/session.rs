//! The changes of this run, and the end of them.
//!
//! Each change is in the file before it is made, and leaves the file when it is taken back. rdmatop takes
//! back only what is still as it set it: the device is of the same generation, and the mode is ours. What
//! cannot be read is no proof that a device or a boot is another one.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};
use std::{ffi::OsString, thread};

use super::decide;
use super::kernel::{Kernel, Live, Present};
use super::state::{Changed, Changes};
use super::store::{DIR, Denied, Locked};
use crate::netlink::counting::{set_auto, set_optional, unbind};
use crate::netlink::record::{CounterSet, Mask, Mode};
use crate::{netlink::error::NetlinkError, owned_file::agree, root::Root};
use rdmatop_base::step::{ShellWord, step};
use rdmatop_model::cause::{CauseId, Concerns, Obstacle};
use rdmatop_model::input::{HwCountersReport, HwPort};

/// Devices are listed again after this time even if sysfs shows no change.
const LIST_EVERY: Duration = Duration::from_secs(10);
/// How long the end of rdmatop waits for a change that a thread is making.
const PATIENCE: Duration = Duration::from_secs(3);
/// What the command that ends the mode leaves: manual mode while there are counters
/// (`rdma_counter_set_auto_mode`).
const BOUND: &str = "queue pairs that are bound stay so until they end";

/// What is done about a change that could not be taken back.
const AGAIN: &str = "it is tried again at the next start as root";
/// No device has so many.
const MOST_PORTS: u32 = 64;

/// A handle on the changes of this run: the thread that makes them has one, and so has the thread that takes
/// them back.
#[derive(Clone, Debug)]
pub struct HwCounters(Arc<Mutex<Session<Live>>>);

impl HwCounters {
    /// A session that has changed nothing yet.
    pub fn new(root: Root) -> Self {
        Self(Arc::new(Mutex::new(Session::new(
            Live::new(root),
            Path::new(DIR),
        ))))
    }

    /// Sets the ports that were not looked at before. Returns the report if it has changed.
    pub fn look(&self) -> Option<HwCountersReport> {
        let mut session = self.0.lock().ok()?;
        session.look()
    }

    /// Takes everything back, and lets nothing be changed from now on. Returns lines for the user.
    ///
    /// This includes a change during which its thread panicked: each is noted before it is made.
    pub fn take_back(&self) -> Vec<String> {
        let begun = Instant::now();
        loop {
            match self.0.try_lock() {
                Ok(mut session) => return session.take_back(),
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner().take_back(),
                Err(TryLockError::WouldBlock) if begun.elapsed() < PATIENCE => {
                    thread::sleep(Duration::from_millis(10));
                }
                Err(TryLockError::WouldBlock) => {
                    return vec![
                        "counters are being changed, and the kernel does not answer: the next start of rdmatop as root \
                         takes that back"
                            .to_owned(),
                    ];
                }
            }
        }
    }
}

/// Takes back what a killed rdmatop left changed, and returns lines for the user. Nearly always there is no
/// file, and nothing is done.
pub fn recover(root: Root) -> Vec<String> {
    let locked = match Locked::at(Path::new(DIR), false) {
        Ok(locked) => locked,
        // Another rdmatop holds the lock, there is no file, or this user may not use it.
        Err(Denied::Busy | Denied::Nothing | Denied::NotPermitted) => return Vec::new(),
        Err(Denied::Unusable(why)) => return vec![cannot_recover(&why)],
    };
    recover_with(&mut Live::new(root), &locked)
}

fn cannot_recover(why: &str) -> String {
    format!("what an earlier rdmatop set of counters cannot be taken back: {why}")
}

fn recover_with(kernel: &mut impl Kernel, locked: &Locked) -> Vec<String> {
    let mut changes = match locked.load() {
        Ok(Some(changes)) => changes,
        Ok(None) => return Vec::new(),
        Err(why) => return vec![cannot_recover(&why)],
    };
    let boot = kernel.boot();
    let (is_known, is_other) = (!boot.is_empty() && !changes.boot.is_empty(), changes.boot != boot);
    if is_known && is_other {
        changes.ports.clear();
    }
    let mut lines = restore(kernel, &mut changes, locked);
    if !is_known && !lines.is_empty() {
        lines.push(
            "the id of the boot cannot be read: only what still is as rdmatop set it was changed".to_owned(),
        );
    }
    lines
        .into_iter()
        .map(|line| format!("of an earlier rdmatop that was killed: {line}"))
        .collect()
}

/// What is known of the ports of this run.
#[derive(Debug)]
struct Session<K> {
    kernel: K,
    /// Where the file of changes is.
    dir: PathBuf,
    locked: Option<Locked>,
    changes: Changes,
    /// Devices that were looked at, by index and name.
    looked: Vec<(u32, String)>,
    dirs: Option<Vec<OsString>>,
    listed: Option<Instant>,
    report: HwCountersReport,
    told: bool,
    over: bool,
}

impl<K: Kernel> Session<K> {
    fn new(kernel: K, dir: &Path) -> Self {
        Self {
            kernel,
            dir: dir.to_owned(),
            locked: None,
            changes: Changes::default(),
            looked: Vec::new(),
            dirs: None,
            listed: None,
            report: HwCountersReport::default(),
            told: false,
            over: false,
        }
    }

    fn look(&mut self) -> Option<HwCountersReport> {
        if self.over {
            return None;
        }
        let dirs = self.kernel.dirs();
        let due = self.listed.is_none_or(|at| at.elapsed() >= LIST_EVERY);
        if !due && dirs == self.dirs {
            return None;
        }
        (self.dirs, self.listed) = (dirs, Some(Instant::now()));
        let before = self.report.clone();
        match self.kernel.list() {
            Err(NetlinkError::NoRdma) => self.looked.clear(),
            Err(error) => {
                let cause = decide::refused(&error).takes("Hardware counters", Concerns::Host);
                self.report.failed = Some(Box::new(cause));
            }
            Ok(list) => {
                self.report.failed = None;
                self.looked.retain(|known| list.contains(known));
                self.report
                    .ports
                    .retain(|port| list.iter().any(|(index, _)| *index == port.device_index));
                for (index, name) in list {
                    if !self.looked.contains(&(index, name.clone())) {
                        self.looked.push((index, name));
                        self.look_at(index);
                    }
                }
            }
        }
        let changed = self.report != before || !std::mem::replace(&mut self.told, true);
        changed.then(|| self.report.clone())
    }

    fn look_at(&mut self, index: u32) {
        let device = match self.kernel.device(index) {
            Ok(device) => device,
            Err(error) => {
                // The device is gone, or was added again, or does not answer: the next list says which.
                if !is_gone(&error) {
                    let cause =
                        decide::refused(&error).takes("Hardware counters of a device", Concerns::Host);
                    self.report.failed = Some(Box::new(cause));
                }
                self.looked.retain(|(known, _)| *known != index);
                return;
            }
        };
        self.report.ports.retain(|port| port.device_index != index);
        for port in 1..=device.ports.min(MOST_PORTS) {
            let of = Changed {
                device: device.name.clone(),
                index,
                node_guid: device.node_guid,
                inode: device.inode,
                port,
                bind_optional: false,
                optional: None,
            };
            if self.changes.ports.iter().any(|known| is_same(known, &of)) {
                // The device was only renamed: its port is set already.
                self.report.ports.push(set_port(&of, &[]));
                continue;
            }
            let outcome = self.set(of, &device);
            self.report.ports.push(outcome);
        }
    }

    /// Sets a port, unless something is in the way.
    fn set(&mut self, mut port: Changed, device: &Present) -> HwPort {
        match self.try_set(&mut port, device) {
            Ok(names) => set_port(&port, &names),
            Err(obstacle) => HwPort {
                why: Some(Box::new(obstacle.takes(
                    format!("Hardware counters of {} port {}", port.device, port.port),
                    Concerns::Device(port.device.clone()),
                ))),
                set: false,
                ..set_port(&port, &[])
            },
        }
    }

    fn try_set(&mut self, port: &mut Changed, device: &Present) -> Result<Vec<String>, Obstacle> {
        let (index, number) = (port.index, port.port);
        let refused = |error: NetlinkError| decide::refused(&error);
        let binding = self.kernel.binding(index, number).map_err(refused)?;
        let bound = self.kernel.bound(index).map_err(refused)?;
        let optional = self.kernel.optional(index, number).map_err(refused)?;
        let bound = bound.iter().filter(|set| set.port == number).count();
        let orders = decide::decide(self.kernel.binds(device), binding, bound, &optional)?;
        (port.bind_optional, port.optional) = (orders.bind_optional, orders.optional);
        self.note(port)?;
        let done = self.give_orders(port);
        if let Err(error) = done {
            // Takes back what was done before the error, too.
            let mut failed = self.changes.clone();
            failed.ports = vec![port.clone()];
            restore_ports(&mut self.kernel, &mut failed);
            self.changes.ports.retain(|known| !is_same(known, port));
            self.changes.ports.extend(failed.ports);
            self.save();
            return Err(refused(error));
        }
        let on = port.optional.iter().flat_map(|[_, after]| after);
        let names = on.filter_map(|place| {
            let counter = optional.iter().find(|counter| counter.index == *place)?;
            (!counter.on).then(|| counter.name.to_string())
        });
        Ok(names.collect())
    }

    fn give_orders(&mut self, port: &mut Changed) -> Result<(), NetlinkError> {
        if let Some([_, after]) = &port.optional {
            self.kernel.order(&set_optional(port.index, port.port, after))?;
        }
        let set = |optional| set_auto(port.index, port.port, Mask::PID, optional);
        if port.bind_optional {
            match self.kernel.order(&set(true)) {
                Err(error) if error.errno() == Some(libc::EINVAL) => {}
                done => return done,
            }
        }
        // No optional counter is wanted, or this kernel (before 6.15) cannot bind QPs to them.
        self.kernel.order(&set(false))
    }

    /// Writes down what is about to be changed.
    fn note(&mut self, port: &Changed) -> Result<(), Obstacle> {
        if self.locked.is_none() {
            let locked = Locked::at(&self.dir, true).map_err(|denied| match denied {
                Denied::Busy => Obstacle::new(
                    CauseId::CountersTaken,
                    "another rdmatop --hw-counters runs",
                    "what it counts is shown here too",
                ),
                Denied::NotPermitted => Obstacle::new(
                    CauseId::NotPermitted,
                    "this user may not change how the kernel counts",
                    "run with sudo",
                ),
                Denied::Nothing => Obstacle::new(CauseId::Refused, "/run/rdmatop is gone", ""),
                Denied::Unusable(why) => Obstacle::new(
                    CauseId::Refused,
                    format!("what is changed has to be written down first, and that fails: {why}"),
                    "",
                ),
            })?;
            self.changes = Changes::new(&self.kernel.boot());
            self.locked = Some(locked);
        }
        self.changes.ports.push(port.clone());
        let saved = self
            .locked
            .as_ref()
            .map_or(Ok(()), |locked| locked.save(&self.changes));
        saved.map_err(|error| {
            self.changes.ports.pop();
            let why = format!("what is changed has to be written down first, and that fails: {error}");
            Obstacle::new(CauseId::Refused, why, "")
        })
    }

    fn save(&self) {
        if let Some(locked) = &self.locked {
            // If this fails, the file lists too much, which does no harm: see the head of this file.
            let _ = locked.save(&self.changes);
        }
    }

    fn take_back(&mut self) -> Vec<String> {
        self.over = true;
        match self.locked.take() {
            Some(locked) => restore(&mut self.kernel, &mut self.changes, &locked),
            None => Vec::new(),
        }
    }
}

fn set_port(port: &Changed, optional: &[String]) -> HwPort {
    HwPort {
        device: port.device.clone(),
        device_index: port.index,
        port: port.port,
        set: true,
        optional: optional.to_vec(),
        why: None,
    }
}

fn is_same(one: &Changed, other: &Changed) -> bool {
    let of = |it: &Changed| (it.index, it.node_guid, it.inode, it.port);
    of(one) == of(other)
}

/// Takes changes back. Those for which that fails stay in the list and in the file.
fn restore(kernel: &mut impl Kernel, changes: &mut Changes, locked: &Locked) -> Vec<String> {
    let mut lines = restore_ports(kernel, changes);
    if let Err(error) = locked.save(changes) {
        lines.push(format!("the file of changed counters cannot be written: {error}"));
    }
    lines
}

fn restore_ports(kernel: &mut impl Kernel, changes: &mut Changes) -> Vec<String> {
    let mut lines = Vec::new();
    changes.ports.retain(|port| {
        let device = match kernel.device(port.index) {
            Ok(device) if agree(device.node_guid, port.node_guid) && agree(device.inode, port.inode) => device,
            // The device is gone, and its counters with it.
            Ok(_) => return false,
            Err(error) if is_gone(&error) && !kernel.is_anywhere(&port.device) => return false,
            Err(error) if is_gone(&error) => {
                let off = step!(
                    "sudo nsenter -t PID -n rdma statistic qp set link {}/{} auto off",
                    ShellWord::device(&port.device),
                    port.port
                );
                lines.push(format!(
                    "counters of {} port {}: mode auto,pid set by rdmatop stays: the device is in another network \
                     namespace; `{off}` with the PID of a process there ends it, and {BOUND}",
                    port.device, port.port
                ));
                return true;
            }
            Err(error) => {
                lines.push(format!(
                    "counters of {} port {}: what rdmatop set could not be taken back: {error}; {AGAIN}",
                    port.device, port.port
                ));
                return true;
            }
        };
        let name = format!("counters of {} port {}", device.name, port.port);
        match restore_mode(kernel, port) {
            Ok(done) => lines.extend(done.map(|done| format!("{name}: {done}"))),
            Err(error) => {
                let off = step!(
                    "sudo rdma statistic qp set link {}/{} auto off",
                    ShellWord::device(&device.name),
                    port.port
                );
                lines.push(format!(
                    "{name}: mode auto,pid set by rdmatop could not be taken back: {error}; `{off}` ends it, and {BOUND}"
                ));
                return true;
            }
        }
        if let Err(error) = restore_optional(kernel, port) {
            lines.push(format!(
                "{name}: optional counters that rdmatop switched on could not be taken back: {error}; {AGAIN}"
            ));
            return true;
        }
        false
    });
    lines
}

/// Whether this error of a request for a device says that there is no such device: nldev.c answers EINVAL for
/// an index that no device has.
fn is_gone(error: &NetlinkError) -> bool {
    match error {
        NetlinkError::NoRdma => true,
        NetlinkError::Kernel { errno, .. } => matches!(*errno, libc::EINVAL | libc::ENODEV | libc::ENOENT),
        _ => false,
    }
}

/// Takes back the mode of a port; returns what was done, in words. `None`: it had not been set yet.
fn restore_mode(kernel: &mut impl Kernel, port: &Changed) -> Result<Option<String>, NetlinkError> {
    const DONE: &str = "mode auto,pid set by rdmatop was taken back";
    let (index, number) = (port.index, port.port);
    let binding = kernel.binding(index, number)?;
    if binding.mode == Mode::Auto && binding.mask == Mask::PID {
        // Afterwards the port would read as if another program had bound its QPs: what cannot be listed now
        // is left for the next start.
        let before = bound_by_us(kernel, index, number)?;
        kernel.order(&set_auto(index, number, Mask::default(), false))?;
        Ok(Some(match unbind_all(kernel, index, number, before) {
            Ok(0) => DONE.to_owned(),
            Ok(qps) => format!("{DONE}; {qps} queue pairs stay bound until they are destroyed"),
            Err(error) => format!("{DONE}; how many queue pairs stay bound is not known: {error}"),
        }))
    } else if binding.mode == Mode::None {
        Ok(None)
    } else {
        Ok(Some(
            "another program has changed their mode since, which stays".to_owned(),
        ))
    }
}

fn restore_optional(kernel: &mut impl Kernel, port: &Changed) -> Result<(), NetlinkError> {
    if let Some([before, after]) = &port.optional
        && decide::counting(&kernel.optional(port.index, port.port)?) == *after
    {
        kernel.order(&set_optional(port.index, port.port, before))?;
    }
    Ok(())
}

/// Unbinds the QPs that the kernel bound by process: before the mode was set none was bound. Those of
/// `before` where they cannot be listed now. Returns how many stay bound.
fn unbind_all(
    kernel: &mut impl Kernel,
    index: u32,
    port: u32,
    before: Vec<CounterSet>,
) -> Result<usize, NetlinkError> {
    let bound = bound_by_us(kernel, index, port).unwrap_or(before);
    for set in &bound {
        for qp in &set.qps {
            // An error is ignored: a QP that was destroyed meanwhile needs no unbinding.
            let _ = kernel.order(&unbind(index, port, set.id, *qp));
        }
    }
    let left = bound_by_us(kernel, index, port)?;
    Ok(left.iter().map(|set| set.qps.len()).sum())
}

fn bound_by_us(kernel: &mut impl Kernel, index: u32, port: u32) -> Result<Vec<CounterSet>, NetlinkError> {
    let mut sets = kernel.bound(index)?;
    // The owner is not compared: the kernel sends none when the process has ended.
    sets.retain(|set| set.port == port && set.mode == Some(Mode::Auto) && set.qp_type.is_none());
    Ok(sets)
}

#[cfg(test)]
mod tests;
