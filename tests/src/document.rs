//! Checks that the tests named in docs/faults.md and in SECURITY.md exist.

#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::{Path, PathBuf},
    };

    /// Rust files below `dir`.
    fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }

    /// Whether a file called `file`.rs, or one in a directory of that name, has the test `name`.
    fn exists(all: &[PathBuf], file: &str, name: &str) -> bool {
        let function = format!("fn {name}(");
        all.iter()
            .filter(|path| {
                path.with_extension("")
                    .components()
                    .any(|part| part.as_os_str() == file)
            })
            .any(|path| fs::read_to_string(path).is_ok_and(|text| text.contains(&function)))
    }

    /// The files that have tests.
    fn all(root: &Path) -> Vec<PathBuf> {
        let mut all = Vec::new();
        let program = fs::read_dir(root.join("rdmatop")).unwrap();
        for part in program.map(|entry| entry.unwrap().path().join("src")) {
            if part.is_dir() {
                sources(&part, &mut all);
            }
        }
        for dir in ["rdmatop/src", "rdmatop/tests", "tests/tests", "tests/src"] {
            sources(&root.join(dir), &mut all);
        }
        all
    }

    /// The rows of the tables of a text, which have four cells each.
    fn rows(text: &str) -> impl Iterator<Item = [&str; 4]> {
        text.lines().filter(|line| line.starts_with("| ")).map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            cells
                .try_into()
                .unwrap_or_else(|_| panic!("not four cells: {line}"))
        })
    }

    /// That a cell names tests, and that these exist.
    fn names_tests(all: &[PathBuf], row: &str, tests: &str) {
        let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "{row}: no test");
        for name in names {
            let (file, test) = name.split_once("::").unwrap_or_else(|| panic!("{row}: {name}"));
            assert!(exists(all, file, test), "{row}: no test {name}");
        }
    }

    #[test]
    fn every_fault_and_every_attack_of_the_documents_has_tests_that_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let all = all(root);
        let text = fs::read_to_string(root.join("docs/faults.md")).unwrap();
        let mut count = 0;
        for [fault, _, tests, kernels] in rows(&text).filter(|row| row[0] != "fault") {
            count += 1;
            assert!(!kernels.is_empty(), "{fault}: on no kernel");
            names_tests(&all, fault, tests);
        }
        assert!(count >= 32, "{count} faults");
        let text = fs::read_to_string(root.join("SECURITY.md")).unwrap();
        let (_, attacks) = text.split_once("\n## Attacks that were tried\n").unwrap();
        let attacks = attacks.split("\n## ").next().unwrap();
        let mut count = 0;
        for [attack, _, _, tests] in rows(attacks).filter(|row| row[0] != "attack") {
            count += 1;
            names_tests(&all, attack, tests);
        }
        assert!(count >= 20, "{count} attacks");
    }
}
