//! Situations in which somebody looks at rdmatop for the first time: some on a node with SoftRoCE, where work
//! requests are counted, others on a node with eight NICs, where only its ports are. Other jobs run beside.

use super::machine::{DEREG_MR, Machine, REG_MR, Work};
use crate::findings::FindingId;
use crate::input::{NetdevDown, RawSource};
use crate::snapshot::Snapshot;

/// A situation.
pub struct Situation {
    /// Name of its files.
    pub name: &'static str,
    /// What is so, for those who compare. A reader of the screen is not told.
    pub truth: &'static str,
    /// What rdmatop must find, and nothing else.
    pub finds: Option<FindingId>,
    /// What a reader must see on the first screen of 80 columns: the cause, who or what it is, what to do
    /// next.
    pub says: &'static [&'static str],
    /// Makes it.
    pub make: fn() -> Snapshot,
}

const ENOMEM: u32 = 12;

/// WRITEs of 64 KiB.
fn writes(tx: f64) -> Work {
    Work {
        tx,
        size: 65_536.0,
        ..Work::default()
    }
}

/// SENDs of 64 KiB.
fn sends(tx: f64) -> Work {
    Work {
        opcode: 2,
        ..writes(tx)
    }
}

fn packets(machine: &mut Machine, nic: usize, tx: f64, rx: f64) {
    for (name, per_s) in [
        ("sent_pkts", tx),
        ("rcvd_pkts", rx),
        ("send_rnr_err", 0.0),
        ("rcvd_rnr_err", 0.0),
        ("completer_retry_err", 0.0),
    ] {
        machine.counter(nic, name, RawSource::Netlink, per_s);
    }
}

/// One SoftRoCE device; a pair of `ib_write_bw` runs on it.
fn soft() -> Machine {
    let mut machine = Machine::new("node7", true);
    let rxe0 = machine.nic("rxe0", "rdma_rxe", None);
    packets(&mut machine, rxe0, 19_600.0, 19_600.0);
    machine.process(310, "ib_write_bw -d rxe0 -x 1", None, &[], &[]);
    machine.process(311, "ib_write_bw -d rxe0 -x 1 127.0.0.1", None, &[], &[]);
    machine.qp(rxe0, 17, (310, "ib_write_bw"), 3, Some((18, 1)));
    let client = machine.qp(rxe0, 18, (311, "ib_write_bw"), 3, Some((17, 1)));
    machine.work(client, writes(300.0));
    machine
}

/// A pair that sends, beside: its server's QP and its client's.
fn pair(machine: &mut Machine) -> (usize, usize) {
    machine.process(420, "ib_send_bw -d rxe0 -x 1 -D 600", None, &[], &[]);
    machine.process(421, "ib_send_bw -d rxe0 -x 1 -D 600 127.0.0.1", None, &[], &[]);
    let server = machine.qp(0, 21, (420, "ib_send_bw"), 3, Some((22, 1)));
    let client = machine.qp(0, 22, (421, "ib_send_bw"), 3, Some((21, 1)));
    machine.work(client, sends(280.0));
    machine.work(
        server,
        Work {
            rx: 280.0,
            size: 65_536.0,
            ..Work::default()
        },
    );
    machine.run(10);
    (server, client)
}

fn healthy() -> Snapshot {
    let mut machine = soft();
    pair(&mut machine);
    machine.run(60);
    machine.snapshot()
}

fn receiver_stopped() -> Snapshot {
    let mut machine = soft();
    let (server, client) = pair(&mut machine);
    machine.work(server, Work::default());
    machine.work(
        client,
        Work {
            rnr: 64.0,
            ..Work::default()
        },
    );
    machine.counter(0, "rcvd_rnr_err", RawSource::Netlink, 64.0);
    machine.counter(0, "send_rnr_err", RawSource::Netlink, 64.0);
    machine.run(14);
    machine.snapshot()
}

fn peer_killed() -> Snapshot {
    let mut machine = soft();
    machine.process(512, "ib_write_bw -d rxe0 -x 1 10.0.0.9", None, &[], &[]);
    let qp = machine.qp(0, 31, (512, "ib_write_bw"), 3, Some((44, 9)));
    machine.work(qp, writes(250.0));
    machine.run(10);
    machine.work(
        qp,
        Work {
            again: 78.0,
            ..Work::default()
        },
    );
    machine.counter(0, "completer_retry_err", RawSource::Netlink, 78.0);
    machine.run(14);
    machine.snapshot()
}

