//! Attaches fentry and fexit programs to a module's functions.
//!
//! The kernel identifies the function by its type id in the module's BTF, and the module by its BTF object.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
};

use aya_obj::generated::{bpf_attach_type, bpf_cmd};

use crate::{
    hooks::Entry,
    load::{
        Loader, Target,
        error::LoadError,
        sys::{bpf, btf_info, empty, find_btf},
    },
    offsets::btf::Btf,
};

/// `ENOTSUPP` of include/linux/errno.h, which only the kernel uses: no libc has a name for it.
const ENOTSUPP: i32 = 524;

/// Why a program is not attached.
#[derive(Debug, thiserror::Error)]
pub(super) enum FentryError {
    /// The program could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("the kernel has no BTF for {0}")]
    NoBtf(String),
    #[error("the BTF of the module has no function {0}")]
    NoFunction(String),
    /// The kernel's ftrace cannot call programs, as on arm64 before Linux 6.4.
    #[error("this kernel cannot enter programs at functions (ENOTSUPP)")]
    Unsupported,
    #[error("cannot read the kernel's BTF objects: {command}")]
    Btf {
        /// Command of bpf(2).
        command: &'static str,
        /// The kernel's answer.
        #[source]
        error: io::Error,
    },
    #[error("cannot attach")]
    Refused(#[source] io::Error),
}

/// A module whose functions fentry and fexit programs can be attached to.
pub(crate) struct Module {
    btf: Arc<Btf>,
    object: OwnedFd,
}

impl Module {
    pub(crate) fn open(name: &str, btf: Arc<Btf>) -> Result<Self, FentryError> {
        Ok(Self {
            btf,
            object: module_btf(name)?,
        })
    }

    /// Loads one program and attaches it to a function of the module. Returns the program and its link; the
    /// program runs as long as the link is open.
    pub(crate) fn attach(
        &self,
        loader: &Loader,
        program: &str,
        entry: Entry,
        function: &str,
    ) -> Result<(OwnedFd, OwnedFd), FentryError> {
        let id = self.btf.function(function);
        let target = Target::Function {
            attach: match entry {
                Entry::Fexit => bpf_attach_type::BPF_TRACE_FEXIT,
                _ => bpf_attach_type::BPF_TRACE_FENTRY,
            },
            id: id.ok_or_else(|| FentryError::NoFunction(function.to_owned()))?,
            module: &self.object,
        };
        let program = loader.load(program, &target)?;
        let mut attr = empty();
        // Without a name the kernel attaches the program to the function that it was loaded for.
        attr.raw_tracepoint.prog_fd = program.as_raw_fd().cast_unsigned();
        // SAFETY: the attribute names only the descriptor above.
        let link = unsafe { bpf(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attr) };
        let link = link.map_err(|error| match error.raw_os_error() {
            Some(ENOTSUPP) => FentryError::Unsupported,
            _ => FentryError::Refused(error),
        })?;
        Ok((program, link))
    }
}

fn module_btf(module: &str) -> Result<OwnedFd, FentryError> {
    let is_it = |object: OwnedFd| {
        let (info, name) = btf_info(&object, &mut [])?;
        let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
        let is_it = info.kernel_btf != 0 && name.get(..end) == Some(module.as_bytes());
        Ok(is_it.then_some(object))
    };
    match find_btf(usize::MAX, is_it) {
        Ok(found) => found.ok_or_else(|| FentryError::NoBtf(module.to_owned())),
        Err((command, error)) => Err(FentryError::Btf { command, error }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_the_kernel_refused_is_named() {
        let without_rights = || {
            rdmatop_sources::privileges::renounce();
            module_btf("ib_core").unwrap_err().to_string()
        };
        let why = std::thread::spawn(without_rights).join().unwrap();
        assert_eq!(why, "cannot read the kernel's BTF objects: BPF_BTF_GET_NEXT_ID");
    }
}
