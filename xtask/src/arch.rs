//! The architectures of artefacts and of the lab's guests, and the name that each tool has for them.

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
    /// Returns Rust's target triple.
    pub(crate) fn triple(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-linux-gnu",
            Self::Aarch64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// Returns the name that `uname -m`, zig and rpm use.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// Returns Debian's name of the architecture.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// Whether this machine runs programs of the architecture natively.
    pub(crate) fn is_here(self) -> bool {
        self.name() == env::consts::ARCH
    }
}
