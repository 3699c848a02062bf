//! Makes maps and programs in the kernel from the embedded object.
//!
//! Aya's own loader always reads all of vmlinux's BTF, which rdmatop does not need (`EbpfLoader::new`, 88 M
//! instructions and some 20 MB). It also loads and keeps every program, and cannot attach fentry programs to
//! a module's functions. So aya-obj parses and links the object, aya handles maps, and this module loads the
//! programs: only the wanted ones, one by one, so that each gets its own verdict. Only this module,
//! `attach/fentry.rs` and [`sys`] depend on aya-obj's version.
pub(crate) mod error;
pub(crate) mod object;
pub(crate) mod program_log;
pub(crate) mod sys;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use aya::maps::{Map, MapData};
use aya_obj::{
    EbpfSectionKind, Object,
    generated::{
        BPF_DW, BPF_IMM, BPF_LD, BPF_PSEUDO_MAP_FD, BPF_PSEUDO_MAP_VALUE, bpf_attach_type, bpf_attr, bpf_cmd,
        bpf_insn, bpf_map_type, bpf_prog_type,
    },
};
use rdmatop_base::order::Gather as _;
use rdmatop_common::{counters::place, names::map, offsets::COUNTS};
use rustix::param::page_size;

use crate::load::{
    error::LoadError,
    sys::{bpf, empty, raw_bpf},
};

/// Maps that user space always reads. Other maps are made only if a wanted program names them.
const ALWAYS: [&str; 4] = [map::CALLERS, map::CONTROL, map::EVENTS, map::LOSSES];

/// Tables whose entries the kernel makes beforehand if it warns about making them on demand.
const ON_DEMAND: [&str; 5] = [
    map::QP_INDEX,
    map::QPN_INDEX,
    map::QUEUE_SLOTS,
    map::VERB_INDEX,
    map::VERB_ERROR_INDEX,
];

/// Functions by which the programs find a slot (`rdmatop-ebpf/src/slots.rs`): where nothing is counted, no QP
/// has one. With all that they alone call they are a third of what a trace loads first, and the kernel takes
/// 2,000 instructions for each instruction of a program even if nothing reaches it.
const SLOTS: [&str; 2] = ["search", "settle"];
/// `BPF_ALU | BPF_MOV | BPF_K` and `BPF_JMP | BPF_EXIT`, include/uapi/linux/bpf.h.
const MOV_32: u8 = 0xb4;
const EXIT: u8 = 0x95;

/// `BPF_F_NO_PREALLOC`, include/uapi/linux/bpf.h.
const NO_PREALLOC: u32 = 1;

/// Whether tracing programs may use hash tables that allocate an entry when its key is inserted: since Linux
/// 6.1 these use `bpf_mem_alloc`. A vendor's older kernel may support that too; there rdmatop takes more
/// memory than needed.
pub(super) fn allocates_on_demand(version: Option<(u32, u32)>) -> bool {
    version.is_some_and(|version| version >= (6, 1))
}

/// The size of a ring buffer for which `asked` bytes, a power of two, are wanted. The kernel refuses a size
/// that is not a multiple of the page size (`ringbuf_map_alloc`), which is up to 64 KiB on arm64.
fn ring_bytes(asked: u32, page: usize) -> u32 {
    u32::try_from(page).map_or(asked, |page| asked.max(page))
}

/// What to make from the object.
pub(super) struct Wanted<'a> {
    /// Programs that may be loaded.
    pub(super) programs: &'a BTreeSet<&'static str>,
    /// Maps whose number of entries differs from the object's.
    pub(super) entries: &'a [(&'static str, u32)],
    /// Whether tables may take memory when a key is inserted: [`allocates_on_demand`].
    pub(super) on_demand: bool,
    /// Values of read-only globals.
    pub(super) globals: &'a BTreeMap<&'static str, u32>,
}

/// What to load a program as.
pub(super) enum Target<'a> {
    /// kprobe or kretprobe: to the kernel both are the same program type.
    Kprobe,
    Tracepoint,
    RawTracepoint,
    /// fentry or fexit of a function, given by its type id in a module's BTF.
    Function {
        attach: bpf_attach_type,
        id: u32,
        module: &'a OwnedFd,
    },
}

/// A linked object whose programs can be loaded.
pub(super) struct Loader {
    object: Object,
    /// The object's own BTF, loaded into the kernel, which requires it for programs that pass a callback to
    /// bpf_loop. `None` if the kernel did not accept it.
    own: Option<OwnedFd>,
}

/// The maps of an object, by name.
pub(super) type Maps = HashMap<String, Map>;

