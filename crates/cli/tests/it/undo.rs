//! `revert` and `reset`.

use serde_json::json;

use crate::repository::Repository;
use crate::run::{Folder, run};

/// GLSN 1: a=1; 2: a=22; 3: b=3; 4: a deleted.
fn store(folder: &Folder) -> String {
    let store = folder.at("store");
    run(&["put", &store, "a", "1"]).ok();
    run(&["put", &store, "a", "22"]).ok();
    run(&["put", &store, "b", "3"]).ok();
    run(&["delete", &store, "a"]).ok();
    store
}

#[test]
fn a_revert_undoes_a_commit_and_its_revert_restores() {
    let folder = Folder::new();
    let store = store(&folder);
    let preview = run(&["revert", &store, "4", "--preview"]).ok();
    assert_eq!(preview.text(), "put\tdefault\ta\n");
    assert_eq!(run(&["scan", &store]).ok().text(), "b\t3\n");
    assert_eq!(run(&["revert", &store, "4"]).ok().text(), "5\n");
    assert_eq!(run(&["scan", &store]).ok().text(), "a\t22\nb\t3\n");
    let log = run(&["log", &store, "--limit", "1"]).ok().text();
    assert!(log.contains("revert of GLSN 4"), "{log}");
    assert_eq!(run(&["revert", &store, "newest", "--json"]).ok().json(), json!({ "glsn": 6 }));
    assert_eq!(run(&["scan", &store]).ok().text(), "b\t3\n");
    // Its key has its earlier value already.
    assert_eq!(run(&["revert", &store, "4", "--rule", "default=theirs"]).ok().text(), "7\n");
    assert_eq!(run(&["revert", &store, "4"]).ok().text(), "");
    assert_eq!(run(&["revert", &store, "4", "--json"]).ok().json(), json!({ "glsn": null }));
}

#[test]
fn excepted_keyspaces_keep_what_the_commit_did() {
    let folder = Folder::new();
    let store = store(&folder);
    let put = run(&["put", &store, "c", "4", "--keyspace", "other"]).ok().text();
    let glsn = put.trim();
    let preview = |keyspace| run(&["revert", &store, glsn, "--preview", "--except", keyspace]);
    assert_eq!(preview("default").ok().text(), "delete\tother\tc\n");
    assert_eq!(preview("other").ok().text(), "");
    assert_eq!(run(&["revert", &store, glsn, "--except", "other"]).ok().text(), "");
    assert_eq!(run(&["get", &store, "c", "--keyspace", "other"]).ok().text(), "4");
    run(&["revert", &store, glsn, "--except", "nowhere"]).fails(2, &["nowhere"]);
}

#[test]
fn conflicts_are_printed_and_nothing_is_written() {
    let folder = Folder::new();
    let store = store(&folder);
    let conflict = "conflict\tdefault\ta\t2\t\t1\n";
    for arguments in [&["revert", &store, "2"][..], &["revert", &store, "2", "--preview"]] {
        assert_eq!(run(arguments).fails(1, &[]).text(), conflict);
    }
    run(&["revert", &store, "2"]).fails(1, &["1 conflict", "GLSN 2", "--rule KEYSPACE=RULE"]);
    let object = run(&["revert", &store, "2", "--json"]).fails(1, &[]).json();
    let wanted = json!({
        "action": "conflict", "keyspace": "default", "key": "a",
        "base_bytes": 2, "ours_bytes": null, "theirs_bytes": 1,
    });
    assert_eq!(object, wanted);
    assert_eq!(run(&["log", &store, "--limit", "1", "--json"]).ok().json()["glsn"], 4);
    assert_eq!(run(&["revert", &store, "2", "--rule", "default=ours"]).ok().text(), "");
    assert_eq!(run(&["revert", &store, "2", "--rule", "default=theirs"]).ok().text(), "5\n");
    assert_eq!(run(&["get", &store, "a"]).ok().text(), "1");
}

#[test]
fn counters_and_texts_are_merged() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["add", &store, "n", "5"]).ok();
    run(&["add", &store, "n", "2"]).ok();
    run(&["revert", &store, "1", "--rule", "default=counter"]).ok();
    assert_eq!(run(&["add", &store, "n", "0"]).ok().text(), "2\n");
    run(&["put", &store, "t", "one\ntwo\nthree\n"]).ok();
    let wrong = run(&["put", &store, "t", "ONE\ntwo\nthree\n"]).ok().text();
    run(&["put", &store, "t", "ONE\ntwo\nTHREE\n"]).ok();
    run(&["revert", &store, wrong.trim(), "--rule", "default=text"]).ok();
    assert_eq!(run(&["get", &store, "t"]).ok().text(), "one\ntwo\nTHREE\n");
}

#[test]
fn a_reset_goes_back_to_a_moment() {
    let folder = Folder::new();
    let store = store(&folder);
    let preview = run(&["reset", &store, "--to", "2", "--preview"]).ok();
    assert_eq!(preview.text(), "put\tdefault\ta\ndelete\tdefault\tb\n");
    assert_eq!(run(&["reset", &store, "--to", "2"]).ok().text(), "5\n");
    assert_eq!(run(&["scan", &store]).ok().text(), "a\t22\n");
    assert_eq!(run(&["reset", &store, "--to", "4"]).ok().text(), "6\n");
    assert_eq!(run(&["scan", &store]).ok().text(), "b\t3\n");
    assert_eq!(run(&["reset", &store, "--to", "newest"]).ok().text(), "");
    run(&["put", &store, "k", "v", "--keyspace", "other"]).ok();
    run(&["reset", &store, "--to", "0", "--keyspace", "default"]).ok();
    assert_eq!(run(&["scan", &store]).ok().text(), "");
    assert_eq!(run(&["scan", &store, "--keyspace", "other"]).ok().text(), "k\tv\n");
}

