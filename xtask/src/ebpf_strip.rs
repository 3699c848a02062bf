//! The eBPF object without its DWARF, which the BTF was made from and which is of no use at run time: three quarters
//! of the file, and thirty thousand relocations that the loader would read at each start.
//!
//! Also part of rdmatop's build script, which embeds the result.

use object::LittleEndian;
use object::elf::{FileHeader64, SHT_NULL};
use object::pod::{bytes_of, bytes_of_slice};
use object::read::elf::{FileHeader as _, SectionHeader as _};

/// Data of a section begins at a multiple of this.
const ALIGN: usize = 8;

/// Copies an object section by section and leaves those of debug info empty. Sections keep their numbers, by which
/// symbols and relocations go.
pub(crate) fn without_debug(elf: &[u8]) -> Result<Vec<u8>, object::Error> {
    let header = FileHeader64::<LittleEndian>::parse(elf)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, elf)?;
    let mut out = bytes_of(header).to_vec();
    let mut table = Vec::new();
    for section in sections.iter() {
        let mut kept = *section;
        let name = sections.section_name(endian, section).unwrap_or_default();
        if name.starts_with(b".debug_") || name.starts_with(b".rel.debug_") {
            kept.sh_type.set(endian, SHT_NULL);
            kept.sh_offset.set(endian, 0);
            kept.sh_size.set(endian, 0);
        } else {
            out.resize(out.len().next_multiple_of(ALIGN), 0);
            kept.sh_offset.set(endian, out.len() as u64);
            out.extend_from_slice(section.data(endian, elf)?);
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

#[cfg(test)]
mod tests {
    use object::{Object as _, ObjectSection as _};

    use super::*;

    /// A file with a section table: name, type and content of each section.
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
    fn what_is_no_object_is_an_error() {
        assert!(without_debug(b"").is_err());
        assert!(without_debug(&[0x7f; 200]).is_err());
        let whole = file(&[("kprobe", object::elf::SHT_PROGBITS, b"code")]);
        for len in 0..whole.len() {
            assert!(without_debug(&whole[..len]).is_err(), "cut at {len}");
        }
    }
}
