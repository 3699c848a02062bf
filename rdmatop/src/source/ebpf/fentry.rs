//! Loading fentry and fexit programs onto a module's functions.
//!
//! Aya's own loader looks functions up in vmlinux's BTF only and cannot name a module's. So the object is parsed
//! a second time, its map references are filled with the descriptors of the maps that aya made, and the program
//! is loaded here, with the module's BTF object. Everything that depends on aya-obj's version is in this file.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd},
    sync::Arc,
};

use aya::{
    Ebpf,
    maps::{Map, MapData},
};
use aya_obj::{
    Object,
    generated::{bpf_attach_type, bpf_attr, bpf_btf_info, bpf_cmd, bpf_prog_type},
};

use super::{btf::Btf, plan::Entry};

/// Why a program is not on.
#[derive(Debug, thiserror::Error)]
pub(super) enum FentryError {
    /// aya-obj could not read or link the object.
    #[error("cannot link the object: {0}")]
    Link(String),
    /// The module has no BTF in the kernel.
    #[error("the kernel has no BTF for {0}")]
    NoBtf(String),
    /// The module's BTF has no such function.
    #[error("the BTF of the module has no function {0}")]
    NoFunction(String),
    /// The object has no such program.
    #[error("the object has no program {0}")]
    NoProgram(String),
    /// The kernel refused.
    #[error("{what}: {error}")]
    Refused {
        /// Step.
        what: &'static str,
        /// Answer.
        error: io::Error,
    },
}

/// A parsed object whose programs can be loaded onto one module.
pub(super) struct Loader {
    object: Object,
    btf: Arc<Btf>,
    module: OwnedFd,
    /// The object's own BTF, loaded: the kernel asks for it where a program passes a callback to bpf_loop.
    own: OwnedFd,
}

/// A program that runs until this is dropped.
#[derive(Debug)]
pub(super) struct Link {
    _link: OwnedFd,
    pub(super) program: OwnedFd,
}

fn data(map: &Map) -> Option<&MapData> {
    Some(match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::LruHashMap(data)
        | Map::Queue(data)
        | Map::RingBuf(data)
        | Map::Stack(data) => data,
        _ => return None,
    })
}

impl Loader {
    /// Parses and links. All maps must still be in `ebpf`.
    pub(super) fn new(ebpf: &Ebpf, elf: &[u8], module: &str, btf: Arc<Btf>) -> Result<Self, FentryError> {
        let link = |error: &dyn std::fmt::Display| FentryError::Link(error.to_string());
        let mut object = Object::parse(elf).map_err(|e| link(&e))?;
        let maps = std::mem::take(&mut object.maps);
        let fds: HashMap<&str, RawFd> = ebpf
            .maps()
            .filter_map(|(name, map)| Some((name, data(map)?.fd().as_fd().as_raw_fd())))
            .collect();
        let text = object.functions.keys().map(|(section, _)| *section).collect();
        object
            .relocate_maps(
                maps.iter()
                    .filter_map(|(name, map)| Some((name.as_str(), *fds.get(name.as_str())?, map))),
                &text,
            )
            .map_err(|e| link(&e))?;
        object.relocate_calls(&text).map_err(|e| link(&e))?;
        object.sanitize_functions(aya::features());
        let own = load_own_btf(&mut object)?;
        Ok(Self {
            object,
            btf,
            module: module_btf(module)?,
            own,
        })
    }

    /// Loads one program and attaches it to a function of the module.
    pub(super) fn attach(&self, program: &str, entry: Entry, function: &str) -> Result<Link, FentryError> {
        let id = self
            .btf
            .function(function)
            .ok_or_else(|| FentryError::NoFunction(function.to_owned()))?;
        let no_program = || FentryError::NoProgram(program.to_owned());
        let code = self.object.programs.get(program).ok_or_else(no_program)?;
        let linked = self
            .object
            .functions
            .get(&code.function_key())
            .ok_or_else(no_program)?;
        let instructions = &linked.instructions;
        let functions = linked.func_info.func_info_bytes();
        let mut attr = empty();
        // SAFETY: a union of plain integers, all zero; the fields of PROG_LOAD are written.
        let load = unsafe { &mut attr.__bindgen_anon_3 };
        load.prog_type = bpf_prog_type::BPF_PROG_TYPE_TRACING as u32;
        load.expected_attach_type = match entry {
            Entry::Fexit => bpf_attach_type::BPF_TRACE_FEXIT,
            _ => bpf_attach_type::BPF_TRACE_FENTRY,
        } as u32;
        load.insns = instructions.as_ptr() as u64;
        load.insn_cnt = u32::try_from(instructions.len()).unwrap_or(u32::MAX);
        load.license = code.license.as_ptr() as u64;
        load.prog_btf_fd = self.own.as_raw_fd().cast_unsigned();
        load.func_info = functions.as_ptr() as u64;
        load.func_info_cnt = u32::try_from(linked.func_info.len()).unwrap_or(0);
        load.func_info_rec_size = u32::try_from(linked.func_info_rec_size).unwrap_or(0);
        load.attach_btf_id = id;
        load.__bindgen_anon_1.attach_btf_obj_fd = self.module.as_raw_fd().cast_unsigned();
        for (to, from) in load.prog_name.iter_mut().take(15).zip(program.bytes()) {
            *to = from.cast_signed() as _;
        }
        // SAFETY: instructions, function records and licence outlive the call.
        let program = unsafe { bpf(bpf_cmd::BPF_PROG_LOAD, &mut attr) }.map_err(|error| {
            let detail = verifier_log(&mut attr);
            FentryError::Refused {
                what: "cannot load",
                error: io::Error::new(error.kind(), format!("{error}{detail}")),
            }
        })?;
        let mut attr = empty();
        // Without a name the program's own target is meant.
        attr.raw_tracepoint.prog_fd = program.as_raw_fd().cast_unsigned();
        // SAFETY: the attribute names only the descriptor above.
        let link = unsafe { bpf(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attr) }.map_err(|error| {
            FentryError::Refused {
                what: "cannot attach",
                error,
            }
        })?;
        Ok(Link { _link: link, program })
    }
}

