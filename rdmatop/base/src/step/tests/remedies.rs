//! docs/remedies.md: every remedy of doctor, findings, notes and nccl-log, what its commands change, and the
//! source that proves it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use syn::parse::ParseStream;
use syn::visit::{self, Visit};

use super::commands::commands;
use super::{program, sources};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/remedies.md");
const BEGIN: &str = "<!-- remedies -->\n";
const END: &str = "<!-- end of remedies -->";
const HEAD: &str = "| remedy | changes | source |\n|---|---|---|\n";
/// Below rdmatop/: the files and directories whose remedies the page has.
const PLACES: [&str; 7] = [
    "doctor/src",
    "model/src/findings/rules",
    "base/src/driver_log.rs",
    "base/src/fabric.rs",
    "base/src/locked.rs",
    "lab/src/packages.rs",
    "sources/src/platform/remedy.rs",
];
/// The same, of notes and of nccl-log. Texts are turned into others there that are no remedies.
const NOTES: [&str; 6] = [
    "loader/src",
    "model/src/engine",
    "model/src/judgement",
    "nccl-log/src/dictionary",
    "sources/src",
    "src/app",
];
/// Commands that change something. A remedy with one must say how far that goes, by one of [`EXTENTS`].
const CHANGING: [&str; 22] = [
    "sudo apt install ",
    "sudo dnf install ",
    "--uprobes",
    "sudo modprobe ",
    "sudo ip link set ",
    "sudo ip address add ",
    "sysctl -w ",
    "sudo tee ",
    "sudo setpci ",
    "sudo set_irq_affinity",
    "sudo systemctl start ",
    "sudo systemctl edit ",
    "sudo systemctl restart ",
    "sudo scontrol reconfigure",
    "sudo virsh edit ",
    "sudo chmod ",
    "sudo udevadm ",
    "sudo mount ",
    "sudo prlimit ",
    "kill -CONT ",
    "rdma statistic qp set ",
    "--trust ",
];
const EXTENTS: [&str; 20] = [
    // A package stays; probes are there while rdmatop runs.
    "sudo apt install ",
    "sudo dnf install ",
    "--uprobes",
    "until the next boot",
    "from now on",
    "from then on",
    "next start",
    "makes the files anew",
    "it is stopped",
    "lift that limit",
    "without limit",
    // A binding goes on until somebody ends it.
    "auto off",
    "not unlimited ->",
    "for all users",
    "log in anew",
    "start it anew",
    "pods go on",
    "LimitMEMLOCK",
    // They name the process and the cgroup whose limit it is.
    "--memlock=unlimited",
    "/sys/fs/cgroup{}/rdma.max",
];

/// Commands that show an ordinary user nothing, or are refused: what is about other users' processes, the
/// hardware, or the management of an InfiniBand fabric.
const OF_ROOT: [&str; 33] = [
    "chmod ",
    "dmesg |",
    "dmesg >",
    "dmesg -",
    "dmesg`",
    "ethtool -m ",
    "grep -zE ",
    "ibdiagnet ",
    "iblinkinfo ",
    "ip address add ",
    "ip link set ",
    "kill -",
    "lsns ",
    "lspci -",
    "mlnx_qos ",
    "mlxconfig ",
    "mlxlink ",
    "modprobe ",
    "mount -t ",
    "nft ",
    "nsenter ",
    "prlimit ",
    "py-spy ",
    "rdmatop --trace",
    "rdmatop check ",
    "rdmatop doctor --pid",
    "set_irq_affinity",
    "setpci ",
    "sminfo ",
    "ss -ltnp",
    "ss -tanp",
    "sysctl -w ",
    "systemctl ",
];

/// The reader is root, as a rule, and lacks a capability.
const OF_ROOT_ALREADY: &str =
    "{}, or `sysctl -w kernel.perf_event_paranoid=2`, for all users until the next boot";

/// The texts of remedies in a file.
#[derive(Default)]
struct Finder {
    found: Vec<String>,
    /// Constants that are remedies, by the last parts of their names.
    named: BTreeSet<String>,
    /// What constants would give.
    texts: Vec<(String, Finder)>,
    /// Functions of which a parameter is a remedy, and its place.
    takers: BTreeMap<String, usize>,
    /// Of a file of [`NOTES`].
    notes: bool,
    /// Within an expression that is a remedy as a whole.
    within: bool,
    /// Within a function that gives pairs of a meaning and a remedy.
    pairs: bool,
}

impl Finder {
    fn all_of(&mut self, expression: &syn::Expr) {
        let before = std::mem::replace(&mut self.within, true);
        self.visit_expr(expression);
        self.within = before;
    }

