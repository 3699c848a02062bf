//! Removes from the eBPF object its DWARF, which BTF is made from but which nothing needs at run time: it is
//! three quarters of the file, with thirty thousand relocations that the loader would read at each start.
//! Also removes the source line of each instruction, half of the remaining file: the loader does not pass it
//! to the kernel.
//!
//! rdmatop's build script includes this file too, and embeds the result.

use object::LittleEndian;
use object::elf::{FileHeader64, SHT_NULL};
use object::pod::{bytes_of, bytes_of_slice};
use object::read::elf::{FileHeader as _, SectionHeader as _};

/// Section data begins at a multiple of this.
const ALIGN: usize = 8;

/// Copies an object section by section and leaves debug sections empty. All sections keep their numbers,
/// because symbols and relocations refer to them.
pub(crate) fn without_debug(elf: &[u8]) -> Result<Vec<u8>, object::Error> {
    let header = FileHeader64::<LittleEndian>::parse(elf)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, elf)?;
    let mut out = bytes_of(header).to_vec();
    let mut table = Vec::new();
    for section in sections.iter() {
        let mut kept = *section;
        let name = sections.section_name(endian, section).unwrap_or_default();
        // The relocations of .BTF.ext only repeat instruction offsets that the section itself has.
        if name.starts_with(b".debug_") || name.starts_with(b".rel.debug_") || name == b".rel.BTF.ext" {
            kept.sh_type.set(endian, SHT_NULL);
            kept.sh_offset.set(endian, 0);
            kept.sh_size.set(endian, 0);
        } else {
            let mut data = section.data(endian, elf)?;
            let shorter = (name == b".BTF.ext").then(|| without_lines(data)).flatten();
            if let Some(shorter) = &shorter {
                data = shorter;
                // Only here: a section of zeros (.bss) has no data in the file, but its size is not 0.
                kept.sh_size.set(endian, data.len() as u64);
            }
            out.resize(out.len().next_multiple_of(ALIGN), 0);
            kept.sh_offset.set(endian, out.len() as u64);
            out.extend_from_slice(data);
        }
        table.push(kept);
    }
    out.resize(out.len().next_multiple_of(ALIGN), 0);
    let mut header = *header;
    header.e_shoff.set(endian, out.len() as u64);
    out.extend_from_slice(bytes_of_slice(&table));
    let start = bytes_of(&header);
    out[..start.len()].copy_from_slice(start);
    Ok(out)
}

