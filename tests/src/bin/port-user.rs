//! A user of ports, which moves exactly what it is told to.
//!
//! `port-user --devices D,D.. [--size 4096] [--ud] [--idle 0]` makes a queue pair on each device that is
//! named, with a buffer of SIZE bytes, and IDLE that are connected to themselves on the first. It prints
//! `{"ready":true,"pid":..,"ends":[[qpn,"GID in 32 digits",addr,rkey],..]}`.
//! Each line on stdin is an order; the answer `{"done":N}` counts the orders.
//! * `connect I MTU QPN GID ADDR RKEY`: connects its queue pair I to such an end, with this `enum ibv_mtu`; a
//!   UD one will send there;
//! * `write I COUNT SIZE`, `read ..`, `send ..`: moves COUNT messages through queue pair I, 16 at a time;
//! * `receive I COUNT SIZE`: posts so many receives, 512 at most;
//! * `fork`: makes a child that does nothing and ends with its parent.

use std::{
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use rdmatop_tests::{
    args::{Args, report},
    verbs::{Ah, Context, Cq, Mr, Opcode, Pd, Qp, unlimit_memlock},
};
use serde_json::{Value, json};

/// The link-local GID, which any two ends of one link have without an address of their own.
const GID: i32 = 0;
/// `IBV_MTU_4096`.
const MTU_4096: i32 = 5;
const DEPTH: u64 = 16;
const RECEIVES: u32 = 512;

/// A queue pair with what it needs.
struct End {
    context: Arc<Context>,
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    buffer: Mr,
    qp: Qp,
    ud: bool,
    peer: Option<Peer>,
}

/// The other end.
struct Peer {
    remote: (u64, u32),
    /// Of UD: its address and its number.
    at: Option<(Ah, u32)>,
}

impl End {
    fn new(device: &str, size: usize, ud: bool) -> Result<Self> {
        let context = Context::open(device).with_context(|| format!("open {device}"))?;
        let pd = Pd::new(&context)?;
        let cq = Cq::new(&context, 64)?;
        let qp = if ud {
            Qp::unconnected(&pd, &cq)?
        } else {
            // Nobody looks at what was received.
            Qp::of_cqs(&pd, [&cq, &Cq::new(&context, 1024)?], RECEIVES)?
        };
        Ok(Self {
            buffer: Mr::new(&pd, size)?,
            context,
            pd,
            cq,
            qp,
            ud,
            peer: None,
        })
    }

    /// A queue pair beside it that moves nothing.
    fn idle(&self) -> Result<Qp> {
        let qp = Qp::new(&self.pd, &self.cq, 1)?;
        qp.to_init()?;
        qp.to_rtr_by(qp.qpn(), &self.context.gid(GID)?, GID, MTU_4096)?;
        qp.to_rts_patiently()?;
        Ok(qp)
    }

    fn report(&self) -> Result<Value> {
        let gid = u128::from_be_bytes(self.context.gid(GID)?);
        let (addr, rkey) = (self.buffer.addr(0), self.buffer.rkey());
        Ok(json!([self.qp.qpn(), format!("{gid:032x}"), addr, rkey]))
    }

    fn connect(&mut self, words: &[&str]) -> Result<()> {
        let [mtu, qpn, gid, addr, rkey] = words else {
            bail!("connect {words:?}")
        };
        let gid = u128::from_str_radix(gid, 16)?.to_be_bytes();
        let qpn: u32 = qpn.parse()?;
        let at = if self.ud {
            self.qp.ud_to_rts()?;
            Some((Ah::new(&self.pd, &gid, GID)?, qpn))
        } else {
            self.qp.to_init()?;
            self.qp.to_rtr_by(qpn, &gid, GID, mtu.parse()?)?;
            self.qp.to_rts_patiently()?;
            None
        };
        self.peer = Some(Peer {
            remote: (addr.parse()?, rkey.parse()?),
            at,
        });
        Ok(())
    }

    fn moves(&self, opcode: Opcode, count: u64, size: u32) -> Result<()> {
        let peer = self.peer.as_ref().context("it is not connected")?;
        let (mut posted, mut done) = (0, 0);
        let mut moved = Instant::now();
        while done < count {
            while posted < count && posted < done + DEPTH {
                match &peer.at {
                    Some((ah, qpn)) => self.qp.post_ud(posted, size, &self.buffer, (ah, *qpn))?,
                    None => self.qp.post_to(posted, opcode, size, &self.buffer, peer.remote)?,
                }
                posted += 1;
            }
            if let Some(wc) = self.cq.poll()? {
                ensure!(wc.status == 0, "completion {} has status {}", wc.wr_id, wc.status);
                done += 1;
                moved = Instant::now();
            } else {
                ensure!(
                    moved.elapsed() < Duration::from_mins(1),
                    "no completion in a minute"
                );
                thread::yield_now();
            }
        }
        Ok(())
    }

    fn order(&mut self, what: &str, rest: &[&str]) -> Result<()> {
        let opcode = match what {
            "connect" => return self.connect(rest),
            "write" => Some(Opcode::RdmaWrite),
            "read" => Some(Opcode::RdmaRead),
            "send" => Some(Opcode::Send),
            "receive" => None,
            _ => bail!("what is {what:?}?"),
        };
        let [count, size] = rest else {
            bail!("{what} {rest:?}")
        };
        let (count, size) = (count.parse()?, size.parse()?);
        if let Some(opcode) = opcode {
            return self.moves(opcode, count, size);
        }
        for number in 0..count {
            self.qp.post_recv(number, size, &self.buffer)?;
        }
        Ok(())
    }
}

fn fork() -> Result<()> {
    // SAFETY: this program has one thread, and the child calls nothing but what a signal handler may.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above: numbers alone are passed.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::pause();
            libc::_exit(0)
        }
    }
    ensure!(child > 0, "fork: {}", io::Error::last_os_error());
    Ok(())
}

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let devices: String = args.value("--devices", "rxe0".into())?;
    let size: usize = args.value("--size", 4096)?;
    let ud = args.flag("--ud");
    let idle: usize = args.value("--idle", 0)?;
    args.finish()?;
    unlimit_memlock()?;
    let ends = devices.split(',').map(|device| End::new(device, size, ud));
    let mut ends: Vec<End> = ends.collect::<Result<_>>()?;
    let idle = (0..idle).map(|_| ends.first().context("no device")?.idle());
    let _idle: Vec<Qp> = idle.collect::<Result<_>>()?;
    let said: Vec<Value> = ends.iter().map(End::report).collect::<Result<_>>()?;
    report(&json!({"ready": true, "pid": std::process::id(), "ends": said}))?;
    let mut done = 0;
    for line in io::stdin().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["fork"] => fork()?,
            [what, at, ref rest @ ..] => {
                let end = ends.get_mut(at.parse::<usize>()?).context("no such QP")?;
                end.order(what, rest)?;
            }
            _ => bail!("what is {line:?}?"),
        }
        done += 1;
        report(&json!({ "done": done }))?;
    }
    Ok(())
}
