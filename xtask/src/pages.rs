//! Tests of what the pages say where the code or another page says the same.

use std::fs;

use crate::paths;

fn read(name: &str) -> String {
    fs::read_to_string(paths::repo().join(name)).unwrap()
}

/// Returns the capabilities in the words `cap_...+ep` of a text: those of each list.
fn granted(text: &str) -> Vec<Vec<&str>> {
    let words = text.split(|char: char| char.is_whitespace() || char == '"');
    let lists = words.filter_map(|word| word.strip_suffix("+ep"));
    lists.map(|list| list.split(',').collect()).collect()
}

/// Returns the names in the first list of this constant of a test.
fn listed<'a>(text: &'a str, constant: &str) -> Vec<&'a str> {
    let (_, rest) = text.split_once(constant).unwrap();
    let (_, list) = rest.split_once("= [").unwrap();
    let (list, _) = list.split_once(']').unwrap();
    list.split('"').skip(1).step_by(2).collect()
}

#[test]
fn the_pages_give_the_capabilities_that_a_test_takes_away_one_by_one() {
    let test = read("tests/tests/privileges.rs");
    let all: Vec<String> = listed(&test, "const ALL: ")
        .iter()
        .map(|name| format!("cap_{name}"))
        .collect();
    assert_eq!(all.len(), 6, "{all:?}");
    let all = vec![all];
    assert_eq!(granted(&test), all, "what the test gives a group");
    for page in ["docs/install.md", "deploy/slurm/README.md"] {
        let text = read(page);
        assert_eq!(granted(&text), all, "{page}");
        let order = ["chgrp rdma-admins ", "chmod 750 ", "setcap cap_"].map(|word| text.find(word).unwrap());
        assert!(
            order.is_sorted(),
            "{page}: a change of group takes capabilities away"
        );
    }
}

#[test]
fn each_capability_of_the_table_of_rights_has_its_risk_in_the_other_table() {
    let [rights, risks] = ["docs/install.md", "SECURITY.md"].map(read);
    let rows = |text: &str| {
        let rows = text
            .lines()
            .filter(|line| line.starts_with("| CAP_") || line.starts_with("| `CAP_"));
        let first = rows.filter_map(|line| line.split('|').nth(1).map(str::to_owned));
        let mut names: Vec<String> = first
            .flat_map(|cell| {
                let names = cell
                    .split(',')
                    .map(|name| name.trim().trim_matches('`').to_owned());
                names.collect::<Vec<_>>()
            })
            .collect();
        names.sort();
        names
    };
    assert!(rows(&rights).len() > 6, "{:?}", rows(&rights));
    assert_eq!(rows(&rights), rows(&risks));
}

/// Returns the instructions in a cell such as `1.06 M/s` or `2.27 M`.
fn millions(cell: &str) -> f64 {
    let (number, unit) = cell.trim().split_once(' ').unwrap();
    assert!(unit.starts_with('M'), "{cell}");
    number.parse().unwrap()
}

/// Returns a cell of the row of the last table that begins so.
fn cell<'a>(page: &'a str, goal: &str, formula: &str, column: usize) -> &'a str {
    let row = page.lines().find(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        cells.get(1) == Some(&goal) && cells.get(2).is_some_and(|cell| cell.starts_with(formula))
    });
    row.unwrap().split('|').nth(column).unwrap().trim()
}

#[test]
fn what_the_readme_and_the_page_say_of_costs_is_in_the_last_table() {
    const OURS: usize = 3;
    const FLOOR: usize = 4;
    let (page, readme) = (read("docs/performance.md"), read("README.md"));
    let idle = millions(cell(&page, "G1", "live", OURS));
    let queues = millions(cell(&page, "G3", "live", OURS));
    for words in [
        format!("takes {idle:.1} million instructions a second"),
        format!(
            "and {:.1} million\nwith ten thousand idle queue pairs",
            idle + queues
        ),
    ] {
        assert!(readme.contains(&words), "README.md: {words:?}");
    }
    let fit = cell(&page, "G3", "live", 2);
    let (_, fit) = fit.split_once("(fit: ").unwrap();
    let fit = fit.trim_end_matches(" per QP)");
    let device = |view| cell(&page, "G5", view, OURS);
    let post = |how| {
        let how = format!("ibv_post_send traced by {how}");
        let number = |column| cell(&page, "G6", &how, column).parse::<i64>().unwrap();
        number(OURS) - number(FLOOR)
    };
    for words in [
        format!("| a QP at rest with eBPF | {fit} a refresh by the fit"),
        format!(", {:.0} of each of 10,000 (G3)", queues * 100.0),
        format!(
            "| a device | {} a refresh with eBPF, {} without, beside {} that netlink",
            device("live"),
            device("--no-ebpf"),
            cell(&page, "G5", "live", FLOOR)
        ),
        format!(
            "A probe adds {} instructions to a post of 64 bytes by fentry and {} by kprobe",
            post("fentry"),
            post("kprobe")
        ),
    ] {
        assert!(page.contains(&words), "docs/performance.md: {words:?}");
    }
}
