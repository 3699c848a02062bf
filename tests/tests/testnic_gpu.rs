//! What a job waits for, by the links of a test driver and by GPUs of which a library of ours tells: it is
//! loaded by the name of NVIDIA's and called like that, and no hardware.

use std::{env, fs, path::PathBuf, process::Command, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    child::output,
    lab::Lab,
    rdmatop::Window,
    testnic::{TestNic, Wish},
    traffic::Traffic,
};

const SOURCE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../rdmatop/sources/src/gpu/fake_nvml.c"
);

/// Builds the library, which says that `pid` computes, into a directory of its own.
fn library(pid: &str, sms: u32, tensor: u32) -> Result<PathBuf> {
    let dir = env::temp_dir().join(format!("rdmatop-gpu-{sms}-{tensor}"));
    fs::create_dir_all(&dir)?;
    output(
        Command::new("cc")
            .args(["-std=gnu11", "-shared", "-fPIC", "-DGPUS=1", "-DGPM=1"])
            .args([
                format!("-DSM={sms}"),
                format!("-DTENSOR={tensor}"),
                format!("-DPID={pid}"),
            ])
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
        let library = library(&pid.to_string(), sms, tensor)?;
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