fn one_of_four() -> Snapshot {
    let mut machine = soft();
    for n in 1..4 {
        let nic = machine.nic(&format!("rxe{n}"), "rdma_rxe", None);
        packets(&mut machine, nic, 0.0, 0.0);
    }
    machine.run(25);
    machine.snapshot()
}

fn mr_churn() -> Snapshot {
    let mut machine = soft();
    machine.process(
        640,
        "python3 serve.py --no-cache",
        Some("container 3f2a91c07d11"),
        &[],
        &[],
    );
    let qp = machine.qp(0, 41, (640, "python3"), 3, Some((71, 5)));
    machine.work(qp, writes(180.0));
    machine.calls(640, REG_MR, 180.0, 0.0, 0);
    machine.calls(640, DEREG_MR, 180.0, 0.0, 0);
    machine.run(25);
    machine.snapshot()
}

fn memlock() -> Snapshot {
    let mut machine = soft();
    machine.process(
        733,
        "python3 train.py --ranks 8",
        Some("container 3f2a91c07d11"),
        &[],
        &[],
    );
    machine.run(5);
    machine.calls(733, REG_MR, 3.0, 3.0, ENOMEM);
    machine.run(2);
    machine.locked(733, 64 << 10, 60 << 10);
    machine.run(9);
    machine.snapshot()
}

fn on_tcp() -> Snapshot {
    let mut machine = soft();
    machine.process(
        811,
        "all_reduce_perf -b 1G -e 1G",
        Some("slurm 7341.0"),
        &["libnccl.so.2"],
        &[("NCCL_DEBUG", "WARN")],
    );
    machine.tcp(811, 300e6);
    machine.run(15);
    machine.snapshot()
}

fn left_in_init() -> Snapshot {
    let mut machine = soft();
    machine.process(902, "ucx_perftest node9 -t tag_bw", None, &["libucp.so.0"], &[]);
    for qpn in 51..55 {
        machine.qp(0, qpn, (902, "ucx_perftest"), 1, None);
    }
    machine.run(45);
    machine.snapshot()
}

fn port_down() -> Snapshot {
    let mut machine = soft();
    let other = machine.nic("rxe1", "rdma_rxe", None);
    packets(&mut machine, other, 9_000.0, 9_000.0);
    machine.process(955, "ib_write_bw -d rxe1 -x 1 10.0.0.9", None, &[], &[]);
    let qp = machine.qp(other, 17, (955, "ib_write_bw"), 3, Some((61, 9)));
    machine.work(qp, writes(140.0));
    machine.run(10);
    machine.port(other, 1, 3);
    machine.netdev_down(other, NetdevDown::Off);
    packets(&mut machine, other, 0.0, 0.0);
    machine.work(qp, Work::default());
    machine.run(12);
    machine.snapshot()
}

fn qp_leak() -> Snapshot {
    let mut machine = soft();
    machine.process(1044, "kvstore --listen 0.0.0.0:7000", None, &[], &[]);
    for second in 0..40 {
        for n in 0..3 {
            machine.qp(
                0,
                100 + second * 3 + n,
                (1044, "kvstore"),
                3,
                Some((200 + second * 3 + n, 7)),
            );
        }
        machine.run(1);
    }
    machine.snapshot()
}

/// PID 311 has one QP, and waits beside a process with many.
fn few_qps() -> Snapshot {
    let mut machine = soft();
    machine.process(1102, "ib_write_bw -d rxe0 -x 1 -q 16 10.0.0.9", None, &[], &[]);
    for n in 0..16 {
        let qp = machine.qp(0, 300 + n, (1102, "ib_write_bw"), 3, Some((400 + n, 9)));
        machine.work(qp, writes(360.0));
    }
    machine.run(30);
    machine.snapshot()
}

