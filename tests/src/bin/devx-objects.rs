//! Makes objects past ib_core on a device whose driver says that it is mlx5's, and destroys the first ones.
//!
//! `devx-objects [--device mlx5_0] [--make 500,500,400] [--destroy 1]`: opcodes of commands, in hex.
//! Prints `{"ready":true,"pid":N,"handles":[..]}`; ends when stdin is closed or by a signal, and the other
//! objects with it.

use anyhow::{Context as _, Result};
use rdmatop_tests::{
    args::{Args, report, wait_for_stdin_end},
    verbs::raw::{context, devx_create, devx_destroy},
};
use serde_json::json;

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "mlx5_0".into())?;
    let make: String = args.value("--make", "500,500,500,400".into())?;
    let destroy: usize = args.value("--destroy", 0)?;
    args.finish()?;
    let file = context(&device)?;
    let opcodes = make.split(',').filter(|opcode| !opcode.is_empty());
    let made = opcodes.map(|opcode| {
        let number = u16::from_str_radix(opcode, 16).with_context(|| opcode.to_owned())?;
        devx_create(&file, number)
    });
    let handles: Vec<i32> = made.collect::<Result<_>>()?;
    for handle in handles.iter().take(destroy) {
        devx_destroy(&file, *handle)?;
    }
    report(&json!({"ready": true, "pid": std::process::id(), "handles": handles}))?;
    wait_for_stdin_end()
}
