//! `plimsoll import git`: the imported data, and the output.

use crate::comparison::assert_equal;
use crate::repository::{Repository, Script};
use crate::run::{Folder, Ran, plimsoll, run};

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
fn import_stores_commit_metadata() {
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
fn import_prints_a_summary() {
    let folder = Folder::new();
    let (repository, _) = imported(&folder, 30);
    let again = folder.at("again");
    let facts = run(&["import", "git", repository.path(), &again, "--json"]).ok().json();
    assert_eq!(facts["transactions"], 30);
    assert!(facts["versions"].as_u64().unwrap() > 60);
    assert!(facts["bytes_in"].as_u64().unwrap() > 2 << 20);
    assert!(facts["bytes_on_disk"].as_u64().unwrap() > 2 << 20);
    assert!(facts["time"].as_f64().unwrap() > 0.0);
    let lines = run(&["import", "git", repository.path(), &folder.at("piped")]).ok().text();
    let value = |name: &str| {
        lines.lines().find_map(|line| line.trim_start().strip_prefix(name)).unwrap().trim()
    };
    assert!(value("time ").ends_with('s') && value("bytes in ").ends_with("MiB"), "{lines}");
    assert_eq!(facts["memory_budget"], 32 << 20);
    let peak = facts["peak_memory"].as_u64().unwrap();
    assert!((1 << 20..(32 + 16) << 20).contains(&peak), "{peak}");
    assert_eq!(facts["submodules_skipped"], 1 + 3);
    assert_eq!((&facts["files_left_out"], &facts["commits_left_out"]), (&0.into(), &0.into()));
}

#[test]
fn second_import_adds_only_new_commits() {
    let folder = Folder::new();
    let repository = Repository::init(&folder.path().join("repository"));
    let mut script = Script::new(8);
    script.awkward_history(80);
    repository.fast_import(&script.into_stream());
    let (store, commits) = (folder.at("store"), repository.commits("main"));
    let up_to = |branch: &str| {
        run(&["import", "git", repository.path(), &store, "--branch", branch, "--json"]).ok().json()
    };
    assert_eq!(up_to(&commits[29])["transactions"], 30);
    assert_eq!(up_to("main")["transactions"], 50);
    let again = up_to("main");
    assert_eq!((&again["up_to_date"], &again["transactions"]), (&true.into(), &0.into()));
    assert_eq!((&again["versions"], &again["commits_left_out"]), (&0.into(), &0.into()));
    assert!(again["bytes_on_disk"].as_u64().unwrap() > 2 << 20);
    let piped = run(&["import", "git", repository.path(), &store]).ok().text();
    assert!(piped.starts_with(&format!("up to date: commit {} ", &commits[79][..12])), "{piped}");
    assert_equal(&repository, "main", &store, "default", 50);
}

#[test]
fn two_repositories_import_into_two_keyspaces() {
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
fn skipped_objects_are_listed_on_stderr() {
    let folder = Folder::new();
    let repository = Repository::init(&folder.path().join("repository"));
    let commits = (1..=7_u8)
        .map(|number| repository.commit("c", &[("top", &[number]), ("folder/a", &[number; 3])]));
    let commits: Vec<String> = commits.collect();
    let lost: Vec<String> =
        commits[..6].iter().map(|commit| repository.lose(&format!("{commit}:top"))).collect();
    repository.lose(&format!("{}:folder", commits[6]));
    let ran = run(&["import", "git", repository.path(), &folder.at("store"), "--json"]).ok();
    let named = format!("  top at commit {} (object {})\n", &commits[4][..12], lost[4]);
    for part in
        ["6 file versions left out: ", &named, "  and 1 more\n", "1 commit left out: ", &commits[6]]
    {
        assert!(ran.err.contains(part), "{part:?} is not in {}", ran.err);
    }
    assert!(!ran.err.contains(&lost[5]), "{}", ran.err);
    assert_eq!(
        (&ran.json()["files_left_out"], &ran.json()["commits_left_out"]),
        (&6.into(), &1.into())
    );
}

#[test]
fn truncated_history_is_reported() {
    let folder = Folder::new();
    let repository = Repository::init(&folder.path().join("repository"));
    let commits: Vec<String> =
        (1..=3_u8).map(|number| repository.commit("c", &[("top", &[number])])).collect();
    repository.lose(&commits[0]);
    let ran = run(&["import", "git", repository.path(), &folder.at("store")]).ok();
    assert!(
        ran.err.contains(&format!("a parent of commit {} is missing", commits[1])),
        "{}",
        ran.err
    );
}

#[test]
fn shallow_clone_is_reported() {
    let folder = Folder::new();
    let repository = Repository::init(&folder.path().join("repository"));
    let commits: Vec<String> =
        (1..=3_u8).map(|number| repository.commit("c", &[("top", &[number])])).collect();
    let (shallow, store) = (folder.at("shallow"), folder.at("store"));
    repository.git(&[
        "clone",
        "--quiet",
        "--depth=2",
        &format!("file://{}", repository.path()),
        &shallow,
    ]);
    let ran = run(&["import", "git", &shallow, &store]).ok();
    for part in ["a shallow clone", "begins with that commit", &commits[1], "git fetch --unshallow"]
    {
        assert!(ran.err.contains(part), "{part}: {}", ran.err);
    }
    // A complete repository produces no message.
    assert_eq!(run(&["import", "git", repository.path(), &folder.at("whole")]).ok().err, "");
}

#[test]
fn explicit_bare_repository_is_imported() {
    let folder = Folder::new();
    let (repository, _) = imported(&folder, 3);
    let bare = folder.at("bare.git");
    repository.git(&["clone", "--quiet", "--bare", ".", &bare]);
    let import = |path: &str, store: &str| {
        let mut command = plimsoll();
        command.args(["import", "git", path, store]).env("GIT_CONFIG_COUNT", "1");
        command
            .env("GIT_CONFIG_KEY_0", "safe.bareRepository")
            .env("GIT_CONFIG_VALUE_0", "explicit");
        Ran::of(command.output().unwrap())
    };
    let store = folder.at("of-bare");
    import(&bare, &store).ok();
    assert_equal(&repository, "main", &store, "default", 1);
    // A folder inside the named repository is not the named one.
    import(&format!("{bare}/refs"), &folder.at("of-refs")).fails(6, &["safe.bareRepository"]);
}