    fn is_remedy(name: &str) -> bool {
        matches!(name, "next" | "remedy")
    }

    /// Whether a pattern is a remedy, and whether it is a tuple of which the last is.
    fn binds(pattern: &syn::Pat) -> [bool; 2] {
        match pattern {
            syn::Pat::Ident(name) => [Self::is_remedy(&name.ident.to_string()), false],
            syn::Pat::Tuple(all) => [false, all.elems.last().is_some_and(|last| Self::binds(last)[0])],
            syn::Pat::Type(typed) => Self::binds(&typed.pat),
            _ => [false; 2],
        }
    }

    /// Records which parameter of a function is a remedy.
    fn takes<'a>(&mut self, function: &syn::Ident, mut parameters: impl Iterator<Item = &'a syn::Pat>) {
        if let Some(place) = parameters.position(|pattern| Self::binds(pattern)[0]) {
            self.takers.insert(function.to_string(), place);
        }
    }

    /// One of what is a remedy as a whole.
    fn within() -> Self {
        Self {
            within: true,
            ..Self::default()
        }
    }

    /// The remedies of a file, and the names of what gives more of them.
    fn read(file: &Path, notes: bool) -> Self {
        let file = syn::parse_file(&fs::read_to_string(file).unwrap()).unwrap();
        let mut finder = Self::default();
        // A function may stand behind its callers.
        finder.visit_file(&file);
        let takers = std::mem::take(&mut finder.takers);
        let mut again = Self {
            takers,
            notes,
            ..Self::default()
        };
        again.visit_file(&file);
        again
    }
}

/// Whether an attribute is a comment that says of a function that it gives a remedy.
fn says_remedy(attribute: &syn::Attribute) -> bool {
    let syn::Meta::NameValue(doc) = &attribute.meta else {
        return false;
    };
    let syn::Expr::Lit(value) = &doc.value else {
        return false;
    };
    matches!(&value.lit, syn::Lit::Str(text) if text.value().starts_with(" The remedy"))
}

