//! Which functions the kernel has, and in which module: `/proc/kallsyms`.
use std::collections::HashMap;
use std::io::{BufRead, BufReader};

use crate::root::Root;
use rdmatop_base::text;

/// Looks for functions of these exact names, in one pass over some 200,000 lines. For each name the modules
/// that have it, `None` for vmlinux; a name that is nowhere is not in the map. `None`: the file cannot be
/// read, so nothing is known.
///
/// Addresses are not needed: the kernel shows the names to everybody and zeroes only the addresses
/// (`kallsyms_show_value` in kernel/ksyms_common.c).
pub fn find_symbols(root: &Root, names: &[&str]) -> Option<HashMap<String, Vec<Option<String>>>> {
    search(open(root)?, names)
}

/// The functions whose names contain `part`. `None`: the file cannot be read.
pub fn find_parts(root: &Root, part: &str) -> Option<Vec<String>> {
    parts(open(root)?, part)
}

fn open(root: &Root) -> Option<impl BufRead + use<>> {
    const BUFFER: usize = 64 << 10;
    let file = root.open(&root.proc("kallsyms"))?;
    Some(BufReader::with_capacity(BUFFER, file))
}

/// Hands name and module of each function to `look`; `None` for a list that is empty or cannot be read to its
/// end. An error half-way would make present functions look absent.
fn each(mut lines: impl BufRead, mut look: impl FnMut(&[u8], Option<&[u8]>)) -> Option<()> {
    let (mut line, mut any) = (Vec::new(), false);
    loop {
        line.clear();
        if lines.read_until(b'\n', &mut line).ok()? == 0 {
            return any.then_some(());
        }
        any = true;
        if let Some((name, module)) = function(&line) {
            look(name, module);
        }
    }
}

fn parts(lines: impl BufRead, part: &str) -> Option<Vec<String>> {
    let mut out = Vec::new();
    let has = |name: &&[u8]| name.windows(part.len()).any(|at| at == part.as_bytes());
    each(lines, |name, _| {
        out.extend(Some(name).filter(has).map(text::sanitize));
    })?;
    Some(out)
}

fn search(lines: impl BufRead, names: &[&str]) -> Option<HashMap<String, Vec<Option<String>>>> {
    let wanted: HashMap<&[u8], &str> = names.iter().map(|name| (name.as_bytes(), *name)).collect();
    let mut out: HashMap<String, Vec<Option<String>>> = HashMap::new();
    each(lines, |name, module| {
        let Some(name) = wanted.get(name) else { return };
        let home = module.map(text::sanitize);
        let homes = out.entry((*name).to_owned()).or_default();
        if !homes.contains(&home) {
            homes.push(home);
        }
    })?;
    Some(out)
}

/// "ffffffffc0a01230 t rxe_modify_qp\t[rdma_rxe]": name and module of a function. Data is left out, and so
/// are the pseudo modules of JITed programs and trampolines (`bpf`, `__builtin__ftrace`).
fn function(line: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let mut words = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let _address = words.next()?;
    if !matches!(words.next()?, b"t" | b"T" | b"w" | b"W") {
        return None;
    }
    let name = words.next()?;
    let Some(module) = words.next() else {
        return Some((name, None));
    };
    let module = module.strip_prefix(b"[")?.strip_suffix(b"]")?;
    (module != b"bpf" && !module.starts_with(b"__builtin__")).then_some((name, Some(module)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use proptest::prelude::*;

    const SAMPLE: &str = "0000000000000000 T vfs_read\n\
        0000000000000000 t rxe_modify_qp\t[rdma_rxe]\n\
        0000000000000000 t rxe_modify_qp.cold\t[rdma_rxe]\n\
        0000000000000000 t fill_res_entry\t[ib_core]\n\
        0000000000000000 t fill_res_entry\t[mlx5_ib]\n\
        0000000000000000 t fill_res_entry\t[mlx5_ib]\n\
        0000000000000000 d ib_data\t[ib_core]\n\
        0000000000000000 t prog_x\t[bpf]\n\
        garbage\n";

    #[test]
    fn functions_are_found_with_every_home_and_nothing_else() {
        let fake = Fake::new();
        fake.proc("kallsyms", SAMPLE);
        let names = [
            "vfs_read",
            "rxe_modify_qp",
            "fill_res_entry",
            "ib_data",
            "prog_x",
            "absent",
        ];
        let got = find_symbols(&fake.root(), &names).unwrap();
        let module = |name: &str| Some(name.to_owned());
        assert_eq!(got.len(), 3);
        assert_eq!(got["vfs_read"], [None]);
        assert_eq!(got["rxe_modify_qp"], [module("rdma_rxe")]);
        assert_eq!(got["fill_res_entry"], [module("ib_core"), module("mlx5_ib")]);
        assert_eq!(fake.root().opens(), 1);
    }

    #[test]
    fn an_unreadable_or_empty_list_is_not_a_kernel_without_functions() {
        let fake = Fake::new();
        assert_eq!(find_symbols(&fake.root(), &["vfs_read"]), None);
        fake.proc("kallsyms", "");
        assert_eq!(find_symbols(&fake.root(), &["vfs_read"]), None);
    }

    #[test]
    fn functions_are_found_by_a_part_of_their_name() {
        let fake = Fake::new();
        assert_eq!(find_parts(&fake.root(), "modify"), None);
        fake.proc("kallsyms", SAMPLE);
        assert_eq!(
            find_parts(&fake.root(), "_modify_qp"),
            Some(vec!["rxe_modify_qp".to_owned(), "rxe_modify_qp.cold".to_owned()])
        );
        assert_eq!(
            find_parts(&fake.root(), "ib_data"),
            Some(Vec::new()),
            "no function"
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(raw: Vec<u8>, tail in "\\PC{0,40}") {
            let _ = search(raw.as_slice(), &["x"]);
            let _ = search(format!("0 t x\t[{tail}").as_bytes(), &["x"]);
        }

        #[test]
        fn a_function_is_found_whatever_stands_around_it(before in "[ -~\n]{0,80}", after in "[ -~\n]{0,80}") {
            let got = search(format!("{before}\n0 T needle_fn\n{after}").as_bytes(), &["needle_fn"]).unwrap();
            prop_assert!(got["needle_fn"].contains(&None));
        }
    }
}
