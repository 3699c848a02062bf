//! What a job waits for, and whether its NIC is near its GPU, with the links of a test driver and the GPUs of
//! our own library, which has the name and functions of NVIDIA's but no hardware.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use rdmatop_tests::{
    check::{Check, Looking},
    child::output,
    lab::{self, Lab, skip},
    rdmatop::Window,
    testnic::{TestNic, Wish},
    traffic::Traffic,
};

const SOURCE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../rdmatop/sources/src/gpu/fake_nvml.c"
);

/// Builds the library, which reports that `pid` computes, in a directory of its own. `at` has further macros.
fn library(pid: &str, sms: u32, tensor: u32, at: &[String]) -> Result<PathBuf> {
    let dir = env::temp_dir().join(format!("rdmatop-gpu-{sms}-{tensor}-{}", at.len()));
    fs::create_dir_all(&dir)?;
    output(
        Command::new("cc")
            .args(["-std=gnu11", "-shared", "-fPIC", "-DGPUS=1", "-DGPM=1"])
            .args([
                format!("-DSM={sms}"),
                format!("-DTENSOR={tensor}"),
                format!("-DPID={pid}"),
            ])
            .args(at)
            .args([SOURCE, "-o"])
            .arg(dir.join("libnvidia-ml.so.1")),
    )?;
    Ok(dir)
}

#[test]
fn a_job_with_gpus_waits_for_them_or_for_its_links() -> Result<()> {
    let Some(_lab) = Lab::enter("bound by GPUs") else {
        return Ok(());
    };
    if !lab::has_compiler("bound by GPUs") {
        return Ok(());
    }
    let Some(nic) = TestNic::load("bound by GPUs")? else {
        return Ok(());
    };
    nic.add_gpu("0000:0f:00.0")?;
    let wish = Wish::mlx5("mlx5_0").set("uverbs", "1");
    let port = nic.add(&wish.net("rail0", "10.50.0.1", 9000, &[]))?;
    let gid = port.gid("RoCE v2", "0a32:0001")?.to_string();
    let job = Traffic::start("raw-qps", &["--devices", "mlx5_0", "--gid", &gid])?;
    let pid = job.ready()?["pid"].clone();
    // 10 % and 90 % of 100 Gb/s, in words of four bytes.
    for (words, sms, tensor, verdict) in [
        (312_500_000_u64, 85, 40, Some("compute")),
        (312_500_000, 20, 0, None),
        (2_812_500_000, 20, 0, Some("communication")),
    ] {
        port.rate("port_xmit_data", words)?;
        let library = library(&pid.to_string(), sms, tensor, &[])?;
        let path = library.to_str().context("a path")?;
        let window = Window::open_with(&[], &[("LD_LIBRARY_PATH", path)])?;
        thread::sleep(Duration::from_secs(13));
        let sample = window.close()?;
        let rows = sample.value()["processes"].as_array().context("no processes")?;
        let row = rows.iter().find(|row| row["pid"] == pid).context("no job")?;
        let bound = &row["bound"];
        ensure!(bound["verdict"].as_str() == verdict, "{verdict:?}: {bound}");
        // A mean of several samples, each of which is rounded.
        let share = bound["gpu"]["sm_share"].as_f64().context("no share")?;
        let exact = (share - f64::from(sms) / 100.0).abs() < 1e-9;
        ensure!(exact && bound["gpu"]["gpus"] == 1, "{bound}");
    }
    job.finish()?;
    Ok(())
}

/// Returns two PCI functions of this machine with the same driver, each in its own slot on the host bridge:
/// address, bus, slot.
fn two_slots() -> Result<[(String, u32, u32); 2]> {
    let mut all: Vec<(String, u32, u32)> = fs::read_dir("/sys/bus/pci/drivers/virtio-pci")?
        .filter_map(|entry| {
            let address = entry.ok()?.file_name().into_string().ok()?;
            let (bus, slot) = address
                .strip_prefix("0000:")?
                .strip_suffix(".0")?
                .split_once(':')?;
            let number = |text| u32::from_str_radix(text, 16).ok();
            Some((address.clone(), number(bus)?, number(slot)?))
        })
        .collect();
    all.sort();
    let mut all = all.into_iter();
    all.next()
        .zip(all.next())
        .map(<[_; 2]>::from)
        .context("fewer than two functions of virtio-pci")
}

