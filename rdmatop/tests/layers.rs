//! What neither the compiler nor clippy holds of ARCHITECTURE.md, "One direction": what of the model a crate
//! may use, the order of the model's own modules, and which modules open no file and name none of another
//! user. What crates may not call is in the clippy.toml of each, what they may use in their manifests.
use proc_macro2::{TokenStream, TokenTree};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// The crates below this directory.
const CRATES: &[&str] = &[
    "base", "doctor", "lab", "loader", "model", "nccl-log", "output", "sources", "views",
];
/// What of the model a crate may use. Sources send inputs, and say why something is missing; `doctor` says
/// that too, has facts that inputs have, and the version of all JSON; `nccl-log` sets a snapshot, which is
/// data, beside a log.
const OF_THE_MODEL: &[(&str, &str)] = &[
    ("doctor/", "cause input::PcieLink input::PortGid snapshot::SCHEMA"),
    ("loader/", "cause event::EventKind input"),
    ("nccl-log/", "cause ib snapshot value"),
    ("sources/", "cause input"),
    ("views/", NO_ENGINE),
];
/// The modules of the model: each uses none that comes after it here.
const UP: &[&str] = &[
    "value",
    "cause",
    "input",
    "watched",
    "facts",
    "judgement",
    "findings",
    "event",
    "snapshot",
    "fields",
    "filter",
    "engine",
];
const NO_ENGINE: &str = "cause event fields filter findings ib input judgement snapshot value watched";
/// What opens a file. Clippy holds rdmatop-sources to that; others too work with paths of other users.
const OPENERS: &str = "File::create File::create_new File::open File::options OpenOptions fs::* fs::as fs::self::as fs::canonicalize fs::copy fs::open \
    fs::openat fs::openat2 fs::read fs::read_dir fs::read_link fs::read_to_string libc::fopen libc::open libc::open64 libc::openat read_dir";
/// Names below /proc/PID that lead to files of that process's user.
const LEAD_OUT: &str = "/cwd /exe /map_files /root";
/// What no module may name whose file's path begins so.
const NEVER: &[(&str, &str)] = &[
    ("loader/src/user/ src/app/doctor/ src/app/nccl_log", OPENERS),
    ("lab/ loader/ output/ sources/ src/ views/", LEAD_OUT),
];
const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn is(token: Option<&TokenTree>, sign: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == sign)
}

/// The tokens without attributes, comments, and items that only tests have.
fn product(tokens: TokenStream) -> Vec<TokenTree> {
    let (mut out, mut all) = (Vec::new(), tokens.into_iter().peekable());
    while let Some(token) = all.next() {
        if !is(Some(&token), '#') {
            out.push(token);
            continue;
        }
        all.next_if(|token| is(Some(token), '!'));
        let text = all.next().map_or_else(String::new, |group| group.to_string());
        if text.starts_with("[cfg") && text.contains("test") && !text.contains("not") {
            // An item ends with its body or with a semicolon.
            let ends = |token: &TokenTree| is(Some(token), ';') || token.to_string().starts_with('{');
            while all.next().is_some_and(|token| !ends(&token)) {}
        }
    }
    out
}

/// All paths that the tokens name, from each of their parts on, and `/part` for parts of paths of files.
fn mentions(tokens: &[TokenTree], out: &mut BTreeSet<String>) {
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Group(group) => mentions(&product(group.stream()), out),
            TokenTree::Ident(name) => paths(&tokens[at + 1..], name.to_string(), out),
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                let text = text.split('"').nth(1).unwrap_or_default();
                // A text with blanks is for people, and /proc/self is rdmatop.
                if !text.contains(char::is_whitespace) && !text.starts_with("/proc/self/") {
                    out.extend(text.split('/').map(|part| format!("/{part}")));
                }
            }
            TokenTree::Punct(_) => {}
        }
    }
}

/// The paths that begin with `path` and go on with these tokens: several where they are in braces.
fn paths(tokens: &[TokenTree], path: String, out: &mut BTreeSet<String>) {
    let is_joined = is(tokens.first(), ':') && is(tokens.get(1), ':');
    match (is_joined, tokens.get(if is_joined { 2 } else { 0 })) {
        (true, Some(TokenTree::Ident(name))) => paths(&tokens[3..], format!("{path}::{name}"), out),
        (true, Some(TokenTree::Group(group))) => {
            for item in Vec::from_iter(group.stream()).split(|token| is(Some(token), ',')) {
                let Some(first) = item.first() else { continue };
                paths(&item[1..], format!("{path}::{first}"), out);
            }
        }
        (true, Some(token)) if is(Some(token), '*') => _ = out.insert(path + "::*"),
        // What has another name from here on could not be followed.
        (false, Some(TokenTree::Ident(name))) if name == "as" => _ = out.insert(path + "::as"),
        _ => _ = out.insert(path),
    }
}

/// Whether a path is or is below one of these, each of which begins with `root`.
fn is_in(path: &str, root: &str, these: &str) -> bool {
    let mut all = these.split(' ').map(|one| format!("{root}{one}"));
    all.any(|one| path == one || path.starts_with(&format!("{one}::")))
}

