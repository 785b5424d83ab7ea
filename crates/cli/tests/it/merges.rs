//! `plimsoll merge`.

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
