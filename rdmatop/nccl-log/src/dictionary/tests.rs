//! Checks the dictionary against itself.

use super::*;

fn is_matched(entry: &Entry, text: &str) -> bool {
    match entry.pattern {
        Pattern::Text(words) => status(text).is_none() && event(text).is_none() && matches(text, words),
        // Found only where its place is named, and there before others.
        Pattern::In(..) => false,
        Pattern::Status(number, name) => {
            [Some(Status::Number(number)), Some(Status::Name(name))].contains(&status(text))
        }
        Pattern::Event(name) => event(text) == Some(name),
        Pattern::CallResult(result) => returned(text) == Some(result),
    }
}

/// Another entry that matches too is allowed if it has fewer words and stands below: it is for what is left.
fn is_wider(other: &Entry, than: &Entry) -> bool {
    match (other.pattern, than.pattern) {
        (Pattern::Text(wide), Pattern::Text(narrow)) => {
            let length = |words: &[&str]| words.iter().map(|word| word.len()).sum::<usize>();
            length(wide) < length(narrow) && is_below(other, than)
        }
        _ => false,
    }
}

fn is_below(other: &Entry, than: &Entry) -> bool {
    let at = |wanted: &Entry| entries().position(|entry| std::ptr::eq(entry, wanted));
    at(other) > at(than)
}

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/nccl-messages.md");

fn place(entry: &Entry) -> String {
    match entry.pattern {
        Pattern::In(place, _) => format!("n:1:1 [0] {place}12 "),
        _ => String::new(),
    }
}

/// Each entry with a line that it explains, from the page, where it is written by hand.
fn examples() -> Vec<(&'static Entry, String)> {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let row = |row: &str| {
        let (line, rest) = row.strip_prefix("| `")?.split_once("` | ")?;
        let id = rest.split(" | ").nth(2)?.trim_matches('`').to_owned();
        Some((line.replace("\\|", "|"), id))
    };
    let rows: Vec<(String, String)> = page.lines().filter_map(row).collect();
    let example = |entry: &'static Entry| {
        let is_its = |(line, id): &&(String, String)| {
            id == entry.id && look_up_in(&place(entry), line).is_some_and(|found| std::ptr::eq(found, entry))
        };
        let (line, _) = rows.iter().find(is_its).unwrap_or_else(|| {
            panic!(
                "docs/nccl-messages.md has no line that this entry explains; write a row with one: {entry:?}"
            )
        });
        (entry, line.clone())
    };
    entries().map(example).collect()
}

#[test]
fn each_entry_explains_its_example_and_no_other_entry_does() {
    for (entry, example) in examples() {
        let place = place(entry);
        for other in entries().filter(|other| !std::ptr::eq(*other, entry)) {
            assert!(
                !is_matched(other, &example) || is_wider(other, entry) || !place.is_empty(),
                "{} explains the line of {}: {}",
                other.id,
                entry.id,
                example
            );
        }
    }
}

#[test]
fn entries_are_whole_and_of_one_kind_per_name() {
    for entry in entries() {
        let parts = [entry.id, entry.versions, entry.means, entry.next];
        assert!(
            parts.iter().all(|part| !part.is_empty() && part.trim() == *part),
            "{entry:?}"
        );
        assert!(
            !entry.means.ends_with('.') && !entry.next.ends_with('.'),
            "{entry:?}"
        );
        let library = [
            "NCCL 2.",
            "RCCL",
            "aws-ofi-nccl 1.",
            "PyTorch ",
            "GPUDirect-TCPX",
            "FastSocket",
            "AMD's ANP",
            "UCX 1.",
            "NVSHMEM 3.",
            "libfabric 1.",
            "libfabric 2.",
            "Slurm ",
            "MPICH 3.",
            "Cray MPICH ",
            "NIXL 0.",
            "JAX 0.",
        ];
        assert!(
            library.iter().any(|name| entry.versions.starts_with(name)),
            "{entry:?}"
        );
        let of = |entry: &Entry| {
            if entry.kind == Kind::Echo {
                Kind::Fault
            } else {
                entry.kind
            }
        };
        // Who looks for a fault by its name must not find a note.
        let same = entries().filter(|other| other.id == entry.id && of(other) != of(entry));
        let differ: Vec<_> = same
            .filter(|_| !["no-interface", "versions", "gid-changed"].contains(&entry.id))
            .collect();
        assert!(differ.is_empty(), "{entry:?} {differ:?}");
    }
}

