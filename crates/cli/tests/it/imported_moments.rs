//! Moments of an imported history are found by committers' times and by commit ids, as git finds
//! them.

use std::fmt::Write;

use jiff::Timestamp;
use serde_json::Value;

use crate::repository::Repository;
use crate::run::{Folder, run};

const START: i64 = 1_100_000_000;
const DAY: i64 = 86_400;

/// One commit per element of `times`; the file `number` contains the commit's position.
fn history(folder: &Folder, name: &str, times: &[i64]) -> Repository {
    let repository = Repository::init(&folder.path().join(name));
    let mut stream = String::new();
    for (number, time) in times.iter().enumerate() {
        let author = time - DAY;
        let (message, content) = (format!("subject {number}\n\nbody\n"), number.to_string());
        writeln!(stream, "commit refs/heads/main").unwrap();
        writeln!(stream, "author Ada Lovelace <ada@example.org> {author} +0100").unwrap();
        writeln!(stream, "committer Bob <bob@example.org> {time} -0700").unwrap();
        writeln!(stream, "data {}\n{message}", message.len()).unwrap();
        writeln!(stream, "M 100644 inline number\ndata {}\n{content}", content.len()).unwrap();
    }
    repository.fast_import(stream.as_bytes());
    repository
}

/// Times that advance by a day and occasionally go back by up to ten days.
fn wandering(seed: u64, commits: i64) -> Vec<i64> {
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    (0..commits)
        .map(|number| {
            START + number * DAY + if random.u8(..4) == 0 { random.i64(-10 * DAY..0) } else { 0 }
        })
        .collect()
}

fn shown(second: i64) -> String {
    Timestamp::from_second(second).unwrap().to_string()
}

#[test]
fn time_selects_the_commit_that_git_finds() {
    let folder = Folder::new();
    let times = wandering(1, 60);
    let repository = history(&folder, "repository", &times);
    let store = folder.at("store");
    // Import in two steps, so that the second resumes the first.
    run(&["import", "git", repository.path(), &store, "--branch", "main~25"]).ok();
    run(&["import", "git", repository.path(), &store]).ok();
    for at in (0..70).map(|day| START + day * DAY).chain(times.iter().copied().step_by(7)) {
        let commit = repository.ask(&[
            "rev-list",
            "-1",
            "--first-parent",
            &format!("--min-age={at}"),
            "main",
        ]);
        let ran = run(&["get", &store, "number", "--at", &shown(at)]);
        if commit.is_empty() {
            ran.fails(
                2,
                &[
                    "is before the first commit",
                    "the history in keyspace `default` begins at 2004-1",
                ],
            );
        } else {
            let expected = repository.ask(&["show", &format!("{commit}:number")]);
            assert_eq!(ran.ok().text(), expected, "{}", shown(at));
        }
    }
    for at in ["now", "newest", "1 minute ago"] {
        assert_eq!(run(&["get", &store, "number", "--at", at]).ok().text(), "59", "{at}");
    }
}

#[test]
fn writes_after_an_import_have_their_own_time() {
    let folder = Folder::new();
    // The last commit is dated in the future; the store received it earlier.
    let repository = history(&folder, "repository", &[START, START + DAY, 32_503_680_000]);
    let store = folder.at("store");
    run(&["import", "git", repository.path(), &store]).ok();
    assert_eq!(run(&["get", &store, "number", "--at", "1 hour ago"]).ok().text(), "1");
    assert_eq!(run(&["get", &store, "number", "--at", "now"]).ok().text(), "2");
    run(&["put", &store, "number", "by hand"]).ok();
    assert_eq!(run(&["get", &store, "number", "--at", "now"]).ok().text(), "by hand");
    assert_eq!(run(&["get", &store, "number", "--at", &shown(START)]).ok().text(), "0");
}

