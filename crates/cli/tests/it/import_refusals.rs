//! Imports that are refused, and their messages.

use std::fs;

use crate::repository::Repository;
use crate::run::{Folder, Ran, plimsoll, run};

#[test]
fn path_without_repository_leaves_no_store() {
    let folder = Folder::new();
    let store = folder.at("store");
    let file = folder.file("file", "x");
    fs::create_dir(folder.at("empty")).unwrap();
    let cases = [
        (folder.at("nowhere"), "there is no such folder"),
        (file, "it is not a folder"),
        (folder.at("empty"), "not a Git repository"),
    ];
    for (path, part) in cases {
        let ran = run(&["import", "git", &path, &store]).fails(2, &["plimsoll: ", &path, part]);
        assert!(ran.out.is_empty());
        assert!(!fs::exists(&store).unwrap());
    }
}

#[test]
fn empty_repository_and_unknown_branch_are_refused() {
    let folder = Folder::new();
    let repository = Repository::init(&folder.path().join("repository"));
    let store = folder.at("store");
    run(&["import", "git", repository.path(), &store]).fails(2, &["no commits yet", "--branch"]);
    repository.commit("c", &[("a", b"1")]);
    let ran = run(&["import", "git", repository.path(), &store, "--branch", "x"]);
    ran.fails(2, &["no branch, tag or commit `x`"]);
    assert!(!fs::exists(&store).unwrap());
}

#[test]
fn missing_git_is_reported() {
    let folder = Folder::new();
    let command = |path: &str| {
        plimsoll()
            .args(["import", "git", path, &folder.at("store")])
            .env("PATH", "/nowhere")
            .output()
    };
    Ran::of(command(folder.path().to_str().unwrap()).unwrap()).fails(6, &["git is not installed"]);
}

#[test]
fn file_at_the_store_path_is_unchanged() {
    let folder = Folder::new();
    let repository = Repository::init(&folder.path().join("repository"));
    repository.commit("c", &[("a", b"1")]);
    let file = folder.file("file", "precious");
    run(&["import", "git", repository.path(), &file]).fails(3, &[&file]);
    assert_eq!(fs::read(&file).unwrap(), b"precious");
}

#[test]
fn rewritten_history_is_refused() {
    let folder = Folder::new();
    let repository = Repository::init(&folder.path().join("repository"));
    let store = folder.at("store");
    repository.commit("one", &[("a", b"1")]);
    repository.commit("two", &[("a", b"2")]);
    run(&["import", "git", repository.path(), &store]).ok();
    repository.git(&["commit", "--quiet", "--amend", "-m", "two, but better"]);
    run(&["import", "git", repository.path(), &store])
        .fails(2, &["not an ancestor of HEAD", "rewritten", "--keyspace"]);
    assert_eq!(run(&["get", &store, "a"]).ok().out, b"2");
    repository.git(&["reflog", "expire", "--expire=now", "--all"]);
    repository.git(&["gc", "--quiet", "--prune=now"]);
    run(&["import", "git", repository.path(), &store])
        .fails(2, &["not an ancestor of HEAD", "rewritten"]);
}

#[test]
fn another_repository_needs_another_keyspace() {
    let folder = Folder::new();
    let store = folder.at("store");
    let one = Repository::init(&folder.path().join("one"));
    one.commit("one", &[("a", b"1")]);
    let two = Repository::init(&folder.path().join("two"));
    two.commit("two", &[("a", b"2")]);
    run(&["import", "git", one.path(), &store]).ok();
    run(&["import", "git", two.path(), &store]).fails(2, &["another repository", "--keyspace"]);
    run(&["import", "git", two.path(), &store, "--keyspace", "two"]).ok();
    assert_eq!(run(&["get", &store, "a"]).ok().out, b"1");
}

#[test]
fn overlong_path_is_skipped_and_listed() {
    let folder = Folder::new();
    let repository = Repository::init(&folder.path().join("repository"));
    let mut script = crate::repository::Script::new(1);
    let long = "folder/".repeat(700);
    let path = format!("{long}file");
    script.commit(
        "main",
        None,
        None,
        "c",
        &[crate::repository::put(path.as_bytes(), b"1"), crate::repository::put(b"a", b"1")],
    );
    repository.fast_import(&script.into_stream());
    let store = folder.at("store");
    let ran = run(&["import", "git", repository.path(), &store, "--json"]).ok();
    assert!(ran.err.contains("a path of 4.8 KiB"), "{}", ran.err);
    assert_eq!(ran.json()["files_left_out"], 1);
    assert_eq!(run(&["scan", &store, "--keys"]).ok().text(), "a\n");
}
