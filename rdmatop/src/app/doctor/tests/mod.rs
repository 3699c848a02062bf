//! From files to the page, on made-up machines.

mod hostile;
mod lines;
mod many;
mod trees;

use std::sync::LazyLock;

use proptest::prelude::*;

use super::{collect, device};
use rdmatop_base::text;
use rdmatop_doctor::{Facts, Status, examine, page, table};
use rdmatop_sources::fake::Fake;

fn page_of(fake: &Fake, pid: Option<u32>) -> String {
    let facts = collect(&fake.root(), pid);
    page::text(&facts, &examine(&facts), false, false)
}

#[test]
fn a_healthy_gpu_node_passes_on_one_page() {
    let page = page_of(&trees::gpu_node(), None);
    assert!(page.starts_with("doctor: no problem found"), "{page}");
    assert!(page.lines().count() <= 40, "{page}");
    assert!(!page.contains("SoftRoCE") && !page.contains("rxe"), "{page}");
    insta::assert_snapshot!(page);
}

#[test]
fn a_monitor_of_gpus_may_lock_little() {
    let fake = trees::gpu_node();
    trees::job(&fake, 4713, &[]);
    fake.proc(
        "4713/limits",
        "Max locked memory         65536                65536                bytes\n",
    );
    let fails = || page_of(&fake, None).contains("PID 4713 (python3) may lock 64 KiB");
    assert!(fails());
    fake.remove("proc/4713/fd/5");
    fake.link("proc/4713/fd/6", "/dev/nvidia0");
    assert!(!fails());
    fake.link("proc/4713/fd/7", "/dev/infiniband/uverbs1");
    assert!(fails(), "a rank has both open");
}

#[test]
fn a_job_without_nccl_s_plug_in_for_efa_is_asked_about_by_its_mappings() {
    let fake = trees::efa_node();
    let maps = "7f00-7f01 r-xp 00000000 08:01 2 /opt/libnccl.so.2\n";
    fake.proc("4711/maps", maps);
    let says = |pid| page_of(&fake, pid).contains("NCCL has loaded no plug-in for EFA");
    assert!(says(Some(4711)) && !says(None));
    fake.proc(
        "4711/maps",
        format!("{maps}7f02-7f03 r-xp 0 08:01 3 /opt/libnccl-net-ofi.so\n"),
    );
    assert!(!says(Some(4711)));
    fake.proc("4711/maps", "");
    assert!(page_of(&fake, Some(4711)).contains("what libraries it has loaded"));
}

#[test]
fn a_worker_that_a_rank_has_forked_counts_as_the_rank() {
    let fake = trees::gpu_node();
    let stat = |pid: u32, ppid: u32, stack: u32| {
        let line = format!("{pid} (p) S {ppid}{} 9 0 0 0 0 0 {stack} 0\n", " 0".repeat(17));
        fake.proc(format!("{pid}/stat"), line);
    };
    for (pid, ppid, stack) in [(4711, 1, 7000), (4712, 1, 8000)] {
        stat(pid, ppid, stack);
    }
    for pid in 5000..5064 {
        trees::job(&fake, pid, &[]);
        stat(pid, 4711 + pid % 2, 7000 + pid % 2 * 1000);
    }
    let facts = || {
        let facts = collect(&fake.root(), None);
        (facts.processes.len(), facts.left_out)
    };
    assert_eq!(facts(), (2, 0));
    // One that has started a program, and one whose stack is not readable.
    stat(5000, 4711, 9000);
    stat(5001, 4712, 0);
    assert_eq!(facts(), (4, 0));
    // Whose parent has nothing open.
    stat(5002, 1, 7000);
    assert_eq!(facts(), (5, 0));
}

#[test]
fn an_efa_node_passes_without_a_line_about_roce() {
    let page = page_of(&trees::efa_node(), None);
    assert!(page.starts_with("doctor: no problem found"), "{page}");
    for foreign in ["SoftRoCE", "GID", "MTU", "PFC"] {
        assert!(!page.contains(foreign), "{foreign}: {page}");
    }
    insta::assert_snapshot!(page);
}

