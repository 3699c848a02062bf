//! Checks names and values that TOML accepts but the view does not know; errors name the line.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::super::columns;
use super::super::tab::Tab;
use super::super::theme;
use rdmatop_model::findings::Limits;

/// The values that are checked here; types make TOML refuse everything else.
#[derive(Deserialize)]
struct Marked {
    theme: Option<Spanned<String>>,
    delay: Option<Spanned<f64>>,
    #[serde(default)]
    sort: BTreeMap<Tab, Order>,
    #[serde(default)]
    columns: BTreeMap<Tab, BTreeMap<Spanned<String>, bool>>,
    #[serde(default)]
    findings: BTreeMap<Spanned<String>, f64>,
}

#[derive(Deserialize)]
struct Order {
    by: Spanned<String>,
}

/// Checks `text`, which has the form of settings with these limits of findings. The error is the first fault,
/// with its line.
pub(super) fn check(text: &str, limits: &Limits) -> Result<(), String> {
    let marked: Marked = toml::from_str(text).map_err(|error| one_line(text, &error))?;
    let fault = |at: Range<usize>, why: String| format!("line {}: {why}", line(text, at.start));
    if let Some(name) = &marked.theme
        && theme::by_name(name.as_ref()).is_none()
    {
        let names = theme::THEMES.iter().map(|theme| theme.name);
        let why = format!("theme = {:?}: give one of {}", name.as_ref(), list(names));
        return Err(fault(name.span(), why));
    }
    if let Some(delay) = &marked.delay
        && !(0.1..=60.0).contains(delay.as_ref())
    {
        let why = format!("delay = {}: give 0.1 to 60 seconds", delay.as_ref());
        return Err(fault(delay.span(), why));
    }
    for (tab, order) in &marked.sort {
        let sortable = columns::spec(*tab).orders().map(|column| column.id);
        if !sortable.clone().any(|id| id == order.by.as_ref()) {
            let (table, by) = (tab.names()[0].to_lowercase(), order.by.as_ref());
            let why = format!("sort.{table} by {by:?}: give one of {}", list(sortable));
            return Err(fault(order.by.span(), why));
        }
    }
    for (tab, switched) in &marked.columns {
        let known = columns::spec(*tab).columns();
        for (name, on) in switched {
            let table = tab.names()[0].to_lowercase();
            let why = match known.iter().find(|column| column.id == name.as_ref()) {
                None => format!(
                    "columns.{table} has no column {:?}: give one of {}",
                    name.as_ref(),
                    list(known.iter().map(|column| column.id))
                ),
                Some(column) if column.screen.priority == 0 && !on => {
                    format!("columns.{table}.{} is always shown", column.id)
                }
                Some(_) => continue,
            };
            return Err(fault(name.span(), why));
        }
    }
    let Some((name, why)) = limits.fault() else {
        return Ok(());
    };
    let key = marked.findings.keys().find(|key| key.as_ref() == name);
    Err(match key {
        Some(key) => fault(key.span(), why),
        None => why,
    })
}

/// An error of TOML in one line; the message may quote the file.
pub(super) fn one_line(text: &str, error: &toml::de::Error) -> String {
    match error.span() {
        Some(span) => format!("line {}: {}", line(text, span.start), error.message()),
        None => error.message().to_owned(),
    }
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

fn line(text: &str, at: usize) -> usize {
    1 + text.get(..at).unwrap_or_default().matches('\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_that_is_not_known_is_reported_with_its_line() {
        for (text, wanted) in [
            (
                "theme = \"pink\"",
                "line 1: theme = \"pink\": give one of default,",
            ),
            ("\n\ndelay = 0.0", "line 3: delay = 0: give 0.1 to 60 seconds"),
            (
                "[sort.qp]\nby = \"age\"",
                "line 1: unknown variant `qp`, expected one of `processes`, `qps`, `devices`, `verbs`, `trace`, `probes`",
            ),
            (
                "[sort.qps]\ndown = true\nby = \"speed\"",
                "line 3: sort.qps by \"speed\": give one of device, qpn,",
            ),
            (
                "[columns.qps]\nmtu = true\nmut = false",
                "line 3: columns.qps has no column \"mut\": give one of device, qpn,",
            ),
            (
                "tree = true\n[columns.sessions]\n",
                "line 2: unknown variant `sessions`",
            ),
            (
                "[columns.processes]\npid = false",
                "line 2: columns.processes.pid is always shown",
            ),
            ("[sort.qps]\nby = 7", "line 2: invalid type: integer `7`"),
        ] {
            let why = check(text, &Limits::default()).unwrap_err();
            assert!(why.starts_with(wanted), "{why}\nfor {wanted}");
        }
        assert_eq!(
            check(
                "[columns.processes]\npid = true\nuser = false",
                &Limits::default()
            ),
            Ok(())
        );
    }

    #[test]
    fn every_table_and_each_of_its_columns_is_known() {
        for tab in Tab::ALL {
            for column in columns::spec(tab).columns() {
                let (table, id) = (tab.names()[0].to_lowercase(), column.id);
                assert_eq!(
                    check(&format!("[columns.{table}]\n{id} = true"), &Limits::default()),
                    Ok(())
                );
                let sorted = check(&format!("[sort.{table}]\nby = \"{id}\""), &Limits::default());
                let is_order = column.sortable || (tab, id) == (Tab::Trace, "time");
                assert_eq!(sorted.is_ok(), is_order, "{table}.{id}");
            }
        }
    }
}
