//! `plimsoll clone`, `fetch`, `pull`, `push` and `remote`, and `plimsoll log --ids`.

use std::path::Path;
use std::thread;
use std::time::Duration;

use plimsoll::{Db, Options};
use serde_json::{Value, json};

use crate::run::{Folder, Ran, plimsoll, run};

/// A store `hub` with `tea` on main and `cocoa` on branch draft, and a clone `ada`.
fn with_clone(folder: &Folder) -> (String, String) {
    let (hub, ada) = (folder.at("hub"), folder.at("ada"));
    run(&["put", &hub, "tea", "3.00"]).ok();
    run(&["branch", "create", &hub, "draft"]).ok();
    run(&["put", &hub, "cocoa", "4.00", "--branch", "draft"]).ok();
    run(&["clone", &hub, &ada]).ok();
    (hub, ada)
}

/// The ids of all commits of a branch, newest first, without those that were merged into it.
fn ids(store: &str, branch: &str) -> Vec<String> {
    let log = run(&["log", store, "--ids", "--branch", branch]).ok().text();
    let id = |line: &str| line.split('\t').nth(1).unwrap().to_owned();
    let ids: Vec<String> = log.lines().map(id).collect();
    assert!(ids.iter().all(|id| id.len() == 64), "{log}");
    ids
}

fn tip(store: &str, branch: &str) -> String {
    ids(store, branch).remove(0)
}

fn get(store: &str, key: &str) -> String {
    run(&["get", store, key]).ok().text()
}

#[test]
fn a_clone_leaves_out_a_part_of_the_history() {
    let folder = Folder::new();
    let (hub, _) = with_clone(&folder);
    run(&["put", &hub, "tea", "3.10"]).ok();
    run(&["put", &hub, "tea", "3.20"]).ok();
    let all = ids(&hub, "main");
    let last = folder.at("last");
    let printed = run(&["clone", &hub, &last, "--depth", "2", "--json"]).ok().json_lines();
    assert_eq!(printed[0], json!({ "branch": "main", "tip": &all[0] }));
    let log = run(&["log", &last, "--ids", "--branch", "main"]).ok();
    assert_eq!(log.text().lines().count(), 2);
    assert!(log.err.contains("partial clone"), "{}", log.err);
    assert_eq!(ids(&last, "main"), all[..2]);
    run(&["put", &hub, "tea", "3.30"]).ok();
    run(&["pull", &last]).ok();
    assert_eq!(get(&last, "tea"), "3.30");
    run(&["put", &last, "tea", "3.40"]).ok();
    run(&["push", &last]).ok();
    assert_eq!(get(&hub, "tea"), "3.40");

    let at = folder.at("at");
    run(&["clone", &hub, &at, "--at", &all[2]]).ok();
    assert_eq!(get(&at, "tea"), "3.00");
    assert_eq!(ids(&at, "main"), all[2..3]);
    // The common ancestor of main and draft is below the boundary.
    run(&["merge", &last, "origin/draft"]).fails(2, &["partial clone", "clone its origin again"]);
    for wrong in [["--depth", "0"], ["--depth", "-1"], ["--at", "12"]] {
        let dest = folder.at("wrong");
        run(&["clone", &hub, &dest, wrong[0], wrong[1]]).fails(2, &[]);
        assert!(!Path::new(&dest).exists());
    }
}

#[test]
fn a_clone_has_all_branches_and_the_same_ids() {
    let folder = Folder::new();
    let (hub, ada) = with_clone(&folder);
    assert_eq!(get(&ada, "tea"), "3.00");
    let draft = ["get", &ada, "cocoa", "--branch", "origin/draft"];
    assert_eq!(run(&draft).ok().text(), "4.00");
    assert_eq!(ids(&ada, "main"), ids(&hub, "main"));
    assert_eq!(ids(&ada, "origin/draft"), ids(&hub, "draft"));
    assert_eq!(ids(&hub, "draft").len(), 2);
    let list = run(&["remote", "list", &ada]).ok().text();
    assert_eq!(list, format!("origin\t{hub}\n"));

    let alan = folder.at("alan");
    let printed = run(&["clone", &format!("file://{hub}"), &alan]).ok().text();
    let (main, draft) = (&tip(&hub, "main"), &tip(&hub, "draft"));
    assert_eq!(printed, format!("main\t{main}\norigin/draft\t{draft}\norigin/main\t{main}\n"));
    let eve = folder.at("eve");
    let printed = run(&["clone", &hub, &eve, "--json"]).ok().json_lines();
    assert_eq!(printed[1], json!({ "branch": "origin/draft", "tip": draft }));
    let people = run(&["clone", &hub, &folder.at("people"), "--color", "always"]).ok().text();
    assert!(people.contains(&format!("  {}\n", &main[..12])), "{people}");
    run(&["clone", &hub, &ada]).fails(2, &["not an empty folder", "plimsoll pull STORE"]);
    run(&["clone", &folder.at("none"), &folder.at("x")]).fails(3, &["there is no store", "none"]);
    assert!(!Path::new(&folder.at("x")).exists());
    run(&["clone", "s3://bucket/hub", &folder.at("x")]).fails(2, &["not the address", "file://"]);
    run(&["clone", "", &folder.at("x")]).fails(2, &["not the address"]);
}

