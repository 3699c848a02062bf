//! Runs perftest pairs and reads their own accounts.

use std::{
    fmt::Write as _,
    fs,
    process::Command,
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    child::{Child, output},
    lab,
    table::say,
    wait::{self, PATIENCE},
};

/// A pair that takes longer hangs; perftest itself would wait for ever.
pub const LIMIT: Duration = PATIENCE;

/// How long a pair may run while its devices send no packet. It has ended long before, unless a completion or
/// a packet was lost for good: then the error says how queue pairs, counters and programs stand.
const STANDS_STILL: Duration = Duration::from_secs(45);

/// The time limit of perftest's handshake where it sometimes hangs, also without rdmatop; then another pair
/// is started.
pub const HANDSHAKE: Duration = Duration::from_mins(1);

/// How many pairs are started over rdma_cm until one is not rejected, and perftest's message of a rejection.
const CM_PAIRS: usize = 4;
const REJECTED: &str = "RDMA_CM_EVENT_REJECTED; error: 8";

/// Pairs started by this process.
static PAIRS: AtomicU16 = AtomicU16::new(0);

/// Returns a port for one pair. Test executables run one after another, each with its own range, so that none
/// meets ports in TIME_WAIT of the previous one. All are below the ephemeral ports.
fn next_port() -> u16 {
    const EACH: u16 = 64;
    let range = u16::try_from(std::process::id() % 200).unwrap_or(0);
    19_000 + range * EACH + PAIRS.fetch_add(1, Ordering::Relaxed) % EACH
}

/// The options of a pair.
#[derive(Clone, Debug)]
pub struct Perftest {
    program: &'static str,
    iterations: u64,
    size: u64,
    args: Vec<String>,
    client_args: Vec<String>,
    cm: bool,
    /// Whether the GID is chosen by its index.
    by_gid: bool,
    server_device: String,
    client_device: String,
}

/// A running pair.
#[derive(Debug)]
pub struct Pair {
    /// The passive side.
    pub server: Child,
    /// The active side.
    pub client: Child,
    /// The devices of the passive and the active side.
    devices: [String; 2],
}

/// A side's own account, read from its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Process id.
    pub pid: u32,
    /// Numbers of the program's QPs.
    pub qpns: Vec<u32>,
    /// Bytes of a message.
    pub size: u64,
    /// Messages of all QPs together.
    pub iterations: u64,
}

/// The accounts of both programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accounts {
    /// The passive side.
    pub server: Account,
    /// The active side.
    pub client: Account,
}

impl Perftest {
    /// A pair of `program` over the loopback of the lab's device: 1000 messages of 4096 bytes.
    pub fn new(program: &'static str) -> Self {
        Self {
            program,
            iterations: 1000,
            size: 4096,
            args: Vec::new(),
            client_args: Vec::new(),
            cm: false,
            by_gid: true,
            server_device: lab::DEVICE.into(),
            client_device: lab::DEVICE.into(),
        }
    }

    /// Messages per QP.
    #[must_use]
    pub fn iterations(mut self, iterations: u64) -> Self {
        self.iterations = iterations;
        self
    }

    /// Bytes of a message.
    #[must_use]
    pub fn size(mut self, size: u64) -> Self {
        self.size = size;
        self
    }

