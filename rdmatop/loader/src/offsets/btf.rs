//! A small reader of BTF: it finds the offset of member `a.b.c` of struct `s`, and the type id of function
//! `f`.
//!
//! Format: Documentation/bpf/btf.rst. A module's file (`/sys/kernel/btf/<module>`) is split: its type ids and
//! string offsets continue those of vmlinux, so it is read on top of a shared base. The reader checks every
//! offset; a broken file is an error.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    path::Path,
    sync::Arc,
};

const MAGIC: u16 = 0xeb9f;
const HEADER_LEN: usize = 24;
/// Bytes that types of all kinds begin with.
const HEAD: usize = 12;
/// The most members to visit for all offsets of one file. A kernel's file needs some ten thousand; in a
/// broken file anonymous structs may contain each other without end.
const MOST_MEMBERS: u32 = 1 << 18;

/// Kinds of `btf_type` that the reader uses, include/uapi/linux/btf.h.
mod kind {
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const TYPEDEF: u32 = 8;
    pub(super) const VOLATILE: u32 = 9;
    pub(super) const CONST: u32 = 10;
    pub(super) const RESTRICT: u32 = 11;
    pub(super) const FUNC: u32 = 12;
    pub(super) const TYPE_TAG: u32 = 18;
}

/// Why BTF could not be used.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    /// The file cannot be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// File.
        path: String,
        /// Cause.
        error: std::io::Error,
    },
    /// The bytes are not BTF.
    #[error("not BTF: {0}")]
    Malformed(&'static str),
}

/// One BTF file, and its base if it is a module's.
#[derive(Debug)]
pub struct Btf {
    base: Option<Arc<Btf>>,
    data: Vec<u8>,
    /// Start of each type in `data`; the first has id `first_id`.
    types: Vec<u32>,
    first_id: u32,
    /// The part of `data` with the strings.
    strings: Range<usize>,
    /// Number of this file's first string: a split file's numbering begins with the strings of the base.
    first_string: usize,
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(
        data.get(at..at.checked_add(4)?)?.try_into().ok()?,
    ))
}

impl Btf {
    /// Reads a file; `base` is vmlinux's BTF for a module's.
    pub fn open(path: &Path, base: Option<Arc<Btf>>) -> Result<Self, BtfError> {
        let data = std::fs::read(path).map_err(|error| BtfError::Read {
            path: path.display().to_string(),
            error,
        })?;
        Self::parse(data, base)
    }

    /// Indexes the types of a BTF blob in native byte order.
    pub fn parse(data: Vec<u8>, base: Option<Arc<Btf>>) -> Result<Self, BtfError> {
        let malformed = BtfError::Malformed;
        let magic = data
            .get(..2)
            .and_then(|b| b.try_into().ok())
            .map(u16::from_ne_bytes);
        if magic != Some(MAGIC) {
            return Err(malformed("wrong magic"));
        }
        let word = |at| {
            u32_at(&data, at)
                .map(|v| v as usize)
                .ok_or(malformed("short header"))
        };
        let header = word(4)?;
        if header < HEADER_LEN {
            return Err(malformed("short header"));
        }
        let section = |offset: usize, len: usize| {
            let start = header.checked_add(offset)?;
            let end = start.checked_add(len)?;
            (end <= data.len()).then_some(start..end)
        };
        let type_section = section(word(8)?, word(12)?).ok_or(malformed("types beyond the end"))?;
        let strings = section(word(16)?, word(20)?).ok_or(malformed("strings beyond the end"))?;
        let types = types(&data, type_section)?;
        let (first_id, first_string) = base
            .as_ref()
            .map_or((1, 0), |b| (b.next_id(), b.first_string + b.strings.len()));
        Ok(Self {
            base,
            data,
            types,
            first_id,
            strings,
            first_string,
        })
    }

    fn next_id(&self) -> u32 {
        self.first_id
            .saturating_add(u32::try_from(self.types.len()).unwrap_or(u32::MAX))
    }

    fn string(&self, offset: usize) -> Option<&[u8]> {
        if offset < self.first_string {
            return self.base.as_ref()?.string(offset);
        }
        let strings = self.data.get(self.strings.clone())?;
        let rest = strings.get(offset - self.first_string..)?;
        rest.split(|b| *b == 0).next()
    }

