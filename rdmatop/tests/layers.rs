//! Who may import whom (ARCHITECTURE.md, "One direction"): the sources are read, so that a shortcut fails here and not in a
//! review.

use std::{
    fs,
    path::{Path, PathBuf},
};

use syn::visit::{self, Visit};

/// What a part of the tree may not name.
struct Rule {
    /// The part, a path below `crate`.
    of: &'static [&'static str],
    /// Beginnings of paths.
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
    "ratatui",
    "rustix",
    "tokio",
];

const RULES: &[Rule] = &[
    Rule {
        of: &["source"],
        never: &[
            "crate::view",
            "crate::app",
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
            "crate::lab",
            "crate::nccl",
            "crate::doctor",
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
            "crate::lab",
            "crate::source",
            "crate::model",
        ],
        // The version of all JSON.
        but: &["crate::model::snapshot::SCHEMA"],
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
            "crate::lab",
            "crate::nccl",
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
    /// Path of the module the reader is in.
    module: Vec<String>,
    found: Vec<String>,
}

impl Named {
    fn add(&mut self, path: &[String]) {
        let mut from = match path.first().map(String::as_str) {
            Some("self" | "super") => self.module.clone(),
            _ => Vec::new(),
        };
        for part in path {
            match part.as_str() {
                "self" => {}
                "super" => drop(from.pop()),
                name => from.push(name.to_owned()),
            }
        }
        self.found.push(from.join("::"));
    }

    fn tree(&mut self, before: &mut Vec<String>, tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.tree(before, &path.tree);
                before.pop();
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(before, tree)),
            syn::UseTree::Name(syn::UseName { ident })
            | syn::UseTree::Rename(syn::UseRename { ident, .. }) => {
                before.push(ident.to_string());
                self.add(before);
                before.pop();
            }
            syn::UseTree::Glob(_) => self.add(before),
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
            self.add(&parts);
        }
        visit::visit_path(self, path);
    }
}

/// Paths that a module's text names.
fn named(module: &[String], text: &str) -> Vec<String> {
    let file = syn::parse_file(text).expect("Rust");
    let mut named = Named {
        module: ["crate".to_owned()]
            .into_iter()
            .chain(module.iter().cloned())
            .collect(),
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

/// What of these a module may not name.
fn broken<'a>(module: &[String], named: &'a [String]) -> Vec<&'a String> {
    let is_in = |rule: &&Rule| module.iter().zip(rule.of).filter(|(a, b)| a == *b).count() == rule.of.len();
    let rules: Vec<&Rule> = RULES.iter().filter(is_in).collect();
    let breaks = |path: &&String| {
        rules.iter().any(|rule| {
            rule.never.iter().any(|never| begins(path, never))
                && !rule.but.iter().any(|but| begins(path, but))
        })
    };
    named.iter().filter(breaks).collect()
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
    ] {
        assert_ne!(broken(&module, &named(&module, text)), [""; 0], "{text}");
    }
    for text in [
        "use crate::model::snapshot::Snapshot;",
        "#[cfg(test)] mod tests { use crate::source::root::Root; }",
        "use super::source_of_nothing;",
    ] {
        assert_eq!(broken(&module, &named(&module, text)), [""; 0], "{text}");
    }
    let engine = ["model".to_owned(), "engine".to_owned()];
    assert_ne!(
        broken(&engine, &named(&engine, "use std::{fs, sync::Arc};")),
        [""; 0]
    );
    assert_ne!(
        broken(&engine, &named(&engine, "fn f() { std::time::Instant::now(); }")),
        [""; 0]
    );
}
