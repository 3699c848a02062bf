//! Makes verbs fail on purpose and prints the errors:
//! `{"pid":..,"qpn":..,"errors":[{"verb":..,"errno":..},..]}`.
//!
//! `verb-errors [--device rxe0]`: a CQ too big, an MR over unmapped memory, a modify from RESET to RTS.

use anyhow::{Context as _, Result, bail};
use rdmatop_tests::{
    args::{Args, report},
    verbs::{Context, Cq, Mr, Pd, Qp, State, unlimit_memlock},
};
use serde_json::{Value, json};

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    args.finish()?;
    unlimit_memlock()?;
    let context = Context::open(&device).with_context(|| format!("open {device}"))?;
    let pd = Pd::new(&context)?;
    let mut errors = vec![failed("create_cq", Cq::new(&context, 0x7000_0000))?];
    errors.push(failed("reg_mr", Mr::at_unmapped_address(&pd, 4096))?);
    let cq = Cq::new(&context, 16)?;
    let qp = Qp::new(&pd, &cq, 4)?;
    errors.push(failed("modify_qp", qp.to_state(State::Rts))?);
    report(&json!({"pid": std::process::id(), "qpn": qp.qpn(), "errors": errors}))
}

fn failed<T>(verb: &str, result: std::io::Result<T>) -> Result<Value> {
    match result {
        Ok(_) => bail!("{verb} was meant to fail and did not"),
        Err(error) => Ok(json!({"verb": verb, "errno": error.raw_os_error()})),
    }
}
