//! `plimsoll tag`, and moments given by a tag's name.

use crate::run::{Folder, run};

#[test]
fn a_tag_is_a_moment_for_every_command_until_it_is_deleted() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "a", "1"]).ok();
    let tagged = run(&["tag", "create", &store, "v1"]).ok().text();
    assert!(tagged.starts_with("v1\t1\t20") && tagged.ends_with("Z\n"), "{tagged}");
    run(&["keyspace", "retention", &store, "default", "latest"]).ok();
    run(&["put", &store, "a", "2"]).ok();
    run(&["put", &store, "b", "3"]).ok();
    run(&["compact", &store]).ok();
    run(&["trim", &store, "--until", "newest"]).ok();
    assert_eq!(
        run(&["tag", "create", &store, "v2", "--at", "v1", "--json"]).ok().json()["glsn"],
        1
    );
    assert_eq!(run(&["get", &store, "a", "--at", "v1"]).ok().text(), "1");
    assert_eq!(run(&["count", &store, "--at", "v1"]).ok().text(), "1\n");
    assert_eq!(run(&["scan", &store, "--at", "v2"]).ok().text(), "a\t1\n");
    let diff = run(&["diff", &store, "v1", "newest"]).fails(1, &[]).text();
    assert_eq!(diff.lines().count(), 2, "{diff}");
    let list = run(&["tag", "list", &store]).ok().text();
    let names: Vec<&str> = list.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(names, ["v1", "v2"]);
    let stat = run(&["stat", &store, "--json"]).ok().json();
    assert_eq!(stat["tags"]["v1"]["glsn"], 1);
    run(&["reset", &store, "--to", "v1"]).ok();
    assert_eq!(run(&["scan", &store]).ok().text(), "a\t1\n");
    run(&["tag", "delete", &store, "v1"]).ok();
    run(&["get", &store, "a", "--at", "v1"])
        .fails(2, &["no tag `v1`", "there are: v2", "plimsoll tag create", "2 hours ago"]);
    run(&["tag", "delete", &store, "v1"]).fails(2, &["no tag `v1`", "there are: v2"]);
}

#[test]
fn a_tag_that_cannot_be_made_is_refused() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "a", "1"]).ok();
    assert_eq!(run(&["tag", "list", &store]).ok().text(), "");
    run(&["get", &store, "a", "--at", "soon"]).fails(2, &["no tag `soon`", "there are none"]);
    for name in ["2024-01-31", "yesterday", "12", "commit:1a2b", "2 hours ago", ""] {
        run(&["tag", "create", &store, name]).fails(2, &["invalid tag name", "use 1 to 255 bytes"]);
    }
    run(&["tag", "create", &store, "v1"]).ok();
    run(&["tag", "create", &store, "v1"]).fails(2, &["tag \"v1\" exists, at GLSN 1"]);
    run(&["tag", "create", &store, "v2", "--at", "99"]).fails(2, &["99"]);
}

#[test]
fn a_wrong_name_is_answered_by_the_ten_closest_ones() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "a", "1"]).ok();
    for number in 10..32 {
        run(&["tag", "create", &store, &format!("release-{number}")]).ok();
    }
    run(&["tag", "create", &store, "unlike"]).ok();
    let failed = run(&["get", &store, "a", "--at", "release-3"]);
    assert!(!failed.err.contains("unlike"), "{}", failed.err);
    let closest = "the closest of 23 are: release-13, release-23, release-30, release-31, ";
    failed.fails(2, &["no tag `release-3`", closest]);
}
