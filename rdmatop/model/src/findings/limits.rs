//! The numbers that the rules compare with.

use serde::{Deserialize, Serialize};

/// A limit, as docs/findings.md lists it.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// The limit's key in the settings file.
    pub name: &'static str,
    /// What it is, with its unit.
    pub what: &'static str,
    /// The smallest and the largest value that makes sense.
    pub range: (f64, f64),
}

macro_rules! limits {
    ($($name:ident: $type:ty = $default:expr, $range:expr, $what:literal;)*) => {
        /// The numbers that the rules compare with. The settings file may change them (`[findings]`).
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Limits {
            $(#[doc = $what] pub $name: $type,)*
        }

        impl Default for Limits {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        impl Limits {
            /// All limits.
            pub const TABLE: &'static [Limit] = &[$(Limit {
                name: stringify!($name),
                what: $what,
                range: $range,
            },)*];

            /// The limits' values, in the order of [`Limits::TABLE`].
            pub fn values(&self) -> Vec<f64> {
                vec![$(self.$name as f64,)*]
            }
        }
    };
}

/// Rates and sizes: anything above zero.
const POSITIVE: (f64, f64) = (f64::MIN_POSITIVE, 1e18);
/// The bounds of limits that are shares of a whole.
const SHARE: (f64, f64) = (0.0, 1.0);

limits! {
    mr_per_s: f64 = 100.0, POSITIVE, "registrations of memory regions per second of one process";
    mr_share: f64 = 0.25, POSITIVE, "share of the time of one thread that a process spends in registering memory and taking it back";
    mr_bytes_per_s: f64 = 1e9, POSITIVE, "bytes per second that a process registers and takes back, at least as many as it moves";
    qp_per_s: f64 = 10.0, POSITIVE, "QPs per second that one process makes and destroys";
    mr_growth_bytes: u64 = 1 << 30, POSITIVE, "bytes by which the registered memory of a process grows within `mr_growth_window_s`";
    mr_growth_window_s: u64 = 1800, (60.0, 86_400.0), "seconds over which the registered memory of a process is looked at";
    map_share: f64 = 0.9, (f64::MIN_POSITIVE, 1.0), "share of the mappings of memory that a process may have (`vm.max_map_count`), from which they run out";
    device_share: f64 = 0.9, (f64::MIN_POSITIVE, 1.0), "share of the QPs, CQs or MRs that a device may have, from which they run out";
    leak_qps: u64 = 32, (1.0, 1e9), "QPs by which a process grows within `leak_window_s`";
    leak_window_s: u64 = 60, (10.0, 86_400.0), "seconds over which the growth of a process is looked at";
    flaps: u64 = 3, (2.0, 64.0), "times that a link goes down within `flap_window_s`, to flap";
    flap_window_s: u64 = 600, (10.0, 86_400.0), "seconds over which outages of a link are counted";
    wait_share: f64 = 0.05, SHARE, "share of the time that an InfiniBand port waits for credits, from which its way is congested";
    full_per_s: f64 = 100.0, POSITIVE, "calls of post_send per second that find no room, from which a program posts too much";
    full_share: f64 = 0.5, SHARE, "the same as a share of its calls";
    latency_ratio: f64 = 4.0, (1.0, 1e6), "times that the 99th percentile of post-to-completion times was, to have risen";
    latency_rate: f64 = 0.5, SHARE, "share of the work requests per second that were, below which they have fallen";
    latency_us: u64 = 200, POSITIVE, "microseconds below which a 99th percentile is never long";
    loss_per_s: f64 = 10.0, POSITIVE, "packets sent again, or rounds of retransmission, per second";
    loss_share: f64 = 1e-3, SHARE, "the same as a share of the packets sent";
    hot_ratio: f64 = 2.0, (1.0, 1e6), "times the mean of all ports that one carries, to be hot";
    hot_share: f64 = 0.5, SHARE, "share of its link's rate from which a hot port is a bottleneck";
    idle_share: f64 = 0.05, SHARE, "what a port carries at most, as a share of the hottest, to be idle";
    funnel_share: f64 = 0.7, SHARE, "share of all Rx that one port has, to be a funnel";
    crowd_ratio: f64 = 8.0, (1.0, 1e6), "times what a process sends on a port that another one sends with more QPs, to crowd it out";
    staged_bytes_per_s: f64 = 100e6, POSITIVE, "bytes per second, both ways together, that a process with a GPU moves, from which it matters what they pass";
    lag_share: f64 = 0.9, SHARE, "share of what a bond sends or receives that one of its links has, to have it alone";
    lag_load: f64 = 0.01, SHARE, "share of that link's rate from which it is worth a word";
    rail_bytes_per_s: f64 = 1e6, POSITIVE, "bytes per second below which the load of a port is not judged";
    rail_packets_per_s: f64 = 1e3, POSITIVE, "packets per second below which the load of a port is not judged";
    pause_frames_per_s: f64 = 1e3, POSITIVE, "Ethernet pause frames per second, one way, from which they are a storm";
    pause_share: f64 = 0.01, SHARE, "share of the time in pause, one way, from which it is a storm";
    class_bytes_per_s: f64 = 100e6, POSITIVE, "bytes per second of RDMA that a port sends, from which its traffic class matters";
    class_share: f64 = 0.1, SHARE, "share of that which leaves with flow control, below which its class is wrong";
    tcp_bytes_per_s: f64 = 50e6, POSITIVE, "bytes per second, both ways together, that a job moves by TCP where it could use RDMA";
    tcp_rdma_share: f64 = 0.1, SHARE, "what such a job moves by RDMA at most, as a share of that";
    setup_ms: u64 = 500, POSITIVE, "milliseconds in the kernel from which a step of a QP to INIT, RTR or RTS is slow";
    mtu_rate_bps: u64 = 25_000_000_000, POSITIVE, "bits per second of an Ethernet port from which its MTU matters";
    payload_bytes: u64 = 4096, (256.0, 4096.0), "bytes of payload that a RoCE packet of such a port should carry";
}

impl Limits {
    /// The first limit whose value makes no sense: its name, and why.
    pub fn fault(&self) -> Option<(&'static str, String)> {
        let values = self.values();
        let mut all = Self::TABLE.iter().zip(values);
        all.find_map(|(limit, value)| {
            let (least, most) = limit.range;
            let sensible = value >= least && value <= most;
            let bounds = if limit.range == POSITIVE {
                "give a number above 0".to_owned()
            } else {
                format!("give {least} to {most}")
            };
            (!sensible).then(|| (limit.name, format!("findings.{} = {value}: {bounds}", limit.name)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_make_sense_and_nonsense_is_named() {
        assert_eq!(Limits::default().fault(), None);
        let with = |edit: fn(&mut Limits)| {
            let mut limits = Limits::default();
            edit(&mut limits);
            limits.fault().map(|(_, why)| why).unwrap_or_default()
        };
        assert_eq!(
            with(|l| l.mr_per_s = 0.0),
            "findings.mr_per_s = 0: give a number above 0"
        );
        assert_eq!(
            with(|l| l.mr_per_s = f64::NAN),
            "findings.mr_per_s = NaN: give a number above 0"
        );
        assert_eq!(
            with(|l| l.hot_share = 1.5),
            "findings.hot_share = 1.5: give 0 to 1"
        );
        assert_eq!(
            with(|l| l.payload_bytes = 9000),
            "findings.payload_bytes = 9000: give 256 to 4096"
        );
    }
}
