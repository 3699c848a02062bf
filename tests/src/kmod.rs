//! The kernel modules of `tests/kmod`, which `cargo xtask lab modules` builds.

use std::{env, path::PathBuf, process::Command};

use anyhow::Result;

use crate::{child::output, lab};

/// A module that is unloaded when this is dropped.
#[derive(Debug)]
pub struct Module {
    name: &'static str,
}

impl Module {
    /// Loads module `name` with `options` for test `test`; if it was not built, prints that and returns
    /// `None`.
    pub fn load(test: &str, name: &'static str, options: &[&str]) -> Result<Option<Self>> {
        let Some(dir) = env::var_os("RDMATOP_KMOD") else {
            lab::skip(
                test,
                &format!(
                    "no module {name} for this kernel (RDMATOP_KMOD): `cargo xtask lab modules` builds it"
                ),
            );
            return Ok(None);
        };
        let file = PathBuf::from(dir).join(name).with_extension("ko");
        // insmod loads no dependencies, and without an RDMA device they are not loaded yet.
        output(Command::new("modprobe").arg("ib_uverbs"))?;
        output(Command::new("insmod").arg(file).args(options))?;
        Ok(Some(Self { name }))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Err(error) = output(Command::new("rmmod").arg(self.name)) {
            crate::table::say(&format!("cannot unload {}: {error:#}", self.name));
        }
    }
}
