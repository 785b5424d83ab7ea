//! `plimsoll keyspace`: list, create, retention, drop.

use crate::repository::Repository;
use crate::run::{Folder, run, run_with_input};

fn list(store: &str) -> String {
    run(&["keyspace", "list", store]).ok().text()
}

#[test]
fn keyspaces_are_created_listed_and_altered() {
    let folder = Folder::new();
    let store = folder.at("store");
    assert_eq!(run(&["keyspace", "create", &store, "users"]).ok().text(), "users\tforever\n");
    run(&["keyspace", "create", &store, "sessions", "--retention", "7d"]).ok();
    assert_eq!(list(&store), "default\tforever\nsessions\t7d\nusers\tforever\n");
    run(&["keyspace", "create", &store, "sessions", "--retention", "7d"]).ok();
    let again =
        |retention| run(&["keyspace", "create", &store, "sessions", "--retention", retention]);
    let remedy = |retention| {
        format!("`plimsoll keyspace retention {store} sessions {retention}` changes it")
    };
    let exists = "keyspace `sessions` exists with the retention 7d, not ";
    again("latest").fails(2, &[&format!("{exists}latest"), &remedy("latest")]);
    again("0s").fails(2, &[&format!("{exists}0s"), &remedy("0s")]);
    assert_eq!(run(&["keyspace", "retention", &store, "sessions"]).ok().text(), "sessions\t7d\n");
    run(&["keyspace", "retention", &store, "sessions", "1000glsns"]).ok();
    run(&["keyspace", "retention", &store, "default", "latest"]).ok();
    assert_eq!(list(&store), "default\tlatest\nsessions\t1000glsns\nusers\tforever\n");
    let listed = run(&["keyspace", "list", &store, "--json"]).ok().json_lines();
    assert_eq!(
        (&listed[1]["name"], &listed[1]["retention"]),
        (&"sessions".into(), &"1000glsns".into())
    );
    run(&["keyspace", "retention", &store, "nowhere", "latest"])
        .fails(2, &["no keyspace `nowhere`"]);
    run(&["keyspace", "retention", &store, "users", "1000"]).fails(2, &["1000glsns"]);
}

#[test]
fn dropped_keyspace_is_readable_in_the_past() {
    let folder = Folder::new();
    let store = folder.at("store");
    let at = run(&["put", &store, "ada", "Ada Lovelace", "--keyspace", "users"]).ok().text();
    let at = at.trim();
    assert_eq!(run(&["keyspace", "drop", &store, "users", "--json"]).ok().json()["keys"], 1);
    assert_eq!(list(&store), "default\tforever\n");
    run(&["get", &store, "ada", "--keyspace", "users"]).fails(2, &["no keyspace `users`"]);
    run(&["keyspace", "drop", &store, "users"]).fails(2, &["no keyspace `users`"]);
    assert_eq!(
        run(&["get", &store, "ada", "--keyspace", "users", "--at", at]).ok().out,
        b"Ada Lovelace"
    );
    assert_eq!(
        run(&["scan", &store, "--keyspace", "users", "--at", at]).ok().text(),
        "ada\tAda Lovelace\n"
    );
    assert_eq!(run(&["count", &store, "--keyspace", "users", "--at", at]).ok().text(), "1\n");
    for forget in [&[][..], &["--forget"]] {
        run(&[&["keyspace", "drop", &store, "default"], forget].concat())
            .fails(2, &["always exists"]);
        assert_eq!(list(&store), "default\tforever\n", "it keeps what it kept");
    }
}

#[test]
fn drop_with_forget_frees_space() {
    let folder = Folder::new();
    let store = folder.at("store");
    let lines: String = (0..2000).map(|number| format!("{number}\n")).collect();
    let file = folder.file("rows.csv", format!("key\n{lines}"));
    let load = |name: &str| run(&["load", &store, &file, "--key", "key", "--keyspace", name]).ok();
    load("whole");
    let count = |more: &[&str]| {
        run(&[&["count", &store, "--keyspace", "whole"], more].concat()).ok().text()
    };
    let about: u64 = count(&["--approximate"]).trim().parse().unwrap();
    assert!(count(&[]) == "2000\n" && about.abs_diff(2000) < 700, "about {about}");
    run(&["count", &store, "--approximate", "--at", "1"]).fails(2, &["--approximate", "--at"]);
    run(&["keyspace", "drop", &store, "whole"]).ok();
    let versions = || {
        run(&["compact", &store]).ok();
        run(&["stat", &store, "--json"]).ok().json()["index"]["versions_in_runs"].as_u64().unwrap()
    };
    load("kept");
    run(&["keyspace", "drop", &store, "kept"]).ok();
    let kept = versions();
    assert!(kept >= 4000, "{kept}");
    load("forgotten");
    run(&["keyspace", "drop", &store, "forgotten", "--forget"]).ok();
    let left = versions();
    assert!(left < kept + 10, "{left} versions, {kept} before");
}

