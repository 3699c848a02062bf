//! Commands stand in steps alone: no other text has a command with a place for a name.

use std::{collections::BTreeSet, fs};

use syn::{
    Ident, LitStr, Token,
    ext::IdentExt as _,
    parse::{Parse, ParseStream},
    visit::{self, Visit},
};

use super::{commands::commands, program, sources};

/// Texts outside steps that may have a command with a place: what stands there is a number, or a path of
/// rdmatop's own.
const HARMLESS: [&str; 5] = [
    // A thread of rdmatop waits: its number.
    "no answer from {} for {} s; sudo cat /proc/{}/task/*/stack shows what rdmatop waits for",
    // A process of a log: its number.
    "{} of {} QPs of {} (PID {}) are in ERR: their connections are broken. `sudo rdmatop check --pid {}` says more",
    // `up` or `down`.
    "`lab {0}` changes network devices and needs root: run `sudo rdmatop lab {0}`",
    // The lab's own file, and its directory.
    "{path} is not what `lab up` writes ({why}), so rdmatop cannot know what it made: remove that by `rdma link delete NAME` and `ip link delete NAME` where it is left, then run `sudo rm {path}`",
    "{path} {why}, and what is in it decides what root removes: run `sudo rm -r {path}` and try again",
];

/// The texts among tokens, but those of steps.
#[derive(Default)]
struct Texts(Vec<String>);

impl Parse for Texts {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut out = Self::default();
        while !input.is_empty() {
            let inner;
            if input.peek(LitStr) {
                out.0.push(input.parse::<LitStr>()?.value());
                continue;
            } else if input.peek(Ident::peek_any) {
                if Ident::parse_any(input)? == "step" && input.peek(Token![!]) {
                    input.parse::<Token![!]>()?;
                    skip(input)?;
                }
                continue;
            } else if input.peek(syn::token::Paren) {
                syn::parenthesized!(inner in input);
            } else if input.peek(syn::token::Bracket) {
                syn::bracketed!(inner in input);
            } else if input.peek(syn::token::Brace) {
                syn::braced!(inner in input);
            } else {
                skip(input)?;
                continue;
            }
            out.0.extend(inner.parse::<Self>()?.0);
        }
        Ok(out)
    }
}

/// Passes a token, or a group of them.
fn skip(input: ParseStream<'_>) -> syn::Result<()> {
    input.step(|cursor| {
        let next = cursor.token_tree().map(|(_, rest)| ((), rest));
        next.ok_or_else(|| cursor.error("no token"))
    })
}

/// Texts that are given to macros and attributes, outside tests.
#[derive(Default)]
struct Finder(Vec<String>);

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let is_test = |attribute: &syn::Attribute| {
            matches!(&attribute.meta, syn::Meta::List(list)
                if list.path.is_ident("cfg") && list.tokens.to_string().contains("test"))
        };
        if !module.attrs.iter().any(is_test) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        let name = called.path.segments.last();
        if name.is_none_or(|name| name.ident != "step") {
            self.0.extend(called.parse_body::<Texts>().unwrap().0);
        }
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        // The text of an error. Comments are attributes, too.
        if let syn::Meta::List(list) = &attribute.meta {
            self.0.extend(list.parse_args::<Texts>().unwrap().0);
        }
    }
}

/// Texts of a source file outside steps that have a command with a place for something.
fn unquoted(source: &str) -> Vec<String> {
    let mut finder = Finder::default();
    finder.visit_file(&syn::parse_file(source).unwrap());
    let mut found = finder.0;
    found.retain(|text| {
        let mut commands = commands(text).into_iter();
        commands.any(|command| command.contains('{') && !is_sentence(command))
    });
    found
}

/// Whether it is a sentence about rdmatop, and no command.
fn is_sentence(command: &str) -> bool {
    const SUBCOMMANDS: [&str; 6] = ["check", "completions", "doctor", "lab", "man", "nccl-log"];
    let words = command.strip_prefix("rdmatop ");
    words.is_some_and(|words| {
        let first = words.split(' ').next().unwrap_or_default();
        !first.starts_with('-') && !SUBCOMMANDS.contains(&first)
    })
}

#[test]
fn no_command_is_formatted_outside_a_step() {
    let mut files = Vec::new();
    sources(&program(), &mut files);
    let is_of_tests = |path: &std::path::PathBuf| {
        path.components().any(|part| {
            matches!(
                part.as_os_str().to_str(),
                Some("tests" | "tests.rs" | "testkit" | "examples" | "target" | "build.rs")
            )
        })
    };
    files.retain(|path| !is_of_tests(path));
    let (mut harmless, mut others) = (BTreeSet::new(), Vec::new());
    for file in files {
        for text in unquoted(&fs::read_to_string(&file).unwrap()) {
            match HARMLESS.iter().find(|known| **known == text) {
                Some(known) => drop(harmless.insert(*known)),
                None => others.push(format!("{}: {text}", file.display())),
            }
        }
    }
    assert!(others.is_empty(), "use step! for {others:#?}");
    assert_eq!(harmless, BTreeSet::from(HARMLESS), "these are no more");
}

#[test]
fn a_command_outside_a_step_is_found_however_it_is_made() {
    for source in [
        r#"fn f() -> String { format!("run sudo ip link set {} up", name) }"#,
        r#"fn f() { say.line(format_args!("sudo ethtool {netdev}")); }"#,
        r#"fn f() -> Vec<String> { vec![format!("kill {pid}")] }"#,
        r#"#[derive(Error)] enum E { #[error("try `sudo rmdir {0}`: sudo rmdir {0}")] A(String) }"#,
        r#"fn f() { let _ = write!(out, "cat /sys/fs/cgroup{path}"); }"#,
    ] {
        assert_eq!(unquoted(source).len(), 1, "{source}");
    }
    for source in [
        r#"fn f() -> NextStep { step!("sudo ip link set {} up", name) }"#,
        r#"fn f() -> Vec<NextStep> { vec![crate::step!("kill {}", pid), step!("kill {}", pid)] }"#,
        r#"#[cfg(test)] mod tests { fn f() -> String { format!("kill {pid}") } }"#,
        r#"fn f() -> String { format!("{pid} was killed") }"#,
        r#"fn f() -> &'static str { "kill {}" }"#,
    ] {
        assert_eq!(unquoted(source), [""; 0], "{source}");
    }
}
