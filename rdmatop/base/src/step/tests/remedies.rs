//! docs/remedies.md: every remedy of doctor and of findings, what its commands change, and the source that
//! proves it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

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
/// Commands that change something. A remedy with one must say how far that goes, by one of [`EXTENTS`].
const CHANGING: [&str; 17] = [
    "sudo modprobe ",
    "sudo ip link set ",
    "sudo ip address add ",
    "sysctl -w ",
    "sudo tee ",
    "sudo setpci ",
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
    "--trust ",
];
const EXTENTS: [&str; 16] = [
    "until the next boot",
    "from now on",
    "from then on",
    "next start",
    "makes the files anew",
    "it is stopped",
    "lift that limit",
    "without limit",
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
const OF_ROOT: [&str; 30] = [
    "chmod ",
    "dmesg |",
    "dmesg >",
    "dmesg -",
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
    "rdmatop --trace",
    "rdmatop check ",
    "rdmatop doctor --pid",
    "set_irq_affinity",
    "setpci ",
    "sminfo ",
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
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if item.ident != "tests" {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.pairs = item.sig.ident == "meaning";
        visit::visit_item_fn(self, item);
        self.pairs = false;
    }

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let name = call.method.to_string();
        if matches!(name.as_str(), "warn" | "fail" | "skip") {
            let mut arguments: Vec<_> = call.args.iter().collect();
            if let Some(last) = arguments.pop() {
                self.all_of(last);
            }
            return arguments
                .into_iter()
                .for_each(|argument| self.visit_expr(argument));
        }
        let receiver = &*call.receiver;
        if name == "into"
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
        let is_push = matches!(&*call.func, syn::Expr::Path(path) if path.path.is_ident("push"));
        if let Some(last) = call.args.last().filter(|_| is_push) {
            self.all_of(last);
        }
        visit::visit_expr_call(self, call);
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
        let is_remedy =
            matches!(&local.pat, syn::Pat::Ident(name) if Self::is_remedy(&name.ident.to_string()));
        match &local.init {
            Some(init) if is_remedy => self.all_of(&init.expr),
            _ => visit::visit_local(self, local),
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
    }

    fn visit_lit_str(&mut self, text: &'ast syn::LitStr) {
        let text = text.value();
        // A text that begins with a command is a remedy wherever it stands: some are constants.
        let begins = commands(&text)
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
    let mut files = Vec::new();
    for place in PLACES.map(|place| program.join(place)) {
        if place.is_dir() {
            sources(&place, &mut files);
        } else {
            files.push(place);
        }
    }
    let mut out = BTreeMap::new();
    for file in files {
        let mut finder = Finder::default();
        finder.visit_file(&syn::parse_file(&fs::read_to_string(&file).unwrap()).unwrap());
        for remedy in finder.found {
            out.entry(remedy).or_insert_with(|| file.clone());
        }
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
