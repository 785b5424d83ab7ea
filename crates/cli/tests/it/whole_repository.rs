//! `import git --all` and `export git`, also killed on the way.

use std::process::Stdio;
use std::time::Duration;

use crate::repository::{Repository, Script};
use crate::run::{Folder, plimsoll, run};

fn refs_and_objects(path: &str) -> (String, Vec<String>) {
    let repository = Repository::at(path);
    let objects = repository.ask(&["rev-list", "--all", "--objects", "--no-object-names"]);
    let mut objects: Vec<String> = objects.lines().map(str::to_owned).collect();
    objects.sort();
    (repository.ask(&["for-each-ref"]), objects)
}

/// Kills a command some times on its way, then lets it end.
fn kill_often(arguments: &[&str]) {
    let mut random = fastrand::Rng::with_seed(21);
    for _ in 0..15 {
        let mut child = plimsoll();
        child.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = child.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(random.u64(50..600)));
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            return;
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    run(arguments).ok();
}

#[test]
fn killed_import_and_export_continue() {
    let folder = Folder::new();
    let repository = Repository::init(&folder.path().join("repository"));
    let mut script = Script::new(22);
    script.awkward_history(300);
    repository.fast_import(&script.into_stream());
    repository.git(&["tag", "-m", "m", "v1", "main~7"]);
    let blob = repository.write("blob", b"only a tag names this");
    repository.git(&["update-ref", "refs/tags/blob", &blob]);
    let (store, copy) = (folder.at("store"), folder.at("copy.git"));
    kill_often(&["import", "git", "--all", repository.path(), &store, "--memory", "16MiB"]);
    kill_often(&["export", "git", &store, &copy, "--memory", "16MiB"]);
    assert_eq!(refs_and_objects(&copy), refs_and_objects(repository.path()));
    let facts = run(&["export", "git", &store, &copy, "--json"]).ok().json();
    assert_eq!((&facts["commits"], &facts["objects"]), (&0.into(), &0.into()));
    let again = run(&["import", "git", "--all", repository.path(), &store]).ok().text();
    assert!(again.starts_with("up to date"), "{again}");
}

#[test]
fn whole_imports_are_refused_where_they_do_not_fit() {
    let folder = Folder::new();
    let repository = Repository::init(&folder.path().join("repository"));
    let id = repository.commit("one", &[("a", b"1")]);
    repository.git(&["branch", "topic"]);
    let (store, path) = (folder.at("store"), repository.path().to_owned());
    run(&["import", "git", &path, &store]).ok();
    run(&["import", "git", "--all", &path, &store]).fails(2, &["new store"]);
    let store = folder.at("whole");
    run(&["import", "git", "--all", &path, &store]).ok();
    assert_eq!(run(&["get", &store, "a", "--at", &format!("commit:{id}")]).ok().text(), "1");
    assert_eq!(run(&["get", &store, "a", "--branch", "topic"]).ok().text(), "1");
    run(&["export", "git", &store, &store]).fails(2, &["repository"]);
}
