//! Of which processes it is known that they registered no memory of a GPU.

use proptest::prelude::*;
use rdmatop_common::{counters::loss, verb};

use super::*;
use crate::input::{DataPaths, EbpfState, GpuPlace, GpuReading, GpuSample, ProbeVerdict, Verdict};

const PID: u32 = 231;

/// A report that programs see calls, and DMA-BUFs with this verdict.
fn report(calls: Verdict, dmabufs: Verdict) -> Input {
    let probe = |hook: &str, verdict| ProbeVerdict {
        program: String::new(),
        hook: hook.into(),
        gives: String::new(),
        verdict,
        causes: Vec::new(),
    };
    Input::Ebpf(Box::new(EbpfReport {
        state: EbpfState::On {
            datapaths: DataPaths::default(),
        },
        probes: vec![
            probe("kretprobe:ib_uverbs_cmd_verbs", calls),
            probe("kprobe:ib_uverbs_cmd_verbs", calls),
            probe("kprobe:ib_umem_dmabuf_map_pages", dmabufs),
        ]
        .into(),
        ..EbpfReport::default()
    }))
}

/// What a process has done, and what is known of it.
#[derive(Clone, Debug)]
struct Rank {
    calls: Verdict,
    dmabufs: Verdict,
    /// It started so long after the programs; before them if negative.
    began_ms: i64,
    /// Successful and failed calls of either way to register memory.
    regions: [u64; 2],
    failed: u64,
    maps: u64,
    /// A call was lost after its start.
    lost: bool,
    gpus: bool,
    takes_addresses: bool,
}

const PLAIN: Rank = Rank {
    calls: Verdict::Ok,
    dmabufs: Verdict::Ok,
    began_ms: 10,
    regions: [3, 4],
    failed: 2,
    maps: 0,
    lost: false,
    gpus: true,
    takes_addresses: false,
};

fn stats(calls: u64, errors: u64) -> VerbStats {
    VerbStats {
        calls,
        errors,
        ..VerbStats::new_zeroed()
    }
}

fn sweep(host: &mut Host, rank: &Rank) {
    let entry = |verb, calls, errors| (VerbKey { pid: PID, verb }, stats(calls, errors));
    let [command, method] = verb::REG_MR;
    let mut verbs = vec![
        entry(command, rank.regions[0] + rank.failed, rank.failed),
        entry(method, rank.regions[1], 0),
        entry(verb::DMABUF, rank.maps, 0),
    ];
    verbs.retain(|(_, stats)| stats.calls > 0);
    host.apply(Input::Verbs(Box::new(VerbsSample {
        mono_ns: host.now,
        verbs,
        ..VerbsSample::default()
    })));
}

fn gpus(host: &mut Host, rank: &Rank) {
    if !rank.gpus {
        return;
    }
    let place = GpuPlace {
        address: "0000:1b:00.0".into(),
        path: Vec::new(),
        node: None,
    };
    let gpu = GpuReading {
        place: Some(Arc::new(place)),
        activity: None,
        processes: Some(vec![PID]),
    };
    host.apply(Input::Gpus(Box::new(GpuSample {
        before_ns: host.now - SECOND,
        mono_ns: host.now,
        gpus: vec![gpu],
        takes_addresses: rank.takes_addresses,
    })));
}

/// A host on which that happened.
fn host(rank: &Rank) -> Host {
    let mut host = Host::new();
    host.apply(report(rank.calls, rank.dmabufs));
    let began = i64::try_from(host.now).unwrap() + rank.began_ms * i64::try_from(MS).unwrap();
    host.pass(SECOND);
    host.apply(Input::Process(Box::new(ProcessFacts {
        pid: PID,
        start_ticks: 7,
        born_ns: began.try_into().unwrap(),
        read_ns: host.now,
        ..ProcessFacts::default()
    })));
    if rank.lost {
        let mut losses = [0; loss::COUNT as usize];
        losses[loss::MISSED as usize] = 1;
        host.apply(Input::Losses(losses));
    }
    sweep(&mut host, rank);
    gpus(&mut host, rank);
    host
}

fn known(rank: &Rank) -> Option<u64> {
    host(rank).process(PID).host_regions
}

#[test]
fn regions_count_while_none_of_them_can_be_of_a_gpu() {
    assert_eq!(known(&PLAIN), Some(7));
    let mut host = host(&Rank { maps: 1, ..PLAIN });
    let snapshot = host.tick();
    assert_eq!(snapshot.processes[0].host_regions, None);
    // What is no call of a verb is no row of them.
    let names: Vec<&str> = snapshot.verbs.iter().map(|row| &*row.verb).collect();
    assert_eq!(names, ["reg_mr", "reg_mr"]);
}

#[test]
fn each_thing_that_is_not_known_makes_the_regions_unknown() {
    let changes: [fn(&mut Rank); 9] = [
        |rank| rank.calls = Verdict::Broken,
        |rank| rank.dmabufs = Verdict::Unsupported,
        |rank| rank.dmabufs = Verdict::NotApplicable,
        |rank| rank.began_ms = -10,
        |rank| rank.regions = [0, 0],
        |rank| rank.maps = 1,
        |rank| rank.lost = true,
        |rank| rank.gpus = false,
        |rank| rank.takes_addresses = true,
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let mut rank = PLAIN;
        change(&mut rank);
        assert_eq!(known(&rank), None, "{n}");
    }
}

#[test]
fn programs_that_came_anew_have_not_seen_what_was_before() {
    let mut host = host(&PLAIN);
    let Input::Ebpf(mut again) = report(Verdict::Ok, Verdict::Ok) else {
        unreachable!()
    };
    again.anew = true;
    host.apply(Input::Ebpf(again));
    assert_eq!(host.process(PID).host_regions, None);
}

proptest! {
    /// Whatever a process does and however long it lasts: what is known of its regions grows, and once it is
    /// not known any more it stays so.
    #[test]
    fn what_is_known_of_regions_never_comes_back(
        steps in prop::collection::vec((0_u64..3, 0_u64..3, 0_u32..40, 0_u32..40), 1..40),
    ) {
        let mut rank = Rank { regions: [1, 0], failed: 0, ..PLAIN };
        let mut host = host(&rank);
        let mut losses = [0; loss::COUNT as usize];
        let mut last = host.process(PID).host_regions;
        prop_assert_eq!(last, Some(1));
        for (by_command, by_method, mapped, lost) in steps {
            host.pass(SECOND);
            rank.regions[0] += by_command;
            rank.regions[1] += by_method;
            rank.maps += u64::from(mapped == 0);
            rank.lost |= lost == 0;
            losses[loss::VERB as usize] += u64::from(lost == 0);
            host.apply(Input::Losses(losses));
            sweep(&mut host, &rank);
            gpus(&mut host, &rank);
            let now = host.process(PID).host_regions;
            let wanted = (rank.maps == 0 && !rank.lost).then_some(rank.regions[0] + rank.regions[1]);
            prop_assert_eq!(now, wanted);
            prop_assert!(last.is_some() || now.is_none());
            last = now;
        }
    }
}
