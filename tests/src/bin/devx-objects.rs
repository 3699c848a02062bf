//! Makes objects past ib_core on a device whose driver says that it is mlx5's, changes and destroys the first
//! ones.
//!
//! `devx-objects [--device mlx5_0] [--make 500,500,400] [--modify 1] [--destroy 1]`: opcodes of commands, in
//! hex. With `--heir yes` it becomes another user's, and ends when a child has got the file.
//! Prints `{"ready":true,"pid":N,"handles":[..]}`; ends when stdin is closed or by a signal, and the other
//! objects with it.

use std::{io, process};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    args::{Args, report, wait_for_stdin_end},
    verbs::raw::{context, devx_create, devx_destroy, devx_modify},
};
use serde_json::json;

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "mlx5_0".into())?;
    let make: String = args.value("--make", "500,500,500,400".into())?;
    let modify: usize = args.value("--modify", 0)?;
    let heir: String = args.value("--heir", "no".into())?;
    let destroy: usize = args.value("--destroy", 0)?;
    args.finish()?;
    let file = context(&device)?;
    let opcodes = make.split(',').filter(|opcode| !opcode.is_empty());
    let made = opcodes.map(|opcode| {
        let number = u16::from_str_radix(opcode, 16).with_context(|| opcode.to_owned())?;
        devx_create(&file, number)
    });
    let handles: Vec<i32> = made.collect::<Result<_>>()?;
    for handle in handles.iter().take(modify) {
        devx_modify(&file, *handle)?;
    }
    for handle in handles.iter().take(destroy) {
        devx_destroy(&file, *handle)?;
    }
    if heir == "yes" {
        // SAFETY: only a number is passed.
        let lowered = unsafe { libc::setuid(65_534) } == 0;
        ensure!(lowered, "setuid: {}", io::Error::last_os_error());
        // SAFETY: there is one thread.
        let child = unsafe { libc::fork() };
        ensure!(child >= 0, "fork: {}", io::Error::last_os_error());
        if child > 0 {
            process::exit(0);
        }
    }
    report(&json!({"ready": true, "pid": process::id(), "handles": handles}))?;
    wait_for_stdin_end()
}
