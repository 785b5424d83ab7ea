//! The table of faults names an existing test for each fault.
#![allow(clippy::disallowed_methods, reason = "reads the project's own sources")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use plimsoll_sim::case::Mode;
use plimsoll_sim::planted::workspace;

/// The table's rows: fault, promise, tests.
fn rows(document: &str) -> Vec<[&str; 3]> {
    let behind = document.split("## Fault → promise → test").nth(1).unwrap();
    let section = behind.split("\n## ").next().unwrap();
    let lines = section.lines().filter(|line| line.starts_with('|')).skip(2);
    lines
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            cells.try_into().unwrap_or_else(|_| panic!("not three cells: {line}"))
        })
        .collect()
}

/// The text between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Test names have at least four words, unlike names of modes.
fn is_test_name(word: &str) -> bool {
    word.matches('_').count() > 2
}

#[test]
fn each_listed_fault_names_an_existing_test() {
    let workspace = workspace();
    let text = fs::read_to_string(workspace.join("docs/reference/faults.md")).unwrap();
    let mut tests = BTreeSet::new();
    collect_tests(&workspace.join("crates"), &mut tests);
    let rows = rows(&text);
    assert!(rows.len() > 20, "{rows:?}");
    for [fault, promise, kept_by] in rows {
        assert!(!fault.is_empty() && !promise.is_empty(), "incomplete row: {fault} | {promise}");
        assert!(quoted(kept_by).any(is_test_name), "no test is named for: {fault}");
        for word in quoted(kept_by).filter(|word| !is_test_name(word)) {
            let known = word.parse::<Mode>().is_ok() || word.starts_with("plimsoll-sim ");
            assert!(known, "{word:?} is not a test, mode or command (for: {fault})");
        }
    }
    let missing: Vec<&str> =
        quoted(&text).filter(|name| is_test_name(name) && !tests.contains(*name)).collect();
    assert!(missing.is_empty(), "docs/reference/faults.md names missing tests: {missing:?}");
}

#[test]
fn each_simulation_mode_is_listed() {
    let text = fs::read_to_string(workspace().join("docs/reference/faults.md")).unwrap();
    let named: BTreeSet<&str> =
        rows(&text).into_iter().flat_map(|[_, _, kept_by]| quoted(kept_by)).collect();
    let unnamed: Vec<&str> =
        Mode::ALL.iter().map(|(_, name)| *name).filter(|name| !named.contains(name)).collect();
    assert!(
        unnamed.is_empty(),
        "docs/reference/faults.md does not mention these modes: {unnamed:?}"
    );
}

/// The names of all functions below `dir` that are marked as tests.
fn collect_tests(dir: &Path, into: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_tests(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let mut is_test = false;
            for line in fs::read_to_string(path).unwrap().lines().map(str::trim) {
                match line.strip_prefix("fn ").and_then(|rest| rest.split_once('(')) {
                    Some((name, _)) if is_test => {
                        into.insert(name.to_owned());
                        is_test = false;
                    }
                    None if line == "#[test]" => is_test = true,
                    None if line.starts_with("#[") || line.starts_with("//") => {}
                    _ => is_test = false,
                }
            }
        }
    }
}