    fn ty(&self, id: u32) -> Option<Type<'_>> {
        if id < self.first_id {
            return self.base.as_ref()?.ty(id);
        }
        self.at(*self.types.get((id - self.first_id) as usize)?)
    }

    fn at(&self, at: u32) -> Option<Type<'_>> {
        let at = at as usize;
        Some(Type {
            btf: self,
            at,
            name: u32_at(&self.data, at)?,
            info: u32_at(&self.data, at + 4)?,
            size_or_ref: u32_at(&self.data, at + 8)?,
        })
    }

    /// Follows typedefs and qualifiers. Gives up on a loop, which only a broken file has.
    fn plain(&self, mut id: u32) -> Option<Type<'_>> {
        for _ in 0..32 {
            let ty = self.ty(id)?;
            match ty.kind() {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    id = ty.size_or_ref;
                }
                _ => return Some(ty),
            }
        }
        None
    }

    /// Byte offsets of members, `names` as (struct, dotted member path), in one pass over this file's own
    /// types. The result lacks bit fields and members that do not exist.
    pub fn offsets<'a>(&self, names: &[(&'a str, &'a str)]) -> HashMap<(&'a str, &'a str), u32> {
        let mut found = HashMap::new();
        let mut left = MOST_MEMBERS;
        // There are ten thousand structs, of which a few are wanted.
        let mut wanted: BTreeMap<&[u8], Vec<(&'a str, &'a str)>> = BTreeMap::new();
        for name in names {
            wanted.entry(name.0.as_bytes()).or_default().push(*name);
        }
        for ty in self.types.iter().filter_map(|at| self.at(*at)) {
            if ty.name == 0 || !ty.is_struct() {
                continue;
            }
            let members = self.string(ty.name as usize).and_then(|name| wanted.get(name));
            for &(wanted, path) in members.into_iter().flatten() {
                if let Some(offset) = ty.path(path, &mut left) {
                    found.entry((wanted, path)).or_insert(offset);
                }
            }
            if found.len() == names.len() || left == 0 {
                break;
            }
        }
        found
    }

    /// Whether the string at `offset` is `name`; does not search for the end of the string.
    fn is_named(&self, offset: usize, name: &str) -> bool {
        if offset < self.first_string {
            return self.base.as_ref().is_some_and(|base| base.is_named(offset, name));
        }
        let strings = self.data.get(self.strings.clone()).unwrap_or_default();
        strings
            .get(offset - self.first_string..)
            .and_then(|rest| rest.strip_prefix(name.as_bytes()))
            .is_some_and(|rest| rest.first().is_none_or(|end| *end == 0))
    }

    /// Type id of one of this file's own functions, for `attach_btf_id`.
    pub fn function(&self, name: &str) -> Option<u32> {
        let is_it = |ty: Type<'_>| ty.kind() == kind::FUNC && self.is_named(ty.name as usize, name);
        let mut types = (self.first_id..).zip(&self.types);
        let (id, _) = types.find(|(_, at)| self.at(**at).is_some_and(is_it))?;
        Some(id)
    }
}

/// Walks over the types, and returns where each begins.
fn types(data: &[u8], section: Range<usize>) -> Result<Vec<u32>, BtfError> {
    let malformed = BtfError::Malformed;
    let mut types = Vec::with_capacity(section.len() / 20);
    let mut at = section.start;
    while at < section.end {
        // There are 130,000: an error that is made and dropped for each is a hundredth of a start.
        let info = u32_at(data, at + 4).ok_or_else(|| malformed("type beyond the end"))?;
        types.push(u32::try_from(at).map_err(|_| malformed("too large"))?);
        at += HEAD + tail_len(info).ok_or_else(|| malformed("unknown kind of type"))?;
    }
    if at > section.end {
        return Err(malformed("last type beyond the end"));
    }
    Ok(types)
}

/// Bytes after the head of a type. `None` for an unknown kind, which cannot be skipped.
fn tail_len(info: u32) -> Option<usize> {
    let members = (info & 0xffff) as usize;
    Some(match (info >> 24) & 0x1f {
        1 | 14 | 17 => 4,
        3 => 12,
        kind::STRUCT | kind::UNION | 15 | 19 => 12 * members,
        6 | 13 => 8 * members,
        2 | 7..=12 | 16 | 18 => 0,
        _ => return None,
    })
}

