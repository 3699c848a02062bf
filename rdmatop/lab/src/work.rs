//! What `lab up`, `lab down` and `lab run` have at hand while they change the machine.
use std::thread;
use std::time::{Duration, Instant};

use super::host::{Host, Interface, RXE};
use super::state::{Made, MadeDevice, MadeInterface, MadeModule};
use super::{LabError, ours, say::Printer, store::Locked};

const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// What makes an interface of a hardware address.
type Add<'a> = dyn Fn(&mut dyn Host, [u8; 6]) -> Result<(), LabError> + 'a;

/// The machine, and the list of what was made of it. What is about to be made is in the file before the
/// kernel is asked for it, see `state.rs`.
pub(super) struct Work<'a, 'b> {
    pub(super) host: &'a mut dyn Host,
    pub(super) locked: &'a Locked<'a>,
    pub(super) say: &'a mut Printer<'b>,
    pub(super) made: Made,
}

impl<'a, 'b> Work<'a, 'b> {
    /// Begins with what was made in this boot.
    pub(super) fn begin(
        host: &'a mut dyn Host,
        locked: &'a Locked<'a>,
        say: &'a mut Printer<'b>,
    ) -> Result<Self, LabError> {
        let boot = host.boot();
        let made = locked.load()?.filter(|made| made.may_be_of(&boot));
        Ok(Self {
            host,
            locked,
            say,
            made: made.unwrap_or_else(|| Made::new(&boot)),
        })
    }

    pub(super) fn save(&self) -> Result<(), LabError> {
        self.locked.save(&self.made)
    }

    /// Takes into the list what the kernel gave.
    pub(super) fn compare(&mut self) -> Result<(), LabError> {
        ours::compare(self.host, &mut self.made)?;
        self.save()
    }

    /// Loads rdma_rxe where that is missing.
    pub(super) fn load_rxe(&mut self) -> Result<(), LabError> {
        if self.host.has_rxe() {
            self.host.load_rxe()?;
        } else {
            self.made.module = Some(MadeModule { inode: None });
            self.save()?;
            let loaded = self.host.load_rxe();
            if loaded.is_err() && self.host.module_inode(RXE).is_none() {
                self.made.module = None;
                self.save()?;
            }
            loaded?;
            self.say.line(format_args!("loaded rdma_rxe"));
        }
        self.compare()
    }

    /// Makes a device. `run`: for `lab run`.
    pub(super) fn add_device(&mut self, name: &str, netdev: &Interface, run: bool) -> Result<(), LabError> {
        let before = self.host.devices()?;
        self.made.devices.push(MadeDevice {
            name: name.to_owned(),
            netdev: netdev.name.to_string(),
            netdev_index: netdev.index,
            before: before.iter().map(|device| device.index).collect(),
            found: None,
            run,
        });
        self.save()?;
        let added = self.host.add_device(name, netdev);
        self.compare()?;
        added?;
        self.say.line(format_args!("made {name} on {}", netdev.name));
        Ok(())
    }

    /// Makes an interface by `add`, which gets its address.
    pub(super) fn add_interface(&mut self, name: &str, run: bool, add: &Add<'_>) -> Result<(), LabError> {
        let address = self.host.new_address();
        self.made.interfaces.push(MadeInterface {
            name: name.to_owned(),
            address,
            found: None,
            run,
        });
        self.save()?;
        let added = add(self.host, address);
        self.compare()?;
        added
    }

    /// An interface of the list.
    pub(super) fn interface(&mut self, name: &str) -> Result<Interface, LabError> {
        let present = self.host.interfaces();
        let mut ours = self.made.interfaces.iter().filter(|ours| ours.name == name);
        let found = ours.find_map(|ours| ours::interface(ours, &present));
        found
            .cloned()
            .ok_or_else(|| LabError::NoInterface(name.to_owned()))
    }
}

/// Looks until there is something, or the time is over.
pub(super) fn wait<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + limit;
    loop {
        let found = look();
        if found.is_some() || Instant::now() > end {
            return found;
        }
        thread::sleep(BETWEEN_LOOKS);
    }
}
