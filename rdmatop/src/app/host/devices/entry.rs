//! State of a device that netlink lists.

use std::{ffi::OsString, sync::Arc};

use super::{elsewhere::Place, harm::Harm, job::DeviceAnswer, known::Listed};
use rdmatop_base::text;
use rdmatop_model::{cause::Cause, input::DeviceReading};
use rdmatop_sources::{
    netlink::{name::Name, record::Device},
    root::Root,
    sysfs::{device_dir, list_devices},
};

/// A device that netlink lists.
#[derive(Default)]
pub(super) struct Entry {
    /// A number of our own for this generation of the device.
    pub(super) id: u64,
    pub(super) index: u32,
    pub(super) name: Name,
    /// The device's name, safe to print.
    pub(super) shown: Arc<str>,
    /// The user wants it left alone: it is listed, and its driver is asked for nothing.
    pub(super) excluded: bool,
    /// Its network namespace, if that is another one.
    pub(super) place: Option<Arc<Place>>,
    /// Since when lists lack it, ns: it may be on its way to another network namespace, or in one that cannot
    /// be read.
    pub(super) missed: Option<u64>,
    /// Its PCI address, once it was listed.
    pub(super) pci: Option<String>,
    /// When its counters were last asked for, ns.
    pub(super) asked_ns: u64,
    /// Its last listing; `None` before the first one, and while a thread reads.
    pub(super) listed: Option<Box<Listed>>,
    /// It has to be listed as soon as it can be asked.
    pub(super) owes_list: bool,
    /// Since when its QPs are wanted, until it can be asked.
    pub(super) owes_qps: Option<u64>,
    /// It was renamed: its last listing has the old name.
    pub(super) renamed: bool,
    /// What reading its counters does.
    pub(super) harm: Harm,
    /// What could not be read of it.
    pub(super) errors: Vec<Cause>,
    /// Why its QPs could not be listed.
    pub(super) qp_errors: Vec<Cause>,
}

impl Entry {
    /// A device that has just been found.
    pub(super) fn new(id: u64, index: u32, name: &Name, root: &Root) -> Self {
        let shown: Arc<str> = text::sanitize(name.as_bytes()).into();
        let excluded = root.excludes(&shown);
        Self {
            id,
            index,
            name: name.clone(),
            shown,
            excluded,
            owes_list: !excluded,
            ..Self::default()
        }
    }

    /// Gives the device another name.
    pub(super) fn rename(&mut self, name: &Name, root: &Root) {
        self.name = name.clone();
        self.shown = text::sanitize(name.as_bytes()).into();
        self.excluded = root.excludes(&self.shown);
        self.renamed = true;
    }

    /// Takes over where it is. Files of its counters that are open are those of the place where it was.
    pub(super) fn is_at(&mut self, place: Option<&Arc<Place>>) {
        if self.place.as_ref() != place {
            self.place = place.cloned();
            self.renamed = true;
        }
    }

    /// Whether its directory in sysfs is there, in the network namespace where it was.
    pub(super) fn is_in_sysfs(&self, own: &[OsString]) -> bool {
        let there = self
            .place
            .as_ref()
            .map(|place| list_devices(&place.root()).unwrap_or_default());
        device_dir(self.name.as_bytes()).is_some_and(|dir| there.as_deref().unwrap_or(own).contains(&dir))
    }

    /// The device as it was last listed; with index and name alone while a thread reads it.
    pub(super) fn device(&self) -> Device {
        let kept = self.listed.as_ref().map(|listed| listed.device().clone());
        kept.unwrap_or_else(|| Device {
            index: self.index,
            name: self.name.clone(),
            ..Device::default()
        })
    }

    /// Its reading where only the list is known.
    pub(super) fn held(&self) -> DeviceReading {
        DeviceReading {
            index: self.index,
            name: self.shown.to_string(),
            held: true,
            ..DeviceReading::default()
        }
    }

    /// Takes over the parts of its answer that do not go to the engine.
    pub(super) fn answered(&mut self, answer: &mut DeviceAnswer) {
        self.listed = answer.listed.take();
        if let Some(all) = &answer.all {
            self.pci.clone_from(&all.pci);
        }
        if let Some(errors) = answer.errors.take() {
            self.errors = errors;
        }
        self.owes_list = answer.other || (self.owes_list && answer.all.is_none()) || self.renamed;
        if let Some(qps) = &mut answer.qps {
            // A dump that began before they were wanted does not count.
            self.owes_qps = self.owes_qps.filter(|since_ns| qps.mono_ns < *since_ns);
            self.qp_errors = std::mem::take(&mut qps.errors);
        }
    }
}
