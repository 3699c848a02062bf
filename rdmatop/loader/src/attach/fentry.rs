//! Attaches fentry and fexit programs to a module's functions.
//!
//! The kernel identifies the function by its type id in the module's BTF, and the module by its BTF object.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
};

use aya_obj::generated::{bpf_attach_type, bpf_btf_info, bpf_cmd};

use crate::{
    attach::probe::Event,
    load::{
        Loader, Target,
        error::LoadError,
        sys::{bpf, empty, info, raw_bpf},
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

    /// Loads one program and attaches it to a function of the module, at its entry or its return. Returns the
    /// program and what keeps it attached.
    pub(crate) fn attach(
        &self,
        loader: &Loader,
        program: &str,
        at_return: bool,
        function: &str,
    ) -> Result<(OwnedFd, Event), FentryError> {
        let id = self.btf.function(function);
        let target = Target::Function {
            attach: if at_return {
                bpf_attach_type::BPF_TRACE_FEXIT
            } else {
                bpf_attach_type::BPF_TRACE_FENTRY
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
        Ok((program, Event::of_link(link)))
    }
}

/// The kernel's BTF object of a module.
fn module_btf(module: &str) -> Result<OwnedFd, FentryError> {
    let failed = |command| move |error| FentryError::Btf { command, error };
    let is_absent = |error: &io::Error| error.raw_os_error() == Some(libc::ENOENT);
    let mut id = 0;
    loop {
        let mut attr = empty();
        attr.__bindgen_anon_6.__bindgen_anon_1.start_id = id;
        // SAFETY: the attribute holds only the number that the command takes.
        match unsafe { raw_bpf(bpf_cmd::BPF_BTF_GET_NEXT_ID, &mut attr) } {
            Err(error) if is_absent(&error) => return Err(FentryError::NoBtf(module.to_owned())),
            next => next.map_err(failed("BPF_BTF_GET_NEXT_ID"))?,
        };
        // SAFETY: the kernel has filled in this member.
        id = unsafe { attr.__bindgen_anon_6.next_id };
        let mut attr = empty();
        attr.__bindgen_anon_6.__bindgen_anon_1.btf_id = id;
        // SAFETY: the attribute holds only the number that the command takes.
        let object = match unsafe { bpf(bpf_cmd::BPF_BTF_GET_FD_BY_ID, &mut attr) } {
            // The object has been freed since it was listed.
            Err(error) if is_absent(&error) => continue,
            object => object.map_err(failed("BPF_BTF_GET_FD_BY_ID"))?,
        };
        let mut name = [0_u8; 64];
        let mut btf = bpf_btf_info {
            btf: 0,
            btf_size: 0,
            id: 0,
            name: name.as_mut_ptr() as u64,
            name_len: 64,
            kernel_btf: 0,
        };
        // SAFETY: plain integers; the name outlives the call, and its real length is passed.
        unsafe { info(&object, &mut btf) }.map_err(failed("BPF_OBJ_GET_INFO_BY_FD"))?;
        let own = name.split(|byte| *byte == 0).next();
        if btf.kernel_btf != 0 && own == Some(module.as_bytes()) {
            return Ok(object);
        }
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
