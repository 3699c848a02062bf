//! RDMA devices whose ports and counters a test sets: the module `testnic` of `tests/kmod`.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result, bail};

use crate::{
    child::output,
    kmod::Module,
    wait::{self, SOON},
};

const DIR: &str = "/sys/kernel/debug/testnic";

/// `hw_counters` of mlx5 (drivers/infiniband/hw/mlx5/counters.c), with the optional RoCE counters.
pub const MLX5: &[&str] = &[
    "rx_write_requests",
    "rx_read_requests",
    "rx_atomic_requests",
    "rx_dct_connect",
    "out_of_buffer",
    "out_of_sequence",
    "duplicate_request",
    "rnr_nak_retry_err",
    "packet_seq_err",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "resp_local_length_error",
    "resp_cqe_error",
    "req_cqe_error",
    "req_remote_invalid_request",
    "req_remote_access_errors",
    "resp_remote_access_errors",
    "resp_cqe_flush_error",
    "req_cqe_flush_error",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "roce_slow_restart",
    "roce_slow_restart_cnps",
    "roce_slow_restart_trans",
    "rp_cnp_ignored",
    "rp_cnp_handled",
    "np_ecn_marked_roce_packets",
    "np_cnp_sent",
    "rx_icrc_encapsulated",
    "+cc_rx_ce_pkts",
    "+cc_rx_cnp_pkts",
    "+cc_tx_cnp_pkts",
];

/// `hw_counters` of EFA (drivers/infiniband/hw/efa/efa_verbs.c).
pub const EFA: &[&str] = &[
    "tx_bytes",
    "tx_pkts",
    "rx_bytes",
    "rx_pkts",
    "rx_drops",
    "send_bytes",
    "send_wrs",
    "recv_bytes",
    "recv_wrs",
    "rdma_read_wrs",
    "rdma_read_bytes",
    "rdma_read_wr_err",
    "rdma_read_resp_bytes",
    "rdma_write_wrs",
    "rdma_write_bytes",
    "rdma_write_wr_err",
    "rdma_write_recv_bytes",
    "retrans_bytes",
    "retrans_pkts",
    "retrans_timeout_events",
];

/// `hw_counters` of an EFA device itself, since Linux 5.14.
pub const EFA_COMMANDS: &str = "submitted_cmds,completed_cmds,cmds_err,no_completion_cmds,keep_alive_rcvd,alloc_pd_err,create_qp_err,\
                                create_cq_err,reg_mr_err,alloc_ucontext_err,create_ah_err,mmap_err";

/// The loaded module; unloading it removes all devices.
#[derive(Debug)]
pub struct TestNic {
    _module: Module,
}

/// A device to add.
#[derive(Clone, Debug)]
pub struct Wish {
    lines: Vec<String>,
    /// Commands that bring its network device up.
    up: Vec<String>,
}

/// A port of such a device.
#[derive(Clone, Debug)]
pub struct Port {
    file: PathBuf,
    /// The device's name.
    pub device: String,
}

/// A kind of request from the kernel to the driver.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// `hw_counters`, by sysfs or netlink.
    Hw,
    /// `ports/N/counters`.
    Pma,
    /// State and rate of a port.
    Port,
    /// Firmware version, which each netlink dump of devices requests.
    Firmware,
}

/// A counter in the module: `base` at `since_ns`, growing by `rate` per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Value at `since_ns`.
    pub base: u64,
    /// `CLOCK_MONOTONIC`.
    pub since_ns: u64,
    /// Growth per second.
    pub rate: u64,
    /// The mask of the counter's bits.
    pub mask: u64,
}

impl Counter {
    /// Returns its value at `ns` without wrapping.
    pub fn unwrapped(&self, ns: u64) -> u64 {
        let grown = u128::from(ns - self.since_ns) * u128::from(self.rate) / 1_000_000_000;
        self.base + u64::try_from(grown).unwrap_or(u64::MAX)
    }
}

impl Wish {
    /// Makes a RoCE device with one port at 100 Gb/s and PMA counters.
    pub fn new(name: &str, driver: &str) -> Self {
        let mut lines = vec![format!("add {name}"), "pma=1".into()];
        if !driver.is_empty() {
            lines.push(format!("driver={driver}"));
        }
        let up = Vec::new();
        Self { lines, up }
    }

    /// Makes a device with the counters of mlx5.
    pub fn mlx5(name: &str) -> Self {
        Self::new(name, "mlx5_core")
            .hw(MLX5)
            .set("firmware", "28.39.1002")
    }

