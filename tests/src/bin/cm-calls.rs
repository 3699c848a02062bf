//! Makes a known number of rdma_cm calls, as librdmacm does, and prints it: `{"pid":..,"calls":{VERB:N,..},
//! "failed":{VERB:ERRNO,..}}`.
//!
//! It writes to /dev/infiniband/rdma_cm itself (include/uapi/rdma/rdma_user_cm.h), because a library would
//! add calls of its own.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
};

use anyhow::{Context as _, Result, bail};
use rdmatop_tests::args::{Args, report};
use serde_json::json;

const IDS: u64 = 7;
const CREATE_ID: u32 = 0;
const DESTROY_ID: u32 = 1;
const GET_EVENT: u32 = 12;
const BIND: u32 = 20;
const PORT_SPACE_TCP: u16 = 0x106;
const AF_IB: u16 = 27;

/// The kernel writes its answers into `answer`.
struct Manager {
    file: File,
    answer: Box<[u64; 128]>,
}

impl Manager {
    fn open() -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let path = "/dev/infiniband/rdma_cm";
        let file = options
            .open(path)
            .with_context(|| format!("{path}: is rdma_ucm loaded?"))?;
        let answer = Box::new([0; 128]);
        Ok(Self { file, answer })
    }

    fn answer_at(&mut self) -> u64 {
        self.answer.as_mut_ptr() as u64
    }

    /// Makes one `write()`: the header, then the command's data.
    fn call(&mut self, command: u32, body: &[u8]) -> std::io::Result<()> {
        let length = u16::try_from(body.len()).unwrap_or(u16::MAX);
        let mut message = command.to_ne_bytes().to_vec();
        message.extend(length.to_ne_bytes());
        message.extend(u16::to_ne_bytes(1024));
        message.extend(body);
        self.file.write(&message).map(drop)
    }

    fn create(&mut self) -> Result<u32> {
        let mut body = [0_u8; 24];
        body[8..16].copy_from_slice(&self.answer_at().to_ne_bytes());
        body[16..18].copy_from_slice(&PORT_SPACE_TCP.to_ne_bytes());
        // IBV_QPT_RC
        body[18] = 2;
        self.call(CREATE_ID, &body).context("create an id")?;
        let [a, b, c, d, ..] = self.answer[0].to_ne_bytes();
        Ok(u32::from_ne_bytes([a, b, c, d]))
    }

    fn destroy(&mut self, id: u32) -> std::io::Result<()> {
        let mut body = [0_u8; 16];
        body[..8].copy_from_slice(&self.answer_at().to_ne_bytes());
        body[8..12].copy_from_slice(&id.to_ne_bytes());
        self.call(DESTROY_ID, &body)
    }

    fn bind(&mut self, id: u32, length: u16, address: &[u8]) -> std::io::Result<()> {
        let mut body = [0_u8; 136];
        body[..4].copy_from_slice(&id.to_ne_bytes());
        body[4..6].copy_from_slice(&length.to_ne_bytes());
        body[8..8 + address.len()].copy_from_slice(address);
        self.call(BIND, &body)
    }

    fn event(&mut self) -> std::io::Result<()> {
        let answer = self.answer_at().to_ne_bytes();
        self.call(GET_EVENT, &answer)
    }
}

fn errno(what: &str, result: std::io::Result<()>) -> Result<i32> {
    match result {
        Ok(()) => bail!("{what} was meant to fail and did not"),
        Err(error) => error.raw_os_error().context("no errno"),
    }
}

fn main() -> Result<()> {
    Args::from_env().finish()?;
    let mut manager = Manager::open()?;
    let ids = (0..IDS).map(|_| manager.create()).collect::<Result<Vec<_>>>()?;
    let id = *ids.first().context("no id")?;
    // librdmacm makes this call to learn whether there is any InfiniBand. The GID belongs to nobody.
    let mut gid = [0_u8; 48];
    gid[..2].copy_from_slice(&AF_IB.to_ne_bytes());
    gid[8..24].copy_from_slice(&[0xfe; 16]);
    let infiniband = errno("a bind to nobody's GID", manager.bind(id, 48, &gid))?;
    // An address of TEST-NET-3, which no interface has.
    let mut address = [0_u8; 16];
    address[..2].copy_from_slice(&2_u16.to_ne_bytes());
    address[4..8].copy_from_slice(&[203, 0, 113, 1]);
    let nobodys = errno("a bind to nobody's address", manager.bind(id, 16, &address))?;
    address[4..8].fill(0);
    manager.bind(id, 16, &address).context("bind to any address")?;
    let nothing = errno("a look for events", manager.event())?;
    for id in ids {
        manager.destroy(id).context("destroy an id")?;
    }
    report(&json!({
        "pid": std::process::id(),
        "calls": {
            "cm_create_id": IDS, "cm_destroy_id": IDS, "cm_bind": 2, "cm_bind_af_ib": 1, "cm_get_event": 1,
        },
        "failed": {"cm_bind": nobodys, "cm_bind_af_ib": infiniband, "cm_get_event": nothing},
    }))
}