    /// Adds options for both sides.
    #[must_use]
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(ToString::to_string));
        self
    }

    /// Adds options for the client.
    #[must_use]
    pub fn client_args(mut self, args: &[&str]) -> Self {
        self.client_args.extend(args.iter().map(ToString::to_string));
        self
    }

    /// Connects through rdma_cm (`-R`).
    #[must_use]
    pub fn cm(mut self) -> Self {
        self.cm = true;
        self
    }

    /// Whether it connects through rdma_cm.
    pub fn is_cm(&self) -> bool {
        self.cm
    }

    /// Has the program search the GID table for the best one.
    #[must_use]
    pub fn any_gid(mut self) -> Self {
        self.by_gid = false;
        self
    }

    /// Runs inside one iWARP device, which has one GID and connects only through rdma_cm.
    #[must_use]
    pub fn iwarp(mut self, device: &str) -> Self {
        self.by_gid = false;
        self.cm().devices(device, device)
    }

    /// Runs between two devices.
    #[must_use]
    pub fn devices(mut self, server: &str, client: &str) -> Self {
        self.server_device = server.into();
        self.client_device = client.into();
        self
    }

    /// Starts both sides.
    pub fn start(&self) -> Result<Pair> {
        let port = next_port();
        let server = Child::spawn(&mut self.command(&self.server_device, port))?;
        if self.cm {
            wait::for_some("an rdma_cm id in LISTEN", PATIENCE, || listens_cm(port))?;
            if !self.by_gid {
                // The driver's own socket may listen a moment later.
                wait::until("an iWARP socket that listens", PATIENCE, || listens_tcp(port))?;
            }
        } else {
            wait::until("a listening perftest server", PATIENCE, || listens_tcp(port))?;
        }
        // Without -R the address is used only for the handshake over TCP.
        let address = if self.cm {
            lab::address(&self.server_device)?
        } else {
            "127.0.0.1".into()
        };
        let mut command = self.command(&self.client_device, port);
        let client = Child::spawn(command.args(&self.client_args).arg(address))?;
        let devices = [self.server_device.clone(), self.client_device.clone()];
        Ok(Pair {
            server,
            client,
            devices,
        })
    }

    /// Runs a pair to its end.
    ///
    /// With `-R` the kernel sometimes rejects the client with 8, no such service
    /// (`IB_CM_REJ_INVALID_SERVICE_ID`), and perftest crashes. This happened twice, on Linux 5.10 with two
    /// guests and builds on two CPUs, although the server's id was in LISTEN. Such a pair has moved nothing,
    /// so another one is run.
    pub fn run(&self) -> Result<Accounts> {
        for _ in 1..CM_PAIRS {
            let mut pair = self.start()?;
            if !self.cm || pair.client.succeed(LIMIT).is_ok() || !pair.was_rejected() {
                return pair.finish();
            }
        }
        self.start()?.finish()
    }

    /// Starts a pair, or another one if rdma_cm rejects it, and waits until it is connected.
    pub fn start_connected(&self) -> Result<Pair> {
        for _ in 1..CM_PAIRS {
            let pair = self.start()?;
            match pair.wait_connected() {
                Err(_) if self.cm && pair.was_rejected() => {}
                connected => return connected.map(|()| pair),
            }
        }
        let pair = self.start()?;
        pair.wait_connected()?;
        Ok(pair)
    }

    fn command(&self, device: &str, port: u16) -> Command {
        let mut command = Command::new(self.program);
        command.args(["-d", device, "-F", "-p", &port.to_string()]);
        if self.by_gid {
            command.args(["-x", "1"]);
        }
        command.args(["-n", &self.iterations.to_string()]);
        if self.program != "ib_atomic_bw" {
            command.args(["-s", &self.size.to_string()]);
        }
        if self.cm {
            command.arg("-R");
        }
        command.args(&self.args);
        // Line by line, so that QP numbers can be read during the run: stdio buffers a pipe in blocks.
        let mut buffered = Command::new("stdbuf");
        buffered
            .arg("-oL")
            .arg(command.get_program())
            .args(command.get_args());
        buffered
    }
}

impl Pair {
    /// Whether rdma_cm rejected the client; if so, prints that.
    fn was_rejected(&self) -> bool {
        let rejected = [&self.client.err, &self.client.out]
            .iter()
            .any(|output| output.text().contains(REJECTED));
        if rejected {
            say("perftest's client was rejected by rdma_cm: another pair");
        }
        rejected
    }

    /// Waits for both ends and reads their accounts.
    pub fn finish(mut self) -> Result<Accounts> {
        self.moves_or_ends()?;
        self.client.succeed(LIMIT)?;
        self.server.succeed(LIMIT)?;
        Ok(Accounts {
            server: account(&self.server)?,
            client: account(&self.client)?,
        })
    }