/// Bytes per second of a port of mlx5, both ways.
fn bytes(machine: &mut Machine, nic: usize, tx: f64, rx: f64) {
    for (name, per_s) in [
        // Words of four bytes.
        ("port_xmit_data", tx / 4.0),
        ("port_rcv_data", rx / 4.0),
        ("port_xmit_packets", tx / 4096.0),
        ("port_rcv_packets", rx / 4096.0),
        ("link_downed", 0.0),
        ("symbol_error", 0.0),
    ] {
        machine.counter(nic, name, RawSource::Pma, per_s);
    }
    for name in [
        "out_of_buffer",
        "packet_seq_err",
        "local_ack_timeout_err",
        "rnr_nak_retry_err",
    ] {
        machine.counter(nic, name, RawSource::Netlink, 0.0);
    }
}

const EACH: f64 = 21e9;

/// Eight NICs of 400 Gb/s and a job with a rank on each, which mpirun starts while rdmatop runs.
fn eight() -> Machine {
    with_ranks(idle_eight())
}

/// Eight InfiniBand ports and a job with a rank on each, which mpirun starts while rdmatop runs.
fn eight_ib() -> Machine {
    with_ranks(idle_eight_ib())
}

fn idle_eight_ib() -> Machine {
    let mut machine = idle_eight();
    (0..8).for_each(|nic| machine.infiniband(nic));
    machine
}

fn with_ranks(mut machine: Machine) -> Machine {
    machine.watch_starts();
    with_a_job(machine)
}

/// A job with a rank on each of eight NICs. MPI loads UCX, which makes nothing on the NICs.
fn with_a_job(mut machine: Machine) -> Machine {
    for rank in 0..8_u8 {
        let nic = usize::from(rank);
        bytes(&mut machine, nic, EACH, EACH);
        let pid = 7_100 + u32::from(rank);
        machine.process(
            pid,
            "all_reduce_perf -b 1G -e 8G -g 1",
            Some("slurm 7341.0"),
            &["libmpi.so.40", "libnccl.so.2", "libuct.so.0", "libuct_ib.so.0"],
            &[],
        );
        for n in 0..4 {
            let qpn = 1_200 + u32::from(rank) * 64 + n;
            machine.qp(
                nic,
                qpn,
                (pid, "all_reduce_perf"),
                3,
                Some((qpn + 9_000, 100 + rank)),
            );
        }
    }
    machine.run(12);
    machine
}

fn idle_eight() -> Machine {
    let mut machine = Machine::new("gpu12", false);
    for n in 0..8 {
        let nic = machine.nic(&format!("mlx5_{n}"), "mlx5_core", Some(400));
        bytes(&mut machine, nic, 0.0, 0.0);
    }
    machine
}

fn eight_healthy() -> Snapshot {
    let mut machine = eight();
    machine.run(60);
    machine.snapshot()
}

fn eight_hot() -> Snapshot {
    let mut machine = idle_eight();
    machine.process(
        7_200,
        "python3 train.py --world 64",
        Some("slurm 7400.0"),
        &["libnccl.so.2"],
        &[("NCCL_IB_HCA", "mlx5_2")],
    );
    for n in 0..8 {
        machine.qp(2, 2_000 + n, (7_200, "python3"), 3, Some((3_000 + n, 120)));
    }
    bytes(&mut machine, 2, 44e9, 43e9);
    machine.run(25);
    machine.snapshot()
}

fn eight_funnel() -> Snapshot {
    let mut machine = eight();
    for nic in 0..8 {
        bytes(&mut machine, nic, 5.8e9, if nic == 3 { 46e9 } else { 2e7 });
    }
    machine.run(25);
    machine.snapshot()
}

fn eight_down() -> Snapshot {
    let mut machine = eight();
    machine.netdev_down(3, NetdevDown::NoCarrier);
    without_fourth(machine, 1, 3)
}

fn ib_down() -> Snapshot {
    without_fourth(eight_ib(), 1, 2)
}

fn ib_init() -> Snapshot {
    without_fourth(eight_ib(), 2, 5)
}

/// The fourth port is in this state, and the job stands.
fn without_fourth(mut machine: Machine, state: u8, phys: u8) -> Snapshot {
    machine.port(3, state, phys);
    for nic in 0..8 {
        bytes(&mut machine, nic, 0.0, 0.0);
    }
    machine.run(9);
    machine.snapshot()
}

