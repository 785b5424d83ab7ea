//! An interrupted import keeps its commits and resumes from there.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::comparison::{assert_equal, glsns};
use crate::repository::{Repository, Script};
use crate::run::{Folder, Ran, plimsoll, run};

/// A `git` that lists commits slowly, to leave time for an interrupt.
fn slow_git(folder: &Folder) -> String {
    let real = String::from_utf8(
        std::process::Command::new("sh").args(["-c", "command -v git"]).output().unwrap().stdout,
    );
    let real = real.unwrap().trim().to_owned();
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in\n*--reverse*) '{real}' \"$@\" | while read line; do echo \
         $line; sleep 0.01; done ;;\n*) exec '{real}' \"$@\" ;;\nesac\n"
    );
    fs::create_dir(folder.at("bin")).unwrap();
    folder.program("bin/git", &folder.file("git.sh", script));
    format!("{}:{}", folder.at("bin"), std::env::var("PATH").unwrap())
}

fn start(repository: &Repository, store: &str, path: &str) -> Child {
    let mut command = plimsoll();
    command.args(["import", "git", repository.path(), store, "--sync"]).env("PATH", path);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    command.spawn().unwrap()
}

/// Waits until the store holds some commits.
fn wait_for_commits(store: &str) {
    for _ in 0..1000 {
        if run(&["log", store, "--limit", "5"]).text().lines().count() == 5 {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("no commit was imported in 20 s");
}

fn signal(child: &Child, signal: Signal) {
    // Signal the whole group, as a terminal does on Ctrl-C.
    kill_process_group(Pid::from_child(child), signal).unwrap();
}

fn many_commits(folder: &Folder) -> Repository {
    let repository = Repository::init(&folder.path().join("repository"));
    let mut script = Script::new(11);
    script.awkward_history(600);
    repository.fast_import(&script.into_stream());
    repository
}

#[test]
fn interrupted_import_resumes() {
    let folder = Folder::new();
    let repository = many_commits(&folder);
    let (store, path) = (folder.at("store"), slow_git(&folder));
    let child = start(&repository, &store, &path);
    wait_for_commits(&store);
    signal(&child, Signal::INT);
    let ran = Ran::of(child.wait_with_output().unwrap())
        .fails(130, &["interrupted", "run the same command again"]);
    assert!(ran.text().starts_with("  transactions "), "{}", ran.text());
    let done = glsns(&store).len();
    assert!((1..600).contains(&done), "{done}");
    assert!(ran.err.contains(&format!("{done} commit")), "{done} {}", ran.err);
    let facts = run(&["import", "git", repository.path(), &store, "--json"]).ok().json();
    assert_eq!(facts["transactions"], 600 - done);
    assert_equal(&repository, "main", &store, "default", 50);
}

#[test]
fn killed_import_resumes() {
    let folder = Folder::new();
    let repository = many_commits(&folder);
    let (store, path) = (folder.at("store"), slow_git(&folder));
    for _ in 0..3 {
        let child = start(&repository, &store, &path);
        wait_for_commits(&store);
        std::thread::sleep(Duration::from_millis(150));
        signal(&child, Signal::KILL);
        child.wait_with_output().unwrap();
    }
    let done = glsns(&store).len();
    assert!((1..600).contains(&done), "{done}");
    let facts = run(&["import", "git", repository.path(), &store, "--json"]).ok().json();
    assert_eq!(facts["transactions"], 600 - done);
    assert_equal(&repository, "main", &store, "default", 50);
}