#[test]
fn import_bookkeeping_is_read_only() {
    let folder = Folder::new();
    let repository = Repository::init(&folder.path().join("repository"));
    repository.commit("c", &[("a", b"1")]);
    let store = folder.at("store");
    run(&["import", "git", repository.path(), &store]).ok();
    let own = ["--keyspace", "plimsoll.import"];
    let read = || run(&[&["scan", &store][..], &own].concat()).ok().text();
    let (before, rows) = (read(), folder.file("rows.csv", "key,value\na,1\n"));
    assert!(before.contains("git:default\t"), "{before}");
    let refused = "keyspace `plimsoll.import` cannot be written to";
    for command in [
        &["put", &store, "git:default", "{}"][..],
        &["delete", &store, "git:default"],
        &["load", &store, &rows],
        &["import", "git", repository.path(), &store],
    ] {
        run(&[command, &own].concat()).fails(2, &[refused]);
    }
    for command in ["batch", "shell"] {
        run_with_input(&[command, &store], b"use plimsoll.import\nput git:default x\n")
            .fails(2, &["line 2", refused]);
        run_with_input(&[&[command, &store][..], &own].concat(), b"get git:default\n").ok();
    }
    run(&["keyspace", "create", &store, "plimsoll.mine"])
        .fails(2, &["keyspace `plimsoll.mine` cannot be written to"]);
    assert_eq!(read(), before);
    // Nothing is created where no store existed.
    let nowhere = folder.at("nowhere");
    run(&[&["put", &nowhere, "a", "1"][..], &own].concat()).fails(2, &[refused]);
    assert!(!std::fs::exists(&nowhere).unwrap());
}

#[test]
fn listings_span_a_drop_and_recreation() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["keyspace", "create", &store, "t"]).ok();
    run(&["put", &store, "x", "v1", "--keyspace", "t"]).ok();
    run(&["put", &store, "y", "w1", "--keyspace", "t"]).ok();
    run(&["keyspace", "drop", &store, "t"]).ok();
    let diff = |a, b| run(&["diff", &store, a, b, "--keyspace", "t"]).text();
    let first_fields = |command: &[&str]| -> Vec<String> {
        let text = run(command).ok().text();
        text.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
    };
    let check = |newest: &[&str]| {
        assert_eq!(diff("2", "3"), "+\t\t2\ty\t\n");
        assert_eq!(diff("1", "3"), "+\t\t2\tx\t\n+\t\t2\ty\t\n");
        assert_eq!(diff("3", "4"), "-\t2\t\tx\t\n-\t2\t\ty\t\n");
        for command in [
            &["history", &store, "x", "--keyspace", "t"][..],
            &["log", &store, "--key", "x", "--keyspace", "t"],
        ] {
            assert_eq!(first_fields(command), [newest, &["4", "2"]].concat());
        }
    };
    check(&[]);
    assert_eq!(diff("3", "newest"), "-\t2\t\tx\t\n-\t2\t\ty\t\n");
    run(&["keyspace", "create", &store, "t"]).ok();
    run(&["put", &store, "x", "v20", "--keyspace", "t"]).ok();
    check(&["6"]);
    assert_eq!(diff("3", "newest"), "~\t2\t3\tx\t\n-\t2\t\ty\t\n");
    run(&["diff", &store, "1", "2", "--keyspace", "never"])
        .fails(2, &["there is no keyspace `never`"]);
}

#[test]
fn a_compression_is_set_shown_and_applied() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["keyspace", "create", &store, "pages", "--compression", "lz4"]).ok();
    run(&["keyspace", "create", &store, "pages", "--compression", "lz4"]).ok();
    run(&["keyspace", "create", &store, "pages"]).ok();
    run(&["keyspace", "create", &store, "pages", "--compression", "zstd"]).fails(
        2,
        &[
            "exists with the compression lz4, not zstd:3",
            &format!("`plimsoll keyspace compression {store} pages zstd:3` changes it"),
        ],
    );
    let shown = |name: &str| run(&["keyspace", "compression", &store, name]).ok().text();
    assert_eq!(
        (shown("pages"), shown("default")),
        ("pages\tlz4\n".into(), "default\tnone\n".into())
    );
    let value = "compressible ".repeat(1000);
    run(&["put", &store, "index", &value, "--keyspace", "pages"]).ok();
    run(&["keyspace", "compression", &store, "default", "zstd:9"]).ok();
    run(&["put", &store, "index", &value]).ok();
    for keyspace in ["pages", "default"] {
        assert_eq!(run(&["get", &store, "index", "--keyspace", keyspace]).ok().text(), value);
        let stats = &run(&["stat", &store, "--json"]).ok().json()["keyspaces"][keyspace];
        assert_eq!(stats["bytes"], value.len() + 5);
        assert!(stats["stored_bytes"].as_u64().unwrap() < 300, "{stats}");
    }
    let listed = run(&["keyspace", "list", &store, "--json"]).ok().json_lines();
    assert_eq!(listed[0]["compression"], "zstd:9");
    run(&["keyspace", "compression", &store, "pages", "gzip"]).fails(2, &["zstd:LEVEL"]);
    run(&["keyspace", "compression", &store, "pages", "zstd:23"]).fails(2, &["1 to 22"]);
    run(&["keyspace", "compression", &store, "nowhere", "lz4"]).fails(2, &["no keyspace"]);
}
