//! The rule about processes that move data and have registered none of their GPU's memory.

use super::*;
use crate::input::GpuPlace;

/// A rank on a GPU that moves 16 Gb/s each way, with twelve regions of the host's memory.
fn rank() -> Snapshot {
    let mut s = rails([0.0; 8], [0.0; 8]);
    let row = &mut s.facts.processes[0];
    (row.traffic.tx_bytes, row.traffic.rx_bytes) = (rate(2e9), rate(2e9));
    row.host_regions = Some(12);
    row.gpus = Some(
        [Arc::new(GpuPlace {
            address: "0000:1b:00.0".to_owned(),
            path: Vec::new(),
            node: None,
        })]
        .into(),
    );
    s
}

fn found(s: &Snapshot) -> Vec<Finding> {
    let mut all = after(10, s);
    all.retain(|found| found.id == FindingId::NoGpuDirect);
    all
}

#[test]
fn a_rank_with_regions_of_the_host_s_memory_alone_is_named() {
    let s = rank();
    let all = found(&s);
    assert_eq!(all.len(), 1);
    let [one] = &all[..] else { panic!("{all:?}") };
    assert_eq!(
        one.verdict,
        "rank (PID 4711, slurm 7341.0) computes on GPU 0000:1b:00.0 and moves 32.0 Gb/s by RDMA with 12 memory regions and none \
         of GPU memory: whatever it sends from its GPU is copied to the host's memory first"
    );
    assert_eq!(
        one.evidence,
        [
            "12 calls of reg_mr since it began, and no DMA-BUF",
            "no peer memory module (nvidia_peermem) is loaded"
        ]
    );
    assert_eq!(
        (one.severity, one.about.process),
        (Severity::Info, Some(s.processes[0].uid))
    );
    assert!(one.next.to_string().contains("gpu.direct"), "{}", one.next);
    let early = after(8, &s);
    assert!(
        !early.iter().any(|found| found.id == FindingId::NoGpuDirect),
        "before its time"
    );
}

#[test]
fn each_thing_that_is_not_known_or_not_so_makes_it_silent() {
    let changes: [fn(&mut Snapshot); 8] = [
        // It has a DMA-BUF, began before rdmatop, or its GPU's memory may be registered by address.
        |s| s.processes[0].host_regions = None,
        |s| s.processes[0].host_regions = Some(0),
        |s| s.processes[0].gpus = None,
        |s| s.processes[0].gpus = Some([].into()),
        |s| {
            let traffic = &mut s.processes[0].traffic;
            (traffic.tx_bytes, traffic.rx_bytes) = (None, None);
        },
        |s| {
            let traffic = &mut s.processes[0].traffic;
            (traffic.tx_bytes, traffic.rx_bytes) = (rate(4e7), rate(5e7));
        },
        // The port moved as much; how much of it was this process's is not known.
        |s| {
            let traffic = &mut s.processes[0].traffic;
            for bytes in [&mut traffic.tx_bytes, &mut traffic.rx_bytes]
                .into_iter()
                .flatten()
            {
                bytes.rate_is = RateIs::AtMost;
            }
        },
        |s| {
            let traffic = &mut s.processes[0].traffic;
            (traffic.tx_bytes, traffic.rx_bytes) = (rate(0.0), rate(0.0));
        },
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let mut s = rank();
        change(&mut s);
        assert!(found(&s).is_empty(), "{n}");
    }
    // One way is enough.
    let mut s = rank();
    s.processes[0].traffic.rx_bytes = None;
    assert_eq!(found(&s).len(), 1);
}
