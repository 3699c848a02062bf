//! Finds which offsets each program of the embedded object reads, for the test that compares the tables of
//! hooks with the programs.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use aya_obj::{
    Object,
    generated::{BPF_DW, BPF_IMM, BPF_LD, BPF_PSEUDO_MAP_VALUE},
};
use rdmatop_base::order::Gather as _;
use rdmatop_common::offsets::{OFFSETS, TRACEPOINT_FIELDS};

/// The globals that each program refers to, including those of the functions that it calls.
///
/// This gives each global a distinct value and links the object as for loading. A 64-bit load of an address
/// in a map then points at a value that tells which global it is.
pub(crate) fn by_program(elf: &[u8]) -> BTreeMap<String, BTreeSet<&'static str>> {
    let globals: Vec<&'static str> = OFFSETS
        .iter()
        .map(|offset| offset.global)
        .chain(TRACEPOINT_FIELDS.iter().map(|field| field.global))
        .collect();
    let marks: BTreeMap<u32, &'static str> = (0x5eed_0000..).zip(globals).gather();
    let mut object = Object::parse(elf).expect("the embedded object can be read");
    let values: Vec<(&'static str, [u8; 4])> = marks
        .iter()
        .map(|(mark, global)| (*global, mark.to_ne_bytes()))
        .collect();
    let patches = values
        .iter()
        .map(|(global, value)| (*global, (&value[..], true)))
        .collect();
    object
        .patch_map_data(patches)
        .expect("the object has every global that is to be resolved");
    let text: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
    let maps: Vec<_> = std::mem::take(&mut object.maps).into_iter().collect();
    let numbered = (0..)
        .zip(&maps)
        .map(|(number, (name, map))| (name.as_str(), number, map));
    object.relocate_maps(numbered, &text).expect("maps are linked");
    object.relocate_calls(&text).expect("calls are linked");
    let read_at = |map: i32, place: i32| -> Option<&'static str> {
        let (_, map) = maps.get(usize::try_from(map).ok()?)?;
        let place = usize::try_from(place).ok()?;
        let word = map.data().get(place..place + 4)?;
        marks.get(&u32::from_ne_bytes(word.try_into().ok()?)).copied()
    };
    let loads = |program: &aya_obj::Program| {
        let code = &object.functions[&program.function_key()].instructions;
        let pairs = code.iter().zip(code.iter().skip(1));
        let places = pairs.filter(|(first, _)| {
            u32::from(first.code) == BPF_LD | BPF_IMM | BPF_DW
                && u32::from(first.src_reg()) == BPF_PSEUDO_MAP_VALUE
        });
        places
            .filter_map(|(first, second)| read_at(first.imm, second.imm))
            .collect()
    };
    object
        .programs
        .iter()
        .map(|(name, program)| (name.clone(), loads(program)))
        .gather()
}
