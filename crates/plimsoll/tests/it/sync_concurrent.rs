//! Transfers into one store at the same time: from threads, processes and connections.

use std::thread;

use plimsoll::{Db, Error, InvalidInput, Keyspace, Moved, Options, Pulled, SyncConnection};

fn store() -> Db {
    Db::in_memory(Options::new().memory_bytes(16 << 20)).unwrap()
}

fn notes(db: &Db) -> Keyspace {
    db.keyspace("notes").unwrap()
}

/// A history with merges, so that a transfer needs temporary branches. Stores with the same `seed`
/// have different commits.
fn source(seed: u8) -> Db {
    let db = store();
    let notes = notes(&db);
    for round in 0..6_u8 {
        db.put(&notes, [seed, round], "main").unwrap();
        let side = db.create_branch("side", &db.main()).unwrap();
        for number in 0..4_u8 {
            side.put(&notes, [seed, round, number], "side").unwrap();
            db.put(&notes, [seed, round, 100 + number], "main").unwrap();
        }
        db.merge(&side).run().unwrap();
        db.delete_branch("side").unwrap();
    }
    db
}

/// Whether a transfer has lost against another one of the same branch.
#[track_caller]
fn has_lost(moved: plimsoll::Result<Moved>) -> bool {
    match moved {
        Ok(_) => false,
        Err(Error::InvalidInput(InvalidInput::NotFastForward { .. })) => true,
        Err(error) => panic!("{error}"),
    }
}

#[track_caller]
fn assert_tidy(db: &Db) {
    let left: Vec<_> = db.branches().unwrap().into_iter().map(|info| info.name).collect();
    assert!(!left.iter().any(|name| name.starts_with("incoming/")), "{left:?}");
}

#[test]
fn threads_fetch_different_branches() {
    let target = store();
    thread::scope(|scope| {
        for number in 0..4_u8 {
            let target = &target;
            scope.spawn(move || {
                let (source, into) = (source(number), format!("b{number}"));
                for round in 0..3_u8 {
                    target.fetch_from(&source, "main", &into).unwrap();
                    source.put(&notes(&source), [200, round], "more").unwrap();
                    source
                        .merge(&source.create_branch("x", &source.main()).unwrap())
                        .run()
                        .unwrap();
                    source.delete_branch("x").unwrap();
                }
                target.fetch_from(&source, "main", &into).unwrap();
                let found = target.branch(&into).unwrap();
                assert_eq!(found.tip().unwrap(), source.main().tip().unwrap());
                assert_eq!(found.state_hash().unwrap(), source.state_hash().unwrap());
            });
        }
    });
    assert_tidy(&target);
}

#[test]
fn threads_fetch_the_same_branch() {
    let (source, target) = (source(0), store());
    for round in 0..4_u8 {
        source.put(&notes(&source), [200, round], "more").unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| target.fetch_from(&source, "main", "theirs").unwrap());
            }
        });
        let found = target.branch("theirs").unwrap();
        assert_eq!(found.tip().unwrap(), source.main().tip().unwrap());
        assert_eq!(found.state_hash().unwrap(), source.state_hash().unwrap());
    }
    target.fetch_from(&source, "main", "theirs").unwrap();
    assert_tidy(&target);
}

#[test]
fn threads_push_different_commits_to_the_same_branch() {
    let sources: Vec<Db> = (0..4).map(source).collect();
    let target = store();
    let lost: Vec<bool> = thread::scope(|scope| {
        let pushes: Vec<_> = sources
            .iter()
            .map(|source| scope.spawn(|| has_lost(source.push_to(&target, "main"))))
            .collect();
        pushes.into_iter().map(|push| push.join().unwrap()).collect()
    });
    assert!(lost.iter().filter(|lost| !**lost).count() <= 1, "{lost:?}");
    for source in &sources {
        has_lost(source.push_to(&target, "main"));
    }
    let winner = sources.iter().find(|it| it.main().tip() == target.main().tip());
    if let Some(winner) = winner {
        assert_eq!(winner.state_hash().unwrap(), target.state_hash().unwrap());
    }
}

