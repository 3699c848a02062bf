//! Checks that the tests named in docs/faults.md exist.

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

    #[test]
    fn every_fault_of_the_document_has_tests_that_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let text = fs::read_to_string(root.join("docs/faults.md")).unwrap();
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
        let mut rows = 0;
        for line in text.lines().filter(|line| line.starts_with("| ")) {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [fault, _, tests, kernels] = cells.as_slice() else {
                panic!("not four cells: {line}");
            };
            if *fault == "fault" {
                continue;
            }
            rows += 1;
            assert!(!kernels.is_empty(), "{fault}: on no kernel");
            let names: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
            assert!(!names.is_empty(), "{fault}: no test");
            for name in names {
                let (file, test) = name.split_once("::").unwrap_or_else(|| panic!("{fault}: {name}"));
                assert!(exists(&all, file, test), "{fault}: no test {name}");
            }
        }
        assert!(rows >= 32, "{rows} faults");
    }
}