/// What a file names that it may not.
fn broken(file: &str, tokens: &[TokenTree]) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    mentions(tokens, &mut named);
    let but = match file {
        // They open what is another user's, and libraries that root alone can write. Nothing else does.
        "sources/src/foreign.rs" | "sources/src/uprobes/files.rs" => "/",
        // It has a link's name there, which it gives to the first.
        "sources/src/uprobes/process.rs" => "/map_files",
        _ => "none",
    };
    let is_of = |begins: &str| begins.split(' ').any(|begin| file.starts_with(begin));
    named.retain(|path| {
        let model = OF_THE_MODEL.iter().filter(|(of, _)| is_of(of));
        let mut model = model.filter(|_| is_in(path, "", "rdmatop_model"));
        let mut never = NEVER.iter().filter(|(of, _)| is_of(of));
        let is_of = |name: &&&str| file.starts_with(&format!("model/src/{name}"));
        let mut above = UP.iter().skip_while(|name| !is_of(name)).skip(1);
        let is_above = above.any(|name| is_in(path, "crate::", name) || is_in(path, "super::", name));
        let other = model.any(|(_, may)| !is_in(path, "rdmatop_model::", may));
        (other || is_above || never.any(|(_, never)| is_in(path, "", never))) && !path.starts_with(but)
    });
    named
}

/// Adds what is wrong in a module and in those below it, which are in `dir`, and how many they are.
fn walk(file: &Path, dir: &Path, wrong: &mut Vec<String>, seen: &mut usize) {
    let tokens = product(fs::read_to_string(file).expect("a file").parse().expect("Rust"));
    let name = file
        .strip_prefix(ROOT)
        .ok()
        .and_then(Path::to_str)
        .expect("below the root, and text");
    let names = |path| format!("{name} names {path}");
    wrong.extend(broken(name, &tokens).into_iter().map(names));
    *seen += 1;
    for three in tokens.windows(3) {
        if three[0].to_string() == "mod" && is(three.get(2), ';') {
            let below = dir.join(three[1].to_string());
            let files = [below.with_extension("rs"), below.join("mod.rs")];
            let file = files.iter().find(|file| file.is_file());
            walk(file.expect("a file"), &below, wrong, seen);
        }
    }
}

#[test]
fn each_layer_imports_only_what_it_may() {
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for name in CRATES.iter().copied().chain([""]) {
        let dir = Path::new(ROOT).join(name).join("src");
        walk(&dir.join("lib.rs"), &dir, &mut wrong, &mut seen);
    }
    assert!(seen > 400, "only {seen} modules");
    assert_eq!(wrong, [""; 0], "see OF_THE_MODEL, NEVER and ARCHITECTURE.md");
}

/// Adds the Rust files below `dir` to `found`.
fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// A file that no `mod` names is not compiled, and tests in it never run.
#[test]
fn each_file_is_a_module_of_the_one_above() {
    let (mut all, mut alone) = (Vec::new(), Vec::new());
    let beside = ["../rdmatop-common", "../rdmatop-ebpf", "../xtask", "../tests"];
    for name in CRATES.iter().copied().chain([""]).chain(beside) {
        files(&Path::new(ROOT).join(name).join("src"), &mut all);
    }
    assert!(all.len() > 500, "only {} files", all.len());
    for file in all {
        let is_root = ["lib.rs", "main.rs"].iter().any(|root| file.ends_with(root));
        if is_root || file.parent().is_some_and(|dir| dir.ends_with("bin")) {
            continue;
        }
        let module = if file.ends_with("mod.rs") {
            file.parent().unwrap().to_owned()
        } else {
            file.with_extension("")
        };
        let (above, name) = (
            module.parent().unwrap(),
            module.file_name().unwrap().to_str().unwrap(),
        );
        let has = |place: PathBuf, words: &str| {
            let text = fs::read_to_string(place).unwrap_or_default();
            text.contains(words)
        };
        let places = ["lib.rs", "main.rs", "mod.rs"].map(|file| above.join(file));
        let mut places = places.into_iter().chain([above.with_extension("rs")]);
        // What a `#[path]` names is beside the file that names it.
        let mut beside = fs::read_dir(above).unwrap().map(|entry| entry.unwrap().path());
        let (module, path) = (format!("mod {name};"), format!("#[path = \"{name}.rs\"]"));
        if !places.any(|place| has(place, &module)) && !beside.any(|place| has(place, &path)) {
            alone.push(file);
        }
    }
    assert_eq!(alone, [""; 0].map(PathBuf::from));
}

#[test]
fn a_shortcut_is_found_however_it_is_spelled() {
    let fails = |of: &str, text: &str| !broken(of, &product(text.parse().unwrap())).is_empty();
    for (of, text) in [
        ("views/x", "use rdmatop_model::{cause::Cause, engine::{A, B}};"),
        ("views/x", "fn f() { g!(\"\", (rdmatop_model::engine::A, 1)); }"),
        ("loader/x", "mod inner { use rdmatop_model::event::*; }"),
        ("doctor/x", "use rdmatop_model as m;"),
        ("nccl-log/x", "use rdmatop_model::{self as m, *};"),
        (
            "model/src/facts/x.rs",
            "use crate::{cause::Cause, judgement::Stuck};",
        ),
        ("model/src/judgement/mod.rs", "use super::snapshot::Snapshot;"),
        ("model/src/findings/rules/x.rs", "fn f() { crate::engine::g(); }"),
        ("sources/x", "fn f() { g(format!(\"{pid}/cwd/{name}\")); }"),
        ("lab/x", "const NAME: &str = \"root\";"),
        ("src/app/doctor/x", "use std::fs::{self as f, File};"),
        ("loader/src/user/x", "fn f() { fs::read(p); }"),
    ] {
        assert!(fails(of, text), "{of}: {text}");
    }
    for text in [
        "#[cfg(any(test, feature = \"testkit\"))] #[expect(x)] mod kit { use rdmatop_model::engine::Engine; }",
        "/// Below /proc/7/root there is\nuse super::engine_of_nothing;",
        "fn f(file: std::fs::File) { say(\"look at /proc/7/root yourself\"); root::read(\"/proc/self/root\"); }",
    ] {
        assert!(!fails("loader/src/user/x", text), "{text}");
    }
    assert!(!fails("model/src/judgement/x.rs", "use crate::facts::Facts;"));
}
