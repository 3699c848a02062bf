//! Rules about ports over a bond.

use super::*;
use crate::snapshot::{Bond, Member};

const GB: f64 = 1e9;

/// Eight healthy rails; the first is a bond of two links of 200 Gb/s, which send and receive this much.
fn over_bond(mode: &str, tx: [f64; 2], rx: [f64; 2]) -> Snapshot {
    let mut s = rails([4.0 * GB; 8], [4.0 * GB; 8]);
    let member = |at: usize| Member {
        name: format!("eth{at}").into(),
        up: Some(true),
        outside: false,
        rate_bps: Some(200_000_000_000),
        tx_bytes: Some(Counter::whole(1 << 40, Some(tx[at]), Source::Ethtool)),
        rx_bytes: Some(Counter::whole(1 << 40, Some(rx[at]), Source::Ethtool)),
    };
    s.ports[0].netdev = Some("bond0".into());
    s.ports[0].bond = Some(Bond {
        mode: Some(mode.into()),
        members: [member(0), member(1)].into(),
    });
    s.devices[0].pci = Some("0000:3b:00.0".into());
    s
}

fn bond(s: &mut Snapshot) -> &mut Bond {
    s.ports[0].bond.as_mut().unwrap()
}

fn change(s: &mut Snapshot, at: usize, change: impl FnOnce(&mut Member)) {
    let bond = bond(s);
    let mut members = bond.members.clone();
    change(&mut members[at]);
    bond.members = members;
}

#[test]
fn one_link_that_has_all_of_a_bond_is_named_and_the_way_it_goes() {
    let even = [2.0 * GB, 2.0 * GB];
    assert_eq!(ids(&after(20, &over_bond("802.3ad", even, even))), [""; 0]);
    let found = after(20, &over_bond("802.3ad", [19.8 * GB, 0.1 * GB], even));
    assert_eq!(ids(&found), ["lag-imbalance"]);
    assert_eq!(found[0].severity, Severity::Warning);
    assert_eq!(
        found[0].verdict,
        "mlx5_0/1 sends 99 % of its data by eth0 alone (79 % full), though 2 links of its bond are up; used by rank (PID 4711, slurm 7341.0)"
    );
    assert!(
        found[0].next.contains("NCCL_IB_QPS_PER_CONNECTION"),
        "{}",
        &*found[0].next
    );
    // The usual reason: too few of these.
    let told = |found: &[Finding]| {
        let mut lines = found.iter().flat_map(|found| found.evidence.iter().cloned());
        lines.find(|line| line.contains("UDP source ports"))
    };
    assert_eq!(told(&found), None, "the peers of the QPs are not known");
    let mut connected = over_bond("802.3ad", [19.8 * GB, 0.1 * GB], even);
    for (qpn, remote) in [(17, 18), (7000, 7100)] {
        let mut qp = rows::qp(1, "mlx5_0", qpn, 3, Some(4711), "rank", Traffic::default());
        let row = Arc::make_mut(&mut qp);
        (row.device_uid, row.remote_qpn) = (Some(connected.ports[0].device_uid), Some(remote));
        connected.qps.push(qp);
    }
    let line = told(&after(20, &connected)).unwrap();
    assert!(
        line.ends_with("tells them apart: 2, if no program sets flow labels"),
        "{line}"
    );
    // For received data the switch chooses the link. Far from full, this may be intended.
    let found = after(20, &over_bond("balance-xor", even, [0.0, 4.0 * GB]));
    assert_eq!(ids(&found), ["lag-imbalance"]);
    assert_eq!(found[0].severity, Severity::Info);
    assert!(found[0].verdict.contains("receives 100 % of its data by eth1"));
    // Both directions are two findings of one port.
    let both = after(20, &over_bond("802.3ad", [4.0 * GB, 0.0], [4.0 * GB, 0.0]));
    assert_eq!(ids(&both), ["lag-imbalance", "lag-imbalance"]);
}