fn eight_slow() -> Snapshot {
    with_one_slow(idle_eight())
}

fn ib_slow() -> Snapshot {
    with_one_slow(idle_eight_ib())
}

fn with_one_slow(mut machine: Machine) -> Snapshot {
    for nic in 0..8 {
        bytes(&mut machine, nic, 11e9, 11e9);
    }
    machine.rate(5, 100);
    machine.process(
        7_300,
        "python3 pretrain.py",
        Some("slurm 7512.0"),
        &["libnccl.so.2"],
        &[],
    );
    for nic in 0..8 {
        for n in 0..2 {
            let qpn = 4_000 + u32::try_from(nic).unwrap_or(0) * 16 + n;
            machine.qp(nic, qpn, (7_300, "python3"), 3, Some((qpn + 500, 130)));
        }
    }
    machine.run(25);
    machine.snapshot()
}

fn eight_tcp() -> Snapshot {
    let mut machine = idle_eight();
    machine.process(
        7_400,
        "python3 train.py --world 16",
        Some("slurm 7601.0"),
        &["libnccl.so.2"],
        &[("NCCL_IB_DISABLE", "1")],
    );
    machine.tcp(7_400, 1.1e9);
    machine.run(20);
    machine.snapshot()
}

fn eight_flap() -> Snapshot {
    let mut machine = eight();
    machine.counter(6, "link_downed", RawSource::Pma, 1.0);
    machine.run(1);
    machine.counter(6, "link_downed", RawSource::Pma, 0.0);
    machine.run(20);
    machine.snapshot()
}

fn eight_receiver() -> Snapshot {
    let mut machine = eight();
    machine.counter(2, "out_of_buffer", RawSource::Netlink, 940.0);
    machine.run(15);
    machine.snapshot()
}

fn eight_loss() -> Snapshot {
    let mut machine = eight();
    machine.counter(4, "packet_seq_err", RawSource::Netlink, 14_000.0);
    bytes_of_loss(&mut machine);
    machine.run(20);
    machine.snapshot()
}

/// A collective goes as fast as its slowest rail.
fn bytes_of_loss(machine: &mut Machine) {
    for nic in 0..8 {
        for (name, unit) in [
            ("port_xmit_data", 4.0),
            ("port_rcv_data", 4.0),
            ("port_xmit_packets", 4096.0),
            ("port_rcv_packets", 4096.0),
        ] {
            machine.counter(nic, name, RawSource::Pma, 7e9 / unit);
        }
    }
}

fn eight_memlock() -> Snapshot {
    let mut machine = eight();
    machine.process(
        7_555,
        "python3 infer.py",
        Some("pod 8c1f0a52-77aa-4c1e-9d20-5b3e8f6a1c07"),
        &["libnccl.so.2"],
        &[],
    );
    machine.calls(7_555, REG_MR, 2.0, 2.0, ENOMEM);
    machine.run(2);
    machine.locked(7_555, 8 << 20, 7 << 20);
    machine.run(12);
    machine.snapshot()
}

fn eight_shared() -> Snapshot {
    let mut machine = eight();
    machine.process(
        7_900,
        "python3 infer.py",
        Some("slurm 7990.0"),
        &["libnccl.so.2"],
        &[],
    );
    for n in 0..2 {
        machine.qp(0, 5_000 + n, (7_900, "python3"), 3, Some((5_100 + n, 140)));
    }
    // Full packets, of which the other job has a quarter, and an acknowledgement for some of them.
    let packets = EACH / (4096.0 + 62.0);
    for name in ["port_xmit_packets", "port_rcv_packets"] {
        machine.counter(0, name, RawSource::Pma, packets);
    }
    machine.counter(0, "rx_read_requests", RawSource::Netlink, 0.0);
    let by_psn = packets * 0.999;
    machine.packets(7_100, by_psn * 0.75 / 4.0);
    machine.packets(7_900, by_psn * 0.25 / 2.0);
    machine.run(60);
    machine.snapshot()
}

