//! The devices that there are: those that netlink lists, and those that are being removed.

use std::{
    ffi::{OsStr, OsString},
    sync::Arc,
};

use super::{
    elsewhere::Place,
    entry::Entry,
    harm,
    job::{DeviceAnswer, DeviceList},
    removals::Removals,
    round::Round,
    schedule::Subject,
};
use rdmatop_base::text;
use rdmatop_model::{
    cause::{Cause, CauseId, Concerns},
    input::{DeviceReading, UNLISTED},
};
use rdmatop_sources::{clock::now, netlink::record::NetnsMode, removal, root::Root, sysfs::device_dir};

/// In mode exclusive a device that no list has is kept for this long, ns: while the kernel moves it, no
/// network namespace has it.
pub(super) const MOVES: u64 = 3_000_000_000;
/// The same for a device that is in some namespace by its verbs file: a search finds it there, once a process
/// is in that namespace.
pub(super) const COMES: u64 = 15_000_000_000;

#[derive(Default)]
pub(super) struct Present {
    pub(super) root: Root,
    pub(super) entries: Vec<Entry>,
    /// Devices that are being removed.
    pub(super) removals: Removals,
    /// Numbers given to devices so far.
    ids: u64,
    /// Directories of devices at the last listing.
    pub(super) dirs: Option<Vec<OsString>>,
    /// Where devices are seen, if that is known.
    pub(super) mode: Option<NetnsMode>,
}

impl Present {
    pub(super) fn new(root: Root) -> Self {
        Self {
            root,
            ..Self::default()
        }
    }

    /// Records which devices netlink lists. Returns those that it no longer lists.
    pub(super) fn update(&mut self, found: &DeviceList, now_ns: u64) -> Vec<Entry> {
        let mut gone = Vec::new();
        if !found.interrupted {
            let dirs = self.dirs.as_deref().unwrap_or_default();
            for mut entry in std::mem::take(&mut self.entries) {
                let listed = found.counts(entry.index).is_some();
                let missed_ns = *entry.missed.get_or_insert(now_ns);
                let comes = found.absent.iter().any(|name| **name == *entry.shown);
                let moves = self.mode == Some(NetnsMode::Exclusive)
                    && now_ns.saturating_sub(missed_ns) < if comes { COMES } else { MOVES }
                    && !entry.is_in_sysfs(dirs);
                if listed || found.is_silent(&entry) || moves {
                    self.entries.push(entry);
                } else {
                    gone.push(entry);
                }
            }
        }
        for (name, counts) in &found.devices {
            let index = counts.device_index;
            if !self.entries.iter().any(|entry| entry.index == index) {
                self.ids += 1;
                self.entries.push(Entry::new(self.ids, index, name, &self.root));
            }
            for entry in self.entries.iter_mut().filter(|entry| entry.index == index) {
                if entry.name != *name {
                    entry.rename(name, &self.root);
                }
                entry.missed = None;
                entry.is_at(found.places.get(&index));
            }
        }
        gone
    }

    pub(super) fn are_these(&self, found: &DeviceList) -> bool {
        let is = |entry: &Entry| {
            let mut names = found.devices.iter();
            names.any(|(name, counts)| counts.device_index == entry.index && *name == entry.name)
                && found.places.get(&entry.index) == entry.place.as_ref()
        };
        let listed = || self.entries.iter().filter(|entry| entry.missed.is_none());
        found.devices.len() == listed().count() && listed().all(is)
    }

    /// Those of the directories of devices that a list of netlink's lacks.
    pub(super) fn unlisted(&self, dirs: &[OsString], found: &DeviceList) -> Vec<OsString> {
        let is = |dir: &OsStr| {
            let mut names = found.devices.iter();
            names.any(|(name, _)| device_dir(name.as_bytes()).is_some_and(|name| name == dir))
        };
        removal::unlisted(&self.root, dirs, is, self.mode == Some(NetnsMode::Shared))
    }

    /// Records which devices are being removed: those of the directories in `leaving`. Returns whether one of
    /// the others is on its way to another network namespace: until its directory moves, it looks the same.
    pub(super) fn leave(&mut self, leaving: &[OsString], gone: Vec<Entry>, now_ns: u64) -> bool {
        let ids = &mut self.ids;
        let over = self.removals.update(&self.root, leaving, gone, now_ns, || {
            *ids += 1;
            *ids
        });
        let mut some_moves = false;
        for mut entry in over {
            let is_new = self.entries.iter().all(|known| known.index != entry.index);
            if self.mode == Some(NetnsMode::Exclusive) && is_new && entry.index < UNLISTED {
                some_moves = true;
                (entry.missed, entry.owes_list) = (Some(now_ns), !entry.excluded);
                self.entries.push(entry);
            }
        }
        some_moves
    }

    /// The network namespace of what is read, if that is another one.
    pub(super) fn place_of(&self, subject: Subject) -> Option<Arc<Place>> {
        let mut all = self.entries.iter().chain(self.removals.entries());
        let of_it = all.find(|entry| Subject::Device(entry.id) == subject);
        of_it.and_then(|entry| entry.place.clone())
    }

    /// Whether a number belongs to one of them.
    pub(super) fn has(&self, id: u64) -> bool {
        let mut all = self.entries.iter().chain(self.removals.entries());
        all.any(|entry| entry.id == id)
    }

    /// Takes over what belongs to the device with this number, and gives the rest to the round.
    pub(super) fn answered(&mut self, id: u64, mut answer: DeviceAnswer, round: &mut Round) {
        if let Some(going) = self.removals.iter_mut().find(|going| going.entry.id == id) {
            going.entry.listed = answer.listed;
            // An answer of another kind is from the time when netlink still listed the device.
            let all = answer.all.filter(|reading| reading.removing);
            return round.add(DeviceAnswer {
                all,
                ..DeviceAnswer::default()
            });
        }
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) else {
            return;
        };
        if let Some(broke) = answer.broke {
            entry.harm.counted(broke, now().mono_ns);
        }
        entry.answered(&mut answer);
        round.add(answer);
    }

    /// All of them, unread.
    pub(super) fn held(&self) -> Vec<DeviceReading> {
        let listed = self.entries.iter().map(|entry| DeviceReading {
            left_alone: entry.excluded,
            ..entry.held()
        });
        let going = self.removals.entries().map(|entry| DeviceReading {
            removing: true,
            ..entry.held()
        });
        listed.chain(going).collect()
    }

    /// The devices whose counters are left alone for now.
    pub(super) fn pauses(&self) -> impl Iterator<Item = Cause> {
        let now_ns = now().mono_ns;
        let paused = self
            .entries
            .iter()
            .filter(move |entry| entry.harm.is_paused(now_ns));
        paused.map(|entry| harm::pause(&entry.shown))
    }

    pub(super) fn left_alone(&self) -> Option<Cause> {
        let entries = self.entries.iter().filter(|entry| entry.excluded);
        let names: Vec<&str> = entries.map(|entry| &*entry.shown).collect();
        (!names.is_empty()).then(|| Cause {
            id: CauseId::Excluded,
            concerns: Concerns::Host,
            what: text::names(&names),
            why: "not read, as --exclude-device or the settings say".into(),
            remedy: "".into(),
        })
    }
}
