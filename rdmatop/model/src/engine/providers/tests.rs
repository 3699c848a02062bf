mod exported;

use std::{collections::BTreeSet, fmt::Write as _};

use super::*;
use crate::engine::meter::Width;

/// Every provider, in the order of the page.
const ALL: [Provider; 15] = [
    Provider::Mlx5,
    Provider::Mlx4,
    Provider::Efa,
    Provider::Bnxt,
    Provider::Irdma,
    Provider::Erdma,
    Provider::Hns,
    Provider::Qedr,
    Provider::Ionic,
    Provider::Cxgb4,
    Provider::Hfi1,
    Provider::Mana,
    Provider::Other,
    Provider::Rxe,
    Provider::Siw,
];

/// The counters of a table, one for each name.
fn by_name(counters: &[Entry]) -> Vec<Entry> {
    let both = counters.iter().flat_map(|entry| {
        let way = u8::from(entry.role.is_some());
        let other = entry.also.map(|name| Entry { name, way, ..*entry });
        [Some(*entry), other]
    });
    both.flatten().collect()
}

fn tables() -> impl Iterator<Item = (Provider, Table)> {
    ALL.into_iter().map(|provider| (provider, provider.table()))
}

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/counters.md");

fn ways(provider: Provider, role: Role) -> [Vec<&'static str>; 2] {
    let own = by_name(provider.table().counters).into_iter();
    let names = own
        .chain(counters::INFINIBAND.iter().copied())
        .map(|entry| entry.name);
    let names: Vec<_> = names.collect();
    [0, 1].map(|way| {
        let parts = names
            .iter()
            .filter(|name| provider.part(name) == Some((role, way)));
        let mut parts: Vec<_> = parts.copied().collect();
        parts.dedup();
        parts
    })
}

#[test]
fn a_provider_is_known_by_its_driver_or_else_by_the_device() {
    for (driver, device, provider) in [
        (Some("mlx5_core"), "anything", Provider::Mlx5),
        (Some("mlx4_core"), "mlx4_0", Provider::Mlx4),
        (Some("bnxt_en"), "bnxt_re0", Provider::Bnxt),
        (Some("rdma_rxe"), "foo/bar", Provider::Rxe),
        (Some("qedr"), "rxe_like", Provider::Qedr),
        (Some("hfi1"), "rxe_like", Provider::Hfi1),
        (Some("cxgb4"), "anything", Provider::Cxgb4),
        (Some("ocrdma"), "rxe_like", Provider::Other),
        (None, "rxe0", Provider::Rxe),
        (None, "ionic_0", Provider::Ionic),
    ] {
        assert_eq!(Provider::of(driver, device), provider, "{driver:?} {device}");
    }
}

#[test]
fn a_renamed_device_without_a_driver_is_known_by_its_counters() {
    let names = ["ack_deferred", "sent_pkts"];
    assert_eq!(Provider::Other.counting(names.into_iter()), Provider::Rxe);
    assert_eq!(Provider::Mlx5.counting(names.into_iter()), Provider::Mlx5);
    let shared = Provider::Other.counting(["tx_bytes"].into_iter());
    assert_eq!(shared, Provider::Other, "several have it");
}

#[test]
fn the_counter_that_tells_rxe_is_in_its_table_and_in_no_other() {
    let having = tables().filter(|(_, table)| {
        let mut counters = table.counters.iter();
        counters.any(|entry| entry.name == SENT_BY_RXE)
    });
    let having: Vec<Provider> = having.map(|(provider, _)| provider).collect();
    assert_eq!(having, [Provider::Rxe]);
}

#[test]
fn the_query_of_mlx5_and_the_diagnostics_of_mlx4_count_in_32_bits() {
    let width = |provider: Provider, name| provider.entry(RawSource::Netlink, name).width;
    assert_eq!(width(Provider::Mlx5, "out_of_buffer"), Width::Bits32);
    assert_eq!(width(Provider::Mlx5, "vport_out_of_buffer"), Width::Bits32);
    assert_eq!(width(Provider::Mlx5, "rp_cnp_handled"), Width::Bits64);
    assert_eq!(width(Provider::Mlx5, "rdma_tx_bytes"), Width::Bits64);
    assert_eq!(width(Provider::Mlx4, "sq_num_to"), Width::Bits32);
    assert_eq!(width(Provider::Bnxt, "out_of_buffer"), Width::Bits64);
    assert_eq!(width(Provider::Rxe, "sent_pkts"), Width::Bits64);
    assert_eq!(width(Provider::Mlx5, "of_a_later_kernel"), Width::Bits64);
}

