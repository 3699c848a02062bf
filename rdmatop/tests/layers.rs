//! Which part may import which (ARCHITECTURE.md, "One direction"), as far as the compiler does not see to
//! it: it keeps a crate to those of its manifest, and manifests are held to a list here. The test reads every
//! source file, so that a shortcut fails here and not in a review.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use syn::visit::{self, Visit};

/// What a part of the tree may not name.
struct Rule {
    /// The part, a path from its crate on.
    of: &'static [&'static str],
    /// Beginnings of paths; `.name` is a method, and `/name` a part of a path of files.
    never: &'static [&'static str],
    /// Exceptions to `never`, which are data.
    but: &'static [&'static str],
}

/// What does I/O, has a clock, or knows the outside world. What other crates offer for that is in no
/// manifest of a crate that is pure.
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
];

/// What opens a file. Where paths of other users are at hand, `rdmatop_sources::root` opens those of the
/// kernel and `rdmatop_sources::foreign` the others.
const OPENERS: &[&str] = &[
    "std::fs::File::create",
    "std::fs::File::create_new",
    "std::fs::File::open",
    "std::fs::File::options",
    "std::fs::OpenOptions",
    "std::fs::canonicalize",
    "std::fs::copy",
    "std::fs::read",
    "std::fs::read_dir",
    "std::fs::read_link",
    "std::fs::read_to_string",
    "rustix::fs::open",
    "rustix::fs::openat",
    "rustix::fs::openat2",
    "libc::fopen",
    "libc::open",
    "libc::open64",
    "libc::openat",
    ".read_dir",
];

/// Names below `/proc/PID` that lead to files of that process's user. Only `rdmatop_sources::foreign` has
/// such paths.
const LEAD_OUT: &[&str] = &["/cwd", "/exe", "/map_files", "/root"];

/// The module that names the file behind a mapping. What is there has a link's name alone, which it gives to
/// `rdmatop_sources::foreign::mapped`.
const NAMES_MAPPINGS: &[&str] = &["rdmatop_sources", "uprobes", "process"];

/// Crates of ours that each crate of the program may use. A manifest that names another one fails here, and a
/// path to a crate that is in no manifest fails in the compiler.
const MAY_USE: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("doctor", &["base", "model"]),
    ("lab", &["base", "sources"]),
    ("loader", &["base", "common", "model", "output", "sources"]),
    ("model", &["base", "common"]),
    ("nccl-log", &["base", "model"]),
    ("output", &["base"]),
    ("sources", &["base", "model"]),
    ("views", &["base", "model", "output"]),
];

/// Crates without I/O and clock.
const PURE: [&str; 4] = [
    "rdmatop_base",
    "rdmatop_doctor",
    "rdmatop_model",
    "rdmatop_nccl_log",
];

/// Crates of others that they may use, one of ours or each: none of these does I/O.
const PURE_USES: &[(&str, &str)] = &[
    ("", "foldhash"),
    ("", "serde"),
    ("", "serde_json"),
    ("", "thiserror"),
    ("", "unicode-width"),
    ("", "zerocopy"),
    // Numbers of errors.
    ("rdmatop-base", "libc"),
    // Patterns of names.
    ("rdmatop-base", "wildmatch"),
];

/// Rules of what no compiler looks at: parts of the standard library, of a crate, and paths of files.
const RULES: &[Rule] = &[
    Rule {
        of: &["rdmatop", "app", "doctor"],
        never: OPENERS,
        but: &[],
    },
    Rule {
        of: &["rdmatop", "app", "nccl_log"],
        never: OPENERS,
        but: &[],
    },
    Rule {
        of: &["rdmatop_loader", "user"],
        never: OPENERS,
        but: &[],
    },
    Rule {
        of: &["rdmatop_sources", "proc"],
        never: OPENERS,
        but: &[],
    },
    Rule {
        of: &["rdmatop_sources", "uprobes"],
        never: OPENERS,
        but: &[],
    },
    Rule {
        of: &["rdmatop", "app"],
        never: LEAD_OUT,
        but: &[],
    },
    Rule {
        of: &["rdmatop_lab"],
        never: LEAD_OUT,
        but: &[],
    },
    Rule {
        of: &["rdmatop_loader"],
        never: LEAD_OUT,
        but: &[],
    },
    Rule {
        of: &["rdmatop_output"],
        never: LEAD_OUT,
        but: &[],
    },
    Rule {
        of: &["rdmatop_sources"],
        never: LEAD_OUT,
        but: &[],
    },
    Rule {
        of: &["rdmatop_views"],
        never: LEAD_OUT,
        but: &[],
    },
    Rule {
        of: &["rdmatop_sources"],
        never: &["rdmatop_model"],
        // What they send, and why something is missing.
        but: &["rdmatop_model::input", "rdmatop_model::cause"],
    },
    Rule {
        of: &["rdmatop_loader"],
        never: &["rdmatop_model"],
        but: &[
            "rdmatop_model::input",
            "rdmatop_model::cause",
            "rdmatop_model::event::EventKind",
        ],
    },
    Rule {
        of: &["rdmatop_views"],
        never: &["rdmatop_model::engine"],
        but: &[],
    },
    Rule {
        of: &["rdmatop_nccl_log"],
        never: &["rdmatop_model"],
        // A snapshot, which is data, to set beside a log.
        but: &[
            "rdmatop_model::cause",
            "rdmatop_model::ib",
            "rdmatop_model::judgement::Quantity",
            "rdmatop_model::snapshot",
            "rdmatop_model::value",
        ],
    },
    Rule {
        of: &["rdmatop_doctor"],
        never: &["rdmatop_model"],
        // Why rdmatop lacks something, and the version of all JSON.
        but: &["rdmatop_model::cause", "rdmatop_model::snapshot::SCHEMA"],
    },
    Rule {
        of: &[PURE[0]],
        never: OUTSIDE,
        but: &[],
    },
    Rule {
        of: &[PURE[1]],
        never: OUTSIDE,
        but: &[],
    },
    Rule {
        of: &[PURE[2]],
        never: OUTSIDE,
        but: &[],
    },
    Rule {
        of: &[PURE[3]],
        never: OUTSIDE,
        but: &[],
    },
];

