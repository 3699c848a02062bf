//! Ports: their states, rates, MTU, GIDs and flow control.

use super::{HEALTHY, changed, devices, port, with_settings};
use rdmatop_base::ib::{Gid, PhysState, PortState};
use rdmatop_doctor::{
    Facts, Reading, Status, examine,
    facts::{IdleNic, Member},
};
use rdmatop_model::input::PortGid;

#[test]
fn a_port_that_is_down_is_one_line_whatever_else_follows_from_it() {
    let line = changed(|facts| {
        port(facts, 3).state = Reading::Known(PortState(1));
        port(facts, 3).netdev.as_mut().unwrap().carrier = Some(false);
    });
    assert_eq!(
        line,
        ["Fail port.state mlx5_3 is down: its interface eth3 has no signal"]
    );
    let line = changed(|facts| {
        port(facts, 3).state = Reading::Known(PortState(1));
        port(facts, 3).netdev.as_mut().unwrap().up = Some(false);
    });
    assert_eq!(
        line,
        ["Warn port.state mlx5_3 is down: its interface eth3 is switched off"]
    );
    let line = changed(|facts| {
        port(facts, 3).state = Reading::Known(PortState(2));
        port(facts, 3).link_layer = Some("InfiniBand".into());
        port(facts, 3).roce = false;
        port(facts, 3).netdev = None;
    });
    assert_eq!(
        line[0],
        "Fail port.state mlx5_3 is INIT: it waits for the subnet manager"
    );
    let line = changed(|facts| port(facts, 3).state = Reading::Unreadable("reading fails: x".into()));
    assert_eq!(line[0], "Unknown port.state state of mlx5_3");
    let mut facts = HEALTHY.clone();
    (0..8).for_each(|at| {
        port(&mut facts, at).state = Reading::Known(PortState(1));
        port(&mut facts, at).netdev.as_mut().unwrap().carrier = Some(false);
        port(&mut facts, at).was_used = true;
    });
    let report = examine(&facts);
    assert_eq!(
        lines(&report),
        ["mlx5_0 is down: its interface eth0 has no signal; the same for 7 others: mlx5_1 to mlx5_7"]
    );
    // A port without a link has no speed.
    assert!(report.lines.iter().all(|line| line.id != "port.rate"));
}

#[test]
fn a_bond_without_one_of_its_links_is_a_warning_though_its_port_is_up() {
    let with = |up: [Option<bool>; 2], outside: bool| {
        changed(|facts| {
            let netdev = port(facts, 3).netdev.as_mut().unwrap();
            netdev.name = "bond0".into();
            let member = |at: usize| Member {
                name: format!("eth{}", 8 + at),
                up: up[at],
                outside: outside && at == 1,
                lossless: Reading::Absent,
            };
            netdev.members = vec![member(0), member(1)];
        })
    };
    let up = Some(true);
    let of_state = |lines: Vec<String>| -> Vec<String> {
        lines
            .into_iter()
            .filter(|line| line.contains("port.state"))
            .collect()
    };
    assert_eq!(
        of_state(with([up, Some(false)], false)),
        ["Warn port.state mlx5_3 has 1 of 2 links of its bond bond0: eth9 is down"]
    );
    assert_eq!(
        of_state(with([up, Some(false)], true)),
        [
            "Warn port.state mlx5_3 has 1 of 2 links of its bond bond0: eth9 is outside of its aggregate (LACP)"
        ]
    );
    let why = |active_backup: bool| {
        let mut facts = HEALTHY.clone();
        let netdev = port(&mut facts, 3).netdev.as_mut().unwrap();
        netdev.active_backup = active_backup;
        netdev.members = vec![
            Member {
                name: "eth8".into(),
                up,
                ..Member::default()
            },
            Member {
                name: "eth9".into(),
                up: Some(false),
                ..Member::default()
            },
        ];
        let report = examine(&facts);
        let line = report.lines.iter().find(|line| line.id == "port.state").unwrap();
        assert!(
            line.remedy.starts_with("ip link show dev eth9 "),
            "{}",
            &*line.remedy
        );
        line.why.clone()
    };
    assert!(why(false).contains("a part of its rate") && why(true).contains("its full rate, and no reserve"));
    for healthy in [[up, up], [up, None]] {
        assert!(
            of_state(with(healthy, false))
                .iter()
                .all(|line| line.starts_with("Pass"))
        );
    }
}

