//! The events kept for the Trace tab.

use std::collections::VecDeque;
use std::sync::Arc;

use rdmatop_model::event::Event;

/// Events kept.
pub const KEPT: usize = 10_000;
// The memory that the log may take, besides names that events share.
const _: () = assert!(KEPT * size_of::<Event>() <= 3 << 20, "events have grown");

/// Whose events to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Events of the QP of this identity, and of no other one with the same number. Its device and number are
    /// for events from before the engine knew the QP.
    Qp(u64, Arc<str>, u32),
    /// Events of the process of this id and name.
    Process(u32, Arc<str>),
    /// Events of one device.
    Device(Arc<str>),
}

impl Follow {
    /// Whether `event` is one of them. Losses concern every view.
    pub fn matches(&self, event: &Event) -> bool {
        if event.count.is_some() {
            return true;
        }
        match self {
            Self::Qp(uid, device, qpn) => match event.qp_uid {
                Some(of) => of == *uid,
                None => event.qpn == Some(*qpn) && event.device.as_ref() == Some(device),
            },
            Self::Process(pid, _) => event.pid == Some(*pid) || event.by_pid == Some(*pid),
            Self::Device(device) => event.device.as_ref() == Some(device),
        }
    }

    /// Who it is.
    pub fn name(&self) -> String {
        match self {
            Self::Qp(_, device, qpn) => format!("QP {device}/{qpn}"),
            Self::Process(pid, comm) => super::format::process(comm, Some(*pid)),
            Self::Device(device) => device.to_string(),
        }
    }
}

/// A bounded log, oldest first.
#[derive(Debug, Default)]
pub struct TraceLog {
    events: VecDeque<Event>,
    forgotten: u64,
}

impl TraceLog {
    /// Adds an event; the oldest goes when the log is full.
    pub fn push(&mut self, event: Event) {
        // Reserves all room at once; the kernel provides only pages that are written. A buffer that doubles
        // its size would leave its old halves in the heap.
        if self.events.capacity() < KEPT {
            self.events.reserve_exact(KEPT - self.events.len());
        }
        if self.events.len() == KEPT {
            self.events.pop_front();
            self.forgotten += 1;
        }
        self.events.push_back(event);
    }

    /// Event at `at`, from the oldest kept.
    pub fn get(&self, at: usize) -> Option<&Event> {
        self.events.get(at)
    }

    /// Number of the event at `at`, which stays the same while older events go.
    pub fn number(&self, at: usize) -> u64 {
        self.forgotten + at as u64
    }

    /// Events kept.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether no event is kept.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Number of events that had to make room for newer ones.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Empties the log; the numbers of events go on.
    pub fn clear(&mut self) {
        self.forgotten += self.events.len() as u64;
        self.events.clear();
    }
}
