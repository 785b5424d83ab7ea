//! `plimsoll branch`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::run::{Folder, plimsoll, run, run_with_input};

#[test]
fn branches_are_created_listed_renamed_and_deleted() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "a", "1"]).ok();
    let created = run(&["branch", "create", &store, "draft"]).ok().text();
    assert!(created.starts_with("draft\tmain\t1\t20") && created.ends_with("Z\n"), "{created}");
    let second = ["branch", "create", &store, "second", "--from", "draft", "--json"];
    assert_eq!(run(&second).ok().json()["parent"], "draft");
    run(&["branch", "rename", &store, "draft", "proposal"]).ok();
    let names = || -> Vec<String> {
        let list = run(&["branch", "list", &store]).ok().text();
        list.lines().map(|line| line.split('\t').take(2).collect::<Vec<_>>().join("<")).collect()
    };
    assert_eq!(names(), ["proposal<main", "second<proposal"]);
    run(&["branch", "delete", &store, "proposal"]).ok();
    assert_eq!(names(), ["second<"]);
    run(&["branch", "delete", &store, "proposal"])
        .fails(2, &["no branch `proposal`", "there are: main, second"]);
    let log = run(&["log", &store]).ok().text();
    assert_eq!(log.lines().count(), 5, "{log}");
}

#[test]
fn a_branch_that_cannot_be_made_is_refused() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "a", "1"]).ok();
    for name in ["2024-01-31", "yesterday", "12", "a:b", "a..b", "b@{1}", "2 hours ago", ""] {
        run(&["branch", "create", &store, name]).fails(2, &["use 1 to 255 bytes"]);
    }
    run(&["branch", "create", &store, "main"]).fails(2, &["branch main always exists"]);
    run(&["branch", "delete", &store, "main"]).fails(2, &["branch main always exists"]);
    run(&["branch", "create", &store, "one"]).ok();
    run(&["branch", "create", &store, "one"]).fails(2, &["branch \"one\" exists"]);
    run(&["branch", "create", &store, "two", "--from", "none"])
        .fails(2, &["no branch `none`", "there are: main, one"]);
    run(&["branch", "create", &store, "two", "--at", "99"]).fails(2, &["99"]);
}

/// A store with `a` = 1 on main, and branch draft.
fn with_draft(folder: &Folder) -> String {
    let store = folder.at("store");
    run(&["put", &store, "a", "1"]).ok();
    run(&["branch", "create", &store, "draft"]).ok();
    store
}

