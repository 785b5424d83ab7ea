//! `plimsoll cluster`, and every command on the folder of a member.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use plimsoll::{Db, Options};

use crate::run::{Folder, plimsoll, run, run_with_input};

/// A cluster whose first member is `one`, and other members.
fn cluster(folder: &Folder, others: &[&str]) -> String {
    let (bucket, one) = (folder.at("bucket"), folder.at("one"));
    run(&["put", &one, "first", "1"]).ok();
    run(&["cluster", "create", &bucket, "--from", &one]).ok();
    for other in others {
        run(&["cluster", "join", &bucket, &folder.at(other)]).ok();
    }
    bucket
}

#[test]
fn commands_on_a_member_use_the_cluster() {
    let folder = Folder::new();
    let bucket = cluster(&folder, &["two"]);
    let (one, two) = (folder.at("one"), folder.at("two"));
    assert_eq!(run(&["get", &two, "first"]).ok().out, b"1");
    run(&["put", &two, "second", "2"]).ok();
    assert_eq!(run(&["get", &one, "second"]).ok().out, b"2");
    run(&["add", &one, "counter", "5"]).ok();
    run(&["add", &two, "counter", "6"]).ok();
    assert_eq!(run(&["get", &one, "counter"]).ok().out, 11_i64.to_le_bytes());
    run_with_input(&["batch", &one], b"put a 1\nput b 2\n").ok();
    run(&["delete", &two, "a"]).ok();
    assert_eq!(run(&["scan", &one, "--keys"]).ok().text(), "b\ncounter\nfirst\nsecond\n");
    run(&["keyspace", "create", &two, "users"]).ok();
    run(&["put", &one, "ada", "x", "--keyspace", "users"]).ok();
    run(&["branch", "create", &two, "draft"]).ok();
    run(&["put", &two, "first", "draft", "--branch", "draft"]).ok();
    assert_eq!(run(&["get", &one, "first", "--branch", "draft"]).ok().out, b"draft");
    run(&["tag", "create", &one, "v1"]).ok();
    assert!(run(&["tag", "list", &two]).ok().text().contains("v1"));
    let hash = |store: &str| run(&["state-hash", store]).ok().text();
    assert_eq!(hash(&one), hash(&two));
    for store in [&one, &two] {
        run(&["verify", store]).ok();
        run(&["compact", store]).ok();
        run(&["stat", store]).ok();
        run(&["log", store]).ok();
    }
    run(&["backup", &two, &folder.at("copy")]).ok();
    // A copy is an ordinary store.
    run(&["put", &folder.at("copy"), "own", "1"]).ok();
    let status = run(&["cluster", "status", &two, "--json"]).ok().json();
    assert_eq!(status["bucket"], bucket);
    let newest = status["newest_glsn_here"].as_u64().unwrap();
    assert!(newest >= 10, "{status}");
    let of_bucket = run(&["cluster", "status", &bucket, "--json"]).ok().json();
    assert_eq!(of_bucket["cluster_id"], status["cluster_id"]);
    assert_eq!(of_bucket["batches"], status["batches"]);
    run(&["cluster", "leave", &two]).ok();
    run(&["put", &two, "own", "1"]).ok();
    run(&["get", &one, "own"]).fails(1, &[]);
    run(&["cluster", "status", &two]).fails(2, &["this store is not a member"]);
}

#[test]
fn a_reader_beside_an_open_member_reads_what_it_has_applied() {
    let folder = Folder::new();
    cluster(&folder, &["two"]);
    let two = folder.at("two");
    let options = Options::new().memory_bytes(16 << 20);
    let db = plimsoll_replica::open_member(&two, options).unwrap();
    let rows = db.keyspace("default").unwrap();
    run(&["put", &folder.at("one"), "from one", "1"]).ok();
    db.put(&rows, "from two", "2").unwrap();
    db.sync().unwrap();
    assert_eq!(run(&["get", &two, "from one"]).ok().out, b"1");
    assert_eq!(run(&["get", &two, "from two"]).ok().out, b"2");
    // Commands that write need the member for themselves.
    run(&["put", &two, "x", "1"]).fails(8, &["--wait 10s"]);
    db.close().unwrap();
    run(&["put", &two, "x", "1", "--wait", "10s"]).ok();
}

