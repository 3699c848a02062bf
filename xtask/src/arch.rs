//! The machines that artefacts are made for and guests of the lab are, and what each tool calls them.

use std::env;

use clap::ValueEnum;

/// A machine, as `uname -m` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Arch {
    /// Intel's and AMD's.
    #[default]
    #[value(name = "x86_64")]
    X86_64,
    /// ARM's: Grace, Graviton.
    #[value(name = "aarch64")]
    Aarch64,
}

impl Arch {
    /// Rust's target.
    pub(crate) fn triple(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-linux-gnu",
            Self::Aarch64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// What `uname -m`, zig and rpm call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// Returns the name that Debian has for it.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// Whether a program of it runs on this machine.
    pub(crate) fn is_here(self) -> bool {
        self.name() == env::consts::ARCH
    }
}
