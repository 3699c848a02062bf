//! Cards in the network namespaces of pods, in mode exclusive of `rdma system`. SoftRoCE and soft iWARP have
//! no device there: up to Linux 7.2 they make each in the first namespace (`ib_alloc_device`), and the kernel
//! moves none whose driver cannot disconnect its users (`disassociate_ucontext`).

use std::{fs, process::Command};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    child::{Child, output},
    lab::Lab,
    netns::{Exclusive, Namespace},
    rdmatop::{self, Window},
    snapshot::Snapshot,
    testnic::{Port, TestNic, Wish},
    traffic::{self, Traffic, id},
    wait::{self, PATIENCE},
};

use super::{device, port};

const POD: &str = "8d2f5e10_7a55_4c1b_9d0e_1f2a3b4c5d6e";

/// Names of the devices that the kernel shows in the namespace of the tests.
fn here() -> Result<Vec<String>> {
    let text = output(Command::new("rdma").args(["-j", "dev", "show"]))?;
    let all: serde_json::Value = serde_json::from_str(&text)?;
    let names = all.as_array().into_iter().flatten();
    Ok(names
        .filter_map(|device| device["ifname"].as_str().map(str::to_owned))
        .collect())
}

fn moves(device: &str, namespace: &str) -> Result<()> {
    output(Command::new("rdma").args(["dev", "set", device, "netns", namespace])).map(drop)
}

/// A process of a pod, which has a QP of mlx5_1.
fn pod_with_qp(namespace: &Namespace) -> Result<Traffic> {
    fs::create_dir_all(cgroup())?;
    let script = format!(
        "echo $$ >{}/cgroup.procs && exec ip netns exec {} {} --devices mlx5_1",
        cgroup(),
        namespace.name(),
        traffic::path("raw-qps")?.display()
    );
    let child = Child::spawn(Command::new("sh").args(["-c", &script]))?;
    Ok(Traffic { child })
}

fn cgroup() -> String {
    format!("/sys/fs/cgroup/kubepods.slice/kubepods-pod{POD}.slice")
}

/// Adds mlx5_3, of Ethernet, and moves it there with its interface. Here another one has that name.
fn ethernet(nic: &TestNic, namespace: &Namespace) -> Result<Port> {
    let stats = ["rx_prio3_pause", "rx_crc_errors_phy"];
    let wish = Wish::mlx5("mlx5_3").set("uverbs", "1");
    let port = nic.add(&wish.net("rail3", "10.53.0.1", 9000, &stats))?;
    let ip = |words: &str| output(Command::new("ip").args(words.split(' '))).map(drop);
    let there = namespace.name();
    ip(&format!("link set rail3 netns {there}"))?;
    ip(&format!("-n {there} link set rail3 up"))?;
    ip(&format!("-n {there} address add 10.53.0.1/24 dev rail3"))?;
    moves("mlx5_3", there)?;
    ip("link add rail3 type dummy")?;
    Ok(port)
}

/// What `ethtool -S` shows of its interface there.
fn what_ethtool_shows(sample: &Snapshot) -> Result<()> {
    let port = port(sample, "mlx5_3")?;
    let counters = port["counters"].as_array().context("no counters")?;
    let pauses = counters
        .iter()
        .find(|counter| counter["name"] == "rx_prio3_pause");
    let pauses = pauses.with_context(|| port.to_string())?;
    ensure!(
        pauses["source"] == "ethtool" && pauses["total"].as_u64() > Some(0),
        "{pauses}"
    );
    Ok(())
}

/// Doctor reads none of the devices there, and says so.
fn doctor_names_them() -> Result<()> {
    let mut command = Command::new(rdmatop::program()?);
    let said = command.args(["doctor", "--json"]).output()?.stdout;
    let said: serde_json::Value = serde_json::from_slice(&said)?;
    let lines = said["lines"].as_array().context("no lines")?;
    let of_them = lines
        .iter()
        .filter(|line| line["why"].to_string().contains("another network namespace"));
    let of_them: Vec<_> = of_them.map(|line| (&line["status"], &line["text"])).collect();
    ensure!(
        matches!(of_them[..], [(status, text)] if status == "unknown" && text == "mlx5_1 to mlx5_3"),
        "{of_them:?}"
    );
    Ok(())
}

