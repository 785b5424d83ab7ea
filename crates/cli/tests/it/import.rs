//! An import holds what git shows, at the tip and all along the way.

use std::collections::BTreeMap;

use plimsoll::{Db, Moment, Options};
use serde_json::Value;

use crate::repository::{Files, Repository, Script, put};
use crate::run::{Folder, run};

/// The GLSN of each imported commit.
pub(crate) fn glsns(store: &str) -> BTreeMap<String, u64> {
    let entries = run(&["log", store, "--json"]).ok().json_lines();
    let commit = |entry: &Value| Some((entry["metadata"]["commit"].as_str()?.to_owned(), entry["glsn"].as_u64()?));
    entries.iter().filter_map(commit).collect()
}

/// What a store holds at a moment.
fn stored(db: &Db, keyspace: &str, moment: Moment) -> Files {
    let snapshot = db.snapshot_at(moment).unwrap();
    let keyspace = db.keyspace(keyspace).unwrap();
    let pairs = snapshot.range(&keyspace, ..).unwrap().map(Result::unwrap);
    pairs.map(|(key, value)| (key, value.into_vec())).collect()
}

/// Compares a store with git at the tip and at up to `moments` commits spread over the history.
#[track_caller]
pub(crate) fn assert_equal(repository: &Repository, branch: &str, store: &str, keyspace: &str, moments: usize) {
    let commits = repository.commits(branch);
    let glsns = glsns(store);
    let db = Db::open(store, Options::new().memory_bytes(32 << 20).read_only(true)).unwrap();
    let mut known = BTreeMap::new();
    let tip = commits.last().unwrap();
    assert_files(&stored(&db, keyspace, Moment::Newest), &repository.files(tip, &mut known), tip);
    let step = (commits.len() / moments).max(1);
    for commit in commits.iter().step_by(step) {
        let expected = repository.files(commit, &mut known);
        assert_files(&stored(&db, keyspace, Moment::Glsn(glsns[commit])), &expected, commit);
    }
}

#[track_caller]
fn assert_files(stored: &Files, expected: &Files, commit: &str) {
    let keys = |files: &Files| files.keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect::<Vec<_>>();
    assert_eq!(keys(stored), keys(expected), "keys at {commit}");
    for (key, value) in expected {
        assert!(stored[key] == *value, "value of {:?} at {commit}", String::from_utf8_lossy(key));
    }
}

/// The awkward history, imported.
fn imported(folder: &Folder, commits: usize) -> (Repository, String) {
    let repository = Repository::init(&folder.path().join("repository"));
    let mut script = Script::new(7);
    script.awkward_history(commits);
    repository.fast_import(&script.into_stream());
    let store = folder.at("store");
    run(&["import", "git", repository.path(), &store]).ok();
    (repository, store)
}

#[test]
fn every_moment_of_an_import_equals_what_git_shows() {
    let folder = Folder::new();
    let (repository, store) = imported(&folder, 150);
    assert_equal(&repository, "main", &store, "default", 50);
}

#[test]
fn one_commit_is_one_transaction_in_the_order_of_first_parents() {
    let folder = Folder::new();
    let (repository, store) = imported(&folder, 60);
    let mut by_glsn: Vec<(u64, String)> = glsns(&store).into_iter().map(|(commit, glsn)| (glsn, commit)).collect();
    by_glsn.sort_unstable();
    let imported: Vec<String> = by_glsn.into_iter().map(|(_, commit)| commit).collect();
    assert_eq!(imported, repository.commits("main"));
}

#[test]
fn author_date_message_and_parents_travel_as_metadata() {
    let folder = Folder::new();
    let (repository, store) = imported(&folder, 10);
    let merge = repository.ask(&["rev-parse", "main"]);
    let entries = run(&["log", &store, "--json"]).ok().json_lines();
    let metadata = &entries[0]["metadata"];
    let parents = repository.ask(&["show", "--no-patch", "--format=%P", "main"]);
    let parents: Vec<&str> = parents.split(' ').collect();
    assert_eq!(parents.len(), 2);
    let date = repository.ask(&["show", "--no-patch", "--format=%aI", "main"]);
    let committed = repository.ask(&["show", "--no-patch", "--format=%cI", "main"]);
    let expected = serde_json::json!({
        "commit": merge,
        "author": "Ada Lovelace",
        "email": "ada@example.org",
        "date": date,
        "committer": { "name": "Bob", "email": "bob@example.org", "date": committed },
        "message": "merge",
        "parents": parents,
    });
    assert_eq!(*metadata, expected);
}

#[test]
fn the_table_tells_what_was_done() {
    let folder = Folder::new();
    let (repository, _) = imported(&folder, 30);
    let again = folder.at("again");
    let facts = run(&["import", "git", repository.path(), &again, "--json"]).ok().json();
    assert_eq!(facts["transactions"], 30);
    assert!(facts["versions"].as_u64().unwrap() > 60);
    assert!(facts["bytes_in"].as_u64().unwrap() > 2 << 20);
    assert!(facts["bytes_on_disk"].as_u64().unwrap() > 2 << 20);
    assert!(facts["time"].as_f64().unwrap() > 0.0);
    assert_eq!(facts["memory_budget"], 32 << 20);
    let peak = facts["peak_memory"].as_u64().unwrap();
    assert!((1 << 20..(32 + 16) << 20).contains(&peak), "{peak}");
    assert_eq!(facts["submodules_skipped"], 1 + 3);
    assert_eq!((&facts["files_left_out"], &facts["commits_left_out"]), (&0.into(), &0.into()));
}