/// AMD's GPUs have none of NVIDIA's tools, links and variables.
#[test]
fn what_hip_says_is_not_explained_by_nvidia_s_words() {
    for (entry, example) in examples() {
        let hip = match example.strip_prefix("Cuda failure ") {
            Some(rest) => format!("HIP failure {rest}"),
            None if example.to_lowercase().starts_with("hip") => example,
            None => continue,
        };
        let place = match entry.pattern {
            Pattern::In(place, _) => place,
            _ => "",
        };
        let found = look_up_in(place, &hip).expect("an entry");
        let said = format!("{} {}", found.means, found.next);
        for word in ["nvidia", "NVLink", "NVSwitch", "CUDA_", "compute-sanitizer"] {
            assert!(!said.contains(word), "{hip}: {said}");
        }
        assert!(found.versions.contains("RCCL"), "{hip}: {found:?}");
    }
    for (words, id) in [
        (": 'out of memory'", "gpu-memory-full"),
        (" 'an illegal memory access was encountered'", "gpu-program"),
        (
            " 'no kernel image is available for execution on the device'",
            "gpu-build",
        ),
        (" 'something new'", "cuda"),
    ] {
        let found = look_up(&format!("HIP failure{words}")).map(|entry| entry.id);
        assert_eq!(found, Some(id), "{words}");
    }
}

#[test]
fn a_queue_pair_of_amd_s_nics_that_is_refused_is_explained_by_its_errno() {
    let next = |errno: &str| {
        let text = format!("Call to ionic_dv_create_qp_ex failed with error {errno}");
        look_up(&text).map_or("", |entry| entry.next)
    };
    assert!(next("Operation not supported").contains("firmware"));
    assert!(next("Invalid argument").contains("size of its queues"));
    assert!(next("Cannot allocate memory").contains("ulimit -l"));
}

#[test]
fn statuses_of_all_versions_are_read_and_unknown_ones_are_not_guessed() {
    for text in [
        "NET/IB : Got completion from peer 192.0.2.2<4711> with error 12, opcode 0, len 0, vendor err 129",
        "NET/IB : Got completion from peer 192.0.2.2<4711> with status=12 opcode=1 len=0 vendor err 129 (Send) hca mlx5_3",
        "NET/IB: Got completion from peer 192.0.2.2<4711> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) hca mlx5_3",
        "NET/IB/GIN: Got completion from peer 192.0.2.2<4711> with status=12 opcode=1 len=0 vendor err 129 (Send) hca mlx5_3",
        "NET/IB: ncclIbX: Work completion error on recovery CQ 0x7f: status=IBV_WC_RETRY_EXC_ERR(12)",
    ] {
        assert_eq!(look_up(text).map(|entry| entry.id), Some("no-answer"), "{text}");
    }
    for text in [
        "NET/IB : Got completion from peer 192.0.2.2<4711> with status=99 opcode=1 len=0",
        "NET/IB : Got completion from peer 192.0.2.2<4711> with status=1",
        "NET/IB : mlx5_0:1 Got async event : something new",
        "something new",
        "",
    ] {
        let found = look_up(text).map(|entry| entry.id);
        assert!(found.is_none() || text.ends_with("status=1"), "{text} {found:?}");
    }
}

#[test]
fn the_device_of_a_message_is_found() {
    for (text, wanted) in [
        ("Got completion ... localGid :: hca mlx5_3", Some("mlx5_3")),
        ("NET/IB : mlx5_0:1 async fatal event: port error", Some("mlx5_0")),
        ("NET/IB : Unable to open device mlx5_bond_0", Some("mlx5_bond_0")),
        (
            "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_2:1, curr state INIT",
            Some("mlx5_2"),
        ),
        (
            "ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_4:1/RoCE (synd 0x15)",
            Some("mlx5_4"),
        ),
        ("NET/IB : Got completion from peer", None),
        ("NET/IB : Using [0]mlx5_0:1/IB", None),
    ] {
        assert_eq!(device(text), wanted, "{text}");
    }
}

/// `docs/nccl-messages.md`.
fn page() -> String {
    use std::fmt::Write as _;
    let mut out = String::from(
        "# Messages of NCCL, RCCL, aws-ofi-nccl and libraries beside them\n\n\
         What [`rdmatop nccl-log`](nccl-log.md) knows of what they print when something about the network is wrong. `cargo test` writes this\n\
         page anew with `RDMATOP_WRITE_DOCS=1`, but for its first column.\n\n\
         A *fault* breaks the job; what *follows* is of a fault that another line or rank has; a *choice* decides which network is used; a\n\
         *note* is slow, or worth knowing. A warning that is not here is shown as it is. The message is an example in the spelling of one\n\
         version; the versions are of all spellings. Of RCCL, \"after ROCm 6.3\" means one of those that came later.\n\n\
         | message | versions | kind | id | means | next |\n|---|---|---|---|---|---|\n",
    );
    for (entry, example) in examples() {
        let cell = |text: &str| text.replace('|', "\\|").replace('<', "&lt;");
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | `{}` | {} | {} |",
            example.replace('|', "\\|"),
            entry.versions,
            serde_json::to_string(&entry.kind).unwrap().trim_matches('"'),
            entry.id,
            cell(entry.means),
            cell(entry.next)
        );
    }
    out
}

#[test]
fn the_page_of_messages_is_that_of_the_tables() {
    if std::env::var_os("RDMATOP_WRITE_DOCS").is_some() {
        std::fs::write(PAGE, page()).unwrap();
    }
    let written = std::fs::read_to_string(PAGE).unwrap_or_default();
    assert!(written == page(), "run the test with RDMATOP_WRITE_DOCS=1");
}
