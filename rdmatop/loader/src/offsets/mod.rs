//! Resolves the kernel side's offsets on the running kernel: from BTF for struct members, from tracefs for
//! tracepoints.
pub mod btf;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    sync::Arc,
};

use rdmatop_common::offsets::{CATEGORY, OFFSETS, Offset, TRACEPOINT_FIELDS, UNKNOWN};

use crate::offsets::btf::{Btf, BtfError};
use rdmatop_model::cause::{CauseId, Obstacle};
use rdmatop_sources::root::Root;

/// Offsets by the name of the global that carries them, and why some are missing.
#[derive(Debug, Default)]
pub struct ResolvedOffsets {
    /// The value of every global; [`UNKNOWN`] for one without an offset.
    pub values: BTreeMap<&'static str, u32>,
    /// One plain line for each source that could not be read.
    pub problems: Vec<String>,
}

impl ResolvedOffsets {
    /// Whether a global has an offset.
    pub fn has(&self, global: &str) -> bool {
        self.values.get(global).is_some_and(|v| *v != UNKNOWN)
    }

    /// Logs what was found, for the maintainer.
    pub(super) fn log(&self) {
        let unknown: Vec<&str> = self
            .values
            .keys()
            .copied()
            .filter(|name| !self.has(name))
            .collect();
        log::info!(offsets = self.values.len() - unknown.len(), unknown = unknown.join(",").as_str(); "resolved");
        for problem in &self.problems {
            log::warn!(why = problem.as_str(); "not resolved");
        }
    }
}

/// The name that stands for the kernel itself among modules.
const VMLINUX: &str = "vmlinux";

/// Where the kernel has its BTF, and each module's.
pub(super) fn btf_dir(root: &Root) -> PathBuf {
    root.sys("kernel/btf")
}

/// Where tracefs may be mounted, in the order of the search: the directory of events.
fn tracepoints(root: &Root) -> [PathBuf; 2] {
    ["kernel/tracing/events", "kernel/debug/tracing/events"].map(|events| root.sys(events))
}

/// The BTF of vmlinux and of modules, each read once.
pub struct BtfSet {
    root: Root,
    vmlinux: Option<Arc<Btf>>,
    modules: HashMap<String, Option<Arc<Btf>>>,
}

impl BtfSet {
    /// Reads vmlinux's BTF.
    pub fn open(root: &Root) -> (Self, Option<BtfError>) {
        let (vmlinux, error) = match Btf::open(&btf_dir(root).join(VMLINUX), None) {
            Ok(btf) => (Some(Arc::new(btf)), None),
            Err(error) => (None, Some(error)),
        };
        (
            Self {
                root: root.clone(),
                vmlinux,
                modules: HashMap::new(),
            },
            error,
        )
    }

    /// Whether vmlinux's BTF has this function.
    pub(crate) fn has_function(&self, name: &str) -> bool {
        self.vmlinux
            .as_ref()
            .is_some_and(|btf| btf.function(name).is_some())
    }

    /// A module's own BTF, `None` when the kernel has none for it (5.10, or a module that was built without
    /// BTF).
    pub fn module(&mut self, name: &str) -> Option<Arc<Btf>> {
        let base = self.vmlinux.clone()?;
        let path = btf_dir(&self.root).join(name);
        self.modules
            .entry(name.to_owned())
            .or_insert_with(|| Btf::open(&path, Some(base)).ok().map(Arc::new))
            .clone()
    }

    /// Whether vmlinux's layout of a module's structs can be trusted. With an out-of-tree ib_core (a vendor's
    /// OFED) vmlinux describes the in-tree structs, not those in use: then only the module's own BTF is used.
    fn vmlinux_speaks_for(&self, module: &str) -> bool {
        if module == VMLINUX {
            return true;
        }
        let out_of_tree = |name: &str| {
            std::fs::read_to_string(self.root.sys("module").join(name).join("taint"))
                .is_ok_and(|taint| taint.contains('O'))
        };
        !out_of_tree("ib_core") && !out_of_tree(module)
    }

    /// Offsets of struct members, module first, then vmlinux.
    fn resolve(&mut self, wanted: &[Offset], values: &mut BTreeMap<&'static str, u32>) {
        let modules: BTreeSet<&str> = wanted.iter().map(|o| o.module).collect();
        let modules = modules
            .into_iter()
            .map(|module| (module, self.vmlinux_speaks_for(module)));
        let modules: HashMap<&str, bool> = modules.collect();
        // Leave out vmlinux: its file of 5 MB is the base, and not a split file on top of it.
        for &module in modules.keys().filter(|module| **module != VMLINUX) {
            let mine: Vec<_> = wanted.iter().filter(|o| o.module == module).collect();
            let names: Vec<_> = mine.iter().map(|o| (o.ty, o.member)).collect();
            let own = self
                .module(module)
                .map(|btf| btf.offsets(&names))
                .unwrap_or_default();
            for offset in &mine {
                if let Some(value) = own.get(&(offset.ty, offset.member)) {
                    values.insert(offset.global, *value);
                }
            }
        }
        // Find all other members in one pass over vmlinux's hundred thousand types.
        let speaks = |module: &str| modules.get(module) == Some(&true);
        let left: Vec<_> = wanted
            .iter()
            .filter(|o| !values.contains_key(o.global) && speaks(o.module))
            .collect();
        let names: Vec<_> = left.iter().map(|o| (o.ty, o.member)).collect();
        if let Some(vmlinux) = &self.vmlinux {
            let found = vmlinux.offsets(&names);
            for offset in left {
                if let Some(value) = found.get(&(offset.ty, offset.member)) {
                    values.insert(offset.global, *value);
                }
            }
        }
    }
}