#[test]
fn running_it_again_brings_what_is_new_and_only_that() {
    let folder = Folder::new();
    let repository = Repository::init(&folder.path().join("repository"));
    let mut script = Script::new(8);
    script.awkward_history(80);
    repository.fast_import(&script.into_stream());
    let (store, commits) = (folder.at("store"), repository.commits("main"));
    let up_to =
        |branch: &str| run(&["import", "git", repository.path(), &store, "--branch", branch, "--json"]).ok().json();
    assert_eq!(up_to(&commits[29])["transactions"], 30);
    assert_eq!(up_to("main")["transactions"], 50);
    let again = up_to("main");
    assert_eq!((&again["up_to_date"], &again["transactions"]), (&true.into(), &0.into()));
    assert!(run(&["import", "git", repository.path(), &store]).ok().text().starts_with("up to date"));
    assert_equal(&repository, "main", &store, "default", 50);
}

#[test]
fn a_merge_that_overtakes_what_was_imported_still_ends_as_git_shows() {
    // The imported tip becomes the second parent of the next commit.
    let folder = Folder::new();
    let repository = Repository::init(&folder.path().join("repository"));
    let mut script = Script::new(9);
    let root = script.commit("main", None, None, "root", &[put(b"a", b"1"), put(b"b", b"1")]);
    let left = script.commit("main", Some(root), None, "left", &[put(b"a", b"left")]);
    let right = script.commit("right", Some(root), None, "right", &[put(b"b", b"right")]);
    script.commit("right", Some(right), Some(left), "merge", &[put(b"a", b"left")]);
    repository.fast_import(&script.into_stream());
    let store = folder.at("store");
    run(&["import", "git", repository.path(), &store, "--branch", "main"]).ok();
    run(&["import", "git", repository.path(), &store, "--branch", "right"]).ok();
    assert_equal(&repository, "right", &store, "default", 50);
}

#[test]
fn bare_repositories_folders_inside_and_packed_objects_are_read() {
    let folder = Folder::new();
    let repository = Repository::init(&folder.path().join("repository"));
    repository.commit("one", &[("inside/a", b"1")]);
    repository.commit("two", &[("inside/a", b"2")]);
    let bare = folder.at("bare.git");
    repository.git(&["clone", "--quiet", "--bare", "--no-local", ".", &bare]);
    let inside = format!("{}/inside", repository.path());
    for (number, path) in [bare, inside, format!("{}/.git", repository.path())].iter().enumerate() {
        let store = folder.at(&format!("store{number}"));
        run(&["import", "git", path, &store]).ok();
        assert_equal(&repository, "main", &store, "default", 2);
    }
}

#[test]
fn two_repositories_share_a_store_in_keyspaces_of_their_own() {
    let folder = Folder::new();
    let store = folder.at("store");
    for (name, content) in [("one", &b"1"[..]), ("two", b"2")] {
        let repository = Repository::init(&folder.path().join(name));
        repository.commit("first", &[("a", content)]);
        run(&["import", "git", repository.path(), &store, "--keyspace", name]).ok();
        repository.commit("second", &[("b", content)]);
        run(&["import", "git", repository.path(), &store, "--keyspace", name, "--sync"]).ok();
        assert_equal(&repository, "main", &store, name, 2);
    }
    assert_eq!(run(&["get", &store, "a", "--keyspace", "one"]).ok().out, b"1");
}

#[test]
fn a_repository_with_sha256_names_is_read() {
    let folder = Folder::new();
    let path = folder.path().join("repository");
    let made =
        std::process::Command::new("git").args(["init", "-q", "--object-format=sha256"]).arg(&path).status().unwrap();
    assert!(made.success());
    let repository = Repository::init(&path);
    repository.git(&["symbolic-ref", "HEAD", "refs/heads/main"]);
    repository.commit("one", &[("a", b"1"), ("b", b"1")]);
    repository.commit("two", &[("a", b"2")]);
    let store = folder.at("store");
    run(&["import", "git", repository.path(), &store]).ok();
    assert_equal(&repository, "main", &store, "default", 2);
}

#[test]
fn a_shallow_clone_is_imported_from_where_it_begins() {
    let folder = Folder::new();
    let repository = Repository::init(&folder.path().join("repository"));
    for number in 0..5_u8 {
        repository.commit("c", &[("a", &[number]), ("b", b"same")]);
    }
    let shallow = folder.at("shallow");
    let url = format!("file://{}", repository.path());
    repository.git(&["clone", "--quiet", "--depth=3", &url, &shallow]);
    let store = folder.at("store");
    assert_eq!(run(&["import", "git", &shallow, &store, "--json"]).ok().json()["transactions"], 3);
    assert_eq!(run(&["get", &store, "b"]).ok().out, b"same");
    assert_eq!(run(&["get", &store, "a"]).ok().out, [4]);
}