#[test]
fn wrong_places_are_refused_and_the_store_stays_as_it_is() {
    let folder = Folder::new();
    let bucket = cluster(&folder, &[]);
    let (one, plain) = (folder.at("one"), folder.at("plain"));
    run(&["put", &plain, "a", "1"]).ok();
    run(&["cluster", "create", &bucket, "--from", &plain]).fails(2, &["there is a cluster here"]);
    run(&["cluster", "create", &folder.at("b2"), "--from", &one]).fails(2, &["leave it first"]);
    run(&["cluster", "create", &folder.at("b2"), "--from", &folder.at("no")])
        .fails(3, &["no store"]);
    run(&["cluster", "join", &bucket, &plain]).fails(2, &["the destination exists"]);
    run(&["cluster", "join", &folder.at("no"), &folder.at("new")]).fails(3, &["no cluster here"]);
    run(&["cluster", "join", "ftp://x/y", &folder.at("new")]).fails(2, &["file:///PATH"]);
    run(&["cluster", "leave", &plain]).fails(2, &["not a member"]);
    run(&["put", &plain, "b", "1"]).ok();
    // A program that does not know of the cluster.
    let refused = Db::open(&one, Options::new().memory_bytes(16 << 20)).unwrap_err();
    assert!(refused.to_string().contains("its order"), "{refused}");
}

#[test]
fn without_the_bucket_commands_read_and_leave() {
    let folder = Folder::new();
    let bucket = cluster(&folder, &["two"]);
    let one = folder.at("one");
    run(&["put", &one, "kept", "1"]).ok();
    std::fs::rename(&bucket, folder.at("lost")).unwrap();
    let read = run(&["get", &one, "kept"]).ok();
    assert_eq!(read.out, b"1");
    assert!(read.err.contains("Reading what this member has applied so far"), "{}", read.err);
    run(&["put", &one, "new", "1"]).fails(6, &["there is no cluster here", "is mounted"]);
    run(&["cluster", "status", &one]).fails(3, &["there is no cluster here"]);
    run(&["cluster", "leave", &one]).fails(3, &["there is no cluster here"]);
    run(&["cluster", "leave", &one, "--offline"]).ok();
    run(&["cluster", "create", &folder.at("bucket 2"), "--from", &one]).ok();
    run(&["cluster", "join", &folder.at("bucket 2"), &folder.at("three")]).ok();
    assert_eq!(run(&["get", &folder.at("three"), "kept"]).ok().out, b"1");
}

#[test]
fn a_cluster_is_moved_to_another_bucket() {
    let folder = Folder::new();
    let old = cluster(&folder, &["two"]);
    let (one, two, new) = (folder.at("one"), folder.at("two"), folder.at("new"));
    run(&["cluster", "move", &one, &old]).fails(2, &["there is a cluster here already"]);
    let plain = folder.at("plain");
    run(&["put", &plain, "a", "1"]).ok();
    run(&["cluster", "move", &plain, &new]).fails(2, &["not a member"]);
    let moved = run(&["cluster", "move", &one, &new, "--json"]).ok().json();
    assert_eq!(
        (&moved["bucket"], &moved["old_bucket"]),
        (&new.clone().into(), &old.clone().into())
    );
    let status = run(&["cluster", "status", &two, "--json"]).ok().json();
    assert_eq!(
        (&status["bucket"], &status["moved_to"]),
        (&old.clone().into(), &new.clone().into())
    );
    run(&["cluster", "heal", &two]).fails(2, &["this cluster was moved to", &new]);
    run(&["put", &one, "second", "2"]).ok();
    assert_eq!(run(&["get", &two, "second"]).ok().out, b"2");
    let status = run(&["cluster", "status", &two, "--json"]).ok().json();
    assert_eq!((&status["bucket"], status.get("moved_to")), (&new.into(), None));
    std::fs::remove_dir_all(&old).unwrap();
    run(&["put", &two, "third", "3"]).ok();
    assert_eq!(run(&["get", &one, "third"]).ok().out, b"3");
}