#[derive(Clone, Copy)]
struct Type<'a> {
    btf: &'a Btf,
    at: usize,
    name: u32,
    info: u32,
    size_or_ref: u32,
}

impl Type<'_> {
    fn kind(&self) -> u32 {
        (self.info >> 24) & 0x1f
    }

    fn is_struct(&self) -> bool {
        matches!(self.kind(), kind::STRUCT | kind::UNION)
    }

    fn path(&self, path: &str, left: &mut u32) -> Option<u32> {
        let (first, rest) = path.split_once('.').map_or((path, None), |(a, b)| (a, Some(b)));
        let (bits, ty) = self.member(first, 0, left)?;
        if bits % 8 != 0 {
            return None;
        }
        match rest {
            None => Some(bits / 8),
            Some(rest) => (bits / 8).checked_add(self.btf.plain(ty)?.path(rest, left)?),
        }
    }

    /// Bit offset and type of a member; also looks inside anonymous structs and unions. `left`: how many
    /// members may still be visited.
    fn member(&self, name: &str, depth: u32, left: &mut u32) -> Option<(u32, u32)> {
        if depth > 16 || !self.is_struct() {
            return None;
        }
        for (member_name, ty, bits) in self.members() {
            *left = left.checked_sub(1)?;
            if self.btf.is_named(member_name, name) {
                return Some((bits, ty));
            }
            if member_name == 0
                && let Some((inner, found)) = self.btf.plain(ty).and_then(|t| t.member(name, depth + 1, left))
            {
                return Some((bits.checked_add(inner)?, found));
            }
        }
        None
    }

    /// Name offset, type and bit offset of each member. Callers compare names in place, because a name in a
    /// broken file may have no end.
    fn members(self) -> impl Iterator<Item = (usize, u32, u32)> {
        let bit_fields = self.info >> 31 == 1;
        (0..(self.info & 0xffff) as usize).filter_map(move |i| {
            let at = self.at + HEAD + i * 12;
            let name = u32_at(&self.btf.data, at)? as usize;
            let ty = u32_at(&self.btf.data, at + 4)?;
            let offset = u32_at(&self.btf.data, at + 8)?;
            // With kind_flag the upper 8 bits are the width of a bit field, which has no byte offset.
            if bit_fields && offset >> 24 != 0 {
                return None;
            }
            Some((name, ty, offset))
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Builds BTF in the kernel's layout.
    #[derive(Default)]
    struct Builder {
        types: Vec<u8>,
        strings: Vec<u8>,
        string_base: usize,
    }

    impl Builder {
        fn new(string_base: usize) -> Self {
            let strings = if string_base == 0 { vec![0] } else { Vec::new() };
            Self {
                types: Vec::new(),
                strings,
                string_base,
            }
        }

        fn name(&mut self, text: &str) -> u32 {
            if text.is_empty() {
                return 0;
            }
            let at = self.string_base + self.strings.len();
            self.strings.extend(text.as_bytes());
            self.strings.push(0);
            u32::try_from(at).unwrap()
        }

        fn ty(&mut self, name: &str, kind: u32, vlen: u32, size_or_ref: u32, tail: &[u32]) {
            let name = self.name(name);
            for word in [name, kind << 24 | vlen, size_or_ref].iter().chain(tail) {
                self.types.extend(word.to_ne_bytes());
            }
        }

        fn build(self) -> Vec<u8> {
            let mut out = MAGIC.to_ne_bytes().to_vec();
            out.extend([1, 0]);
            let types = u32::try_from(self.types.len()).unwrap();
            let strings = u32::try_from(self.strings.len()).unwrap();
            for word in [24u32, 0, types, types, strings] {
                out.extend(word.to_ne_bytes());
            }
            out.extend(self.types);
            out.extend(self.strings);
            out
        }
    }

    /// BTF as of vmlinux, with five types.
    pub(crate) fn vmlinux() -> Vec<u8> {
        let mut b = Builder::new(0);
        b.ty("int", 1, 0, 4, &[0x0100_0020]); // 1
        let inner = b.name("inner_member");
        b.ty("", kind::UNION, 1, 4, &[inner, 1, 0]); // 2, anonymous
        let (x, y) = (b.name("x"), b.name("y"));
        b.ty("outer", kind::STRUCT, 3, 16, &[x, 1, 0, 0, 2, 32, y, 1, 64]); // 3
        b.ty("outer_t", kind::TYPEDEF, 0, 3, &[]); // 4
        let nested = b.name("nested");
        b.ty("holder", kind::STRUCT, 1, 32, &[nested, 4, 128]); // 5
        b.build()
    }

    #[test]
    fn members_are_found_through_anonymous_unions_and_typedefs() {
        let btf = Btf::parse(vmlinux(), None).unwrap();
        let wanted = [
            ("outer", "inner_member"),
            ("holder", "nested.y"),
            ("outer", "none"),
            ("nobody", "x"),
        ];
        let found = btf.offsets(&wanted);
        assert_eq!(found.get(&("outer", "inner_member")), Some(&4));
        assert_eq!(found.get(&("holder", "nested.y")), Some(&24));
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn a_module_goes_on_where_vmlinux_ends() {
        let base = Arc::new(Btf::parse(vmlinux(), None).unwrap());
        let mut b = Builder::new(base.strings.len());
        let member = b.name("base_member");
        b.ty("module_struct", kind::STRUCT, 1, 16, &[member, 3, 64]); // 6, uses vmlinux's type 3
        b.ty("module_function", kind::FUNC, 0, 1, &[]); // 7
        let module = Btf::parse(b.build(), Some(base)).unwrap();
        assert_eq!(module.function("module_function"), Some(7));
        let wanted = [("module_struct", "base_member.y"), ("outer", "x")];
        let found = module.offsets(&wanted);
        assert_eq!(found.get(&wanted[0]), Some(&16));
        assert_eq!(found.get(&wanted[1]), None, "the base is asked by the caller");
    }

    #[test]
    fn each_type_is_found_by_its_number_however_many_there_are() {
        let mut b = Builder::new(0);
        let mut wanted = Vec::new();
        for number in 0..300u32 {
            // Types differ in length, so their positions are not multiples of anything.
            let members = number % 4;
            let m = b.name("m");
            let tail: Vec<u32> = (0..members).flat_map(|i| [m, 1, i * 32]).collect();
            let name = format!("s{number}");
            b.ty(&name, kind::STRUCT, members, 16, &tail);
            wanted.push(name);
        }
        b.ty("f", kind::FUNC, 0, 1, &[]);
        b.ty("ff", kind::FUNC, 0, 1, &[]);
        let btf = Btf::parse(b.build(), None).unwrap();
        for (id, name) in (1..).zip(&wanted) {
            let ty = btf.ty(id).unwrap();
            assert_eq!(btf.string(ty.name as usize), Some(name.as_bytes()), "{id}");
        }
        assert_eq!(btf.function("ff"), Some(302));
        assert_eq!(btf.function("s7"), None);
        assert!(btf.ty(303).is_none() && btf.next_id() == 303);
    }

    #[test]
    fn anonymous_structs_that_hold_each_other_come_to_an_end() {
        let mut b = Builder::new(0);
        // Each of 16 levels visits the next 300 times.
        let tail: Vec<u32> = (0..300).flat_map(|_| [0, 1, 0]).collect();
        b.ty("outer", kind::STRUCT, 300, 16, &tail);
        let (x, y) = (b.name("x"), b.name("y"));
        b.ty("holder", kind::STRUCT, 2, 16, &[x, 1, 0, y, 1, 32]);
        let btf = Btf::parse(b.build(), None).unwrap();
        assert!(btf.offsets(&[("outer", "x")]).is_empty());
        assert_eq!(btf.offsets(&[("holder", "y")]).len(), 1);
    }

    #[test]
    fn cut_at_any_length_it_is_an_error() {
        let whole = vmlinux();
        for len in 0..whole.len() {
            assert!(Btf::parse(whole[..len].to_vec(), None).is_err(), "cut at {len}");
        }
    }

    proptest! {
        #[test]
        fn broken_bytes_do_not_panic(at in 0usize..200, value: u8) {
            let mut bytes = vmlinux();
            let at = at % bytes.len();
            bytes[at] = value;
            if let Ok(btf) = Btf::parse(bytes, None) {
                let _ = btf.offsets(&[("outer", "inner_member"), ("holder", "nested.y")]);
                let _ = btf.function("x");
            }
        }
    }
}