/// ACTIVE_DEFER hides a link error that may be short: packets pass.
#[test]
fn a_port_is_a_fault_exactly_where_findings_do_not_call_it_active() {
    for state in PortState::ALL {
        let said = changed(|facts| {
            port(facts, 3).state = Reading::Known(*state);
            port(facts, 3).in_use = true;
        });
        let is_fault = said
            .iter()
            .any(|line| line.starts_with("Fail port.state mlx5_3 is "));
        assert_eq!(is_fault, !state.is_active(), "{state}: {said:?}");
    }
}

/// The texts of the lines that the check of port states makes.
fn lines(report: &rdmatop_doctor::Report) -> Vec<&str> {
    let of_ports = report.lines.iter().filter(|line| line.id == "port.state");
    of_ports.map(|line| line.text.as_str()).collect()
}

#[test]
fn a_port_is_expected_up_only_where_something_says_so() {
    // Four cards of two ports each, of which the second ones have no cable.
    let dual = |change: fn(&mut Facts)| {
        let mut facts = HEALTHY.clone();
        for (at, device) in devices(&mut facts).iter_mut().enumerate() {
            device.pci.as_mut().unwrap().address = format!("0000:{}0:00.{}", at / 2, at % 2);
            if at % 2 == 1 {
                let port = &mut device.ports[0];
                (port.state, port.netdev.as_mut().unwrap().carrier) =
                    (Reading::Known(PortState(1)), Some(false));
            }
        }
        change(&mut facts);
        let report = examine(&facts);
        let said = lines(&report).into_iter().map(str::to_owned).collect::<Vec<_>>();
        (report.code(), said)
    };
    let spare = "4 of 8 up: Ethernet; mlx5_1, mlx5_3, mlx5_5 and mlx5_7 are down and taken for spares: nothing uses them";
    assert_eq!(dual(|_| {}), (0, vec![spare.to_owned()]));
    let off = |facts: &mut Facts| port(facts, 1).netdev.as_mut().unwrap().up = Some(false);
    assert_eq!(dual(off), (0, vec![spare.to_owned()]));
    let evidence: [fn(&mut Facts); 4] = [
        |facts| port(facts, 1).in_use = true,
        |facts| port(facts, 1).was_used = true,
        |facts| port(facts, 1).netdev.as_mut().unwrap().had_carrier = true,
        |facts| {
            for at in (3..8).step_by(2) {
                port(facts, at).state = Reading::Known(PortState(4));
            }
        },
    ];
    // Of two cards one may have a cable less.
    let (code, said) = dual(|facts| {
        devices(facts).truncate(4);
        port(facts, 3).state = Reading::Known(PortState(4));
        (facts.gpus, facts.processes) = (Vec::new(), Vec::new());
    });
    assert_eq!(
        (code, &*said[0]),
        (
            0,
            "3 of 4 up: Ethernet; mlx5_1 is down and taken for a spare: nothing uses it; the one other NIC like mlx5_1 has the same port up"
        )
    );
    for change in evidence {
        let (code, said) = dual(change);
        assert_eq!(
            (code, &*said[0]),
            (2, "mlx5_1 is down: its interface eth1 has no signal"),
            "{said:?}"
        );
    }
    // A signal says that somebody has plugged in a cable.
    let (code, said) = dual(|facts| port(facts, 1).netdev.as_mut().unwrap().carrier = Some(true));
    assert_eq!(
        (code, &*said[0]),
        (2, "mlx5_1 is down: its interface eth1 has a signal")
    );
    // A port of InfiniBand has no interface that says so.
    let (code, said) = dual(|facts| {
        for at in (1..8).step_by(2) {
            let port = port(facts, at);
            (port.netdev, port.physical, port.roce) = (None, Reading::Known(PhysState(2)), false);
        }
    });
    assert_eq!((code, said), (0, vec![spare.to_owned()]));
}

