//! Attaches fentry and fexit programs to a module's functions.
//!
//! The kernel identifies the function by its type id in the module's BTF, and the module by its BTF object.

use std::{io, os::fd::OwnedFd, sync::Arc};

use aya_obj::generated::{bpf_attach_type, bpf_btf_info, bpf_cmd};

use crate::{
    attach::probe::{AttachError, Event, open_raw},
    load::{
        Loader, Target,
        sys::{bpf, empty, info, raw_bpf},
    },
    offsets::btf::Btf,
};

/// `ENOTSUPP` of include/linux/errno.h, which only the kernel uses: no libc has a name for it.
const ENOTSUPP: i32 = 524;

/// A module whose functions fentry and fexit programs can be attached to.
pub(crate) struct Module {
    btf: Arc<Btf>,
    object: OwnedFd,
}

impl Module {
    pub(crate) fn open(name: &str, btf: Arc<Btf>) -> Result<Self, AttachError> {
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
    ) -> Result<(OwnedFd, Event), AttachError> {
        let id = self.btf.function(function);
        let target = Target::Function {
            attach: if at_return {
                bpf_attach_type::BPF_TRACE_FEXIT
            } else {
                bpf_attach_type::BPF_TRACE_FENTRY
            },
            id: id.ok_or_else(|| AttachError::NoFunction(function.to_owned()))?,
            module: &self.object,
        };
        let program = loader.load(program, &target)?;
        // Without a name the kernel attaches the program to the function that it was loaded for.
        let event = open_raw(&program, None).map_err(|error| match error.raw_os_error() {
            Some(ENOTSUPP) => AttachError::Unsupported,
            _ => AttachError::Bind(error),
        })?;
        Ok((program, event))
    }
}

/// The kernel's BTF object of a module.
fn module_btf(module: &str) -> Result<OwnedFd, AttachError> {
    let failed = |command| move |error| AttachError::Btf { command, error };
    let is_absent = |error: &io::Error| error.raw_os_error() == Some(libc::ENOENT);
    let mut id = 0;
    loop {
        let mut attr = empty();
        attr.__bindgen_anon_6.__bindgen_anon_1.start_id = id;
        // SAFETY: the attribute holds only the number that the command takes.
        match unsafe { raw_bpf(bpf_cmd::BPF_BTF_GET_NEXT_ID, &mut attr) } {
            Err(error) if is_absent(&error) => return Err(AttachError::NoBtf(module.to_owned())),
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