#[test]
fn processes_fetch_at_the_same_time() {
    let dir = tempfile::tempdir().unwrap();
    // Each opening is a member of its own, as in another process.
    let open = || Db::open(dir.path(), Options::new().memory_bytes(16 << 20).shared(true)).unwrap();
    let (first, shared) = (open(), source(9));
    thread::scope(|scope| {
        for number in 0..3_u8 {
            let (shared, db) = (&shared, open());
            scope.spawn(move || {
                let (own, into) = (source(number), format!("b{number}"));
                db.fetch_from(&own, "main", &into).unwrap();
                db.fetch_from(shared, "main", "shared").unwrap();
                own.put(&notes(&own), "more", "1").unwrap();
                db.fetch_from(&own, "main", &into).unwrap();
                let found = db.branch(&into).unwrap();
                assert_eq!(found.tip().unwrap(), own.main().tip().unwrap());
                assert_eq!(found.state_hash().unwrap(), own.state_hash().unwrap());
                db.close().unwrap();
            });
        }
    });
    let found = first.branch("shared").unwrap();
    assert_eq!(found.tip().unwrap(), shared.main().tip().unwrap());
    assert_eq!(found.state_hash().unwrap(), shared.state_hash().unwrap());
    first.fetch_from(&shared, "main", "shared").unwrap();
    assert_tidy(&first);
    first.close().unwrap();
}

#[test]
fn clients_push_to_one_server() {
    let target = store();
    let sources: Vec<Db> = (0..3).map(source).collect();
    thread::scope(|scope| {
        for (number, source) in sources.iter().enumerate() {
            let (from_client, to_server) = std::io::pipe().unwrap();
            let (from_server, to_client) = std::io::pipe().unwrap();
            let served = target.clone();
            scope.spawn(move || served.serve_sync(from_client, to_client).unwrap());
            scope.spawn(move || {
                let mut connection = SyncConnection::new(from_server, to_server).unwrap();
                let name = format!("b{number}");
                source.create_branch(&name, &source.main()).unwrap();
                source.push_over(&mut connection, &name).unwrap();
                has_lost(source.push_over(&mut connection, "main"));
                source.push_over(&mut connection, &name).unwrap();
            });
        }
    });
    for (number, source) in sources.iter().enumerate() {
        let found = target.branch(&format!("b{number}")).unwrap();
        assert_eq!(found.tip().unwrap(), source.main().tip().unwrap());
    }
}

#[test]
fn threads_pull_and_push_the_same_branch() {
    let dir = tempfile::tempdir().unwrap();
    let hub = dir.path().join("hub");
    let options = Options::new().memory_bytes(16 << 20);
    let db = Db::open(&hub, options.clone()).unwrap();
    db.put(&notes(&db), "first", "0").unwrap();
    db.close().unwrap();
    let clone =
        |name| Db::clone_store(hub.to_str().unwrap(), dir.path().join(name), options.clone());
    let copy = clone("copy").unwrap();
    let other = Db::open(dir.path().join("other"), options.clone()).unwrap();
    other.add_remote("origin", hub.to_str().unwrap()).unwrap();
    other.pull("origin", "main").unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..4_u8 {
                other.put(&notes(&other), [round], "other").unwrap();
                while has_lost(other.push("origin", "main")) {
                    other.pull("origin", "main").unwrap();
                }
            }
        });
        for thread in 0..2_u8 {
            let copy = &copy;
            scope.spawn(move || {
                for round in 0..4_u8 {
                    copy.put(&notes(copy), [thread, round], "copy").unwrap();
                    while has_lost(copy.push("origin", "main")) {
                        let pulled = copy.pull("origin", "main").unwrap();
                        assert!(!matches!(pulled, Pulled::Conflicts(_)));
                    }
                }
            });
        }
    });
    copy.pull("origin", "main").unwrap();
    assert_eq!(copy.main().len(&notes(&copy)).unwrap(), 1 + 4 + 2 * 4);
    copy.push("origin", "main").unwrap();
    assert_eq!(copy.branch("origin/main").unwrap().tip().unwrap(), copy.main().tip().unwrap());
    assert_tidy(&copy);
    other.close().unwrap();
    copy.close().unwrap();
}
