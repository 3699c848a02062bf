//! What a trace reports about work requests.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{events::Events, rdmatop::Traced};

/// The numbers of the trace's last line about work requests.
#[derive(Clone, Copy, Debug)]
pub struct Sum {
    /// Posts and completions.
    pub happened: u64,
    /// Requests among these that became events.
    pub seen: u64,
    /// Requests that a filter left out.
    pub filtered: u64,
    /// Requests that sampling left out.
    pub sampled_out: u64,
    /// Lost.
    pub lost: u64,
}

/// Returns the numbers of the trace's last line about work requests, which must add up.
pub fn sum(traced: &Traced) -> Result<Sum> {
    let begin = "rdmatop: work requests: ";
    let line = traced.stderr.iter().find_map(|line| line.strip_prefix(begin));
    let line = line.with_context(|| format!("no last line: {}", traced.stderr.join("\n")))?;
    let of = |what: &str| -> Result<u64> {
        let before = line.split(what).next().context("no such word")?;
        ensure!(before != line, "no {what:?} in {line}");
        let word = before.rsplit([' ', ',']).find(|word| !word.is_empty());
        Ok(word.context("no number")?.parse()?)
    };
    let sum = Sum {
        happened: of(" posts and ends happened")?,
        seen: of(" seen,")?,
        filtered: of(" filtered out")?,
        sampled_out: of(" sampled out")?,
        lost: of(" lost")?,
    };
    ensure!(
        sum.happened == sum.seen + sum.filtered + sum.sampled_out + sum.lost,
        "{line} does not add up"
    );
    Ok(sum)
}

/// Returns a list that a program reported.
pub fn list(said: &Value, key: &str) -> Result<Vec<Value>> {
    Ok(said[key]
        .as_array()
        .with_context(|| format!("no {key} in {said}"))?
        .clone())
}

/// Returns some values of each event.
pub fn pick(events: &Events, keys: &[&str]) -> Vec<Value> {
    let each = events.all().iter();
    each.map(|event| keys.iter().map(|key| event[*key].clone()).collect())
        .collect()
}

/// Compares the completions of one QP's sends, all signaled and successful, with its posts: the N-th
/// completion belongs to the N-th post. Returns how many completions have the post's values, which must be
/// those of their own posts.
pub fn told(posts: &Events, ends: &Events) -> Result<usize> {
    const FROM_POST: [&str; 4] = ["wr_id", "opcode", "bytes", "signaled"];
    ensure!(
        ends.len() == posts.len(),
        "{} ends of {} posts",
        ends.len(),
        posts.len()
    );
    let mut known = 0;
    for (post, end) in posts.all().iter().zip(ends.all()) {
        let Some(duration) = end["duration_ns"].as_u64() else {
            ensure!(end["bytes"].is_null(), "{end}, posted: {post}");
            continue;
        };
        known += 1;
        ensure!(
            FROM_POST.iter().all(|key| end[*key] == post[*key]),
            "{end}, posted: {post}"
        );
        let since = end["mono_ns"].as_u64().zip(post["mono_ns"].as_u64());
        ensure!(
            since.is_some_and(|(end, begin)| end - begin == duration),
            "{end}, posted: {post}"
        );
    }
    Ok(known)
}