#[test]
fn a_bond_that_may_be_so_has_no_imbalance() {
    let (one, none) = ([4.0 * GB, 0.0], [0.0, 0.0]);
    // Only one link may carry data; little moves; only one link exists; the other's counter is unknown.
    assert_eq!(ids(&after(20, &over_bond("active-backup", one, none))), [""; 0]);
    assert_eq!(
        ids(&after(20, &over_bond("802.3ad", [0.2 * GB, 0.0], none))),
        [""; 0]
    );
    let mut s = over_bond("802.3ad", one, none);
    change(&mut s, 1, |member| member.up = None);
    assert_eq!(ids(&after(20, &s)), [""; 0]);
    let mut s = over_bond("802.3ad", one, none);
    change(&mut s, 1, |member| member.tx_bytes = None);
    assert_eq!(ids(&after(20, &s)), [""; 0]);
}

#[test]
fn a_bond_without_one_of_its_links_is_named_while_somebody_uses_it() {
    let even = [2.0 * GB, 2.0 * GB];
    let mut s = over_bond("802.3ad", even, even);
    change(&mut s, 1, |member| member.up = Some(false));
    let found = after(8, &s);
    assert_eq!(ids(&found), ["lag-degraded"]);
    assert!(
        found[0]
            .verdict
            .starts_with("mlx5_0/1 has 1 of 2 links of its bond: eth1 has none"),
        "{}",
        found[0].verdict
    );
    assert!(found[0].next.starts_with("ip link show dev eth1 "));
    assert_eq!(found[0].severity, Severity::Warning);
    // One link carries all that there is: the rate is the same.
    let mut backup = over_bond("active-backup", even, even);
    change(&mut backup, 1, |member| member.up = Some(false));
    let found = after(8, &backup);
    assert_eq!(
        (ids(&found), found[0].severity),
        (vec!["lag-degraded"], Severity::Info)
    );
    assert!(
        found[0].verdict.contains("eth1 has none, so it has no reserve"),
        "{}",
        found[0].verdict
    );
    assert!(found[0].evidence.iter().all(|said| !said.contains("are left")));
    // Its carrier is up: the switch's port is not in the port channel.
    change(&mut s, 1, |member| member.outside = true);
    let found = after(8, &s);
    assert!(
        found[0]
            .verdict
            .starts_with("mlx5_0/1 has 1 of 2 links of its bond: eth1 is outside of its aggregate (LACP)"),
        "{}",
        found[0].verdict
    );
    assert!(found[0].next.starts_with("sudo cat /proc/net/bonding/bond0 "));
    let one = over_bond("802.3ad", [4.0 * GB, 0.0], even);
    assert_eq!(ids(&after(20, &one)), ["lag-imbalance"]);
    let mut one = one;
    change(&mut one, 1, |member| {
        (member.up, member.outside) = (Some(false), true);
    });
    assert_eq!(
        ids(&after(20, &one)),
        ["lag-degraded"],
        "more queue pairs are no help"
    );
    s.processes[0].devices = s.processes[0].devices[1..].to_vec();
    assert_eq!(ids(&after(8, &s)), [""; 0]);
}

#[test]
fn what_a_bond_can_carry_is_what_its_links_can_that_are_up() {
    let mut s = over_bond("802.3ad", [0.0; 2], [0.0; 2]);
    assert_eq!(bond(&mut s).rate_bps(), Some(400_000_000_000));
    bond(&mut s).mode = Some("active-backup".into());
    assert_eq!(bond(&mut s).rate_bps(), Some(200_000_000_000));
    bond(&mut s).mode = None;
    change(&mut s, 0, |member| member.up = Some(false));
    assert_eq!(bond(&mut s).rate_bps(), Some(200_000_000_000));
    change(&mut s, 1, |member| member.rate_bps = None);
    assert_eq!(bond(&mut s).rate_bps(), None);
    change(&mut s, 1, |member| member.up = Some(false));
    assert_eq!(bond(&mut s).rate_bps(), None);
}
