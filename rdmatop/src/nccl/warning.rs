//! The meaning of NCCL's warnings, and what to do about them.

/// A kind of warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Meaning {
    /// Stable name, for JSON.
    pub id: &'static str,
    /// What happened.
    pub means: &'static str,
    /// What to do next.
    pub next: &'static str,
}

/// Words, in small letters, that must all be in the warning, and its meaning. The first match counts.
const MEANINGS: &[(&[&str], Meaning)] = &[
    (
        &["completion", "status=ibv_wc_rnr_retry_exc_err"],
        RECEIVER_NOT_READY,
    ),
    (&["completion", "status=13 "], RECEIVER_NOT_READY),
    (&["completion", "with error 13"], RECEIVER_NOT_READY),
    (&["completion", "status=ibv_wc_retry_exc_err"], NO_ANSWER),
    (&["completion", "status=12 "], NO_ANSWER),
    (&["completion", "with error 12"], NO_ANSWER),
    (&["completion", "status=ibv_wc_wr_flush_err"], FLUSHED),
    (&["completion", "status=5 "], FLUSHED),
    (&["completion", "with error 5,"], FLUSHED),
    (&["completion", "status=ibv_wc_loc_prot_err"], PROTECTION),
    (&["completion", "status=4 "], PROTECTION),
    (&["completion", "with error 4,"], PROTECTION),
    (&["completion", "error"], OTHER_COMPLETION),
    (&["got completion"], OTHER_COMPLETION),
    (&["ibv_reg_mr", "cannot allocate memory"], MEMLOCK),
    (&["ibv_create_cq", "cannot allocate memory"], MEMLOCK),
    (&["ibv_create_qp", "cannot allocate memory"], MEMLOCK),
    (
        &["ibv_modify_qp"],
        Meaning {
            id: "connect-failed",
            means: "a queue pair could not be connected: the peer's GID cannot be reached from this GID, or the address \
                    cannot be resolved",
            next: "compare NCCL_IB_GID_INDEX and the GID tables of both hosts (RoCE v2 with an IPv4 address on both), and \
                   ping the peer from the NIC's own interface",
        },
    ),
    (
        &["failed to open libibverbs"],
        Meaning {
            id: "no-libibverbs",
            means: "libibverbs is not installed here (or not in this container), so NCCL has no RDMA at all",
            next: "install rdma-core's libibverbs1 and ibverbs-providers in the image",
        },
    ),
    (
        &["async fatal event"],
        Meaning {
            id: "port-event",
            means: "the NIC reported a fatal event: a port went down or a queue pair broke",
            next: "look at the port's state and at dmesg of that host",
        },
    ),
    (
        &["gid table changed"],
        Meaning {
            id: "gid-changed",
            means: "addresses of the NIC changed while it was in use",
            next: "find out what reconfigures that interface (DHCP, NetworkManager); connections made before may break",
        },
    ),
    (
        &["no socket interface found"],
        Meaning {
            id: "no-interface",
            means: "no network interface matches, so ranks cannot find each other",
            next: "check NCCL_SOCKET_IFNAME against `ip -br address`",
        },
    ),
    (
        &["no interface found"],
        Meaning {
            id: "no-interface",
            means: "no network interface matches",
            next: "check NCCL_SOCKET_IFNAME against `ip -br address`",
        },
    ),
    (
        &["attempted to connect incompatible devices"],
        Meaning {
            id: "mixed-links",
            means: "one end is InfiniBand, the other RoCE",
            next: "choose NICs of one kind on every host with NCCL_IB_HCA",
        },
    ),
    (
        &["mismatched nccl version"],
        Meaning {
            id: "versions",
            means: "ranks run different versions of NCCL",
            next: "use one image on every host",
        },
    ),
    (
        &["connection refused"],
        Meaning {
            id: "refused",
            means: "a rank's port did not answer: that process is gone, or a firewall is between",
            next: "look for the rank that ended first: the others only report it",
        },
    ),
    (
        &["connection closed by remote peer"],
        Meaning {
            id: "peer-gone",
            means: "another rank closed its connection: it ended or crashed",
            next: "look for the rank that ended first: the others only report it",
        },
    ),
];

