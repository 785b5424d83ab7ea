//! Several commands and a program with one store open at the same time.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use plimsoll::{Db, Options};

use crate::run::{Folder, Ran, plimsoll, run};

#[test]
fn commands_share_the_store_with_a_program() {
    let folder = Folder::new();
    let store = folder.at("store");
    let options = Options::new().shared(true).memory_total(64 << 20);
    let service = Db::open(&store, options).unwrap();
    let space = service.keyspace("default").unwrap();
    for number in 0..20u32 {
        service.put(&space, format!("service.{number:02}"), "1").unwrap();
        run(&["put", &store, &format!("command.{number:02}"), "2"]).ok();
        // The other process sees a commit at once.
        assert_eq!(service.get(&space, format!("command.{number:02}")).unwrap().unwrap(), b"2");
        assert_eq!(
            run(&["get", &store, &format!("service.{number:02}")]).ok().text().trim_end(),
            "1"
        );
    }
    assert_eq!(run(&["count", &store]).ok().text().trim(), "40");
    run(&["delete", &store, "command.00"]).ok();
    assert_eq!(service.get(&space, "command.00").unwrap(), None);
    run(&["keyspace", "create", &store, "users"]).ok();
    assert!(service.keyspaces().iter().any(|keyspace| keyspace.name == "users"));
    run(&["compact", &store]).ok();
    run(&["trim", &store, "--until", "5"]).ok();
    run(&["verify", &store]).ok();
    run(&["backup", &store, &folder.at("copy")]).ok();
    assert_eq!(run(&["count", &folder.at("copy")]).ok().text().trim(), "39");
    // `stat` lists the processes and the memory of each.
    let stat = run(&["stat", &store, "--json"]).ok().json();
    let here = &stat["processes"][std::process::id().to_string()];
    assert_eq!(
        (&here["role"], &here["memory_bytes"]),
        (&"keeper".into(), &(64u64 << 20).into()),
        "{stat}"
    );
    let shown = run(&["stat", &store]).ok().text();
    assert!(shown.lines().any(|line| line.contains("keeper, 64.0 MiB")), "{shown}");
    // A read-only shell shows the newest commits.
    let mut shell = plimsoll();
    shell.args(["shell", &store, "--read-only"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    let begun = Instant::now();
    while service.members().unwrap().iter().all(|member| !member.is_reader) {
        assert!(begun.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(5));
    }
    service.put(&space, "round", "7").unwrap();
    shell.stdin.take().unwrap().write_all(b"get round\n").unwrap();
    let shown = Ran::of(shell.wait_with_output().unwrap()).ok().text();
    assert_eq!(shown.trim(), "7");
    // A command that needs exclusive use names the other process.
    run(&["recover", &store, "--dry-run"]).fails(
        8,
        &["a process that shares it", &format!("pid {}", std::process::id()), "--wait 10s"],
    );
    service.close().unwrap();
    assert_eq!(run(&["stat", &store, "--json"]).ok().json()["processes"], serde_json::json!({}));
    run(&["recover", &store, "--dry-run"]).ok();
}

#[test]
fn concurrent_writers_all_succeed() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "first", "1"]).ok();
    for round in 0..5 {
        let children: Vec<_> = (0..6)
            .map(|at| {
                let key = format!("{round}.{at}");
                let mut command = plimsoll();
                command.args(["put", &store, &key, "x", "--memory", "16MiB"]);
                command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        for child in children {
            Ran::of(child.wait_with_output().unwrap()).ok();
        }
    }
    assert_eq!(run(&["count", &store]).ok().text().trim(), "31");
    run(&["verify", &store]).ok();
}
