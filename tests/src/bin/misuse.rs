//! Uses verbs in ways that work but are wrong, until stdin is closed.
//!
//! `misuse --what mr-churn|mr-growth|map-count|qp-churn|qp-leak|memlock|cgroup|slow-peers|full-queue|no-poll|
//! wrong-key [--device rxe0] [--peer rxe0] [--cgroup DIR] [--network A.B.C]`
//! * `mr-churn`: registers and deregisters a small buffer as fast as it can;
//! * `mr-growth`: registers 64 KiB ten times a second and deregisters nothing;
//! * `map-count`: has 94 % of the mappings of memory that a process may have, and registers a small buffer;
//! * `qp-churn`: creates a QP and destroys it as fast as it can;
//! * `qp-leak`: creates eight QPs each second and destroys none;
//! * `memlock`: as a user without privileges, with 8 KiB of lockable memory, tries to register a larger
//!   buffer ten times a second;
//! * `cgroup`: in the cgroup `--cgroup`, creates QPs up to its limit, and then tries ten times a second;
//! * `full-queue`: posts WRITEs until the send queue is full, goes on posting, and polls after each failed
//!   post; the QP at the other end is on device `--peer`;
//! * `no-poll`: posts 20 WRITEs a second to a CQ of four entries and polls none of the completions;
//! * `wrong-key`: connects two QPs each second, posts a WRITE to memory that is not the peer's, and keeps the
//!   last four pairs;
//! * `slow-peers`: connects a QP to A.B.C.129, one to A.B.C.130 and so on up to A.B.C.254, and keeps the last
//!   16.
//!
//! Prints `{"ready":true,"pid":..}`, and at the end `{"pid":..,"done":N,"failed":N}`: the MRs or QPs made or
//! WRITEs posted, and the calls that failed with ENOMEM or EAGAIN.

use std::{
    fs, io,
    net::Ipv4Addr,
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
    verbs::{Context, Cq, IPV4_GID, Mr, Opcode, Pd, Qp, connect, unlimit_memlock},
};
use serde_json::json;

const NOBODY: libc::uid_t = 65_534;
/// Fewer QPs than the `qp-leak` finding needs.
const PEERS: usize = 16;

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    let peer: String = args.value("--peer", device.clone())?;
    let what: String = args.value("--what", String::new())?;
    let cgroup: String = args.value("--cgroup", String::new())?;
    let network: Ipv4Addr = format!("{}.0", args.value("--network", "10.80.0".to_owned())?).parse()?;
    args.finish()?;
    unlimit_memlock()?;
    if what == "cgroup" {
        // "0" means the process that writes.
        fs::write(format!("{cgroup}/cgroup.procs"), "0").with_context(|| format!("enter {cgroup}"))?;
    }
    if what == "map-count" {
        map_nearly_all()?;
    }
    let context = Context::open(&device).with_context(|| format!("open {device}"))?;
    let pd = Pd::new(&context)?;
    let cq = Cq::new(&context, 16)?;
    if what == "memlock" {
        give_up_rights()?;
    }
    report(&json!({"ready": true, "pid": std::process::id()}))?;
    let over = over();
    let entries = if what == "no-poll" { 4 } else { 64 };
    let mut queue = matches!(&*what, "full-queue" | "no-poll")
        .then(|| Queue::new(&context, &peer, entries))
        .transpose()?;
    let (mut done, mut failed, mut qps, mut regions) = (0_u64, 0_u64, Vec::new(), Vec::new());
    while !over.load(Ordering::Relaxed) {
        match &*what {
            "mr-churn" => drop(Mr::new(&pd, 4096)?),
            "mr-growth" => {
                regions.push(Mr::new(&pd, 1 << 16)?);
                thread::sleep(Duration::from_millis(100));
            }
            "map-count" if regions.is_empty() => regions.push(Mr::new(&pd, 4096)?),
            "map-count" => {
                thread::sleep(Duration::from_millis(100));
                continue;
            }
            "qp-churn" => drop(Qp::new(&pd, &cq, 1)?),
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
            "cgroup" => match Qp::new(&pd, &cq, 1) {
                Ok(qp) => qps.push(qp),
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                    failed += 1;
                    thread::sleep(Duration::from_millis(100));
                    continue;
                }
                Err(error) => return Err(error.into()),
            },
            "full-queue" => {
                if !queue.as_mut().context("no queue")?.post(done)? {
                    failed += 1;
                    continue;
                }
            }
            "no-poll" => {
                let queue = queue.as_mut().context("no queue")?;
                ensure!(queue.try_post(done)?, "no room for one in 50 ms");
                thread::sleep(Duration::from_millis(50));
            }
            "wrong-key" => {
                let (qp, peer) = (Qp::new(&pd, &cq, 1)?, Qp::new(&pd, &Cq::new(&context, 1)?, 1)?);
                connect(&qp, &peer)?;
                let own = Mr::new(&Pd::new(&context)?, 4096)?;
                qp.post_send(done, Opcode::RdmaWrite, 4096, &Mr::new(&pd, 4096)?, &own)?;
                thread::sleep(Duration::from_secs(1));
                while cq.poll()?.is_some() {}
                qps.extend([qp, peer]);
                if qps.len() > 8 {
                    qps.drain(..2);
                }
            }
            "slow-peers" if done < 126 => {
                let last = u8::try_from(done + 129)?;
                let [a, b, c, _] = network.octets();
                let qp = Qp::new(&pd, &cq, 1)?;
                qp.to_init()?;
                qp.to_rtr_at(qp.qpn(), &Ipv4Addr::new(a, b, c, last).to_ipv6_mapped().octets())?;
                qp.to_rts(7)?;
                qps.push(qp);
                if qps.len() > PEERS {
                    qps.remove(0);
                }
            }
            "slow-peers" => {
                thread::sleep(Duration::from_millis(100));
                continue;
            }
            other => bail!("--what {other} is not known"),
        }
        done += 1;
    }
    report(&json!({"pid": std::process::id(), "done": done, "failed": failed}))
}

