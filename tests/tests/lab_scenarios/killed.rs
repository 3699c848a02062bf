//! After SIGKILL of a scenario, `rdmatop lab down` or the next scenario removes everything that it left.

use std::{
    collections::BTreeSet,
    env, fs,
    hash::{BuildHasher as _, RandomState},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    child::Child,
    lab::{self, Lab},
    nvme, rdmatop,
    table::say,
    things::{Things, things},
    wait,
};

use super::{
    FILE, LIMIT, Run,
    disk::{configfs, nvme_things},
    no_programs,
};

const MOMENTS: u64 = 10;

/// Returns everything that a scenario could leave.
fn all_things() -> Result<(Things, BTreeSet<String>)> {
    Ok((things()?, nvme_things()))
}

/// Returns the seed that chooses the moments: random, or `RDMATOP_SEED` to repeat a run.
fn seed() -> Result<u64> {
    let given = env::var("RDMATOP_SEED").ok();
    let seed = given.map(|seed| seed.parse()).transpose()?;
    Ok(seed.unwrap_or_else(|| RandomState::new().hash_one(0_u8)))
}

/// Derives a number below 1000 from a seed (splitmix64).
fn thousandth(seed: u64, nth: u64) -> u32 {
    let mut word = seed.wrapping_add(nth.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    u32::try_from((word ^ (word >> 31)) % 1000).unwrap_or(0)
}

/// Starts a scenario and waits for its traffic; returns how long both took, without its end.
fn time_of(name: &str) -> Result<Duration> {
    let begin = Instant::now();
    let run = Run::up(name)?;
    let whole = begin.elapsed();
    run.end(libc::SIGINT)?;
    Ok(whole)
}

#[test]
fn a_scenario_killed_at_ten_moments_leaves_what_down_or_the_next_removes() -> Result<()> {
    let Some(_lab) = Lab::enter("lab run, SIGKILL") else {
        return Ok(());
    };
    configfs()?;
    let seed = seed()?;
    say(&format!("RDMATOP_SEED={seed}"));
    let mut names = vec!["loss", "nvme"];
    if let Some(reason) = nvme::missing() {
        lab::skip("lab run nvme, SIGKILL", &reason);
        names.pop();
    }
    let before = all_things()?;
    let times = names.iter().map(|name| time_of(name));
    let times: Vec<Duration> = times.collect::<Result<_>>()?;
    let runs = names.iter().zip(times).cycle();
    for (moment, (name, whole)) in (0..MOMENTS).zip(runs) {
        // From its first step until some time after its traffic has begun.
        let at = whole * thousandth(seed, moment) / 800;
        let what =
            || format!("RDMATOP_SEED={seed}: moment {moment}, {name} killed after {at:?} of {whole:?}");
        let run = Run::start(&[name])?;
        thread::sleep(at);
        run.child.signal(libc::SIGKILL)?;
        drop(run);
        let told = if moment / 2 % 2 == 0 {
            let mut down = Child::spawn(&mut rdmatop::command(&["lab", "down"])?)?;
            down.succeed(LIMIT).with_context(what)?;
            down.out.text()
        } else {
            let next = Run::up("pingpong").and_then(|run| run.end(libc::SIGTERM));
            next.with_context(what)?
        };
        wait::until("the end of what was killed", LIMIT, || {
            all_things().is_ok_and(|now| now == before)
        })
        .with_context(|| format!("{}: {:?}\n{told}", what(), all_things()))?;
        ensure!(!fs::exists(FILE)?, "{}: {FILE} is left\n{told}", what());
        no_programs()?;
    }
    Ok(())
}
