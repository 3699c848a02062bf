//! `cargo xtask demo`: shows rdmatop with traffic, without any preparation by the user.

use std::{
    fs,
    io::{IsTerminal as _, stdout},
    process::Command,
    thread,
};

use anyhow::{Context, Result, anyhow};
use clap::Args;

use crate::{
    arch::Arch,
    ebpf_toolchain,
    lab::{self, kernel, newer_qemu, nic::Nic},
    setup, test,
};

/// `cargo xtask demo`
#[derive(Args, Clone, Default)]
pub(crate) struct DemoArgs {
    /// Kernel of the lab, where this machine has no RDMA device
    #[arg(long, default_value = "6.12")]
    kernel: String,
    /// The NIC of the lab, instead of SoftRoCE: traffic is SEND alone
    #[arg(long, value_enum)]
    nic: Option<Nic>,
    /// Arguments for rdmatop, after `--`
    #[arg(last = true)]
    args: Vec<String>,
}

/// Waits until perftest's receiver listens. On a loaded host one second is not enough, and the sender tries
/// only once.
const LISTENS: &str = r"
listens() {
    waited=0
    until grep -qs ':4853 [0-9A-F:]* 0A ' /proc/net/tcp /proc/net/tcp6 || [ $waited -gt 300 ]; do
        waited=$((waited + 1))
        sleep 0.1
    done
}
";

/// Traffic until the guest ends: write, send and read pairs by turns, each for a bounded time.
const TRAFFIC: &str = r#"
address=10.77.0.1
while :; do
    for tool in ib_write_bw ib_send_bw ib_read_bw; do
        timeout 40 $tool -d rxe0 -x 1 -s 4096 -D 20 >/dev/null 2>&1 &
        listens
        timeout 40 $tool -d rxe0 -x 1 -s 4096 -D 20 $address >/dev/null 2>&1
        wait $!
    done
done &
traffic=$!
sleep 2
"$@"
code=$?
kill $traffic 2>/dev/null
exit $code
"#;

/// Like [`TRAFFIC`], for a NIC that supports only signalled SEND.
const NIC_TRAFFIC: &str = r#"
while :; do
    timeout 40 ib_send_bw -d vmw_pvrdma0 -x 0 -Q 1 -s 4096 -n 50000 >/dev/null 2>&1 &
    listens
    timeout 40 ib_send_bw -d vmw_pvrdma0 -x 0 -Q 1 -s 4096 -n 50000 127.0.0.1 >/dev/null 2>&1
    wait $!
done &
traffic=$!
sleep 2
"$@"
code=$?
kill $traffic 2>/dev/null
exit $code
"#;

/// Prints the event lines of one perftest pair.
const PAIR: &str = r#"
errors=$(mktemp)
"$1" --trace 2>"$errors" &
trace=$!
waited=0
until grep -q tracing "$errors"; do
    waited=$((waited + 1))
    if [ $waited -gt 300 ] || ! kill -0 $trace 2>/dev/null; then cat "$errors" >&2; exit 1; fi
    sleep 0.1
done
output=$(mktemp)
timeout 60 ib_send_bw -d rxe0 -x 1 -n 1000 >/dev/null 2>&1 &
server=$!
listens
timeout 60 ib_send_bw -d rxe0 -x 1 -n 1000 10.77.0.1 >"$output" 2>&1 || { cat "$output" >&2; echo "ib_send_bw failed" >&2; exit 1; }
wait $server
sleep 1
kill -INT $trace
wait $trace
code=$?
cat "$errors" >&2
exit $code
"#;

/// Runs the demo; the exit status is that of rdmatop.
pub(crate) fn main(args: &DemoArgs) -> Result<u8> {
    let series = kernel::find(&args.kernel)?;
    let here = args.nic.is_none() && has_device();
    let program = thread::scope(|scope| {
        // On a fresh machine most crates are compiled while packages and what links eBPF programs come.
        if ebpf_toolchain::find().is_err() {
            scope.spawn(test::crates_without_ebpf);
        }
        if args.nic.is_some() {
            setup::without_kernels()?;
        } else {
            setup::packages_of_the_demo()?;
        }
        // The guest's kernel and QEMU come while the compiler runs.
        let fetched = (!here).then(|| {
            scope.spawn(|| {
                newer_qemu::fetch_if_missing(Arch::X86_64);
                kernel::ensure(series)
            })
        });
        setup::ebpf()?;
        let program = test::quick_program()?;
        if let Some(fetched) = fetched {
            fetched.join().map_err(|_| anyhow!("the download panicked"))??;
        }
        anyhow::Ok(program)
    })?;
    let screen = stdout().is_terminal();
    if here {
        eprintln!(
            "demo: this machine has an RDMA device: sudo {} {}",
            program.display(),
            args.args.join(" ")
        );
        let root = setup::is_root();
        let mut run = if root {
            Command::new(&program)
        } else {
            Command::new("sudo")
        };
        if !root {
            run.arg(&program);
        }
        if args.args.is_empty() && !screen {
            run.arg("--once");
        }
        let status = run.args(&args.args).status().context("cannot start rdmatop")?;
        return Ok(status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(1));
    }
    let (why, device) = match args.nic {
        Some(Nic::Pvrdma) => ("", "a NIC that bypasses the kernel"),
        None => ("no RDMA device here: ", "SoftRoCE"),
    };
    eprintln!(
        "demo: {why}booting Linux {} with {device} and perftest traffic",
        args.kernel
    );
    let mut lab = lab::command(series, 86_400, &[])?;
    let terminal = screen && !args.args.iter().any(|arg| arg == "--once" || arg == "--json");
    if terminal {
        lab.arg("--tty");
    }
    let script = if args.nic.is_some() {
        lab.args(["--nic", "pvrdma"]);
        NIC_TRAFFIC
    } else if args.args.is_empty() && !screen {
        PAIR
    } else {
        // The demo starts and stops rdmatop under traffic, which a guest with two CPUs does not always
        // survive: see `is_stale_code` of the lab.
        lab.args(["--cpus", "1"]);
        TRAFFIC
    };
    lab.args(["--", "sh", "-c", &format!("{LISTENS}{script}"), "demo"])
        .arg(&program)
        .args(&args.args);
    let status = lab.status().context("cannot start the lab")?;
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(1))
}

fn has_device() -> bool {
    fs::read_dir("/sys/class/infiniband").is_ok_and(|mut entries| entries.next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_receiver_is_awaited_on_perftests_port() {
        let listener = match std::net::TcpListener::bind("127.0.0.1:0") {
            Ok(listener) => listener,
            Err(error) => {
                eprintln!("SKIPPED: no loopback to listen on: {error}");
                return;
            }
        };
        let port = format!(":{:04X} ", listener.local_addr().unwrap().port());
        let script = LISTENS.replace(":4853 ", &port).replace("-gt 300", "-gt 3");
        assert!(script.contains(&port), "0x4853 is 18515, perftest's port");
        let rounds = || {
            let output = Command::new("sh")
                .args(["-c", &format!("{script}listens; echo $waited")])
                .output()
                .unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(rounds(), "0\n");
        drop(listener);
        // Retried: a child of another test has a copy of the socket between its fork and its exec.
        assert!((0..50).any(|_| rounds() == "4\n"), "nobody listens any more");
    }
}
