//! Network namespaces, and the mode in which RDMA devices belong to them.

use std::process::Command;

use anyhow::Result;

use crate::child::output;

/// A network namespace that drop deletes.
#[derive(Debug)]
pub struct Namespace(&'static str);

impl Namespace {
    /// Makes one.
    pub fn new(name: &'static str) -> Result<Self> {
        output(Command::new("ip").args(["netns", "add", name]))?;
        Ok(Self(name))
    }

    /// The name by which `ip netns` knows it.
    pub fn name(&self) -> &'static str {
        self.0
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = output(Command::new("ip").args(["netns", "delete", self.0]));
    }
}

/// While this lives, each RDMA device belongs to one network namespace.
#[derive(Debug)]
pub struct Exclusive;

impl Exclusive {
    /// The kernel changes this mode only while there is no other namespace.
    pub fn on() -> Result<Self> {
        output(Command::new("rdma").args(["system", "set", "netns", "exclusive"]))?;
        Ok(Self)
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        let _ = output(Command::new("rdma").args(["system", "set", "netns", "shared"]));
    }
}