#[test]
fn where_no_port_is_up_evidence_alone_makes_a_fault_of_it() {
    // A workstation with a card of two ports, and no cable.
    let bare = |change: fn(&mut Facts)| {
        let mut facts = HEALTHY.clone();
        devices(&mut facts).truncate(2);
        for (at, device) in devices(&mut facts).iter_mut().enumerate() {
            device.pci.as_mut().unwrap().address = format!("0000:10:00.{at}");
            let port = &mut device.ports[0];
            (port.state, port.netdev.as_mut().unwrap().carrier) = (Reading::Known(PortState(1)), Some(false));
        }
        (facts.gpus, facts.processes) = (Vec::new(), Vec::new());
        change(&mut facts);
        let report = examine(&facts);
        let said: Vec<String> = lines(&report).into_iter().map(str::to_owned).collect();
        let statuses = report.lines.iter().filter(|line| line.id == "port.state");
        (statuses.map(|line| line.status).collect::<Vec<_>>(), said)
    };
    let spares =
        "no port is up: Ethernet; mlx5_0 and mlx5_1 are down and taken for spares: nothing uses them"
            .to_owned();
    assert_eq!(bare(|_| {}), (vec![Status::Warn], vec![spares.clone()]));
    let off = |facts: &mut Facts| {
        (0..2).for_each(|at| port(facts, at).netdev.as_mut().unwrap().up = Some(false));
    };
    assert_eq!(bare(off), (vec![Status::Warn], vec![spares]));
    let evidence: [fn(&mut Facts); 4] = [
        |facts| port(facts, 1).in_use = true,
        |facts| port(facts, 1).was_used = true,
        |facts| port(facts, 1).netdev.as_mut().unwrap().had_carrier = true,
        |facts| port(facts, 1).netdev.as_mut().unwrap().carrier = Some(true),
    ];
    for change in evidence {
        let (statuses, said) = bare(change);
        assert_eq!(statuses, [Status::Fail, Status::Pass]);
        assert!(
            said[0].starts_with("mlx5_1 is down: its interface eth1 has "),
            "{said:?}"
        );
        assert_eq!(
            said[1],
            "0 of 2 up: Ethernet; mlx5_0 is down and taken for a spare: nothing uses it"
        );
    }
    // One that is switched off while queue pairs are on it.
    let (statuses, said) = bare(|facts| {
        port(facts, 1).in_use = true;
        port(facts, 1).netdev.as_mut().unwrap().up = Some(false);
    });
    assert_eq!(statuses[0], Status::Fail, "{said:?}");
}

#[test]
fn a_port_of_infiniband_has_remedies_of_its_own() {
    type Case = (&'static str, fn(&mut Facts), &'static str);
    let remedy = |id: &str, change: fn(&mut Facts)| {
        let mut facts = HEALTHY.clone();
        for at in 0..8 {
            let port = port(&mut facts, at);
            (port.link_layer, port.netdev, port.roce) = (Some("InfiniBand".into()), None, false);
        }
        change(&mut facts);
        let report = examine(&facts);
        let mut lines = report.lines.iter();
        let line = lines.find(|line| line.id == id && line.status != Status::Pass);
        line.unwrap().remedy.to_string()
    };
    let cases: [Case; 3] = [
        (
            "port.rate",
            |facts| port(facts, 5).rate = Reading::Known(100_000_000_000),
            "sudo iblinkinfo -C mlx5_5 -P 1 -D 0 ",
        ),
        (
            "port.state",
            |facts| {
                let port = port(facts, 5);
                (port.state, port.physical) = (Reading::Known(PortState(1)), Reading::Known(PhysState(2)));
            },
            "ibstat mlx5_5 1 ",
        ),
        (
            "port.state",
            |facts| {
                let port = port(facts, 5);
                (port.state, port.physical) = (Reading::Known(PortState(2)), Reading::Known(PhysState(5)));
            },
            "sudo sminfo -C mlx5_0 -P 1   # asks by mlx5_0/1, which is ACTIVE   # no answer -> ",
        ),
    ];
    for (id, change, begins) in cases {
        let remedy = remedy(id, change);
        assert!(remedy.starts_with(begins), "{remedy}");
    }
}

