//! The `rdmatop` program: see the library.
use std::process::ExitCode;

fn main() -> ExitCode {
    rdmatop::app::main(std::env::args_os())
}
