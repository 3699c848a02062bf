//! Readers of text: /proc, /sys, the settings, the filter, the lab's state.
use std::collections::BTreeSet;

use super::{assert_bounded, assert_safe};
use rdmatop_base::text;
use rdmatop_base::variables::value_is_shown;
use rdmatop_nccl_log::{json, page, report::Report};
use rdmatop_sources::kernel_log;
use rdmatop_sources::proc::{Cgroup, Stat, Status, mapped, relevant};
use rdmatop_sources::sysfs::{FileValue, counter_value};
use rdmatop_views::tui::filter::Filter;
use rdmatop_views::tui::settings::Settings;

/// `/proc/PID/cgroup`.
pub(super) fn cgroup(raw: &[u8]) {
    let Some(found) = Cgroup::parse(raw, false) else {
        return;
    };
    assert_safe(&found.path);
    assert_bounded(&found.path, raw);
    let workload = &found.workload;
    let step = workload.slurm.as_ref().and_then(|slurm| slurm.step.as_ref());
    let pod = workload.pod.as_ref();
    let container = workload.container.as_ref();
    for text in [step, pod, container, workload.machine.as_ref()]
        .into_iter()
        .flatten()
    {
        assert_safe(text);
    }
    // The displayed path parses like the original one, removed or not.
    for (removed, ended) in [("", false), (" (deleted)", true)] {
        let again = Cgroup::parse(format!("0::{}{removed}\n", found.path).as_bytes(), ended);
        assert_eq!(again.map(|again| again.path).as_ref(), Some(&found.path));
    }
}

/// `/proc/PID/maps`.
pub(super) fn maps(raw: &[u8]) {
    let Ok(mapped) = mapped(raw) else {
        let mut lines = raw.split_inclusive(|byte| *byte == b'\n');
        assert!(
            lines.all(|line| line.starts_with(b"ffffffffff600000-")),
            "there is no mapping"
        );
        return;
    };
    let found = mapped.libraries;
    let lines = raw.split_inclusive(|byte| *byte == b'\n').count() as u64;
    assert!(
        mapped.count.is_none_or(|count| count <= lines),
        "{:?}",
        mapped.count
    );
    assert!(found.len() <= 128, "{}", found.len());
    assert_eq!(
        found.iter().collect::<BTreeSet<_>>().len(),
        found.len(),
        "each once"
    );
    for file in &found {
        assert_safe(file);
        // The end of a long name is cut, between characters.
        let is_cut = file.len() > 64 - 4;
        assert!(
            file.starts_with("lib") && (file.contains(".so") || is_cut),
            "{file}"
        );
        assert!(file.len() <= 64, "{file}");
        assert_bounded(file, raw);
    }
}

/// A record of `/dev/kmsg`.
pub(super) fn kernel_log(raw: &[u8]) {
    let Some(error) = kernel_log::parse(raw) else {
        return;
    };
    for text in [Some(&error.text), error.device.as_ref()].into_iter().flatten() {
        assert_safe(text);
        assert_bounded(text, raw);
        assert!(text.len() <= 240, "{} bytes", text.len());
    }
}

/// `/proc/PID/environ`.
pub(super) fn environ(raw: &[u8]) {
    let found = relevant(raw);
    assert!(found.len() <= 256, "{}", found.len());
    let names: BTreeSet<_> = found.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), found.len(), "each once");
    for (name, value) in &found {
        assert_safe(name);
        assert_safe(value);
        assert!(value.len() <= 256 && !name.contains('='), "{name}={value}");
        // The value belongs to the first entry displayed under this name.
        let first = raw.split(|byte| *byte == 0).find_map(|entry| {
            let at = entry.iter().position(|byte| *byte == b'=')?;
            (at <= 128 && text::sanitize(&entry[..at]) == *name).then(|| &entry[at + 1..])
        });
        let hidden = !value_is_shown(name) && value == "(not shown)";
        let shown = first.map(|value| text::sanitize_bounded(value, 256));
        assert!(hidden || shown.as_ref() == Some(value), "{name}");
    }
}