fn link(error: &dyn std::fmt::Display) -> LoadError {
    LoadError::Link(error.to_string())
}

impl Loader {
    /// Makes the maps and links the programs.
    pub(super) fn new(elf: &[u8], wanted: &Wanted<'_>) -> Result<(Self, Maps), LoadError> {
        let mut object = Object::parse(elf).map_err(|e| link(&e))?;
        let values: BTreeMap<_, _> = wanted
            .globals
            .iter()
            .map(|(name, value)| (*name, value.to_ne_bytes()))
            .gather();
        let globals = values
            .iter()
            .map(|(name, value)| (*name, (&value[..], true)))
            .collect();
        object.patch_map_data(globals).map_err(|e| link(&e))?;
        let text = object.functions.keys().map(|(section, _)| *section).collect();
        // Functions that programs call are in a section without programs. Keep them.
        let sections: BTreeSet<usize> = object.programs.values().map(|p| p.section_index).gather();
        object
            .programs
            .retain(|name, _| wanted.programs.contains(name.as_str()));
        let kept: BTreeSet<_> = object
            .programs
            .values()
            .map(aya_obj::Program::function_key)
            .gather();
        object
            .functions
            .retain(|key, _| kept.contains(key) || !sections.contains(&key.0));
        let own = own_btf(&mut object);
        // First link with numbers, to learn which maps the wanted programs name, and only then make maps.
        let mut definitions: Vec<_> = std::mem::take(&mut object.maps).into_iter().collect();
        object
            .relocate_maps(
                (0..)
                    .zip(&definitions)
                    .map(|(number, (name, definition))| (name.as_str(), number, definition)),
                &text,
            )
            .map_err(|e| link(&e))?;
        if wanted.globals.get(COUNTS) == Some(&0) {
            leave_out_slots(&mut object)?;
        }
        object.relocate_calls(&text).map_err(|e| link(&e))?;
        object.sanitize_functions(aya::features());
        let named: BTreeSet<i32> = linked(&mut object).map(|insn| insn.imm).gather();
        let mut maps = Maps::new();
        let mut fds = HashMap::new();
        for (number, (name, definition)) in (0..).zip(&mut definitions) {
            if let Some((_, entries)) = wanted.entries.iter().find(|(map, _)| map == name) {
                definition.set_max_entries(*entries);
            }
            if definition.map_type() == bpf_map_type::BPF_MAP_TYPE_RINGBUF as u32 {
                definition.set_value_size(0);
                definition.set_max_entries(ring_bytes(definition.max_entries(), page_size()));
            }
            if let aya_obj::Map::Legacy(map) = &mut *definition
                && !wanted.on_demand
                && ON_DEMAND.contains(&name.as_str())
            {
                map.def.map_flags &= !NO_PREALLOC;
            }
            if !named.contains(&number) && !ALWAYS.contains(&name.as_str()) {
                // No program uses this map. Each map takes a page or two, and there are dozens of them.
                continue;
            }
            let map = MapData::create(definition.clone(), name, None)?;
            fill(&map, definition)?;
            fds.insert(number, map.fd().as_fd().as_raw_fd());
            maps.insert(name.clone(), Map::from_map_data(map)?);
        }
        for insn in linked(&mut object) {
            insn.imm = *fds
                .get(&insn.imm)
                .ok_or_else(|| LoadError::Link(format!("no map {}", insn.imm)))?;
        }
        Ok((Self { object, own }, maps))
    }