#[test]
fn a_nic_far_from_the_gpu_of_its_only_user_is_named() -> Result<()> {
    let Some(_lab) = Lab::enter("a far NIC") else {
        return Ok(());
    };
    if !lab::has_compiler("a far NIC") {
        return Ok(());
    }
    let Some(nic) = TestNic::load("a far NIC")? else {
        return Ok(());
    };
    nic.add_gpu("0000:0f:00.0")?;
    let [near, far] = two_slots()?;
    let card = |name: &str, slot: &str, net: &str, address: &str| {
        let wish = Wish::mlx5(name).set("uverbs", "1").set("pci", slot);
        nic.add(&wish.net(net, address, 9000, &[]))
    };
    let idle = card("mlx5_0", &near.0, "rail0", "10.50.0.1")?;
    let used = card("mlx5_1", &far.0, "rail1", "10.50.1.1")?;
    let gid = used.gid("RoCE v2", "0a32:0101")?.to_string();
    let job = Traffic::start("raw-qps", &["--devices", "mlx5_1", "--gid", &gid])?;
    let pid = job.ready()?["pid"].clone();
    let at = [format!("-DBUS={}", near.1), format!("-DSLOT={}", near.2)];
    let library = library(&pid.to_string(), 50, 10, &at)?;
    let path = library.to_str().context("a path")?;
    let variables = [("LD_LIBRARY_PATH", path)];
    let look = |words: u64| -> Result<_> {
        idle.rate("port_xmit_data", words)?;
        Looking::begin_with("20", &variables)?.end()
    };
    used.rate("port_xmit_data", 2_812_500_000)?;
    let window = Window::open_with(&[], &variables)?;
    thread::sleep(Duration::from_secs(3));
    let sample = window.close()?;
    let rows = sample.value()["processes"].as_array().context("no processes")?;
    let row = rows.iter().find(|row| row["pid"] == pid).context("no job")?;
    ensure!(row["gpus"] == serde_json::json!([near.0]), "{row}");
    let named = |check: &Check| -> Result<Vec<_>> {
        let found = check.findings()?.iter();
        Ok(found.filter(|found| found["id"] == "far-nic").cloned().collect())
    };
    let lone = look(0)?;
    let [found] = &named(&lone)?[..] else {
        bail!("{}", lone.document["findings"]);
    };
    let verdict = found["verdict"].as_str().context("no verdict")?;
    for part in [
        &*pid.to_string(),
        &near.0,
        "mlx5_1/1, on the same PCIe host bridge",
        "mlx5_0/1 behind the same PCIe switch is idle",
    ] {
        ensure!(verdict.contains(part), "{part}: {verdict}");
    }
    // The nearer NIC is in use by another process.
    ensure!(named(&look(2_812_500_000)?)?.is_empty());
    job.finish()?;
    Ok(())
}

#[test]
fn a_process_that_registers_no_memory_of_its_gpu_is_named() -> Result<()> {
    const NAME: &str = "no GPUDirect";
    let Some(_lab) = Lab::enter(NAME) else {
        return Ok(());
    };
    if !lab::has_compiler(NAME) {
        return Ok(());
    }
    let Some(nic) = TestNic::load(NAME)? else {
        return Ok(());
    };
    nic.add_gpu("0000:0f:00.0")?;
    let wish = Wish::mlx5("mlx5_0").set("uverbs", "1");
    let port = nic.add(&wish.net("rail0", "10.50.0.1", 9000, &[]))?;
    let gid = port.gid("RoCE v2", "0a32:0001")?.to_string();
    port.rate("port_xmit_data", 312_500_000)?;
    // rdmatop and its library begin before the process does.
    let pids = env::temp_dir().join("rdmatop-gpu-pid");
    let at = [format!("-DPID_FILE=\"{}\"", pids.display())];
    let library = library("pid()", 50, 10, &at)?;
    let path = library.to_str().context("a path")?;
    let begin = |dmabuf: bool| -> Result<_> {
        let mut args = vec!["--devices", "mlx5_0", "--gid", &gid, "--regions", "3"];
        args.extend(dmabuf.then_some("--dmabuf"));
        let job = Traffic::start("raw-qps", &args)?;
        let pid = job.ready()?["pid"].clone();
        fs::write(&pids, pid.to_string())?;
        Ok((job, pid))
    };
    for (dmabuf, late, found) in [(false, false, true), (true, false, false), (false, true, false)] {
        if dmabuf && !Path::new("/dev/udmabuf").exists() {
            skip(NAME, "this kernel has no udmabuf (CONFIG_UDMABUF)");
            continue;
        }
        fs::write(&pids, "0")?;
        let before = late.then(|| begin(dmabuf)).transpose()?;
        let window = Window::open_with(&[], &[("LD_LIBRARY_PATH", path)])?;
        let (job, pid) = before.map_or_else(|| begin(dmabuf), Ok)?;
        thread::sleep(Duration::from_secs(18));
        let sample = window.close()?;
        let what = format!("DMA-BUF: {dmabuf}, rdmatop began later: {late}");
        let findings = sample.value()["findings"].as_array().context("no findings")?;
        let named: Vec<_> = findings
            .iter()
            .filter(|one| one["id"] == "no-gpudirect")
            .collect();
        ensure!(named.len() == usize::from(found), "{what}: {findings:?}");
        let rows = sample.value()["processes"].as_array().context("no processes")?;
        let row = rows.iter().find(|row| row["pid"] == pid);
        let row = row.context("no job")?;
        ensure!(
            row["gpus"] == serde_json::json!(["0000:0f:00.0"]),
            "{what}: {row}"
        );
        for one in named {
            let verdict = one["verdict"].as_str().context("no verdict")?;
            for part in [
                &*pid.to_string(),
                "GPU 0000:0f:00.0",
                "10.0 Gb/s",
                "3 memory regions",
            ] {
                ensure!(verdict.contains(part), "{part}: {verdict}");
            }
            ensure!(one["severity"] == "info", "{one}");
        }
        job.finish()?;
    }
    Ok(())
}