/// Returns a .BTF.ext section without source lines; `None` if its form is unknown.
///
/// Its header (`struct btf_ext_header`, tools/lib/bpf/libbpf_internal.h) has its own length, then offset and
/// length of function info, of line info and, in a longer header, of CO-RE relocations. Offsets count from
/// the end of the header.
fn without_lines(ext: &[u8]) -> Option<Vec<u8>> {
    const HEADER_LEN: usize = 4;
    const FUNCTIONS: usize = 8;
    const LINES: usize = 16;
    const RELOCATIONS: usize = 24;
    let number = |at: usize| -> Option<usize> {
        let bytes = ext.get(at..at.checked_add(4)?)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    let header_len = number(HEADER_LEN)?;
    let mut out = ext.get(..header_len)?.to_vec();
    let mut parts = vec![(FUNCTIONS, true), (LINES, false)];
    if header_len >= RELOCATIONS + 8 {
        parts.push((RELOCATIONS, true));
    }
    for (at, keep) in parts {
        let begin = header_len.checked_add(number(at)?)?;
        let content = ext.get(begin..begin.checked_add(number(at + 4)?)?)?;
        let content = if keep { content } else { &[] };
        let offset = u32::try_from(out.len() - header_len).ok()?;
        out.get_mut(at..at + 4)?.copy_from_slice(&offset.to_le_bytes());
        let len = u32::try_from(content.len()).ok()?;
        out.get_mut(at + 4..at + 8)?.copy_from_slice(&len.to_le_bytes());
        out.extend_from_slice(content);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use object::{Object as _, ObjectSection as _};

    use super::*;

    /// Builds an ELF file with a section table from name, type and content of each section.
    fn file(sections: &[(&str, u32, &[u8])]) -> Vec<u8> {
        use object::elf::{ELFCLASS64, ELFDATA2LSB, ELFMAG, EV_CURRENT, SHT_STRTAB, SectionHeader64};
        let mut names = vec![0];
        let mut out = vec![0; 64];
        let mut table = Vec::new();
        let section = |name: usize, kind: u32, at: usize, len: usize| {
            let mut header: SectionHeader64<LittleEndian> = *object::pod::from_bytes(&[0; 64])
                .map(|(header, _)| header)
                .unwrap();
            header.sh_name.set(LittleEndian, u32::try_from(name).unwrap());
            header.sh_type.set(LittleEndian, kind);
            header.sh_offset.set(LittleEndian, at as u64);
            header.sh_size.set(LittleEndian, len as u64);
            header
        };
        table.push(section(0, SHT_NULL, 0, 0));
        for (name, kind, content) in sections {
            table.push(section(names.len(), *kind, out.len(), content.len()));
            names.extend(name.as_bytes());
            names.push(0);
            out.extend(*content);
        }
        table.push(section(0, SHT_STRTAB, out.len(), names.len()));
        out.extend(&names);
        let mut header: FileHeader64<LittleEndian> = *object::pod::from_bytes(&[0; 64])
            .map(|(header, _)| header)
            .unwrap();
        header.e_ident.magic = ELFMAG;
        header.e_ident.class = ELFCLASS64;
        header.e_ident.data = ELFDATA2LSB;
        header.e_ident.version = EV_CURRENT;
        header.e_shoff.set(LittleEndian, out.len() as u64);
        header.e_shentsize.set(LittleEndian, 64);
        header
            .e_shnum
            .set(LittleEndian, u16::try_from(table.len()).unwrap());
        header
            .e_shstrndx
            .set(LittleEndian, u16::try_from(table.len() - 1).unwrap());
        out.extend(bytes_of_slice(&table));
        out[..64].copy_from_slice(bytes_of(&header));
        out
    }

    #[test]
    fn debug_info_goes_and_what_stays_keeps_its_number_and_content() {
        use object::elf::{SHT_PROGBITS, SHT_REL};
        let before = file(&[
            ("kprobe", SHT_PROGBITS, b"code"),
            (".debug_info", SHT_PROGBITS, &[1; 4096]),
            (".rel.debug_info", SHT_REL, &[2; 64]),
            (".BTF", SHT_PROGBITS, b"types"),
        ]);
        let after = without_debug(&before).unwrap();
        assert!(after.len() + 4096 < before.len());
        let file = object::File::parse(&*after).unwrap();
        let find = |name| {
            let section = file.section_by_name(name)?;
            Some((section.index().0, section.data().unwrap().to_vec()))
        };
        assert_eq!(find("kprobe"), Some((1, b"code".to_vec())));
        assert_eq!(find(".BTF"), Some((4, b"types".to_vec())));
        assert_eq!(find(".debug_info").map(|(_, data)| data.len()), Some(0));
        assert_eq!(
            file.symbols().filter(object::ObjectSymbol::is_definition).count(),
            0
        );
    }

    #[test]
    fn source_lines_go_and_functions_and_relocations_stay() {
        use object::elf::{SHT_NOBITS, SHT_PROGBITS, SHT_REL};
        let header = |offsets: [u32; 6]| -> Vec<u8> {
            let numbers = [0x0001_eb9f, 32].into_iter().chain(offsets);
            numbers.flat_map(u32::to_le_bytes).collect()
        };
        // Functions have 4 bytes, lines 6, relocations 3; the data has another order than the header.
        let ext = [header([9, 4, 3, 6, 0, 3]), b"rellinesxfunc".to_vec()].concat();
        let wanted = [header([0, 4, 4, 0, 4, 3]), b"funcrel".to_vec()].concat();
        assert_eq!(without_lines(&ext), Some(wanted.clone()));
        assert_eq!(
            without_lines(&wanted),
            Some(wanted.clone()),
            "nothing is left to remove"
        );
        for len in 0..ext.len() {
            assert_eq!(without_lines(&ext[..len]), None, "cut at {len}");
        }
        let before = file(&[
            (".BTF.ext", SHT_PROGBITS, &ext),
            (".rel.BTF.ext", SHT_REL, &[3; 64]),
            (".bss", SHT_NOBITS, &[0; 7]),
        ]);
        let after = without_debug(&before).unwrap();
        let file = object::File::parse(&*after).unwrap();
        let data = |name| {
            file.section_by_name(name)
                .map(|section| section.data().unwrap().to_vec())
        };
        assert_eq!(data(".BTF.ext"), Some(wanted));
        assert_eq!(data(".rel.BTF.ext"), Some(Vec::new()));
        assert_eq!(file.section_by_name(".bss").map(|bss| bss.size()), Some(7));
    }

    #[test]
    fn what_is_no_object_is_an_error() {
        assert!(without_debug(b"").is_err());
        assert!(without_debug(&[0x7f; 200]).is_err());
        let whole = file(&[("kprobe", object::elf::SHT_PROGBITS, b"code")]);
        for len in 0..whole.len() {
            assert!(without_debug(&whole[..len]).is_err(), "cut at {len}");
        }
    }
}
