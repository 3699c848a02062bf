//! A number and where it came from.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use serde::Serialize;

/// Where a value was learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Counted or seen by our eBPF programs: exact since attach.
    Ebpf,
    /// RDMA netlink (nldev).
    Netlink,
    /// A file under /sys.
    Sysfs,
    /// A file under /proc.
    Proc,
    /// Derived, not counted (for example packets from the movement of a PSN).
    Est,
}

/// A count that only grows, and its speed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Counter {
    /// Count since creation or since attach, in the counter's own unit.
    pub total: u64,
    /// Per second over the last interval; `None` without an honest interval (first sample, reset, re-add).
    pub rate: Option<f64>,
    /// Where it came from.
    pub source: Source,
}

/// A list that snapshots share: it changes rarely and is told every second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Shared<T>(Arc<Vec<T>>);

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> From<Vec<T>> for Shared<T> {
    fn from(list: Vec<T>) -> Self {
        Self(Arc::new(list))
    }
}

impl<T> FromIterator<T> for Shared<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        Vec::from_iter(items).into()
    }
}

impl<T> Deref for Shared<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        Arc::make_mut(&mut self.0)
    }
}

impl<'a, T> IntoIterator for &'a Shared<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}