/// Loads the BTF of the object itself.
fn load_own_btf(object: &mut Object) -> Result<OwnedFd, FentryError> {
    let link = |why: String| FentryError::Link(why);
    let features = aya::features()
        .btf()
        .ok_or_else(|| link("this kernel takes no BTF".into()))?;
    let btf = object
        .fixup_and_sanitize_btf(features)
        .map_err(|error| link(error.to_string()))?
        .ok_or_else(|| link("it has no BTF".into()))?
        .to_bytes();
    let mut attr = empty();
    attr.__bindgen_anon_7.btf = btf.as_ptr() as u64;
    attr.__bindgen_anon_7.btf_size = u32::try_from(btf.len()).unwrap_or(u32::MAX);
    // SAFETY: the bytes outlive the call.
    unsafe { bpf(bpf_cmd::BPF_BTF_LOAD, &mut attr) }.map_err(|error| FentryError::Refused {
        what: "cannot load the object's BTF",
        error,
    })
}

/// Loads again with a log and gives its last lines: the first try went without, because the log costs time.
fn verifier_log(attr: &mut bpf_attr) -> String {
    const SIZE: u32 = 1 << 20;
    let mut log = vec![0u8; SIZE as usize];
    // SAFETY: the attribute is that of the failed load.
    let load = unsafe { &mut attr.__bindgen_anon_3 };
    load.log_level = 1;
    load.log_size = SIZE;
    load.log_buf = log.as_mut_ptr() as u64;
    // SAFETY: as in `attach`; the log buffer lives until the end of this function.
    drop(unsafe { bpf(bpf_cmd::BPF_PROG_LOAD, attr) });
    let text = String::from_utf8_lossy(&log);
    let mut lines: Vec<_> = text.trim_end_matches('\0').lines().rev().take(6).collect();
    lines.reverse();
    if lines.is_empty() {
        String::new()
    } else {
        format!(": {}", lines.join("; "))
    }
}

pub(super) fn empty() -> bpf_attr {
    // SAFETY: a union of plain integers; the kernel wants what a command does not use to be zero.
    unsafe { std::mem::zeroed() }
}

/// The bpf system call, for commands that return a descriptor.
///
/// # Safety
/// The attribute must be the command's, and addresses in it must be valid.
pub(super) unsafe fn bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise.
    let fd = unsafe { raw_bpf(command, attr) }?;
    // SAFETY: the kernel has just made it, for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// As [`bpf`], for any command.
pub(super) unsafe fn raw_bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<RawFd> {
    // SAFETY: the caller's promise.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_long,
            std::ptr::from_mut(attr),
            size_of::<bpf_attr>(),
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    i32::try_from(rc).map_err(io::Error::other)
}

/// The BTF object of a loaded module.
fn module_btf(module: &str) -> Result<OwnedFd, FentryError> {
    let refused = |what| move |error| FentryError::Refused { what, error };
    let mut id = 0;
    loop {
        let mut attr = empty();
        attr.__bindgen_anon_6.__bindgen_anon_1.start_id = id;
        // SAFETY: the attribute holds the command's one number.
        match unsafe { raw_bpf(bpf_cmd::BPF_BTF_GET_NEXT_ID, &mut attr) } {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                return Err(FentryError::NoBtf(module.to_owned()));
            }
            Err(error) => return Err(refused("cannot list BTF objects")(error)),
        }
        // SAFETY: the kernel filled it in.
        id = unsafe { attr.__bindgen_anon_6.next_id };
        let mut attr = empty();
        attr.__bindgen_anon_6.__bindgen_anon_1.btf_id = id;
        // SAFETY: as above.
        let fd = match unsafe { bpf(bpf_cmd::BPF_BTF_GET_FD_BY_ID, &mut attr) } {
            Ok(fd) => fd,
            // It has gone since it was listed.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
            Err(error) => return Err(refused("cannot open a BTF object")(error)),
        };
        let mut name = [0u8; 64];
        let mut info = bpf_btf_info {
            btf: 0,
            btf_size: 0,
            id: 0,
            name: name.as_mut_ptr() as u64,
            name_len: 64,
            kernel_btf: 0,
        };
        let mut attr = empty();
        attr.info.bpf_fd = fd.as_raw_fd().cast_unsigned();
        attr.info.info_len = u32::try_from(size_of::<bpf_btf_info>()).unwrap_or(0);
        attr.info.info = std::ptr::from_mut(&mut info) as u64;
        // SAFETY: info and name outlive the call.
        unsafe { raw_bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr) }
            .map_err(refused("cannot read a BTF object's name"))?;
        let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
        if info.kernel_btf != 0 && name.get(..end) == Some(module.as_bytes()) {
            return Ok(fd);
        }
    }
}
