//! `plimsoll branch`.

use crate::run::{Folder, run};

#[test]
fn branches_are_created_listed_renamed_and_deleted() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "a", "1"]).ok();
    let created = run(&["branch", "create", &store, "draft"]).ok().text();
    assert!(created.starts_with("draft\tmain\t1\t20") && created.ends_with("Z\n"), "{created}");
    let second = ["branch", "create", &store, "second", "--from", "draft", "--json"];
    assert_eq!(run(&second).ok().json()["parent"], "draft");
    run(&["branch", "rename", &store, "draft", "proposal"]).ok();
    let names = || -> Vec<String> {
        let list = run(&["branch", "list", &store]).ok().text();
        list.lines().map(|line| line.split('\t').take(2).collect::<Vec<_>>().join("<")).collect()
    };
    assert_eq!(names(), ["proposal<main", "second<proposal"]);
    run(&["branch", "delete", &store, "proposal"]).ok();
    assert_eq!(names(), ["second<"]);
    run(&["branch", "delete", &store, "proposal"])
        .fails(2, &["no branch `proposal`", "there are: main, second"]);
    let log = run(&["log", &store]).ok().text();
    assert_eq!(log.lines().count(), 5, "{log}");
}

#[test]
fn a_branch_that_cannot_be_made_is_refused() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "a", "1"]).ok();
    for name in ["2024-01-31", "yesterday", "12", "a:b", "a..b", "b@{1}", "2 hours ago", ""] {
        run(&["branch", "create", &store, name]).fails(2, &["a branch's name has 1 to 255 bytes"]);
    }
    run(&["branch", "create", &store, "main"]).fails(2, &["branch main always exists"]);
    run(&["branch", "delete", &store, "main"]).fails(2, &["branch main always exists"]);
    run(&["branch", "create", &store, "one"]).ok();
    run(&["branch", "create", &store, "one"]).fails(2, &["branch \"one\" exists"]);
    run(&["branch", "create", &store, "two", "--from", "none"])
        .fails(2, &["no branch `none`", "there are: main, one"]);
    run(&["branch", "create", &store, "two", "--at", "99"]).fails(2, &["99"]);
}