/// What stands behind each `next` of a table of messages.
fn nexts(input: ParseStream<'_>) -> syn::Result<Vec<syn::Expr>> {
    let mut found = Vec::new();
    while !input.is_empty() {
        if input
            .fork()
            .parse::<syn::Ident>()
            .is_ok_and(|word| word == "next")
        {
            input.parse::<syn::Ident>()?;
            found.push(input.parse()?);
        } else {
            input.step(|cursor| match cursor.token_tree() {
                Some((_, rest)) => Ok(((), rest)),
                None => Err(cursor.error("no token")),
            })?;
        }
    }
    Ok(found)
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if item.ident != "tests" {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        let parameters = item.sig.inputs.iter().filter_map(|input| match input {
            syn::FnArg::Typed(typed) => Some(&*typed.pat),
            syn::FnArg::Receiver(_) => None,
        });
        self.takes(&item.sig.ident, parameters);
        // A function that gives one says so.
        if item.attrs.iter().any(says_remedy) || item.sig.ident.to_string().ends_with("remedy") {
            self.within = true;
            self.visit_block(&item.block);
            self.within = false;
        }
        self.pairs = item.sig.ident == "meaning";
        visit::visit_item_fn(self, item);
        self.pairs = false;
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.pairs = item.sig.ident == "reason";
        visit::visit_impl_item_fn(self, item);
        self.pairs = false;
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        let mut given = Self::within();
        given.visit_expr(&item.expr);
        self.texts.push((item.ident.to_string(), given));
        visit::visit_item_const(self, item);
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        let last = path.path.segments.last().filter(|_| self.within);
        let name = last.map(|last| last.ident.to_string());
        self.named
            .extend(name.filter(|name| name.chars().all(|c| c.is_uppercase() || c == '_')));
    }

    fn visit_expr_assign(&mut self, assign: &'ast syn::ExprAssign) {
        if let syn::Expr::Field(field) = &*assign.left
            && let syn::Member::Named(name) = &field.member
            && Self::is_remedy(&name.to_string())
        {
            return self.all_of(&assign.right);
        }
        visit::visit_expr_assign(self, assign);
    }

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let name = call.method.to_string();
        if !self.notes && matches!(name.as_str(), "warn" | "fail" | "skip" | "unknown_until") {
            let mut arguments: Vec<_> = call.args.iter().collect();
            if let Some(last) = arguments.pop() {
                self.all_of(last);
            }
            return arguments
                .into_iter()
                .for_each(|argument| self.visit_expr(argument));
        }
        let receiver = &*call.receiver;
        if !self.notes
            && name == "into"
            && matches!(
                receiver,
                syn::Expr::Lit(_) | syn::Expr::Match(_) | syn::Expr::If(_)
            )
        {
            return self.all_of(&call.receiver);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        let syn::Expr::Path(path) = &*call.func else {
            return visit::visit_expr_call(self, call);
        };
        let mut names = path.path.segments.iter().rev().map(|part| part.ident.to_string());
        let (name, of) = (names.next().unwrap_or_default(), names.next());
        let taken = match &*name {
            "push" if of.is_none() => call.args.len().checked_sub(1),
            "new" => (of.as_deref() == Some("Obstacle")).then_some(2),
            _ => self.takers.get(&name).copied(),
        };
        self.visit_expr(&call.func);
        for (at, argument) in call.args.iter().enumerate() {
            if Some(at) == taken {
                self.all_of(argument);
            } else {
                self.visit_expr(argument);
            }
        }
    }

    fn visit_expr_tuple(&mut self, tuple: &'ast syn::ExprTuple) {
        if let (true, Some(last)) = (self.pairs, tuple.elems.last()) {
            self.all_of(last);
        }
        visit::visit_expr_tuple(self, tuple);
    }

    fn visit_field_value(&mut self, field: &'ast syn::FieldValue) {
        if matches!(&field.member, syn::Member::Named(name) if Self::is_remedy(&name.to_string())) {
            return self.all_of(&field.expr);
        }
        visit::visit_field_value(self, field);
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        let [is_remedy, is_pair] = Self::binds(&local.pat);
        if let (syn::Pat::Ident(name), Some(init)) = (&local.pat, &local.init)
            && let syn::Expr::Closure(closure) = &*init.expr
        {
            self.takes(
                &name.ident,
                closure.inputs.iter().map(|input| match input {
                    syn::Pat::Type(typed) => &*typed.pat,
                    other => other,
                }),
            );
        }
        match &local.init {
            Some(init) if is_remedy => self.all_of(&init.expr),
            _ => {
                let before = self.pairs;
                self.pairs |= is_pair;
                visit::visit_local(self, local);
                self.pairs = before;
            }
        }
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        if called.path.is_ident("step") {
            let parts = syn::punctuated::Punctuated::<syn::Expr, syn::Token![,]>::parse_terminated;
            let parts = called.parse_body_with(parts).unwrap();
            let mut parts = parts.iter();
            self.all_of(parts.next().unwrap());
            let before = std::mem::replace(&mut self.within, false);
            parts.for_each(|part| self.visit_expr(part));
            self.within = before;
        }
        if called.path.is_ident("messages") {
            for next in called.parse_body_with(nexts).unwrap() {
                self.all_of(&next);
            }
        }
    }

    fn visit_lit_str(&mut self, text: &'ast syn::LitStr) {
        let text = text.value();
        // A text that begins with a command is a remedy wherever it stands: some are constants.
        let begins = !self.notes
            && commands(&text)
                .first()
                .is_some_and(|command| text.starts_with(command));
        let is_one = (self.within || begins) && text.contains(' ') && !text.starts_with("{} --pid");
        if is_one && !self.found.contains(&text) {
            self.found.push(text);
        }
    }
}

/// Each remedy, and the file in which it is first.
fn remedies() -> BTreeMap<String, PathBuf> {
    let program = program();
    let files = |places: &[&str]| {
        let mut files = Vec::new();
        for place in places.iter().map(|place| program.join(place)) {
            if place.is_dir() {
                sources(&place, &mut files);
            } else {
                files.push(place);
            }
        }
        files
    };
    let is_test = |file: &PathBuf| {
        let name = file.with_extension("");
        let mut parts = name.components().map(|part| part.as_os_str().to_string_lossy());
        parts.any(|part| part == "tests" || part.ends_with("_tests"))
    };
    let (own, mut notes) = (files(&PLACES), files(&NOTES));
    notes.retain(|file| !is_test(file) && !own.contains(file));
    let all = own
        .into_iter()
        .map(|file| (file, false))
        .chain(notes.into_iter().map(|file| (file, true)));
    let read: Vec<(PathBuf, Finder)> = all
        .map(|(file, notes)| (file.clone(), Finder::read(&file, notes)))
        .collect();
    let mut named: BTreeSet<String> = read.iter().flat_map(|(_, finder)| finder.named.clone()).collect();
    let mut out = BTreeMap::new();
    let mut add = |file: &PathBuf, found: Vec<String>| {
        for remedy in found {
            out.entry(remedy).or_insert_with(|| file.clone());
        }
    };
    // What a name gives may be another name.
    for _ in 0..2 {
        for (file, finder) in &read {
            for (name, given) in &finder.texts {
                if named.contains(name) {
                    named.extend(given.named.clone());
                    add(file, given.found.clone());
                }
            }
        }
    }
    for (file, finder) in read {
        add(&file, finder.found);
    }
    out
}

