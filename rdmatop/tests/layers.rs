//! Which part may import which (ARCHITECTURE.md, "One direction"). The test reads every source file, so that
//! a shortcut fails here and not in a review.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use syn::visit::{self, Visit};

/// What a part of the tree may not name.
struct Rule {
    /// The part, a path below `crate`.
    of: &'static [&'static str],
    /// Beginnings of paths; `.name` is a method, and `/name` a part of a path of files.
    never: &'static [&'static str],
    /// Exceptions to `never`, which are data.
    but: &'static [&'static str],
}

/// What does I/O, has a clock, or knows the outside world.
const OUTSIDE: &[&str] = &[
    "std::fs",
    "std::io",
    // Addresses are data.
    "std::net::TcpListener",
    "std::net::TcpStream",
    "std::net::ToSocketAddrs",
    "std::net::UdpSocket",
    "std::os",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::env",
    "aya",
    "crossterm",
    "libc",
    "nvml_wrapper",
    "ratatui",
    "rustix",
    "tokio",
];

/// What opens a file. Where paths of other users are at hand, `source::root` opens those of the kernel and
/// `source::foreign` the others.
const OPENERS: &[&str] = &[
    "std::fs::File::open",
    "std::fs::OpenOptions",
    "std::fs::read",
    "std::fs::read_dir",
    "std::fs::read_link",
    "std::fs::read_to_string",
    "rustix::fs::open",
    "rustix::fs::openat",
    "rustix::fs::openat2",
    ".read_dir",
];

/// Names below `/proc/PID` that lead to files of that process's user. Only `source::foreign` has such paths.
const LEAD_OUT: &[&str] = &["/root", "/cwd"];

const RULES: &[Rule] = &[
    Rule {
        of: &["app", "doctor"],
        never: OPENERS,
        but: &[],
    },
    Rule {
        of: &["app", "nccl_log"],
        never: OPENERS,
        but: &[],
    },
    Rule {
        of: &["source", "ebpf", "user"],
        never: OPENERS,
        but: &[],
    },
    Rule {
        of: &["source", "proc"],
        never: OPENERS,
        but: &[],
    },
    Rule {
        of: &["source", "uprobes"],
        never: OPENERS,
        but: &[],
    },
    Rule {
        of: &["app"],
        never: LEAD_OUT,
        but: &[],
    },
    Rule {
        of: &["source"],
        never: LEAD_OUT,
        but: &[],
    },
    Rule {
        of: &["source"],
        never: &[
            "crate::view",
            "crate::app",
            "crate::cli",
            "crate::lab",
            "crate::nccl",
            "crate::doctor",
            "crate::model",
        ],
        // What they send, and why something is missing.
        but: &[
            "crate::model::input",
            "crate::model::cause",
            "crate::model::event::EventKind",
        ],
    },
    Rule {
        of: &["model"],
        never: &[
            "crate::view",
            "crate::app",
            "crate::cli",
            "crate::lab",
            "crate::nccl",
            "crate::doctor",
            "crate::outlet",
            "crate::say",
            "crate::source",
        ],
        but: &[],
    },
    Rule {
        of: &["model"],
        never: OUTSIDE,
        but: &[],
    },
    Rule {
        of: &["view"],
        never: &[
            "crate::source",
            "crate::app",
            "crate::cli",
            "crate::lab",
            "crate::model::engine",
        ],
        but: &[],
    },
    Rule {
        of: &["nccl"],
        never: &[
            "crate::view",
            "crate::app",
            "crate::cli",
            "crate::doctor",
            "crate::lab",
            "crate::outlet",
            "crate::say",
            "crate::source",
            "crate::model",
        ],
        // A snapshot, which is data, to set beside a log.
        but: &[
            "crate::model::cause",
            "crate::model::ib",
            "crate::model::judgement::Quantity",
            "crate::model::snapshot",
            "crate::model::value",
        ],
    },
    Rule {
        of: &["nccl"],
        never: OUTSIDE,
        but: &[],
    },
    Rule {
        of: &["doctor"],
        never: &[
            "crate::view",
            "crate::app",
            "crate::cli",
            "crate::lab",
            "crate::nccl",
            "crate::outlet",
            "crate::say",
            "crate::source",
            "crate::model",
        ],
        // Why rdmatop lacks something, and the version of all JSON.
        but: &["crate::model::cause", "crate::model::snapshot::SCHEMA"],
    },
    Rule {
        of: &["doctor"],
        never: OUTSIDE,
        but: &[],
    },
];

/// The paths that a file names, from `crate` or a crate's name on.
struct Named {
    /// Path of the module that is being read.
    module: Vec<String>,
    /// What each name that a `use` brings in stands for.
    imported: BTreeMap<String, Vec<String>>,
    found: Vec<Mention>,
}

/// A path that a file names.
struct Mention {
    path: String,
    /// All of what is below it: `use path::*`.
    glob: bool,
}