#[test]
fn each_command_for_data_reads_and_writes_its_branch_only() {
    let folder = Folder::new();
    let store = with_draft(&folder);
    let on = |arguments: &[&str]| {
        let mut line = vec![arguments[0], &*store];
        line.extend(&arguments[1..]);
        line.extend(["--branch", "draft"]);
        run(&line)
    };
    let before = run(&["scan", &store]).ok().text();
    on(&["put", "a", "2"]).ok();
    on(&["put", "b", "3", "--ttl", "1h"]).ok();
    on(&["put", "gone", "4"]).ok();
    on(&["delete", "gone"]).ok();
    on(&["delete", "gone"]).fails(1, &["no key `gone`"]);
    assert_eq!(on(&["add", "n", "5"]).ok().text(), "5\n");
    assert_eq!(on(&["append", "a", "x"]).ok().text(), "2\n");
    on(&["cas", "a", "2x", "2"]).ok();
    on(&["cas", "a", "1", "9"]).fails(1, &["not the expected one"]);
    let left: f64 = on(&["ttl", "b"]).ok().text().trim().parse().unwrap();
    assert!(left > 3000.0 && left <= 3600.0, "{left}");
    on(&["persist", "b"]).ok();
    assert_eq!(on(&["ttl", "b"]).ok().text(), "\n");
    on(&["expire", "b", "1h"]).ok();
    assert_eq!(on(&["get", "a"]).ok().text(), "2");
    assert_eq!(on(&["scan", "--keys"]).ok().text(), "a\nb\nn\n");
    assert_eq!(on(&["count"]).ok().text(), "3\n");
    on(&["delete", "--prefix", "n"]).ok();
    assert_eq!(on(&["count", "--json"]).ok().json()["keys"], 2);
    let rows = folder.file("rows.csv", "key,value\nr1,one\nr2,two\n");
    for batch in [&[][..], &["--batch", "1"]] {
        on(&[&["load", &rows, "--value", "value"], batch].concat()).ok();
        assert_eq!(on(&["scan", "r"]).ok().text(), "r1\tone\nr2\ttwo\n");
        on(&["delete", "r1", "r2"]).ok();
    }
    let lines = folder.file("lines", "use users\nput ada 1\nadd visits 2\n");
    on(&["batch", &lines]).ok();
    on(&["batch", &lines, "--each-line"]).ok();
    assert_eq!(on(&["scan", "--keyspace", "users", "--keys"]).ok().text(), "ada\nvisits\n");
    assert_eq!(run(&["scan", &store]).ok().text(), before);
    assert_eq!(run(&["scan", &store, "--keyspace", "users"]).ok().text(), "");
    // Main by its name.
    assert_eq!(run(&["get", &store, "a", "--branch", "main"]).ok().text(), "1");
    run(&["put", &store, "a", "5", "--branch", "main"]).ok();
    assert_eq!(run(&["get", &store, "a"]).ok().text(), "5");
    assert_eq!(on(&["get", "a"]).ok().text(), "2");
    assert_eq!(
        run(&["stat", &store, "--json"]).ok().json()["store"]["branches_other_than_main"],
        1
    );
}

#[test]
fn a_moment_on_a_branch_is_read_by_its_name() {
    let folder = Folder::new();
    let store = with_draft(&folder);
    let on = |key: &str, value: &str| {
        let put = run(&["put", &store, key, value, "--branch", "draft"]).ok().text();
        put.trim().parse::<u64>().unwrap()
    };
    let first = on("a", "2");
    on("a", "3");
    let get = |at: &str| run(&["get", &store, "a", "--at", at]);
    assert_eq!(get("draft@{newest}").ok().text(), "3");
    assert_eq!(get(&format!("draft@{{{first}}}")).ok().text(), "2");
    assert_eq!(get("draft@{1}").ok().text(), "1");
    assert_eq!(get("main@{newest}").ok().text(), "1");
    assert_eq!(get("draft@{now}").ok().text(), "3");
    get("draft@{2 hours ago}").fails(2, &["before the first commit"]);
    let at = format!("{first}");
    let both = ["get", &*store, "a", "--branch", "draft", "--at", &at];
    assert_eq!(run(&both).ok().text(), "2");
    let count = ["count", &*store, "--at", "draft@{newest}"];
    assert_eq!(run(&count).ok().text(), "1\n");
    run(&["get", &store, "a", "--branch", "draft", "--at", "draft@{1}"])
        .fails(2, &["--branch names branch `draft`", "only one"]);
    get("none@{1}").fails(2, &["no branch `none`", "there are: main, draft"]);
    get("draft@{draft@{1}}").fails(2, &["not a moment"]);
    for command in [&["tag", "create", &store, "v1", "--at"][..], &["reset", &store, "--to"]] {
        run(&[command, &["draft@{newest}"]].concat()).fails(2, &["moment on a branch"]);
    }
    run(&["tag", "create", &store, "v@{1}"]).fails(2, &["invalid tag name"]);
    // A branch of a branch, and of its past.
    run(&["branch", "create", &store, "next", "--at", &format!("draft@{{{first}}}")]).ok();
    run(&["branch", "create", &store, "third", "--from", "next"]).ok();
    run(&["branch", "create", &store, "x", "--from", "next", "--at", "draft@{1}"])
        .fails(2, &["--from names branch `next`"]);
    assert_eq!(run(&["get", &store, "a", "--branch", "third"]).ok().text(), "2");
    run(&["branch", "delete", &store, "draft"]).ok();
    run(&["get", &store, "a", "--branch", "draft"])
        .fails(2, &["no branch `draft`", "there are: main, next, third"]);
    run(&["put", &store, "a", "4", "--branch", "draft"]).fails(2, &["no branch `draft`"]);
    run(&["compact", &store]).ok();
    assert_eq!(run(&["get", &store, "a", "--branch", "third"]).ok().text(), "2");
    assert_eq!(run(&["scan", &store]).ok().text(), "a\t1\n");
}