#[test]
fn a_push_transfers_commits_and_is_refused_if_the_branch_there_has_others() {
    let folder = Folder::new();
    let (hub, ada) = with_clone(&folder);
    let before = &tip(&hub, "main");
    run(&["put", &ada, "milk", "1.00"]).ok();
    run(&["put", &ada, "milk", "1.10"]).ok();
    let pushed = run(&["push", &ada]).ok().text();
    let after = &tip(&ada, "main");
    assert_eq!(pushed, format!("main\t{before}\t{after}\t2\n"));
    assert_eq!((get(&hub, "milk"), ids(&hub, "main")), ("1.10".into(), ids(&ada, "main")));
    let again = run(&["push", &ada, "--color", "always"]).ok().text();
    assert_eq!(again, format!("main: up to date at {}\n", &after[..12]));
    let again = run(&["push", &ada, "--json"]).ok().json();
    let same = json!({ "branch": "main", "from": after, "to": after, "commits": 0 });
    assert_eq!(again, same);

    run(&["put", &hub, "milk", "1.20"]).ok();
    run(&["put", &ada, "tea", "3.10"]).ok();
    let refused = run(&["push", &ada]);
    refused.fails(2, &["branch \"main\"", "does not contain", "plimsoll pull", "--force"]);
    assert_eq!(get(&hub, "tea"), "3.00");
    run(&["push", &ada, "origin", "main", "--force"]).ok();
    assert_eq!((get(&hub, "tea"), get(&hub, "milk")), ("3.10".into(), "1.10".into()));
    assert_eq!(tip(&hub, "main"), tip(&ada, "main"));
    let history = run(&["history", &hub, "milk"]).ok().text();
    assert_eq!(history.lines().count(), 4, "the replaced version stays: {history}");

    // A new branch, and one that does not exist.
    run(&["branch", "create", &ada, "new"]).ok();
    run(&["put", &ada, "tea", "3.20", "--branch", "new"]).ok();
    let pushed = run(&["push", &ada, "origin", "new", "--color", "always"]).ok().text();
    let tip_of_new = &tip(&ada, "new");
    assert_eq!(pushed, format!("new: nothing -> {}, 1 commit\n", &tip_of_new[..12]));
    assert_eq!(tip(&hub, "new"), *tip_of_new);
    run(&["push", &ada, "origin", "none"]).fails(2, &["no branch `none`", "there are: main, new"]);
}

#[test]
fn a_pull_catches_up_or_merges() {
    let folder = Folder::new();
    let (hub, ada) = with_clone(&folder);
    let pull = |more: &[&str]| run(&[&["pull", &*ada], more].concat());
    let before = tip(&ada, "main");
    run(&["put", &hub, "milk", "1.00"]).ok();
    let pulled = pull(&[]).ok().text();
    let after = tip(&hub, "main");
    assert_eq!(pulled, format!("main\t{before}\t{after}\t1\t\n"));
    assert_eq!(ids(&ada, "main"), ids(&hub, "main"));
    let again = json!({
        "branch": "main", "from": after, "to": after, "commits": 0, "glsn": null,
    });
    assert_eq!(pull(&["--json"]).ok().json(), again);

    // Both go on.
    run(&["put", &hub, "milk", "1.10"]).ok();
    run(&["put", &ada, "tea", "3.10"]).ok();
    let fetched = run(&["fetch", &ada]).ok().text();
    let theirs = tip(&hub, "main");
    assert_eq!(fetched, format!("origin/main\t{after}\t{theirs}\t1\n"));
    assert_eq!(get(&ada, "milk"), "1.00");
    let ours = tip(&ada, "main");
    let merged = pull(&["--json"]).ok().json();
    let after = tip(&ada, "main");
    assert_eq!((&merged["from"], &merged["to"]), (&json!(ours), &json!(after)));
    assert!(merged["glsn"].is_u64() && merged["commits"].is_null(), "{merged}");
    assert_eq!((get(&ada, "tea"), get(&ada, "milk")), ("3.10".into(), "1.10".into()));
    run(&["push", &ada]).ok();
    assert_eq!(tip(&hub, "main"), tip(&ada, "main"));

    // A branch that does not exist here yet.
    pull(&["origin", "draft"]).ok();
    assert_eq!(ids(&ada, "draft"), ids(&hub, "draft"));
    pull(&["origin", "none"]).fails(2, &["no branch `none` in the store `origin`"]);
    run(&["fetch", &ada, "origin", "none"]).fails(2, &["no branch `none` in the store `origin`"]);
}