impl Named {
    /// A path without `self`, `super` and the names that this file has for others.
    fn whole(&self, path: &[String]) -> Vec<String> {
        let (mut from, rest) = match path.split_first() {
            Some((first, _)) if first == "self" || first == "super" => (self.module.clone(), path),
            Some((first, rest)) if self.imported.contains_key(first) => (self.imported[first].clone(), rest),
            _ => (Vec::new(), path),
        };
        for part in rest {
            match part.as_str() {
                "self" => {}
                "super" => drop(from.pop()),
                name => from.push(name.to_owned()),
            }
        }
        from
    }

    fn add(&mut self, path: &[String], glob: bool) {
        let path = self.whole(path).join("::");
        self.found.push(Mention { path, glob });
    }

    fn import(&mut self, name: &syn::Ident, path: &[String]) {
        let whole = self.whole(path);
        // `use foo::{self}` brings in `foo`.
        let name = match name.to_string().as_str() {
            "self" => whole.last().cloned().unwrap_or_default(),
            name => name.to_owned(),
        };
        self.imported.insert(name, whole);
        self.add(path, false);
    }

    fn tree(&mut self, before: &mut Vec<String>, tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.tree(before, &path.tree);
                before.pop();
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(before, tree)),
            syn::UseTree::Name(syn::UseName { ident }) => {
                before.push(ident.to_string());
                self.import(ident, before);
                before.pop();
            }
            syn::UseTree::Rename(syn::UseRename { ident, rename, .. }) => {
                before.push(ident.to_string());
                self.import(rename, before);
                before.pop();
            }
            syn::UseTree::Glob(_) => self.add(before, true),
        }
    }

    /// Notes the parts of a path of files, as in "7/root/etc". A text with blanks is for people, and
    /// /proc/self is rdmatop.
    fn literal(&mut self, text: &str) {
        if text.contains(char::is_whitespace) || text.starts_with("/proc/self/") {
            return;
        }
        for part in text.split('/') {
            let path = format!("/{part}");
            self.found.push(Mention { path, glob: false });
        }
    }

    /// The paths in the text of a macro, which syn does not parse. Texts in quotes name files alone.
    fn tokens(&mut self, text: &str) {
        for inside in text.split('"').skip(1).step_by(2) {
            self.literal(inside);
        }
        let outside = text.split('"').step_by(2).collect::<Vec<_>>().join(" ");
        let parts = outside.replace("::", " :: ");
        let mut words = parts
            .split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
            .filter(|word| !word.is_empty())
            .peekable();
        while let Some(word) = words.next() {
            let mut path = vec![word.to_owned()];
            while words.next_if_eq(&"::").is_some() {
                path.extend(words.next().map(str::to_owned));
            }
            if path.len() > 1 {
                self.add(&path, false);
            }
        }
    }
}

/// Tests may use whatever they need.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else {
            return false;
        };
        list.path.is_ident("cfg") && list.tokens.to_string() == "test"
    })
}

impl<'ast> Visit<'ast> for Named {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if is_test(&module.attrs) {
            return;
        }
        self.module.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test(&item.attrs) {
            self.tree(&mut Vec::new(), &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string())
            .collect();
        if parts.len() > 1 {
            self.add(&parts, false);
        }
        visit::visit_path(self, path);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let path = format!(".{}", call.method);
        self.found.push(Mention { path, glob: false });
        visit::visit_expr_method_call(self, call);
    }

    fn visit_lit_str(&mut self, text: &'ast syn::LitStr) {
        self.literal(&text.value());
    }

    // A comment of documentation is no path.
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.tokens(&item.tokens.to_string());
        visit::visit_macro(self, item);
    }
}

/// Paths that a module's text names.
fn named(module: &[String], text: &str) -> Vec<Mention> {
    let file = syn::parse_file(text).expect("Rust");
    let mut named = Named {
        module: ["crate".to_owned()]
            .into_iter()
            .chain(module.iter().cloned())
            .collect(),
        imported: BTreeMap::new(),
        found: Vec::new(),
    };
    if !is_test(&file.attrs) {
        named.visit_file(&file);
    }
    named.found
}

fn begins(path: &str, with: &str) -> bool {
    path.strip_prefix(with)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Which of these paths a module may not name.
fn broken<'a>(module: &[String], named: &'a [Mention]) -> Vec<&'a str> {
    let is_in = |rule: &&Rule| module.iter().zip(rule.of).filter(|(a, b)| a == *b).count() == rule.of.len();
    let rules: Vec<&Rule> = RULES.iter().filter(is_in).collect();
    // The first opens what is another user's, so that nothing else does. The second walks to the system's
    // libraries by descriptors, and refuses what is not root's.
    if module == ["source", "foreign"] || module == ["source", "uprobes", "files"] {
        return Vec::new();
    }
    let breaks = |named: &&Mention| {
        let path = &named.path;
        rules.iter().any(|rule| {
            rule.never
                .iter()
                .any(|never| begins(path, never) || named.glob && begins(never, path))
                && !rule.but.iter().any(|but| begins(path, but))
        })
    };
    named
        .iter()
        .filter(breaks)
        .map(|named| named.path.as_str())
        .collect()
}

