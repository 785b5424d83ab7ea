//! The list of promises names tests that are there.
#![allow(clippy::disallowed_methods, reason = "reads the project's own sources")]

use std::fs;
use std::path::Path;

use plimsoll_sim::planted::workspace;

#[test]
fn every_test_that_the_promises_name_is_there() {
    let workspace = workspace();
    let text = fs::read_to_string(workspace.join("docs/durability.md")).unwrap();
    let mut sources = String::new();
    collect(&workspace.join("crates"), &mut sources);
    // Every second piece stands between backticks; a test's name is a sentence.
    let names: Vec<&str> = text.split('`').skip(1).step_by(2).filter(|name| name.matches('_').count() > 2).collect();
    assert!(names.len() > 30, "{names:?}");
    let missing: Vec<_> = names.iter().filter(|name| !sources.contains(&format!("fn {name}()"))).collect();
    assert!(missing.is_empty(), "docs/durability.md names tests that are not there: {missing:?}");
}

fn collect(dir: &Path, into: &mut String) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}