#[test]
fn only_counters_of_the_infiniband_specification_count_words_and_stop() {
    for provider in [Provider::Mlx5, Provider::Efa] {
        let width = |name| provider.entry(RawSource::Pma, name).width;
        assert_eq!(width("port_xmit_discards"), Width::StopsAt(65_535));
        assert_eq!(width("link_downed"), Width::StopsAt(255));
        assert_eq!(width("local_link_integrity_errors"), Width::StopsAt(15));
        assert_eq!(width("port_xmit_data"), Width::StopsAt(0xffff_ffff));
        assert_eq!(width("unicast_rcv_packets"), Width::Bits64);
        let unit = |from, name| provider.entry(from, name).unit_bytes();
        assert_eq!(unit(RawSource::Pma, "port_rcv_data"), Some(4));
        assert_eq!(unit(RawSource::Pma, "port_rcv_packets"), None);
        for other in [RawSource::Netlink, RawSource::Sysfs] {
            assert_eq!(unit(other, "port_rcv_data"), None);
        }
    }
}

#[test]
fn names_of_old_and_of_new_kernels_lead_to_one_meaning() {
    assert_eq!(
        ways(Provider::Bnxt, Role::Retries),
        [
            vec!["to_retransmits", "seq_err_naks_rcvd"],
            vec!["local_ack_timeout_err", "packet_seq_err"]
        ]
    );
    assert_eq!(
        ways(Provider::Irdma, Role::Retransmits),
        [vec!["RetransSegs"], vec!["tcpRetransSegs"]]
    );
    // The file, and where the port has none the optional counter.
    assert_eq!(
        ways(Provider::Mlx5, Role::TxBytes),
        [vec!["port_xmit_data"], vec!["rdma_tx_bytes"]]
    );
    assert_eq!(
        ways(Provider::Other, Role::TxBytes),
        [vec!["port_xmit_data"], vec![]]
    );
    assert_eq!(
        ways(Provider::Siw, Role::TxBytes),
        [vec![], vec![]] as [Vec<&str>; 2]
    );
}

#[test]
fn every_name_that_a_driver_exports_has_a_meaning() {
    for (provider, names) in exported::EXPORTED {
        for name in names.split(';') {
            let from = RawSource::Netlink;
            assert!(
                provider.entry(from, name).meaning().is_some(),
                "{provider:?}: {name} is in no table"
            );
            assert_eq!(name.ends_with(",32"), name.contains(','), "{name}");
        }
    }
    for (driver, names) in exported::OF_DEVICES {
        for name in names.split(';') {
            assert!(
                has_meaning(Some(driver), "any", name),
                "{driver}: {name} is not read"
            );
        }
    }
    assert!(!has_meaning(Some("hfi1"), "hfi1_0", "RxRbufDataCorErr"));
    // What the table has of a driver of Linux, and the driver has not, is a name that nobody will see.
    let (_, bnxt) = exported::EXPORTED
        .iter()
        .find(|(provider, _)| *provider == Provider::Bnxt)
        .unwrap();
    for entry in by_name(counters::BNXT_RE) {
        assert!(bnxt.split(';').any(|name| name == entry.name), "{}", entry.name);
    }
}

#[test]
fn counters_of_hfi1_are_known_by_lane_and_by_width() {
    let width = |name| Provider::Hfi1.entry(RawSource::Netlink, name).width;
    assert_eq!(width("TxUnVLErr,32"), Width::Bits32);
    assert_eq!(width("SwLinkDown,32"), Width::Bits64, "the driver adds it up");
    let help = |name| Provider::Hfi1.entry(RawSource::Netlink, name).meaning();
    assert_eq!(help("XmitDscdVl15,32"), help("XmitDscdVl0,32"));
    assert!(help("XmitDscdVl15,32").is_some() && help("TxPktVL7").is_some());
    assert_eq!((help("TxPktVL7,32"), help("7"), help("")), (None, None, None));
}

#[test]
fn a_number_that_may_fall_is_a_gauge_and_in_no_sum() {
    let gauge = |provider: Provider, name| provider.entry(RawSource::Netlink, name).is_gauge();
    assert!(gauge(Provider::Bnxt, "active_qps") && gauge(Provider::Bnxt, "watermark_mrs"));
    assert!(gauge(Provider::Mana, "num_qps_congested") && gauge(Provider::Mana, "current_rate"));
    assert!(!gauge(Provider::Bnxt, "tx_bytes") && !gauge(Provider::Other, "current_rate"));
    for (provider, table) in tables() {
        let gauges = table.counters.iter().filter(|entry| entry.unit == Unit::Gauge);
        assert!(gauges.clone().all(|entry| entry.role.is_none()), "{provider:?}");
    }
}