#[test]
fn a_cluster_is_healed_from_its_members() {
    let folder = Folder::new();
    let bucket = cluster(&folder, &["two"]);
    let (one, two) = (folder.at("one"), folder.at("two"));
    for number in 0..6 {
        run(&["put", &one, &format!("key {number}"), "1"]).ok();
    }
    let whole = run(&["cluster", "heal", &one, &two, "--json"]).ok().json();
    assert_eq!(whole["problems"], serde_json::json!([]));
    // The last objects of the log are lost, and `two` has not applied them.
    let log = std::path::Path::new(&bucket).join("log");
    let mut names: Vec<_> = log.read_dir().unwrap().map(|file| file.unwrap().path()).collect();
    names.sort();
    names[names.len() - 4..].iter().for_each(|path| std::fs::remove_file(path).unwrap());
    run(&["put", &one, "x", "1"]).fails(4, &["it is missing"]);
    let healed = run(&["cluster", "heal", &two, &one]).ok().text();
    assert!(healed.contains("The cluster is healed."), "{healed}");
    assert!(healed.contains("was cut or set back") && healed.contains(&one), "{healed}");
    run(&["put", &two, "after", "1"]).ok();
    assert_eq!(run(&["get", &one, "after"]).ok().out, b"1");
    assert_eq!(run(&["get", &two, "key 5"]).ok().out, b"1");
    run(&["cluster", "join", &bucket, &folder.at("three")]).ok();
    run(&["cluster", "status", &two]).ok();
    let whole = run(&["cluster", "heal", &one, &two, &folder.at("three")]).ok().text();
    assert!(whole.contains("The bucket is whole; nothing was changed."), "{whole}");
    // Only one is at hand, and it is not up to date.
    run(&["put", &one, "last", "1"]).ok();
    std::fs::remove_dir_all(&bucket).unwrap();
    std::fs::create_dir(&bucket).unwrap();
    run(&["cluster", "heal", &two]).fails(2, &["this place is empty", "--bucket"]);
    run(&["cluster", "heal", &two, "--bucket", &bucket]).ok();
    let late = run(&["put", &one, "x", "1"]);
    late.fails(6, &["this member has commits up to GLSN", "cluster heal"]);
    assert_eq!(run(&["get", &one, "last"]).ok().out, b"1");
    run(&["cluster", "heal", &two, &one]).ok();
    assert_eq!(run(&["get", &two, "last"]).ok().out, b"1");
    run(&["cluster", "heal", &folder.at("none")]).fails(2, &["not a member"]);
}

/// A shell on a member, killed when it is dropped.
struct Member(Child);

impl Member {
    fn start(store: &str) -> Self {
        let mut command = plimsoll();
        command.args(["shell", store, "--wait", "60s"]).stdin(Stdio::piped());
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Three processes on three folders increment one number, each in a transaction that also writes
/// the name of the operation, and are killed. The number is that of the operations in the store,
/// and these include all that were acknowledged.
#[test]
fn no_acknowledged_increment_is_lost_when_members_are_killed() {
    increments_with_kills(|_| {});
}

/// The same while another member moves the cluster, by a command that is killed, too.
#[test]
fn no_acknowledged_increment_is_lost_when_a_cluster_is_moved() {
    increments_with_kills(|folder| {
        let (mover, mut rng) = (folder.at("mover"), Rng::with_seed(9));
        let mut killed = 0;
        for number in 0..5 {
            let bucket = folder.at(&format!("bucket {number}"));
            run(&["cluster", "trim", &mover, "--keep", "20", "--wait", "60s"]).ok();
            for patience in (20..).step_by(40) {
                let mut command = plimsoll();
                command.args(["cluster", "move", &mover, &bucket, "--wait", "60s"]);
                let mut child =
                    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
                std::thread::sleep(Duration::from_millis(rng.u64(0..patience)));
                killed += u64::from(child.try_wait().unwrap().is_none());
                let _ = child.kill();
                let _ = child.wait();
                let status = run(&["cluster", "status", &mover, "--json"]);
                if status.text().contains(&bucket) {
                    break;
                }
            }
            run(&["put", &mover, "mover", &bucket, "--wait", "60s"]).ok();
        }
        assert!(killed >= 5, "{killed} moves were killed");
    });
}

fn increments_with_kills(meanwhile: impl FnOnce(&Folder) + Send) {
    let folder = Folder::new();
    cluster(&folder, &["two", "three", "mover"]);
    let (acknowledged, tries) = (Mutex::new(BTreeSet::new()), Mutex::new(0));
    let kills = Mutex::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| meanwhile(&folder));
        for (seed, name) in ["one", "two", "three"].into_iter().enumerate() {
            let (store, acknowledged, tries) = (folder.at(name), &acknowledged, &tries);
            let kills = &kills;
            scope.spawn(move || {
                let mut rng = Rng::with_seed(seed as u64);
                for round in 0..8 {
                    let mut member = Member::start(&store);
                    let mut input = member.0.stdin.take().unwrap();
                    let output = BufReader::new(member.0.stdout.take().unwrap());
                    // The commit of one transaction is acknowledged before the next one is begun.
                    let is_over = AtomicBool::new(false);
                    let pid = rustix::process::Pid::from_child(&member.0);
                    let after = Duration::from_millis(rng.u64(30..400));
                    std::thread::scope(|scope| {
                        if round < 7 {
                            scope.spawn(|| {
                                std::thread::sleep(after);
                                if !is_over.swap(true, Ordering::SeqCst) {
                                    *kills.lock().unwrap() += 1;
                                    let _ = rustix::process::kill_process(
                                        pid,
                                        rustix::process::Signal::KILL,
                                    );
                                }
                            });
                        }
                        let mut lines = output.lines();
                        for number in 0..300 {
                            let operation = format!("op/{name}/{round}/{number}");
                            *tries.lock().unwrap() += 1;
                            let text = format!(
                                "begin\nadd n\nput {operation} x\ncommit\ncount op/{name}/none\n"
                            );
                            if input.write_all(text.as_bytes()).is_err() {
                                break;
                            }
                            // The count follows the acknowledgement; both come, or neither.
                            let answer = lines
                                .by_ref()
                                .find(|line| !matches!(line, Ok(line) if line != "0"));
                            match answer {
                                Some(Ok(_)) => drop(acknowledged.lock().unwrap().insert(operation)),
                                _ => break,
                            }
                        }
                        drop(input);
                        is_over.store(true, Ordering::SeqCst);
                    });
                }
            });
        }
    });
    let stores = ["one", "two", "three"].map(|name| folder.at(name));
    let hash = |store: &String| run(&["state-hash", store]).ok().text();
    let hashes = stores.each_ref().map(hash);
    assert_eq!(hashes[0], hashes[1]);
    assert_eq!(hashes[0], hashes[2]);
    let number = run(&["get", &stores[0], "n"]).ok().out;
    let number = i64::from_le_bytes(number.try_into().unwrap());
    let listed = run(&["scan", &stores[1], "op/", "--keys"]).ok().text();
    let found: BTreeSet<String> = listed.lines().map(str::to_owned).collect();
    assert_eq!(number as usize, found.len());
    let acknowledged = acknowledged.into_inner().unwrap();
    let lost: Vec<_> = acknowledged.difference(&found).collect();
    assert!(lost.is_empty(), "{lost:?}");
    let (tries, kills) = (tries.into_inner().unwrap(), kills.into_inner().unwrap());
    println!("{tries} tries, {} acknowledged, {number} done, {kills} kills", acknowledged.len());
    assert!(kills >= 8 && acknowledged.len() > 20, "{kills} kills, {}", acknowledged.len());
    for store in &stores {
        run(&["verify", store]).ok();
    }
}