const RECEIVER_NOT_READY: Meaning = Meaning {
    id: "receiver-not-ready",
    means: "the receiver had no buffer posted for too long (RNR retries exceeded)",
    next: "look at the peer's process: stopped, busy elsewhere, or hanging",
};
const NO_ANSWER: Meaning = Meaning {
    id: "no-answer",
    means: "the peer did not answer (retries exceeded): its process or host is gone, or packets are lost on the way",
    next: "look for a rank that ended before; else at loss: retransmissions and drops of both NICs, PFC and ECN of the switch, \
           the MTU, the GID index; NCCL_IB_TIMEOUT only hides it",
};
const FLUSHED: Meaning = Meaning {
    id: "flushed",
    means: "a request was dropped because its queue pair had already failed",
    next: "look at the first error of that queue pair, above this one",
};
const PROTECTION: Meaning = Meaning {
    id: "protection",
    means: "the NIC may not read or write that memory (local protection error)",
    next: "with GPUDirect: nvidia_peermem or DMA-BUF and the driver's version; ACS and the IOMMU; try NCCL_NET_GDR_LEVEL=LOC to \
           see whether it goes away",
};
const OTHER_COMPLETION: Meaning = Meaning {
    id: "completion-error",
    means: "a request failed",
    // enum ibv_wc_status of rdma-core's verbs.h.
    next: "by status: 1 a message was longer than its buffer; 2 the queue pair cannot do such a request; 7 to 11 the peer refused it: look at \
           the peer's log; 21 the NIC failed: look at `dmesg`",
};
const MEMLOCK: Meaning = Meaning {
    id: "memlock",
    means: "memory could not be pinned: the limit of locked memory is too small",
    next: "`ulimit -l unlimited` for the job (docker: --ulimit memlock=-1; pod: capabilities.add IPC_LOCK; Slurm: LimitMEMLOCK of slurmd; unit: LimitMEMLOCK)",
};

/// The meaning of a warning, where known.
pub fn meaning(text: &str) -> Option<Meaning> {
    let lower = text.to_lowercase();
    MEANINGS
        .iter()
        .find(|(words, _)| words.iter().all(|word| lower.contains(word)))
        .map(|(_, meaning)| *meaning)
}

/// RDMA device that a warning names: `hca mlx5_3`, or `NET/IB : mlx5_3:1 async ...`.
pub fn device(text: &str) -> Option<&str> {
    if let Some((_, rest)) = text.split_once(" hca ") {
        return rest.split_whitespace().next();
    }
    let (_, rest) = text.split_once("NET/IB : ")?;
    let (device, port) = rest.split(' ').next()?.split_once(':')?;
    let is_port = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    is_port.then_some(device)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> Option<&'static str> {
        meaning(text).map(|meaning| meaning.id)
    }

    #[test]
    fn completions_of_all_versions_are_distinguished_by_their_status() {
        for text in [
            "NET/IB : Got completion from peer 192.0.2.2<4711> with error 12, opcode 0, len 0, vendor err 129",
            "NET/IB : Got completion from peer 192.0.2.2<4711> with status=12 opcode=1 len=0 vendor err 129 (Send) hca mlx5_3",
            "NET/IB: Got completion from peer 192.0.2.2<4711> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) hca mlx5_3",
        ] {
            assert_eq!(id(text), Some("no-answer"), "{text}");
        }
        assert_eq!(
            id("NET/IB : Got completion with error 4, opcode 1"),
            Some("protection")
        );
        assert_eq!(
            id("Got completion from peer with status=5 opcode=2"),
            Some("flushed")
        );
        assert_eq!(
            id("Got completion from peer with status=9 x"),
            Some("completion-error")
        );
    }

    #[test]
    fn a_small_memlock_limit_and_a_missing_library_are_named() {
        let text = "Call to ibv_reg_mr failed with error Cannot allocate memory errno 12";
        assert_eq!(id(text), Some("memlock"));
        assert_eq!(id("Failed to open libibverbs.so[.1]"), Some("no-libibverbs"));
        assert_eq!(id("something new"), None);
    }

    #[test]
    fn the_device_of_a_warning_is_found() {
        assert_eq!(
            device("Got completion ... localGid :: hca mlx5_3"),
            Some("mlx5_3")
        );
        assert_eq!(
            device("NET/IB : mlx5_0:1 async fatal event: port error"),
            Some("mlx5_0")
        );
        assert_eq!(device("NET/IB : Got completion from peer"), None);
    }
}