#[test]
fn a_laptop_has_no_rdma_and_is_shown_how_to_try_it() {
    let page = page_of(&trees::laptop(), None);
    assert!(page.contains("no RDMA") && page.contains("SoftRoCE"), "{page}");
    assert!(!page.contains("GPUDirect"), "{page}");
    insta::assert_snapshot!(page);
}

#[test]
fn a_softroce_machine_passes_for_root_and_for_a_user() {
    insta::assert_snapshot!("softroce_as_root", page_of(&trees::softroce(true), None));
    let page = page_of(&trees::softroce(false), None);
    assert!(page.starts_with("doctor: no problem found"), "{page}");
    assert!(
        page.contains("skip") && page.contains("sudo rdmatop doctor"),
        "{page}"
    );
    insta::assert_snapshot!("softroce_as_a_user", page);
}

#[test]
fn a_broken_node_says_what_why_and_what_to_do() {
    let fake = trees::gpu_node();
    let sys = |path: &str, content: &str| {
        fake.sys(path, content);
    };
    sys("class/infiniband/mlx5_3/ports/1/state", "1: DOWN\n");
    sys("class/net/eth3/carrier", "0\n");
    sys("class/infiniband/mlx5_5/ports/1/rate", "100 Gb/sec (4X EDR)\n");
    sys("class/net/eth6/mtu", "1500\n");
    fake.remove("sys/module/nvidia_peermem");
    fake.proc(
        "driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15\n",
    );
    trees::job(&fake, 4712, &["NCCL_IB_HCA=mlx5_9", "NCCL_IB_DISABEL=0"]);
    insta::assert_snapshot!(page_of(&fake, None));
}

#[test]
fn a_container_without_devices_learns_how_to_get_them() {
    let fake = trees::gpu_node();
    trees::job(&fake, 4713, &["NCCL_DEBUG=INFO"]);
    fake.proc("4713/root/etc/hostname", "x").proc(
        "4713/limits",
        "Limit Soft Hard\nMax locked memory         65536                65536                bytes\n",
    );
    fake.link(
        "proc/4713/root/sys/class/infiniband/mlx5_0",
        "../../devices/nowhere",
    );
    insta::assert_snapshot!(page_of(&fake, Some(4713)));
}

#[test]
fn an_interface_of_a_container_is_none_of_a_nic_of_its_name() {
    let fake = trees::gpu_node();
    let mtu = || {
        let device = device::read(&fake.root(), "mlx5_0".as_ref()).unwrap();
        let netdev = device.ports[0].netdev.clone().unwrap();
        (netdev.name, netdev.mtu)
    };
    assert_eq!(mtu(), ("eth0".to_owned(), Some(9000)));
    fake.remove("sys/class/net/eth0/device");
    assert_eq!(mtu(), ("eth0".to_owned(), None));
    fake.dir("sys/class/net/eth0/lower_eth1");
    assert_eq!(
        mtu(),
        ("eth0".to_owned(), Some(9000)),
        "a bond or a macvlan of the NIC"
    );
}

#[test]
fn json_has_the_same_lines() {
    let facts = collect(&trees::gpu_node().root(), None);
    let report = examine(&facts);
    let json: serde_json::Value = serde_json::from_str(&page::json(&facts, &report).unwrap()).unwrap();
    assert_eq!(
        (json["status"].as_str(), json["failures"].as_u64()),
        (Some("pass"), Some(0))
    );
    assert_eq!(json["lines"].as_array().map(Vec::len), Some(report.lines.len()));
    let ids: Vec<&str> = table::CHECKS.iter().map(|check| check.id).collect();
    for line in json["lines"].as_array().unwrap() {
        assert!(ids.contains(&line["id"].as_str().unwrap()), "{line}");
    }
}

#[test]
fn colors_frame_the_verdicts_and_nothing_else() {
    let facts = collect(&trees::laptop().root(), None);
    let report = examine(&facts);
    let colored = page::text(&facts, &report, true, true);
    let mut plain = colored.clone();
    for code in [
        "\x1b[32m",
        "\x1b[36m",
        "\x1b[1;35m",
        "\x1b[1;33m",
        "\x1b[1;31m",
        "\x1b[0m",
    ] {
        plain = plain.replace(code, "");
    }
    assert_ne!(plain, colored);
    assert_eq!(plain, page::text(&facts, &report, true, false));
}