#[test]
fn a_pod_s_card_is_shown_with_its_pod_and_goes_back_when_the_pod_ends() -> Result<()> {
    let test = "cards of pods";
    let Some(_lab) = Lab::enter(test) else {
        return Ok(());
    };
    let Some(nic) = TestNic::load(test)? else {
        return Ok(());
    };
    let _exclusive = Exclusive::on()?;
    let card = |name: &str| nic.add(&Wish::mlx5(name).set("uverbs", "1").set("ib", "1"));
    let (_, card, _) = (card("mlx5_0")?, card("mlx5_1")?, card("mlx5_2")?);
    let namespace = Namespace::new("rdmatop-pod")?;
    moves("mlx5_1", namespace.name())?;
    let ethernet = ethernet(&nic, &namespace)?;
    ensure!(here()? == ["mlx5_0", "mlx5_2"], "{:?}", here()?);
    // Nobody is in the namespace yet.
    let sample = rdmatop::once(&["--delay", "0.2"])?;
    let notes = sample.value()["health"]["notes"].to_string();
    ensure!(
        notes.contains("mlx5_1 and mlx5_3 not shown") && notes.contains("ip netns exec"),
        "{notes}"
    );
    let traffic = pod_with_qp(&namespace)?;
    let ready = traffic.ready()?;
    let pid = id(&ready, "pid")?;
    card.rate("port_xmit_data", 1_000_000)?;
    card.rate("out_of_buffer", 500)?;
    ethernet.rate("rx_prio3_pause", 200)?;
    let window = Window::open(&[])?;
    // This one is moved while it is read.
    moves("mlx5_2", namespace.name())?;
    window.wait_looks(30)?;
    let sample = window.close()?;
    let inode = fs::read_link(format!("/proc/{pid}/ns/net"))?;
    for (name, there) in [
        ("mlx5_0", false),
        ("mlx5_1", true),
        ("mlx5_2", true),
        ("mlx5_3", true),
    ] {
        let row = device(&sample, name)?;
        if there {
            let netns = row["netns"].as_u64().context("no namespace")?;
            ensure!(inode.to_str() == Some(&format!("net:[{netns}]")), "{row}");
            ensure!(row["netns_pid"] == pid, "{row}");
            ensure!(
                row["netns_holder"] == format!("pod {}", POD.replace('_', "-")),
                "{row}"
            );
        } else {
            ensure!(row["netns"].is_null() && row["netns_holder"].is_null(), "{row}");
        }
    }
    let devices = sample.value()["devices"].as_array().context("no devices")?;
    ensure!(devices.len() == 4, "each is one row: {devices:?}");
    let row = device(&sample, "mlx5_1")?;
    ensure!(row["driver"] == "mlx5_core", "what its /sys has: {row}");
    // The files of sysfs and the counters of netlink, of that namespace.
    let port = port(&sample, "mlx5_1")?;
    ensure!(
        port["tx_bytes"]["rate"].as_f64() > Some(3_000_000.0) && port["state"] == "ACTIVE",
        "{port}"
    );
    ensure!(port["out_of_buffer"]["rate"].as_f64() > Some(400.0), "{port}");
    what_ethtool_shows(&sample)?;
    doctor_names_them()?;
    let qpn = id(&serde_json::json!({"qpn": ready["qpns"][0]}), "qpn")?;
    let qp = sample.qp(pid, qpn)?;
    ensure!(
        qp.field("device") == "mlx5_1" && qp.field("comm") == "raw-qps",
        "{qp:?}"
    );
    let notes = sample.value()["health"]["notes"].to_string();
    ensure!(!notes.contains("other-namespace"), "{notes}");
    // Who may not enter says so in one line.
    let unable = Window::open_under(&["setpriv", "--bounding-set=-sys_admin"])?;
    unable.wait_looks(5)?;
    let sample = unable.close()?;
    let notes = sample.value()["health"]["notes"].as_array().context("no notes")?;
    let ours: Vec<_> = notes
        .iter()
        .filter(|note| note["id"] == "other-namespace")
        .collect();
    ensure!(
        ours.len() == 1 && ours[0].to_string().contains("may not enter"),
        "{notes:?}"
    );
    ensure!(device(&sample, "mlx5_1").is_err());
    // The kernel takes the cards back when the namespace ends, although rdmatop reads in it all the time.
    let window = Window::open(&[])?;
    window.wait_looks(10)?;
    traffic.finish()?;
    output(Command::new("ip").args(["link", "delete", "rail3"]))?;
    drop(namespace);
    wait::until("the cards to come back", PATIENCE, || {
        here().is_ok_and(|all| all.len() == 4)
    })?;
    window.wait_looks(30)?;
    let sample = window.close()?;
    ensure!(device(&sample, "mlx5_1")?["netns"].is_null(), "{sample:?}");
    // What was in a namespace that is gone, and is removed, has no row.
    nic.remove("mlx5_1")?;
    let sample = rdmatop::once(&["--delay", "0.2"])?;
    ensure!(device(&sample, "mlx5_1").is_err());
    fs::remove_dir(cgroup())?;
    Ok(())
}