#[test]
fn a_trimmed_log_is_short_and_members_that_were_behind_go_on() {
    let folder = Folder::new();
    let bucket = cluster(&folder, &["two"]);
    let (one, two) = (folder.at("one"), folder.at("two"));
    for number in 0..12 {
        run(&["put", &one, &format!("key {number}"), "1"]).ok();
    }
    let behind = run(&["cluster", "status", &two, "--json"]).ok().json();
    assert_eq!(behind["batches_behind"], 12);
    let short = run(&["cluster", "trim", &one, "--json"]).ok().json();
    assert_eq!((&short["batches_removed"], &short["first_position"]), (&0.into(), &1.into()));
    let trimmed = run(&["cluster", "trim", &one, "--keep", "4", "--json"]).ok().json();
    let (first, last) = (&trimmed["first_position"], &trimmed["last_position"]);
    assert_eq!(last.as_u64().unwrap() - first.as_u64().unwrap(), 3);
    assert!(trimmed["batches_removed"].as_u64().unwrap() >= 8, "{trimmed}");
    let status = run(&["cluster", "status", &bucket, "--json"]).ok().json();
    assert_eq!((&status["batches"], &status["newest_base"]), (&4.into(), &1.into()));
    assert_eq!(status["first_position"], *first);
    // A command that reads restores the base, too.
    assert_eq!(run(&["get", &two, "key 11"]).ok().out, b"1");
    run(&["put", &two, "last", "2"]).ok();
    assert_eq!(run(&["get", &one, "last"]).ok().out, b"2");
    run(&["cluster", "join", &bucket, &folder.at("three")]).ok();
    let hash = |store: &str| run(&["state-hash", store]).ok().text();
    assert_eq!(hash(&one), hash(&folder.at("three")));
    assert_eq!(hash(&one), hash(&two));
    let plain = folder.at("plain");
    run(&["put", &plain, "a", "1"]).ok();
    run(&["cluster", "trim", &plain]).fails(2, &["not a member"]);
}