#[test]
fn each_keyspace_has_its_own_times() {
    let folder = Folder::new();
    let store = folder.at("store");
    for (name, start) in [("one", START), ("two", START + 100 * DAY)] {
        let repository = history(&folder, name, &[start, start + DAY, start + 2 * DAY]);
        run(&["import", "git", repository.path(), &store, "--keyspace", name]).ok();
    }
    let get = |keyspace: &str, at: i64| {
        run(&["get", &store, "number", "--keyspace", keyspace, "--at", &shown(at)])
    };
    assert_eq!(get("one", START + DAY).ok().text(), "1");
    assert_eq!(get("one", START + 101 * DAY).ok().text(), "2");
    assert_eq!(get("two", START + 101 * DAY).ok().text(), "1");
    get("two", START + DAY).fails(2, &["keyspace `two` begins at 2005-"]);
}

#[test]
fn commit_is_read_by_id() {
    let folder = Folder::new();
    let repository = history(&folder, "repository", &wandering(2, 40));
    let store = folder.at("store");
    run(&["import", "git", repository.path(), &store]).ok();
    let commits = repository.commits("main");
    for (number, commit) in commits.iter().enumerate().step_by(13) {
        for id in [commit.clone(), commit[..10].to_owned(), commit[..11].to_uppercase()] {
            let at = format!("commit:{id}");
            assert_eq!(
                run(&["get", &store, "number", "--at", &at]).ok().text(),
                number.to_string()
            );
        }
    }
    run(&["get", &store, "number", "--at", "commit:0123456789"])
        .fails(1, &["no commit 0123456789", "first parents"]);
    run(&["get", &store, "number", "--at", "commit:main"]).fails(2, &["hexadecimal"]);
}

#[test]
fn log_between_times_matches_git_log() {
    let folder = Folder::new();
    let repository = history(&folder, "repository", &wandering(3, 50));
    let store = folder.at("store");
    run(&["import", "git", repository.path(), &store]).ok();
    for (since, until) in [(0, 49), (5, 30), (17, 22), (20, 20), (44, 60), (-20, 10)] {
        let (since, until) = (START + since * DAY, START + until * DAY);
        let between = [&format!("--max-age={since}"), &format!("--min-age={until}")];
        let expected =
            repository.ask(&["rev-list", "--first-parent", between[0], between[1], "main"]);
        let log =
            run(&["log", &store, "--since", &shown(since), "--until", &shown(until), "--json"])
                .ok()
                .json_lines();
        let listed: Vec<&str> =
            log.iter().map(|entry| entry["metadata"]["commit"].as_str().unwrap()).collect();
        assert_eq!(
            listed,
            expected.lines().collect::<Vec<_>>(),
            "{} to {}",
            shown(since),
            shown(until)
        );
    }
}

#[test]
fn listings_show_time_author_and_subject() {
    let folder = Folder::new();
    let repository = history(&folder, "repository", &[START, START + DAY]);
    let store = folder.at("store");
    run(&["import", "git", repository.path(), &store]).ok();
    let commits = repository.commits("main");
    let by = |number: usize| format!("{} Ada Lovelace: subject {number}", &commits[number][..8]);
    let time = "2004-11-10T11:33:20.000000Z";

    let log = run(&["log", &store, "--limit", "1"]).ok().text();
    let fields: Vec<&str> = log.trim_end().split('\t').collect();
    assert_eq!((fields[1], fields[4]), (time, by(1).as_str()));

    let history = run(&["history", &store, "number"]).ok().text();
    let lines: Vec<Vec<&str>> = history.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!((lines[0][1], lines[0][3], lines[1][3]), (time, by(1).as_str(), by(0).as_str()));
    let version = &run(&["history", &store, "number", "--json"]).ok().json_lines()[0];
    let known: Vec<&Value> =
        ["author", "subject", "commit", "time"].iter().map(|name| &version[name]).collect();
    assert_eq!(known, ["Ada Lovelace", "subject 1", &commits[1], time]);

    let (first, second) = (format!("commit:{}", commits[0]), format!("commit:{}", commits[1]));
    let diff = run(&["diff", &store, &first, &second]).fails(1, &[]).text();
    assert_eq!(diff, format!("~\t1\t1\tnumber\t{}\n", by(1)));
    let change = run(&["diff", &store, "0", &second, "--json"]).fails(1, &[]).json();
    assert_eq!(
        (&change["author"], &change["subject"]),
        (&"Ada Lovelace".into(), &"subject 1".into())
    );
}
