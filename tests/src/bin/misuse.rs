//! Uses verbs in ways that work and are wrong, until stdin is closed.
//!
//! `misuse --what mr-churn|qp-leak|memlock [--device rxe0]`
//! * `mr-churn`: registers and deregisters a small buffer as fast as it can;
//! * `qp-leak`: creates eight QPs each second and destroys none;
//! * `memlock`: as a user without rights, with 8 KiB of memory that may be locked, registers a larger buffer again and
//!   again, ten times a second.
//!
//! Prints `{"ready":true,"pid":..}`; at the end `{"pid":..,"done":N,"failed":N}`: MRs or QPs that were made, and calls that
//! failed with ENOMEM.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use rdmatop_tests::{
    args::{Args, report, wait_for_stdin_end},
    verbs::{Context, Cq, Mr, Pd, Qp, unlimit_memlock},
};
use serde_json::json;

const NOBODY: libc::uid_t = 65_534;

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    let what: String = args.value("--what", String::new())?;
    args.finish()?;
    unlimit_memlock()?;
    let context = Context::open(&device).with_context(|| format!("open {device}"))?;
    let pd = Pd::new(&context)?;
    let cq = Cq::new(&context, 16)?;
    if what == "memlock" {
        give_up_rights()?;
    }
    report(&json!({"ready": true, "pid": std::process::id()}))?;
    let over = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&over);
    thread::spawn(move || {
        let _ = wait_for_stdin_end();
        end.store(true, Ordering::Relaxed);
    });
    let (mut done, mut failed, mut qps) = (0_u64, 0_u64, Vec::new());
    while !over.load(Ordering::Relaxed) {
        match &*what {
            "mr-churn" => drop(Mr::new(&pd, 4096)?),
            "qp-leak" => {
                qps.push(Qp::new(&pd, &cq, 1)?);
                thread::sleep(Duration::from_millis(125));
            }
            "memlock" => {
                match Mr::new(&pd, 1 << 20) {
                    Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => failed += 1,
                    Err(error) => return Err(error.into()),
                    Ok(_) => bail!("1 MiB could be locked with a limit of 8 KiB"),
                }
                thread::sleep(Duration::from_millis(100));
                continue;
            }
            other => bail!("--what {other} is not known"),
        }
        done += 1;
    }
    report(&json!({"pid": std::process::id(), "done": done, "failed": failed}))
}

/// `CAP_IPC_LOCK` would lift the limit.
fn give_up_rights() -> Result<()> {
    let limit = libc::rlimit {
        rlim_cur: 8192,
        rlim_max: 8192,
    };
    // SAFETY: the limit is a plain struct that lives during the call; setuid takes a number.
    let done =
        unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) == 0 && libc::setuid(NOBODY) == 0 };
    ensure!(done, "give up rights: {}", io::Error::last_os_error());
    Ok(())
}
