//! `--sort`: the order of processes. Pure, and the same for text, JSON and the first screen.

use std::cmp::Ordering;

use crate::cli::SortColumn;
use crate::model::snapshot::{ProcessRow, Traffic};
use crate::model::value::Counter;

/// Sorts; what is unknown comes last, ties by pid and name so that two runs give the same order.
pub(super) fn processes(rows: &mut [ProcessRow], by: SortColumn) {
    rows.sort_by(|a, b| {
        order(a, b, by)
            .then_with(|| a.pid.cmp(&b.pid))
            .then_with(|| a.comm.cmp(&b.comm))
    });
}

fn order(a: &ProcessRow, b: &ProcessRow, by: SortColumn) -> Ordering {
    match by {
        // None sorts before Some in an Option: kernel consumers, which have no pid, come first.
        SortColumn::Pid => a.pid.cmp(&b.pid),
        SortColumn::Comm => a.comm.cmp(&b.comm),
        SortColumn::Qps => b.qps.cmp(&a.qps),
        SortColumn::Mr => b.mr_bytes.cmp(&a.mr_bytes),
        SortColumn::Tx => largest(a, b, |t| rate(t.tx_bytes)),
        SortColumn::Rx => largest(a, b, |t| rate(t.rx_bytes)),
        SortColumn::Wr => largest(a, b, |t| sum([rate(t.tx_wr), rate(t.rx_wr)])),
        SortColumn::Completions => largest(a, b, |t| rate(t.completions)),
        SortColumn::Errors => {
            let errors = |row: &ProcessRow| {
                sum([row.traffic.completion_errors, row.verb_errors].map(|c| c.map(|c| c.total as f64)))
            };
            descending(errors(a), errors(b))
        }
    }
}

fn largest(a: &ProcessRow, b: &ProcessRow, key: impl Fn(&Traffic) -> Option<f64>) -> Ordering {
    descending(key(&a.traffic), key(&b.traffic))
}

fn rate(counter: Option<Counter>) -> Option<f64> {
    counter.and_then(|counter| counter.rate)
}

fn sum(parts: [Option<f64>; 2]) -> Option<f64> {
    let known: Vec<f64> = parts.into_iter().flatten().collect();
    (!known.is_empty()).then(|| known.iter().sum())
}

fn descending(a: Option<f64>, b: Option<f64>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fixture;

    fn order_of(by: SortColumn) -> Vec<u64> {
        let mut rows = fixture::snapshot().processes;
        let mut third = rows[0].clone();
        (third.uid, third.pid, third.comm, third.qps) = (3, Some(9), "aaa".into(), 7);
        third.traffic.tx_bytes = third.traffic.tx_bytes.map(|c| Counter {
            rate: Some(1e12),
            ..c
        });
        third.verb_errors = None;
        third.traffic.completion_errors = None;
        rows.push(third);
        processes(&mut rows, by);
        rows.iter().map(|row| row.uid).collect()
    }

    #[test]
    fn the_largest_comes_first_and_the_unknown_last() {
        assert_eq!(order_of(SortColumn::Tx), [3, 1, 2]);
        assert_eq!(order_of(SortColumn::Qps), [3, 1, 2]);
        assert_eq!(order_of(SortColumn::Errors), [1, 2, 3]);
        assert_eq!(order_of(SortColumn::Pid), [2, 3, 1]);
        assert_eq!(order_of(SortColumn::Comm), [2, 3, 1]);
        assert_eq!(order_of(SortColumn::Wr), [3, 1, 2]);
    }
}