/// Byte offset of a field in a tracepoint's `format` file (Documentation/trace/events.rst).
fn field_offset(format: &str, field: &str) -> Option<u32> {
    format.lines().find_map(|line| {
        let rest = line.trim().strip_prefix("field:")?;
        let (declaration, rest) = rest.split_once(';')?;
        // Cut off the array's length first: it may be an expression with blanks.
        let name = declaration.split('[').next()?.rsplit([' ', '\t', '*']).next()?;
        if name != field {
            return None;
        }
        rest.split_once("offset:")?
            .1
            .split(';')
            .next()?
            .trim()
            .parse()
            .ok()
    })
}

/// The text of a tracepoint's file, such as `format`, if tracefs is mounted and has it.
pub(super) fn tracepoint_file(root: &Root, event: &str, file: &str) -> Option<String> {
    let of = |events: &PathBuf| events.join(CATEGORY).join(event).join(file);
    tracepoints(root)
        .iter()
        .find_map(|events| std::fs::read_to_string(of(events)).ok())
}

/// Why tracefs cannot be read, and the remedy; `None` if it can.
pub fn without_tracefs(root: &Root) -> Option<Obstacle> {
    let looked = tracepoints(root).map(std::fs::metadata);
    if looked.iter().any(Result::is_ok) {
        return None;
    }
    // tracefs belongs to root (mode 0700).
    let denied = |error: &std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
    if looked.iter().any(|looked| looked.as_ref().is_err_and(denied)) {
        return Some(Obstacle::new(
            CauseId::NoTracefs,
            "tracefs may be read by root only",
            "run with sudo, or grant CAP_DAC_READ_SEARCH",
        ));
    }
    Some(Obstacle::new(
        CauseId::NoTracefs,
        "tracefs is not mounted",
        "`sudo mount -t tracefs tracefs /sys/kernel/tracing`, until the next boot",
    ))
}

/// Resolves the offsets that the kernel side needs: all, or only these names. The others stay unknown.
pub fn resolve(root: &Root, names: Option<&BTreeSet<&str>>) -> (ResolvedOffsets, BtfSet) {
    let is_needed = |global: &str| names.is_none_or(|names| names.contains(global));
    let mut out = ResolvedOffsets::default();
    let (mut btf, error) = BtfSet::open(root);
    if let Some(error) = error {
        out.problems.push(format!("kernel BTF: {error}"));
    }
    let needed = OFFSETS.iter().filter(|offset| is_needed(offset.global));
    btf.resolve(&needed.copied().collect::<Vec<_>>(), &mut out.values);
    let mut formats: HashMap<&str, Option<String>> = HashMap::new();
    for field in TRACEPOINT_FIELDS.iter().filter(|field| is_needed(field.global)) {
        let format = formats
            .entry(field.event)
            .or_insert_with(|| tracepoint_file(root, field.event, "format"));
        if let Some(value) = format.as_deref().and_then(|text| field_offset(text, field.field)) {
            out.values.insert(field.global, value);
        }
    }
    for global in OFFSETS
        .iter()
        .map(|o| o.global)
        .chain(TRACEPOINT_FIELDS.iter().map(|f| f.global))
    {
        out.values.entry(global).or_insert(UNKNOWN);
    }
    (out, btf)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FORMAT: &str = "name: cm_event_handler\nID: 1\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\tfield:u32 cm_id;\toffset:8;\tsize:4;\tsigned:0;\n\tfield:unsigned char srcaddr[sizeof(struct sockaddr_in6)];\toffset:28;\tsize:28;\tsigned:0;\n";

    #[test]
    fn a_field_is_found_by_its_name_and_not_by_a_part_of_it() {
        assert_eq!(field_offset(FORMAT, "cm_id"), Some(8));
        assert_eq!(field_offset(FORMAT, "srcaddr"), Some(28));
        assert_eq!(field_offset(FORMAT, "id"), None);
        assert_eq!(field_offset("", "cm_id"), None);
    }

    #[test]
    fn without_btf_every_offset_is_unknown_and_the_cause_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let (resolved, _) = resolve(&Root::under(dir.path()), None);
        assert_eq!(resolved.values.len(), OFFSETS.len() + TRACEPOINT_FIELDS.len());
        assert!(resolved.values.values().all(|v| *v == UNKNOWN));
        assert_eq!(resolved.problems.len(), 1);
    }

    #[test]
    fn vmlinux_is_not_read_again_as_a_module_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::under(dir.path());
        std::fs::create_dir_all(btf_dir(&root)).unwrap();
        std::fs::write(btf_dir(&root).join(VMLINUX), btf::tests::vmlinux()).unwrap();
        let (mut set, error) = BtfSet::open(&root);
        assert!(error.is_none());
        let offset = |ty, module| Offset {
            global: "OFF",
            module,
            ty,
            member: "x",
        };
        let mut values = BTreeMap::new();
        set.resolve(
            &[offset("outer", VMLINUX), offset("nobody", "ib_core")],
            &mut values,
        );
        assert_eq!(values, BTreeMap::from([("OFF", 0)]));
        assert_eq!(set.modules.keys().collect::<Vec<_>>(), ["ib_core"]);
    }

    proptest! {
        #[test]
        fn no_text_panics_and_an_offset_reads_back(junk in "\\PC{0,80}", name in "[a-z_]{1,12}", at: u32) {
            let _ = field_offset(&junk, &name);
            let _ = field_offset(&format!("\tfield:{junk};\toffset:{junk};"), &name);
            let line = format!("\tfield:const u8 *{name}[16];\toffset:{at};\tsize:16;\tsigned:0;\n");
            prop_assert_eq!(field_offset(&line, &name), Some(at));
        }
    }
}