#[test]
fn a_counter_is_in_a_table_once_and_is_described() {
    for (provider, table) in tables() {
        let mut seen = BTreeSet::new();
        for entry in by_name(table.counters) {
            let at = format!("{} of {provider:?}", entry.name);
            assert!(seen.insert(entry.name), "{at} is there twice");
            assert!(!entry.help.is_empty() && !entry.help.ends_with('.'), "{at}");
            assert!(entry.way < 2, "{at}: only two ways are looked at");
            // What is added up must be of one kind.
            let unit = entry.role.map(|role| match role {
                Role::TxBytes | Role::RxBytes => matches!(entry.unit, Unit::Bytes | Unit::Words),
                Role::Retries => matches!(entry.unit, Unit::Packets | Unit::Events),
                _ => entry.unit == Unit::Packets,
            });
            assert_ne!(unit, Some(false), "{at}: {:?}", entry.unit);
        }
    }
}

#[test]
fn only_ports_that_count_queue_pairs_alone_can_show_unknown_ones() {
    let alone = |provider: Provider, layer| provider.counts_rdma_alone(Some(layer));
    assert!(alone(Provider::Mlx5, "Ethernet") && alone(Provider::Efa, "Ethernet"));
    assert!(!alone(Provider::Mlx5, "InfiniBand"), "IPoIB");
    assert!(!Provider::Mlx5.counts_rdma_alone(None));
    for (provider, _) in tables() {
        if !matches!(provider, Provider::Mlx5 | Provider::Efa | Provider::Rxe) {
            assert!(!alone(provider, "Ethernet"), "{provider:?}");
        }
    }
}

/// The page: rows of counters by the tables, and what is written by hand. That is all text, and the last two
/// cells of each row.
fn page(written: &str) -> String {
    const HEAD: &str = "| counter | meaning | part of | unit | width | kernels | verified |\n|---|---|---|---|---|---|---|\n";
    let mut sections = written.split("\n## ");
    let mut out = sections.next().unwrap_or_default().to_owned();
    assert_eq!(sections.clone().count(), ALL.len());
    for ((provider, table), section) in tables().zip(sections) {
        let (text, rows) = section.split_once(HEAD).unwrap_or((section, ""));
        let only = match table.carries {
            Carries::Rdma => "RDMA alone: ",
            Carries::RdmaOnEthernet => "RDMA alone on Ethernet: ",
            Carries::More => "RDMA and other traffic: ",
            Carries::Unknown => "no conclusion is drawn from them: ",
        };
        assert!(text.contains("Names: `drivers/infiniband/"), "{provider:?}");
        assert!(text.contains(&format!("Byte counters: {only}")), "{provider:?}");
        let _ = write!(
            out,
            "\n## {text}{}",
            if table.counters.is_empty() { "" } else { HEAD }
        );
        for entry in by_name(table.counters) {
            let name = format!("| `{}` |", entry.name);
            let role = entry.role.map_or_else(String::new, |role| {
                format!("`{}`{}", role.key(), if entry.way > 0 { " (else)" } else { "" })
            });
            let width = match entry.width {
                Width::Bits32 => "32".to_owned(),
                Width::StopsAt(most) => format!("stops at {most}"),
                Width::Bits64 => "64".to_owned(),
            };
            let (help, unit) = (entry.help, entry.unit.name());
            let row = rows.lines().find(|row| row.starts_with(&name));
            let mut by_hand = row.unwrap_or_default().rsplit(" | ");
            let proof = by_hand.next().unwrap_or_default().trim_end_matches(" |");
            let kernels = by_hand.next().unwrap_or_default();
            let known = [
                "the driver, in tests",
                "test driver",
                "kernel source only",
                "firmware source only",
            ];
            assert!(known.contains(&proof), "write by hand how {name} was verified");
            let software = matches!(provider, Provider::Rxe);
            assert!(proof != known[0] || software, "{name} no hardware was seen");
            let _ = writeln!(
                out,
                "{name} {help} | {role} | {unit} | {width} | {kernels} | {proof} |"
            );
        }
    }
    out
}

#[test]
fn the_page_of_counters_has_those_of_the_tables() {
    let written = std::fs::read_to_string(PAGE).unwrap();
    let page = page(&written);
    if std::env::var_os("RDMATOP_WRITE_DOCS").is_some() {
        std::fs::write(PAGE, &page).unwrap();
    }
    let written = std::fs::read_to_string(PAGE).unwrap();
    assert!(written == page, "run the test with RDMATOP_WRITE_DOCS=1");
}
