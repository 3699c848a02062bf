//! What a process has posted by its probed QPs is exact, or a bound that says so, however short QPs live and
//! whenever their functions come to be probed.

use proptest::{collection::vec, prelude::*};

use super::{uprobes::probed, *};

const QPS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    Make(usize),
    /// The provider's functions are probed from now on, for all that call them.
    Probe,
    /// The worker looks at the QP.
    Judge(usize),
    Post(usize, u64),
    Destroy(usize),
    Sweep,
}

fn step() -> impl Strategy<Value = Step> {
    let qp = 0..QPS;
    prop_oneof![
        2 => qp.clone().prop_map(Step::Make),
        1 => Just(Step::Probe),
        2 => qp.clone().prop_map(Step::Judge),
        4 => (qp.clone(), 1u64..9).prop_map(|(qp, n)| Step::Post(qp, n)),
        2 => qp.prop_map(Step::Destroy),
        2 => Just(Step::Sweep),
    ]
}

/// A QP as the kernel side and the worker have it.
#[derive(Clone, Copy)]
struct Made {
    object: u64,
    number: u32,
    born_ns: u64,
    counted: u64,
    judged: bool,
    /// Its functions were probed after it got its slot.
    late: bool,
    destroyed: bool,
}

/// A slot as `loader/user` passes it on.
fn passed_on(qp: Option<Made>) -> QpSlot {
    let Some(qp) = qp.filter(|qp| qp.judged || qp.destroyed) else {
        return QpSlot::new_zeroed();
    };
    let mut slot = probed(qp.born_ns, qp.object, qp.number, qp.counted);
    if qp.late || !qp.judged {
        slot.flags |= slot_flag::SINCE_ATTACH | slot_flag::LATE;
    }
    if qp.destroyed {
        slot.flags |= slot_flag::DESTROYED;
    }
    slot
}

proptest! {
    #[test]
    fn a_sum_of_probed_qps_is_exact_or_a_bound_that_says_so(steps in vec(step(), 1..80)) {
        let mut host = Host::new();
        let mut qps = [None::<Made>; QPS];
        let (mut all, mut probing) = (0, false);
        for (step, number) in steps.iter().zip(17..) {
            let object = u64::from(number) * 0x100;
            host.pass(MS * 10);
            match *step {
                Step::Make(at) if qps[at].is_none() => {
                    host.qp(create(host.now, object, number));
                    qps[at] = Some(Made {
                        object,
                        number,
                        born_ns: host.now,
                        counted: 0,
                        judged: false,
                        late: !probing,
                        destroyed: false,
                    });
                }
                Step::Probe => probing = true,
                Step::Judge(at) => {
                    if let Some(qp) = qps[at].as_mut().filter(|qp| !qp.destroyed) {
                        (qp.judged, probing) = (true, true);
                    }
                }
                Step::Post(at, n) => {
                    if let Some(qp) = qps[at].as_mut().filter(|qp| !qp.destroyed) {
                        all += n;
                        qp.counted += if probing { n } else { 0 };
                    }
                }
                Step::Destroy(at) => {
                    if let Some(qp) = qps[at].as_mut().filter(|qp| !qp.destroyed) {
                        qp.destroyed = true;
                        host.qp(destroy(host.now, qp.object, qp.number));
                    }
                }
                Step::Sweep => {
                    host.sweep(&qps.map(passed_on));
                    for qp in &mut qps {
                        *qp = qp.filter(|qp| !qp.destroyed);
                    }
                    let rows = host.tick();
                    for row in &rows.processes {
                        let sums = [row.traffic.tx_wr, row.traffic.tx_wr_posted, row.traffic.rx_wr_posted];
                        for sum in sums.into_iter().flatten() {
                            prop_assert!(sum.total == all || sum.partial && sum.total < all, "{sum:?} of {all}");
                        }
                    }
                }
                Step::Make(_) => {}
            }
        }
    }
}