    /// Waits until a side ends, and fails early when both live and no packet was sent for [`STANDS_STILL`].
    /// Where the driver counts no packets, it waits for the client's end alone.
    fn moves_or_ends(&mut self) -> Result<()> {
        let began = Instant::now();
        let mut sent = self.sent();
        let mut moved = began;
        while began.elapsed() < LIMIT && self.client.ended()?.is_none() && self.server.ended()?.is_none() {
            thread::sleep(Duration::from_millis(20));
            if moved.elapsed() < STANDS_STILL {
                continue;
            }
            let now = self.sent();
            if now.is_some() && now == sent {
                bail!("the pair stands still:\n{}", self.standing());
            }
            (sent, moved) = (now, Instant::now());
        }
        Ok(())
    }

    /// Packets that the devices have sent, `None` where the driver does not count them.
    fn sent(&self) -> Option<u64> {
        let of = |device: &String| lab::hw_counter(device, "sent_pkts").ok()?;
        self.devices.iter().map(of).sum()
    }

    /// How the pair's programs, the queue pairs and the counters of the driver stand.
    fn standing(&self) -> String {
        let mut text = String::new();
        for side in [&self.server, &self.client] {
            let of =
                |file: &str| fs::read_to_string(format!("/proc/{}/{file}", side.pid())).unwrap_or_default();
            let status = of("status");
            let state = status
                .lines()
                .filter(|line| line.contains("State:") || line.contains("ctxt"));
            let state: Vec<_> = state.collect();
            let (stack, out, err) = (of("stack"), side.out.text(), side.err.text());
            let _ = writeln!(text, "{}: {state:?}\n{stack}{out}\n{err}", side.pid());
        }
        for args in [["resource", "show", "qp"], ["-j", "statistic", "show"]] {
            let said = output(Command::new("rdma").args(args));
            text += &said.unwrap_or_else(|error| format!("{error:#}\n"));
        }
        text
    }

    /// Waits until both sides have exchanged their addresses: the QPs exist and will soon be connected.
    pub fn wait_connected(&self) -> Result<()> {
        self.connected_within(PATIENCE)
    }

    /// As [`Self::wait_connected`], but waits at most for `limit`.
    pub fn connected_within(&self, limit: Duration) -> Result<()> {
        for side in [&self.server, &self.client] {
            side.out
                .wait_for("remote address in perftest's output", limit, |line| {
                    line.contains("remote address:")
                })
                .with_context(|| {
                    format!(
                        "the client: {} {}",
                        self.client.out.text(),
                        self.client.err.text()
                    )
                })?;
        }
        Ok(())
    }

    /// Returns the QP numbers printed so far by (server, client).
    pub fn qpns(&self) -> (Vec<u32>, Vec<u32>) {
        (
            local_qpns(&self.server.out.text()),
            local_qpns(&self.client.out.text()),
        )
    }
}

fn account(side: &Child) -> Result<Account> {
    let text = side.out.text();
    let (size, iterations) = result_line(&text).with_context(|| format!("no result line in:\n{text}"))?;
    let qpns = local_qpns(&text);
    ensure!(!qpns.is_empty(), "no QPN in:\n{text}");
    Ok(Account {
        pid: side.pid(),
        qpns,
        size,
        iterations,
    })
}

/// Reads QP numbers from the lines ` local address: LID 0000 QPN 0x0011 PSN 0x2f3a1b`.
fn local_qpns(text: &str) -> Vec<u32> {
    let lines = text.lines().filter(|line| line.contains("local address:"));
    lines
        .filter_map(|line| {
            let (_, rest) = line.split_once("QPN 0x")?;
            u32::from_str_radix(rest.split_whitespace().next()?, 16).ok()
        })
        .collect()
}

/// Reads size and iterations from the line after ` #bytes     #iterations`.
fn result_line(text: &str) -> Option<(u64, u64)> {
    let mut lines = text
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("#bytes"));
    let mut words = lines.nth(1)?.split_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// Whether a process listens at this TCP port.
pub fn listens_tcp(port: u16) -> bool {
    // State 0A is TCP_LISTEN (include/net/tcp_states.h).
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .any(|text| {
            text.lines().any(|line| {
                let mut words = line.split_whitespace().skip(1);
                let local = words.next().and_then(|local| local.rsplit(':').next());
                local.and_then(|hex| u16::from_str_radix(hex, 16).ok()) == Some(port)
                    && words.nth(1) == Some("0A")
            })
        })
}