#[test]
fn bad_input_of_reverts_and_resets_is_refused() {
    let folder = Folder::new();
    let store = store(&folder);
    run(&["revert", &store, "99"]).fails(2, &["in the future"]);
    run(&["revert", &store, "0"]).fails(2, &["is not a commit"]);
    run(&["revert", &store, "yesterday"]).fails(2, &["is not a commit", "plimsoll log"]);
    run(&["revert", &store, "1", "--rule", "default"]).fails(2, &["KEYSPACE=RULE"]);
    run(&["revert", &store, "1", "--rule", "default=older"]).fails(2, &["is not a rule"]);
    run(&["revert", &store, "1", "--rule", "none=ours"]).fails(2, &["there is no keyspace `none`"]);
    run(&["reset", &store]).fails(2, &["--to"]);
    run(&["reset", &store, "--to", "99"]).fails(2, &["in the future"]);
    run(&["reset", &store, "--to", "1", "--keyspace", "none"]).fails(2, &["no keyspace `none`"]);
    run(&["reset", &store, "--to", "1", "--keyspace", "plimsoll.x"]).fails(2, &["bookkeeping"]);
    run(&["revert", &folder.at("none"), "1"]).fails(3, &[]);
    run(&["keyspace", "create", &store, "cats"]).ok();
    run(&["revert", &store, "newest"]).fails(2, &["changed no keys", "drop_keyspace"]);
    run(&["put", &store, "tom", "grey", "--keyspace", "cats"]).ok();
    run(&["keyspace", "drop", &store, "cats"]).ok();
    run(&["revert", &store, "newest"]).fails(2, &["\"cats\" does not exist now", "create it"]);
    run(&["reset", &store, "--to", "6"]).fails(2, &["\"cats\" does not exist now"]);
    run(&["keyspace", "create", &store, "cats"]).ok();
    assert_eq!(run(&["revert", &store, "7"]).ok().text(), "9\n");
    assert_eq!(run(&["scan", &store, "--keyspace", "cats"]).ok().text(), "tom\tgrey\n");
}

#[test]
fn an_imported_commit_is_reverted_and_the_import_continues() {
    let folder = Folder::new();
    let repository = Repository::init(&folder.path().join("repository"));
    repository.commit("one", &[("a", b"1")]);
    let second = repository.commit("two", &[("b", b"2")]);
    repository.commit("three", &[("a", b"3")]);
    let store = folder.at("store");
    run(&["import", "git", repository.path(), &store]).ok();
    run(&["revert", &store, &format!("commit:{second}")]).ok();
    assert_eq!(run(&["scan", &store]).ok().text(), "a\t3\n");
    repository.commit("four", &[("c", b"4")]);
    run(&["import", "git", repository.path(), &store]).ok();
    assert_eq!(run(&["scan", &store]).ok().text(), "a\t3\nc\t4\n");
}

/// GLSN 1: a=1; 2: branch draft; 3: a=22 on it; 4: a=333; 5: b=4 on draft.
fn store_with_branch(folder: &Folder) -> String {
    let store = folder.at("store");
    run(&["put", &store, "a", "1"]).ok();
    run(&["branch", "create", &store, "draft"]).ok();
    run(&["put", &store, "a", "22", "--branch", "draft"]).ok();
    run(&["put", &store, "a", "333"]).ok();
    run(&["put", &store, "b", "4", "--branch", "draft"]).ok();
    store
}

#[test]
fn a_branch_is_reverted_and_reset() {
    let folder = Folder::new();
    let store = store_with_branch(&folder);
    let on_draft = ["--branch", "draft"];
    let scan = || run(&["scan", &store, "--branch", "draft"]).ok().text();
    let revert =
        |glsn, more: &[&str]| run(&[&["revert", &store, glsn][..], &on_draft, more].concat());
    assert_eq!(revert("3", &["--preview"]).ok().text(), "put\tdefault\ta\n");
    assert_eq!(revert("3", &[]).ok().text(), "6\n");
    assert_eq!(scan(), "a\t1\nb\t4\n");
    let to = |moment, more: &[&str]| {
        run(&[&["reset", &store, "--to", moment][..], &on_draft, more].concat())
    };
    assert_eq!(to("1", &["--preview"]).ok().text(), "delete\tdefault\tb\n");
    assert_eq!(to("draft@{5}", &[]).ok().text(), "7\n");
    assert_eq!(scan(), "a\t22\nb\t4\n");
    assert_eq!(to("1", &[]).ok().text(), "8\n");
    assert_eq!(scan(), "a\t1\n");
    assert_eq!(run(&["scan", &store]).ok().text(), "a\t333\n");
    assert_eq!(run(&["reset", &store, "--to", "main@{1}"]).ok().text(), "9\n");
    assert_eq!(run(&["scan", &store]).ok().text(), "a\t1\n");
}

#[test]
fn reverts_and_resets_of_the_wrong_branch_are_refused() {
    let folder = Folder::new();
    let store = store_with_branch(&folder);
    run(&["revert", &store, "3"]).fails(2, &["a commit on branch \"draft\"", "\"main\" does not"]);
    run(&["revert", &store, "4", "--branch", "draft"]).fails(2, &["a commit on branch \"main\""]);
    run(&["revert", &store, "3", "--branch", "none"])
        .fails(2, &["no branch `none`", "main, draft"]);
    run(&["reset", &store, "--to", "draft@{3}"]).fails(2, &["add --branch draft"]);
    run(&["reset", &store, "--to", "main@{3}", "--branch", "draft"])
        .fails(2, &["only one of them"]);
    run(&["reset", &store, "--to", "1", "--branch", "none"]).fails(2, &["no branch `none`"]);
}
