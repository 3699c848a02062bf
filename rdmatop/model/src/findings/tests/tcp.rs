//! Jobs that move their data by TCP, and the settings that are named as the cause.

use super::*;

#[test]
fn the_variable_that_forbids_nccl_its_verbs_means_nothing_on_efa() {
    let mut s = rails([0.0; 8], [0.0; 8]);
    s.processes[0].qps = 0;
    s.processes[0].environ = Some(vec![("NCCL_IB_DISABLE".to_owned(), "1".to_owned())].into());
    s.processes[0].tcp = Some(TcpTraffic {
        tx_bytes: Counter::whole(9, Some(300e6), Source::SockDiag),
        rx_bytes: Counter::whole(9, Some(300e6), Source::SockDiag),
        connections: 16,
        busiest: None,
    });
    let verdict = |s: &Snapshot| after(6, s)[0].verdict.clone();
    assert!(verdict(&s).ends_with(": its environment has NCCL_IB_DISABLE=1"));
    for device in &mut s.devices {
        device.driver = Some("efa".into());
    }
    // NCCL's own transport cannot use EFA.
    // A process has loaded no plug-in before its first communicator, and no fault.
    let found = after(6, &s).remove(0);
    assert!(found.verdict.ends_with("(it has no QP)"), "{}", found.verdict);
    let plugin = "NCCL has loaded no plug-in for EFA (aws-ofi-nccl) so far";
    let evidence = |s: &Snapshot| after(6, s)[0].evidence.iter().any(|said| said == plugin);
    assert!(evidence(&s), "{:?}", found.evidence);
    assert!(
        found
            .next
            .starts_with("if NCCL has begun (a line `NCCL version` in its log): install aws-ofi-nccl ")
            && found.next.contains("; else sudo rdmatop doctor --pid 4711 "),
        "{}",
        &*found.next
    );
    s.processes[0].libraries = Some(vec!["libnccl.so.2".into(), "libfabric.so.1".into()].into());
    assert!(
        !evidence(&s) && verdict(&s).ends_with("(it has no QP)"),
        "{}",
        verdict(&s)
    );
    s.processes[0].libraries = None;
    assert!(verdict(&s).ends_with("(it has no QP)"), "{}", verdict(&s));
}

#[test]
fn a_job_on_tcp_is_told_whichever_setting_doctor_would_name() {
    for (name, value, driver) in [
        ("NCCL_IB_DISABLE", "2", "mlx5_core"),
        ("UCX_TLS", "tcp,self,sm", "mlx5_core"),
        ("FI_PROVIDER", "sockets", "mlx5_core"),
        ("NCCL_NET_PLUGIN", "none", "efa"),
    ] {
        let mut s = rails([0.0; 8], [0.0; 8]);
        s.devices
            .iter_mut()
            .for_each(|device| device.driver = Some(driver.into()));
        s.processes[0].qps = 0;
        s.processes[0].environ = Some(vec![(name.to_owned(), value.to_owned())].into());
        s.processes[0].tcp = Some(TcpTraffic {
            tx_bytes: Counter::whole(9, Some(300e6), Source::SockDiag),
            rx_bytes: Counter::whole(9, Some(300e6), Source::SockDiag),
            connections: 16,
            busiest: None,
        });
        let verdict = &after(6, &s)[0].verdict;
        let reason = format!("(it has no QP): its environment has {name}={value}");
        assert!(verdict.ends_with(&reason), "{verdict}");
    }
}

