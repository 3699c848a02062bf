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

fn render(command: clap::Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    // No date: the same source gives the same page.
    Man::new(command).date("").render(&mut page)?;
    Ok(page)
}

fn write_pages(dir: &Path) -> io::Result<()> {
    let top = command();
    for sub in top.get_subcommands() {
        std::fs::write(
            dir.join(Man::new(sub.clone()).get_filename()),
            render(sub.clone())?,
        )?;
    }
    std::fs::write(dir.join("rdmatop.1"), render(top)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_man_page_has_the_options_and_the_exit_codes() {
        let page = String::from_utf8(render(command()).unwrap()).unwrap();
        insta::assert_snapshot!(page);
    }

    #[test]
    fn every_visible_command_has_a_page_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        write_pages(dir.path()).unwrap();
        let mut names: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(
            names,
            [
                "rdmatop-check.1",
                "rdmatop-completions.1",
                "rdmatop-doctor.1",
                "rdmatop-lab.1",
                "rdmatop-man.1",
                "rdmatop-nccl-log.1",
                "rdmatop-probes.1",
                "rdmatop.1"
            ]
        );
        let page = std::fs::read_to_string(dir.path().join("rdmatop-probes.1")).unwrap();
        assert!(
            page.contains("rdmatop-probes") && page.contains("attached or not"),
            "{page}"
        );
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