#[test]
fn conflicts_of_a_pull_are_listed_and_decided_by_a_merge() {
    let folder = Folder::new();
    let (hub, ada) = with_clone(&folder);
    run(&["put", &hub, "tea", "2.5"]).ok();
    run(&["put", &ada, "tea", "3.125"]).ok();
    run(&["put", &ada, "milk", "1.00"]).ok();
    let before = ids(&ada, "main");
    let failed = run(&["pull", &ada]);
    let advice = format!("plimsoll merge {ada} origin/main --into main");
    let text = failed.fails(1, &["1 conflict", "nothing was written", "--rule", &advice]).text();
    assert_eq!(text, "conflict\tdefault\ttea\t4\t5\t3\n");
    let listed = run(&["pull", &ada, "--json"]).fails(1, &[]).json();
    assert_eq!((&listed["action"], &listed["theirs_bytes"]), (&json!("conflict"), &json!(3)));
    assert_eq!(ids(&ada, "main"), before);
    run(&["push", &ada]).fails(2, &["does not contain"]);
    run(&["merge", &ada, "origin/main", "--rule", "default=theirs"]).ok();
    assert_eq!(run(&["pull", &ada]).ok().text().split('\t').nth(3), Some("0"));
    run(&["push", &ada]).ok();
    assert_eq!((get(&hub, "tea"), get(&hub, "milk")), ("2.5".into(), "1.00".into()));
    assert_eq!(tip(&hub, "main"), tip(&ada, "main"));
}

#[test]
fn remotes_are_added_listed_and_removed() {
    let folder = Folder::new();
    let (hub, ada) = with_clone(&folder);
    let in_folder = |arguments: &[&str]| {
        let mut command = plimsoll();
        Ran::of(command.current_dir(folder.path()).args(arguments).output().unwrap())
    };
    in_folder(&["remote", "add", "ada", "hub", "hub"]).ok();
    let list = run(&["remote", "list", &ada, "--json"]).ok().json_lines();
    assert_eq!(list[0], json!({ "name": "hub", "address": hub }));
    assert_eq!(list[1]["name"], "origin");
    run(&["put", &ada, "milk", "1.00"]).ok();
    run(&["push", &ada, "hub"]).ok();
    assert_eq!(get(&hub, "milk"), "1.00");
    run(&["fetch", &ada, "hub", "draft"]).ok();
    run(&["remote", "remove", &ada, "hub"]).ok();
    let of_hub = ["get", &ada, "cocoa", "--branch", "hub/draft"];
    assert_eq!(run(&of_hub).ok().text(), "4.00");
    for command in ["fetch", "pull", "push"] {
        run(&[command, &ada, "hub"])
            .fails(2, &["no remote `hub`", "there are: origin", "remote add"]);
    }
    run(&["remote", "remove", &ada, "hub"]).fails(2, &["no remote `hub`", "there are: origin"]);
    run(&["fetch", &hub]).fails(2, &["no remote `origin`", "has no remotes"]);

    // By a path.
    run(&["put", &ada, "milk", "1.10"]).ok();
    run(&["push", &ada, &hub]).ok();
    assert_eq!(get(&hub, "milk"), "1.10");
    let second = folder.at("second");
    in_folder(&["clone", "ada", "second"]).ok();
    assert_eq!(run(&["remote", "list", &second]).ok().text(), format!("origin\t{ada}\n"));
    run(&["push", &ada, &ada]).fails(2, &["the store itself"]);

    for name in ["a/b", "", "incoming", "2024-01-31"] {
        run(&["remote", "add", &ada, name, &hub]).fails(2, &["the name of a remote"]);
    }
    for address in ["", "http://host/hub", "file://relative"] {
        run(&["remote", "add", &ada, "hub", address]).fails(2, &["not the address"]);
    }
    run(&["remote", "add", &ada, "gone", &folder.at("gone")]).ok();
    for command in ["fetch", "pull", "push"] {
        run(&[command, &ada, "gone"]).fails(3, &["there is no store"]);
    }
}