#[test]
fn a_setting_that_nccl_does_not_read_is_not_blamed() {
    let is_named_of = |one: (&str, &str), setting: (&str, &str)| {
        let mut s = rails([0.0; 8], [0.0; 8]);
        let settings = [one, setting];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
        s.processes[0].qps = 0;
        s.processes[0].environ = Some(settings.to_vec().into());
        s.processes[0].tcp = Some(TcpTraffic {
            tx_bytes: Counter::whole(9, Some(300e6), Source::SockDiag),
            rx_bytes: Counter::whole(9, Some(300e6), Source::SockDiag),
            connections: 16,
            busiest: None,
        });
        let found = after(6, &s);
        assert_eq!(ids(&found), ["tcp-fallback"]);
        let (name, value) = one;
        let reason = format!(": its environment has {name}={value}");
        found[0].verdict.ends_with(&reason)
    };
    let is_named = |setting| is_named_of(("UCX_TLS", "tcp"), setting);
    // NVSHMEM moves nothing by TCP, and this variable is of no other library.
    let nvshmem = ("NVSHMEM_REMOTE_TRANSPORT", "none");
    assert!(!is_named_of(nvshmem, ("LOCAL_RANK", "0")));
    // HPC-X's plug-in makes its transfers with UCX.
    let is_by_plugin = |plugin| is_named(("NCCL_PLUGIN_P2P", plugin));
    assert_eq!((is_by_plugin("ib"), is_by_plugin("ucx")), (false, true));
    assert!(
        is_named(("NCCL_VERSION", "2.27.3")),
        "each image of NVIDIA has it"
    );
}

#[test]
fn a_job_on_tcp_is_named_with_what_forbids_rdma() {
    let mut s = rails([0.0; 8], [0.0; 8]);
    let moving = |per_s: f64| TcpTraffic {
        tx_bytes: Counter::whole(9, Some(per_s), Source::SockDiag),
        rx_bytes: Counter::whole(9, Some(per_s), Source::SockDiag),
        connections: 16,
        busiest: Some(([10, 0, 0, 2], 45_001).into()),
    };
    s.processes[0].tcp = Some(moving(300e6));
    let found = after(6, &s);
    assert_eq!(ids(&found), ["tcp-fallback"]);
    assert_eq!(
        found[0].verdict,
        "rank (PID 4711, slurm 7341.0) moves 4.8 Gb/s by TCP and next to nothing by RDMA"
    );
    assert_eq!(
        found[0].evidence,
        [
            "4.8 Gb/s in 16 connections, the busiest to 10.0.0.2:45001",
            "it has loaded libibverbs.so.1, libnccl.so.2"
        ]
    );
    s.processes[0].qps = 0;
    s.processes[0].environ = Some(vec![("NCCL_IB_DISABLE".to_owned(), "1".to_owned())].into());
    let found = after(6, &s);
    assert!(
        found[0]
            .verdict
            .ends_with("by TCP instead of RDMA (it has no QP): its environment has NCCL_IB_DISABLE=1"),
        "{}",
        found[0].verdict
    );
    assert_eq!(
        found[0].next,
        "Start the job without NCCL_IB_DISABLE=1: it forbids RDMA (unset NCCL_IB_DISABLE in its script or its container)."
    );
    s.processes[0].environ = None;
    s.processes[0].verbs_files = Some(false);
    let found = after(6, &s);
    let reason = ": it finds no device in /dev/infiniband";
    assert!(found[0].verdict.ends_with(reason), "{}", found[0].verdict);
    assert!(
        found[0].next.starts_with("sudo rdmatop doctor --pid"),
        "{}",
        found[0].next
    );
    s.processes[0].qps = 1;
    let verdict = &after(6, &s)[0].verdict;
    assert!(
        verdict.ends_with("next to nothing by RDMA"),
        "{verdict}: it has a QP"
    );
    s.processes[0].qps = 0;
    s.processes[0].tcp = Some(moving(20e6));
    assert_eq!(ids(&after(6, &s)), [""; 0], "little");
    s.processes[0].tcp = Some(moving(300e6));
    s.ports
        .iter_mut()
        .for_each(|port| port.state = Some(PortState(1)));
    assert_eq!(ids(&after(6, &s)), [""; 0], "there is no other way");
    // UCX makes QPs on mlx5 that the kernel does not list: what the ports of the devices move that it has
    // open may be its own.
    let tcp_of_ucx = |moved: f64, opened: &[usize], edit: fn(&mut Snapshot)| {
        let mut s = rails([moved; 8], [moved; 8]);
        s.processes[0].tcp = Some(moving(300e6));
        s.processes[0].qps = 0;
        s.processes[0].devices.clear();
        s.processes[0].libraries = Some(vec!["libucp.so.0".to_owned(), "libuct_ib.so.0".to_owned()].into());
        s.processes[0].unlisted = Some(crate::snapshot::Unlisted::Library);
        for (at, device) in s.devices.iter_mut().enumerate() {
            device.contexts = Some(opened.iter().filter(|open| **open == at).map(|_| 4711).collect());
        }
        edit(&mut s);
        let found = after(6, &s);
        let found = found.into_iter().find(|f| f.id.name() == "tcp-fallback");
        found.map(|found| found.verdict)
    };
    let is_little = |verdict: Option<String>| verdict.map(|line| line.ends_with("next to nothing by RDMA"));
    let has_none = |verdict: Option<String>| verdict.map(|line| line.contains("(it has no QP)"));
    assert_eq!(is_little(tcp_of_ucx(10e9, &[0, 1], |_| {})), None);
    assert_eq!(is_little(tcp_of_ucx(0.0, &[0, 1], |_| {})), Some(true));
    assert_eq!(
        has_none(tcp_of_ucx(10e9, &[], |_| {})),
        Some(true),
        "it has no device open"
    );
    let sees_none: fn(&mut Snapshot) = |s| s.processes[0].verbs_files = Some(false);
    assert_eq!(has_none(tcp_of_ucx(10e9, &[0, 1], sees_none)), Some(true));
    let forbidden: fn(&mut Snapshot) =
        |s| s.processes[0].environ = Some(vec![("UCX_TLS".to_owned(), "tcp".to_owned())].into());
    // Another of its libraries may have QPs there.
    assert_eq!(has_none(tcp_of_ucx(10e9, &[0, 1], forbidden)), None);
    assert_eq!(has_none(tcp_of_ucx(10e9, &[], forbidden)), Some(true));
    // There is RDMA traffic too, or its amount is unknown.
    for moved in [Some(10e9), None] {
        let mut s = rails([10e9; 8], [10e9; 8]);
        s.processes[0].tcp = Some(moving(300e6));
        if moved.is_none() {
            s.ports[0].tx_bytes = None;
        }
        assert_eq!(ids(&after(6, &s)), [""; 0]);
    }
}