    /// Sets its `hw_counters`; a `+` before a name makes it optional.
    #[must_use]
    pub fn hw(self, names: &[&str]) -> Self {
        self.set("hw", &names.join(","))
    }

    /// Puts the device over its own network device `net` with this MTU once it is up ([`TestNic::add`]), and
    /// with these statistics of `ethtool -S`.
    #[must_use]
    pub fn net(mut self, name: &str, address: &str, mtu: u32, stats: &[&str]) -> Self {
        self.up = vec![
            format!("ip link set {name} mtu {mtu} up"),
            format!("ip address add {address}/24 dev {name}"),
        ];
        if !stats.is_empty() {
            self = self.set("stats", &stats.join(","));
        }
        self.set("net", name)
    }

    /// Sets a key of the module: `commands` (names of `hw_counters` of the device itself), `ports`, `ib`,
    /// `pma`, `uverbs`, `netdevs`, `firmware`, `driver_id`, `v1` (also GIDs of RoCE v1), `pci` (address of
    /// the parent), `max_qp` (the most QPs and PDs that it says it may have).
    #[must_use]
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.lines.push(format!("{key}={value}"));
        self
    }
}

impl TestNic {
    /// Loads the module for test `test`; if it was not built, prints that and returns `None`.
    pub fn load(test: &str) -> Result<Option<Self>> {
        let module = Module::load(test, "testnic", &[])?;
        Ok(module.map(|module| Self { _module: module }))
    }

    /// Adds a device and returns its first port.
    pub fn add(&self, wish: &Wish) -> Result<Port> {
        let text = wish.lines.join("\n");
        fs::write(format!("{DIR}/control"), &text).with_context(|| format!("testnic: {text}"))?;
        for command in &wish.up {
            let words: Vec<_> = command.split(' ').collect();
            output(Command::new(words[0]).args(&words[1..]))?;
        }
        let device = wish.lines[0].trim_start_matches("add ").to_owned();
        Ok(Port {
            file: PathBuf::from(DIR).join(&device).join("1"),
            device,
        })
    }

    /// Adds mlx5_0, mlx5_1, ... and returns their ports.
    pub fn add_mlx5(&self, count: usize) -> Result<Vec<Port>> {
        (0..count)
            .map(|number| self.add(&Wish::mlx5(&format!("mlx5_{number}"))))
            .collect()
    }

    /// Makes /proc list a GPU at this PCI address, as NVIDIA's driver does.
    pub fn add_gpu(&self, address: &str) -> Result<()> {
        fs::write(format!("{DIR}/control"), format!("gpu {address}"))
            .with_context(|| format!("gpu {address}"))
    }

    /// Removes the device with this current name, as if the card were pulled.
    pub fn remove(&self, name: &str) -> Result<()> {
        fs::write(format!("{DIR}/control"), format!("remove {name}"))
            .with_context(|| format!("remove {name}"))
    }
}

impl Port {
    /// Returns another port of its device.
    #[must_use]
    pub fn beside(&self, number: u32) -> Self {
        Self {
            file: self.file.with_file_name(number.to_string()),
            device: self.device.clone(),
        }
    }

    /// Sends orders to the module, one per line.
    pub fn order(&self, lines: &str) -> Result<()> {
        fs::write(&self.file, lines).with_context(|| format!("{}: {lines}", self.file.display()))
    }

    /// Makes the driver log an error.
    pub fn log(&self, text: &str) -> Result<()> {
        self.order(&format!("log {text}"))
    }

    /// Lets counter `name` grow by `rate` per second from now on.
    pub fn rate(&self, name: &str, rate: u64) -> Result<()> {
        self.order(&format!("rate {rate} {name}"))
    }

    /// Sets counter `name` to `value`.
    pub fn set(&self, name: &str, value: u64) -> Result<()> {
        self.order(&format!("set {value} {name}"))
    }

    /// Makes counter `name` wrap at 2^`bits`.
    pub fn bits(&self, name: &str, bits: u32) -> Result<()> {
        self.order(&format!("bits {bits} {name}"))
    }

    /// Adds `more` to counter `name`.
    pub fn grow(&self, name: &str, more: u64) -> Result<()> {
        self.order(&format!("add {more} {name}"))
    }

    /// Sets the state (`enum ib_port_state`): 1 is DOWN, 4 is ACTIVE.
    pub fn state(&self, state: u32) -> Result<()> {
        self.order(&format!("state {state}"))
    }