fn eight_half() -> Snapshot {
    let mut machine = idle_eight();
    for rank in 0..8_u8 {
        let nic = usize::from(rank) / 2;
        let pid = 7_600 + u32::from(rank);
        machine.process(
            pid,
            "python3 train.py --world 8",
            Some("slurm 7680.0"),
            &["libnccl.so.2"],
            &[],
        );
        for n in 0..2 {
            let qpn = 6_000 + u32::from(rank) * 16 + n;
            machine.qp(nic, qpn, (pid, "python3"), 3, Some((qpn + 500, 150 + rank)));
        }
        bytes(&mut machine, nic, 46e9, 46e9);
    }
    machine.run(60);
    machine.snapshot()
}

fn eight_flaps() -> Snapshot {
    let mut machine = eight();
    for _ in 0..3 {
        machine.port(6, 1, 3);
        machine.counter(6, "link_downed", RawSource::Pma, 1.0);
        machine.run(1);
        machine.counter(6, "link_downed", RawSource::Pma, 0.0);
        machine.run(4);
        machine.port(6, 4, 5);
        machine.run(15);
    }
    machine.snapshot()
}

fn eight_given_up() -> Snapshot {
    const COUNTER: &str = "req_transport_retries_exceeded";
    let mut machine = eight();
    machine.counter(2, COUNTER, RawSource::Netlink, 0.0);
    machine.run(3);
    machine.counter(2, COUNTER, RawSource::Netlink, 2.0);
    machine.run(1);
    machine.counter(2, COUNTER, RawSource::Netlink, 0.0);
    machine.run(20);
    machine.snapshot()
}

fn storage() -> Snapshot {
    let mut machine = idle_eight();
    let nic = machine.nic("mlx5_8", "mlx5_core", Some(400));
    bytes(&mut machine, nic, 42e9, 3e9);
    machine.process(2_210, "mmfsd", Some("service gpfs"), &[], &[]);
    for n in 0..8 {
        machine.qp(nic, 8_000 + n, (2_210, "mmfsd"), 3, Some((8_100 + n, 170)));
    }
    machine.run(60);
    machine.snapshot()
}

fn eight_before() -> Snapshot {
    let mut machine = with_a_job(idle_eight());
    machine.run(60);
    machine.snapshot()
}

/// A job whose library makes its queue pairs past the kernel, beside rank 0 of another one.
fn eight_devx() -> Snapshot {
    let mut machine = eight();
    machine.process(
        7_700,
        "ucx_perftest -t ucp_put_bw node9",
        Some("slurm 7701.0"),
        &["libucp.so.0", "libuct.so.0", "libuct_ib.so.0"],
        &[],
    );
    machine.devx_qps((7_700, "ucx_perftest"), 0, 3);
    machine.run(60);
    machine.snapshot()
}

/// A pod with a rank on each of two NICs.
fn eight_pod() -> Snapshot {
    const POD: &str = "pod 8c1f0a52-77aa-4c1e-9d20-5b3e8f6a1c07";
    let mut machine = idle_eight();
    machine.watch_starts();
    for rank in 0..2_u8 {
        let nic = usize::from(rank);
        bytes(&mut machine, nic, EACH, EACH);
        let pid = 7_750 + u32::from(rank);
        machine.netns(nic, 7_750, POD);
        machine.process(
            pid,
            "python3 -m vllm.entrypoints.openai.api_server",
            Some(POD),
            &["libnccl.so.2"],
            &[],
        );
        for n in 0..2 {
            let qpn = 6_500 + u32::from(rank) * 16 + n;
            machine.qp(nic, qpn, (pid, "python3"), 3, Some((qpn + 500, 155 + rank)));
        }
    }
    machine.run(60);
    machine.snapshot()
}

