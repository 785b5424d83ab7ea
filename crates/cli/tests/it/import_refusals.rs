//! What an import refuses, and what it says.

use std::fs;

use crate::repository::Repository;
use crate::run::{Folder, Ran, plimsoll, run};

#[test]
fn what_is_no_repository_is_refused_and_leaves_no_store() {
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
fn a_repository_without_commits_and_an_unknown_branch_are_refused() {
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
fn without_git_it_says_what_to_install() {
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
fn a_file_in_the_place_of_the_store_is_left_alone() {
    let folder = Folder::new();
    let repository = Repository::init(&folder.path().join("repository"));
    repository.commit("c", &[("a", b"1")]);
    let file = folder.file("file", "precious");
    run(&["import", "git", repository.path(), &file]).fails(3, &[&file]);
    assert_eq!(fs::read(&file).unwrap(), b"precious");
}

#[test]
fn a_rewritten_history_is_refused_and_nothing_changes() {
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
fn another_repository_is_refused_and_has_room_in_a_keyspace_of_its_own() {
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
fn a_path_that_is_too_long_for_a_key_is_left_out_and_named() {
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