/// `/proc/PID/stat` and `/proc/PID/status`.
pub(super) fn proc(raw: &[u8]) {
    if let Some(stat) = Stat::parse(raw) {
        assert_safe(&stat.comm);
    }
    let status = Status::parse(raw);
    let has = |key: &[u8]| raw.windows(key.len()).any(|word| word == key);
    assert!(status.tgid.is_none() || has(b"Tgid:"), "{status:?}");
    assert!(status.uid.is_none() || has(b"Uid:"), "{status:?}");
    assert!(status.cap_eff.is_none() || has(b"CapEff:"), "{status:?}");
}

/// A counter's file of sysfs.
pub(super) fn counters(raw: &[u8]) {
    let said = counter_value(raw);
    if raw.trim_ascii().starts_with(b"N/A") {
        assert_eq!(said, FileValue::Absent, "{raw:?}");
        return;
    }
    // Parsed in another way: no sign, no unit, nothing after the number, no number that does not fit.
    let text = std::str::from_utf8(raw.trim_ascii()).unwrap_or_default();
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |hex| (hex, 16));
    let number = |digits: &str| {
        digits.chars().try_fold(0_u128, |sum, digit| {
            let sum = sum
                .checked_mul(radix.into())?
                .checked_add(digit.to_digit(radix)?.into())?;
            Some(sum).filter(|sum| u64::try_from(*sum).is_ok())
        })
    };
    let wanted = Some(digits).filter(|digits| !digits.is_empty()).and_then(number);
    // All ones is the firmware's way to say "not known".
    let wanted = wanted
        .and_then(|number| u64::try_from(number).ok())
        .filter(|number| *number != u64::MAX);
    assert_eq!(
        said,
        wanted.map_or(FileValue::Failed, FileValue::Value),
        "{raw:?}"
    );
}

/// A log of NCCL: what is said of it is safe to print, and its JSON is JSON.
pub(super) fn nccl_log(raw: &[u8]) {
    let mut report = Report::default();
    for line in raw.split(|byte| *byte == b'\n') {
        report.line(line);
    }
    report.end();
    for line in page::text(&report, &page::Links::default(), None).lines() {
        assert_safe(line);
    }
    let json = json::document(&report, None);
    assert!(json.is_ok_and(|json| serde_json::from_str::<serde_json::Value>(&json).is_ok()));
}

/// The settings file.
pub(super) fn settings(raw: &[u8]) {
    let Ok(text) = std::str::from_utf8(raw) else {
        return;
    };
    match Settings::parse(text) {
        Ok(settings) => {
            let written = toml::to_string(&settings).unwrap_or_default();
            let again = Settings::parse(&written);
            assert_eq!(again.as_ref(), Ok(&settings), "{written}");
            assert!(!settings.delay().is_zero());
        }
        Err(why) => assert!(!why.contains('\n'), "not one line: {why:?}"),
    }
}

/// The filter of the live view.
pub(super) fn filter(raw: &[u8]) {
    let Ok(text) = std::str::from_utf8(raw) else {
        return;
    };
    let filter = Filter::parse(text);
    assert_eq!(
        Filter::parse(filter.text()),
        filter,
        "what is shown means the same"
    );
    if let Some(name) = filter.no_field() {
        assert!(
            !name.is_empty() && filter.text().to_lowercase().contains(name),
            "{name}"
        );
    }
    assert!(!filter.text().is_empty() || filter.is_empty());
}

/// Sanitizing and cutting. The first byte is the bound.
pub(super) fn sanitize(raw: &[u8]) {
    let (bound, raw) = raw
        .split_first()
        .map_or((0, raw), |(bound, rest)| (usize::from(*bound), rest));
    let safe = text::sanitize(raw);
    assert!(!safe.chars().any(char::is_control), "{safe:?}");
    assert_safe(&safe);
    assert_bounded(&safe, raw);
    let short = text::sanitize_bounded(raw, bound);
    assert!(short.len() <= bound && safe.starts_with(&short), "{short:?}");
    assert!(text::cut(&safe, bound).len() <= bound);
    let columns = text::cut_columns(&safe, bound);
    assert!(safe.starts_with(columns));
    assert!(text::width(columns) <= bound, "{columns:?} in {bound} columns");
}

/// `/run/rdmatop/hw-counters.json`.
pub(super) fn hw_counters(raw: &[u8]) {
    rdmatop_sources::fuzz::changes(raw);
}