    /// Has the kernel verify one program.
    pub(super) fn load(&self, name: &str, target: &Target<'_>) -> Result<OwnedFd, LoadError> {
        let no_program = || LoadError::NoProgram(name.to_owned());
        let code = self.object.programs.get(name).ok_or_else(no_program)?;
        let linked = self
            .object
            .functions
            .get(&code.function_key())
            .ok_or_else(no_program)?;
        let instructions = &linked.instructions;
        log::debug!(program = name, instructions = instructions.len(); "load");
        let functions = linked.func_info.func_info_bytes();
        let mut attr = empty();
        // SAFETY: a union of plain integers, all zero; the fields of PROG_LOAD are written.
        let load = unsafe { &mut attr.__bindgen_anon_3 };
        let kind = match target {
            Target::Kprobe => bpf_prog_type::BPF_PROG_TYPE_KPROBE,
            Target::Tracepoint => bpf_prog_type::BPF_PROG_TYPE_TRACEPOINT,
            Target::RawTracepoint => bpf_prog_type::BPF_PROG_TYPE_RAW_TRACEPOINT,
            Target::Function { attach, id, module } => {
                load.expected_attach_type = *attach as u32;
                load.attach_btf_id = *id;
                load.__bindgen_anon_1.attach_btf_obj_fd = module.as_raw_fd().cast_unsigned();
                bpf_prog_type::BPF_PROG_TYPE_TRACING
            }
        };
        load.prog_type = kind as u32;
        load.insns = instructions.as_ptr() as u64;
        load.insn_cnt = u32::try_from(instructions.len()).unwrap_or(u32::MAX);
        load.license = code.license.as_ptr() as u64;
        if let Some(own) = &self.own {
            load.prog_btf_fd = own.as_raw_fd().cast_unsigned();
            load.func_info = functions.as_ptr() as u64;
            load.func_info_cnt = u32::try_from(linked.func_info.len()).unwrap_or(0);
            load.func_info_rec_size = u32::try_from(linked.func_info_rec_size).unwrap_or(0);
        }
        for (to, from) in load.prog_name.iter_mut().take(15).zip(name.bytes()) {
            *to = from.cast_signed() as _;
        }
        // SAFETY: instructions, function records and licence outlive the call.
        unsafe { bpf(bpf_cmd::BPF_PROG_LOAD, &mut attr) }.map_err(|error| {
            // If permission is missing, the verifier did not refuse the program, and there is no log.
            let detail = match error.raw_os_error() {
                Some(libc::EPERM) => String::new(),
                _ => verifier_log(&mut attr),
            };
            LoadError::Refused {
                what: "cannot load",
                error: if detail.is_empty() {
                    error
                } else {
                    io::Error::new(error.kind(), format!("{error}{detail}"))
                },
            }
        })
    }
}

/// Makes the functions that find a slot return that the QP has none. Before the programs are linked.
fn leave_out_slots(object: &mut Object) -> Result<(), LoadError> {
    // SAFETY: plain integers.
    let mut code: [bpf_insn; 2] = unsafe { std::mem::zeroed() };
    // The result is in register 0.
    (code[0].code, code[0].imm) = (MOV_32, place::UNCOUNTED.cast_signed());
    code[1].code = EXIT;
    for name in SLOTS {
        let mut functions = object.functions.values_mut();
        let function = functions.find(|function| function.name == name);
        let function = function.ok_or_else(|| LoadError::Link(format!("no function {name}")))?;
        function.instructions = code.to_vec();
    }
    Ok(())
}

/// The instructions of the object's programs that name a map.
fn linked(object: &mut Object) -> impl Iterator<Item = &mut bpf_insn> {
    let programs: BTreeSet<_> = object
        .programs
        .values()
        .map(aya_obj::Program::function_key)
        .gather();
    object
        .functions
        .iter_mut()
        .filter(move |(key, _)| programs.contains(key))
        .flat_map(|(_, function)| &mut function.instructions)
        .filter(|insn| names_map(**insn))
}

/// Whether an instruction is the first half of a 64-bit load of a map or of an address in a map.
fn names_map(insn: bpf_insn) -> bool {
    const LOAD_64: u32 = BPF_LD | BPF_IMM | BPF_DW;
    u32::from(insn.code) == LOAD_64
        && matches!(
            u32::from(insn.src_reg()),
            BPF_PSEUDO_MAP_FD | BPF_PSEUDO_MAP_VALUE
        )
}

/// Writes the data of a section into its map. Freezes read-only sections, because the verifier then knows
/// their values and follows only one path where a value decides.
fn fill(map: &MapData, definition: &mut aya_obj::Map) -> Result<(), LoadError> {
    let fd = map.fd().as_fd().as_raw_fd().cast_unsigned();
    let refused = |what| move |error| LoadError::Refused { what, error };
    // A new map holds zeros, as .bss does.
    if !definition.data().is_empty() && definition.section_kind() != EbpfSectionKind::Bss {
        let key = 0u32;
        let mut attr = empty();
        // SAFETY: a union of plain integers, all zero; the fields of MAP_UPDATE_ELEM are written.
        let element = unsafe { &mut attr.__bindgen_anon_2 };
        element.map_fd = fd;
        element.key = std::ptr::from_ref(&key) as u64;
        element.__bindgen_anon_1.value = definition.data_mut().as_mut_ptr() as u64;
        // SAFETY: the key is that of an array, and the value is as long as the section of the map.
        unsafe { raw_bpf(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut attr) }
            .map_err(refused("cannot fill the globals"))?;
    }
    if definition.section_kind() == EbpfSectionKind::Rodata {
        let mut attr = empty();
        // SAFETY: as above.
        unsafe { &mut attr.__bindgen_anon_2 }.map_fd = fd;
        // SAFETY: the attribute names only the descriptor above.
        unsafe { raw_bpf(bpf_cmd::BPF_MAP_FREEZE, &mut attr) }
            .map_err(refused("cannot freeze the globals"))?;
    }
    Ok(())
}