fn cell(remedy: &str) -> String {
    let text = remedy.replace('\n', "\\n").replace('|', "\\|");
    // The text may have backticks of its own.
    if text.contains('`') {
        format!("`` {text} ``")
    } else {
        format!("`{text}`")
    }
}

/// The rows of the table: changes and source by the cell of the remedy.
fn rows(table: &str) -> BTreeMap<&str, [&str; 2]> {
    let row = |line| {
        let cells: Vec<&str> = str::strip_prefix(line, "| ")?
            .strip_suffix(" |")?
            .rsplitn(3, " | ")
            .collect();
        let [source, changes, remedy] = cells[..] else {
            return None;
        };
        Some((remedy, [changes, source]))
    };
    table.lines().skip(2).filter_map(row).collect()
}

#[test]
fn each_remedy_has_a_row_that_says_what_it_changes_and_what_proves_it() {
    let page = fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the beginning of the table");
    let (table, after) = rest.split_once(END).expect("the end of the table");
    let rows = rows(table);
    let all = remedies();
    let mut written = HEAD.to_owned();
    for remedy in all.keys() {
        let cell = cell(remedy);
        let [changes, source] = rows.get(&*cell).copied().unwrap_or(["?", "?"]);
        let _ = writeln!(written, "| {cell} | {changes} | {source} |");
    }
    if std::env::var_os("RDMATOP_WRITE_DOCS").is_some() {
        fs::write(PAGE, format!("{before}{BEGIN}{written}{END}{after}")).unwrap();
    }
    assert!(
        table == written,
        "run the test with RDMATOP_WRITE_DOCS=1, and fill in what has a question mark"
    );
    for (remedy, file) in all {
        let [changes, source] = rows[&*cell(&remedy)];
        let at = format!("{}: {remedy}", file.display());
        assert!(![changes, source].contains(&"?"), "{at}");
        let does_change = CHANGING.iter().any(|command| remedy.contains(command));
        assert_eq!(does_change, changes != "nothing", "{at}: {changes}");
        let says_how_far = EXTENTS.iter().any(|extent| remedy.contains(extent));
        assert!(
            !does_change || says_how_far,
            "{at}: it does not say how far the change goes"
        );
    }
}

/// The commands of a remedy that need root and stand without sudo.
fn without_sudo(remedy: &str) -> Vec<&'static str> {
    let mut out = OF_ROOT.to_vec();
    out.retain(|command| {
        let mut places = remedy.match_indices(command).map(|(at, _)| &remedy[..at]);
        places.any(|before| {
            let is_word = before.ends_with(|c: char| c.is_alphanumeric() || "-_/.".contains(c));
            !is_word && !before.ends_with("sudo ")
        })
    });
    out
}

#[test]
fn a_command_that_needs_root_stands_behind_sudo() {
    let all = remedies();
    let lacking: Vec<_> = all
        .keys()
        .filter(|remedy| *remedy != OF_ROOT_ALREADY)
        .map(|remedy| (remedy, without_sudo(remedy)))
        .filter(|(_, commands)| !commands.is_empty())
        .collect();
    assert!(lacking.is_empty(), "{lacking:#?}");
    for command in OF_ROOT {
        let is_used = |remedy: &String| {
            remedy
                .split("sudo ")
                .skip(1)
                .any(|rest| rest.starts_with(command))
        };
        assert!(all.keys().any(is_used), "no remedy has {command}");
        assert_eq!(without_sudo(&format!("x   # y -> {command}z")), [command]);
    }
}

#[test]
fn a_shell_can_read_each_command_of_a_remedy() {
    let mut script = String::new();
    for remedy in remedies().keys() {
        let quoted = remedy.split('`').skip(1).step_by(2);
        for command in commands(remedy)
            .into_iter()
            .chain(quoted.filter(|text| text.starts_with("sudo ")))
        {
            let _ = writeln!(script, "{}", command.replace("{}", "x"));
        }
    }
    assert!(script.lines().count() > 60, "{script}");
    let ran = Command::new("/bin/sh")
        .args(["-n", "-c", &script])
        .output()
        .unwrap();
    assert!(
        ran.status.success() && ran.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}