#[test]
fn what_a_branch_cannot_do_is_refused() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "a", "1", "--branch", "draft"]).fails(3, &["there is no store"]);
    let store = with_draft(&folder);
    let long = "k".repeat(4083);
    run(&["put", &store, &long, "1", "--branch", "draft"]).fails(2, &["4083", "4082"]);
    run(&["get", &store, &long, "--branch", "draft"]).fails(1, &["no key"]);
    run(&["put", &store, &long[1..], "1", "--branch", "draft"]).ok();
    run(&["count", &store, "--branch", "draft", "--approximate"]).fails(2, &["--approximate"]);
    run(&["scan", &store, "--branch", "draft", "--skip-damaged"]).fails(2, &["--skip-damaged"]);
    for number in 0..12 {
        run(&["branch", "create", &store, &format!("b{number:02}")]).ok();
    }
    run(&["get", &store, "a", "--branch", "none"])
        .fails(2, &["there are: main, b00,", "b08 and 4 more"]);
}

#[test]
fn a_shell_changes_its_branch_and_two_shells_change_two_branches() {
    let folder = Folder::new();
    let store = with_draft(&folder);
    run(&["branch", "create", &store, "other"]).ok();
    let lines =
        b"get a\nbranch draft\nput a 2\nbegin\nput b 3\nget b\ncommit\nbranch main\nget a\n\
                  get a --at draft@{newest}\nbranches\n";
    let text = run_with_input(&["shell", &store], lines).ok().text();
    let text: Vec<&str> = text.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(text[0], "1");
    assert_eq!(text[2], "3");
    assert_eq!(text[4..], ["1", "2", "draft", "other"]);
    for (lines, part) in [
        (&b"branch none\n"[..], "no branch `none`"),
        (b"begin\nbranch draft\n", "a transaction is open"),
        (b"branch\n", "the name of a branch is missing"),
    ] {
        run_with_input(&["shell", &store], lines).fails(2, &[part]);
    }
    run_with_input(&["batch", &store], b"branch draft\n").fails(2, &["one transaction"]);
    // Both processes are open at once; each waits for the answer to its line.
    let mut shells = ["draft", "other"].map(|branch| Conversation::with(&store, branch));
    for round in 0..10 {
        for shell in &mut shells {
            let branch = shell.branch.clone();
            shell.say(&format!("put a {branch}{round}"));
            shell.say("add n");
            assert_eq!(shell.ask("get a"), format!("{branch}{round}"));
        }
    }
    shells.into_iter().for_each(Conversation::end);
    for branch in ["draft", "other"] {
        let get = |key: &str| run(&["get", &store, key, "--branch", branch]).ok().out;
        assert_eq!(get("a"), format!("{branch}9").as_bytes());
        assert_eq!(get("n"), 10_u64.to_le_bytes());
    }
    assert_eq!(run(&["scan", &store]).ok().text(), "a\t1\n");
}

/// A shell that runs while others do.
struct Conversation {
    child: Child,
    answers: BufReader<ChildStdout>,
    branch: String,
}

impl Conversation {
    fn with(store: &str, branch: &str) -> Self {
        let mut command = plimsoll();
        command.args(["shell", store, "--branch", branch]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, answers, branch: branch.to_owned() }
    }

