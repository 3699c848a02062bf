//! `rdmatop doctor` with these cards.

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    child::Child,
    lab::Lab,
    rdmatop::{self, END},
    testnic::{Call, Port, TestNic, Wish},
};
use serde_json::Value;

/// Runs `rdmatop doctor --json`; returns the exit code and the lines.
fn doctor() -> Result<(Option<i32>, Vec<Value>)> {
    doctor_of(&[])
}

/// Runs [`doctor`] with more environment variables.
fn doctor_of(env: &[(&str, &str)]) -> Result<(Option<i32>, Vec<Value>)> {
    let mut command = rdmatop::command(&["doctor", "--json"])?;
    let mut child = Child::spawn(command.envs(env.iter().copied()))?;
    let code = child.wait(END)?.code();
    let value: Value = serde_json::from_str(&child.out.text()).with_context(|| child.err.text())?;
    Ok((code, value["lines"].as_array().cloned().unwrap_or_default()))
}

#[test]
fn doctor_names_the_slow_the_downed_and_the_silent_port_and_no_softroce() -> Result<()> {
    let Some(_lab) = Lab::enter("doctor of cards") else {
        return Ok(());
    };
    let Some(nic) = TestNic::load("doctor of cards")? else {
        return Ok(());
    };
    let ports: Vec<Port> = (0..4)
        .map(|number| {
            nic.add(
                &Wish::mlx5(&format!("mlx5_{number}"))
                    .set("ib", "1")
                    .set("uverbs", "1"),
            )
        })
        .collect::<Result<_>>()?;
    ports.iter().try_for_each(|port| port.gbit(400))?;
    let bad = |lines: &[Value]| -> Vec<String> {
        let bad = lines
            .iter()
            .filter(|line| line["status"] == "warn" || line["status"] == "fail");
        bad.filter(|line| !line["id"].as_str().is_some_and(|id| id.starts_with("rdmatop.")))
            .map(|line| format!("{} {}", line["id"], line["text"]).replace('"', ""))
            .collect()
    };
    let (_, lines) = doctor()?;
    ensure!(bad(&lines) == [""; 0], "{lines:?}");
    let text = serde_json::to_string(&lines)?.to_lowercase();
    ensure!(!text.contains("softroce") && !text.contains("rxe"), "{text}");

    ports[2].gbit(100)?;
    let (code, lines) = doctor()?;
    ensure!(
        bad(&lines) == ["port.rate mlx5_2 runs at 100 Gb/s, others of its kind at 400 Gb/s"]
            && code == Some(1),
        "{lines:?}"
    );
    ports[2].gbit(400)?;

    ports[1].state(1)?;
    let (code, lines) = doctor()?;
    let found = bad(&lines);
    ensure!(
        found.len() == 1 && found[0].starts_with("port.state mlx5_1 is down") && code == Some(2),
        "{lines:?}"
    );
    ports[1].state(4)?;

    // A driver that sleeps: the report says so and has the answers of the others.
    ports[3].delay(Call::Port, 12_000)?;
    // Six seconds instead of the lab's minute.
    let (code, lines) = doctor_of(&[("RDMATOP_PATIENCE", "2")])?;
    ports[3].delay(Call::Port, 0)?;
    ensure!(
        bad(&lines) == ["device.present mlx5_3 does not answer"] && code == Some(2),
        "{lines:?}"
    );
    ensure!(
        lines.iter().any(|line| line["id"] == "port.state"
            && line["text"]
                .as_str()
                .is_some_and(|text| text.starts_with("3 of 3 up"))),
        "{lines:?}"
    );
    Ok(())
}
