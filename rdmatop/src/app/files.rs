//! The commands that make files for packagers: the man pages and the completions.

use std::io::{self, Write};
use std::path::Path;

use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::command;
use crate::exit::{Exit, Stop, written};

pub(super) fn man(dir: Option<&Path>) -> Result<Exit, Stop> {
    let Some(dir) = dir else {
        let page = render(command()).map_err(|e| Stop::failure(format!("cannot make the man page: {e}")))?;
        return written(io::stdout().lock().write_all(&page)).map(|_| Exit::Ok);
    };
    write_pages(dir)
        .map(|()| Exit::Ok)
        .map_err(|e| Stop::failure(format!("cannot write man pages into {}: {e}", dir.display())))
}

pub(super) fn completions(shell: Shell) -> Result<Exit, Stop> {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut command(), "rdmatop", &mut out);
    written(io::stdout().lock().write_all(&out)).map(|_| Exit::Ok)
}

fn render(page_of: clap::Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    // Only the top command has a version, and the foot of each page names the program with it.
    let version = command().get_version().map(str::to_owned);
    let source = format!("rdmatop {}", version.unwrap_or_default());
    // No date: the same source gives the same page.
    Man::new(page_of).date("").source(source).render(&mut page)?;
    Ok(page)
}

/// Writes the page of each command, and of the commands of each: a page refers to those of its commands.
fn write_pages(dir: &Path) -> io::Result<()> {
    let mut commands = vec![command()];
    while let Some(next) = commands.pop() {
        commands.extend(next.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned());
        std::fs::write(dir.join(Man::new(next.clone()).get_filename()), render(next)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn the_man_page_has_the_options_and_the_exit_codes() {
        let page = String::from_utf8(render(command()).unwrap()).unwrap();
        insta::assert_snapshot!(page);
    }

    /// Writes all pages, and returns their texts by the names of their files.
    fn pages() -> BTreeMap<String, String> {
        let dir = tempfile::tempdir().unwrap();
        write_pages(dir.path()).unwrap();
        let read = |entry: io::Result<std::fs::DirEntry>| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read_to_string(&path).unwrap())
        };
        std::fs::read_dir(dir.path()).unwrap().map(read).collect()
    }

    #[test]
    fn every_visible_command_has_a_page_of_its_own() {
        let pages = pages();
        assert_eq!(
            pages.keys().collect::<Vec<_>>(),
            [
                "rdmatop-check.1",
                "rdmatop-completions.1",
                "rdmatop-doctor.1",
                "rdmatop-lab-down.1",
                "rdmatop-lab-run.1",
                "rdmatop-lab-status.1",
                "rdmatop-lab-up.1",
                "rdmatop-lab.1",
                "rdmatop-man.1",
                "rdmatop-nccl-log.1",
                "rdmatop-probes.1",
                "rdmatop.1"
            ]
        );
        let page = &pages["rdmatop-probes.1"];
        assert!(
            page.contains("rdmatop-probes") && page.contains("attached or not"),
            "{page}"
        );
        let page = &pages["rdmatop-lab-run.1"];
        assert!(
            page.contains("\\fBrdmatop lab run\\fR") && page.contains("SCENARIO"),
            "{page}"
        );
    }

    #[test]
    fn every_page_that_is_referred_to_is_there_and_each_names_the_version() {
        let pages = pages();
        let mut referred = BTreeSet::new();
        for (name, page) in &pages {
            let plain = page.replace("\\-", "-");
            for (at, _) in plain.match_indices("(1)") {
                let before = &plain[..at];
                let start = before.rfind(|c: char| !c.is_alphanumeric() && c != '-');
                let other = &before[start.map_or(0, |start| start + 1)..];
                if other.starts_with("rdmatop") {
                    assert!(pages.contains_key(&format!("{other}.1")), "{name}: {other}(1)");
                    referred.insert(other.to_owned());
                }
            }
            let title = page.lines().find(|line| line.starts_with(".TH ")).unwrap();
            let source = format!("\"rdmatop {}\"", command().get_version().unwrap());
            assert!(title.contains(&source), "{name}: {title}");
        }
        // Each page but the first is referred to, so that the search above does find references.
        assert_eq!(referred.len(), pages.len() - 1, "{referred:?}");
    }

    #[test]
    fn each_shell_gets_completions_that_know_the_options() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut out = Vec::new();
            clap_complete::generate(shell, &mut command(), "rdmatop", &mut out);
            let text = String::from_utf8(out).unwrap();
            for option in ["no-ebpf", "trace", "delay", "kprobe"] {
                assert!(text.contains(option), "{shell}: {option}");
            }
        }
    }
}
