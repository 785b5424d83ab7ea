//! `plimsoll merge`, `plimsoll cherry-pick` and `plimsoll state-hash`.

use crate::run::{Folder, run};

#[test]
fn a_branch_is_merged_into_another_one() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "tea", "3.00"]).ok();
    run(&["branch", "create", &store, "draft"]).ok();
    run(&["put", &store, "cocoa", "4.00", "--branch", "draft"]).ok();
    run(&["delete", &store, "tea", "--branch", "draft"]).ok();
    run(&["put", &store, "milk", "1.00"]).ok();
    let preview = run(&["merge", &store, "draft", "--preview"]).ok().text();
    assert_eq!(preview, "put\tdefault\tcocoa\ndelete\tdefault\ttea\n");
    let merged = run(&["merge", &store, "draft"]).ok().text();
    assert_eq!(merged, "6\n");
    assert_eq!(run(&["scan", &store]).ok().text(), "cocoa\t4.00\nmilk\t1.00\n");
    assert_eq!(run(&["merge", &store, "draft"]).ok().text(), "");
    run(&["merge", &store, "main", "--into", "draft"]).ok();
    assert_eq!(
        run(&["scan", &store, "--branch", "draft"]).ok().text(),
        "cocoa\t4.00\nmilk\t1.00\n"
    );
    let log = run(&["log", &store, "--limit", "1"]).ok().text();
    assert!(log.contains("merge of branch main"), "{log}");
}

#[test]
fn a_conflict_is_printed_and_decided_by_a_rule() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "tea", "3.00"]).ok();
    run(&["branch", "create", &store, "draft"]).ok();
    run(&["put", &store, "tea", "2.5", "--branch", "draft"]).ok();
    run(&["put", &store, "tea", "3.125"]).ok();
    let failed = run(&["merge", &store, "draft"]);
    let text = failed.fails(1, &["1 conflict", "nothing was written", "--rule"]).text();
    assert_eq!(text, "conflict\tdefault\ttea\t4\t5\t3\n");
    let rule = ["merge", &store, "draft", "--rule", "default=theirs", "--json"];
    assert_eq!(run(&rule).ok().json()["glsn"], 5);
    assert_eq!(run(&["get", &store, "tea"]).ok().text(), "2.5");
    run(&["merge", &store, "none"]).fails(2, &["no branch `none`", "there are: main, draft"]);
    run(&["merge", &store, "draft", "--into", "draft"]).fails(2, &["cannot be merged into itself"]);
}

#[test]
fn json_and_the_newest_value_are_rules() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "a", r#"{"x":1,"y":1}"#, "--keyspace", "docs"]).ok();
    run(&["put", &store, "t", "[1,2]", "--keyspace", "tags"]).ok();
    run(&["put", &store, "k", "0"]).ok();
    run(&["branch", "create", &store, "draft"]).ok();
    run(&["put", &store, "k", "main"]).ok();
    let on_draft = |key, value, keyspace| {
        run(&["put", &store, key, value, "--keyspace", keyspace, "--branch", "draft"]).ok();
    };
    on_draft("a", r#"{"x":2,"y":1}"#, "docs");
    on_draft("t", "[2]", "tags");
    on_draft("k", "draft", "default");
    run(&["put", &store, "a", r#"{"x":1,"y":1.50}"#, "--keyspace", "docs"]).ok();
    run(&["put", &store, "t", "[1,2,3]", "--keyspace", "tags"]).ok();
    let rules = ["--rule", "docs=json", "--rule", "tags=json-set", "--rule", "default=newest"];
    run(&[&["merge", &store, "draft"][..], &rules].concat()).ok();
    let get = |key, keyspace| run(&["get", &store, key, "--keyspace", keyspace]).ok().text();
    assert_eq!(get("a", "docs"), r#"{"x":2,"y":1.50}"#);
    assert_eq!((get("t", "tags"), get("k", "default")), ("[2,3]".into(), "draft".into()));
}

#[test]
fn a_commit_is_picked_into_a_branch() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "tea", "3.00"]).ok();
    run(&["branch", "create", &store, "draft"]).ok();
    run(&["branch", "create", &store, "release"]).ok();
    run(&["put", &store, "cocoa", "4.00", "--branch", "draft"]).ok();
    run(&["put", &store, "tea", "2.50", "--branch", "draft"]).ok();
    let pick = |more: &[&str]| run(&[&["cherry-pick", &store, "5"][..], more].concat());
    assert_eq!(pick(&["--preview"]).ok().text(), "put\tdefault\ttea\n");
    assert_eq!(pick(&["--into", "release"]).ok().text(), "6\n");
    assert_eq!(run(&["scan", &store, "--branch", "release"]).ok().text(), "tea\t2.50\n");
    assert_eq!(pick(&["--into", "release"]).ok().text(), "");
    let log = run(&["log", &store, "--limit", "1"]).ok().text();
    assert!(log.contains("cherry-pick of GLSN 5"), "{log}");
    run(&["put", &store, "tea", "3.125"]).ok();
    let failed = pick(&[]);
    let text = failed.fails(1, &["1 conflict", "differs from the state before GLSN 5"]).text();
    assert_eq!(text, "conflict\tdefault\ttea\t4\t5\t4\n");
    assert_eq!(pick(&["--rule", "default=theirs", "--json"]).ok().json()["glsn"], 8);
    assert_eq!(run(&["scan", &store]).ok().text(), "tea\t2.50\n");
    pick(&["--into", "none"]).fails(2, &["no branch `none`", "there are: main, draft, release"]);
    run(&["cherry-pick", &store, "2"]).fails(2, &["changed no keys"]);
    run(&["cherry-pick", &store, "99"]).fails(2, &["in the future"]);
    run(&["branch", "delete", &store, "draft"]).ok();
    pick(&[]).fails(2, &["a branch that was deleted"]);
}

#[test]
fn equal_states_have_one_hash() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "a", "1"]).ok();
    let hash = |more: &[&str]| run(&[&["state-hash", &store][..], more].concat()).ok().text();
    let first = hash(&[]);
    assert!(first.len() == 65 && first.ends_with('\n'), "{first}");
    run(&["branch", "create", &store, "draft"]).ok();
    run(&["put", &store, "b", "2", "--keyspace", "other", "--branch", "draft"]).ok();
    let draft = hash(&["--branch", "draft"]);
    assert_ne!(draft, first);
    assert_eq!((hash(&["--at", "draft@{1}"]), hash(&[])), (first.clone(), first.clone()));
    run(&["merge", &store, "draft"]).ok();
    assert_eq!((hash(&[]), hash(&["--at", "1"])), (draft.clone(), first));
    let copy = folder.at("copy");
    run(&["backup", &store, &copy]).ok();
    assert_eq!(run(&["state-hash", &copy]).ok().text(), draft);
    let json = run(&["state-hash", &store, "--json"]).ok().json();
    assert_eq!(json["state_hash"], draft.trim());
    run(&["state-hash", &store, "--branch", "none"]).fails(2, &["no branch `none`"]);
    run(&["state-hash", &store, "--at", "99"]).fails(2, &["in the future"]);
}