    /// Sends a line that is answered by the GLSN of its commit.
    fn say(&mut self, line: &str) {
        assert!(self.ask(line).parse::<u64>().is_ok(), "{line}");
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

#[test]
fn a_value_on_a_branch_expires_there() {
    let folder = Folder::new();
    let store = with_draft(&folder);
    run(&["put", &store, "a", "2", "--branch", "draft", "--ttl", "1s"]).ok();
    assert_eq!(run(&["get", &store, "a", "--branch", "draft"]).ok().text(), "2");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    // The expired value hides the parent's.
    run(&["get", &store, "a", "--branch", "draft"]).fails(1, &["no key `a` on branch draft at"]);
    assert_eq!(run(&["count", &store, "--branch", "draft"]).ok().text(), "0\n");
    assert_eq!(run(&["get", &store, "a"]).ok().text(), "1");
}

#[test]
fn the_log_names_the_branch_of_a_commit() {
    let folder = Folder::new();
    let store = with_draft(&folder);
    run(&["put", &store, "a", "2", "--branch", "draft"]).ok();
    run(&["branch", "rename", &store, "draft", "proposal"]).ok();
    run(&["put", &store, "b", "3"]).ok();
    let entries = run(&["log", &store, "--reverse", "--ops", "--json"]).ok().json_lines();
    let on: Vec<&Value> = entries.iter().map(|entry| &entry["branch"]).collect();
    assert_eq!(on, [&Value::Null, &Value::Null, &json!("proposal"), &Value::Null, &Value::Null]);
    assert_eq!(entries[2]["ops"][0]["branch"], "proposal");
    assert_eq!(entries[2]["ops"][0]["key"], "a");
    let ops = run(&["log", &store, "--ops"]).ok().text();
    assert!(ops.contains("\t+\tproposal:default\t1\ta\n"), "{ops}");
    assert_eq!(run(&["log", &store, "--key", "a"]).ok().text().lines().count(), 1);
}

/// A store with versions of `a` on main (1, 4) and draft (2, 3), and the GLSNs of those on draft.
fn with_versions(folder: &Folder) -> (String, [String; 2]) {
    let store = with_draft(folder);
    let put = |value: &str| {
        let glsn = run(&["put", &store, "a", value, "--branch", "draft"]).ok().text();
        glsn.trim().to_owned()
    };
    let glsns = [put("2"), put("3")];
    run(&["put", &store, "a", "4444"]).ok();
    run(&["put", &store, "b", "5"]).ok();
    (store, glsns)
}

fn first_fields(text: &str) -> Vec<&str> {
    text.lines().map(|line| line.split('\t').next().unwrap()).collect()
}

#[test]
fn history_on_a_branch_is_that_of_its_lineage() {
    let folder = Folder::new();
    let (store, [first, second]) = with_versions(&folder);
    let history = ["history", &*store, "a", "--branch", "draft"];
    let text = run(&history).ok().text();
    assert_eq!(first_fields(&text), [&*second, &first, "1"]);
    run(&["delete", &store, "a", "--branch", "draft"]).ok();
    let deleted = run(&[&history[..], &["--json", "--limit", "1"]].concat()).ok().json();
    assert_eq!((&deleted["deleted"], &deleted["bytes"]), (&json!(true), &Value::Null));
    assert_eq!(run(&["history", &store, "a"]).ok().text().lines().count(), 2);
    run(&["history", &store, "a", "--branch", "none"]).fails(2, &["no branch `none`"]);
    run(&["history", &store, "b", "--branch", "draft"]).fails(1, &["key `b` never existed"]);
    let text = run_with_input(&["shell", &store], b"branch draft\nhistory a\n").ok().text();
    assert_eq!(first_fields(&text)[1..], [&*second, &first, "1"]);
}

#[test]
fn states_of_branches_and_moments_are_compared() {
    let folder = Folder::new();
    let (store, [first, second]) = with_versions(&folder);
    let diff = |arguments: &[&str]| run(&[&["diff", &*store], arguments].concat());
    let both = "~\t1\t4\ta\t\n+\t\t1\tb\t\n";
    assert_eq!(diff(&["draft..main"]).fails(1, &[]).text(), both);
    assert_eq!(diff(&["draft", "newest"]).fails(1, &[]).text(), both);
    assert_eq!(diff(&["draft@{newest}..newest", "b"]).fails(1, &[]).text(), "+\t\t1\tb\t\n");
    assert_eq!(diff(&["main..draft", "b"]).fails(1, &[]).text(), "-\t1\t\tb\t\n");
    let of_draft = diff(&[&first, &second, "--branch", "draft", "--json"]).fails(1, &[]).json();
    assert_eq!(of_draft["by"].to_string(), second);
    diff(&[&format!("{first}..{first}"), "--branch", "draft"]).ok();
    diff(&["1..draft@{1}"]).ok();
    assert_eq!(diff(&["1..draft"]).fails(1, &[]).text(), "~\t1\t1\ta\t\n");
    diff(&["main..none"])
        .fails(2, &["no branch or tag `none`", "are: main, draft; of tags, there are none"]);
    run(&["get", &store, "a", "--at", "draft"])
        .fails(2, &["no tag `draft`", "`draft` is a branch: write draft@{newest}"]);
    diff(&["main"]).fails(2, &["the later moment is missing", "main..draft"]);
    diff(&["main..draft", "a", "b"]).fails(2, &["names both moments"]);
    diff(&["main.."]).fails(2, &["not a moment"]);
    run(&["tag", "create", &store, "draft"]).ok();
    diff(&["main..draft"]).fails(2, &["is a tag and a branch"]);
    run(&["tag", "create", &store, "v..1"]).ok();
    diff(&["v..1", "newest"]).ok();
    let lines = b"branch draft\ndiff main..draft@{newest} a\n";
    let text = run_with_input(&["shell", &store], lines).ok().text();
    assert!(text.ends_with("~\t4\t1\ta\t\n"), "{text}");
}

#[test]
fn log_of_a_branch_has_its_commits_and_those_before_the_fork() {
    let folder = Folder::new();
    let (store, [first, second]) = with_versions(&folder);
    run(&["put", &store, "b", "6", "--branch", "draft"]).ok();
    let log = |arguments: &[&str]| {
        let text = run(&[&["log", &*store], arguments].concat()).ok().text();
        first_fields(&text).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(log(&["--branch", "draft"]), ["7", &*second, &first, "1"]);
    assert_eq!(log(&["--branch", "draft", "--key", "a"]), [&*second, &first, "1"]);
    assert_eq!(log(&["--branch", "draft", "--limit", "2", "--reverse"]), ["1", &*first]);
    assert_eq!(log(&["--branch", "draft", "--since", "1 hour ago"]).len(), 4);
    assert_eq!(log(&["--branch", "main"]), ["6", "5", "1"]);
    assert_eq!(log(&["--key", "a"]), ["5", "1"]);
    // With the creation of the branch.
    assert_eq!(log(&[]).len(), 7);
    let ops = run(&["log", &store, "--branch", "draft", "--ops", "--json", "--limit", "1"]);
    let ops = ops.ok().json();
    assert_eq!((&ops["branch"], &ops["ops"][0]["key"]), (&json!("draft"), &json!("b")));
    assert_eq!(ops["ops"][0]["keyspace"], "default");
    run(&["log", &store, "--branch", "none"]).fails(2, &["no branch `none`"]);
    run(&["log", &store, "--branch", "draft", "--stream", "1"]).fails(2, &["--stream"]);
}

#[test]
fn watch_prints_the_changes_on_its_branch() {
    let folder = Folder::new();
    let (store, [first, second]) = with_versions(&folder);
    let watch = ["watch", &*store, "--from", "1", "--limit", "2"];
    let on_draft = run(&[&watch[..], &["--branch", "draft"]].concat()).ok().text();
    assert_eq!(on_draft, format!("{first}\t+\ta\t2\n{second}\t+\ta\t3\n"));
    assert_eq!(run(&watch).ok().text(), "1\t+\ta\t1\n5\t+\ta\t4444\n");
    run(&[&watch[..], &["--branch", "none"]].concat()).fails(2, &["no branch `none`"]);
}
