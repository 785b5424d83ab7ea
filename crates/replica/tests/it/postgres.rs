//! Members over a real PostgreSQL server that is killed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plimsoll::order::{Appended, Order, OrderError};
use plimsoll::{Db, Options};
use plimsoll_archive::{Folders, bucket_at};
use plimsoll_replica::{BucketOrder, create, join, open_member};

use crate::members::{get, try_put};
use crate::postgres_server::Server;

/// Commits wait for longer than the server is down.
fn options() -> Options {
    Options::new().memory_bytes(16 << 20).warm(false).order_timeout(Duration::from_secs(60))
}

/// Kills of the server; the variable `POSTGRES_KILLS` sets another number.
fn kills() -> u64 {
    std::env::var("POSTGRES_KILLS").map_or(6, |kills| kills.parse().unwrap())
}

#[test]
#[ignore = "needs a PostgreSQL server; .ci/run runs it"]
fn nothing_is_appended_or_read_after_a_batch_that_a_promoted_standby_lacks() {
    let server = Server::start();
    let url = server.url("users");
    let member = || BucketOrder::new(bucket_at(&url, Folders::Create).unwrap(), &url).unwrap();
    let (one, other) = (member(), member());
    for position in 1..4 {
        assert_eq!(one.append(position, b"batch"), Ok(Appended::Done));
        assert_eq!(other.read(position).unwrap().unwrap(), b"batch");
    }
    let is_tried_again =
        |error: &OrderError| matches!(error, OrderError::Unavailable(_) | OrderError::InDoubt(_));
    server.sql("DELETE FROM users.objects WHERE name LIKE 'log/%3'");
    server.terminate_backends();
    let refused = loop {
        match one.append(4, b"next") {
            Err(error) if is_tried_again(&error) => {}
            answer => break answer,
        }
    };
    assert!(matches!(refused, Err(OrderError::Corrupt(_))), "{refused:?}");
    // It was stored before the gap was found.
    for member in [&one, &other] {
        let refused = member.read(4);
        assert!(matches!(refused, Err(OrderError::Corrupt(_))), "{refused:?}");
    }
}

#[test]
#[ignore = "needs a PostgreSQL server; .ci/run runs it"]
fn acknowledged_commits_are_on_every_member_after_kills_of_the_server() {
    const THREADS: usize = 4;
    let (dir, mut server) = (tempfile::tempdir().unwrap(), Server::start());
    let url = server.url("users");
    let stores = ["one", "two"].map(|name| dir.path().join(name));
    let db = Db::open(&stores[0], options()).unwrap();
    try_put(&db, "first", "1").unwrap();
    db.close().unwrap();
    create(&url, &stores[0], options()).unwrap();
    join(&url, &stores[1], options()).unwrap();
    let members = stores.each_ref().map(|store| open_member(store, options()).unwrap());
    let (done, is_over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for (member, db) in members.iter().enumerate() {
            for thread in 0..THREADS {
                let (done, is_over) = (&done, &is_over);
                scope.spawn(move || {
                    let mut number = 0;
                    while !is_over.load(Ordering::SeqCst) {
                        let key = format!("{member}/{thread}/{number}");
                        match try_put(db, &key, "x") {
                            Ok(glsn) => done.lock().unwrap().push((key, glsn)),
                            Err(error) => println!("{key}: {error}"),
                        }
                        number += 1;
                    }
                });
            }
        }
        for kill in 0..kills() {
            std::thread::sleep(Duration::from_millis(fastrand::u64(100..1200)));
            match kill % 3 {
                2 => {
                    server.signal("-STOP");
                    std::thread::sleep(Duration::from_millis(fastrand::u64(10..500)));
                    server.signal("-CONT");
                }
                _ => {
                    server.kill();
                    server.revive();
                }
            }
        }
        std::thread::sleep(Duration::from_millis(500));
        is_over.store(true, Ordering::SeqCst);
    });
    let done = done.into_inner().unwrap();
    println!("{} commits, {} kills", done.len(), kills());
    assert!(done.len() > 100, "{}", done.len());
    join(&url, dir.path().join("three"), options()).unwrap();
    let third = open_member(dir.path().join("three"), options()).unwrap();
    let newest = members[0].sync().unwrap();
    for member in members.iter().chain([&third]) {
        member.sync().unwrap();
        assert_eq!(member.newest(), members[0].newest(), "{newest:?}");
        for (key, glsn) in &done {
            assert_eq!(get(member, key).as_deref(), Some("x"), "{key} at {glsn:?}");
        }
    }
    for member in members.into_iter().chain([third]) {
        member.close().unwrap();
    }
}
