//! `cargo xtask learn`: writes docs/learn.md with the current output of its commands. The kernel test of the
//! page runs them, because it also compares these outputs with the page (tests/tests/learn.rs).

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{lab, paths, setup, step, test};

const PAGE: &str = "docs/learn.md";
/// The module of the kernel test that runs docs/learn.md.
const TEST: &str = "learn";

/// `cargo xtask learn`
#[derive(Args, Clone, Default)]
pub(crate) struct LearnArgs {
    /// Kernel of the lab
    #[arg(long, default_value = "6.12")]
    kernel: String,
    /// Use this rdmatop instead of building one
    #[arg(long)]
    rdmatop: Option<PathBuf>,
}

/// Writes the page.
pub(crate) fn main(args: &LearnArgs) -> Result<u8> {
    setup::without_kernels()?;
    let rdmatop = match &args.rdmatop {
        Some(built) => built.clone(),
        None => test::program(test::Profile::Lab)?,
    };
    let test = test::build(false)?.kernel_tests;
    let out = paths::target().join(TEST);
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let written = out.join("learn.md");
    if written.exists() {
        fs::remove_file(&written).with_context(|| format!("cannot remove {}", written.display()))?;
    }
    // One CPU, as in `cargo xtask test`, because probes are attached and detached under traffic.
    let mut lab = lab::command(lab::kernel::find(&args.kernel)?, 900, &["--cpus", "1"])?;
    lab.args(["--", "env", "RDMATOP_WRITE_DOCS=1"]).arg(&test);
    lab.args(["--test-threads=1", "--nocapture", "learn::"]);
    lab.env("RDMATOP_LAB_OUT", &out).env("RDMATOP", &rdmatop);
    let said = step::run("the walk in the lab", &mut lab)?;
    if !written.exists() {
        bail!("the test wrote no page:\n{}", step::tail(&said, 15));
    }
    let page = paths::repo().join(PAGE);
    fs::copy(&written, &page).with_context(|| format!("cannot write {}", page.display()))?;
    println!("{PAGE}");
    Ok(0)
}