/// Loads the BTF of the object itself. A kernel that refuses it may still accept programs.
fn own_btf(object: &mut Object) -> Option<OwnedFd> {
    let features = aya::features().btf()?;
    let btf = object.fixup_and_sanitize_btf(features).ok()??.to_bytes();
    let mut attr = empty();
    attr.__bindgen_anon_7.btf = btf.as_ptr() as u64;
    attr.__bindgen_anon_7.btf_size = u32::try_from(btf.len()).unwrap_or(u32::MAX);
    // SAFETY: the bytes outlive the call.
    unsafe { bpf(bpf_cmd::BPF_BTF_LOAD, &mut attr) }.ok()
}

/// Loads the program again with a log, and returns the last lines of the log. The first try has no log,
/// because a log costs time.
fn verifier_log(attr: &mut bpf_attr) -> String {
    // Before Linux 6.4 a log that is too long for the buffer lacks its end, where the reason is. Pages of the
    // buffer that are never written cost nothing.
    const SIZE: u32 = 1 << 24;
    let mut log = vec![0u8; SIZE as usize];
    // SAFETY: the attribute is that of the failed load.
    let load = unsafe { &mut attr.__bindgen_anon_3 };
    load.log_level = 1;
    load.log_size = SIZE;
    load.log_buf = log.as_mut_ptr() as u64;
    // SAFETY: as in `load`; the log buffer lives until the end of this function.
    drop(unsafe { bpf(bpf_cmd::BPF_PROG_LOAD, attr) });
    // After the first zero the buffer holds remains of paths that the verifier has given up.
    let said = log.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(said);
    let mut lines: Vec<_> = text.lines().rev().take(6).collect();
    lines.reverse();
    if lines.is_empty() {
        String::new()
    } else {
        format!(": {}", lines.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insn(code: u32, source: u32) -> bpf_insn {
        // SAFETY: plain integers.
        let mut insn: bpf_insn = unsafe { std::mem::zeroed() };
        insn.code = u8::try_from(code).unwrap();
        insn.set_src_reg(u8::try_from(source).unwrap());
        insn
    }

    #[test]
    fn a_ring_buffer_has_a_page_at_least_whatever_the_size_of_pages_is() {
        for (asked, page, bytes) in [
            (4096, 4096, 4096),
            (4096, 16 << 10, 16 << 10),
            (4096, 64 << 10, 64 << 10),
            (512 << 10, 64 << 10, 512 << 10),
        ] {
            assert_eq!(ring_bytes(asked, page), bytes);
        }
    }

    #[test]
    fn entries_are_made_beforehand_where_the_kernel_warns_of_others() {
        for old in [None, Some((5, 10)), Some((5, 14)), Some((6, 0))] {
            assert!(!allocates_on_demand(old), "{old:?}");
        }
        for new in [(6, 1), (6, 12), (7, 0)] {
            assert!(allocates_on_demand(Some(new)), "{new:?}");
        }
    }

    #[test]
    fn without_slots_the_programs_of_a_modify_lose_two_thirds() {
        let Some(elf) = object::embedded() else {
            return eprintln!("skipped: built without the eBPF object");
        };
        let length = |leave_out: bool| {
            let mut object = Object::parse(&elf).unwrap();
            if leave_out {
                leave_out_slots(&mut object).unwrap();
            }
            let text = object.functions.keys().map(|(section, _)| *section).collect();
            object.relocate_calls(&text).unwrap();
            let key = object.programs["modify_qp"].function_key();
            object.functions[&key].instructions.len()
        };
        assert!(
            length(true) * 3 < length(false),
            "{} of {}",
            length(true),
            length(false)
        );
    }

    #[test]
    fn only_loads_of_maps_and_of_places_in_them_name_a_map() {
        const BPF_PSEUDO_FUNC: u32 = 4;
        let load = BPF_LD | BPF_IMM | BPF_DW;
        assert!(names_map(insn(load, BPF_PSEUDO_MAP_FD)));
        assert!(names_map(insn(load, BPF_PSEUDO_MAP_VALUE)));
        assert!(!names_map(insn(load, 0)), "a number");
        assert!(!names_map(insn(load, BPF_PSEUDO_FUNC)));
        // The second half of such a load, and a call, whose source is 1 too.
        assert!(!names_map(insn(0, BPF_PSEUDO_MAP_FD)));
        assert!(!names_map(insn(0x85, 1)));
    }
}
