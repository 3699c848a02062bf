//! One port of an RDMA device: `/sys/class/infiniband/DEVICE/ports/N`.
use std::path::Path;

use super::gid::{SHOWN, first_netdev, read_gids};
use super::placeholder::{self, is_placeholder};
use crate::root::{Root, parse_u64};
use rdmatop_model::input::PortGid;

/// The port's line rate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rate {
    /// Bits per second; `None` when the text could not be read, or is no rate of the link: see the module
    /// `placeholder`.
    pub bits_per_sec: Option<u64>,
    /// Lanes of the link; `None` when the text does not say.
    pub lanes: Option<u8>,
}

/// Facts of one port. [`super::CounterFiles`] reads its counters, netlink its state: here each of those files
/// would be a request to the driver (`ib_query_port`), for hardware a command to its firmware.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortFacts {
    /// Port number, from 1.
    pub port: u32,
    /// Line rate.
    pub rate: Option<Rate>,
    /// "`InfiniBand`" or "Ethernet".
    pub link_layer: Option<String>,
    /// The network device of the first GID that has one.
    pub netdev: Option<String>,
    /// Its GIDs; `None` when they could not be read.
    pub gids: Option<Vec<PortGid>>,
}

/// Reads one port below `device`, of this driver; `software` says that no hardware is behind the device.
pub(super) fn read_port(
    root: &Root,
    device: &Path,
    port: u32,
    driver: Option<&str>,
    software: bool,
) -> PortFacts {
    let dir = device.join("ports").join(port.to_string());
    let link_layer = root.line(&dir.join("link_layer"));
    let of = placeholder::Port {
        software,
        driver,
        link_layer: link_layer.as_deref(),
    };
    let rate = root.line(&dir.join("rate")).map(|text| Rate {
        bits_per_sec: parse_gigabits(&text).filter(|_| !is_placeholder(&dir, of, &text)),
        lanes: parse_lanes(&text),
    });
    PortFacts {
        port,
        rate,
        link_layer,
        netdev: first_netdev(root, &dir),
        gids: read_gids(root, &dir, SHOWN),
    }
}

/// The 4 of "100 Gb/sec (4X EDR)".
fn parse_lanes(text: &str) -> Option<u8> {
    let (_, link) = text.split_once('(')?;
    let (lanes, _) = link.split_once('X')?;
    lanes.parse().ok().filter(|lanes| *lanes > 0)
}

/// "2.5 Gb/sec (1X SDR)": `rate_show` prints whole gigabits, or halves as ".5".
fn parse_gigabits(text: &str) -> Option<u64> {
    let (number, unit) = text.split_once(' ')?;
    if !unit.starts_with("Gb/sec") {
        return None;
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = fraction.len();
    if digits > 9 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let fraction = parse_u64(format!("{fraction:0<9}").as_bytes())?;
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(1_000_000_000)?
        .checked_add(fraction)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use proptest::prelude::*;

    #[test]
    fn rates_are_read_in_bits_per_second() {
        for (text, want) in [
            ("100 Gb/sec (4X EDR)", Some(100_000_000_000)),
            ("2.5 Gb/sec (1X SDR)", Some(2_500_000_000)),
            ("25.78125 Gb/sec", Some(25_781_250_000)),
            ("100 Mb/sec", None),
            ("fast", None),
            ("1.x Gb/sec", None),
            ("99999999999999999999 Gb/sec", None),
        ] {
            assert_eq!(parse_gigabits(text), want, "{text}");
        }
    }

    #[test]
    fn a_placeholder_is_no_honest_rate() {
        let fake = Fake::new();
        let honest = |name: &str, layer: &str, rate: &str, driver, software| {
            let port = format!("class/infiniband/{name}/ports/1");
            fake.sys(format!("{port}/rate"), rate)
                .sys(format!("{port}/link_layer"), layer);
            let device = fake.root().sys("class/infiniband").join(name);
            read_port(&fake.root(), &device, 1, driver, software)
                .rate
                .unwrap()
                .bits_per_sec
        };
        let (slow, fast) = ("2.5 Gb/sec (1X SDR)\n", "100 Gb/sec (4X EDR)\n");
        assert_eq!(honest("rxe0", "Ethernet\n", slow, None, true), None);
        assert_eq!(
            honest("rxe0", "Ethernet\n", fast, None, true),
            Some(100_000_000_000)
        );
        assert_eq!(honest("efa_0", "Unspecified\n", fast, Some("efa"), false), None);
        let mlx5 = honest("mlx5_0", "InfiniBand\n", slow, Some("mlx5_core"), false);
        assert_eq!(mlx5, Some(2_500_000_000));
    }

    #[test]
    fn the_lanes_of_a_link_are_read_with_its_rate() {
        for (text, want) in [
            ("100 Gb/sec (4X EDR)", Some(4)),
            ("200 Gb/sec (2X NDR)", Some(2)),
            ("100 Gb/sec (0X EDR)", None),
            ("100 Gb/sec", None),
            ("100 Gb/sec (fast)", None),
        ] {
            assert_eq!(parse_lanes(text), want, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text: String, close in "[0-9.]{0,25} Gb/sec.*") {
            let _ = parse_lanes(&text);
            let _ = parse_gigabits(&text);
            let _ = parse_gigabits(&close);
        }
    }
}