#[test]
fn each_check_has_its_row_in_the_document_and_an_id_of_its_own() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/doctor.md");
    let document = std::fs::read_to_string(path).expect("docs/doctor.md");
    let (_, rest) = document
        .split_once("<!-- checks -->\n")
        .expect("the beginning of the table");
    let (table, _) = rest
        .split_once("<!-- end of checks -->")
        .expect("the end of the table");
    let mut rows = table.lines().skip(2);
    for check in table::CHECKS {
        assert!(check.id.split('.').count() == 2, "{}", check.id);
        let row = rows.next().unwrap_or_default();
        let text = row.strip_prefix(&format!("| `{}` | ", check.id));
        let text = text.and_then(|text| text.strip_suffix(" |"));
        let cells: Vec<_> = text.unwrap_or_default().split(" | ").collect();
        assert!(
            matches!(cells[..], [rule, source] if !rule.is_empty() && !source.is_empty()),
            "{} has no row in its place: {row}",
            check.id
        );
    }
    assert_eq!(rows.next(), None, "a row without a check");
    let ids: std::collections::BTreeSet<_> = table::CHECKS.iter().map(|check| check.id).collect();
    assert_eq!(ids.len(), table::CHECKS.len(), "an id is there twice");
}

/// Files of a tree, each with its content.
fn files(fake: &Fake) -> Vec<String> {
    let base = fake.root().sys("..");
    let mut found = Vec::new();
    let mut left = vec![base.clone()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                left.push(entry.path());
            } else if kind.is_file() {
                found.push(
                    entry
                        .path()
                        .strip_prefix(&base)
                        .unwrap()
                        .to_str()
                        .unwrap()
                        .to_owned(),
                );
            }
        }
    }
    found.sort();
    found
}

struct Trees {
    fake: Fake,
    files: Vec<String>,
}

static TREE: LazyLock<std::sync::Mutex<Trees>> = LazyLock::new(|| {
    let fake = trees::gpu_node();
    let files = files(&fake);
    std::sync::Mutex::new(Trees { fake, files })
});

fn content() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        "[-0-9x:., a-z]{0,20}".prop_map(String::into_bytes),
        any::<u64>().prop_map(|number| number.to_string().into_bytes()),
        Just(b"18446744073709551615\n".to_vec()),
        Just(
            "\u{202e}\x1b[31mNCCL_IB_HCA=^=,,:\0NCCL_IB_GID_INDEX=4294967295\0"
                .as_bytes()
                .to_vec()
        ),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn whatever_the_files_say_the_page_is_safe_and_nothing_panics(
        spoilt in prop::collection::vec((any::<prop::sample::Index>(), content()), 1..12),
        pid in prop::option::of(Just(4711_u32)),
    ) {
        let tree = TREE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut before = Vec::new();
        for (at, content) in &spoilt {
            let file = &tree.files[at.index(tree.files.len())];
            let path = tree.fake.root().sys("..").join(file);
            before.push((path.clone(), std::fs::read(&path).unwrap()));
            std::fs::write(&path, content).unwrap();
        }
        let facts: Facts = collect(&tree.fake.root(), pid);
        let report = examine(&facts);
        let page = page::text(&facts, &report, true, false);
        for (path, content) in before.into_iter().rev() {
            std::fs::write(path, content).unwrap();
        }
        prop_assert_eq!(text::sanitize(page.replace('\n', " ").as_bytes()), page.replace('\n', " "));
        // Only a word longer than the line may exceed it.
        for line in page.lines().filter(|line| text::width(line) > 80) {
            prop_assert!(line.trim_start().split(' ').any(|word| text::width(word) > 55), "{}", line);
        }
        for line in &report.lines {
            prop_assert!(!line.text.is_empty());
            prop_assert!(!matches!(line.status, Status::Warn | Status::Fail) || !line.why.is_empty());
        }
        page::json(&facts, &report).unwrap();
    }
}
