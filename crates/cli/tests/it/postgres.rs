//! Clusters and archives on a real PostgreSQL server.

use std::time::Duration;

use crate::member_load::{check_members, commit_during_faults};
use crate::postgres_server::Server;
use crate::run::{Folder, plimsoll, run, run_with_input};

/// A cluster with the members `one` and `two`.
fn cluster(folder: &Folder, server: &Server) -> [String; 2] {
    let stores = ["one", "two"].map(|name| folder.at(name));
    let url = server.url("users");
    run(&["put", &stores[0], "first", "1"]).ok();
    run(&["cluster", "create", &url, "--from", &stores[0]]).ok();
    run(&["cluster", "join", &url, &stores[1]]).ok();
    stores
}

#[test]
#[ignore = "needs a PostgreSQL server; .ci/run runs it"]
fn members_commit_while_the_server_is_killed_stopped_and_restarted() {
    const INCREMENTS: u64 = 400;
    let folder = Folder::new();
    let mut server = Server::start();
    let stores = cluster(&folder, &server);
    let shells = stores.each_ref().map(|store| {
        let mut shell = plimsoll();
        shell.args(["shell", store]);
        shell
    });
    let faults = commit_during_faults(shells.into(), INCREMENTS, |number| match number % 3 {
        0 => {
            server.kill();
            server.revive();
        }
        1 => {
            server.signal("-STOP");
            std::thread::sleep(Duration::from_millis(300));
            server.signal("-CONT");
        }
        _ => server.terminate_backends(),
    });
    assert!(faults >= 3, "{faults} faults");
    check_members(&run, &server.url("users"), &stores, &folder.at("three"), INCREMENTS);
}

#[test]
#[ignore = "needs a PostgreSQL server; .ci/run runs it"]
fn a_cluster_is_used_trimmed_healed_and_left() {
    let folder = Folder::new();
    let server = Server::start();
    let url = server.url("users");
    let [one, two] = cluster(&folder, &server);
    run(&["put", &one, "second", "2"]).ok();
    assert_eq!(run(&["get", &two, "second"]).ok().out, b"2");
    let status = run(&["cluster", "status", &url]).ok().text();
    assert!(!status.contains("lovelace"), "{status}");
    run(&["cluster", "status", &two, "--json"]).ok().json();
    // A value that is sent as a blob, and a base.
    let large = folder.file("large", vec![7; 20 << 20]);
    run_with_input(&["batch", &two], format!("put b --file {large}\n").as_bytes()).ok();
    run(&["cluster", "trim", &two, "--keep", "1"]).ok();
    run(&["put", &one, "third", "3"]).ok();
    let three = folder.at("three");
    run(&["cluster", "join", &url, &three]).ok();
    assert_eq!(run(&["get", &three, "b"]).ok().out, vec![7; 20 << 20]);
    // Everything is lost but the tables.
    server.sql("TRUNCATE users.objects, users.chunks");
    run(&["put", &one, "fourth", "4"]).fails(6, &["there is no cluster here"]);
    run(&["cluster", "heal", &one, "--bucket", &url]).ok();
    run(&["put", &two, "fourth", "4"]).ok();
    assert_eq!(run(&["get", &one, "third"]).ok().out, b"3");
    let hash = |store: &String| run(&["state-hash", store]).ok().text();
    assert_eq!(hash(&one), hash(&two));
    // To a folder, and back into another schema.
    for bucket in [folder.at("bucket"), server.url("others")] {
        run(&["cluster", "move", &one, &bucket]).ok();
        run(&["put", &two, "moved", &bucket]).ok();
        assert_eq!(run(&["get", &one, "moved"]).ok().text().trim(), bucket);
    }
    assert_eq!(run(&["get", &one, "b"]).ok().out, vec![7; 20 << 20]);
    assert_eq!(hash(&one), hash(&two));
    run(&["cluster", "leave", &three]).ok();
    // No password is in the folder of a member.
    let found =
        std::process::Command::new("grep").args(["-rl", "lovelace", &one, &two]).output().unwrap();
    assert!(found.stdout.is_empty(), "{}", String::from_utf8_lossy(&found.stdout));
}

#[test]
#[ignore = "needs a PostgreSQL server; .ci/run runs it"]
fn an_archive_is_written_verified_and_restored() {
    let folder = Folder::new();
    let mut server = Server::start();
    let (store, archive) = (folder.at("store"), server.url("backup"));
    run(&["put", &store, "a", "one"]).ok();
    let large = folder.file("large", vec![7; 20 << 20]);
    run_with_input(&["batch", &store], format!("put b --file {large}\n").as_bytes()).ok();
    run(&["archive", &store, &archive]).ok();
    run(&["put", &store, "a", "two"]).ok();
    server.kill();
    run(&["archive", &store, &archive]).fails(6, &[&server.port.to_string()]);
    server.revive();
    run(&["archive", &store, &archive]).ok();
    run(&["verify", &archive]).ok();
    for (name, at, expected) in [("then", "1", "one"), ("now", "now", "two")] {
        let restored = folder.at(name);
        run(&["restore", &restored, &archive, "--at", at]).ok();
        assert_eq!(run(&["get", &restored, "a"]).ok().text().trim(), expected);
    }
    let value = run(&["get", &folder.at("now"), "b"]).ok().out;
    assert!(value.len() == 20 << 20 && value.iter().all(|byte| *byte == 7));
}

#[test]
#[ignore = "needs a PostgreSQL server; .ci/run runs it"]
fn an_unfit_server_and_a_password_in_the_url_are_told() {
    let folder = Folder::new();
    let mut server = Server::start();
    let store = folder.at("store");
    run(&["put", &store, "a", "1"]).ok();
    let create = |url: &str| run(&["cluster", "create", url, "--from", &store]);
    let url = server.url("users").replace("ada@", "ada:lovelace@");
    let refused = create(&url).fails(2, &["a password"]);
    assert!(!refused.err.contains("lovelace"), "{}", refused.err);
    let refused = run(&["archive", &store, &url]).fails(2, &["ada@", "PGPASSWORD"]);
    assert!(!refused.err.contains("lovelace"), "{}", refused.err);
    create(&server.url_in("nowhere", "users")).fails(6, &["\"nowhere\" does not exist", "URL"]);
    server.restart_with(&["fsync=off"]);
    create(&server.url("users")).fails(6, &["fsync is off", "correct this"]);
    server.restart_with(&[]);
    // The store is not a member of anything.
    run(&["put", &store, "a", "2"]).ok();
    create(&server.url("users")).ok();
}
