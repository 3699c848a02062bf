//! Decides from the present settings what to change so that the kernel counts QPs by process. Pure.

use crate::netlink::error::NetlinkError;
use crate::netlink::record::{Binding, Mask, Mode, OptionalCounter};
use rdmatop_model::cause::{CauseId, Obstacle};

/// Optional counters of mlx5 that count what QPs send and receive, by process where QPs are bound to them
/// (Linux 6.15).
const TRAFFIC: [&str; 4] = [
    "rdma_tx_packets",
    "rdma_tx_bytes",
    "rdma_rx_packets",
    "rdma_rx_bytes",
];

/// What to change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Orders {
    /// The optional counters that are on now, and those to be on: these and those of `TRAFFIC`. `None`: no
    /// change.
    pub optional: Option<[Vec<u32>; 2]>,
    /// Bind QPs to the optional counters too.
    pub bind_optional: bool,
}

/// Sorted indexes of the optional counters that are on.
pub fn counting(optional: &[OptionalCounter]) -> Vec<u32> {
    let on = optional.iter().filter(|counter| counter.on);
    let mut places: Vec<u32> = on.map(|counter| counter.index).collect();
    places.sort_unstable();
    places
}

/// Decides what to change on a port, or why nothing may be changed: settings of other programs stay as they
/// are. `binds`: the driver has a function that binds QPs to counters; `None` where that cannot be known.
/// `bound`: how many counters QPs of the port are bound to.
pub fn decide(
    binds: Option<bool>,
    binding: Binding,
    bound: usize,
    optional: &[OptionalCounter],
) -> Result<Orders, Obstacle> {
    if binds == Some(false) {
        return Err(no_binding());
    }
    match binding.mode {
        Mode::Auto => {
            let mode = binding.mask.words();
            let why = format!("another program has set mode auto,{mode}, which stays as it is");
            let remedy = if binding.mask.0 & Mask::PID.0 == 0 {
                "`sudo rdma statistic qp set link DEVICE/PORT auto off` ends it, for all users; queue pairs that are \
                 bound stay so until they end"
            } else {
                "what it counts is shown"
            };
            return Err(Obstacle::new(CauseId::CountersTaken, why, remedy));
        }
        Mode::Manual => return Err(taken(bound)),
        Mode::Other(number) => {
            let why = format!("its counters are in a mode that rdmatop does not know ({number})");
            return Err(Obstacle::new(CauseId::CountersTaken, why, ""));
        }
        Mode::None if bound > 0 => return Err(taken(bound)),
        Mode::None => {}
    }
    let wanted = optional
        .iter()
        .filter(|counter| TRAFFIC.contains(&&*counter.name));
    let wanted: Vec<u32> = wanted.map(|counter| counter.index).collect();
    let before = counting(optional);
    let mut after = before.clone();
    after.extend(&wanted);
    after.sort_unstable();
    after.dedup();
    Ok(Orders {
        bind_optional: !wanted.is_empty(),
        optional: (after != before).then_some([before, after]),
    })
}

fn no_binding() -> Obstacle {
    Obstacle::new(
        CauseId::NoBinding,
        "its driver binds no queue pair to a counter",
        "",
    )
}

fn taken(counters: usize) -> Obstacle {
    let why = match counters {
        0 | 1 => "another program has bound queue pairs to a counter".to_owned(),
        many => format!("another program has bound queue pairs to {many} counters"),
    };
    Obstacle::new(
        CauseId::CountersTaken,
        format!("{why}, which stay as they are"),
        "what they count is shown",
    )
}

/// Why the kernel refused a request, for the user.
pub fn refused(error: &NetlinkError) -> Obstacle {
    match error.errno() {
        Some(libc::EBUSY) => taken(0),
        Some(libc::EOPNOTSUPP) => no_binding(),
        Some(libc::EPERM | libc::EACCES) => Obstacle::new(
            CauseId::NotPermitted,
            "the kernel lets nobody change it without CAP_NET_ADMIN",
            "run with sudo",
        ),
        _ => Obstacle::new(CauseId::Refused, error.to_string(), ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(mode: Mode, mask: u32) -> Binding {
        Binding {
            mode,
            mask: Mask(mask),
        }
    }

    fn of(binding: Binding, bound: usize, optional: &[OptionalCounter]) -> Result<Orders, Obstacle> {
        decide(Some(true), binding, bound, optional)
    }

    fn counter(index: u32, name: &str, on: bool) -> OptionalCounter {
        OptionalCounter {
            name: name.into(),
            index,
            on,
        }
    }

    #[test]
    fn an_untouched_port_is_set_and_traffic_counters_are_added() {
        let none = binding(Mode::None, 0);
        assert_eq!(of(none, 0, &[]), Ok(Orders::default()));
        let optional = [
            counter(40, "cc_rx_ce_pkts", true),
            counter(41, "cc_rx_cnp_pkts", false),
            counter(45, "rdma_tx_bytes", false),
            counter(44, "rdma_tx_packets", true),
        ];
        let orders = of(none, 0, &optional).unwrap();
        assert!(orders.bind_optional);
        let [before, after] = orders.optional.unwrap();
        assert_eq!(before, [40, 44]);
        assert_eq!(after, [40, 44, 45], "cc_rx_cnp_pkts stays off");
        let all_on = [counter(44, "rdma_tx_packets", true)];
        let orders = of(none, 0, &all_on).unwrap();
        assert_eq!((orders.optional, orders.bind_optional), (None, true));
    }

    #[test]
    fn what_others_have_set_stays() {
        let id = |binding, bound| of(binding, bound, &[]).unwrap_err().id;
        for (mode, mask) in [
            (Mode::Auto, 1),
            (Mode::Auto, 2),
            (Mode::Manual, 0),
            (Mode::Other(7), 0),
        ] {
            assert_eq!(id(binding(mode, mask), 0), CauseId::CountersTaken, "{mode:?}");
        }
        assert_eq!(id(binding(Mode::None, 0), 1), CauseId::CountersTaken);
        let words = of(binding(Mode::Auto, 3), 2, &[]).unwrap_err().why;
        assert!(words.contains("auto,type,pid"), "{words}");
    }

    #[test]
    fn a_driver_that_binds_nothing_is_left_alone_and_an_unknown_one_is_tried() {
        let by = |binds| decide(binds, binding(Mode::None, 0), 0, &[]);
        assert!(by(None).is_ok());
        assert_eq!(by(Some(false)).unwrap_err().id, CauseId::NoBinding);
    }

    #[test]
    fn each_refusal_of_the_kernel_has_its_cause() {
        let id = |errno| refused(&NetlinkError::Kernel { errno, message: None }).id;
        assert_eq!(id(libc::EBUSY), CauseId::CountersTaken);
        assert_eq!(id(libc::EOPNOTSUPP), CauseId::NoBinding);
        assert_eq!(id(libc::EPERM), CauseId::NotPermitted);
        assert_eq!(id(libc::ENODEV), CauseId::Refused);
        assert_eq!(refused(&NetlinkError::EndedEarly).id, CauseId::Refused);
    }
}
