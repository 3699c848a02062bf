//! The page: text, and blocks of commands with their output.
//!
//! ````text
//! <!-- learn: NAME -->
//! ```
//! 1$ COMMAND
//! what it prints
//! 2$ COMMAND
//! what it prints
//! ```
//! ````
//!
//! `1$` and `2$` are two terminals; `$` is the only one. After `<!-- learn: NAME, terminal 2 -->` only the
//! output of terminal 2 is shown.

use anyhow::{Context as _, Result, bail, ensure};

const MARK: &str = "<!-- learn: ";
const MARK_END: &str = " -->";
const FENCE: &str = "```";
/// Stands for omitted output.
const CUT: &str = "...";

/// A command and its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// `$`, `1$` or `2$`.
    pub prompt: String,
    /// The line as a user types it.
    pub line: String,
    /// The lines of stdout and stderr.
    pub output: Vec<String>,
}

/// One block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The block's name in the mark.
    pub name: String,
    /// If set, only the output of this terminal is shown.
    pub only: Option<String>,
    /// The commands in the order of the page.
    pub commands: Vec<Command>,
}

impl Block {
    /// Returns the part of a command's output that the page shows.
    pub fn shown(&self, command: &Command) -> Vec<String> {
        match &self.only {
            Some(only) if *only != command.prompt => vec![CUT.into()],
            _ => command.output.clone(),
        }
    }
}

#[derive(Debug)]
enum Part {
    Text(String),
    Block(Block),
}

/// The whole page.
#[derive(Debug)]
pub struct Page {
    parts: Vec<Part>,
}

impl Page {
    /// Splits a page into its parts.
    pub fn parse(text: &str) -> Result<Self> {
        let mut parts = Vec::new();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            parts.push(Part::Text(line.to_owned()));
            let Some(mark) = line.strip_prefix(MARK) else {
                continue;
            };
            let mark = mark.strip_suffix(MARK_END).with_context(|| line.to_owned())?;
            ensure!(lines.next() == Some(FENCE), "{mark}: no block after the mark");
            let inside: Vec<&str> = lines.by_ref().take_while(|line| *line != FENCE).collect();
            parts.push(Part::Block(block(mark, &inside)?));
        }
        let page = Self { parts };
        for (at, block) in page.blocks().enumerate() {
            let same = |other: &Block| other.name == block.name;
            ensure!(!page.blocks().take(at).any(same), "{} is there twice", block.name);
        }
        Ok(page)
    }

    /// Returns the blocks from top to bottom.
    pub fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.parts.iter().filter_map(|part| match part {
            Part::Block(block) => Some(block),
            Part::Text(_) => None,
        })
    }

    /// Returns the page with the outputs of `played`, which has a block for each of the page's.
    pub fn with(&self, played: &[Block]) -> String {
        let mut played = played.iter();
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(line) => text.push_str(line),
                Part::Block(_) => {
                    text.push_str(FENCE);
                    text.push('\n');
                    if let Some(block) = played.next() {
                        text.push_str(&inside(block));
                    }
                    text.push_str(FENCE);
                }
            }
            text.push('\n');
        }
        text
    }
}

/// The lines between the fences.
fn inside(block: &Block) -> String {
    let mut text = String::new();
    for command in &block.commands {
        let typed = format!("{} {}", command.prompt, command.line);
        for line in [typed].into_iter().chain(block.shown(command)) {
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    text
}

fn block(mark: &str, lines: &[&str]) -> Result<Block> {
    let (name, only) = match mark.split_once(", terminal ") {
        Some((name, number)) => (name, Some(format!("{number}$"))),
        None => (mark, None),
    };
    let mut commands: Vec<Command> = Vec::new();
    for line in lines {
        if let Some((prompt, typed)) = prompt(line) {
            commands.push(Command {
                prompt: prompt.into(),
                line: typed.into(),
                output: Vec::new(),
            });
        } else if let Some(command) = commands.last_mut() {
            command.output.push((*line).to_owned());
        } else {
            bail!("{name}: a line before the first command: {line}");
        }
    }
    let prompts: Vec<&str> = commands.iter().map(|command| command.prompt.as_str()).collect();
    // The command of the first terminal runs on while the second terminal has its turn.
    let known =
        prompts == ["1$", "2$"] || (!prompts.is_empty() && prompts.iter().all(|prompt| *prompt == "$"));
    ensure!(known, "{name}: terminals {prompts:?}");
    Ok(Block {
        name: name.into(),
        only,
        commands,
    })
}

fn prompt(line: &str) -> Option<(&str, &str)> {
    let prompts = ["$", "1$", "2$"];
    line.split_once(' ').filter(|(first, _)| prompts.contains(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# T\n\n<!-- learn: a -->\n```\n$ one\nx\n$ two\n```\ntext\n<!-- learn: b, terminal 2 -->\n```\n1$ long\n...\n2$ \
                        short\ny\n\nz\n```\nend\n";

    #[test]
    fn a_page_is_its_parts() {
        let page = Page::parse(PAGE).unwrap();
        let blocks: Vec<Block> = page.blocks().cloned().collect();
        assert_eq!(blocks[0].name, "a");
        assert_eq!(blocks[0].commands[0].output, ["x"]);
        assert_eq!(blocks[1].commands[1].line, "short");
        assert_eq!(blocks[1].commands[1].output, ["y", "", "z"]);
        assert_eq!(page.with(&blocks), PAGE);
    }

    #[test]
    fn new_outputs_replace_the_old_ones_and_only_what_is_to_be_shown() {
        let page = Page::parse(PAGE).unwrap();
        let mut blocks: Vec<Block> = page.blocks().cloned().collect();
        blocks[0].commands[1].output = vec!["new  ".into()];
        blocks[1].commands[0].output = vec!["hidden".into()];
        let text = page.with(&blocks);
        assert_eq!(text, PAGE.replace("$ two\n", "$ two\nnew\n"));
    }

    #[test]
    fn what_is_no_block_is_an_error() {
        for bad in [
            "<!-- learn: a -->\nno fence\n",
            "<!-- learn: a -->\n```\nno command\n```\n",
            "<!-- learn: a -->\n```\n1$ alone\n```\n",
            "<!-- learn: a -->\n```\n```\n",
            "<!-- learn: a -->\n```\n$ b\n```\n<!-- learn: a -->\n```\n$ b\n```\n",
        ] {
            assert!(Page::parse(bad).is_err(), "{bad}");
        }
    }
}