/// PID 2440 has one QP beside the 16 of PID 2391, on a full port of a NIC.
fn nic_few_qps() -> Snapshot {
    let mut machine = Machine::new("node3", false);
    let nic = machine.nic("mlx5_0", "mlx5_core", Some(100));
    machine.watch_starts();
    for (pid, comm, command, qps) in [
        (2_391, "backup", "backup --to 10.0.0.9 --streams 16", 16),
        (2_440, "kvstore", "kvstore --listen 0.0.0.0:7000", 1),
    ] {
        machine.process(pid, command, None, &[], &[]);
        for n in 0..qps {
            machine.qp(nic, pid + n, (pid, comm), 3, Some((pid + 4_000 + n, 9)));
        }
    }
    bytes(&mut machine, nic, 11.8e9, 11.8e9);
    // All packets are full.
    let packets = 11.8e9 / (4096.0 + 62.0);
    for name in ["port_xmit_packets", "port_rcv_packets"] {
        machine.counter(nic, name, RawSource::Pma, packets);
    }
    machine.counter(nic, "rx_read_requests", RawSource::Netlink, 0.0);
    for pid in [2_391, 2_440] {
        machine.packets(pid, packets * 0.999 / 17.0);
    }
    machine.run(60);
    machine.snapshot()
}

fn bond() -> Snapshot {
    let mut machine = Machine::new("gpu30", false);
    let nic = machine.nic("mlx5_bond_0", "mlx5_core", Some(200));
    machine.bond(nic, ["ens1f0np0", "ens1f1np1"], 200);
    bytes(&mut machine, nic, 23e9, 21e9);
    for (name, per_s) in [
        ("ens1f0np0:tx_bytes_phy", 23e9),
        ("ens1f0np0:rx_bytes_phy", 11e9),
        ("ens1f1np1:tx_bytes_phy", 2e4),
        ("ens1f1np1:rx_bytes_phy", 10e9),
    ] {
        machine.counter(nic, name, RawSource::Ethtool, per_s);
    }
    machine.process(
        8_100,
        "python3 train.py --world 16",
        Some("slurm 8080.0"),
        &["libnccl.so.2"],
        &[],
    );
    for n in 0..2 {
        machine.qp(nic, 7_000 + n, (8_100, "python3"), 3, Some((7_100 + n, 160)));
    }
    machine.run(60);
    machine.snapshot()
}