/// They are DOWN until somebody gives each its GUID, and their link is that of their card, which is up.
#[test]
fn virtual_functions_of_infiniband_that_nobody_uses_are_spares() {
    let of_infiniband = |facts: &mut Facts, at: usize, state: u8| {
        let port = port(facts, at);
        (port.link_layer, port.netdev, port.roce) = (Some("InfiniBand".into()), None, false);
        (port.state, port.physical) = (
            Reading::Known(PortState(state)),
            Reading::Known(PhysState::LINK_UP),
        );
    };
    let mut facts = HEALTHY.clone();
    devices(&mut facts).truncate(6);
    (facts.gpus, facts.processes) = (Vec::new(), Vec::new());
    for at in 0..6 {
        let address = format!("0000:{}0:00.{}", at % 2, at / 2);
        devices(&mut facts)[at].pci.as_mut().unwrap().address = address;
        of_infiniband(&mut facts, at, if at < 2 { 4 } else { 1 });
    }
    let report = examine(&facts);
    assert_eq!(
        lines(&report),
        ["2 of 6 up: InfiniBand; mlx5_2 to mlx5_5 are down and taken for spares: nothing uses them"]
    );
    port(&mut facts, 3).in_use = true;
    let report = examine(&facts);
    assert!(
        lines(&report)[0]
            .starts_with("mlx5_3 is down: its link is up but the port is not: a virtual function"),
        "{report:?}"
    );
}

#[test]
fn what_is_said_of_many_is_one_line_with_their_number() {
    let mut facts = HEALTHY.clone();
    let first = devices(&mut facts)[0].clone();
    devices(&mut facts).extend((8..158).map(|at| rdmatop_doctor::facts::Device {
        name: format!("mlx5_{at}"),
        late: at % 2 == 0,
        dangling: at % 2 == 1,
        ..first.clone()
    }));
    facts.idle_nics = (0..150)
        .map(|at| IdleNic {
            address: format!("0000:{at:02x}:00.0"),
            what: "an EFA",
            module: "efa",
            driver: None,
        })
        .collect();
    let report = examine(&facts);
    let of = |id| {
        report
            .lines
            .iter()
            .filter(|line| line.id == id)
            .collect::<Vec<_>>()
    };
    let (devices, drivers) = (of("device.present"), of("device.driver"));
    assert_eq!(
        (devices.len(), drivers.len()),
        (2, 1),
        "{devices:#?} {drivers:#?}"
    );
    assert!(
        devices[1]
            .text
            .contains("; the same for 74 others: mlx5_10, mlx5_12, mlx5_14, mlx5_16 and 70 more")
    );
    assert!(devices[1].subject.ends_with(", mlx5_156"), "JSON has them all");
    assert!(
        drivers[0].text.contains("the same for 149 others"),
        "{drivers:#?}"
    );
    let page = rdmatop_doctor::page::text(&facts, &report, true, false);
    assert!(page.lines().count() < 100, "{page}");
}

#[test]
fn a_slow_port_is_named_and_one_of_another_board_is_not() {
    let line = changed(|facts| port(facts, 5).rate = Reading::Known(100_000_000_000));
    assert_eq!(
        line[0],
        "Warn port.rate mlx5_5 runs at 100 Gb/s, others of its kind at 400 Gb/s"
    );
    let line = changed(|facts| {
        port(facts, 5).rate = Reading::Known(100_000_000_000);
        devices(facts)[5].board = Reading::Known("storage".into());
    });
    assert!(line.iter().all(|line| line.starts_with("Pass")), "{line:?}");
    // One card may have InfiniBand for storage beside Ethernet, and not every driver names its boards.
    let others: [fn(&mut Facts); 2] = [
        |facts| port(facts, 5).link_layer = Some("InfiniBand".into()),
        |facts| {
            for device in devices(facts) {
                device.board = Reading::Absent;
            }
            devices(facts)[5].pci.as_mut().unwrap().ids = "0x14e4:0x1750".into();
        },
    ];
    for change in others {
        let mut facts = HEALTHY.clone();
        port(&mut facts, 5).rate = Reading::Known(100_000_000_000);
        change(&mut facts);
        let report = examine(&facts);
        let line = report.lines.iter().find(|line| line.id == "port.rate");
        assert_eq!(line.map(|line| line.status), Some(Status::Pass), "{line:?}");
    }
    let remedy = |driver: &str| {
        let mut facts = HEALTHY.clone();
        port(&mut facts, 5).rate = Reading::Known(100_000_000_000);
        for device in devices(&mut facts) {
            device.driver = Some(driver.into());
        }
        let report = examine(&facts);
        let line = report.lines.iter().find(|line| line.id == "port.rate").unwrap();
        line.remedy.to_string()
    };
    assert!(remedy("mlx5_core").contains("mlxlink") && !remedy("bnxt_en").contains("mlxlink"));
}

