//! What `lab up` made, kept across commands and lost with the boot, as the devices are.
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::LabError;

/// An RDMA device that we made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MadeDevice {
    pub(super) name: String,
    /// Tells ours from a later device of the same name.
    pub(super) index: u32,
    pub(super) netdev: String,
}

/// A dummy interface that we made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MadeInterface {
    pub(super) name: String,
    /// Tells ours from a later interface of the same name.
    pub(super) index: u32,
}

/// Everything that we made, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Made {
    pub(super) interfaces: Vec<MadeInterface>,
    pub(super) devices: Vec<MadeDevice>,
}

/// The file that keeps [`Made`].
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
}

impl Store {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.into() }
    }

    fn failed(&self, action: &'static str, reason: &dyn ToString) -> LabError {
        LabError::State {
            action,
            path: self.path.display().to_string(),
            reason: reason.to_string(),
        }
    }

    /// What was made; nothing if there is no file. A file that does not parse is an error: to take it for
    /// nothing would orphan what it lists.
    pub(super) fn load(&self) -> Result<Made, LabError> {
        match fs::read(&self.path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| self.failed("read", &error)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Made::default()),
            Err(error) => Err(self.failed("read", &error)),
        }
    }

    /// Writes a new file and renames it over the old one, so that a crash leaves one of the two whole. Nothing
    /// made: no file.
    pub(super) fn save(&self, made: &Made) -> Result<(), LabError> {
        if *made == Made::default() {
            return match fs::remove_file(&self.path) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(self.failed("remove", &error)),
                _ => Ok(()),
            };
        }
        let write = || -> std::io::Result<()> {
            if let Some(dir) = self.path.parent() {
                fs::create_dir_all(dir)?;
            }
            let new = self.path.with_extension("json.new");
            let mut file = fs::File::create(&new)?;
            file.write_all(&serde_json::to_vec_pretty(made)?)?;
            file.sync_all()?;
            fs::rename(&new, &self.path)
        };
        write().map_err(|error| self.failed("write", &error))
    }
}