/// Becomes true when stdin is closed.
fn over() -> Arc<AtomicBool> {
    let over = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&over);
    thread::spawn(move || {
        let _ = wait_for_stdin_end();
        end.store(true, Ordering::Relaxed);
    });
    over
}

/// A send queue that never gets time to become empty.
struct Queue {
    qp: Qp,
    cq: Arc<Cq>,
    peer: Qp,
    buffers: [Mr; 2],
}

impl Queue {
    const SIZE: u32 = 1024;

    fn new(context: &Arc<Context>, peer: &str, entries: i32) -> Result<Self> {
        let far = Context::open(peer).with_context(|| format!("open {peer}"))?;
        let (near_pd, far_pd) = (Pd::new(context)?, Pd::new(&far)?);
        let cq = Cq::new(context, entries)?;
        let qp = Qp::new(&near_pd, &cq, 16)?;
        let peer = Qp::new(&far_pd, &Cq::new(&far, 1)?, 1)?;
        for (own, other, at) in [(&qp, &peer, &far), (&peer, &qp, context)] {
            own.to_init()?;
            own.to_rtr_at(other.qpn(), &at.gid(IPV4_GID)?)?;
            own.to_rts(7)?;
        }
        let size = Self::SIZE as usize;
        Ok(Self {
            qp,
            cq,
            peer,
            buffers: [Mr::new(&near_pd, size)?, Mr::new(&far_pd, size)?],
        })
    }

    /// Posts; if there was no room, takes all completions and returns false.
    fn post(&mut self, number: u64) -> Result<bool> {
        let posted = self.try_post(number)?;
        if !posted {
            while self.cq.poll()?.is_some() {}
        }
        Ok(posted)
    }

    /// Tries to post; returns false if there was no room.
    fn try_post(&self, number: u64) -> Result<bool> {
        let [from, to] = &self.buffers;
        match self.qp.post_send(number, Opcode::RdmaWrite, Self::SIZE, from, to) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => Ok(false),
            Err(error) => Err(error).with_context(|| format!("post to {}", self.peer.qpn())),
        }
    }
}

/// Pages of which each second one has other rights than those beside it: each is a mapping.
fn map_nearly_all() -> Result<()> {
    let limit: usize = fs::read_to_string("/proc/sys/vm/max_map_count")?.trim().parse()?;
    let pages = limit * 94 / 100;
    // SAFETY: it asks for a number.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the kernel chooses a place where nothing is.
    let all = unsafe { libc::mmap(std::ptr::null_mut(), pages * page, libc::PROT_NONE, flags, -1, 0) };
    ensure!(all != libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
    for number in (1..pages).step_by(2) {
        // SAFETY: the page is one of those above, which nobody uses.
        let done = unsafe { libc::mprotect(all.byte_add(number * page), page, libc::PROT_READ) == 0 };
        ensure!(done, "mprotect of page {number}: {}", io::Error::last_os_error());
    }
    Ok(())
}

/// Lowers the limit and changes the user, because `CAP_IPC_LOCK` would lift the limit.
fn give_up_rights() -> Result<()> {
    let limit = libc::rlimit {
        rlim_cur: 8192,
        rlim_max: 8192,
    };
    // SAFETY: the limit is a plain struct that lives during the call; setuid gets a number.
    let done =
        unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) == 0 && libc::setuid(NOBODY) == 0 };
    ensure!(done, "give up rights: {}", io::Error::last_os_error());
    Ok(())
}