#[test]
fn packets_that_are_too_small_are_named() {
    let mtu = |mtu| changed(move |facts| port(facts, 6).netdev.as_mut().unwrap().mtu = Some(mtu));
    assert_eq!(
        mtu(1500),
        ["Warn port.mtu packets of mlx5_6 carry 1024 bytes: eth6 has MTU 1500"]
    );
    assert_eq!(
        mtu(1000),
        ["Warn port.mtu packets of mlx5_6 carry 512 bytes: eth6 has MTU 1000"]
    );
    assert_eq!(
        mtu(4200),
        ["Pass port.mtu packets carry 4096 bytes (interface MTU 4200) and 4096 bytes (interface MTU 9000)"]
    );
    // A port that is down, and the ordinary network of a machine whose jobs have InfiniBand.
    let warns = |change: fn(&mut Facts)| {
        let mut facts = HEALTHY.clone();
        port(&mut facts, 6).netdev.as_mut().unwrap().mtu = Some(1500);
        change(&mut facts);
        let report = examine(&facts);
        let of_mtu = |line: &&rdmatop_doctor::Line| line.id == "port.mtu" && line.status == Status::Warn;
        report.lines.iter().filter(of_mtu).count()
    };
    assert_eq!(warns(|_| {}), 1);
    assert_eq!(
        warns(|facts| port(facts, 6).state = Reading::Known(PortState(1))),
        0
    );
    let infiniband = |facts: &mut Facts| {
        let port = port(facts, 0);
        (port.link_layer, port.roce) = (Some("InfiniBand".into()), false);
    };
    assert_eq!(
        warns(infiniband),
        1,
        "rails of RoCE beside InfiniBand for storage"
    );
    let ordinary: fn(&mut Facts) = |facts| {
        let first = port(facts, 0);
        (first.link_layer, first.roce) = (Some("InfiniBand".into()), false);
        port(facts, 6).rate = Reading::Known(100_000_000_000);
    };
    assert_eq!(warns(ordinary), 0);
    let in_use: fn(&mut Facts) = |facts| {
        let first = port(facts, 0);
        (first.link_layer, first.roce) = (Some("InfiniBand".into()), false);
        let sixth = port(facts, 6);
        (sixth.rate, sixth.in_use) = (Reading::Known(100_000_000_000), true);
    };
    assert_eq!(warns(in_use), 1);
    // Beside rails of RoCE, NICs for storage are looked at, and those of the ordinary network are not.
    let storage: fn(&mut Facts) = |facts| port(facts, 6).rate = Reading::Known(200_000_000_000);
    assert_eq!(warns(storage), 1);
    let management: fn(&mut Facts) = |facts| port(facts, 6).rate = Reading::Known(25_000_000_000);
    assert_eq!(warns(management), 0);
}

#[test]
fn ports_without_a_usable_gid_are_named() {
    let gids = |gids: Vec<PortGid>| changed(move |facts| port(facts, 1).gids = Reading::Known(gids));
    let link_local = |v2: bool| {
        let mut bytes = [0; 16];
        (bytes[0], bytes[1]) = (0xfe, 0x80);
        PortGid {
            index: 0,
            gid: Gid(bytes),
            v1: Some(!v2),
        }
    };
    let of = |line: Vec<String>| line.into_iter().find(|line| line.contains("port.gid")).unwrap();
    assert_eq!(of(gids(vec![])), "Fail port.gid mlx5_1 has no address (GID)");
    let remedy = |is_here: bool| {
        let mut facts = HEALTHY.clone();
        let port = port(&mut facts, 1);
        port.gids = Reading::Known(vec![]);
        port.netdev.as_mut().unwrap().up = is_here.then_some(true);
        let report = examine(&facts);
        let line = report.lines.iter().find(|line| line.id == "port.gid").unwrap();
        line.remedy.to_string()
    };
    assert!(remedy(true).contains(" dev eth1 "), "{}", remedy(true));
    assert!(remedy(false).contains(" dev INTERFACE "), "{}", remedy(false));
    assert_eq!(
        of(gids(vec![link_local(false)])),
        "Fail port.gid mlx5_1 has addresses (GIDs) of RoCE v1 only"
    );
    let unused = gids(vec![link_local(true)]);
    assert_eq!(
        of(unused),
        "Pass port.gid mlx5_1 has a link-local address (GID) only, and no queue pairs"
    );
    let used = changed(|facts| {
        let port = port(facts, 1);
        (port.gids, port.in_use) = (Reading::Known(vec![link_local(true)]), true);
    });
    assert_eq!(
        of(used),
        "Warn port.gid mlx5_1 has a link-local address (GID) only"
    );
    // A spare port has no address, and nobody uses it.
    let line = changed(|facts| {
        let port = port(facts, 1);
        (port.gids, port.state) = (Reading::Known(vec![]), Reading::Known(PortState(1)));
    });
    assert!(
        line.iter()
            .all(|line| line.starts_with("Pass ") || !line.contains(".gid ")),
        "{line:?}"
    );
}

