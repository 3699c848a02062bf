//! Peers of queue pairs that were connected before rdmatop came, on a card whose driver says that it is
//! mlx5's and answers as its firmware is taken to: by the layouts of the kernel's own header.

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    lab::Lab,
    rdmatop::Window,
    testnic::{TestNic, Wish},
    traffic::{Traffic, id},
};
use serde_json::json;

#[test]
fn a_peer_from_before_rdmatop_is_named_by_mlx5_s_firmware() -> Result<()> {
    let test = "peers by mlx5's firmware";
    let Some(_lab) = Lab::enter(test) else {
        return Ok(());
    };
    let Some(nic) = TestNic::load(test)? else {
        return Ok(());
    };
    // RDMA_DRIVER_MLX5, and a card of another driver.
    let mut held = Vec::new();
    for (number, driver) in [(0, "1"), (1, "0")] {
        let wish = Wish::mlx5(&format!("mlx5_{number}"))
            .set("uverbs", "1")
            .set("driver_id", driver);
        let port = nic.add(&wish.net(&format!("rail{number}"), &format!("10.5{number}.0.1"), 9000, &[]))?;
        let gid = port.gid("RoCE v2", &format!("0a3{}:0001", 2 + number))?;
        let traffic = Traffic::start("raw-qps", &["--gid", &gid.to_string(), "--devices", &port.device])?;
        let said = traffic.ready()?;
        let qpn = said["qpns"][0].as_u64().context("no QP")?;
        held.push((traffic, id(&said, "pid")?, u32::try_from(qpn)?));
    }
    let window = Window::open(&[])?;
    window.wait_looks(3)?;
    let sample = window.close()?;
    let of = |at: usize| -> Result<_> {
        let qp = sample.qp(held[at].1, held[at].2)?;
        Ok((
            qp.field("remote_gid").clone(),
            qp.field("remote_gid_source").clone(),
        ))
    };
    let own = json!("0000:0000:0000:0000:0000:ffff:0a32:0001");
    ensure!(of(0)? == (own, json!("netlink")), "{:?}", of(0)?);
    ensure!(
        of(1)? == (json!(null), json!(null)),
        "its driver refuses: {:?}",
        of(1)?
    );
    Ok(())
}