/// Modules below a directory: path from `crate`, file. Files that only tests include are left out.
fn modules(dir: &Path, at: &[String], found: &mut Vec<(Vec<String>, PathBuf)>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(dir)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    entries.sort();
    // What its parent declares for tests only.
    let parent = [dir.join("mod.rs"), dir.with_extension("rs")];
    let text: String = parent
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .collect();
    for path in entries {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        if text.contains(&format!("#[cfg(test)]\nmod {name};"))
            || text.contains(&format!("#[cfg(test)]\npub mod {name};"))
            || text.contains(&format!("#[cfg(test)]\npub(crate) mod {name};"))
        {
            continue;
        }
        let mut here = at.to_vec();
        if name != "mod" {
            here.push(name);
        }
        if path.is_dir() {
            modules(&path, &here, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push((here, path));
        }
    }
}

#[test]
fn each_layer_imports_only_what_it_may() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Vec::new();
    modules(&src, &[], &mut all);
    assert!(all.len() > 100, "only {} modules found", all.len());
    let mut wrong = Vec::new();
    for (module, file) in &all {
        let text = fs::read_to_string(file).unwrap();
        let named = named(module, &text);
        for path in broken(module, &named) {
            wrong.push(format!("{} names {path}", module.join("::")));
        }
    }
    wrong.dedup();
    assert_eq!(wrong, [""; 0], "see RULES and ARCHITECTURE.md");
}

#[test]
fn a_shortcut_is_found_however_it_is_spelled() {
    let module = ["view".to_owned(), "tui".to_owned()];
    for text in [
        "use crate::source::netlink;",
        "use crate::{model::snapshot::Snapshot, source::{root::Root, sysfs}};",
        "use super::super::source::root::Root as R;",
        "fn f() { crate::source::root::Root::default(); }",
        "mod inner { use super::super::super::source::*; }",
        "struct S { root: crate::source::root::Root }",
        "use crate::model; fn f() { model::engine::Engine::default(); }",
        "use crate::model as m; struct S(m::engine::Engine);",
        "use crate::model::{self}; struct S(model::engine::Engine);",
        "use crate::model::*;",
        "fn f() { println!(\"{:?}\", [(crate::source::root::Root::default(), 1)]); }",
    ] {
        assert_ne!(broken(&module, &named(&module, text)), [""; 0], "{text}");
    }
    for text in [
        "use crate::model::snapshot::Snapshot;",
        "#[cfg(test)] mod tests { use crate::source::root::Root; }",
        "use super::source_of_nothing;",
        "use crate::model::snapshot::*;",
        "fn f() { matches!(x, crate::model::snapshot::Snapshot { .. }); }",
    ] {
        assert_eq!(broken(&module, &named(&module, text)), [""; 0], "{text}");
    }
    let doctor = ["app".to_owned(), "doctor".to_owned(), "process".to_owned()];
    for text in [
        "use std::fs::File; fn f() { File::open(path); }",
        "use std::fs; fn f() { fs::read(path); }",
        "fn f() { std::fs::read_to_string(path); }",
        "use rustix::fs::{Mode, openat};",
        "fn f() { dir.join(name).read_dir(); }",
        "fn f() { root.bytes(&dir.join(\"root/etc/nccl.conf\"), 1); }",
        "const NAME: &str = \"root\";",
        "fn f() { dir.join(format!(\"{pid}/cwd/{name}\")); }",
    ] {
        assert_ne!(broken(&doctor, &named(&doctor, text)), [""; 0], "{text}");
    }
    for text in [
        "fn f(file: std::fs::File) { root::read(path); }",
        "fn f() { say(\"look at /proc/7/root yourself\"); }",
        "fn f() { link(\"/proc/self/root\"); }",
    ] {
        assert_eq!(broken(&doctor, &named(&doctor, text)), [""; 0], "{text}");
    }
    let engine = ["model".to_owned(), "engine".to_owned()];
    for text in [
        "use std::{fs, sync::Arc};",
        "fn f() { std::time::Instant::now(); }",
        "use std::time; fn f() { time::Instant::now(); }",
        "use std::time::*;",
        "fn f() { assert!(std::env::var_os(\"X\").is_some()); }",
    ] {
        assert_ne!(broken(&engine, &named(&engine, text)), [""; 0], "{text}");
    }
}

#[test]
fn every_line_of_every_rule_can_fail() {
    for rule in RULES {
        let module: Vec<String> = rule.of.iter().map(|part| (*part).to_owned()).collect();
        let fails = |path: &str| {
            let text = match path.split_at(1) {
                (".", method) => format!("fn f() {{ x.{method}(); }}"),
                ("/", part) => format!("fn f() {{ g(\"7/{part}/etc\"); }}"),
                _ => format!("use {path}::any_name;"),
            };
            !broken(&module, &named(&module, &text)).is_empty()
        };
        for never in rule.never {
            assert!(fails(never), "{:?} may name {never}", rule.of);
        }
        for but in rule.but {
            assert!(!fails(but), "{:?} may not name {but}", rule.of);
        }
    }
}