    /// Sets `enum ib_port_width` and `enum ib_port_speed` of the link for some usual rates.
    pub fn gbit(&self, gbit: u32) -> Result<()> {
        let (width, speed) = match gbit {
            25 => (1, 32),
            100 => (2, 32),
            200 => (2, 64),
            400 => (2, 128),
            other => bail!("{other} Gb/s is not among the rates"),
        };
        self.order(&format!("link {width} {speed}"))
    }

    /// Sets the priorities of its network device that have flow control, one bit each.
    pub fn pfc(&self, mask: u8) -> Result<()> {
        self.order(&format!("pfc {mask}"))
    }

    /// Waits for the GID of this type ("IB/RoCE v1", "RoCE v2") and address ("0a33:0001" for 10.51.0.1), and
    /// returns its index.
    pub fn gid(&self, kind: &str, address: &str) -> Result<u32> {
        let dir = PathBuf::from("/sys/class/infiniband")
            .join(&self.device)
            .join("ports/1");
        let has = |index: u32| {
            let text = |place: String| fs::read_to_string(dir.join(place)).unwrap_or_default();
            text(format!("gid_attrs/types/{index}")).trim() == kind
                && text(format!("gids/{index}")).trim().ends_with(address)
        };
        wait::for_some("a GID", SOON, || Ok((0..8).find(|index| has(*index))))
            .with_context(|| format!("{} {kind} {address}", self.device))
    }

    /// Makes each such call fail with `errno`; 0 ends that.
    pub fn fail(&self, call: Call, errno: i32) -> Result<()> {
        self.order(&format!("fail {errno} {}", call.name()))
    }

    /// Makes each such call sleep in the driver first.
    pub fn delay(&self, call: Call, ms: u32) -> Result<()> {
        self.order(&format!("delay {ms} {}", call.name()))
    }

    /// Returns counter `name` as the module has it.
    pub fn counter(&self, name: &str) -> Result<Counter> {
        self.line(|words| {
            let (head, tail) = words.split_at_checked(5)?;
            (head[0] == "counter" && tail.join(" ") == name)
                .then(|| head[1..].iter().map(|word| word.parse().ok()).collect())
                .flatten()
        })
        .and_then(|numbers: Vec<u64>| match numbers[..] {
            [base, since_ns, rate, mask] => Some(Counter {
                base,
                since_ns,
                rate,
                mask,
            }),
            _ => None,
        })
        .with_context(|| format!("no counter {name} in {}", self.file.display()))
    }

    /// Returns the times of the last reads of counters, or by a process of the port, newest first.
    pub fn reads(&self, call: Call) -> Result<Vec<u64>> {
        let times: Option<Vec<u64>> = self.line(|words| {
            (words.starts_with(&["reads", call.name()]))
                .then(|| words[3..].iter().map(|word| word.parse().ok()).collect())
                .flatten()
        });
        let times = times.with_context(|| format!("no reads in {}", self.file.display()))?;
        Ok(times.into_iter().filter(|time| *time > 0).collect())
    }

    /// Returns how often they were read.
    pub fn read_count(&self, call: Call) -> Result<u64> {
        let count = self.line(|words| {
            words
                .starts_with(&["reads", call.name()])
                .then(|| words.get(2)?.parse().ok())
                .flatten()
        });
        count.with_context(|| format!("no reads in {}", self.file.display()))
    }

    fn line<T>(&self, wanted: impl Fn(&[&str]) -> Option<T>) -> Option<T> {
        let text = fs::read_to_string(&self.file).ok()?;
        text.lines()
            .find_map(|line| wanted(&line.split(' ').collect::<Vec<_>>()))
    }
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Self::Hw => "hw",
            Self::Pma => "pma",
            Self::Port => "port",
            Self::Firmware => "fw",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_reads_are_read_from_the_file_of_a_port() {
        let file = std::env::temp_dir().join(format!("rdmatop-testnic-{}", std::process::id()));
        let text = "state 4\nlink 2 32\nreads hw 3 30 20 10 0 0 0 0 0\ncounter 5 100 2000000000 4294967295 RNR sent\n";
        fs::write(&file, text).unwrap();
        let port = Port {
            file: file.clone(),
            device: "x".into(),
        };
        let counter = port.counter("RNR sent").unwrap();
        assert_eq!((counter.base, counter.mask), (5, 0xffff_ffff));
        assert_eq!(counter.unwrapped(1_100), 2_005);
        assert_eq!(port.reads(Call::Hw).unwrap(), [30, 20, 10]);
        assert!(port.counter("RNR").is_err());
        assert!(port.reads(Call::Pma).is_err());
        fs::remove_file(file).unwrap();
    }
}