/// The paths that a file names, from a crate's name on.
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
    /// A path without `crate`, `self`, `super` and the names that this file has for others.
    fn whole(&self, path: &[String]) -> Vec<String> {
        let (mut from, rest) = match path.split_first() {
            Some((first, rest)) if first == "crate" => (vec![self.module[0].clone()], rest),
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

/// What is compiled for tests alone, of this crate or of others.
const FOR_TESTS: [&str; 3] = ["test", r#"any(test,feature="testkit")"#, r#"feature="testkit""#];

/// Tests may use whatever they need.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else {
            return false;
        };
        let condition: String = list.tokens.to_string().split_whitespace().collect();
        list.path.is_ident("cfg") && FOR_TESTS.contains(&&*condition)
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
        module: module.to_vec(),
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
    if module == ["rdmatop_sources", "foreign"] || module == ["rdmatop_sources", "uprobes", "files"] {
        return Vec::new();
    }
    let breaks = |named: &&Mention| {
        let path = &named.path;
        rules.iter().any(|rule| {
            rule.never
                .iter()
                .any(|never| begins(path, never) || named.glob && begins(never, path))
                && !rule.but.iter().any(|but| begins(path, but))
                && !(module == NAMES_MAPPINGS && path == "/map_files")
        })
    };
    named
        .iter()
        .filter(breaks)
        .map(|named| named.path.as_str())
        .collect()
}

/// Modules below a directory: path from the crate's name on, file. Files that only tests include are left
/// out.
fn modules(dir: &Path, at: &[String], found: &mut Vec<(Vec<String>, PathBuf)>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(dir)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    entries.sort();
    // What its parent declares for tests only.
    let parent = [dir.join("lib.rs"), dir.join("mod.rs"), dir.with_extension("rs")];
    let text: String = parent
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .collect();
    for path in entries {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let is_for_tests = FOR_TESTS.iter().any(|condition| {
            let condition = condition.replace(',', ", ").replace('=', " = ");
            ["", "pub ", "pub(crate) "]
                .iter()
                .any(|public| text.contains(&format!("#[cfg({condition})]\n{public}mod {name};")))
        });
        if is_for_tests {
            continue;
        }
        let mut here = at.to_vec();
        if name != "mod" && name != "lib" {
            here.push(name);
        }
        if path.is_dir() {
            modules(&path, &here, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push((here, path));
        }
    }
}

/// The crates of the program: name, directory.
fn crates() -> Vec<(String, PathBuf)> {
    let program = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = vec![("rdmatop".to_owned(), program.to_owned())];
    for entry in fs::read_dir(program).expect("a directory") {
        let dir = entry.expect("an entry").path();
        if dir.join("Cargo.toml").is_file() {
            let name = dir.file_name().expect("a name").to_string_lossy();
            found.push((format!("rdmatop-{name}"), dir));
        }
    }
    found.sort();
    found
}

/// What a manifest names below `[dependencies]`.
fn dependencies(manifest: &str) -> Vec<&str> {
    let (_, rest) = manifest.split_once("\n[dependencies]\n").unwrap_or_default();
    rest.lines()
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(['.', ' ']).next())
        .filter(|name| !name.is_empty() && !name.starts_with('#'))
        .collect()
}

/// What a manifest names that its crate may not use.
fn too_many<'a>(name: &str, manifest: &'a str) -> Vec<&'a str> {
    let may = MAY_USE.iter().find(|(of, _)| name == format!("rdmatop-{of}"));
    let (_, may) = may.unwrap_or_else(|| panic!("{name}: what may it use?"));
    let is_pure = PURE.contains(&&*name.replace('-', "_"));
    dependencies(manifest)
        .into_iter()
        .filter(|used| match used.strip_prefix("rdmatop-") {
            Some(ours) => !may.contains(&ours),
            None => is_pure && !PURE_USES.contains(&(name, *used)) && !PURE_USES.contains(&("", *used)),
        })
        .collect()
}