#[test]
fn stores_without_a_common_history_and_backups_exchange_commits() {
    let folder = Folder::new();
    let (one, two) = (folder.at("one"), folder.at("two"));
    run(&["put", &one, "tea", "3.00"]).ok();
    run(&["put", &two, "milk", "1.00", "--keyspace", "dairy"]).ok();
    run(&["put", &two, "tea", "3.00"]).ok();
    run(&["remote", "add", &one, "two", &two]).ok();
    run(&["pull", &one, "two"]).ok();
    let pushed = run(&["push", &one, "two", "--json"]).ok().json();
    assert_eq!((&pushed["commits"], &pushed["to"]), (&json!(2), &json!(tip(&one, "main"))));
    let hash = |store: &str| run(&["state-hash", store]).ok().text();
    assert_eq!(hash(&one), hash(&two));

    let copy = folder.at("copy");
    run(&["backup", &one, &copy]).ok();
    run(&["put", &copy, "tea", "3.10"]).ok();
    run(&["put", &one, "milk", "1.10", "--keyspace", "dairy"]).ok();
    run(&["remote", "add", &copy, "origin", &one]).ok();
    run(&["pull", &copy]).ok();
    run(&["push", &copy]).ok();
    assert_eq!((tip(&one, "main"), hash(&one)), (tip(&copy, "main"), hash(&copy)));
    assert_eq!(get(&one, "tea"), "3.10");
}

#[test]
fn the_other_store_is_waited_for() {
    let folder = Folder::new();
    let (hub, ada) = with_clone(&folder);
    run(&["put", &ada, "milk", "1.00"]).ok();
    let options = Options::new().memory_bytes(16 << 20);
    let db = Db::open(&hub, options).unwrap();
    for command in ["fetch", "pull", "push"] {
        run(&[command, &ada]).fails(8, &["hub", "open for writing", "open it shared"]);
    }
    run(&["clone", &hub, &folder.at("x")]).fails(8, &["hub", "open for writing"]);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(500));
            db.close().unwrap();
        });
        run(&["push", &ada, "--wait", "60s"]).ok();
    });
    assert_eq!(get(&hub, "milk"), "1.00");
    let db = Db::open(&hub, Options::new().memory_bytes(16 << 20).shared(true)).unwrap();
    run(&["put", &ada, "milk", "1.10"]).ok();
    run(&["push", &ada]).ok();
    let value = db.get(&db.keyspace("default").unwrap(), "milk").unwrap();
    assert_eq!(value.as_deref(), Some(&b"1.10"[..]), "a process that shares it sees the push");
}

#[test]
fn commits_that_were_trimmed_are_sent_to_no_store_that_lacks_them() {
    let folder = Folder::new();
    let (hub, ada, late) = (folder.at("hub"), folder.at("ada"), folder.at("late"));
    let put = |value| run(&["put", &hub, "a", value, "--keyspace", "notes"]).ok();
    run(&["keyspace", "create", &hub, "notes", "--retention", "latest"]).ok();
    put("1");
    run(&["clone", &hub, &ada]).ok();
    put("2");
    put("3");
    run(&["pull", &ada]).ok();
    run(&["compact", &hub]).ok();
    run(&["trim", &hub, "--until", "newest"]).ok();
    put("4");
    run(&["pull", &ada]).ok();
    assert_eq!(run(&["get", &ada, "a", "--keyspace", "notes"]).ok().text(), "4");
    run(&["clone", &hub, &late]).fails(2, &["no longer has the commits", "plimsoll backup"]);
}

#[test]
fn ids_are_shown_beside_glsns() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "a", "1"]).ok();
    run(&["branch", "create", &store, "draft"]).ok();
    let entries = run(&["log", &store, "--reverse", "--ids", "--json"]).ok().json_lines();
    let first = entries[0]["id"].as_str().unwrap().to_owned();
    assert_eq!((first.len(), &entries[1]["id"]), (64, &Value::Null));
    let lines = run(&["log", &store, "--reverse", "--ids"]).ok().text();
    let mut lines = lines.lines();
    assert!(lines.next().unwrap().starts_with(&format!("1\t{first}\t20")));
    assert!(lines.next().unwrap().starts_with("2\t\t20"));
    let shown = run(&["log", &store, "--to", "1", "--ids", "--color", "always"]).ok().text();
    assert!(shown.contains(&first[..12]) && !shown.contains(&first[..13]), "{shown}");
    let without = run(&["log", &store, "--to", "1", "--json"]).ok().json();
    assert_eq!(without["id"], Value::Null);
    run(&["log", &store, "--ids", "--follow"]).fails(2, &["--follow"]);
    run(&["log", &store, "--ids", "--stream", "1"]).fails(2, &["--stream"]);

    // A commit from another store is summarized by its keys.
    run(&["put", &store, "b", "2", "--keyspace", "notes"]).ok();
    let copy = folder.at("copy");
    run(&["clone", &store, &copy]).ok();
    let shown = run(&["log", &copy, "--branch", "main", "--color", "always"]).ok().text();
    assert!(shown.contains("+ a\n") || shown.contains("+ a, ..."), "{shown}");
    assert!(shown.contains("+ b, ..."), "{shown}");
}