#[test]
fn next_to_nothing_is_the_most_that_a_process_can_have_moved() {
    let limit = Limits::default().tcp_rdma_share * 600e6;
    let at_most = |rate: f64| Counter {
        partial: true,
        rate_is: RateIs::AtMost,
        ..Counter::whole(9, Some(rate), Source::Port)
    };
    let share = |rate: f64| Counter::whole(9, Some(rate), Source::Psn);
    let is_named = |each_way: Counter| {
        let mut s = rails([10e9; 8], [10e9; 8]);
        s.processes[0].qps = 8;
        let traffic = &mut s.processes[0].traffic;
        [traffic.tx_bytes, traffic.rx_bytes] = [Some(each_way); 2];
        s.processes[0].tcp = Some(TcpTraffic {
            tx_bytes: Counter::whole(9, Some(300e6), Source::SockDiag),
            rx_bytes: Counter::whole(9, Some(300e6), Source::SockDiag),
            connections: 16,
            busiest: None,
        });
        ids(&after(6, &s)).contains(&"tcp-fallback")
    };
    // Its ports are busy, with what others move.
    assert!(is_named(at_most(0.49 * limit)) && !is_named(at_most(0.51 * limit)));
    // Of a lower bound it is not known how much more there was.
    let exact = Counter::whole(9, Some(0.0), Source::Hw);
    assert!(is_named(exact) && !is_named(exact.plus_unknown()));
    // A share may be a twentieth too low.
    assert!(is_named(share(0.47 * limit)) && !is_named(share(0.49 * limit)));
}