#[test]
fn each_crate_uses_only_the_crates_that_it_may() {
    let mut seen = 0;
    for (name, dir) in crates().into_iter().filter(|(name, _)| name != "rdmatop") {
        let manifest = fs::read_to_string(dir.join("Cargo.toml")).unwrap();
        assert!(manifest.contains(&format!("name = \"{name}\"\n")), "{name}");
        assert_eq!(too_many(&name, &manifest), [""; 0], "{name}: see MAY_USE");
        seen += 1;
    }
    assert_eq!(seen, MAY_USE.len());
    let with =
        |line| format!("[package]\n\n[dependencies]\n# Why.\n{line}\n\n[dev-dependencies]\nrdmatop-views\n");
    for (name, line, wrong) in [
        (
            "rdmatop-model",
            "rdmatop-sources.workspace = true",
            "rdmatop-sources",
        ),
        (
            "rdmatop-model",
            "rdmatop-output = { path = \"x\" }",
            "rdmatop-output",
        ),
        ("rdmatop-nccl-log", "tokio.workspace = true", "tokio"),
        ("rdmatop-model", "libc.workspace = true", "libc"),
        (
            "rdmatop-sources",
            "rdmatop-views.workspace = true",
            "rdmatop-views",
        ),
    ] {
        assert_eq!(too_many(name, &with(line)), [wrong], "{name}");
    }
    assert_eq!(
        too_many("rdmatop-model", &with("serde.workspace = true")),
        [""; 0]
    );
}

#[test]
fn each_layer_imports_only_what_it_may() {
    let mut all = Vec::new();
    for (name, dir) in crates() {
        modules(&dir.join("src"), &[name.replace('-', "_")], &mut all);
    }
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
    let module = ["rdmatop_views".to_owned(), "tui".to_owned()];
    for text in [
        "use rdmatop_model::engine;",
        "use rdmatop_model::{snapshot::Snapshot, engine::{Engine, EngineConfig}};",
        "use rdmatop_model::engine::Engine as E;",
        "fn f() { rdmatop_model::engine::Engine::default(); }",
        "mod inner { use rdmatop_model::engine::*; }",
        "struct S { engine: rdmatop_model::engine::Engine }",
        "use rdmatop_model as m; struct S(m::engine::Engine);",
        "use rdmatop_model::{self as m}; struct S(m::engine::Engine);",
        "use rdmatop_model::*;",
        "fn f() { println!(\"{:?}\", [(rdmatop_model::engine::Engine::default(), 1)]); }",
    ] {
        assert_ne!(broken(&module, &named(&module, text)), [""; 0], "{text}");
    }
    for text in [
        "use rdmatop_model::snapshot::Snapshot;",
        "#[cfg(test)] mod tests { use rdmatop_model::engine::Engine; }",
        "#[cfg(any(test, feature = \"testkit\"))] mod kit { use rdmatop_model::engine::Engine; }",
        "use super::engine_of_nothing;",
        "use rdmatop_model::snapshot::*;",
        "fn f() { matches!(x, rdmatop_model::snapshot::Snapshot { .. }); }",
    ] {
        assert_eq!(broken(&module, &named(&module, text)), [""; 0], "{text}");
    }
    let doctor = [
        "rdmatop".to_owned(),
        "app".to_owned(),
        "doctor".to_owned(),
        "process".to_owned(),
    ];
    for text in [
        "use std::fs::File; fn f() { File::open(path); }",
        "use std::fs; fn f() { fs::read(path); }",
        "fn f() { std::fs::read_to_string(path); }",
        "use rustix::fs::{Mode, openat};",
        "fn f() { dir.join(name).read_dir(); }",
        "fn f() { root.bytes(&dir.join(\"root/etc/nccl.conf\"), 1); }",
        "const NAME: &str = \"root\";",
        "fn f() { dir.join(format!(\"{pid}/cwd/{name}\")); }",
        "fn f() { root.bytes(&dir.join(\"exe\"), 1); }",
        "fn f() { root.bytes(&dir.join(format!(\"map_files/{range}\")), 1); }",
        "use std::fs::File; fn f() { File::options().read(true); }",
        "fn f() { unsafe { libc::open(path, 0) }; }",
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
    let engine = ["rdmatop_model".to_owned(), "engine".to_owned()];
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