#[test]
fn a_job_whose_gid_index_is_wrong_on_a_port_is_named_with_the_port() {
    let line = changed(|facts| port(facts, 1).gids = Reading::Known(vec![]));
    assert_eq!(
        line,
        [
            "Fail port.gid mlx5_1 has no address (GID)",
            "Fail job.gid PIDs 4711 and 4712: NCCL_IB_GID_INDEX=3 is no address (GID) of mlx5_1"
        ]
    );
    assert_eq!(
        with_settings(&["NCCL_IB_GID_INDEX=2"])[0],
        "Warn job.gid PID 4711 (python3): NCCL_IB_GID_INDEX=2 is an address (GID) of RoCE v1 of mlx5_0 to mlx5_7"
    );
}

#[test]
fn flow_control_that_differs_or_is_not_used_is_named() {
    let lossless = |change: fn(&mut rdmatop_doctor::facts::Lossless)| {
        changed(move |facts| {
            if let Reading::Known(lossless) = &mut port(facts, 2).netdev.as_mut().unwrap().lossless {
                change(lossless);
            }
        })
    };
    let line = lossless(|lossless| lossless.trust = Some("pcp".into()));
    assert_eq!(
        line[0],
        "Warn lossless.pfc mlx5_2 has flow control (PFC) and does not trust DSCP"
    );
    let line = lossless(|lossless| lossless.pfc = Some(vec![]));
    assert!(
        line[0].starts_with("Warn lossless.pfc ports differ in flow control: mlx5_0, "),
        "{line:?}"
    );
    // A front-end beside compute rails, of another speed.
    let line = changed(|facts| {
        port(facts, 2).rate = Reading::Known(200_000_000_000);
        if let Reading::Known(lossless) = &mut port(facts, 2).netdev.as_mut().unwrap().lossless {
            lossless.pfc = Some(vec![]);
        }
    });
    assert!(
        line.iter().any(|line| line.starts_with(
            "Pass lossless.pfc ports of one kind and speed have the same flow control: mlx5_0,"
        )),
        "{line:?}"
    );
    // mlx5 says 40 Gb/s of a port that is down.
    let line = changed(|facts| {
        let down = port(facts, 2);
        (down.state, down.rate) = (Reading::Known(PortState(1)), Reading::Known(40_000_000_000));
        if let Reading::Known(lossless) = &mut down.netdev.as_mut().unwrap().lossless {
            lossless.pfc = Some(vec![]);
        }
    });
    assert!(
        line.iter().all(|line| !line.contains("lossless.pfc")),
        "it is compared with no other: {line:?}"
    );
    let line = changed(|facts| {
        facts.host.exclusive = true;
        let netdev = port(facts, 2).netdev.as_mut().unwrap();
        netdev.lossless = Reading::Unreadable("dcb netlink: refused".into());
    });
    assert_eq!(line, ["Unknown lossless.pfc flow control (PFC) of mlx5_2"]);
    // In a bond each member has flow control of its own, and the line names the member.
    let line = changed(|facts| {
        let netdev = port(facts, 2).netdev.as_mut().unwrap();
        let lossless = std::mem::take(&mut netdev.lossless);
        netdev.members = ["eth4", "eth5"]
            .map(|name| Member {
                name: name.into(),
                up: Some(true),
                outside: false,
                lossless: lossless.clone(),
            })
            .into();
        if let Reading::Known(lossless) = &mut netdev.members[1].lossless {
            lossless.trust = Some("pcp".into());
        }
    });
    assert_eq!(
        line[0],
        "Warn lossless.pfc mlx5_2 (eth5) has flow control (PFC) and does not trust DSCP"
    );
    let line = lossless(|lossless| lossless.ecn_off = Some(vec![3, 4]));
    assert_eq!(
        line,
        ["Warn lossless.ecn mlx5_2 does not answer congestion marks (ECN) on priority 3"]
    );
}