/// All situations.
#[rustfmt::skip] // a row of the table is a line or two
pub const ALL: &[Situation] = &[
    Situation { name: "soft-01-healthy", truth: "two perftest pairs move data", finds: None,
        says: &["No trouble found"], make: healthy },
    Situation { name: "soft-02-receiver-stopped", truth: "the ib_send_bw server (PID 420) got SIGSTOP", finds: Some(FindingId::ReceiverNotReady),
        says: &["ib_send_bw (PID 420)", "posts no receives", "ps -L -o stat"], make: receiver_stopped },
    Situation { name: "soft-03-peer-killed", truth: "the peer of PID 512 on host 10.0.0.9 was killed", finds: Some(FindingId::PeerGone),
        says: &["No answer", "PID 512", "10.0.0.9", "ping -c 3 10.0.0.9"], make: peer_killed },
    Situation { name: "soft-04-one-of-four", truth: "all traffic uses rxe0 of four devices", finds: Some(FindingId::HotPort),
        says: &["leaves by rxe0", "rxe1 to rxe3", "PID 311", "which its command line (-d rxe0) chose"], make: one_of_four },
    Situation { name: "soft-05-mr-churn", truth: "PID 640 registers and deregisters memory for each transfer", finds: Some(FindingId::MrChurn),
        says: &["python3 (PID 640", "registers memory", "reusing its regions", "UCX_RCACHE"], make: mr_churn },
    Situation { name: "soft-06-memlock", truth: "reg_mr of PID 733 fails with ENOMEM: ulimit -l is too small", finds: Some(FindingId::VerbFails),
        says: &["reg_mr of python3 (PID 733", "ENOMEM", "limit is 64 KiB", "prlimit --memlock", "docker run --ulimit memlock=-1"], make: memlock },
    Situation { name: "soft-07-on-tcp", truth: "the NCCL job PID 811 moves its data by TCP", finds: Some(FindingId::TcpFallback),
        says: &["all_reduce_perf (PID 811", "by TCP", "no QP"], make: on_tcp },
    Situation { name: "soft-08-left-in-init", truth: "four QPs of PID 902 were never connected", finds: Some(FindingId::QpSetup),
        says: &["4 QPs of ucx_perftest (PID 902)", "INIT", "ss -tanp | grep pid=902,"], make: left_in_init },
    Situation { name: "soft-09-port-down", truth: "the interface of rxe1 is down under PID 955", finds: Some(FindingId::PortDown),
        says: &["rxe1/1 is DOWN (eth1 is switched off)", "PID 955", "sudo ip link set dev eth1 up"], make: port_down },
    Situation { name: "soft-10-qp-leak", truth: "PID 1044 creates QPs and destroys none", finds: Some(FindingId::QpLeak),
        says: &["kvstore (PID 1044)", "destroyed none", "ibv_destroy_qp"], make: qp_leak },
    Situation { name: "soft-11-few-qps", truth: "PID 311 has one QP beside the 16 of PID 1102, and gets as little as each of those", finds: Some(FindingId::PortContention),
        says: &["ib_write_bw (PID 311)", "with 1 QP on rxe0/1", "PID 1102", "with 16: shared per QP, not per process", "more QPs"], make: few_qps },
    Situation { name: "eight-01-healthy", truth: "a job with a rank on each of eight NICs, started by mpirun, which loads UCX", finds: None,
        says: &["No trouble found", "mlx5_0 4 - 168G 168G", "mlx5_7 4 - 168G 168G"], make: eight_healthy },
    Situation { name: "eight-02-hot", truth: "PID 7200 has NCCL_IB_HCA=mlx5_2: one NIC of eight", finds: Some(FindingId::HotPort),
        says: &["python3 (PID 7200", "leaves by mlx5_2", "which its NCCL_IB_HCA=mlx5_2 chose"], make: eight_hot },
    Situation { name: "eight-03-funnel", truth: "all peers send to the address of mlx5_3", finds: Some(FindingId::RxFunnel),
        says: &["mlx5_3/1 gets", "PID 7103", "arp_ignore"], make: eight_funnel },
    Situation { name: "eight-04-down", truth: "the cable of mlx5_3 is out; the whole job stands", finds: Some(FindingId::PortDown),
        says: &["mlx5_3/1 is DOWN (eth3 has no signal)", "PID 7103", "7 more ranks of the job move nothing", "waits for 7103", "sudo ethtool eth3"], make: eight_down },
    Situation { name: "eight-05-slow", truth: "mlx5_5 came up with 100 Gb/s instead of 400", finds: Some(FindingId::PortSlow),
        says: &["mlx5_5/1 runs at 100 Gb/s", "PID 7300", "ethtool eth5"], make: eight_slow },
    Situation { name: "eight-06-on-tcp", truth: "PID 7400 has NCCL_IB_DISABLE=1", finds: Some(FindingId::TcpFallback),
        says: &["python3 (PID 7400", "by TCP", "NCCL_IB_DISABLE=1"], make: eight_tcp },
    Situation { name: "eight-07-flap", truth: "the link of mlx5_6 went down for a moment 20 s ago", finds: Some(FindingId::LinkErrors),
        says: &["link of mlx5_6/1 went down", "PID 7106", "ethtool -m eth6"], make: eight_flap },
    Situation { name: "eight-08-receiver", truth: "rank 2 (PID 7102) posts too few receives", finds: Some(FindingId::ReceiverNotReady),
        says: &["PID 7102", "no receive buffer on mlx5_2/1", "receives too slowly", "ps -L -o stat"], make: eight_receiver },
    Situation { name: "eight-09-loss", truth: "the switch drops packets from mlx5_4", finds: Some(FindingId::Loss),
        says: &["Packets from mlx5_4/1 to 10.0.0.104 are lost", "PID 7104", "ethtool -S"], make: eight_loss },
    Situation { name: "eight-10-memlock", truth: "reg_mr of PID 7555 fails with ENOMEM in its pod", finds: Some(FindingId::VerbFails),
        says: &["reg_mr of python3 (PID 7555", "ENOMEM", "limit is 8 MiB", "prlimit --memlock", "IPC_LOCK", "containerd-shim"], make: eight_memlock },
    Situation { name: "eight-11-two-jobs", truth: "PID 7900 of another job sends and receives a quarter of what mlx5_0 moves, beside rank 0 (PID 7100)", finds: None,
        says: &["No trouble found", "mlx5_0 4 - ~126G ~126G", "mlx5_0 2 - ~41.", "mlx5_1 4 - 168G 168G", "~ within 5 %", "PID 7100 and PID 7900 share mlx5_0"], make: eight_shared },
    Situation { name: "eight-12-half-idle", truth: "eight ranks fill four NICs, and four carry nothing", finds: Some(FindingId::RailsIdle),
        says: &["mlx5_4", "slurm 7680.0"], make: eight_half },
    Situation { name: "eight-13-flaps", truth: "the link of mlx5_6 was down three times for five seconds", finds: Some(FindingId::LinkFlaps),
        says: &["The link of mlx5_6/1 flaps", "down 3 times within 1m00s, for 12s or more in all", "PID 7106", "ethtool -m eth6"], make: eight_flaps },
    Situation { name: "eight-14-given-up", truth: "a peer of PID 7102 did not answer, and its requests were given up 20 s ago", finds: Some(FindingId::RequestsFail),
        says: &["Requests from mlx5_2/1 fail", "the peer did not answer", "PID 7102", "ping -c 3 10.0.0.102", "over: lasted 5s, ended 16s ago", "7102 all_reduce_perf … ?over no answer"], make: eight_given_up },
    Situation { name: "eight-15-storage", truth: "the file system's mmfsd (PID 2210) writes by mlx5_8, as it should; no job runs", finds: None,
        says: &["No trouble found", "2210 mmfsd", "mlx5_8 8 - 336G 24.0G"], make: storage },
    Situation { name: "ib-01-down", truth: "the cable of mlx5_3 is out, on InfiniBand; the whole job stands", finds: Some(FindingId::PortDown),
        says: &["mlx5_3/1 is DOWN (no signal)", "PID 7103", "7 more ranks of the job move nothing", "ibstat mlx5_3 1"], make: ib_down },
    Situation { name: "ib-02-init", truth: "no subnet manager has brought up mlx5_3", finds: Some(FindingId::PortDown),
        says: &["mlx5_3/1 is INIT", "PID 7103", "sudo sminfo -C mlx5_0 -P 1", "opensm"], make: ib_init },
    Situation { name: "ib-03-slow", truth: "mlx5_5 came up with 100 Gb/s instead of 400, on InfiniBand", finds: Some(FindingId::PortSlow),
        says: &["mlx5_5/1 runs at 100 Gb/s", "PID 7300", "iblinkinfo -C mlx5_5 -P 1"], make: ib_slow },
    Situation { name: "eight-16-came-later", truth: "the job of eight-01-healthy, and rdmatop was started after it: each rank may have queue pairs that nobody lists on each NIC", finds: None,
        says: &["No trouble found", "mlx5_0 4 - - -", "mlx5_7 4 - - -", "who moved what is not known"], make: eight_before },
    Situation { name: "eight-17-devx", truth: "PID 7700 makes queue pairs past the kernel on mlx5_0 (UCX), so what it and rank 0 moved there is a bound", finds: None,
        says: &["nothing is seen of 3 DEVX QPs on mlx5_0", "mlx5_0 0 - 0-168G 0-168G", "mlx5_1 4 - 168G 168G", "0-n between 0 and n"], make: eight_devx },
    Situation { name: "eight-18-pod", truth: "a pod's two processes use mlx5_0 and mlx5_1, the other NICs are idle", finds: None,
        says: &["No trouble found", "mlx5_0 2 - 168G 168G", "mlx5_1 2 - 168G 168G"], make: eight_pod },
    Situation { name: "nic-01-few-qps", truth: "PID 2440 has one QP beside the 16 of PID 2391, on a full port of a NIC, and gets as little as each of those", finds: Some(FindingId::PortContention),
        says: &["kvstore (PID 2440)", "with 1 QP on mlx5_0/1", "backup (PID 2391)", "with 16: shared per QP, not per process", "takes most"], make: nic_few_qps },
    Situation { name: "bond-01-one-link", truth: "mlx5_bond_0 sends by ens1f0np0 alone, the other link of its bond is idle", finds: Some(FindingId::LagImbalance),
        says: &["ens1f0np0 alone", "one of 2 links", "python3 (PID 8100", "NCCL_IB_QPS_PER_CONNECTION"], make: bond },
];