fn listens_cm(port: u16) -> Result<Option<()>> {
    let ids = output(Command::new("rdma").args(["resource", "show", "cm_id"]))?;
    let wanted = format!(":{port} ");
    Ok(ids
        .lines()
        .any(|line| line.contains("LISTEN") && format!("{line} ").contains(&wanted))
        .then_some(()))
}

/// Runs a pair whose receiver is stopped for `time` while the sender goes on and gets RNR NAKs.
pub fn with_stopped_receiver(iterations: u64, size: u64, time: Duration) -> Result<Pair> {
    let packets = || lab::hw_counter(lab::DEVICE, "rcvd_pkts")?.context("no rcvd_pkts");
    let before = packets()?;
    let pair = Perftest::new("ib_send_bw")
        .iterations(iterations)
        .size(size)
        .start()?;
    // Both addresses are printed before the last message over TCP: a server stopped then would block the
    // client before its first message. So wait until packets flow.
    pair.wait_connected()?;
    wait::for_some("packets of the pair", PATIENCE, || {
        Ok((packets()? >= before + 500).then_some(()))
    })?;
    pair.server.signal(libc::SIGSTOP)?;
    std::thread::sleep(time);
    pair.server.signal(libc::SIGCONT)?;
    Ok(pair)
}

/// Returns a pair whose server was killed and whose client has noticed it and ended. Every request asks for a
/// completion.
pub fn with_killed_server() -> Result<Pair> {
    // rxe takes 7 retries, perftest's default, as endless; another number can be set only with -R. It then
    // also is the RNR retry count, so a send could fail early on a slow receiver, but RDMA WRITE cannot.
    let pair = Perftest::new("ib_write_bw")
        .cm()
        .iterations(1_000_000)
        .size(1024)
        .args(&["-Q", "1"]);
    let pair = pair.args(&["--retry_count=1"]);
    // Connecting gets only one retry too, which may not suffice on a busy machine; then perftest waits.
    let mut tries = 0;
    let mut pair = loop {
        let pair = pair.start()?;
        tries += 1;
        match pair.connected_within(HANDSHAKE) {
            Ok(()) => break pair,
            Err(error) if tries == 3 => return Err(error),
            Err(_) => {}
        }
    };
    std::thread::sleep(Duration::from_secs(1));
    ensure!(
        pair.client.ended()?.is_none(),
        "the client ended before its peer was killed:\n{}",
        pair.client.out.text()
    );
    pair.server.signal(libc::SIGKILL)?;
    let status = pair.client.wait(LIMIT)?;
    ensure!(
        !status.success(),
        "the client did not notice that its peer was killed:\n{}",
        pair.client.out.text()
    );
    Ok(pair)
}

/// Returns the status that perftest printed for a failed completion (`Completion with error ... status N`).
pub fn printed_status(side: &Child) -> Result<u32> {
    let text = format!("{}\n{}", side.out.text(), side.err.text());
    for line in text.lines() {
        let lower = line.to_lowercase();
        if let Some((_, rest)) = lower.split_once("status ")
            && let Some(number) = rest
                .split(|c: char| !c.is_ascii_digit())
                .find(|word| !word.is_empty())
        {
            return Ok(number.parse()?);
        }
    }
    bail!("perftest printed no status:\n{text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
 local address: LID 0000 QPN 0x0011 PSN 0x3dfad
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:77:00:01
 local address: LID 0000 QPN 0x001a PSN 0x3dfad
 remote address: LID 0000 QPN 0x0012 PSN 0x3e49f8
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 4096       2000             67.46              56.00  \t\t   0.014336
";

    #[test]
    fn own_qpns_are_read_and_the_peer_s_are_not() {
        assert_eq!(local_qpns(OUTPUT), [0x11, 0x1a]);
    }

    #[test]
    fn the_result_line_gives_size_and_iterations() {
        assert_eq!(result_line(OUTPUT), Some((4096, 2000)));
        assert_eq!(result_line(" #bytes #iterations\n"), None);
        let latency = " #bytes #iterations    t_min[usec]\n 64      1000          32.32\n";
        assert_eq!(result_line(latency), Some((64, 1000)));
    }
}
